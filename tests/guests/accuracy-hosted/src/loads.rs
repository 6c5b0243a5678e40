//! Loads that work continuously.

use std::error::Error;
use std::hint::black_box;

use unikprof_accuracy_loads::chains::{self, Fault};
use unikprof_accuracy_loads::leaves::{Buffers, Load};
use unikprof_accuracy_loads::meter::Meter;
use unikprof_accuracy_loads::{depth, periodic as in_step, shares as dozen, slowdown as slower};

use crate::clock::running_ns;
use crate::command::{Command, Truth};
use crate::frameless as c;

type Answer = Result<String, Box<dyn Error>>;

/// `shares ns=NS`: a dozen functions; answers the ns of each.
pub(crate) fn shares(command: &Command<'_>) -> Answer {
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
    Ok(truth.end())
}

/// `leaves load=NAME ns=NS`: one of the leaf loads (with `_` for a blank in its name); answers the ns of each caller.
pub(crate) fn leaves(command: &Command<'_>) -> Answer {
    let ns = command.number("ns")?;
    let load = leaf_load(command)?;
    let mut clock = running_ns;
    let mut meter = Meter::new(&mut clock);
    let mut buffers = Buffers::new();
    let mut truth = Truth::begin();
    while truth.ran_ns() < ns {
        load.turn(&mut meter, &mut clock, &mut buffers);
    }
    for (caller, ns) in load.callers.iter().zip(meter.ns()) {
        truth.tell(caller.name, *ns);
    }
    Ok(truth.end())
}

/// The load of `load=NAME`.
pub(crate) fn leaf_load(command: &Command<'_>) -> Result<Load, Box<dyn Error>> {
    let name = command.text("load")?.replace('_', " ");
    Load::named(&name).ok_or_else(|| format!("`{name}` is no leaf load").into())
}

/// `periodic period_ns=NS periods=N`: answers the ns of each half of the periods.
pub(crate) fn periodic(command: &Command<'_>) -> Answer {
    let (period_ns, periods) = (command.number("period_ns")?, command.number("periods")?);
    let mut truth = Truth::begin();
    let ran = in_step::run(&mut running_ns, period_ns, periods);
    for (name, ns) in in_step::FUNCTIONS.iter().zip(ran) {
        truth.tell(name, ns);
    }
    Ok(truth.end())
}

/// `slowdown percent=N ns=NS`: a function that is slower by `percent`, and an unchanged one.
pub(crate) fn slowdown(command: &Command<'_>) -> Answer {
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
    Ok(truth.end())
}

/// `deep depth=N ns=NS`: work below a recursion.
pub(crate) fn deep(command: &Command<'_>) -> Answer {
    let (depth, ns) = (command.number("depth")?, command.number("ns")?);
    let mut truth = Truth::begin();
    let began_ns = running_ns();
    while truth.ran_ns() < ns {
        black_box(depth::descend(black_box(depth), 40_000));
    }
    truth.tell("descend", running_ns() - began_ns);
    Ok(truth.end())
}

/// `chain fault=NAME ns=NS`: work below a chain with a fault, which is named after its function.
pub(crate) fn chain(command: &Command<'_>) -> Answer {
    let (name, ns) = (command.text("fault")?, command.number("ns")?);
    let fault = Fault::ALL
        .into_iter()
        .find(|fault| fault.function() == name)
        .ok_or_else(|| format!("`{name}` is no fault"))?;
    let mut truth = Truth::begin();
    let began_ns = running_ns();
    while truth.ran_ns() < ns {
        black_box(chains::run(fault, black_box(40_000)));
    }
    truth.tell(name, running_ns() - began_ns);
    Ok(truth.end())
}

/// `frameless ns=NS`: C code without frame pointers between Rust code with frame pointers.
pub(crate) fn frameless(command: &Command<'_>) -> Answer {
    let ns = command.number("ns")?;
    let mut truth = Truth::begin();
    let began_ns = running_ns();
    while truth.ran_ns() < ns {
        black_box(c::turn(black_box(1)));
    }
    truth.tell("turn", running_ns() - began_ns);
    Ok(truth.end())
}
