//! The whole way with a kernel in C: gcc, the header, the archive with its own TCP, and the
//! kernel's own timer, threads and netfront (`tests/guests/c-xen`).

mod blocked;
mod names;
mod size;
mod ticks;
pub(crate) mod with_keys;
mod xen_demo;

use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::thread;
use std::time::Duration;

use serde_json::Value;
use unikprof_tests::c_xen_guest::{Agent, build_c_xen_guest};
use unikprof_tests::lab::{GuestConfig, LabConfig};
use unikprof_tests::profiled::PROFILER_PORT;

use crate::xen_profile::harness::{Boot, Client, Guest, on, wait_until};

const NAME: &str = "c-xen";

const KERNEL: Boot = Boot {
    name: "C kernel",
    config: || {
        let mut guest = GuestConfig::new(NAME, image());
        guest.ports = vec![PROFILER_PORT];
        Ok(LabConfig::with_guest(guest))
    },
};

fn image() -> &'static Path {
    static IMAGE: OnceLock<PathBuf> = OnceLock::new();
    IMAGE.get_or_init(|| build_c_xen_guest(Agent::Frames).unwrap())
}

/// The words that start a recording at 499 Hz, with the caller table of the kernel's image.
fn start() -> [&'static str; 5] {
    ["start", "-F", "499", "--image", image().to_str().unwrap()]
}

/// Runs a case with a client of the kernel.
fn on_kernel(body: impl FnOnce(&Client)) {
    on(&KERNEL, |lab| {
        let client = Guest::of_recording(lab, NAME).client();
        body(&client.with_image(image()));
    });
}

/// Records so many samples. Asks now and then how many there are: each time the kernel serves a
/// client, which then is in the profile.
fn record(client: &Client, samples: u64) {
    const ASK_EVERY: Duration = Duration::from_millis(300);
    client.must(&start());
    wait_until("the samples", || {
        thread::sleep(ASK_EVERY);
        (client.status()["counters"]["recorded"].as_u64() >= Some(samples)).then_some(())
    });
    client.stop("run.unikprof");
}

/// The report of the recording, as JSON.
fn report(client: &Client) -> Value {
    let report = client.report("run.unikprof", &["--json", "--no-inlines"]);
    report.expect_json()
}
