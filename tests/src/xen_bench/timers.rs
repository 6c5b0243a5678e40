//! A tick by the local APIC's timer, as the drop-in has it, beside one by VIRQ_TIMER, as the
//! integrated agent has it.
//!
//! The same kernel in C does the same work with either. It is recorded so fast that the next tick
//! is always due: its running time by the ticks is then what a tick takes, from interrupt to
//! interrupt. Stolen time is no running time.

use anyhow::{Result, bail};
use std::fmt::Write as _;
use std::thread;
use std::time::Duration;

use unikprof_link::connection::{Access, Address};
use unikprof_link::interrupt::Interrupt;
use unikprof_link::record::{Patience, Session, Settings};
use unikprof_profile::recording::{Reading, Recording};

use super::rig::{Mean, fetch};
use crate::c_xen_guest::{Agent, build_c_xen_guest};
use crate::lab::{GuestConfig, Lab, LabConfig};
use crate::profiled::{PROFILER_PORT, profiler_address};

const BY_VIRQ: &str = "by-virq";
const BY_APIC: &str = "by-apic";
const BOOT: Duration = Duration::from_secs(120);

pub(super) fn measure(rounds: u32, turn: Duration) -> Result<String> {
    let mut by_virq = GuestConfig::new(BY_VIRQ, build_c_xen_guest(Agent::Frames)?);
    by_virq.ports = vec![PROFILER_PORT];
    let mut by_apic = GuestConfig::new(BY_APIC, build_c_xen_guest(Agent::DropIn)?);
    by_apic.ports = vec![PROFILER_PORT];
    by_apic.interfaces = vec!["ip=10.0.2.97".into(), "ip=10.0.2.51".into()];
    by_apic.store = vec![
        ("data/unikprof/address".into(), "10.0.2.51/24".into()),
        ("data/unikprof/access".into(), "open".into()),
    ];
    let lab = Lab::start(LabConfig { guests: vec![by_virq, by_apic], ..LabConfig::default() })?;
    for name in [BY_VIRQ, BY_APIC] {
        lab.wait_for_console(name, "c-xen: at work", BOOT)?;
    }
    let mut found = [Vec::new(), Vec::new()];
    for _ in 0..rounds {
        for (name, ticks_ns) in [BY_VIRQ, BY_APIC].iter().zip(&mut found) {
            ticks_ns.push(tick_ns(&lab, name, turn)?);
        }
    }
    let [by_virq, by_apic] = found.map(|values| Mean::of(&values));
    let mut table = "\n### A tick by either timer\n\nThe kernel in C, recorded at the highest \
                     rate; running time by ticks, mean and \
         95 % interval.\n\n| VIRQ_TIMER, set by a hypercall | local APIC, one-shot | ratio |\n\
         |---|---|---|\n"
        .to_owned();
    // Writing to a string does not fail.
    let _ = writeln!(
        table,
        "| {:.1} µs ± {:.1} | {:.1} µs ± {:.1} | {:.2} |",
        by_virq.mean / 1e3,
        by_virq.half / 1e3,
        by_apic.mean / 1e3,
        by_apic.half / 1e3,
        by_apic.mean / by_virq.mean
    );
    Ok(table)
}

/// The running time of a tick, in ns.
fn tick_ns(lab: &Lab, name: &str, turn: Duration) -> Result<f64> {
    let session = || -> Result<Session> {
        let address = profiler_address(lab, name)?;
        let address = Address::new(address.ip().to_string(), address.port());
        let (patience, interrupt) = (Patience::default(), Interrupt::default());
        Ok(Session::with_access(address, Access::Open, patience, interrupt)?)
    };
    let settings = Settings {
        name: name.into(),
        period_ns: unikprof_agent::MIN_PERIOD_NS,
        // It ends by itself: a guest that does nothing but ticks may not hear who wants to stop it.
        duration_ns: turn.as_nanos() as u64,
        ..Settings::default()
    };
    session()?.start(&settings)?;
    thread::sleep(turn * 2);
    let path = lab.folder().join("timers.unikprof");
    fetch(&mut session()?, &path)?;
    let recording = Recording::open(&path, Reading::Strict)?;
    let running_ns = recording.profile.vcpus().first().and_then(|vcpu| vcpu.runstate.running_ns);
    match (running_ns, recording.profile.counters().ticks) {
        (Some(running_ns), ticks @ 1000..) => Ok(running_ns as f64 / ticks as f64),
        other => bail!("{name}: running time and ticks {other:?}"),
    }
}
