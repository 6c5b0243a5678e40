//! The network device of a guest: netfront.
//!
//! [`Netfront`] keeps several frames in flight in each direction, in pages that are granted to the
//! backend once and copied from and to: the backend can change a page at any time, but never the
//! data that the guest parses. Every index, id, offset and length from the backend is checked; a
//! violation disconnects the backend with a [`NetError`], and [`reconnect`](Netfront::reconnect)
//! starts again.
//!
//! ```
//! use xen_sys_lite::fake::{FakeXen, leak_page, netback::FakeNetback, store::FakeStore};
//! use xen_sys_lite::events::EventChannels;
//! use xen_sys_lite::grant::GrantTable;
//! use xen_sys_lite::net::{NetPages, Netfront};
//!
//! let xen = FakeXen::new();
//! let daemon = FakeStore::new(&xen);
//! let backend = FakeNetback::new(&xen, &daemon);
//! let mut store = daemon.connect(&xen);
//! let events = EventChannels::new(&xen, xen.map_shared_info());
//! let grants = GrantTable::map(&xen, [leak_page()])?;
//!
//! let pages = NetPages::<4, 8>::new(leak_page);
//! let mut net = Netfront::new(0, events, &grants, pages);
//! net.connect(&mut store)?;
//!
//! net.send(&[0xaa; 60])?;
//! assert_eq!(backend.sent(), [vec![0xaa; 60]]);
//! backend.deliver(&xen, &[0xbb; 90]);
//! let mut frame = [0; 1518];
//! let received = net.receive(&mut frame)?.expect("a frame is there");
//! assert_eq!(frame[..received], [0xbb; 90]);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod buffer;
#[cfg(feature = "smoltcp")]
mod device;
mod error;
mod handshake;
mod lent;
mod receive;
mod transmit;

#[cfg(feature = "smoltcp")]
pub use device::{NetRxToken, NetTxToken};
pub use error::NetError;

use crate::channel::Channel;
use crate::events::{EventChannels, Port};
use crate::grant::GrantTable;
use crate::hypercall::Hypercall;
use crate::page::SharedPage;
use crate::xenstore::Store;
use handshake::Connection;
use lent::LentRing;
use receive::{Receiver, RxProtocol};
use transmit::{Transmitter, TxProtocol};

/// Longest Ethernet frame, with a VLAN tag and without its check sequence.
pub const MAX_FRAME: usize = 1518;

/// The pages of a network device: two rings, `TX` and `RX` buffers.
#[derive(Debug)]
pub struct NetPages<const TX: usize, const RX: usize> {
    tx: LentRing<TxProtocol, TX>,
    rx: LentRing<RxProtocol, RX>,
}

impl<const TX: usize, const RX: usize> NetPages<TX, RX> {
    /// Pages that a device of this size needs.
    pub const COUNT: usize = TX + RX + 2;

    /// Takes [`COUNT`](Self::COUNT) pages from `page`.
    pub fn new(mut page: impl FnMut() -> SharedPage) -> Self {
        Self { tx: LentRing::new(&mut page), rx: LentRing::new(&mut page) }
    }
}

/// Counters of a device since its creation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Statistics {
    /// Frames passed to the backend.
    pub sent: u64,
    /// The part of these that the backend dropped or failed to send.
    pub send_failed: u64,
    /// Frames received.
    pub received: u64,
    /// Frames the backend marked as failed.
    pub receive_failed: u64,
    /// Frames dropped because they are longer than [`MAX_FRAME`], or in several pieces.
    pub oversized: u64,
    /// Frames dropped because their TCP or UDP checksum was left blank, which the backend is asked
    /// not to do.
    pub blank: u64,
}

/// The guest's end of network device `vif`, with `TX` and `RX` frames in flight (256 at most each).
#[derive(Debug)]
pub struct Netfront<'t, H, const FRAMES: usize, const TX: usize, const RX: usize> {
    vif: u32,
    events: EventChannels<H>,
    grants: &'t GrantTable<FRAMES>,
    transmitter: Transmitter<TX>,
    receiver: Receiver<RX>,
    connection: Option<Connection>,
    statistics: Statistics,
    #[cfg(feature = "smoltcp")]
    scratch: device::Scratch,
}

