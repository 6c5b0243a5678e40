//! The engines that keep profiles, as far as tests need them: an HTTP server that takes what
//! Pyroscope, Parca and an OpenTelemetry collector take, refuses what they refuse, and fails when
//! it is told to.
//!
//! | path | definition |
//! |---|---|
//! | `/push.v1.PusherService/Push` | `push/v1/push.proto` of grafana/pyroscope, by the Connect protocol as JSON |
//! | `/api/profiles/writeraw` | `profilestore.proto` of parca-dev/parca, by gRPC's HTTP gateway as JSON |
//! | `/v1development/profiles` | `profiles_service.proto` of open-telemetry/opentelemetry-proto, as protobuf |
//!
//! [`Receiver::received`] sums what was taken by series and time, so that an audit can compare.

mod http;
mod otlp;
mod parca;
mod pprof;
mod pyroscope;

use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;

pub use pprof::functions;

/// A running server on the loopback interface; it ends when it is dropped.
#[derive(Debug)]
pub struct Receiver {
    address: SocketAddr,
    shared: Arc<Shared>,
}

#[derive(Debug, Default)]
struct Shared {
    ended: AtomicBool,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// The headers that a request must have, with their values.
    demanded: Vec<(String, String)>,
    /// One for each of the next requests; `None`: it is answered as it should be.
    failures: VecDeque<Option<Failure>>,
    always: Option<Failure>,
    received: Received,
}

/// How a request fails.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Failure {
    /// This status with these headers, in the engine's own way to write errors. Nothing is taken.
    Status(u16, Vec<(String, String)>),
    /// This status with a page that no engine writes, as of a proxy. Nothing is taken.
    Page(u16),
    /// The profiles are taken, and the connection ends within the answer. A collector's whole
    /// answer is empty if all is well: this one takes nothing, and ends within the answer that says
    /// so.
    HalfAnswer,
    /// The profiles are taken, and the connection ends without an answer.
    NoAnswer,
    /// The connection ends when the request was read. Nothing is taken.
    Close,
    /// Nothing happens until the client ends the connection. Nothing is taken.
    Silence,
    /// An answer whose header does not end, a byte at a time. Nothing is taken.
    Slow,
    /// The collector takes none of the profiles, and says so in a success; others answer as always.
    Partial,
}

/// The identity of a series of profiles: its labels, and those of its samples.
pub type Series = BTreeMap<String, String>;

/// The requests, the profiles that were taken, and the refusals.
#[derive(Debug, Clone, Default)]
pub struct Received {
    /// All requests that were read.
    pub requests: u64,
    /// Profiles by series and the time at which each began, in ns since 1970.
    pub series: BTreeMap<Series, BTreeMap<u64, Taken>>,
    /// The `X-Scope-OrgID` of the last request.
    pub tenant: Option<String>,
    /// The ids of the profiles, as they came.
    pub ids: Vec<String>,
    /// The reasons of refusals by the rules.
    pub refused: Vec<String>,
}

impl Received {
    /// The sum of this kind of value over everything that was taken, second deliveries not counted.
    pub fn sum(&self, kind: &str) -> i64 {
        let taken = self.series.values().flat_map(BTreeMap::values);
        let values = taken.filter_map(|taken| taken.values.get(kind));
        values.sum()
    }

    /// The number of times that a series was given the same time once more.
    pub fn repeated(&self) -> u64 {
        let taken = self.series.values().flat_map(BTreeMap::values);
        taken.map(|taken| taken.deliveries - 1).sum()
    }
}

/// A profile of one series.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Taken {
    /// The sum of its samples, by the kind of value, such as `samples` or `cpu`.
    pub values: BTreeMap<String, i64>,
    /// The number of its samples.
    pub samples: u64,
    /// The length of the profile, in ns.
    pub duration_ns: u64,
    /// The number of its deliveries.
    pub deliveries: u64,
}

/// Profiles of a request that keeps to the rules.
#[derive(Debug, Default)]
struct Batch {
    profiles: Vec<(Series, u64, Taken)>,
    ids: Vec<String>,
}

/// The reason of a refusal, and the status that says so.
#[derive(Debug)]
struct Refusal {
    status: u16,
    text: String,
}

impl Refusal {
    /// A refusal with status 400, for this reason.
    fn invalid(text: impl Into<String>) -> Refusal {
        Refusal { status: 400, text: text.into() }
    }
}

impl Receiver {
    /// Listens on a free port.
    pub fn start() -> io::Result<Receiver> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
        let receiver = Receiver { address: listener.local_addr()?, shared: Arc::default() };
        let shared = receiver.shared.clone();
        thread::spawn(move || {
            for stream in listener.incoming() {
                if shared.ended.load(Ordering::Relaxed) {
                    return;
                }
                let shared = shared.clone();
                if let Ok(stream) = stream {
                    // The client sees how it ends.
                    thread::spawn(move || http::serve(stream, &shared));
                }
            }
        });
        Ok(receiver)
    }

    /// Its address, without a path.
    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Refuses requests without this value in this header with 401.
    pub fn demand(&self, header: &str, value: &str) {
        let pair = (header.to_ascii_lowercase(), value.to_owned());
        self.shared.state().demanded.push(pair);
    }

    /// Lets the next requests fail, one in each of these ways; `None`: that one does not.
    pub fn fail_next(&self, failures: impl IntoIterator<Item = impl Into<Option<Failure>>>) {
        let failures = failures.into_iter().map(Into::into);
        self.shared.state().failures.extend(failures);
    }

    /// Lets all requests fail that no [`Receiver::fail_next`] is about, until it is told otherwise.
    pub fn fail_always(&self, failure: impl Into<Option<Failure>>) {
        self.shared.state().always = failure.into();
    }

    /// Everything received until now.
    pub fn received(&self) -> Received {
        self.shared.state().received.clone()
    }
}

impl Drop for Receiver {
    fn drop(&mut self) {
        self.shared.ended.store(true, Ordering::Relaxed);
        // Wakes the thread that accepts.
        let _ = TcpStream::connect(self.address);
    }
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn failure(&mut self) -> Option<Failure> {
        match self.failures.pop_front() {
            Some(next) => next,
            None => self.always.clone(),
        }
    }
}

impl Received {
    fn take(&mut self, batch: Batch) {
        self.ids.extend(batch.ids);
        for (series, unix_ns, taken) in batch.profiles {
            let times = self.series.entry(series).or_default();
            times.entry(unix_ns).or_insert(taken).deliveries += 1;
        }
    }
}
