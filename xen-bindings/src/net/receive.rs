//! Frames received from the backend.

use super::lent::LentRing;
use super::{NetError, Statistics};
use crate::abi::PAGE_SIZE;
use crate::abi::netif::{self, EXTRA_FLAG_MORE, RxRequest, RxResponse, rx};
use crate::grant::{Access, GrantRef, GrantTable};
use crate::ring::Protocol;

#[derive(Debug)]
pub(super) struct RxProtocol;

impl Protocol for RxProtocol {
    type Request = RxRequest;
    type Response = RxResponse;
}

const SLOTS: usize = RxProtocol::SLOTS as usize;
const _: () = assert!(RxProtocol::SLOTS == netif::RX_RING_ENTRIES);

#[derive(Debug)]
pub(super) struct Receiver<const N: usize> {
    lent: LentRing<RxProtocol, N>,
    /// The buffer posted in each slot: a response is in the slot of its request.
    posted: [u16; SLOTS],
    /// The next responses are extra information about the last frame.
    in_extra: bool,
    /// The next responses are pieces of a frame that is dropped.
    in_dropped: bool,
}

impl<const N: usize> Receiver<N> {
    pub(super) const fn new(lent: LentRing<RxProtocol, N>) -> Self {
        Self { lent, posted: [0; SLOTS], in_extra: false, in_dropped: false }
    }

    /// Lends everything to `domain` and creates a ring with every buffer posted; returns the ring's
    /// grant.
    pub(super) fn start<const FRAMES: usize>(
        &mut self,
        grants: &GrantTable<FRAMES>,
        domain: u16,
    ) -> Result<GrantRef, NetError> {
        self.lent.start(grants, domain, Access::ReadWrite)?;
        (self.in_extra, self.in_dropped) = (false, false);
        for id in 0..N as u16 {
            self.post(id)?;
        }
        // The backend is not connected yet: it looks at the ring when it connects.
        let _ = self.push()?;
        self.lent.reference()
    }

    /// Copies the next frame into `into`; returns its length, and whether the backend wants a
    /// notification.
    ///
    /// If no frame waits, requests a notification for the next one.
    pub(super) fn receive(
        &mut self,
        into: &mut [u8],
        statistics: &mut Statistics,
    ) -> Result<(Option<usize>, bool), NetError> {
        let mut received = None;
        let mut posted = false;
        // At most one pass over the ring: a backend that refills it meanwhile must not keep this
        // loop running.
        for _ in 0..SLOTS {
            let Some((id, response)) = self.take()? else {
                break;
            };
            if let Some(response) = response {
                received = self.accept(id, response, into, statistics)?;
            }
            self.post(id)?;
            posted = true;
            if received.is_some() {
                break;
            }
        }
        let notify = posted && self.push()?;
        Ok((received, notify))
    }

    /// Returns the next response and its buffer; no response if it is extra information.
    fn take(&mut self) -> Result<Option<(u16, Option<RxResponse>)>, NetError> {
        let (ring, page) = self.lent.ring()?;
        let slot = ring.next_response_slot() as usize;
        let mut response = ring.response(page)?;
        if response.is_none() && ring.ask_for_notification(page)? {
            response = ring.response(page)?;
        }
        let Some(response) = response else {
            return Ok(None);
        };
        let id = self.posted[slot % SLOTS];
        if self.in_extra {
            // Extra information overlays a response: its second byte holds the flags.
            let [_, flags] = response.id.to_le_bytes();
            self.in_extra = flags & EXTRA_FLAG_MORE != 0;
            return Ok(Some((id, None)));
        }
        if response.id != id {
            ring.give_up();
            return Err(NetError::UnknownId { id: response.id });
        }
        self.in_extra = response.flags & rx::EXTRA_INFO != 0;
        Ok(Some((id, Some(response))))
    }

    /// Checks a response, copies its frame and returns its length; `None` if the frame is dropped.
    fn accept(
        &mut self,
        id: u16,
        response: RxResponse,
        into: &mut [u8],
        statistics: &mut Statistics,
    ) -> Result<Option<usize>, NetError> {
        let has_more = response.flags & rx::MORE_DATA != 0;
        let Ok(len) = u16::try_from(response.status) else {
            statistics.receive_failed += 1;
            self.in_dropped = has_more;
            return Ok(None);
        };
        if usize::from(response.offset) + usize::from(len) > PAGE_SIZE {
            self.lent.ring()?.0.give_up();
            return Err(NetError::PastPage { offset: response.offset, len });
        }
        let was_dropped = core::mem::replace(&mut self.in_dropped, has_more);
        if was_dropped {
            return Ok(None);
        }
        let Some(into) = into.get_mut(..usize::from(len)).filter(|_| !has_more) else {
            statistics.oversized += 1;
            return Ok(None);
        };
        if response.flags & rx::CSUM_BLANK != 0 {
            statistics.blank += 1;
            return Ok(None);
        }
        let (page, _) = self.lent.buffer(id)?;
        page.read_bytes(usize::from(response.offset), into)
            .map_err(|_| NetError::PastPage { offset: response.offset, len })?;
        statistics.received += 1;
        Ok(Some(usize::from(len)))
    }

    fn post(&mut self, id: u16) -> Result<(), NetError> {
        let (_, GrantRef(grant)) = self.lent.buffer(id)?;
        let (ring, page) = self.lent.ring()?;
        let slot = ring.next_request_slot() as usize;
        ring.request(page, RxRequest { id, pad: 0, grant }).map_err(|_| NetError::Full)?;
        self.posted[slot % SLOTS] = id;
        Ok(())
    }

    fn push(&mut self) -> Result<bool, NetError> {
        let (ring, page) = self.lent.ring()?;
        Ok(ring.push(page))
    }

    pub(super) fn has_received(&self) -> bool {
        self.lent.has_response()
    }

    pub(super) fn is_broken(&self) -> bool {
        self.lent.is_broken()
    }

    pub(super) fn take_back<const FRAMES: usize>(&mut self, grants: &GrantTable<FRAMES>) {
        self.lent.take_back(grants);
    }
}
