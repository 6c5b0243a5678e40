//! Operations on the tree, inside a transaction and outside.

use super::{Store, StoreError};
use crate::abi::xs_wire::{ABSOLUTE_PATH_MAX, message};
use crate::channel::Channel;
use crate::errno::Errno;

/// A path, in one piece or in two with a slash between.
///
/// Relative paths begin at the domain's own home.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Path<'a> {
    base: &'a str,
    leaf: &'a str,
}

impl<'a> Path<'a> {
    /// `base/leaf`.
    #[must_use]
    pub const fn join(base: &'a str, leaf: &'a str) -> Self {
        Self { base, leaf }
    }

    pub(super) fn pieces(&self) -> [&'a [u8]; 3] {
        let slash: &[u8] = if self.leaf.is_empty() { b"" } else { b"/" };
        [self.base.as_bytes(), slash, self.leaf.as_bytes()]
    }

    pub(super) fn check(&self) -> Result<(), StoreError> {
        let len = self.base.len() + 1 + self.leaf.len();
        let has_zero = self.base.contains('\0') || self.leaf.contains('\0');
        if self.base.is_empty() || len > ABSOLUTE_PATH_MAX || has_zero {
            return Err(StoreError::BadPath);
        }
        Ok(())
    }
}

impl<'a> From<&'a str> for Path<'a> {
    fn from(path: &'a str) -> Self {
        Self { base: path, leaf: "" }
    }
}

/// Reading and changing the tree: a [`Store`] does so at once, a [`Transaction`] together with the
/// rest of it.
pub trait Tree {
    /// Sends one request and waits for the answer, whose length is returned; as much of it as fits
    /// is in `reply`. The other methods are made of this one.
    ///
    /// # Errors
    /// See [`StoreError`].
    fn request(
        &mut self,
        kind: u32,
        pieces: &[&[u8]],
        reply: &mut [u8],
    ) -> Result<usize, StoreError>;

    /// The value of a node.
    ///
    /// # Errors
    /// `ENOENT` as a refusal where there is none; [`StoreError::BufferTooSmall`].
    fn read<'p, 'b>(
        &mut self,
        path: impl Into<Path<'p>>,
        buffer: &'b mut [u8],
    ) -> Result<&'b [u8], StoreError> {
        let len = self.ask(message::READ, path.into(), buffer)?;
        buffer.get(..len).ok_or(StoreError::BufferTooSmall { needed: len })
    }

    /// The value of a node, as text.
    ///
    /// # Errors
    /// As [`read`](Self::read); [`StoreError::BadValue`] where it is not UTF-8.
    fn read_text<'p, 'b>(
        &mut self,
        path: impl Into<Path<'p>>,
        buffer: &'b mut [u8],
    ) -> Result<&'b str, StoreError> {
        let value = self.read(path, buffer)?;
        core::str::from_utf8(value).map_err(|_| StoreError::BadValue)
    }

    /// The value of a node, as a decimal number.
    ///
    /// # Errors
    /// As [`read`](Self::read); [`StoreError::BadValue`] where it is not a number of 64 bits.
    fn read_number<'p>(&mut self, path: impl Into<Path<'p>>) -> Result<u64, StoreError> {
        let mut buffer = [0; 24];
        match self.read(path, &mut buffer) {
            Ok(value) => parse_number(value).ok_or(StoreError::BadValue),
            Err(StoreError::BufferTooSmall { .. }) => Err(StoreError::BadValue),
            Err(error) => Err(error),
        }
    }

    /// The value of a node as a number, or `default` where there is no such node.
    ///
    /// # Errors
    /// As [`read_number`](Self::read_number).
    fn read_number_or<'p>(
        &mut self,
        path: impl Into<Path<'p>>,
        default: u64,
    ) -> Result<u64, StoreError> {
        match self.read_number(path) {
            Err(StoreError::Refused(Errno::ENOENT)) => Ok(default),
            other => other,
        }
    }

    /// Sets the value of a node, which is made where needed.
    ///
    /// # Errors
    /// `EACCES` as a refusal where the guest may not.
    fn write<'p>(&mut self, path: impl Into<Path<'p>>, value: &[u8]) -> Result<(), StoreError> {
        let path = path.into();
        path.check()?;
        let [base, slash, leaf] = path.pieces();
        self.request(message::WRITE, &[base, slash, leaf, b"\0", value], &mut []).map(drop)
    }

    /// Sets the value of a node to a decimal number.
    ///
    /// # Errors
    /// As [`write`](Self::write).
    fn write_number<'p>(
        &mut self,
        path: impl Into<Path<'p>>,
        value: u64,
    ) -> Result<(), StoreError> {
        let mut digits = [0; 20];
        self.write(path, format_number(value, &mut digits))
    }

    /// Names of the children of a node.
    ///
    /// # Errors
    /// As [`read_text`](Self::read_text); `E2BIG` as a refusal for more than 4,096 bytes of names.
    fn list<'p, 'b>(
        &mut self,
        path: impl Into<Path<'p>>,
        buffer: &'b mut [u8],
    ) -> Result<Names<'b>, StoreError> {
        let len = self.ask(message::DIRECTORY, path.into(), buffer)?;
        let names = buffer.get(..len).ok_or(StoreError::BufferTooSmall { needed: len })?;
        let names = core::str::from_utf8(names).map_err(|_| StoreError::BadValue)?;
        Ok(Names(names))
    }

    /// Makes a node with an empty value, where it is not there.
    ///
    /// # Errors
    /// As [`write`](Self::write).
    fn make<'p>(&mut self, path: impl Into<Path<'p>>) -> Result<(), StoreError> {
        self.ask(message::MKDIR, path.into(), &mut []).map(drop)
    }

    /// Removes a node and all below it.
    ///
    /// # Errors
    /// `ENOENT` as a refusal where even its parent is not there.
    fn remove<'p>(&mut self, path: impl Into<Path<'p>>) -> Result<(), StoreError> {
        self.ask(message::RM, path.into(), &mut []).map(drop)
    }

    /// Sends a request that carries a path only.
    #[doc(hidden)]
    fn ask(&mut self, kind: u32, path: Path<'_>, reply: &mut [u8]) -> Result<usize, StoreError> {
        path.check()?;
        let [base, slash, leaf] = path.pieces();
        self.request(kind, &[base, slash, leaf, b"\0"], reply)
    }
}

