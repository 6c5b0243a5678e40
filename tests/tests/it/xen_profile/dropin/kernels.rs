//! The kernel in C at work: its own device, keys and settings from xenstore and from the image.

use std::path::PathBuf;
use std::process::Command;

use tempfile::TempDir;
use unikprof_client::exit_code;
use unikprof_profile::recording::Completeness;
use unikprof_tests::lab::{LabConfig, LabError};
use unikprof_tests::profiled::with_keys;
use unikprof_tests::soak::target::KeyFiles;

use super::{
    assert_keys_are_required, assert_no_watches, assert_waits_are_told, client, guest, image, keys,
    record,
};
use crate::xen_profile::harness::time::sum;
use crate::xen_profile::harness::{Boot, Guest, SOON, counters_add_up, on, wait_until};
use crate::xen_profile::tracing::{assert_ratios, traced};

const NAME: &str = "c-dropin";
const KEYED: &str = "c-dropin-keyed";
const CONFIGURED: &str = "c-dropin-configured";

const KERNELS: Boot = Boot {
    name: "C kernels with the drop-in",
    config: || {
        let keyed = guest(KEYED, "10.0.2.51", &[("record", "flight")]);
        let mut configured = guest(CONFIGURED, "10.0.2.52", &[]);
        configured.kernel = configured_image()?;
        configured.store.clear();
        Ok(LabConfig {
            guests: vec![
                guest(NAME, "10.0.2.50", &[("access", "open"), ("tracing", "yes")]),
                with_keys(keyed, &keys()),
                configured,
            ],
            ..LabConfig::default()
        })
    },
};

/// The image with what the others have in xenstore.
fn configured_image() -> Result<PathBuf, LabError> {
    let from = image();
    let to = from.with_added_extension("configured");
    let folder = TempDir::with_prefix("unikprof-keys-").unwrap();
    let KeyFiles { control, .. } = KeyFiles::write(&keys(), folder.path()).unwrap();
    let [from, to, control] = [from, &to, &control].map(|path| path.to_str().unwrap());
    let done = Command::new(env!("CARGO_BIN_EXE_hosted-client"))
        .args(["configure", from, "-o", to, "--control", control])
        .args(["--address", "10.0.2.52/24", "--record", "boot"])
        .output()
        .unwrap();
    assert!(done.status.success(), "{done:?}");
    Ok(to.into())
}

/// Its breakpoint handler is before the kernel's own, and its threads are switched inside of the
/// calls.
#[test]
#[ignore = "full: boots a real Xen"]
fn functions_of_a_kernel_that_knows_nothing_of_it_are_traced() {
    on(&KERNELS, |lab| {
        let functions = ["mill", "grind", "bake", "knead", "prove"];
        let trace = traced(&client(lab, NAME), &functions, &[("mill", 2)]);
        assert_ratios(
            &trace,
            &[
                ("grind", "mill", 5),
                ("bake", "mill", 1),
                ("knead", "bake", 3),
                ("prove", "bake", 2),
            ],
        );
    });
}

/// `grind` works five parts, `knead` three: with whole stacks, down to the start of their threads.
#[test]
#[ignore = "full: boots a real Xen"]
fn a_kernel_that_knows_nothing_of_it_is_profiled() {
    on(&KERNELS, |lab| {
        let client = client(lab, NAME);
        let [mut ground, mut kneaded] = [0, 0];
        let report = wait_until("samples of the workers", || {
            let report =
                record(&client, "cpu", |counters| counters["recorded"].as_u64() >= Some(1_500));
            let found = ["grind", "knead"].map(|name| sum(&report, name, "self"));
            ground += found[0];
            kneaded += found[1];
            // The stacks are those of the last one.
            (ground + kneaded >= 1_000 && found[0] > 0).then_some(report)
        });
        counters_add_up(&report);
        // Six deviations.
        let share = ground as f64 / (ground + kneaded) as f64;
        assert!((0.53..0.72).contains(&share), "{share}: {report:#}");
        let mut stacks = client.folded(&["--no-inlines"]);
        stacks.retain(|(stack, _)| !stack.starts_with("[unikprof agent]"));
        let all: u64 = stacks.iter().map(|(_, count)| count).sum();
        let whole = stacks
            .iter()
            .filter(|(stack, _)| stack.contains("thread_begin;") || stack.contains("boot_entry;"));
        let whole: u64 = whole.map(|(_, count)| count).sum();
        assert!(whole * 100 >= all * 95, "{whole} of {all}");
        let ground = stacks.iter().any(|(stack, _)| stack.ends_with("miller;mill;grind"));
        assert!(ground, "{stacks:#?}");
    });
}

/// Guards against waits that are charged from the first interrupt in them only, or not at all, or
/// twice.
#[test]
#[ignore = "full: boots a real Xen"]
fn waits_are_blocked_time() {
    on(&KERNELS, |lab| assert_waits_are_told(lab, NAME));
}

/// The guest's handler does not run for the profiler's events, and its own device stays as it was.
/// Guards against watches that the start leaves behind, whose events would be in the guest's ring.
#[test]
#[ignore = "full: boots a real Xen"]
fn the_guests_own_device_is_left_alone() {
    on(&KERNELS, |lab| {
        client(lab, NAME).must(&["info"]);
        let id = lab.domain_id(NAME).unwrap();
        let script = format!(
            "xenstore-ls /local/domain/{id}/device/vif; xenstore-ls /local/domain/{id}/data"
        );
        let nodes = lab.dom0(&script, SOON).unwrap().text;
        let values = |name: &str| -> Vec<u32> {
            let lines = nodes.lines().filter(|line| line.contains(name));
            let values = lines.filter_map(|line| line.split('"').nth(1)?.parse().ok());
            values.collect()
        };
        // Both are connected, each by its own event channel.
        assert_eq!(values("state ="), [4, 4], "{nodes}");
        let channels = values("event-channel ");
        assert!(channels.len() == 2 && channels[0] != channels[1], "{nodes}");
        // The guest's first frame of the grant table, and the last one of the domain.
        let [guests, ours] = values("tx-ring-ref")[..] else {
            panic!("{nodes}");
        };
        assert!(guests < 512 && ours >= 512, "{nodes}");
        assert_no_watches(lab, NAME);
    });
}

#[test]
#[ignore = "full: boots a real Xen"]
fn keys_and_a_recording_from_boot_come_from_xenstore() {
    on(&KERNELS, |lab| {
        let [view, control] = assert_keys_are_required(lab, KEYED);
        assert_eq!(view.recording_names(), ["flight"]);
        let recording = control.record("2s", &["--name", "second"]);
        assert_eq!(recording.completeness, Completeness::Complete);
    });
}

/// For tenants who cannot write to xenstore.
#[test]
#[ignore = "full: boots a real Xen"]
fn keys_and_an_address_come_from_the_image() {
    on(&KERNELS, |lab| {
        let guest = Guest::of_recording(lab, CONFIGURED);
        let folder = TempDir::with_prefix("unikprof-keys-").unwrap();
        let KeyFiles { view, control, .. } = KeyFiles::write(&keys(), folder.path()).unwrap();
        // The other key is in xenstore of another guest only.
        guest.client().with_key(&view).connect(&["info"]).expect_code(exit_code::KEY);
        assert_eq!(guest.client().with_key(&control).recording_names(), ["boot"]);
    });
}
