//! Guests on Xen on Arm: the same unikernel, the same client, an emulated machine of aarch64.

use serde_json::Value;
use unikprof_profile::profile::Interval;
use unikprof_tests::accuracy::xen::{XenGuest, shares};
use unikprof_tests::accuracy::{
    broken_chains, known_shares, leaf_callers, masked_events, step_lock, without_frame_pointers,
};
use unikprof_tests::lab::{
    Lab, LabConfig, LabError, Processor, build_xen_guest_without_frame_pointers,
};
use unikprof_tests::profiled::{
    CAPTURES_PORT, ORDERS_PORT, features, profiled_guest_on, profiled_kernel, with_keys,
};

use crate::xen_profile::flight::{FLIGHT, crash, recordings};
use crate::xen_profile::harness::{Boot, Guest, SOON, counters_add_up, on, wait_until};
use crate::xen_profile::working::accounting;

use crate::xen_profile::{hot_spots, idle, keys, stuck, vcpus};

/// The sampling period in cases of the accuracy suite.
const PERIOD_NS: u64 = 5_000_000;
/// A period beside which an upcall is short in a slow emulator too.
const LONG_PERIOD_NS: u64 = 20_000_000;
/// The samples captured of each load, and how many full unwind tables lead to a caller, at least.
const SAMPLES: usize = 400;
const JUDGED: u64 = 380;

/// A guest for the orders of the accuracy suite.
fn ordered<'lab>(lab: &'lab Lab, name: &str) -> XenGuest<&'lab Lab> {
    XenGuest::of(lab, name, lab.kernel(name).unwrap()).unwrap()
}

/// A machine with these guests, by name and command line.
fn machine(gic: u32, guests: &[(&str, &str)]) -> Result<LabConfig, LabError> {
    let guests =
        guests.iter().map(|(name, words)| profiled_guest_on(Processor::Aarch64, name, words));
    Ok(LabConfig {
        processor: Processor::Aarch64,
        gic,
        guests: guests.collect::<Result<_, _>>()?,
        ..LabConfig::default()
    })
}

const WORKING: Boot = Boot {
    name: "arm-working",
    config: || {
        let orders = format!("hotspots=80 orders={ORDERS_PORT}");
        let mut config = machine(3, &[("arm", &orders)])?;
        config.guests[0].ports.push(ORDERS_PORT);
        Ok(config)
    },
};

const LEAVES: Boot = Boot {
    name: "arm-leaves",
    config: || {
        let processor = Processor::Aarch64;
        let kernel = build_xen_guest_without_frame_pointers(processor, features(processor))?;
        let mut config = machine(3, &[("arm-vcpus", "vcpus=2 load=60")])?;
        config.guests[0].vcpus = 2;
        let words = format!("hotspots=80 orders={ORDERS_PORT} captures={CAPTURES_PORT}");
        let mut leaves = profiled_kernel(kernel, "arm-leaves", &words);
        leaves.ports.extend([ORDERS_PORT, CAPTURES_PORT]);
        // A third of it for captured samples.
        leaves.memory_mb = 96;
        config.guests.push(leaves);
        Ok(config)
    },
};

/// Guests with either owner of the timer, and an interrupt controller of the earlier version.
const QUIET: Boot = Boot {
    name: "arm-quiet",
    config: || {
        let guests = [
            ("arm-host", ""),
            ("arm-owned", "ticks=owned"),
            ("arm-stuck", "stuck=loop"),
            ("arm-offline", "vcpus=2 hotspots=50 offline=400"),
        ];
        let mut config = machine(2, &guests)?;
        config.guests[3].vcpus = 2;
        Ok(config)
    },
};

/// Record since their boot; one panics. And one that has keys.
const RECORDERS: Boot = Boot {
    name: "arm-recorders",
    config: || {
        let words = format!("record-at-boot={FLIGHT} hotspots=60");
        let crash = format!("{words} panic_after=2");
        let guests = [("arm-flight", &*words), ("arm-crash", &crash), ("arm-keyed", "load=50")];
        let mut config = machine(3, &guests)?;
        let keyed = config.guests.pop().map(|guest| with_keys(guest, &keys::keys()));
        config.guests.extend(keyed);
        Ok(config)
    },
};

/// Cases of the boot [`LEAVES`], next to each other in the order of their names.
mod leaves {
    use super::*;

    /// Their frame pointer is their caller's, and the caller is in the link register.
    #[test]
    #[ignore = "full: boots a real Xen"]
    fn arm_leaf_functions_without_frame_records_have_their_callers() {
        on(&LEAVES, |lab| {
            let client = Guest::of(lab, "arm-leaves").client_with_image();
            let image = client.image().to_str().unwrap();
            hot_spots::assert_shares(&client, &["--image", image]);
            client.record_samples(1_000, &["--unwind", "table", "--image", image]);
            let report = client.report("run.unikprof", &["--json"]).expect_json();
            counters_add_up(&report);
            assert_eq!(report["recording"]["architecture"], "aarch64");
            let counters = &report["counters"];
            let count = |name: &str| counters[name].as_u64().unwrap();
            assert_eq!(count("broken"), 0, "{counters:#}");
            // The assembly of the boot, of interrupts and of copying has no rules; next to no
            // caller is there.
            let by_table = count("by_table");
            assert!(by_table * 100 >= count("recorded") * 95, "{counters:#}");
        });
    }

