//! Bytes that the agent adds to the kernel: the same kernel linked without it, and with either
//! archive.

use unikprof_tests::c_xen_guest::{Agent, build_c_xen_guest};
use unikprof_tests::xen_bench::size::sizes;

/// Text, data and bss.
fn size(agent: Agent) -> [u64; 3] {
    let sizes = sizes(&build_c_xen_guest(agent).unwrap()).unwrap();
    [sizes.text, sizes.data, sizes.bss]
}

/// Prints the rows of docs/evidence/benchmarks.md. How large the archive may be is the archive's own
/// test.
#[test]
#[ignore = "full: boots a real Xen"]
fn the_agent_adds_code_and_its_tcp_more() {
    let without = size(Agent::Without);
    println!("text, data and bss of the kernel without the agent: {without:?}");
    let [streams, frames] = [Agent::Streams, Agent::Frames].map(|agent| {
        let with = size(agent);
        let added = [0, 1, 2].map(|at| with[at] - without[at]);
        println!("with {agent:?}: {with:?}; it adds {added:?}");
        added[0]
    });
    assert!(0 < streams && streams < frames, "{streams} {frames}");
}
