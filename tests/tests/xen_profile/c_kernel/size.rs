//! Bytes that the agent adds to the kernel: the same kernel linked without it, and with either archive.

use std::fs;

use object::{Object as _, ObjectSection as _, SectionKind};
use unikprof_tests::c_xen_guest::{Agent, build_c_xen_guest};

#[derive(Clone, Copy, Debug)]
struct Size {
    /// Code, constants and the tables for unwinding.
    text: u64,
    data: u64,
    /// Memory of zeros: no place in the image.
    bss: u64,
}

fn size(agent: Agent) -> Size {
    let image = fs::read(build_c_xen_guest(agent).unwrap()).unwrap();
    let image = object::File::parse(&*image).unwrap();
    let of = |kinds: &[SectionKind]| -> u64 {
        let sections = image.sections();
        sections
            .filter(|section| kinds.contains(&section.kind()))
            .map(|section| section.size())
            .sum()
    };
    Size {
        text: of(&[
            SectionKind::Text,
            SectionKind::ReadOnlyData,
            SectionKind::ReadOnlyString,
        ]),
        data: of(&[SectionKind::Data]),
        bss: of(&[SectionKind::UninitializedData]),
    }
}

/// Prints the rows of docs/BENCHMARKS.md. How large the archive may be is the archive's own test.
#[test]
fn the_agent_adds_code_and_its_tcp_more() {
    let without = size(Agent::Without);
    println!("kernel without the agent: {without:?}");
    let [streams, frames] = [Agent::Streams, Agent::Frames].map(|agent| {
        let with = size(agent);
        let (text, data, bss) = (
            with.text - without.text,
            with.data - without.data,
            with.bss - without.bss,
        );
        println!("with {agent:?}: {with:?}; it adds {text} text, {data} data, {bss} bss");
        text
    });
    assert!(0 < streams && streams < frames, "{streams} {frames}");
}