    /// The same, sample by sample: full unwind tables with the link register are the judge. The
    /// walk without either loses the caller of each leaf.
    #[test]
    #[ignore = "full: boots a real Xen"]
    fn arm_callers_of_leaves_are_right_by_the_table() {
        on(&LEAVES, |lab| {
            let guest = &mut ordered(lab, "arm-leaves");
            for found in leaf_callers::measure(guest, SAMPLES).unwrap() {
                println!("{found:?}");
                assert!(found.naive.judged >= JUDGED, "{found:#?}");
                assert!(found.table.share() >= leaf_callers::GOAL, "{found:#?}");
                assert!(found.naive.share() < found.table.share(), "{found:#?}");
            }
            let found = without_frame_pointers::measure(guest, "sorts", SAMPLES).unwrap();
            println!("{found:?}");
            assert!(found.every_frame.judged >= JUDGED, "{found:#?}");
            let share = found.every_frame.share();
            assert!(share >= without_frame_pointers::GOAL, "{found:#?}");
        });
    }

    /// The second one was started by PSCI. They share a processor with the other guest.
    #[test]
    #[ignore = "full: boots a real Xen"]
    fn arm_two_vcpus_have_samples_of_their_own() {
        on(&LEAVES, |lab| {
            vcpus::assert_each_is_sampled(&Guest::of(lab, "arm-vcpus").client_with_image(), 2);
        });
    }
}

/// Cases of the boot [`QUIET`], next to each other in the order of their names.
mod quiet {
    use super::*;

    #[test]
    #[ignore = "full: boots a real Xen"]
    fn arm_sleeping_guests_stay_asleep() {
        on(&QUIET, |lab| {
            for name in ["arm-host", "arm-owned"] {
                idle::assert_sleeps(&Guest::of(lab, name), "1997");
            }
        });
    }

    /// The second one stops itself by PSCI and is started again, while it is recorded and between
    /// recordings.
    #[test]
    #[ignore = "full: boots a real Xen"]
    fn arm_vcpus_that_stop_and_start_are_sampled_and_offline_meanwhile() {
        on(&QUIET, |lab| {
            let client = Guest::of(lab, "arm-offline").client_with_image();
            for _ in 0..2 {
                vcpus::assert_each_is_sampled(&client, 2);
                let report = client.report("run.unikprof", &["--json"]).expect_json();
                let times = |vcpu: usize| {
                    let vcpu = &report["vcpus"][vcpu];
                    let time = |state: &str| vcpu["runstate"][state].as_u64().unwrap();
                    let all = ["running_ns", "runnable_ns", "blocked_ns", "offline_ns"].map(time);
                    (all, vcpu["elapsed_ns"].as_u64().unwrap())
                };
                let ([.., offline], _) = times(0);
                assert_eq!(offline, 0, "{report:#}");
                let (all, elapsed) = times(1);
                // It is stopped for 400 ms at a time at least, and how often depends on when they
                // run.
                assert!(all[3] > 200_000_000, "{report:#}");
                let sum = all.iter().sum::<u64>();
                assert!(sum.abs_diff(elapsed) < elapsed / 50, "{report:#}");
            }
        });
    }

    #[test]
    #[ignore = "full: boots a real Xen"]
    fn arm_stuck_guests_are_reached_and_recorded() {
        on(&QUIET, |lab| {
            lab.wait_for_console("arm-stuck", "stuck in a loop", SOON).unwrap();
            let guest = Guest::of(lab, "arm-stuck");
            stuck::assert_recorded(&guest, &guest.client_with_image());
        });
    }
}

/// Cases of the boot [`RECORDERS`], next to each other in the order of their names.
mod recorders {
    use super::*;

    #[test]
    #[ignore = "full: boots a real Xen"]
    fn arm_keys_open_a_guest_on_xen_and_nothing_else_does() {
        on(&RECORDERS, |lab| {
            keys::assert_guarded(Guest::of_recording(lab, "arm-keyed").address());
        });
    }

    #[test]
    #[ignore = "full: boots a real Xen"]
    fn arm_recordings_beside_that_from_the_boot_have_names() {
        on(&RECORDERS, |lab| {
            recordings::assert_three(&Guest::of_recording(lab, "arm-flight"));
        });
    }

