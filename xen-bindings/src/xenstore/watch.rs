//! Watches, by small numbers.

use super::tree::parse_number;

/// The guest's number for a watch, below 64: events are kept as one bit each, so none is ever lost
/// or waits in a queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WatchId(u8);

impl WatchId {
    /// A number below 64; `None` else.
    ///
    /// ```
    /// use xen_sys_lite::xenstore::WatchId;
    /// const SHUTDOWN: WatchId = WatchId::new(0).unwrap();
    /// assert!(WatchId::new(64).is_none());
    /// ```
    #[must_use]
    pub const fn new(number: u8) -> Option<Self> {
        if number < 64 { Some(Self(number)) } else { None }
    }
}

/// The watches that have fired. What changed is to be read again; several changes may be one
/// report.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Fired(u64);

impl Fired {
    pub(super) const NONE: Self = Self(0);

    /// Has this watch fired?
    #[must_use]
    pub const fn contains(self, id: WatchId) -> bool {
        self.0 & 1 << id.0 != 0
    }

    /// Has none fired?
    #[must_use]
    pub const fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// A token that is none of ours (of an earlier watch, perhaps) is left out.
    pub(super) fn insert(&mut self, token: Option<WatchId>) {
        if let Some(id) = token {
            self.0 |= 1 << id.0;
        }
    }
}

/// A watch's number as xenstore carries it: two decimal digits.
pub(super) struct Token([u8; 2]);

impl Token {
    pub(super) const fn of(id: WatchId) -> Self {
        Self([b'0' + id.0 / 10, b'0' + id.0 % 10])
    }

    pub(super) const fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    /// The number in the last bytes of a watch event, which is path, zero, token, zero.
    pub(super) fn at_end_of(tail: &[u8]) -> Option<WatchId> {
        let body = tail.strip_suffix(b"\0")?;
        let start = body.iter().rposition(|byte| *byte == 0)? + 1;
        let number = parse_number(body.get(start..)?)?;
        WatchId::new(u8::try_from(number).ok()?)
    }
}
