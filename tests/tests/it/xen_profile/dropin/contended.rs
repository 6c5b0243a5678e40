//! A kernel with the drop-in that works and waits, alone on a processor and beside a guest that
//! never blocks.

use serde_json::Value;
use unikprof_tests::lab::{Lab, LabConfig};

use super::{BOOT, client, guest, record};
use crate::xen_profile::harness::{Boot, Client, on};

const WAITS: &str = "c-dropin-waits";
const NEIGHBOUR: &str = "c-dropin-neighbour";

const CONTENDED: Boot = Boot {
    name: "a guest with the drop-in beside a busy one",
    config: || {
        let mut guests = [(WAITS, "10.0.2.50"), (NEIGHBOUR, "10.0.2.51")]
            .map(|(name, address)| guest(name, address, &[("access", "open")]));
        for guest in &mut guests {
            guest.processor = Some(1);
        }
        guests[1].command_line = "work=stuck".into();
        Ok(LabConfig { guests: guests.into(), ..LabConfig::default() })
    },
};

/// The division of time in some recordings of a mode.
#[derive(Debug, Clone, Copy, Default)]
struct Divided {
    elapsed_ns: f64,
    blocked_ns: f64,
    stolen_ns: f64,
    /// The samples of blocked time, as time; not known where blocked time is counted itself.
    told_ns: f64,
}

impl Divided {
    fn add(&mut self, report: &Value) {
        let vcpu = &report["vcpus"][0];
        let number = |value: &Value| value.as_u64().unwrap() as f64;
        self.elapsed_ns += number(&vcpu["elapsed_ns"]);
        self.blocked_ns += number(&vcpu["runstate"]["blocked_ns"]);
        self.stolen_ns += number(&vcpu["runstate"]["runnable_ns"]);
        let of_sample = match report["recording"]["mode"].as_str() {
            Some("wall") => number(&report["recording"]["period_ns"]),
            _ => 1.0,
        };
        self.told_ns += number(&report["counters"]["blocked"]) * of_sample;
    }

    fn shares(&self) -> [f64; 3] {
        [self.blocked_ns, self.stolen_ns, self.told_ns].map(|ns| ns / self.elapsed_ns)
    }
}

fn recorded(client: &Client, mode: &str) -> Divided {
    let mut all = Divided::default();
    let waits = |counters: &Value| counters["blocks"].as_u64() >= Some(200);
    (0..3).for_each(|_| all.add(&record(client, mode, waits)));
    all
}

/// The drop-in cannot disarm its timer in a wait, so a tick that is due there ends the wait, and
/// beside a neighbour the rest of it is stolen time. Without ticks, in mode `off-cpu`, none is. The
/// samples must tell what the run states say all the same.
#[test]
#[ignore = "full: boots a real Xen"]
fn waits_beside_a_neighbour_are_told_as_the_run_states_say() {
    on(&CONTENDED, |lab: &Lab| {
        let client = client(lab, WAITS);
        for (when, command) in [("alone", "pause"), ("beside a neighbour", "unpause")] {
            lab.dom0(&format!("xl {command} {NEIGHBOUR}"), BOOT).unwrap();
            for mode in ["off-cpu", "wall"] {
                let [blocked, stolen, told] = recorded(&client, mode).shares();
                println!(
                    "{when}, {mode}: {blocked:.3} blocked, {stolen:.3} stolen, {told:.3} told"
                );
                // Six deviations of 600 samples are a quarter.
                assert!((told / blocked - 1.0).abs() < 0.25, "{told} of {blocked}");
            }
        }
    });
}
