//! Frames that come from the backend.

use super::buffer::Buffer;
use super::{NetError, Statistics};
use crate::abi::PAGE_SIZE;
use crate::abi::netif::{self, EXTRA_FLAG_MORE, RxRequest, RxResponse, rx};
use crate::grant::{Access, GrantRef, GrantTable};
use crate::ring::{FrontRing, Protocol};

#[derive(Debug)]
pub(super) struct RxProtocol;

impl Protocol for RxProtocol {
    type Request = RxRequest;
    type Response = RxResponse;
}

const SLOTS: usize = RxProtocol::SLOTS as usize;
const _: () = assert!(RxProtocol::SLOTS == netif::RX_RING_ENTRIES);

/// A received frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Received {
    /// Its length, bytes.
    pub len: usize,
    /// What the backend says of its TCP or UDP checksum.
    pub checksum: Checksum,
}

/// What the backend says of a frame's TCP or UDP checksum.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Checksum {
    /// Nothing: it is to be verified.
    Unknown,
    /// It was verified.
    Validated,
    /// It was never computed: the frame comes from the same host, and the field holds the sum of the pseudo
    /// header only.
    Blank,
}

#[derive(Debug)]
pub(super) struct Receiver<const N: usize> {
    ring_page: Buffer,
    ring: Option<FrontRing<RxProtocol>>,
    buffers: [Buffer; N],
    /// Which buffer was posted in which slot: a response comes in the slot of its request.
    posted: [u16; SLOTS],
    /// The next responses are extra information to the last frame.
    in_extra: bool,
    /// The next responses are pieces of a frame that is dropped.
    in_dropped: bool,
}

impl<const N: usize> Receiver<N> {
    pub(super) const fn new(ring_page: Buffer, buffers: [Buffer; N]) -> Self {
        Self {
            ring_page,
            ring: None,
            buffers,
            posted: [0; SLOTS],
            in_extra: false,
            in_dropped: false,
        }
    }

    /// Lends everything to `domain` and makes a ring with every buffer posted, whose grant is returned.
    pub(super) fn start<const FRAMES: usize>(
        &mut self,
        grants: &GrantTable<FRAMES>,
        domain: u16,
    ) -> Result<GrantRef, NetError> {
        self.ring_page.lend(grants, domain, Access::ReadWrite)?;
        for buffer in &mut self.buffers {
            buffer.lend(grants, domain, Access::ReadWrite)?;
        }
        (self.in_extra, self.in_dropped) = (false, false);
        self.ring = self.ring_page.page().map(FrontRing::init);
        for id in 0..N as u16 {
            self.post(id)?;
        }
        // The backend is not connected yet: it looks at the ring when it connects.
        let _ = self.push()?;
        self.ring_page.reference().ok_or(NetError::NotConnected)
    }

    /// Copies the next frame into `into`; tells whether the backend wants a notification.
    ///
    /// Where no frame waits, the backend is asked for a notification with the next one.
    pub(super) fn receive(
        &mut self,
        into: &mut [u8],
        statistics: &mut Statistics,
    ) -> Result<(Option<Received>, bool), NetError> {
        let mut received = None;
        let mut posted = false;
        // One pass over the ring at most: a backend that refills it as we read does not hold us here.
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

    /// The next response and the buffer it is for; no response where it is extra information.
    fn take(&mut self) -> Result<Option<(u16, Option<RxResponse>)>, NetError> {
        let (ring, page) = Self::parts(&mut self.ring, &self.ring_page)?;
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

    /// Checks a response and copies its frame; `None` for one that is dropped.
    fn accept(
        &mut self,
        id: u16,
        response: RxResponse,
        into: &mut [u8],
        statistics: &mut Statistics,
    ) -> Result<Option<Received>, NetError> {
        let has_more = response.flags & rx::MORE_DATA != 0;
        let Ok(len) = u16::try_from(response.status) else {
            statistics.receive_failed += 1;
            self.in_dropped = has_more;
            return Ok(None);
        };
        if usize::from(response.offset) + usize::from(len) > PAGE_SIZE {
            if let Some(ring) = &mut self.ring {
                ring.give_up();
            }
            return Err(NetError::PastPage {
                offset: response.offset,
                len,
            });
        }
        let was_dropped = core::mem::replace(&mut self.in_dropped, has_more);
        if was_dropped {
            return Ok(None);
        }
        let Some(into) = into.get_mut(..usize::from(len)).filter(|_| !has_more) else {
            statistics.oversized += 1;
            return Ok(None);
        };
        let page = self.buffers.get(usize::from(id)).and_then(Buffer::page);
        let page = page.ok_or(NetError::NotConnected)?;
        page.read_bytes(usize::from(response.offset), into)
            .map_err(|_| NetError::PastPage {
                offset: response.offset,
                len,
            })?;
        statistics.received += 1;
        let checksum = if response.flags & rx::CSUM_BLANK != 0 {
            Checksum::Blank
        } else if response.flags & rx::DATA_VALIDATED != 0 {
            Checksum::Validated
        } else {
            Checksum::Unknown
        };
        Ok(Some(Received {
            len: usize::from(len),
            checksum,
        }))
    }

    fn post(&mut self, id: u16) -> Result<(), NetError> {
        let grant = self
            .buffers
            .get(usize::from(id))
            .and_then(Buffer::reference);
        let grant = grant.ok_or(NetError::NotConnected)?.0;
        let (ring, page) = Self::parts(&mut self.ring, &self.ring_page)?;
        let slot = ring.next_request_slot() as usize;
        ring.request(page, RxRequest { id, pad: 0, grant })
            .map_err(|_| NetError::Full)?;
        self.posted[slot % SLOTS] = id;
        Ok(())
    }

    fn push(&mut self) -> Result<bool, NetError> {
        let (ring, page) = Self::parts(&mut self.ring, &self.ring_page)?;
        Ok(ring.push(page))
    }

    fn parts<'a>(
        ring: &'a mut Option<FrontRing<RxProtocol>>,
        page: &'a Buffer,
    ) -> Result<(&'a mut FrontRing<RxProtocol>, &'a crate::page::SharedPage), NetError> {
        ring.as_mut().zip(page.page()).ok_or(NetError::NotConnected)
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
