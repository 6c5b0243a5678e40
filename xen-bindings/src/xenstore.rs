//! A client of xenstore, the host's tree of small strings, over its shared ring.
//!
//! Nothing is allocated: answers are copied into the caller's buffers. Xenstore is not trusted with
//! more than that: an answer that does not fit its request is a [`ProtocolError`], and ends the use
//! of the ring.
//!
//! ```
//! use xen_sys_lite::fake::{FakeXen, store::FakeStore};
//! use xen_sys_lite::xenstore::{Path, Tree};
//!
//! let xen = FakeXen::new();
//! let daemon = FakeStore::new(&xen);
//! let mut store = daemon.connect(&xen);
//!
//! store.write("data/greeting", b"hello")?;
//! let mut buffer = [0; 64];
//! assert_eq!(store.read(Path::join("data", "greeting"), &mut buffer)?, b"hello");
//!
//! // Changes that belong together; done again if somebody else interfered.
//! store.in_transaction(|tree| {
//!     tree.write_number("data/a", 1)?;
//!     tree.write_number("data/b", 2)
//! })?;
//! let names: Vec<_> = store.list("data", &mut buffer)?.collect();
//! assert_eq!(names, ["a", "b", "greeting"]);
//! # Ok::<(), xen_sys_lite::xenstore::StoreError>(())
//! ```

mod error;
mod incoming;
mod tree;
mod watch;

pub use error::{ErrorName, ProtocolError, StoreError};
pub use tree::{Names, Path, Transaction, Tree};
pub use watch::{Fired, WatchId};

use crate::abi::xs_wire::{self as abi, Header, message};
use crate::byte_ring::{ByteRingLayout, Consumer, Producer};
use crate::channel::Channel;
use crate::page::{PageIndex, SharedPage};
use incoming::{Expected, Incoming, Message};
use watch::Token;

pub(crate) const REQUESTS: ByteRingLayout = ByteRingLayout {
    data: abi::REQUEST,
    len: abi::RING_LEN,
    consumer: PageIndex::at(abi::REQUEST_CONSUMER),
    producer: PageIndex::at(abi::REQUEST_PRODUCER),
};

pub(crate) const REPLIES: ByteRingLayout = ByteRingLayout {
    data: abi::REPLY,
    len: abi::RING_LEN,
    consumer: PageIndex::at(abi::REPLY_CONSUMER),
    producer: PageIndex::at(abi::REPLY_PRODUCER),
};

/// The default time that a request waits for its answer, ns.
pub const DEFAULT_TIMEOUT_NS: u64 = 5_000_000_000;

/// Messages taken in at a time: a flood of them does not hold the guest for ever.
const MESSAGES_PER_LOOK: u32 = 64;

/// Times a transaction is tried again before [`Store::in_transaction`] gives up.
const TRANSACTION_ATTEMPTS: u32 = 64;

/// The connection to xenstore. Its [`Tree`] methods act outside of any transaction.
#[derive(Debug)]
pub struct Store<C> {
    page: SharedPage,
    channel: C,
    requests: Producer,
    replies: Consumer,
    incoming: Incoming,
    fired: Fired,
    last_request: u32,
    timeout_ns: u64,
    broken: bool,
}

impl<C: Channel> Store<C> {
    /// Connects over the ring in `page` (see [`hvm::store_ring`](crate::hvm::store_ring)).
    ///
    /// After a restore or migration make a new one: the ring, its port and the watches are new.
    #[must_use]
    pub fn new(page: SharedPage, channel: C) -> Self {
        let requests = Producer::attach(&page, REQUESTS);
        let replies = Consumer::attach(&page, REPLIES);
        Self {
            page,
            channel,
            requests,
            replies,
            incoming: Incoming::new(),
            fired: Fired::NONE,
            last_request: 0,
            timeout_ns: DEFAULT_TIMEOUT_NS,
            broken: false,
        }
    }

    /// Sets how long a request waits for its answer, ns.
    pub const fn set_timeout_ns(&mut self, timeout_ns: u64) {
        self.timeout_ns = timeout_ns;
    }

    /// The channel over which this waits.
    pub const fn channel(&self) -> &C {
        &self.channel
    }

    /// Gives the page back, to connect anew.
    #[must_use]
    pub fn into_page(self) -> SharedPage {
        self.page
    }

