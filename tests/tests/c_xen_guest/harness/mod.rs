//! What the cases run on: one lab with the kernel in C, and the client's program.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread;
use std::time::Duration;

use serde_json::Value;
use unikprof_tests::c_xen_guest::{Agent, build_c_xen_guest};
use unikprof_tests::lab::{GuestConfig, Lab, LabConfig, run_or_skip};
use unikprof_tests::profiled::{PROFILER_PORT, profiler_address, start_profiled};

// The client's program and waiting are those of the hosted cases; not all of them are used here.
#[allow(dead_code, reason = "shared with the hosted cases")]
#[path = "../../hosted/harness/client.rs"]
mod client;
#[path = "../../hosted/harness/wait.rs"]
mod wait;

pub(crate) use client::Client;
pub(crate) use wait::{SOON, wait_until};

const NAME: &str = "c-xen";

/// The kernel's image.
pub(crate) fn program() -> &'static Path {
    static IMAGE: OnceLock<PathBuf> = OnceLock::new();
    IMAGE.get_or_init(|| build_c_xen_guest(Agent::Frames).unwrap())
}

/// The kernel, as the client's reports want to know it.
struct Guest;

impl Guest {
    fn program() -> &'static Path {
        program()
    }
}

static LAB: Mutex<Option<Lab>> = Mutex::new(None);

/// A case that panics leaves nothing to the next: that boots a lab of its own.
struct Turn(MutexGuard<'static, Option<Lab>>);

impl Drop for Turn {
    fn drop(&mut self) {
        if thread::panicking() {
            // Dropped while panicking, a lab keeps its logs.
            *self.0 = None;
        }
    }
}

/// Runs a case with a client of the kernel, alone; the lab is booted once. Skips it, by name, where there can be
/// no lab.
pub(crate) fn on(case: &str, body: impl FnOnce(&Client)) {
    on_address(case, |client, _| body(client));
}

/// The same with the address at which the kernel's profiler is reached.
pub(crate) fn on_address(case: &str, body: impl FnOnce(&Client, SocketAddr)) {
    run_or_skip(case, || {
        let mut turn = Turn(LAB.lock().unwrap_or_else(PoisonError::into_inner));
        let lab = &mut *turn.0;
        if lab.is_none() {
            let mut guest = GuestConfig::new(NAME, program());
            guest.ports = vec![PROFILER_PORT];
            *lab = Some(start_profiled(&LabConfig::with_guest(guest))?);
        }
        if let Some(lab) = lab {
            let address = profiler_address(lab, NAME)?;
            body(&Client::of(address), address);
        }
        Ok(())
    });
}

/// Records so many samples at 499 Hz, with the caller table of the kernel's image. Asks now and then how many
/// there are: each time the kernel serves a client, which then is in the profile.
pub(crate) fn record(client: &Client, samples: u64) {
    const ASK_EVERY: Duration = Duration::from_millis(300);
    let image = program().to_str().unwrap();
    client
        .connect(&["start", "-F", "499", "--image", image])
        .expect_success();
    wait_until("the samples", || {
        thread::sleep(ASK_EVERY);
        (client.status()["counters"]["recorded"].as_u64() >= Some(samples)).then_some(())
    });
    client
        .connect(&["stop", "-o", "run.unikprof"])
        .expect_success();
}

/// What was recorded, as JSON.
pub(crate) fn report(client: &Client) -> Value {
    client
        .report("run.unikprof", &["--json", "--no-inlines"])
        .expect_json()
}

/// Stacks, the outermost function first, and their samples or nanoseconds.
pub(crate) fn samples_by_stack(client: &Client) -> Vec<(String, u64)> {
    let folded = client
        .report("run.unikprof", &["--format", "folded", "--no-inlines"])
        .expect_success()
        .stdout;
    let lines = folded.lines().map(|line| {
        let (stack, count) = line.rsplit_once(' ').unwrap();
        (stack.to_owned(), count.parse().unwrap())
    });
    lines.collect()
}

/// What `doctor` finds, whatever it thinks of it.
pub(crate) fn doctor(client: &Client) -> Value {
    let mut command = client.command();
    command
        .args(["doctor", "run.unikprof", "--json", "--image"])
        .arg(program());
    let output = command.output().unwrap();
    serde_json::from_slice(&output.stdout).unwrap()
}

/// Asserts that a report accounts for every tick.
pub(crate) fn counters_add_up(report: &Value) {
    let counters = &report["counters"];
    let count = |name: &str| counters[name].as_u64().unwrap();
    let parts = ["recorded", "overflow", "lost", "masked", "idle"];
    let sum: u64 = parts.iter().map(|part| count(part)).sum();
    assert_eq!(count("ticks"), sum, "{counters:#}");
    let functions = report["functions"].as_array().unwrap();
    let own: u64 = functions.iter().map(|f| f["self"].as_u64().unwrap()).sum();
    assert_eq!(own, count("recorded"), "every sample has one leaf");
}
