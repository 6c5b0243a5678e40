//! Netfront as a device of smoltcp (feature `smoltcp`), which computes and verifies all checksums.

use core::fmt;

use smoltcp::phy::{Device, DeviceCapabilities, Medium, RxToken, TxToken};
use smoltcp::time::Instant;

use super::handshake::Connection;
use super::transmit::Transmitter;
use super::{MAX_FRAME, Netfront, Statistics};
use crate::events::EventChannels;
use crate::hypercall::Hypercall;

/// Longest frame for smoltcp: 1,500 bytes and the Ethernet header.
const MTU: usize = 1514;
const _: () = assert!(MTU <= MAX_FRAME);

/// Copies of the frames that smoltcp looks at, out of the backend's reach.
pub(super) struct Scratch {
    rx: [u8; MAX_FRAME],
    tx: [u8; MAX_FRAME],
}

impl Scratch {
    pub(super) const fn new() -> Self {
        Self { rx: [0; MAX_FRAME], tx: [0; MAX_FRAME] }
    }
}

impl fmt::Debug for Scratch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Scratch")
    }
}

/// A received frame.
#[derive(Debug)]
pub struct NetRxToken<'a> {
    frame: &'a [u8],
}

/// Room for a frame to send.
#[derive(Debug)]
pub struct NetTxToken<'a, H, const TX: usize> {
    transmitter: &'a mut Transmitter<TX>,
    events: &'a EventChannels<H>,
    connection: &'a Connection,
    statistics: &'a mut Statistics,
    scratch: &'a mut [u8; MAX_FRAME],
}

impl RxToken for NetRxToken<'_> {
    fn consume<R, F>(self, f: F) -> R
    where
        F: FnOnce(&[u8]) -> R,
    {
        f(self.frame)
    }
}

impl<H: Hypercall, const TX: usize> TxToken for NetTxToken<'_, H, TX> {
    fn consume<R, F>(self, len: usize, f: F) -> R
    where
        F: FnOnce(&mut [u8]) -> R,
    {
        // smoltcp's contract: `len` is at most the MTU in the capabilities, less than `MAX_FRAME`.
        let frame = &mut self.scratch[..len];
        let result = f(frame);
        match self.transmitter.send(frame, self.statistics) {
            // The frame is in the ring; where the notification fails, the next one carries it
            // along.
            Ok(true) => {
                let _ = self.events.send(self.connection.port);
            }
            Ok(false) => {}
            Err(_) => self.statistics.send_failed += 1,
        }
        result
    }
}

impl<H: Hypercall, const FRAMES: usize, const TX: usize, const RX: usize>
    Netfront<'_, H, FRAMES, TX, RX>
{
    /// Fills the scratch buffer with the next frame, and returns its length.
    fn next_frame(&mut self) -> Option<usize> {
        let port = self.port()?;
        let (received, notify) =
            self.receiver.receive(&mut self.scratch.rx, &mut self.statistics).ok()?;
        if notify {
            // Where the notification fails, the next one carries it along.
            let _ = self.events.send(port);
        }
        received
    }

    fn tx_token(&mut self) -> Option<(NetRxToken<'_>, NetTxToken<'_, H, TX>)> {
        let token = NetTxToken {
            transmitter: &mut self.transmitter,
            events: &self.events,
            connection: self.connection.as_ref()?,
            statistics: &mut self.statistics,
            scratch: &mut self.scratch.tx,
        };
        Some((NetRxToken { frame: &self.scratch.rx }, token))
    }
}

/// After an error of the backend ([`is_healthy`](Netfront::is_healthy)) the device gives no more
/// tokens.
impl<H: Hypercall, const FRAMES: usize, const TX: usize, const RX: usize> Device
    for Netfront<'_, H, FRAMES, TX, RX>
{
    type RxToken<'a>
        = NetRxToken<'a>
    where
        Self: 'a;
    type TxToken<'a>
        = NetTxToken<'a, H, TX>
    where
        Self: 'a;

    fn receive(&mut self, _: Instant) -> Option<(NetRxToken<'_>, NetTxToken<'_, H, TX>)> {
        if !self.can_send().unwrap_or(false) {
            return None;
        }
        let len = self.next_frame()?;
        let (rx, tx) = self.tx_token()?;
        Some((NetRxToken { frame: rx.frame.get(..len)? }, tx))
    }

    fn transmit(&mut self, _: Instant) -> Option<NetTxToken<'_, H, TX>> {
        if !self.can_send().unwrap_or(false) {
            return None;
        }
        self.tx_token().map(|(_, token)| token)
    }

    fn capabilities(&self) -> DeviceCapabilities {
        let mut capabilities = DeviceCapabilities::default();
        capabilities.medium = Medium::Ethernet;
        capabilities.max_transmission_unit = MTU;
        capabilities.max_burst_size = Some(RX);
        capabilities
    }
}
