//! Whether a recording of the kernel in C says what it did: functions, lines, callers.

use super::{on_kernel, record, report};
use crate::xen_profile::harness::time::{expect_line_of, sum};
use crate::xen_profile::harness::wait_until;

const SOURCE: &str = include_str!("../../../../guests/c-xen/work.c");

/// The functions that work without masking events, with their shares of that and their callers.
/// `grind` is a leaf, for which gcc makes no frame: its caller comes from the caller table.
const WORKERS: [(&str, f64, [&str; 3]); 2] = [
    ("grind", 5.0 / 8.0, ["mill", "miller", "thread_begin"]),
    ("knead", 3.0 / 8.0, ["bake", "baker", "thread_begin"]),
];

const SAMPLES: u64 = 1_000;

/// So many lie in the workers, in as many recordings as it takes. The rest is what served this
/// client, and on a busy machine the samples that came late, whose place is not known.
const IN_WORKERS: u64 = SAMPLES / 3;

/// The largest allowed error of a measured share: five standard deviations of so many samples.
const TOLERANCE: f64 = 0.14;

#[test]
#[ignore = "full: boots a real Xen"]
fn c_functions_have_their_names_shares_and_lines() {
    on_kernel(|client| {
        let mut own = [0.0; 2];
        let mut all = 0.0;
        let report = wait_until("samples of the workers", || {
            record(client, SAMPLES);
            let report = report(client);
            let found = WORKERS.map(|(name, ..)| sum(&report, name, "self"));
            for (own, found) in own.iter_mut().zip(found) {
                *own += found as f64;
            }
            all = own.iter().sum::<f64>();
            // Each has a line in the last one.
            (all >= IN_WORKERS as f64 && !found.contains(&0)).then_some(report)
        });
        for ((name, share, _), own) in WORKERS.iter().zip(own) {
            let mut functions = report["functions"].as_array().unwrap().iter();
            let function = functions.find(|function| function["name"] == *name);
            let function = function.unwrap_or_else(|| panic!("no `{name}`: {report:#}"));
            let measured = own / all;
            assert!((measured - share).abs() < TOLERANCE, "{name}: {measured}");
            expect_line_of(function, name, "c-xen/work.c", SOURCE);
        }
    });
}

/// Guards against a stack pointer, frame pointer or stack bounds that the kernel's entry gets
/// wrong, against a chain that does not end with its thread, and against the lost caller of a leaf.
#[test]
#[ignore = "full: boots a real Xen"]
fn callers_are_those_of_the_thread_that_ran() {
    on_kernel(|client| {
        let (mut right, mut worked) = (0, 0);
        let stacks = wait_until("samples of the workers", || {
            record(client, SAMPLES);
            let stacks = client.folded(&["--no-inlines"]);
            for (stack, count) in &stacks {
                let mut frames = stack.rsplit(';');
                let leaf = frames.next().unwrap();
                if let Some((_, _, above)) = WORKERS.iter().find(|(name, ..)| *name == leaf) {
                    worked += count;
                    right += count * u64::from(frames.eq(above.iter().copied()));
                }
            }
            (worked >= IN_WORKERS).then_some(stacks)
        });
        // A sample at the one instruction before a thread's frame is complete may lack a caller.
        assert!(right * 100 >= worked * 98, "{right} of {worked}: {stacks:#?}");
        // What serves the client runs on the boot's stack, and is marked as the agent's own.
        let own = "[unikprof agent];boot_entry;kernel_main;profiler_serve;";
        assert!(stacks.iter().any(|(stack, _)| stack.starts_with(own)), "{stacks:#?}");
    });
}