impl<'t, H: Hypercall, const FRAMES: usize, const TX: usize, const RX: usize>
    Netfront<'t, H, FRAMES, TX, RX>
{
    /// A device that is not connected.
    #[must_use]
    pub fn new(
        vif: u32,
        events: EventChannels<H>,
        grants: &'t GrantTable<FRAMES>,
        pages: NetPages<TX, RX>,
    ) -> Self {
        const {
            assert!(TX > 0 && TX <= 256, "1 to 256 transmit buffers");
            assert!(RX > 0 && RX <= 256, "1 to 256 receive buffers");
        }
        Self {
            vif,
            events,
            grants,
            transmitter: Transmitter::new(pages.tx),
            receiver: Receiver::new(pages.rx),
            connection: None,
            statistics: Statistics::default(),
            #[cfg(feature = "smoltcp")]
            scratch: device::Scratch::new(),
        }
    }

    /// Connects to the backend, and waits until it is connected too. Connected already, this does
    /// nothing.
    ///
    /// # Errors
    /// See [`NetError`]; the device is not connected then, and this may be tried again.
    pub fn connect<C: Channel>(&mut self, store: &mut Store<C>) -> Result<(), NetError> {
        if self.connection.is_some() {
            return Ok(());
        }
        let result = self.connect_new(store);
        if result.is_err() {
            self.release(true);
        }
        result
    }

    /// Closes the connection, if there is one, waits for the backend to do the same, and takes the
    /// pages back. Pages the backend keeps mapped stay lent, to be used again when it connects.
    ///
    /// # Errors
    /// See [`NetError`]; the device counts as closed anyway.
    pub fn close<C: Channel>(&mut self, store: &mut Store<C>) -> Result<(), NetError> {
        if self.connection.is_none() {
            return Ok(());
        }
        let result = self.announce_close(store);
        self.release(true);
        result
    }

    /// Closes and connects again: after an error, or after the backend closed.
    ///
    /// # Errors
    /// See [`NetError`].
    pub fn reconnect<C: Channel>(&mut self, store: &mut Store<C>) -> Result<(), NetError> {
        self.close(store)?;
        self.connect(store)
    }

    /// Connects after a restore or migration: the old port and grants do not exist any more, and
    /// are not touched. Before: [`GrantTable::resume`], and a new `store`.
    ///
    /// # Errors
    /// See [`NetError`].
    pub fn resume<C: Channel>(&mut self, store: &mut Store<C>) -> Result<(), NetError> {
        self.release(false);
        self.connect(store)
    }

    /// Sends a frame (Ethernet header first, complete checksums) without waiting.
    ///
    /// # Errors
    /// [`NetError::Full`] if all buffers are in flight: the backend's next notification may free
    /// some.
    pub fn send(&mut self, frame: &[u8]) -> Result<(), NetError> {
        let connection = self.connection.as_ref().ok_or(NetError::NotConnected)?;
        if self.transmitter.send(frame, &mut self.statistics)? {
            self.events.send(connection.port).map_err(NetError::Hypercall)?;
        }
        Ok(())
    }

    /// Copies the next frame into `into`, without waiting, and returns its length. Its checksums are
    /// not verified. Frames longer than `into` are dropped and counted.
    ///
    /// # Errors
    /// [`NetError::NotConnected`], and errors of a backend that violates the protocol.
    pub fn receive(&mut self, into: &mut [u8]) -> Result<Option<usize>, NetError> {
        let connection = self.connection.as_ref().ok_or(NetError::NotConnected)?;
        let (received, notify) = self.receiver.receive(into, &mut self.statistics)?;
        if notify {
            self.events.send(connection.port).map_err(NetError::Hypercall)?;
        }
        Ok(received)
    }

    /// Whether a frame could be sent now.
    ///
    /// # Errors
    /// [`NetError::NotConnected`], and errors of a backend that violates the protocol.
    pub fn can_send(&mut self) -> Result<bool, NetError> {
        if self.connection.is_none() {
            return Err(NetError::NotConnected);
        }
        self.transmitter.has_room(&mut self.statistics)
    }

    /// Whether a frame waits to be received: for a user of the device whose notifications somebody
    /// else may have taken.
    #[must_use]
    pub fn has_received(&self) -> bool {
        self.receiver.has_received()
    }

    /// The port for the backend's notifications: handle it in an [`Upcall`](crate::events::Upcall)
    /// and unmask it, to be woken. It changes with each connection.
    #[must_use]
    pub fn port(&self) -> Option<Port> {
        self.connection.as_ref().map(|connection| connection.port)
    }

    /// Hardware address, as the tools chose it.
    #[must_use]
    pub fn mac(&self) -> Option<[u8; 6]> {
        self.connection.as_ref().map(|connection| connection.mac)
    }

    /// Whether the device is connected, and the backend has not violated the protocol.
    #[must_use]
    pub fn is_healthy(&self) -> bool {
        self.connection.is_some() && !self.transmitter.is_broken() && !self.receiver.is_broken()
    }

    /// The device's counters.
    #[must_use]
    pub const fn statistics(&self) -> Statistics {
        self.statistics
    }

    /// Releases port and grants. After a migration the port's number may belong to another channel:
    /// `port_is_ours` is then false, and the port is not closed.
    fn release(&mut self, port_is_ours: bool) {
        if let Some(connection) = self.connection.take()
            && port_is_ours
        {
            // A port that cannot be closed is closed with the domain.
            let _ = self.events.close(connection.port);
        }
        self.transmitter.take_back(self.grants);
        self.receiver.take_back(self.grants);
    }
}

#[cfg(test)]
mod tests;
