//! A line between clients and an agent, with a fault for each connection.

use std::io::{self, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use socket2::SockRef;

use super::faults::{Direction, Fault, Step};
use super::ledger::Ledger;
use super::random::Random;

pub const FAULTS: &str = "faults";

/// The interval at which a thread looks whether its connection is over.
const SLICE: Duration = Duration::from_millis(50);

/// Forwards connections on loopback. It ends when the value is dropped.
pub(crate) struct FaultyLine {
    pub(crate) address: SocketAddr,
    shared: Arc<Shared>,
}

struct Shared {
    agent: SocketAddr,
    keyed: bool,
    ledger: Arc<Ledger>,
    stop: AtomicBool,
    /// The number of cuts until now; modulo [`PLACES`], the place of the next one.
    place: AtomicU64,
}

/// A cut is at every place up to this one, then from the beginning again.
pub(crate) const PLACES: u64 = 1_000;

impl FaultyLine {
    /// A line to `agent`; its faults follow from the seed.
    pub(crate) fn to(
        agent: SocketAddr,
        keyed: bool,
        seed: u64,
        ledger: Arc<Ledger>,
    ) -> io::Result<FaultyLine> {
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let address = listener.local_addr()?;
        let shared = Arc::new(Shared {
            agent,
            keyed,
            ledger,
            stop: AtomicBool::new(false),
            place: AtomicU64::new(0),
        });
        let serving = Arc::clone(&shared);
        thread::Builder::new()
            .name("faulty line".into())
            .spawn(move || serving.serve(&listener, seed))?;
        Ok(FaultyLine { address, shared })
    }

    /// The number of cuts, each one byte further than the one before until [`PLACES`].
    pub(crate) fn cuts(&self) -> u64 {
        self.shared.place.load(Ordering::Relaxed)
    }
}

impl Drop for FaultyLine {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::Relaxed);
        // So that it looks.
        let _ = TcpStream::connect(self.address);
    }
}

impl Shared {
    fn serve(self: &Arc<Self>, listener: &TcpListener, seed: u64) {
        let mut random = Random::new(seed);
        for client in listener.incoming() {
            if self.stop.load(Ordering::Relaxed) {
                return;
            }
            let Ok(client) = client else { continue };
            // One connection in four is a good one.
            let fault = match random.below(4) {
                0 => Fault::None,
                _ => {
                    let place = self.place.load(Ordering::Relaxed) % PLACES;
                    Fault::draw(&mut random, self.keyed, place)
                }
            };
            if matches!(fault, Fault::Cut(_)) {
                self.place.fetch_add(1, Ordering::Relaxed);
            }
            let upwards = random.below(2) == 0;
            let Ok(agent) = TcpStream::connect(self.agent) else {
                continue;
            };
            // Nothing to be done where a thread cannot be had: the connection is dropped.
            let _ = self.forward_both(client, agent, fault, upwards);
        }
    }

    /// Starts both directions; the fault is in one of them.
    fn forward_both(
        self: &Arc<Self>,
        client: TcpStream,
        agent: TcpStream,
        fault: Fault,
        upwards: bool,
    ) -> io::Result<()> {
        for stream in [&client, &agent] {
            stream.set_nodelay(true)?;
            stream.set_read_timeout(Some(SLICE))?;
            stream.set_write_timeout(Some(Duration::from_secs(20)))?;
        }
        let ends = Arc::new([client, agent]);
        let over = Arc::new(AtomicBool::new(false));
        for (from, to, has_fault) in [(0, 1, upwards), (1, 0, !upwards)] {
            let (shared, ends, over) = (Arc::clone(self), Arc::clone(&ends), Arc::clone(&over));
            let mut direction = Direction::new(if has_fault { fault } else { Fault::None });
            thread::Builder::new().name("faulty line".into()).spawn(move || {
                shared.forward(&ends[from], &ends[to], &mut direction, &over);
                if has_fault {
                    let way = if upwards { "to the agent" } else { "to the client" };
                    let what = if fault != Fault::None && !direction.happened() {
                        // The conversation was over before.
                        "did not come to it"
                    } else {
                        way
                    };
                    shared.ledger.count(FAULTS, fault.name(), what);
                }
            })?;
        }
        Ok(())
    }

    fn forward(
        &self,
        mut from: &TcpStream,
        mut to: &TcpStream,
        direction: &mut Direction,
        over: &AtomicBool,
    ) {
        let mut buffer = [0; 2_048];
        while !over.load(Ordering::Relaxed) && !self.stop.load(Ordering::Relaxed) {
            let length = match from.read(&mut buffer) {
                Ok(0) => {
                    let _ = to.shutdown(Shutdown::Write);
                    return;
                }
                Ok(length) => length,
                Err(error) if is_pause(&error) => continue,
                Err(_) => break,
            };
            for step in direction.push(&buffer[..length]) {
                match step {
                    Step::Pass(bytes) => {
                        if to.write_all(&bytes).is_err() {
                            over.store(true, Ordering::Relaxed);
                        }
                    }
                    Step::Wait(wait) => thread::sleep(wait),
                    Step::HalfClose => {
                        let _ = to.shutdown(Shutdown::Write);
                    }
                    Step::Reset => {
                        for end in [from, to] {
                            let _ = SockRef::from(end).set_linger(Some(Duration::ZERO));
                        }
                        over.store(true, Ordering::Relaxed);
                        return;
                    }
                    Step::Cut => {
                        over.store(true, Ordering::Relaxed);
                        for end in [from, to] {
                            let _ = end.shutdown(Shutdown::Both);
                        }
                        return;
                    }
                }
            }
        }
        over.store(true, Ordering::Relaxed);
        for end in [from, to] {
            let _ = end.shutdown(Shutdown::Both);
        }
    }
}

fn is_pause(error: &io::Error) -> bool {
    use io::ErrorKind::{Interrupted, TimedOut, WouldBlock};
    matches!(error.kind(), Interrupted | TimedOut | WouldBlock)
}
