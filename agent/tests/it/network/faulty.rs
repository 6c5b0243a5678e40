//! A bad line: received frames are lost, duplicated, delayed or damaged, according to a seeded
//! generator.

use std::collections::VecDeque;

use unikprof_agent::tcp_server::smoltcp;

use smoltcp::phy::{self, Device, DeviceCapabilities};
use smoltcp::time::Instant;

/// The probability of each fault, per thousand frames.
#[derive(Clone, Copy, Debug, Default)]
pub struct Faults {
    pub lost: u64,
    pub doubled: u64,
    /// Delayed until up to seven others have passed.
    pub held: u64,
    /// Two 16-bit words of a TCP payload are swapped, which TCP's checksum cannot detect.
    pub swapped: u64,
}

/// A device with faults on received frames.
pub struct Faulty<D> {
    inner: D,
    faults: Faults,
    random: u64,
    /// Frames on their way, each with the number of others that may still overtake it.
    queue: VecDeque<(u64, Vec<u8>)>,
}

pub struct Suffered(Vec<u8>);

impl<D: Device> Faulty<D> {
    pub fn new(inner: D, faults: Faults, seed: u64) -> Self {
        Self {
            inner,
            faults,
            random: seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1,
            queue: VecDeque::new(),
        }
    }

    fn below(&mut self, bound: u64) -> u64 {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        (self.random >> 16) % bound
    }

    fn happens(&mut self, chance: u64) -> bool {
        self.below(1000) < chance
    }

    /// Applies faults to a frame.
    fn admit(&mut self, mut frame: Vec<u8>) {
        if self.happens(self.faults.lost) {
            return;
        }
        if self.happens(self.faults.swapped) {
            self.swap_words(&mut frame);
        }
        let copies = 1 + usize::from(self.happens(self.faults.doubled));
        for _ in 0..copies {
            let overtaken_by = if self.happens(self.faults.held) { 1 + self.below(7) } else { 0 };
            self.queue.push_back((overtaken_by, frame.clone()));
        }
    }

    /// Swaps two words of the payload after Ethernet, IPv4 and TCP headers without options.
    fn swap_words(&mut self, frame: &mut [u8]) {
        const PAYLOAD: usize = 14 + 20 + 20;
        let words = frame.len().saturating_sub(PAYLOAD) as u64 / 2;
        if words > 1 {
            let place = |word: u64| PAYLOAD + 2 * word as usize;
            let (one, other) = (place(self.below(words)), place(self.below(words)));
            frame.swap(one, other);
            frame.swap(one + 1, other + 1);
        }
    }

    /// The next frame that is not delayed; a delayed one if there is no other.
    fn next(&mut self) -> Option<Vec<u8>> {
        let ready = self.queue.iter().position(|(held, _)| *held == 0).unwrap_or(0);
        for (held, _) in self.queue.iter_mut().take(ready) {
            *held -= 1;
        }
        self.queue.remove(ready).map(|(_, frame)| frame)
    }
}

impl<D: Device> Device for Faulty<D> {
    type RxToken<'a>
        = Suffered
    where
        Self: 'a;
    type TxToken<'a>
        = D::TxToken<'a>
    where
        Self: 'a;

    fn receive(&mut self, at: Instant) -> Option<(Suffered, D::TxToken<'_>)> {
        use phy::RxToken;
        loop {
            let Some((token, _)) = self.inner.receive(at) else {
                break;
            };
            let frame = token.consume(<[u8]>::to_vec);
            self.admit(frame);
        }
        let frame = self.next()?;
        Some((Suffered(frame), self.inner.transmit(at)?))
    }

    fn transmit(&mut self, at: Instant) -> Option<D::TxToken<'_>> {
        self.inner.transmit(at)
    }

    fn capabilities(&self) -> DeviceCapabilities {
        self.inner.capabilities()
    }
}

impl phy::RxToken for Suffered {
    fn consume<R, F: FnOnce(&[u8]) -> R>(self, f: F) -> R {
        f(&self.0)
    }
}
