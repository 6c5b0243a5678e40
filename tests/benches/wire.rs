//! The size of a recording on the wire, beside the pprof files of the same profile.
//!
//! ```text
//! cargo bench -p unikprof-tests --bench wire
//! ```
//!
//! A recording file holds the agent's frames as they came, behind a head of its own, so its size is
//! that of the wire. The wire has no names; one pprof file has none either, the other has
//! functions, files and lines. All pprof files are in gzip, the wire is not.

use std::collections::HashSet;
use std::error::Error;
use std::fs;
use std::io::{self, Write};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use flate2::Compression;
use flate2::write::GzEncoder;
use unikprof_agent::hosted::{self, Guest};
use unikprof_demo_service::{RequestGenerator, Service};
use unikprof_link::connection::Address;
use unikprof_link::interrupt::Interrupt;
use unikprof_link::record::{Patience, Session, Settings, record};
use unikprof_profile::profile::{FrameId, Profile};
use unikprof_profile::recording::{Reading, Recording};
use unikprof_profile::symbols::{ImageOptions, Images, Symbolizer};
use unikprof_report::report::{Format, Report, ReportOptions};

const RATE_HZ: u64 = 997;
const DURATION: Duration = Duration::from_secs(10);

fn main() -> Result<(), Box<dyn Error + Send + Sync>> {
    if !std::env::args().any(|argument| argument == "--bench") {
        println!("nothing measured: run it with cargo bench");
        return Ok(());
    }
    let guest = hosted::start(hosted::Config::new(unikprof_agent::Access::Open))?;
    let done = AtomicBool::new(false);
    let bytes = thread::scope(|scope| {
        let service = scope.spawn(|| serve(guest, &done));
        let bytes = recorded(guest);
        done.store(true, Ordering::Release);
        service.join().map_err(|_| "the service panicked")??;
        bytes
    })?;
    let recording = Recording::read(&*bytes, "wire".as_ref(), Reading::Strict)?;
    let profile = &recording.profile;
    let stacks: HashSet<Vec<FrameId>> =
        profile.samples().iter().map(|sample| profile.stack(sample.node).collect()).collect();
    println!(
        "demo service at {RATE_HZ} Hz for {} s: {} samples, {} distinct stacks",
        DURATION.as_secs(),
        profile.sample_count(),
        stacks.len()
    );
    for (name, size) in [
        ("recording, as on the wire", bytes.len()),
        ("recording in gzip", gzip(&bytes)?.len()),
        ("pprof without names, in gzip", pprof(profile, false)?.len()),
        ("pprof with names, in gzip", pprof(profile, true)?.len()),
    ] {
        let a_stack = size as f64 / stacks.len() as f64;
        println!("{name:<30} {size:8} bytes {a_stack:8.1} a distinct stack");
    }
    Ok(())
}

/// Runs the demo service as the guest's one vCPU.
fn serve(guest: Guest, done: &AtomicBool) -> Result<(), hosted::Error> {
    let _vcpu = guest.register_thread()?;
    let mut service = Service::new(1, 256);
    let mut response = Vec::new();
    for request in RequestGenerator::new(1, 256) {
        service.handle(&request, &mut response);
        if done.load(Ordering::Acquire) {
            break;
        }
    }
    Ok(())
}

/// Records the guest and answers the file.
fn recorded(guest: Guest) -> Result<Vec<u8>, Box<dyn Error + Send + Sync>> {
    let address = Address::new("127.0.0.1", guest.address().port());
    let mut session = Session::open(address, Patience::default(), Interrupt::default())?;
    let settings = Settings {
        period_ns: 1_000_000_000 / RATE_HZ,
        duration_ns: u64::try_from(DURATION.as_nanos())?,
        ..Settings::default()
    };
    let directory = tempfile::tempdir()?;
    let outcome =
        record(&mut session, &settings, &directory.path().join("wire.unikprof"), &mut ())?;
    if let Some(error) = outcome.incomplete {
        return Err(error.into());
    }
    Ok(fs::read(outcome.path)?)
}

fn pprof(profile: &Profile, names: bool) -> Result<Vec<u8>, Box<dyn Error + Send + Sync>> {
    let images =
        Images::new(ImageOptions { open_recorded_paths: names, ..ImageOptions::default() });
    let symbolized = Symbolizer::new(images).resolve(profile)?;
    let mut file = Vec::new();
    Report::new(&symbolized, ReportOptions::default()).write(Format::Pprof, &mut file)?;
    Ok(file)
}

fn gzip(bytes: &[u8]) -> io::Result<Vec<u8>> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::best());
    encoder.write_all(bytes)?;
    encoder.finish()
}
