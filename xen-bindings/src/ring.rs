//! The frontend's half of a shared ring; the backend is not trusted.
//!
//! Indices are private; data from the backend is read once, checked, and then used. A producer
//! index that jumps is an error, after which the ring is not used again. Only the frontend's own
//! indices select slots, so no value from the backend can lead out of the page.

use core::fmt;
use core::marker::PhantomData;

use crate::abi::PAGE_SIZE;
use crate::abi::ring as abi;
use crate::index::full_fence;
use crate::page::{PageIndex, Plain, SharedPage};

const REQUEST_PRODUCER: PageIndex = PageIndex::at(abi::REQUEST_PRODUCER);
const REQUEST_EVENT: PageIndex = PageIndex::at(abi::REQUEST_EVENT);
const RESPONSE_PRODUCER: PageIndex = PageIndex::at(abi::RESPONSE_PRODUCER);
const RESPONSE_EVENT: PageIndex = PageIndex::at(abi::RESPONSE_EVENT);

/// The two messages of a ring.
pub trait Protocol {
    /// The type that the frontend writes.
    type Request: Plain;
    /// The type that the backend writes.
    type Response: Plain;
    /// Bytes of a slot: the larger of the two.
    const SLOT_SIZE: usize = if size_of::<Self::Request>() > size_of::<Self::Response>() {
        size_of::<Self::Request>()
    } else {
        size_of::<Self::Response>()
    };
    /// Slots in the page, a power of two.
    const SLOTS: u32 = abi::entries(Self::SLOT_SIZE);
}

/// A backend's protocol violation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum RingError {
    /// It claims more responses than there are requests outstanding.
    ProducerJumped {
        /// Responses it claims.
        claimed: u32,
        /// Requests outstanding.
        outstanding: u32,
    },
    /// An earlier error has ended the use of this ring.
    Broken,
}

impl fmt::Display for RingError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::ProducerJumped { claimed, outstanding } => {
                write!(f, "the backend claims {claimed} responses to {outstanding} requests")
            }
            Self::Broken => f.write_str("the ring is not used after an earlier error"),
        }
    }
}

impl core::error::Error for RingError {}

/// The ring is full: every slot holds a request without a response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RingFull;

impl fmt::Display for RingFull {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("every slot of the ring is taken")
    }
}

impl core::error::Error for RingFull {}

/// The frontend's indices of a ring. The page is lent to each call, since it belongs to a
/// [`Grant`](crate::grant::Grant).
#[derive(Debug)]
pub struct FrontRing<P> {
    request_producer: u32,
    /// Producer at the last push.
    published: u32,
    response_consumer: u32,
    broken: bool,
    protocol: PhantomData<fn() -> P>,
}

impl<P: Protocol> FrontRing<P> {
    /// Makes an empty ring in `page`, before the backend learns of it.
    #[must_use]
    pub fn init(page: &SharedPage) -> Self {
        const {
            assert!(P::SLOTS.is_power_of_two());
            assert!(abi::ENTRIES + P::SLOTS as usize * P::SLOT_SIZE <= PAGE_SIZE);
            assert!(P::SLOT_SIZE.is_multiple_of(align_of::<P::Request>()));
            assert!(P::SLOT_SIZE.is_multiple_of(align_of::<P::Response>()));
        }
        page.clear();
        page.store_index(REQUEST_EVENT, 1);
        page.store_index(RESPONSE_EVENT, 1);
        Self {
            request_producer: 0,
            published: 0,
            response_consumer: 0,
            broken: false,
            protocol: PhantomData,
        }
    }

    /// Slots free for requests.
    #[must_use]
    pub const fn free(&self) -> u32 {
        P::SLOTS - self.outstanding()
    }

    /// Requests written and not answered, including those not [pushed](Self::push) yet.
    #[must_use]
    pub const fn outstanding(&self) -> u32 {
        self.request_producer.wrapping_sub(self.response_consumer)
    }

    /// Has the backend broken the protocol?
    #[must_use]
    pub const fn is_broken(&self) -> bool {
        self.broken
    }