/// Names of a node's children.
#[derive(Clone, Debug)]
pub struct Names<'a>(&'a str);

impl<'a> Iterator for Names<'a> {
    type Item = &'a str;

    fn next(&mut self) -> Option<&'a str> {
        if self.0.is_empty() {
            return None;
        }
        let (name, rest) = self.0.split_once('\0').unwrap_or((self.0, ""));
        self.0 = rest;
        Some(name)
    }
}

/// Changes that appear together, or not at all. Dropped without a [commit](Self::commit), they are
/// forgotten.
#[derive(Debug)]
pub struct Transaction<'s, C: Channel> {
    store: &'s mut Store<C>,
    id: u32,
    open: bool,
}

impl<'s, C: Channel> Transaction<'s, C> {
    pub(super) const fn begun(store: &'s mut Store<C>, id: u32) -> Self {
        Self { store, id, open: true }
    }

    /// Makes the changes.
    ///
    /// # Errors
    /// `EAGAIN` as a refusal where somebody else changed what was read: begin again.
    pub fn commit(mut self) -> Result<(), StoreError> {
        self.finish(b"T\0")
    }

    fn finish(&mut self, how: &[u8]) -> Result<(), StoreError> {
        self.open = false;
        self.store.exchange(self.id, message::TRANSACTION_END, &[how], &mut []).map(drop)
    }
}

impl<C: Channel> Tree for Transaction<'_, C> {
    fn request(
        &mut self,
        kind: u32,
        pieces: &[&[u8]],
        reply: &mut [u8],
    ) -> Result<usize, StoreError> {
        self.store.exchange(self.id, kind, pieces, reply)
    }
}

impl<C: Channel> Drop for Transaction<'_, C> {
    fn drop(&mut self) {
        if self.open {
            // A failure cannot be reported here; xenstored drops the transaction with the domain.
            let _ = self.finish(b"F\0");
        }
    }
}

/// The number that decimal digits stand for.
pub(super) fn parse_number(text: &[u8]) -> Option<u64> {
    let text = core::str::from_utf8(text).ok()?;
    // `parse` accepts a sign.
    text.parse().ok().filter(|_| !text.starts_with('+'))
}

fn format_number(mut number: u64, digits: &mut [u8; 20]) -> &[u8] {
    let mut start = digits.len();
    loop {
        start -= 1;
        digits[start] = b'0' + (number % 10) as u8;
        number /= 10;
        if number == 0 {
            return &digits[start..];
        }
    }
}