    /// Reports changes at and below `path` under `id`. The first report arrives at once.
    ///
    /// # Errors
    /// [`Errno::EEXIST`](crate::Errno::EEXIST) as a refusal if the same path already has the same
    /// id.
    pub fn watch<'p>(&mut self, path: impl Into<Path<'p>>, id: WatchId) -> Result<(), StoreError> {
        self.change_watch(message::WATCH, path.into(), id)
    }

    /// Ends a watch. Reports already sent may still arrive.
    ///
    /// # Errors
    /// [`Errno::ENOENT`](crate::Errno::ENOENT) as a refusal if there is no such watch.
    pub fn unwatch<'p>(
        &mut self,
        path: impl Into<Path<'p>>,
        id: WatchId,
    ) -> Result<(), StoreError> {
        self.change_watch(message::UNWATCH, path.into(), id)
    }

    /// The watches that have fired since the last call. Does not wait.
    ///
    /// # Errors
    /// [`StoreError::Protocol`] if xenstore violated the protocol.
    pub fn take_fired(&mut self) -> Result<Fired, StoreError> {
        self.channel.acknowledge();
        for _ in 0..MESSAGES_PER_LOOK {
            if self.receive(None, &mut [])?.is_none() {
                break;
            }
        }
        Ok(core::mem::take(&mut self.fired))
    }

    /// Waits until a watch fires or system time reaches `deadline_ns`; then as
    /// [`take_fired`](Self::take_fired).
    ///
    /// # Errors
    /// As [`take_fired`](Self::take_fired).
    pub fn wait_fired(&mut self, deadline_ns: u64) -> Result<Fired, StoreError> {
        loop {
            let fired = self.take_fired()?;
            if !fired.is_empty() || self.channel.now_ns() >= deadline_ns {
                return Ok(fired);
            }
            self.channel.wait_until(deadline_ns);
        }
    }

    /// Begins a transaction: its changes appear together at its [commit](Transaction::commit), or
    /// not at all.
    ///
    /// # Errors
    /// See [`StoreError`].
    pub fn transaction(&mut self) -> Result<Transaction<'_, C>, StoreError> {
        let mut reply = [0; 16];
        let answer = self.exchange(0, message::TRANSACTION_START, &[b"\0"], &mut reply);
        let text = match answer {
            Ok(len) => reply.get(..len).unwrap_or_default(),
            Err(StoreError::BufferTooSmall { .. }) => b"",
            Err(error) => return Err(error),
        };
        let text = text.strip_suffix(b"\0").unwrap_or(text);
        match tree::parse_number(text).and_then(|id| u32::try_from(id).ok()) {
            Some(id) if id != 0 => Ok(Transaction::begun(self, id)),
            _ => Err(self.fail(ProtocolError::BadPayload)),
        }
    }

    /// Runs `changes` in a transaction, and repeats it while concurrent changes interfere.
    ///
    /// # Errors
    /// The error of `changes`, which cancels the transaction; or
    /// [`Errno::EAGAIN`](crate::Errno::EAGAIN) as a refusal after 64 attempts.
    pub fn in_transaction<T>(
        &mut self,
        mut changes: impl FnMut(&mut Transaction<'_, C>) -> Result<T, StoreError>,
    ) -> Result<T, StoreError> {
        let mut attempt = 1;
        loop {
            let mut transaction = self.transaction()?;
            let result = changes(&mut transaction)?;
            match transaction.commit() {
                Ok(()) => return Ok(result),
                Err(StoreError::Refused(crate::Errno::EAGAIN))
                    if attempt < TRANSACTION_ATTEMPTS =>
                {
                    attempt += 1;
                }
                Err(error) => return Err(error),
            }
        }
    }

    fn change_watch(&mut self, kind: u32, path: Path<'_>, id: WatchId) -> Result<(), StoreError> {
        path.check()?;
        let token = Token::of(id);
        let [base, slash, leaf] = path.pieces();
        let pieces = [base, slash, leaf, b"\0", token.as_bytes(), b"\0"];
        self.exchange(0, kind, &pieces, &mut []).map(drop)
    }

    /// Sends a request and waits for its answer, whose length it returns.
    pub(crate) fn exchange(
        &mut self,
        transaction_id: u32,
        kind: u32,
        pieces: &[&[u8]],
        reply: &mut [u8],
    ) -> Result<usize, StoreError> {
        let len: usize = pieces.iter().map(|piece| piece.len()).sum();
        let len = u32::try_from(len).ok().filter(|len| *len <= abi::PAYLOAD_MAX);
        let len = len.ok_or(StoreError::RequestTooLong)?;
        if self.broken {
            return Err(StoreError::Broken);
        }
        self.last_request = self.last_request.wrapping_add(1).max(1);
        let expected = Expected { kind, request_id: self.last_request, transaction_id };
        let deadline = self.channel.now_ns().saturating_add(self.timeout_ns);

        let header = Header { kind, request_id: expected.request_id, transaction_id, len };
        self.send(&incoming::encode(header), deadline)?;
        for piece in pieces {
            self.send(piece, deadline)?;
        }
        self.notify()?;
        self.await_reply(expected, reply, deadline)
    }

    fn await_reply(
        &mut self,
        expected: Expected,
        reply: &mut [u8],
        deadline: u64,
    ) -> Result<usize, StoreError> {
        loop {
            let message = self.receive(Some(expected), reply)?;
            match message {
                Some(Message::Reply { len }) if len <= reply.len() || reply.is_empty() => {
                    return Ok(len);
                }
                Some(Message::Reply { len }) => {
                    return Err(StoreError::BufferTooSmall { needed: len });
                }
                Some(Message::Refused(error)) => return Err(error.into_error()),
                // The deadline holds also where other messages keep coming.
                _ if self.channel.now_ns() >= deadline => {
                    if self.incoming.abandon(expected).is_err() {
                        self.broken = true;
                    }
                    return Err(StoreError::TimedOut);
                }
                Some(Message::Other) => {}
                None => self.channel.wait_until(deadline),
            }
        }
    }

    /// Writes all of `bytes`. A request that a timeout cuts short cannot be taken back: the ring is
    /// not used again then.
    fn send(&mut self, mut bytes: &[u8], deadline: u64) -> Result<(), StoreError> {
        while !bytes.is_empty() {
            let count = match self.requests.write(&self.page, bytes) {
                Ok(count) => count,
                Err(jump) => return Err(self.fail(jump.into())),
            };
            bytes = &bytes[count..];
            if bytes.is_empty() {
                break;
            }
            self.notify()?;
            if count == 0 {
                if self.channel.now_ns() >= deadline {
                    self.broken = true;
                    return Err(StoreError::TimedOut);
                }
                self.channel.wait_until(deadline);
            }
        }
        Ok(())
    }

    /// Takes in one message, if it is whole by now. Watch events are remembered on the way.
    fn receive(
        &mut self,
        expected: Option<Expected>,
        reply: &mut [u8],
    ) -> Result<Option<Message>, StoreError> {
        if self.broken {
            return Err(StoreError::Broken);
        }
        let (page, replies) = (&self.page, &mut self.replies);
        let mut taken = 0;
        let result = self.incoming.advance(expected, reply, |into| {
            let count = replies.read(page, into)?;
            taken += count;
            Ok(count)
        });
        if taken > 0 {
            // xenstored may wait for room.
            self.notify()?;
        }
        match result {
            Ok(Some(incoming::Taken::Watch(token))) => {
                self.fired.insert(token);
                Ok(Some(Message::Other))
            }
            Ok(Some(incoming::Taken::Message(message))) => Ok(Some(message)),
            Ok(None) => Ok(None),
            Err(error) => Err(self.fail(error)),
        }
    }

    /// Notifies xenstore. If that fails, a message may be in the ring in part, or read in part; the
    /// ring is not used again then.
    fn notify(&mut self) -> Result<(), StoreError> {
        self.channel.notify().map_err(|errno| {
            self.broken = true;
            StoreError::Notify(errno)
        })
    }

    fn fail(&mut self, error: ProtocolError) -> StoreError {
        self.broken = true;
        StoreError::Protocol(error)
    }
}