    /// Number of the slot that the next request takes, below `SLOTS`.
    #[must_use]
    pub const fn next_request_slot(&self) -> u32 {
        self.request_producer & (P::SLOTS - 1)
    }

    /// Number of the slot that the next response is in, below `SLOTS`.
    #[must_use]
    pub const fn next_response_slot(&self) -> u32 {
        self.response_consumer & (P::SLOTS - 1)
    }

    /// Writes a request into the next slot; the backend sees it after [`push`](Self::push).
    ///
    /// # Errors
    /// [`RingFull`].
    pub fn request(&mut self, page: &SharedPage, request: P::Request) -> Result<(), RingFull> {
        if self.free() == 0 || self.broken {
            return Err(RingFull);
        }
        page.write(Self::offset(self.next_request_slot()), request).map_err(|_| RingFull)?;
        self.request_producer = self.request_producer.wrapping_add(1);
        Ok(())
    }

    /// Publishes the requests written so far, and returns whether the backend wants a notification.
    #[must_use = "a backend that asked for a notification waits for it"]
    pub fn push(&mut self, page: &SharedPage) -> bool {
        let new = self.request_producer;
        let old = core::mem::replace(&mut self.published, new);
        page.store_index(REQUEST_PRODUCER, new);
        // The backend sees the requests before we look whether it sleeps.
        full_fence();
        let event = page.load_index(REQUEST_EVENT);
        new.wrapping_sub(event) < new.wrapping_sub(old)
    }

    /// Copies the next response out of the ring, if there is one.
    ///
    /// # Errors
    /// [`RingError`]; from then on the ring stays [broken](Self::is_broken).
    pub fn response(&mut self, page: &SharedPage) -> Result<Option<P::Response>, RingError> {
        if self.claimed(page)? == 0 {
            return Ok(None);
        }
        match page.read(Self::offset(self.next_response_slot())) {
            Ok(response) => {
                self.response_consumer = self.response_consumer.wrapping_add(1);
                Ok(Some(response))
            }
            Err(_) => Err(self.fail(RingError::Broken)),
        }
    }

    /// Requests a notification with the next response, and returns whether a response arrived
    /// meanwhile: if so, check the ring again instead of sleeping.
    ///
    /// # Errors
    /// As [`response`](Self::response).
    pub fn ask_for_notification(&mut self, page: &SharedPage) -> Result<bool, RingError> {
        page.store_index(RESPONSE_EVENT, self.response_consumer.wrapping_add(1));
        full_fence();
        Ok(self.claimed(page)? != 0)
    }

    /// Whether a response waits, or the backend has written an index that
    /// [`response`](Self::response) rejects.
    #[must_use]
    pub fn has_response(&self, page: &SharedPage) -> bool {
        !self.broken && page.load_index(RESPONSE_PRODUCER) != self.response_consumer
    }

    /// Marks the ring as broken, for messages whose content violates the protocol.
    pub fn give_up(&mut self) {
        self.broken = true;
    }

    /// Responses that wait, checked against the requests outstanding.
    fn claimed(&mut self, page: &SharedPage) -> Result<u32, RingError> {
        if self.broken {
            return Err(RingError::Broken);
        }
        let claimed = page.load_index(RESPONSE_PRODUCER).wrapping_sub(self.response_consumer);
        let outstanding = self.outstanding();
        if claimed > outstanding {
            return Err(self.fail(RingError::ProducerJumped { claimed, outstanding }));
        }
        Ok(claimed)
    }

    fn fail(&mut self, error: RingError) -> RingError {
        self.broken = true;
        error
    }

