//! Loads that work continuously.

use alloc::boxed::Box;
use core::hint::black_box;

use unikprof_accuracy_loads::chains::{self, Fault};
use unikprof_accuracy_loads::leaves::{Buffers, Load};
use unikprof_accuracy_loads::meter::Meter;
use unikprof_accuracy_loads::{depth, periodic as in_step, shares as dozen, slowdown as slower};

use super::command::Command;
use super::frameless;
use super::truth::{Truth, running_ns};
use crate::capture as captured;

/// The work at the bottom of a stack, in steps of a few ns: a fraction of a millisecond.
const STEPS: u32 = 40_000;
/// The deepest stack that fits: a frame takes about 50 bytes, and the stack has 256 KiB.
const DEEPEST: u32 = 1_000;

pub(super) fn shares(command: Command<'_>) -> Option<Truth> {
    let ns = command.number("ns")?;
    let mut clock = running_ns;
    let mut meter = Meter::new(&mut clock);
    let mut truth = Truth::begin();
    let mut state = 1;
    while truth.ran_ns() < ns {
        state = dozen::turn(&mut meter, &mut clock, state);
    }
    for ((name, _), ns) in dozen::FUNCTIONS.iter().zip(meter.ns()) {
        truth.tell(name, *ns);
    }
    Some(truth)
}

pub(super) fn leaves(command: Command<'_>) -> Option<Truth> {
    let ns = command.number("ns")?;
    let load = leaf_load(command)?;
    let mut clock = running_ns;
    let mut meter = Meter::new(&mut clock);
    let mut buffers = Box::new(Buffers::new());
    let mut truth = Truth::begin();
    while truth.ran_ns() < ns {
        load.turn(&mut meter, &mut clock, &mut buffers);
    }
    for (caller, ns) in load.callers.iter().zip(meter.ns()) {
        truth.tell(caller.name, *ns);
    }
    Some(truth)
}

fn leaf_load(command: Command<'_>) -> Option<Load> {
    Load::named(&command.text("load")?.replace('_', " "))
}

pub(super) fn periodic(command: Command<'_>) -> Option<Truth> {
    let (period_ns, periods) = (command.number("period_ns")?, command.number("periods")?);
    let mut truth = Truth::begin();
    let ran = in_step::run(&mut running_ns, period_ns, periods);
    for (name, ns) in in_step::FUNCTIONS.iter().zip(ran) {
        truth.tell(name, ns);
    }
    Some(truth)
}

pub(super) fn slowdown(command: Command<'_>) -> Option<Truth> {
    let (percent, ns) = (command.number("percent")?, command.number("ns")?);
    let mut clock = running_ns;
    let mut meter = Meter::new(&mut clock);
    let mut truth = Truth::begin();
    let mut state = 1;
    while truth.ran_ns() < ns {
        state = slower::turn(&mut meter, &mut clock, state, percent);
    }
    for (name, ns) in slower::FUNCTIONS.iter().zip(meter.ns()) {
        truth.tell(name, *ns);
    }
    Some(truth)
}

pub(super) fn deep(command: Command<'_>) -> Option<Truth> {
    let (depth, ns) = (command.number("depth")?, command.number("ns")?);
    let truth = Truth::begin();
    while truth.ran_ns() < ns {
        black_box(depth::descend(u32::min(depth, DEEPEST), STEPS));
    }
    Some(truth)
}

pub(super) fn chain(command: Command<'_>) -> Option<Truth> {
    let (name, ns) = (command.text("fault")?, command.number("ns")?);
    let fault = Fault::ALL
        .into_iter()
        .find(|fault| fault.function() == name)?;
    let truth = Truth::begin();
    while truth.ran_ns() < ns {
        black_box(chains::run(fault, black_box(STEPS)));
    }
    Some(truth)
}

/// Captures samples; the expected result is the samples themselves.
pub(super) fn capture(command: Command<'_>) -> Option<Truth> {
    let samples = command.number("samples")?;
    if command.text("load")? == "frameless" {
        let truth = Truth::begin();
        captured::take(samples, || {
            frameless::turn();
        });
        return Some(truth);
    }
    let load = leaf_load(command)?;
    let mut clock = || 0;
    let mut meter = Meter::new(&mut clock);
    let mut buffers = Box::new(Buffers::new());
    let truth = Truth::begin();
    captured::take(samples, || load.turn(&mut meter, &mut clock, &mut buffers));
    Some(truth)
}
