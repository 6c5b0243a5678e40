//! A guest for the end-to-end cases: a process with an agent and one of several loads.
//!
//! ```text
//! hosted-guest LOAD --open [--record-at-boot NAME] [--listen ADDRESS]
//! hosted-guest LOAD [--view-key-file FILE]... [--control-key-file FILE]... [--trace-key-file FILE]...
//!     [--record-at-boot NAME] [--listen ADDRESS]
//! ```
//!
//! `--open` serves every client on loopback. Otherwise clients need one of the keys in the files;
//! whoever can read the files has the keys.
//!
//! `--record-at-boot` begins an always-on recording with that name before any client has connected.
//!
//! `--listen` chooses the address, for a guest that is to be found where the one before it was.
//!
//! It prints `listening on ADDRESS`, then the load's output. It ends when its standard input ends,
//! so that no guest outlives the test that started it.

mod access;
mod burst;
mod clock;
mod contended;
mod deep;
mod errno;
mod events;
mod health;
mod heap;
mod idle;
mod registration;
mod service;
mod shares;
mod states;
mod stop;
mod stuck;
mod threads;
mod traced;
mod traffic;
mod waits;

use std::alloc::System;
use std::error::Error;

use unikprof_agent::heap::Sampled;
use unikprof_agent::hosted::{self, Config, Guest, Hosted, Listen};
use unikprof_agent::{Access, BootRecording};

use stop::Stop;

const LOADS: [(&str, u32, Load); 21] = [
    ("shares", 1, shares::run),
    ("burst", 1, burst::run),
    ("clock", 1, clock::run),
    ("waits", 1, waits::run),
    ("contended", 1, contended::run),
    ("events", 1, events::run),
    ("stuck", 1, stuck::run),
    ("threads", threads::VCPUS, threads::run),
    ("errno", 1, errno::run),
    ("idle", 1, idle::blocked),
    ("asleep", 1, idle::asleep),
    ("deep", 1, deep::run),
    ("churn", 1, deep::churn),
    ("registration", 1, registration::run),
    ("states", states::VCPUS, states::run),
    ("service", service::VCPUS, service::run),
    ("healthy", 1, health::healthy),
    ("ailing", 1, health::ailing),
    ("leaking", 1, heap::run),
    ("traced", 1, traced::run),
    ("traffic", 1, traffic::run),
];

/// The guest's allocator; loads about memory attach it to the agent.
#[global_allocator]
static HEAP: Sampled<System, Hosted> = Sampled::new(System);

/// The variable with the path of a caller table file, used instead of a linked table.
const CALLERS_VARIABLE: &str = "UNIKPROF_TEST_CALLERS";

type Load = fn(&Guest, &Stop) -> Result<(), Box<dyn Error>>;

fn main() -> Result<(), Box<dyn Error>> {
    let mut words = std::env::args().skip(1);
    let name = words.next().unwrap_or_default();
    let Some((_, vcpus, load)) = LOADS.iter().find(|(known, ..)| *known == name) else {
        let known = LOADS.map(|(name, ..)| name).join(", ");
        return Err(format!("`{name}` is no load; there are {known}").into());
    };
    let mut words: Vec<String> = words.collect();
    let boot = take(&mut words, "--record-at-boot")?;
    let boot = boot.map(|name| BootRecording::always_on(name.leak()));
    let listen = take(&mut words, "--listen")?;
    let access = access::from_words(words.into_iter())?;
    let stop = Stop::at_end_of_input()?;
    let linked = match std::env::var_os(CALLERS_VARIABLE) {
        Some(path) => Some(&*std::fs::read(path)?.leak()),
        None => None,
    };
    let usual = Config::new(Access::Open);
    let listen = match listen {
        Some(address) => Listen::Address(address.parse()?),
        None => usual.listen,
    };
    let guest = hosted::start(Config {
        vcpus: *vcpus,
        // A debug build of this program has 110,000 rows, 1.1 MB, the C library included.
        caller_table_bytes: 4 << 20,
        memory_bytes: match name.as_str() {
            // The endless load must be able to fill it.
            "churn" => 1 << 20,
            // The soak's four recordings keep everything, and are fetched seldom.
            "service" => 32 << 20,
            _ => 4 << 20,
        },
        guest_name: Some(name),
        linked_caller_table: linked,
        record_at_boot: boot,
        live_samples: 20_000,
        trace_functions: 1000,
        listen,
        // Without optimisation the agent's work takes many times longer.
        cpu_share_permille: if cfg!(debug_assertions) { 1000 } else { 100 },
        ..Config::new(access)
    })?;
    println!("listening on {}", guest.address());
    load(&guest, &stop)
}

/// Removes an option and its value from the words and returns the value.
fn take(words: &mut Vec<String>, option: &str) -> Result<Option<String>, String> {
    let Some(at) = words.iter().position(|word| word == option) else {
        return Ok(None);
    };
    let taken = words.drain(at..words.len().min(at + 2)).nth(1);
    taken.map(Some).ok_or_else(|| format!("{option} takes a value"))
}
