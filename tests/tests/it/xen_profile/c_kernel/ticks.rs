//! Whether every tick is accounted for where the kernel keeps the timer and masks events now and
//! then.

use serde_json::Value;
use unikprof_client::exit_code;

use super::{image, on_kernel, record, report};
use crate::xen_profile::harness::time::sum;
use crate::xen_profile::harness::{counters_add_up, wait_until};

const SAMPLES: u64 = 1_000;

/// Two tenths of the work is done with events masked: ticks that fall due there come by a forced
/// upcall, without registers. Told as what was interrupted they would be samples of the code that
/// unmasks; untold, missing.
#[test]
#[ignore = "full: boots a real Xen"]
fn ticks_of_masked_stretches_are_counted_as_masked() {
    on_kernel(|client| {
        record(client, SAMPLES);
        let report = report(client);
        counters_add_up(&report);
        let counters = &report["counters"];
        let count = |name: &str| counters[name].as_u64().unwrap();
        // A quarter of the other workers', and more where the kernel blocks and switches threads.
        // Fewer where a machine is so slow that several ticks are due in a stretch, of which one
        // comes; and by chance.
        let worked = ["grind", "knead"].map(|name| sum(&report, name, "self"));
        let worked: u64 = worked.iter().sum();
        let masked = count("masked");
        assert!(masked > 0, "{counters:#}");
        assert!(masked * 16 >= worked.saturating_sub(200), "{worked} in the workers: {counters:#}");
        for reason in ["overflow", "truncated"] {
            assert_eq!(counters[reason], 0, "{counters:#}");
        }
        for seldom in ["broken", "lost"] {
            assert!(count(seldom) * 100 <= count("recorded"), "{counters:#}");
        }
        // Where it has masked events no sample can lie; what it calls to unmask them has some.
        let masked_code: u64 = client
            .folded(&["--no-inlines"])
            .iter()
            .filter(|(stack, _)| stack.ends_with(";prove"))
            .map(|(_, count)| count)
            .sum();
        assert!(masked_code * 50 <= count("recorded"), "{masked_code}");
    });
}

/// Guards against a tick source whose deadlines are not the agent's: a timer that is left unset, or
/// set by the kernel's own deadline alone. Those end its sleeps, in which nothing works.
#[test]
#[ignore = "full: boots a real Xen"]
fn the_kernel_keeps_the_timer_and_ticks_find_its_work() {
    on_kernel(|client| {
        let mut worked = 0;
        wait_until("samples of the workers", || {
            record(client, SAMPLES);
            let report = report(client);
            let running_ns = report["vcpus"][0]["runstate"]["running_ns"].as_u64();
            let period_ns = report["recording"]["period_ns"].as_u64();
            let due = running_ns.unwrap() / period_ns.unwrap();
            let ticks = report["counters"]["ticks"].as_u64().unwrap();
            assert!(ticks <= due + due / 10 + 20, "{ticks} of {due}");
            // The kernel's own deadlines end its sleeps: the sampler is asked then too, and answers
            // that it is early.
            assert!(report["counters"]["early"].as_u64() > Some(0));
            let of_workers = ["grind", "knead"].map(|name| sum(&report, name, "self"));
            println!("{ticks} ticks of {due} due, {of_workers:?} in the workers");
            worked += of_workers.iter().sum::<u64>();
            (worked >= SAMPLES / 3).then_some(())
        });
    });
}

#[test]
#[ignore = "full: boots a real Xen"]
fn the_doctor_finds_the_masked_events_and_nothing_else_of_the_kernels() {
    on_kernel(|client| {
        record(client, SAMPLES);
        let image = image().to_str().unwrap();
        let found = client.run(&["doctor", "run.unikprof", "--json", "--image", image]);
        let found: Value = serde_json::from_str(&found.stdout).unwrap();
        let checks = found["checks"].as_array().unwrap();
        let verdict = |name: &str| -> &Value {
            let check = checks.iter().find(|check| check["name"] == name);
            &check.unwrap_or_else(|| panic!("no check {name}: {checks:#?}"))["verdict"]
        };
        for name in [
            "complete",
            "consistent",
            "build-id",
            "names",
            "frame pointers",
            "depth",
            "callers",
            "interval",
            "lost",
            "overflow",
        ] {
            assert_eq!(verdict(name), "good", "{name}: {checks:#?}");
        }
        assert_ne!(verdict("masked"), "good", "{checks:#?}");
        // It polls from a thread: stuck, it answers nobody.
        assert_eq!(verdict("reachable"), "look", "{checks:#?}");
    });
}

/// The image is known by the build-id that the linker script keeps and the kernel hands over.
#[test]
#[ignore = "full: boots a real Xen"]
fn another_image_is_refused() {
    on_kernel(|client| {
        record(client, 100);
        let other = client.command();
        client
            .report_with("run.unikprof", other.get_program().as_ref(), &[])
            .expect_code(exit_code::INPUT);
    });
}
