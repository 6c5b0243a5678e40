//! The drop-in: the kernel in C, compiled without an agent, is profiled through a second network
//! device.

mod contended;
mod kernels;
mod meddlers;
mod others;
mod rust_guests;
mod saved;

use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::thread;
use std::time::Duration;

use serde_json::Value;
use unikprof_client::exit_code;
use unikprof_profile::profile::VcpuStats;
use unikprof_tests::c_xen_guest::{Agent, build_c_xen_guest};
use unikprof_tests::lab::{GuestConfig, Lab, build_xen_guest_with_dropin};
use unikprof_tests::profiled::PROFILER_PORT;
use unikprof_tests::soak::random::Random;
use unikprof_tests::soak::target::{KeyFiles, Keys};

use crate::xen_profile::harness::{Client, Guest, wait_until};

const BOOT: Duration = Duration::from_secs(600);

fn image() -> &'static Path {
    static IMAGE: OnceLock<PathBuf> = OnceLock::new();
    IMAGE.get_or_init(|| build_c_xen_guest(Agent::DropIn).unwrap())
}

fn rust_image() -> &'static Path {
    static IMAGE: OnceLock<PathBuf> = OnceLock::new();
    IMAGE.get_or_init(|| build_xen_guest_with_dropin().unwrap())
}

fn keys() -> Keys {
    Keys::draw(&mut Random::new(12))
}

/// The guest's own device comes first; the profiler's has the address that the lab forwards to.
fn guest(name: &str, address: &str, settings: &[(&str, &str)]) -> GuestConfig {
    let mut guest = GuestConfig::new(name, image());
    guest.ports = vec![PROFILER_PORT];
    guest.interfaces = vec!["ip=10.0.2.90".into(), format!("ip={address}")];
    let address = format!("{address}/24");
    let settings = [("address", &*address)].into_iter().chain(settings.iter().copied());
    guest.store =
        settings.map(|(node, value)| (format!("data/unikprof/{node}"), value.to_owned())).collect();
    guest
}

fn client(lab: &Lab, name: &str) -> Client {
    Guest::of(lab, name).client().with_image(image())
}

/// Without a key nobody is served, and a key to view does not record. Returns clients that view and
/// that record.
fn assert_keys_are_required(lab: &Lab, name: &str) -> [Client; 2] {
    let guest = Guest::of_recording(lab, name);
    let client = guest.client();
    client.connect(&["info"]).expect_code(exit_code::KEY);
    let clients = [(); 2].map(|()| guest.client_with_image());
    let [view, control] = clients.map(|client| {
        let files = KeyFiles::write(&keys(), &client.path("")).unwrap();
        (client, files)
    });
    let view = view.0.with_key(&view.1.view);
    view.connect(&["start"]).expect_code(exit_code::KEY);
    [view, control.0.with_key(&control.1.control)]
}

/// Asserts that a vCPU was blocked for longer than it ran, by a guest's report.
fn assert_mostly_blocked(report: &Value, vcpu: usize) {
    let vcpu = &report["vcpus"][vcpu];
    let ns = |state: &str| vcpu["runstate"][state].as_u64().unwrap();
    assert!(ns("blocked_ns") > ns("running_ns"), "{report:#}");
}

fn record(client: &Client, mode: &str, enough: impl Fn(&Value) -> bool) -> Value {
    let image = client.image().to_str().unwrap();
    client.must(&["start", "-F", "499", "--mode", mode, "--image", image]);
    wait_until("the samples", || {
        thread::sleep(Duration::from_millis(300));
        enough(&client.status()["counters"]).then_some(())
    });
    client.stop("run.unikprof");
    let report = client.report("run.unikprof", &["--json", "--no-inlines"]);
    report.expect_json()
}

/// Records until both of two vCPUs have samples.
fn record_both(client: &Client) {
    // The guest has more work than processors.
    let recordings = ["5s", "30s", "120s"].into_iter();
    let mut recordings = recordings.map(|time| client.record(time, &["-F", "499"]));
    let is_sampled = |vcpu: &VcpuStats| vcpu.counters.recorded >= 100;
    let recording = recordings.find(|it| it.profile.vcpus().iter().all(is_sampled));
    let recording = recording.expect("samples of both vCPUs in two minutes");
    assert_eq!(recording.profile.vcpus().len(), 2);
}

fn assert_waits_are_told(lab: &Lab, name: &str) {
    let client = client(lab, name);
    let waits = |counters: &Value| counters["blocks"].as_u64() >= Some(100);
    let report = record(&client, "off-cpu", waits);
    let blocked_ns = report["vcpus"][0]["runstate"]["blocked_ns"].as_u64().unwrap();
    let told_ns = report["counters"]["blocked"].as_u64().unwrap();
    // Xen's account begins and ends a little beside the recording's.
    assert!(
        told_ns.abs_diff(blocked_ns) < blocked_ns / 50 + 20_000_000,
        "{told_ns} of {blocked_ns}: {report:#}"
    );
    // The ring tells each wait by its times.
    let by_ring = client.report("run.unikprof", &["--json", "--no-inlines", "--from", "0s"]);
    let by_ring = by_ring.expect_json();
    let ring_ns = by_ring["counters"]["blocked"].as_u64().unwrap();
    assert!(ring_ns.abs_diff(told_ns) < told_ns / 5, "{ring_ns} of {told_ns}: {by_ring:#}");
}

/// The kernel in C has no watches, so all that its domain has are the profiler's.
fn assert_no_watches(lab: &Lab, name: &str) {
    let id = lab.domain_id(name).unwrap();
    let script = format!("xenstore-control quota {id}");
    let quota = lab.dom0(&script, BOOT).unwrap().text;
    let watches = quota.lines().find_map(|line| {
        let (what, count) = line.split_once(':')?;
        (what.trim() == "watches").then(|| count.trim().parse::<u32>())
    });
    assert_eq!(watches, Some(Ok(0)), "{quota}");
}
