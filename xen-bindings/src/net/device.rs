//! Netfront as a device of smoltcp (feature `smoltcp`).
//!
//! smoltcp says once for all frames which checksums it computes and verifies; the backend says so
//! frame by frame. So with checksum offload TCP is done here: verified on receive where the backend
//! has not vouched for it, left to the backend on transmit where it offers that, computed here
//! where not. UDP stays with smoltcp, since a fragment's checksum cannot be verified alone; a
//! received one left blank is completed here.

use core::fmt;

use smoltcp::phy::{Checksum as Checks, Device, DeviceCapabilities, Medium, RxToken, TxToken};
use smoltcp::time::Instant;

use super::checksum::Segment;
use super::handshake::Connection;
use super::receive::{Checksum, Received};
use super::transmit::Transmitter;
use super::{MAX_FRAME, Netfront, Statistics};
use crate::abi::netif::tx;
use crate::events::EventChannels;
use crate::hypercall::Hypercall;

/// Longest frame for smoltcp: 1,500 bytes and the Ethernet header.
const MTU: usize = 1514;
const _: () = assert!(MTU <= MAX_FRAME);

/// Frames with a wrong checksum that one call drops before it lets the caller go on.
const MAX_BAD_FRAMES: usize = 64;

/// Where frames lie while smoltcp looks at them, out of the backend's reach.
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
    handles_tcp: bool,
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
        let flags = if self.handles_tcp { finish_tcp(frame, self.connection) } else { 0 };
        match self.transmitter.send(frame, flags, self.statistics) {
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

/// Sees to the checksum of a TCP segment that smoltcp left zero, and returns the flags of the
/// request.
fn finish_tcp(frame: &mut [u8], connection: &Connection) -> u16 {
    let Some(segment) = Segment::find(frame).filter(|segment| segment.is_tcp) else {
        return 0;
    };
    let offload = connection.offload;
    if if segment.is_ipv6 { offload.ipv6 } else { offload.ipv4 } {
        segment.leave_to_backend(frame);
        tx::CSUM_BLANK | tx::DATA_VALIDATED
    } else {
        segment.complete(frame);
        0
    }
}

/// Makes a received frame one that smoltcp can take, or says that its checksum is wrong.
fn check_received(frame: &mut [u8], received: Received) -> bool {
    let Some(segment) = Segment::find(frame) else {
        return true;
    };
    match received.checksum {
        Checksum::Validated => true,
        Checksum::Blank => {
            if !segment.is_tcp && !segment.is_fragment {
                segment.complete(frame);
            }
            true
        }
        // Nobody after us verifies TCP, and a piece cannot be verified.
        Checksum::Unknown if segment.is_tcp => !segment.is_fragment && segment.is_valid(frame),
        Checksum::Unknown => true,
    }
}

impl<H: Hypercall, const FRAMES: usize, const TX: usize, const RX: usize>
    Netfront<'_, H, FRAMES, TX, RX>
{
    /// Fills the scratch buffer with the next good frame, and returns its length.
    fn next_frame(&mut self) -> Option<usize> {
        for _ in 0..MAX_BAD_FRAMES {
            let port = self.port()?;
            let (received, notify) =
                self.receiver.receive(&mut self.scratch.rx, &mut self.statistics).ok()?;
            if notify {
                // Where the notification fails, the next one carries it along.
                let _ = self.events.send(port);
            }
            let received = received?;
            let frame = self.scratch.rx.get_mut(..received.len)?;
            if !self.options.checksum_offload || check_received(frame, received) {
                return Some(received.len);
            }
            self.statistics.bad_checksum += 1;
        }
        None
    }

    fn tx_token(&mut self) -> Option<(NetRxToken<'_>, NetTxToken<'_, H, TX>)> {
        let token = NetTxToken {
            transmitter: &mut self.transmitter,
            events: &self.events,
            connection: self.connection.as_ref()?,
            statistics: &mut self.statistics,
            scratch: &mut self.scratch.tx,
            handles_tcp: self.options.checksum_offload,
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
        if self.options.checksum_offload {
            capabilities.checksum.tcp = Checks::None;
        }
        capabilities
    }
}
