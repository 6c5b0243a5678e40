//! The guest's own service, asked at a steady pace: how long it takes to answer.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use unikprof_demo_service::RequestGenerator;

use super::phase::{PHASES, Phase, Phases};

pub(crate) const RATE_HZ: u32 = 250;

/// The guest's service has the same.
const SEED: u64 = 1;
const NOTES: usize = 128;

/// Answer times in µs, by minute and phase.
#[derive(Debug, Default)]
pub struct Latencies(Mutex<Vec<(u32, Phase, u32)>>);

/// Percentiles of the answer times, in µs.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Spread {
    pub(crate) requests: usize,
    pub(crate) p50_us: u32,
    pub(crate) p99_us: u32,
    pub(crate) p999_us: u32,
    pub(crate) max_us: u32,
}

impl Latencies {
    /// Asks until told to stop; answers how many requests there were.
    ///
    /// A request has a time at which it is due; its answer's time counts from there, so that a
    /// service that stops for a while is not asked less for it.
    pub(crate) fn drive(
        &self,
        service: SocketAddr,
        phases: &Phases,
        stop: &AtomicBool,
    ) -> io::Result<u64> {
        let mut stream = TcpStream::connect(service)?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(Duration::from_secs(30)))?;
        let mut requests = RequestGenerator::new(SEED, NOTES);
        let period = Duration::from_secs(1) / RATE_HZ;
        let began = Instant::now();
        let mut due = began;
        let mut count = 0;
        let mut answer = Vec::new();
        while !stop.load(Ordering::Relaxed) {
            let Some(request) = requests.next() else {
                break;
            };
            thread::sleep(due.saturating_duration_since(Instant::now()));
            let phase = phases.current();
            let mut bytes = (request.len() as u32).to_le_bytes().to_vec();
            bytes.extend(request);
            stream.write_all(&bytes)?;
            let mut length = [0; 4];
            stream.read_exact(&mut length)?;
            answer.resize(u32::from_le_bytes(length) as usize, 0);
            stream.read_exact(&mut answer)?;
            let took = u32::try_from(due.elapsed().as_micros()).unwrap_or(u32::MAX);
            let minute = (began.elapsed().as_secs() / 60) as u32;
            // A request over the change belongs to neither.
            if phases.current() == phase {
                self.entries().push((minute, phase, took));
            }
            count += 1;
            due += period;
        }
        Ok(count)
    }

    pub(crate) fn spread(&self, phase: Phase, minutes: impl Fn(u32) -> bool) -> Spread {
        let mut of: Vec<u32> = self
            .entries()
            .iter()
            .filter(|(minute, found, _)| *found == phase && minutes(*minute))
            .map(|(.., took)| *took)
            .collect();
        of.sort_unstable();
        Spread::of_sorted(&of)
    }

    /// The last minute that was measured.
    pub(crate) fn last_minute(&self) -> u32 {
        self.entries().last().map_or(0, |(minute, ..)| *minute)
    }

    fn entries(&self) -> std::sync::MutexGuard<'_, Vec<(u32, Phase, u32)>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Spread {
    fn of_sorted(took: &[u32]) -> Spread {
        let at = |per_mille: usize| {
            let index = (took.len() * per_mille / 1000).min(took.len().saturating_sub(1));
            took.get(index).copied().unwrap_or(0)
        };
        Spread {
            requests: took.len(),
            p50_us: at(500),
            p99_us: at(990),
            p999_us: at(999),
            max_us: took.last().copied().unwrap_or(0),
        }
    }
}

pub fn all_measured(latencies: &Latencies) -> bool {
    PHASES.iter().all(|phase| latencies.spread(*phase, |_| true).requests > 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Guards percentiles that are taken from the wrong end, or beyond it.
    #[test]
    fn percentiles_are_of_the_sorted() {
        let took: Vec<u32> = (1..=1000).collect();
        let spread = Spread::of_sorted(&took);
        assert_eq!((spread.p50_us, spread.p99_us), (501, 991));
        assert_eq!((spread.p999_us, spread.max_us), (1000, 1000));
        assert_eq!(Spread::of_sorted(&[]), Spread::default());
    }
}
