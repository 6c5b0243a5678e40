//! Frames on their way to the backend.

use super::buffer::Buffer;
use super::{MAX_FRAME, NetError, Statistics};
use crate::abi::PAGE_SIZE;
use crate::abi::netif::{self, RSP_OKAY, TxRequest, TxResponse};
use crate::grant::{Access, GrantRef, GrantTable};
use crate::ring::{FrontRing, Protocol};

const _: () = assert!(MAX_FRAME <= PAGE_SIZE);

#[derive(Debug)]
pub(super) struct TxProtocol;

impl Protocol for TxProtocol {
    type Request = TxRequest;
    type Response = TxResponse;
}

const _: () = assert!(TxProtocol::SLOTS == netif::TX_RING_ENTRIES);

#[derive(Debug)]
pub(super) struct Transmitter<const N: usize> {
    ring_page: Buffer,
    ring: Option<FrontRing<TxProtocol>>,
    buffers: [Buffer; N],
    in_flight: [bool; N],
}

impl<const N: usize> Transmitter<N> {
    pub(super) const fn new(ring_page: Buffer, buffers: [Buffer; N]) -> Self {
        Self {
            ring_page,
            ring: None,
            buffers,
            in_flight: [false; N],
        }
    }

    /// Lends everything to `domain` and makes an empty ring, whose grant is returned.
    pub(super) fn start<const FRAMES: usize>(
        &mut self,
        grants: &GrantTable<FRAMES>,
        domain: u16,
    ) -> Result<GrantRef, NetError> {
        self.ring_page.lend(grants, domain, Access::ReadWrite)?;
        for buffer in &mut self.buffers {
            buffer.lend(grants, domain, Access::ReadOnly)?;
        }
        self.in_flight = [false; N];
        self.ring = self.ring_page.page().map(FrontRing::init);
        self.ring_page.reference().ok_or(NetError::NotConnected)
    }

    /// Gives a frame to the backend; tells whether it wants a notification.
    pub(super) fn send(
        &mut self,
        frame: &[u8],
        flags: u16,
        statistics: &mut Statistics,
    ) -> Result<bool, NetError> {
        let size = u16::try_from(frame.len())
            .ok()
            .filter(|_| frame.len() <= MAX_FRAME);
        let size = size.filter(|size| *size > 0);
        let size = size.ok_or(NetError::FrameSize { len: frame.len() })?;
        if !self.has_room(statistics)? {
            return Err(NetError::Full);
        }
        let id = self
            .in_flight
            .iter()
            .position(|busy| !busy)
            .ok_or(NetError::Full)?;
        let ring = self.ring.as_mut().ok_or(NetError::NotConnected)?;
        let ring_page = self.ring_page.page().ok_or(NetError::NotConnected)?;
        let buffer = &self.buffers[id];
        let page = buffer.page().ok_or(NetError::NotConnected)?;
        let grant = buffer.reference().ok_or(NetError::NotConnected)?.0;
        page.write_bytes(0, frame)
            .map_err(|_| NetError::FrameSize { len: frame.len() })?;
        let request = TxRequest {
            grant,
            offset: 0,
            flags,
            id: id as u16,
            size,
        };
        ring.request(ring_page, request)
            .map_err(|_| NetError::Full)?;
        self.in_flight[id] = true;
        statistics.sent += 1;
        Ok(ring.push(ring_page))
    }

    /// Takes in what the backend has sent out, and tells whether a buffer is free. Where none is, the
    /// backend is asked for a notification.
    pub(super) fn has_room(&mut self, statistics: &mut Statistics) -> Result<bool, NetError> {
        self.collect(statistics)?;
        if self.in_flight.iter().any(|busy| !busy) {
            return Ok(true);
        }
        let (Some(ring), Some(page)) = (self.ring.as_mut(), self.ring_page.page()) else {
            return Err(NetError::NotConnected);
        };
        if ring.ask_for_notification(page)? {
            self.collect(statistics)?;
        }
        Ok(self.in_flight.iter().any(|busy| !busy))
    }

    fn collect(&mut self, statistics: &mut Statistics) -> Result<(), NetError> {
        let (Some(ring), Some(page)) = (self.ring.as_mut(), self.ring_page.page()) else {
            return Err(NetError::NotConnected);
        };
        while let Some(response) = ring.response(page)? {
            match self.in_flight.get_mut(usize::from(response.id)) {
                Some(busy @ true) => *busy = false,
                _ => {
                    ring.give_up();
                    return Err(NetError::UnknownId { id: response.id });
                }
            }
            statistics.send_failed += u64::from(response.status != RSP_OKAY);
        }
        Ok(())
    }

    pub(super) fn is_broken(&self) -> bool {
        self.ring.as_ref().is_none_or(FrontRing::is_broken)
    }

    /// Ends the ring and takes back what the backend does not keep.
    pub(super) fn take_back<const FRAMES: usize>(&mut self, grants: &GrantTable<FRAMES>) {
        self.ring = None;
        self.ring_page.take_back(grants);
        for buffer in &mut self.buffers {
            buffer.take_back(grants);
        }
    }
}
