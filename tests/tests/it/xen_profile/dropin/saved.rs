//! Guests that are saved and restored while a recording runs.

use tempfile::TempDir;
use unikprof_client::exit_code;
use unikprof_tests::lab::{GuestConfig, LabConfig};
use unikprof_tests::profiled::with_keys;
use unikprof_tests::soak::random::Random;
use unikprof_tests::soak::target::{KeyFiles, Keys};

use super::{BOOT, assert_no_watches, guest, image, keys, record_both, rust_image};
use crate::xen_profile::harness::{Boot, Guest, counters_add_up, on};
use crate::xen_profile::restore::assert_resumed_once;

const RESTORED: &str = "c-dropin-restored";
const SAVED: Boot = Boot {
    name: "C kernel with the drop-in, to be saved",
    config: || {
        let mut guest = with_keys(guest(RESTORED, "10.0.2.50", &[]), &keys());
        guest.command_line = "tools=follow".into();
        Ok(LabConfig {
            // The image of the guest's memory lies on dom0's RAM disk.
            extra_dom0_memory_mb: 128,
            ..LabConfig::with_guest(guest)
        })
    },
};

const RESTORED_TWO: &str = "rust-dropin-restored";
const SAVED_TWO: Boot = Boot {
    name: "Rust guest with the drop-in and two vCPUs, to be saved",
    config: || {
        let mut guest = guest(RESTORED_TWO, "10.0.2.50", &[("access", "open")]);
        guest.kernel = rust_image().into();
        guest.vcpus = 2;
        guest.command_line = "hotspots=80 vcpus=2 ip=10.0.2.90/24".into();
        Ok(LabConfig { extra_dom0_memory_mb: 128, ..LabConfig::with_guest(guest) })
    },
};

/// The keys that replace the first ones.
fn later_keys() -> Keys {
    Keys::draw(&mut Random::new(13))
}

/// Guards against a port of the old domain that is another's in the new one, clocks that begin
/// anew, and a key that was withdrawn and still opens.
#[test]
#[ignore = "full: boots a real Xen"]
fn a_recording_goes_on_after_a_save_and_restore() {
    on(&SAVED, |lab| {
        let guest = Guest::of_recording(lab, RESTORED);
        let folders = [keys(), later_keys()].map(|keys| {
            let folder = TempDir::with_prefix("unikprof-keys-").unwrap();
            let files = KeyFiles::write(&keys, folder.path()).unwrap();
            (folder, files)
        });
        let [former, client] = folders.each_ref().map(|(_, files)| {
            let client = guest.client().with_image(image());
            client.with_key(&files.control)
        });
        former.must(&["start"]);
        let before = former.wait_for_samples(300);
        guest.dom0(&format!("xl save {RESTORED} /tmp/image"));
        let later = with_keys(GuestConfig::new(RESTORED, image()), &later_keys());
        lab.restore(RESTORED, "/tmp/image", &later.store, BOOT).unwrap();
        let line = lab.wait_for_console(RESTORED, "unikprof: connected again", BOOT);
        assert!(line.unwrap().contains("named in xenstore now"));
        assert_no_watches(lab, RESTORED);
        let refused = former.connect(&["check"]);
        refused.expect_code(exit_code::KEY);
        assert_resumed_once(&client);
        // Samples were taken before the suspend, too.
        let resumed = client.status()["counters"]["recorded"].as_u64().unwrap();
        let after = client.wait_for_samples(resumed + 300);
        assert_eq!(after["recording"], before["recording"]);
        client.stop("run.unikprof");
        let report = client.report("run.unikprof", &["--json"]).expect_json();
        assert!(counters_add_up(&report) >= resumed + 300);
        let vcpu = &report["vcpus"][0];
        let elapsed = vcpu["elapsed_ns"].as_u64().unwrap();
        let running = vcpu["runstate"]["running_ns"].as_u64().unwrap();
        let period = report["recording"]["period_ns"].as_u64().unwrap();
        let ticks = vcpu["counters"]["ticks"].as_u64().unwrap();
        assert!(running <= elapsed, "{vcpu:#}");
        // A tick stands for a period of it, before the save as after the restore.
        assert!(running * 11 / 10 + 20 * period >= ticks * period, "{vcpu:#}");
    });
}

/// Guards against a vCPU that is not prepared in the new domain, and against a second one that
/// connects the network, too: in this guest both ask for it.
#[test]
#[ignore = "full: boots a real Xen"]
fn two_vcpus_are_sampled_after_a_save_and_restore() {
    on(&SAVED_TWO, |lab| {
        let guest = Guest::of(lab, RESTORED_TWO);
        let client = guest.client().with_image(rust_image());
        client.must(&["start", "-F", "499"]);
        client.wait_for_samples(300);
        guest.dom0(&format!("xl save {RESTORED_TWO} /tmp/image"));
        let store = self::guest(RESTORED_TWO, "10.0.2.50", &[("access", "open")]).store;
        lab.restore(RESTORED_TWO, "/tmp/image", &store, BOOT).unwrap();
        lab.wait_for_console(RESTORED_TWO, "unikprof: connected again", BOOT).unwrap();
        assert_resumed_once(&client);
        let resumed = client.status()["counters"]["recorded"].as_u64().unwrap();
        client.wait_for_samples(resumed + 300);
        client.stop("run.unikprof");
        let report = client.report("run.unikprof", &["--json"]).expect_json();
        counters_add_up(&report);
        record_both(&client);
    });
}