    /// Beside two guests that work on the same processor.
    #[test]
    #[ignore = "full: boots a real Xen"]
    fn arm_time_that_others_take_is_told_as_stolen() {
        on(&RECORDERS, |lab| {
            let client = Guest::of_recording(lab, "arm-flight").client_with_image();
            // Again where the machine stood still while all of them rested.
            wait_until("a recording with stolen time", || {
                client.must(&["record", "3s", "--name", "stolen", "-o", "stolen.unikprof"]);
                let report = client.report("stolen.unikprof", &["--json"]);
                let report = report.expect_json();
                counters_add_up(&report);
                let [running, stolen, blocked] = accounting::times(&report);
                (stolen > (running + stolen + blocked) / 10).then_some(())
            });
        });
    }

    #[test]
    #[ignore = "full: boots a real Xen"]
    fn arm_panics_leave_the_last_seconds_on_the_console() {
        on(&RECORDERS, |lab| crash::assert_on_console(lab, "arm-crash"));
    }
}

/// Cases of the boot [`WORKING`], next to each other in the order of their names.
mod working {
    use super::*;

    #[test]
    #[ignore = "full: boots a real Xen"]
    fn arm_hot_functions_have_their_shares_order_and_callers() {
        on(&WORKING, |lab| {
            hot_spots::assert_shares(&Guest::of(lab, "arm").client_with_image(), &[]);
        });
    }

    #[test]
    #[ignore = "full: boots a real Xen"]
    fn arm_names_files_lines_and_instructions_are_those_of_the_source() {
        on(&WORKING, |lab| {
            let guest = Guest::of(lab, "arm");
            let client = guest.client_with_image();
            hot_spots::assert_names_and_lines(&client);
            let (address, image) = (guest.address().to_string(), client.image());
            let words = ["doctor", &address, "--image", image.to_str().unwrap()];
            client.run(&words).expect_code(0);
            let report = client.report("run.unikprof", &["--json", "--annotate", "december"]);
            let report = report.expect_json();
            let instructions = report["annotation"]["instructions"].as_array().unwrap();
            // `state ^= state << 13`, in the loop.
            let is_hot = |at: &&Value| at["self"].as_u64() > Some(0);
            let hot = instructions.iter().filter(is_hot);
            let mut texts = hot.map(|at| at["text"].as_str().unwrap());
            let is_shift = |text: &str| text.starts_with("eor ") && text.contains("lsl #13");
            assert!(texts.any(is_shift), "{instructions:#?}");
        });
    }

    /// Whether a share is near its true one: twice the width of its interval, and three points for
    /// an emulator that a busy host stops.
    fn is_near(shown: &Interval, truth: f64) -> bool {
        (shown.share - truth).abs() < 2.0 * (shown.high - shown.low) + 0.03
    }

    #[test]
    #[ignore = "full: boots a real Xen"]
    fn arm_known_shares_are_shown() {
        on(&WORKING, |lab| {
            let effort =
                known_shares::Effort { runs: 4, run_ns: 2_500_000_000, period_ns: PERIOD_NS };
            let found = shares::measure(&mut ordered(lab, "arm"), &effort).unwrap();
            println!("{found:#?}");
            for function in &found.functions {
                assert!(is_near(&function.shown, function.truth), "{function:?}");
            }
        });
    }

    /// Guards the random interval: in step with the load, a recording would see one half of it, and
    /// be off by 50 points.
    #[test]
    #[ignore = "full: boots a real Xen"]
    fn arm_loads_in_step_with_the_sampler_have_their_shares() {
        on(&WORKING, |lab| {
            let effort = step_lock::Effort { runs: 3, run_ns: 1_500_000_000, period_ns: PERIOD_NS };
            for step in [(1, 1), (1, 2)] {
                let found = step_lock::measure(&mut ordered(lab, "arm"), &effort, step, false);
                let found = found.unwrap();
                println!("{step:?}: {found:?}");
                assert!(is_near(&found.shown, found.truth), "{step:?}: {found:?}");
            }
        });
    }

    /// Ticks that fall due while PSTATE.I masks interrupts come when it is cleared: they are late,
    /// and not charged to what cleared it. A masked stretch lasts for five periods, as on x86-64.
    #[test]
    #[ignore = "full: boots a real Xen"]
    fn arm_masked_stretches_are_told() {
        on(&WORKING, |lab| {
            let effort = masked_events::Effort {
                stretches: 60,
                masked_ns: 5 * LONG_PERIOD_NS,
                open_ns: 2 * LONG_PERIOD_NS,
                period_ns: LONG_PERIOD_NS,
            };
            let found = masked_events::measure(&mut ordered(lab, "arm"), &effort).unwrap();
            let charged = masked_events::CHARGED_PERCENT_ON_XEN;
            assert!(found.is_told(charged), "{found:?}");
        });
    }

    /// Guards chains of frame records that are followed in circles, or shown as whole.
    #[test]
    #[ignore = "full: boots a real Xen"]
    fn arm_broken_chains_are_told() {
        on(&WORKING, |lab| {
            let effort = broken_chains::Effort { run_ns: 1_000_000_000, period_ns: PERIOD_NS };
            broken_chains::assert_each_is_told(&mut ordered(lab, "arm"), &effort);
        });
    }
}
