//! Frames to be sent by the backend.

use super::lent::LentRing;
use super::{MAX_FRAME, NetError, Statistics};
use crate::abi::PAGE_SIZE;
use crate::abi::netif::{self, RSP_OKAY, TxRequest, TxResponse};
use crate::grant::{Access, GrantRef, GrantTable};
use crate::ring::Protocol;

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
    lent: LentRing<TxProtocol, N>,
    in_flight: [bool; N],
}

impl<const N: usize> Transmitter<N> {
    pub(super) const fn new(lent: LentRing<TxProtocol, N>) -> Self {
        Self { lent, in_flight: [false; N] }
    }

    /// Lends everything to `domain` and creates an empty ring; returns the ring's grant.
    pub(super) fn start<const FRAMES: usize>(
        &mut self,
        grants: &GrantTable<FRAMES>,
        domain: u16,
    ) -> Result<GrantRef, NetError> {
        self.lent.start(grants, domain, Access::ReadOnly)?;
        self.in_flight = [false; N];
        self.lent.reference()
    }

    /// Passes a frame to the backend; returns whether it wants a notification.
    pub(super) fn send(
        &mut self,
        frame: &[u8],
        statistics: &mut Statistics,
    ) -> Result<bool, NetError> {
        let size = u16::try_from(frame.len()).ok().filter(|_| frame.len() <= MAX_FRAME);
        let size = size.filter(|size| *size > 0);
        let size = size.ok_or(NetError::FrameSize { len: frame.len() })?;
        if !self.has_room(statistics)? {
            return Err(NetError::Full);
        }
        let id = self.in_flight.iter().position(|busy| !busy).ok_or(NetError::Full)?;
        let (page, GrantRef(grant)) = self.lent.buffer(id as u16)?;
        page.write_bytes(0, frame).map_err(|_| NetError::FrameSize { len: frame.len() })?;
        let request = TxRequest { grant, offset: 0, flags: 0, id: id as u16, size };
        let (ring, page) = self.lent.ring()?;
        ring.request(page, request).map_err(|_| NetError::Full)?;
        self.in_flight[id] = true;
        statistics.sent += 1;
        Ok(ring.push(page))
    }

    /// Collects the backend's responses, and returns whether a buffer is free. If none is, requests
    /// a notification.
    pub(super) fn has_room(&mut self, statistics: &mut Statistics) -> Result<bool, NetError> {
        self.collect(statistics)?;
        if self.in_flight.iter().any(|busy| !busy) {
            return Ok(true);
        }
        let (ring, page) = self.lent.ring()?;
        if ring.ask_for_notification(page)? {
            self.collect(statistics)?;
        }
        Ok(self.in_flight.iter().any(|busy| !busy))
    }

    fn collect(&mut self, statistics: &mut Statistics) -> Result<(), NetError> {
        let (ring, page) = self.lent.ring()?;
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
        self.lent.is_broken()
    }

    pub(super) fn take_back<const FRAMES: usize>(&mut self, grants: &GrantTable<FRAMES>) {
        self.lent.take_back(grants);
    }
}
