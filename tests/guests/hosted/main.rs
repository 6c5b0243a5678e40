//! A guest for the end-to-end cases: a process with an agent and one of several loads.
//!
//! ```text
//! hosted-guest LOAD --open
//! hosted-guest LOAD [--view-key-file FILE]... [--control-key-file FILE]...
//! ```
//!
//! `--open` serves everybody on loopback; otherwise the keys in the files say who is served. Whoever can
//! read the files has the keys.
//!
//! It prints `listening on ADDRESS`, then what the load has to say. It ends when its standard input
//! does, so that no guest outlives the test that started it.

mod access;
mod deep;
mod errno;
mod idle;
mod registration;
mod service;
mod shares;
mod stop;
mod stuck;
mod threads;

use std::error::Error;

use unikprof_agent::hosted::{self, Config, Guest};

use stop::Stop;

const LOADS: [(&str, u32, Load); 9] = [
    ("shares", 1, shares::run),
    ("stuck", 1, stuck::run),
    ("threads", threads::VCPUS, threads::run),
    ("errno", 1, errno::run),
    ("idle", 1, idle::blocked),
    ("asleep", 1, idle::asleep),
    ("deep", 1, deep::run),
    ("registration", 1, registration::run),
    ("service", service::VCPUS, service::run),
];

/// Names a caller table's file, in the place of one that is linked in.
const CALLERS_VARIABLE: &str = "UNIKPROF_TEST_CALLERS";

type Load = fn(&Guest, &Stop) -> Result<(), Box<dyn Error>>;

fn main() -> Result<(), Box<dyn Error>> {
    let mut words = std::env::args().skip(1);
    let name = words.next().unwrap_or_default();
    let Some((_, vcpus, load)) = LOADS.iter().find(|(known, ..)| *known == name) else {
        let known = LOADS.map(|(name, ..)| name).join(", ");
        return Err(format!("`{name}` is no load; there are {known}").into());
    };
    let access = access::from_words(words)?;
    let stop = Stop::at_end_of_input()?;
    let linked = match std::env::var_os(CALLERS_VARIABLE) {
        Some(path) => Some(&*std::fs::read(path)?.leak()),
        None => None,
    };
    let guest = hosted::start(Config {
        vcpus: *vcpus,
        memory_bytes: 4 << 20,
        guest_name: Some(name),
        linked_caller_table: linked,
        ..Config::new(access)
    })?;
    println!("listening on {}", guest.address());
    load(&guest, &stop)
}
