//! The code of the rings under the model checker, with a page of loom's cells and a backend that
//! does what Xen's macros do (`io/ring.h`). A side sleeps until it is notified, so a notification
//! that is lost is a deadlock.
#![cfg(loom)]
#![allow(dead_code, missing_docs, unreachable_pub, clippy::unwrap_used)]

use std::sync::Arc;

use loom::sync::Notify;
use loom::thread;

use abi::ring::{ENTRIES, REQUEST_EVENT, REQUEST_PRODUCER, RESPONSE_EVENT, RESPONSE_PRODUCER};
use byte_ring::{ByteRingLayout, Consumer, Producer};
use page::{PageIndex, SharedPage};
use ring::{FrontRing, Protocol};

#[path = "../src/abi"]
mod abi {
    pub mod ring;

    pub const PAGE_SIZE: usize = 4096;
}

#[path = "../src/byte_ring.rs"]
mod byte_ring;
#[path = "../src/index.rs"]
mod index;
#[path = "../src/ring.rs"]
mod ring;

mod sync {
    pub(crate) use loom::sync::atomic::{AtomicU32, Ordering, fence};
}

/// The part of a page that the rings use: four indices, and the first bytes of its entries, whose
/// races the checker reports.
mod page {
    use loom::cell::UnsafeCell;

    use crate::abi::ring::ENTRIES;
    use crate::index;
    use crate::sync::AtomicU32;

    #[derive(Debug, PartialEq)]
    pub struct OutOfPage;

    pub trait Plain: Copy {
        fn from_bytes(bytes: [u8; 4]) -> Self;
        fn to_bytes(self) -> [u8; 4];
    }

    impl Plain for u32 {
        fn from_bytes(bytes: [u8; 4]) -> Self {
            Self::from_ne_bytes(bytes)
        }

        fn to_bytes(self) -> [u8; 4] {
            self.to_ne_bytes()
        }
    }

    #[derive(Clone, Copy, Debug)]
    pub struct PageIndex(usize);

    impl PageIndex {
        pub const fn at(offset: usize) -> Self {
            Self(offset)
        }
    }

    pub struct SharedPage {
        indices: [AtomicU32; 4],
        entries: [UnsafeCell<u8>; 4],
    }

    // SAFETY: loom fails a run in which two threads access a cell without an order.
    #[allow(unsafe_code, reason = "a page is shared")]
    unsafe impl Sync for SharedPage {}

    impl SharedPage {
        pub fn new() -> Self {
            Self {
                indices: core::array::from_fn(|_| AtomicU32::new(0)),
                entries: core::array::from_fn(|_| UnsafeCell::new(0)),
            }
        }

        /// It is empty when it is made.
        pub fn clear(&self) {}

        pub fn load_index(&self, at: PageIndex) -> u32 {
            index::load(&self.indices[at.0 / 4])
        }

        pub fn store_index(&self, at: PageIndex, value: u32) {
            index::store(&self.indices[at.0 / 4], value);
        }

        pub fn read<T: Plain>(&self, offset: usize) -> Result<T, OutOfPage> {
            let mut bytes = [0; 4];
            self.read_bytes(offset, &mut bytes)?;
            Ok(T::from_bytes(bytes))
        }

        pub fn write<T: Plain>(&self, offset: usize, value: T) -> Result<(), OutOfPage> {
            self.write_bytes(offset, &value.to_bytes())
        }

        #[allow(unsafe_code, reason = "loom's cells are reached by pointers")]
        pub fn read_bytes(&self, offset: usize, into: &mut [u8]) -> Result<(), OutOfPage> {
            for (cell, byte) in self.entries[offset - ENTRIES..].iter().zip(into) {
                // SAFETY: loom has checked that no other thread writes the cell.
                *byte = cell.with(|byte| unsafe { *byte });
            }
            Ok(())
        }

        #[allow(unsafe_code, reason = "loom's cells are reached by pointers")]
        pub fn write_bytes(&self, offset: usize, from: &[u8]) -> Result<(), OutOfPage> {
            for (cell, byte) in self.entries[offset - ENTRIES..].iter().zip(from) {
                // SAFETY: loom has checked that no other thread accesses the cell.
                cell.with_mut(|place| unsafe { *place = *byte });
            }
            Ok(())
        }
    }
}