impl<C: Channel> Tree for Store<C> {
    fn request(
        &mut self,
        kind: u32,
        pieces: &[&[u8]],
        reply: &mut [u8],
    ) -> Result<usize, StoreError> {
        self.exchange(0, kind, pieces, reply)
    }
}

#[cfg(any(test, feature = "fake"))]
pub(crate) use incoming::{decode, encode};

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::channel::PolledChannel;
    use crate::errno::Errno;
    use crate::fake::{FakeXen, store::FakeStore};
    use std::boxed::Box;
    use std::cell::Cell;
    use std::vec;
    use std::vec::Vec;

    type TestStore = Store<PolledChannel<'static, &'static FakeXen>>;

    fn connected() -> (&'static FakeXen, FakeStore, TestStore) {
        let xen: &FakeXen = Box::leak(Box::new(FakeXen::new()));
        let daemon = FakeStore::new(xen);
        let store = daemon.connect(xen);
        (xen, daemon, store)
    }

    const WATCH: WatchId = WatchId::new(63).unwrap();

    /// A channel whose notification number `fails_at` fails; the others work.
    struct Unreliable {
        channel: PolledChannel<'static, &'static FakeXen>,
        notifications: Cell<u32>,
        fails_at: u32,
    }

    impl Channel for Unreliable {
        fn notify(&self) -> Result<(), Errno> {
            self.notifications.set(self.notifications.get() + 1);
            if self.notifications.get() == self.fails_at {
                return Err(Errno::EINVAL);
            }
            self.channel.notify()
        }

        fn now_ns(&self) -> u64 {
            self.channel.now_ns()
        }

        fn wait_until(&self, deadline_ns: u64) {
            self.channel.wait_until(deadline_ns);
        }
    }

    /// Guards against a second request in the middle of the first: a request longer than the ring,
    /// a whole one, or an answer that is half read when a notification fails.
    #[test]
    fn a_failed_notification_ends_the_use_of_the_ring() {
        let value = [b'x'; 3000];
        for fails_at in 1..=8 {
            let (_, daemon, mut store) = connected();
            store.write("long", &value).unwrap();
            let channel =
                Unreliable { channel: *store.channel(), notifications: Cell::new(0), fails_at };
            let mut store = Store::new(store.into_page(), channel);
            let mut buffer = [0; 4096];
            let written = store.write("a", &value);
            let result = written.and_then(|()| store.read("long", &mut buffer).map(|_| ()));
            assert_eq!(result, Err(StoreError::Notify(Errno::EINVAL)), "{fails_at}");
            assert_eq!(store.write("b", b"y"), Err(StoreError::Broken), "{fails_at}");
            assert_eq!(store.take_fired(), Err(StoreError::Broken), "{fails_at}");
            assert_eq!(daemon.get("/local/domain/1/b"), None, "{fails_at}");
        }
    }

    #[test]
    fn values_come_back() {
        let (_, daemon, mut store) = connected();
        store.write("data/x", b"with\0zero").unwrap();
        let mut buffer = [0; 32];
        assert_eq!(store.read("data/x", &mut buffer), Ok(&b"with\0zero"[..]));
        store.write_number("data/n", u64::MAX).unwrap();
        assert_eq!(store.read_number("data/n"), Ok(u64::MAX));
        assert_eq!(daemon.get("/local/domain/1/data/n").unwrap(), "18446744073709551615");
        store.remove("data").unwrap();
        assert_eq!(store.read_number("data/n"), Err(StoreError::Refused(Errno::ENOENT)));
        assert_eq!(store.read_number_or("data/n", 7), Ok(7));
    }

    /// Longer than either ring: the request waits for room, the answer comes in pieces.
    #[test]
    fn the_longest_value_passes() {
        let (_, _, mut store) = connected();
        let value: Vec<u8> = (0..4090).map(|i| i as u8).collect();
        store.write("a", &value).unwrap();
        let mut buffer = vec![0; 4096];
        assert_eq!(store.read("a", &mut buffer), Ok(&value[..]));
        assert_eq!(store.write("a", &[0; 4096]), Err(StoreError::RequestTooLong));
    }

    #[test]
    fn a_short_buffer_is_an_error_and_the_stream_goes_on() {
        let (_, _, mut store) = connected();
        store.write("a", &[b'x'; 3000]).unwrap();
        let mut buffer = [0; 8];
        let expected = Err(StoreError::BufferTooSmall { needed: 3000 });
        assert_eq!(store.read("a", &mut buffer), expected);
        assert_eq!(store.read("a", &mut []), expected);
        store.write("a", b"y").unwrap();
        assert_eq!(store.read("a", &mut buffer), Ok(&b"y"[..]));
    }

    #[test]
    fn paths_and_values_are_checked() {
        let (_, _, mut store) = connected();
        assert_eq!(store.make(""), Err(StoreError::BadPath));
        assert_eq!(store.make("a\0b"), Err(StoreError::BadPath));
        assert_eq!(store.write("/local/domain/0/x", b""), Err(StoreError::Refused(Errno::EACCES)));
        store.write("a", b"12x").unwrap();
        assert_eq!(store.read_number("a"), Err(StoreError::BadValue));
        store.write("a", b"99999999999999999999999999").unwrap();
        assert_eq!(store.read_number("a"), Err(StoreError::BadValue));
    }

    #[test]
    fn a_watch_fires_at_once_and_at_each_change() {
        let (xen, daemon, mut store) = connected();
        store.watch("control/shutdown", WATCH).unwrap();
        assert!(store.take_fired().unwrap().contains(WATCH));
        assert!(store.take_fired().unwrap().is_empty());
        daemon.set("/local/domain/1/control/shutdown", "suspend");
        let deadline = xen.now_ns() + 1_000;
        assert!(store.wait_fired(deadline).unwrap().contains(WATCH));
        store.unwatch("control/shutdown", WATCH).unwrap();
        daemon.set("/local/domain/1/control/shutdown", "");
        assert!(store.wait_fired(deadline).unwrap().is_empty());
        assert_eq!(xen.now_ns(), deadline, "waited until the deadline, not longer");
    }

    /// Guards against losing an event that comes between a request and its answer.
    #[test]
    fn a_watch_event_among_answers_is_kept() {
        let (_, _, mut store) = connected();
        store.watch("data", WATCH).unwrap();
        store.take_fired().unwrap();
        store.write("data/x", b"1").unwrap(); // fires before it is answered
        assert_eq!(store.read_number("data/x"), Ok(1));
        assert!(store.take_fired().unwrap().contains(WATCH));
    }

    #[test]
    fn a_transaction_appears_whole_or_not() {
        let (_, daemon, mut store) = connected();
        let mut transaction = store.transaction().unwrap();
        transaction.write("a", b"1").unwrap();
        assert_eq!(daemon.get("/local/domain/1/a"), None);
        drop(transaction);
        assert_eq!(daemon.get("/local/domain/1/a"), None);
        let mut transaction = store.transaction().unwrap();
        transaction.write("a", b"1").unwrap();
        transaction.commit().unwrap();
        assert_eq!(daemon.get("/local/domain/1/a").unwrap(), "1");
    }

    #[test]
    fn a_transaction_is_tried_again_on_conflict_and_not_for_ever() {
        let (_, daemon, mut store) = connected();
        daemon.conflict(3);
        let mut attempts = 0;
        store
            .in_transaction(|tree| {
                attempts += 1;
                tree.write("a", b"1")
            })
            .unwrap();
        assert_eq!(attempts, 4);
        daemon.conflict(u32::MAX);
        let result = store.in_transaction(|tree| tree.write("a", b"1"));
        assert_eq!(result, Err(StoreError::Refused(Errno::EAGAIN)));
    }

    /// Guards against a guest that hangs with its xenstore, and against taking a late answer for
    /// another's.
    #[test]
    fn silence_times_out_and_a_late_answer_is_thrown_away() {
        let (xen, daemon, mut store) = connected();
        store.write("a", b"1").unwrap();
        store.write("b", b"2").unwrap();
        daemon.be_silent(true);
        let before = xen.now_ns();
        assert_eq!(store.read_number("a"), Err(StoreError::TimedOut));
        assert_eq!(xen.now_ns() - before, DEFAULT_TIMEOUT_NS);
        daemon.be_silent(false);
        assert_eq!(store.read_number("b"), Ok(2));
        assert_eq!(store.read_number("a"), Ok(1));
    }

    /// Guards against a daemon that keeps the guest busy with events, for ever.
    #[test]
    fn a_flood_of_events_does_not_hold_the_guest() {
        let (xen, daemon, mut store) = connected();
        let header = Header { kind: message::WATCH_EVENT, len: 5, ..Header::default() };
        let flood = [&encode(header)[..], b"a\x0063\0"].concat().repeat(40);
        daemon.be_silent(true);
        let ring = daemon.ring();
        let mut replies = Producer::attach(&ring, REPLIES);
        let port = store.channel().port();
        let mut at = 0;
        xen.attach(port, move |xen| {
            // Every notification of the guest's is answered with more events.
            while let Ok(count @ 1..) = replies.write(&ring, &flood[at..]) {
                at = (at + count) % flood.len();
            }
            xen.advance(1_000_000);
            xen.raise(port);
        });
        let before = xen.now_ns();
        assert_eq!(store.make("a"), Err(StoreError::TimedOut));
        assert!(xen.now_ns() - before <= DEFAULT_TIMEOUT_NS + 10_000_000);
        assert!(store.take_fired().unwrap().contains(WATCH), "returns, flood or not");
    }

    /// A daemon that lies: each lie is its own error, and the ring is not used again.
    #[test]
    fn answers_that_lie_are_errors() {
        type Lie = fn(&mut Header, &mut Vec<u8>);
        let lies: [(Lie, ProtocolError); 5] = [
            (|header, _| header.request_id = 99, ProtocolError::UnexpectedReply { request_id: 99 }),
            (|header, _| header.len = 4097, ProtocolError::TooLong { len: 4097 }),
            (|header, _| header.len = u32::MAX, ProtocolError::TooLong { len: u32::MAX }),
            (|header, _| header.kind = 11, ProtocolError::WrongType { expected: 2, got: 11 }),
            (|header, _| header.transaction_id = 5, ProtocolError::WrongTransaction { got: 5 }),
        ];
        for (lie, expected) in lies {
            let (_, daemon, mut store) = connected();
            daemon.set("/local/domain/1/a", "1");
            daemon.tamper(lie);
            assert_eq!(store.read_number("a"), Err(StoreError::Protocol(expected)));
            daemon.be_honest();
            assert_eq!(store.read_number("a"), Err(StoreError::Broken));
        }
    }

    #[test]
    fn an_index_that_jumps_is_an_error() {
        let (_, daemon, mut store) = connected();
        daemon.ring().store_index(REPLIES.producer, 5_000);
        let expected = ProtocolError::IndexJumped { distance: 5_000 };
        assert_eq!(store.take_fired(), Err(StoreError::Protocol(expected)));

        let (_, daemon, mut store) = connected();
        daemon.ring().store_index(REQUESTS.consumer, 1);
        let expected = ProtocolError::IndexJumped { distance: u32::MAX };
        assert_eq!(store.make("a"), Err(StoreError::Protocol(expected)));
    }

    #[test]
    fn an_answer_nobody_asked_for_is_an_error() {
        let (xen, daemon, mut store) = connected();
        daemon.inject(&encode(Header { kind: 2, request_id: 1, transaction_id: 0, len: 0 }));
        daemon.run(xen);
        let expected = ProtocolError::UnexpectedReply { request_id: 1 };
        assert_eq!(store.take_fired(), Err(StoreError::Protocol(expected)));
    }

    #[test]
    fn a_transaction_id_that_is_no_number_is_an_error() {
        for id in ["", "x", "0", "4294967296", "-1", "+1", "11111111111111111111"] {
            let (_, daemon, mut store) = connected();
            daemon.tamper(move |header, body| {
                *body = id.as_bytes().to_vec();
                header.len = body.len() as u32;
            });
            let error = store.transaction().map(|_| ()).unwrap_err();
            assert_eq!(error, StoreError::Protocol(ProtocolError::BadPayload), "{id:?}");
        }
    }

    /// Watch events carry free text: any of it is survived, and only our tokens count.
    #[test]
    fn watch_events_that_lie_are_left_out() {
        for body in
            [&b""[..], b"\0", b"\0\0", b"path\0", b"path\x0064\0", b"path\0x\0", b"path\x00999\0"]
        {
            let (xen, daemon, mut store) = connected();
            let header =
                Header { kind: message::WATCH_EVENT, len: body.len() as u32, ..Header::default() };
            daemon.inject(&[&encode(header)[..], body].concat());
            daemon.run(xen);
            assert_eq!(store.take_fired(), Ok(Fired::NONE));
        }
    }

    #[test]
    fn an_error_without_a_number_keeps_its_name() {
        let (_, daemon, mut store) = connected();
        daemon.tamper(|header, body| {
            *body = b"EWHATEVERTHISMAYBE\0".to_vec();
            (header.kind, header.len) = (message::ERROR, body.len() as u32);
        });
        match store.make("a") {
            Err(StoreError::RefusedWith(name)) => {
                assert_eq!(name.as_bytes(), b"EWHATEVERTHISMAY");
            }
            other => panic!("{other:?}"),
        }
    }
}
