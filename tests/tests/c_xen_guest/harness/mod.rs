//! What the cases run on: one lab with the kernel in C, and the client's program.

use std::path::{Path, PathBuf};
use std::sync::{Mutex, OnceLock, PoisonError};

use unikprof_tests::c_xen_guest::{Agent, build_c_xen_guest};
use unikprof_tests::lab::{GuestConfig, Lab, LabConfig, run_or_skip};
use unikprof_tests::profiled::{PROFILER_PORT, profiler_address, start_profiled};

// The client's program and waiting are those of the hosted cases; not all of them are used here.
#[allow(dead_code, reason = "shared with the hosted cases")]
#[path = "../../hosted/harness/client.rs"]
mod client;
#[path = "../../hosted/harness/wait.rs"]
mod wait;

use client::Client;
use wait::wait_until;

const NAME: &str = "c-xen";

/// The kernel.
struct Guest;

impl Guest {
    /// Its image, as the client's reports want it.
    fn program() -> &'static Path {
        static IMAGE: OnceLock<PathBuf> = OnceLock::new();
        IMAGE.get_or_init(|| build_c_xen_guest(Agent::Frames).unwrap())
    }
}

static LAB: Mutex<Option<Lab>> = Mutex::new(None);

/// Runs a case with a client of the kernel, alone; the lab is booted once. Skips it, by name, where there can be
/// no lab.
pub(crate) fn on(case: &str, body: impl FnOnce(&Client)) {
    run_or_skip(case, || {
        let mut lab = LAB.lock().unwrap_or_else(PoisonError::into_inner);
        if lab.is_none() {
            let mut guest = GuestConfig::new(NAME, Guest::program());
            guest.ports = vec![PROFILER_PORT];
            *lab = Some(start_profiled(&LabConfig::with_guest(guest))?);
        }
        if let Some(lab) = &*lab {
            body(&Client::of(profiler_address(lab, NAME)?));
        }
        Ok(())
    });
}