/// Messages in a ring of one slot, which each of them reuses.
struct Numbers;

impl Protocol for Numbers {
    type Request = u32;
    type Response = u32;
    const SLOT_SIZE: usize = abi::PAGE_SIZE - ENTRIES;
}

/// A page with the event channels of both sides.
struct Shared {
    page: SharedPage,
    to_first: Notify,
    to_second: Notify,
}

/// Runs the two sides in every interleaving with at most three preemptions.
fn check(first: fn(&Shared), second: fn(&Shared)) {
    let mut model = loom::model::Builder::new();
    model.preemption_bound.get_or_insert(3);
    model.check(move || {
        let shared = Arc::new(Shared {
            page: SharedPage::new(),
            to_first: Notify::new(),
            to_second: Notify::new(),
        });
        let there = Arc::clone(&shared);
        let second = thread::spawn(move || second(&there));
        first(&shared);
        second.join().unwrap();
    });
}

const REQUESTS: u32 = 2;

fn frontend(shared: &Shared) {
    let page = &shared.page;
    let mut ring = FrontRing::<Numbers>::init(page);
    for number in 1..=REQUESTS {
        ring.request(page, number).unwrap();
        if ring.push(page) {
            shared.to_second.notify();
        }
        loop {
            if let Some(response) = ring.response(page).unwrap() {
                assert_eq!(response, number * 2);
                break;
            }
            if !ring.ask_for_notification(page).unwrap() {
                shared.to_first.wait();
            }
        }
    }
}

/// `RING_FINAL_CHECK_FOR_REQUESTS` and `RING_PUSH_RESPONSES_AND_CHECK_NOTIFY`.
fn backend(shared: &Shared) {
    let page = &shared.page;
    for consumed in 0..REQUESTS {
        while page.load_index(PageIndex::at(REQUEST_PRODUCER)) == consumed {
            page.store_index(PageIndex::at(REQUEST_EVENT), consumed + 1);
            index::full_fence();
            if page.load_index(PageIndex::at(REQUEST_PRODUCER)) == consumed {
                shared.to_second.wait();
            }
        }
        let request: u32 = page.read(ENTRIES).unwrap();
        page.write(ENTRIES, request * 2).unwrap();
        let produced = consumed + 1;
        page.store_index(PageIndex::at(RESPONSE_PRODUCER), produced);
        index::full_fence();
        let event = page.load_index(PageIndex::at(RESPONSE_EVENT));
        if produced.wrapping_sub(event) < produced.wrapping_sub(consumed) {
            shared.to_first.notify();
        }
    }
}

/// Guards against a slot that is read before it is written or written while it is read, and against
/// both sides asleep.
#[test]
fn requests_and_responses_pass_one_slot() {
    check(frontend, backend);
}

const BYTES: ByteRingLayout = ByteRingLayout {
    data: ENTRIES,
    len: 2,
    consumer: PageIndex::at(0),
    producer: PageIndex::at(REQUEST_EVENT),
};

const MESSAGE: [u8; 4] = [1, 2, 3, 4];

/// Guards against bytes that are read before they are written, or overwritten before they are read.
#[test]
fn bytes_pass_a_ring_shorter_than_the_message() {
    check(
        |shared| {
            let mut producer = Producer::attach(&shared.page, BYTES);
            let mut rest = &MESSAGE[..];
            while !rest.is_empty() {
                match producer.write(&shared.page, rest).unwrap() {
                    0 => shared.to_first.wait(),
                    written => {
                        rest = &rest[written..];
                        shared.to_second.notify();
                    }
                }
            }
        },
        |shared| {
            let mut consumer = Consumer::attach(&shared.page, BYTES);
            let mut read = Vec::<u8>::new();
            while read.len() < MESSAGE.len() {
                let mut into = [0; 2];
                match consumer.read(&shared.page, &mut into).unwrap() {
                    0 => shared.to_second.wait(),
                    count => {
                        read.extend(&into[..count]);
                        shared.to_first.notify();
                    }
                }
            }
            assert_eq!(read, MESSAGE);
        },
    );
}
