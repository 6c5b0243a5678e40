//! Whether waiting is counted where the kernel blocks, by Xen's account of it.

use super::{image, on_kernel, report};
use crate::xen_profile::harness::{Client, wait_until};

/// Blocked time lies under the thread that waited, the baker's sleep above all, and an idle guest
/// has no ticks.
#[test]
#[ignore = "full: boots a real Xen"]
fn blocked_time_lies_under_the_thread_that_waits() {
    on_kernel(|client| {
        let image = image().to_str().unwrap();
        // Again where the machine stood still in another's wait.
        wait_until("a recording with the baker's waits above all", || {
            client.record("3s", &["--mode", "off-cpu", "--image", image]);
            are_the_bakers(client).then_some(())
        });
    });
}

/// Asserts that the waits are Xen's, each under a thread; answers whether most are the baker's.
fn are_the_bakers(client: &Client) -> bool {
    let report = report(client);
    assert_eq!(report["counters"]["ticks"], 0, "{:#}", report["counters"]);
    let vcpu = &report["vcpus"][0];
    let blocked = vcpu["runstate"]["blocked_ns"].as_u64().unwrap();
    assert!(blocked > 0, "{vcpu:#}");
    let stacks = client.folded(&["--no-inlines"]);
    let all: u64 = stacks.iter().map(|(_, ns)| ns).sum();
    let under = |begin: &str| -> u64 {
        let below = |(stack, ns): &(String, u64)| {
            (stack.starts_with(begin) && stack.ends_with(";block")).then_some(*ns)
        };
        stacks.iter().filter_map(below).sum()
    };
    // Xen's account begins and ends a little beside the recording's.
    assert!(all.abs_diff(blocked) < blocked / 50 + 20_000_000, "{blocked} {stacks:#?}");
    assert_eq!(
        under("thread_begin;baker;") + under("thread_begin;miller;") + under("boot_entry;"),
        all,
        "{stacks:#?}"
    );
    under("thread_begin;baker;") * 2 > all
}