    const fn offset(slot: u32) -> usize {
        abi::ENTRIES + slot as usize * P::SLOT_SIZE
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::fake::leak_page;

    struct Numbers;

    impl Protocol for Numbers {
        type Request = u32;
        type Response = u32;
    }

    /// Answers every request with its double, as an honest backend.
    fn answer(page: &SharedPage, consumer: &mut u32) {
        let producer = page.load_index(REQUEST_PRODUCER);
        while *consumer != producer {
            let offset = FrontRing::<Numbers>::offset(*consumer % Numbers::SLOTS);
            let value: u32 = page.read(offset).unwrap();
            page.write(offset, value * 2).unwrap();
            *consumer = consumer.wrapping_add(1);
            page.store_index(RESPONSE_PRODUCER, *consumer);
        }
    }

    #[test]
    fn requests_come_back_answered_however_often_the_indices_wrap() {
        let page = leak_page();
        let mut ring = FrontRing::<Numbers>::init(&page);
        // Shortly before the 32-bit indices wrap.
        let start = u32::MAX - 700;
        (ring.request_producer, ring.published, ring.response_consumer) = (start, start, start);
        page.store_index(RESPONSE_PRODUCER, start);
        page.store_index(REQUEST_PRODUCER, start);
        let mut consumer = start;
        for round in 0..2_000 {
            ring.request(&page, round).unwrap();
            let _ = ring.push(&page);
            answer(&page, &mut consumer);
            assert_eq!(ring.response(&page), Ok(Some(round * 2)));
            assert_eq!(ring.response(&page), Ok(None));
        }
    }

    #[test]
    fn a_full_ring_takes_no_more() {
        let page = leak_page();
        let mut ring = FrontRing::<Numbers>::init(&page);
        for number in 0..Numbers::SLOTS {
            ring.request(&page, number).unwrap();
        }
        assert_eq!(ring.request(&page, 0), Err(RingFull));
    }

    /// Guards against reading responses that were never written, and against losing count.
    #[test]
    fn a_producer_that_jumps_breaks_the_ring() {
        for jump in [2, 257, u32::MAX, u32::MAX / 2] {
            let page = leak_page();
            let mut ring = FrontRing::<Numbers>::init(&page);
            ring.request(&page, 1).unwrap();
            let _ = ring.push(&page);
            page.store_index(RESPONSE_PRODUCER, jump);
            let expected = RingError::ProducerJumped { claimed: jump, outstanding: 1 };
            assert_eq!(ring.response(&page), Err(expected));
            page.store_index(RESPONSE_PRODUCER, 1);
            assert_eq!(ring.response(&page), Err(RingError::Broken));
            assert_eq!(ring.request(&page, 2), Err(RingFull));
        }
    }

    #[test]
    fn a_response_nobody_asked_for_breaks_the_ring() {
        let page = leak_page();
        let mut ring = FrontRing::<Numbers>::init(&page);
        page.store_index(RESPONSE_PRODUCER, 1);
        let expected = RingError::ProducerJumped { claimed: 1, outstanding: 0 };
        assert_eq!(ring.ask_for_notification(&page), Err(expected));
    }

    /// Guards against a backend that sleeps for ever, and against notifying one that is awake.
    #[test]
    fn the_backend_is_notified_when_it_asked() {
        let page = leak_page();
        let mut ring = FrontRing::<Numbers>::init(&page);
        ring.request(&page, 1).unwrap();
        assert!(ring.push(&page), "the first request passes event 1");
        ring.request(&page, 2).unwrap();
        assert!(!ring.push(&page), "the backend has not asked again");
        page.store_index(REQUEST_EVENT, 4);
        ring.request(&page, 3).unwrap();
        ring.request(&page, 4).unwrap();
        assert!(ring.push(&page), "passes event 4");
    }

    #[test]
    fn asking_for_a_notification_sees_what_came_meanwhile() {
        let page = leak_page();
        let mut ring = FrontRing::<Numbers>::init(&page);
        ring.request(&page, 1).unwrap();
        let _ = ring.push(&page);
        assert_eq!(ring.ask_for_notification(&page), Ok(false));
        page.store_index(RESPONSE_PRODUCER, 1);
        assert_eq!(ring.ask_for_notification(&page), Ok(true));
        assert_eq!(page.load_index(RESPONSE_EVENT), 1);
    }
}
