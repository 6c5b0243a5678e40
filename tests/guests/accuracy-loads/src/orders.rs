//! Orders, by which a guest is told to run a load, and its answers.
//!
//! An order is a line `WORD NAME=VALUE ...`. Its answer is `total=NS NAME=VALUE ...`: the true
//! values of the load that ran; `total` is the running time from the order to the answer.
//!
//! | order | what the guest does | what it answers |
//! |---|---|---|
//! | `shares ns=NS` | a dozen functions with known shares | ns of each |
//! | `leaves load=NAME ns=NS` | callers of shared leaf functions; `_` for a blank in the name | |
//! | `periodic period_ns=NS periods=N` | two halves of a period | ns of each |
//! | `slowdown percent=N ns=NS` | a function made slower, and a steady one | ns of each |
//! | `deep depth=N ns=NS` | works at the bottom of a stack | |
//! | `chain fault=NAME ns=NS` | works below a broken chain of frame pointers | |
//! | `steps ns=NS` | steps of the same length | their number |
//! | `bursts count=N burst_ns=NS every_ns=NS gap_ns=NS` | works, then waits | ns of the bursts, and the gaps in them |

use alloc::boxed::Box;
use alloc::format;
use alloc::string::String;
use core::fmt::Write as _;
use core::hint::black_box;
use core::str::FromStr;

use crate::chains::{self, Fault};
use crate::leaves::{Buffers, Load};
use crate::meter::Meter;
use crate::work::spin;
use crate::{bursts as short, depth, periodic, shares, slowdown};

/// The work at the bottom of a stack, in steps of a few ns: a fraction of a millisecond.
const TURN: u32 = 40_000;
/// The deepest stack that fits everywhere: a frame takes about 50 bytes.
const DEEPEST: u32 = 1_000;

/// The name of the number of steps.
pub const STEPS: &str = "steps";

/// A clock in ns.
pub type Clock = fn() -> u64;

/// A parsed order.
#[derive(Clone, Copy, Debug)]
pub struct Order<'a>(pub &'a str);

impl<'a> Order<'a> {
    /// The load's name.
    pub fn word(self) -> &'a str {
        self.0.split_ascii_whitespace().next().unwrap_or_default()
    }

    /// The value of this name as text.
    pub fn text(self, name: &str) -> Option<&'a str> {
        self.0.split_ascii_whitespace().find_map(|word| word.strip_prefix(name)?.strip_prefix('='))
    }

    /// The value of this name as a number.
    pub fn number<T: FromStr>(self, name: &str) -> Option<T> {
        self.text(name)?.parse().ok()
    }

    fn leaf_load(self) -> Option<Load> {
        Load::named(&self.text("load")?.replace('_', " "))
    }
}

/// An answer being made; its total is measured from [`Truth::begin`] on.
#[derive(Debug)]
pub struct Truth {
    clock: Clock,
    began_ns: u64,
    values: String,
}

impl Truth {
    /// Starts the measurement by the clock of running time.
    pub fn begin(clock: Clock) -> Self {
        Self { clock, began_ns: clock(), values: String::new() }
    }

    /// The running time since then, in ns.
    pub fn ran_ns(&self) -> u64 {
        (self.clock)().wrapping_sub(self.began_ns)
    }

    /// Adds the true value of `name`.
    pub fn tell(&mut self, name: &str, value: u64) {
        // Writing to a string cannot fail.
        let _ = write!(self.values, " {name}={value}");
    }

    /// The answer.
    pub fn end(self) -> String {
        format!("total={}{}", self.ran_ns(), self.values)
    }
}

/// Runs a load that works continuously; `None` if the order is another, or lacks a value.
pub fn run(order: Order<'_>, mut clock: Clock) -> Option<Truth> {
    let mut truth = Truth::begin(clock);
    let clock = &mut clock;
    match order.word() {
        "shares" => {
            let ns = order.number("ns")?;
            let (mut meter, mut state) = (Meter::new(clock), 1);
            while truth.ran_ns() < ns {
                state = shares::turn(&mut meter, clock, state);
            }
            for ((name, _), ns) in shares::FUNCTIONS.iter().zip(meter.ns()) {
                truth.tell(name, *ns);
            }
        }
        "leaves" => {
            let (ns, load) = (order.number("ns")?, order.leaf_load()?);
            let (mut meter, mut buffers) = (Meter::new(clock), Box::new(Buffers::new()));
            while truth.ran_ns() < ns {
                load.turn(&mut meter, clock, &mut buffers);
            }
        }
        "periodic" => {
            let (period_ns, periods) = (order.number("period_ns")?, order.number("periods")?);
            let ran = periodic::run(clock, period_ns, periods);
            for (name, ns) in periodic::FUNCTIONS.iter().zip(ran) {
                truth.tell(name, ns);
            }
        }
        "slowdown" => {
            let (percent, ns) = (order.number("percent")?, order.number("ns")?);
            let (mut meter, mut state) = (Meter::new(clock), 1);
            while truth.ran_ns() < ns {
                state = slowdown::turn(&mut meter, clock, state, percent);
            }
            for (name, ns) in slowdown::FUNCTIONS.iter().zip(meter.ns()) {
                truth.tell(name, *ns);
            }
        }
        "deep" => {
            let (depth, ns) = (order.number("depth")?, order.number("ns")?);
            while truth.ran_ns() < ns {
                black_box(depth::descend(u32::min(depth, DEEPEST), TURN));
            }
        }
        "chain" => {
            let (name, ns) = (order.text("fault")?, order.number("ns")?);
            let mut faults = Fault::ALL.into_iter();
            let fault = faults.find(|fault| fault.function() == name)?;
            while truth.ran_ns() < ns {
                black_box(chains::run(fault, black_box(TURN)));
            }
        }
        "steps" => {
            let ns = order.number("ns")?;
            let (mut steps, mut state) = (0, 1);
            while truth.ran_ns() < ns {
                state = black_box(spin(state, TURN, 211));
                steps += u64::from(TURN);
            }
            truth.tell(STEPS, steps);
        }
        _ => return None,
    }
    Some(truth)
}

/// Runs the order `bursts`, by clocks of running time and of all time; `wait_until` waits for a
/// time of the latter.
pub fn bursts(
    order: Order<'_>,
    running_ns: Clock,
    now_ns: Clock,
    mut wait_until: impl FnMut(u64),
) -> Option<Truth> {
    let (count, burst_ns): (u64, u64) = (order.number("count")?, order.number("burst_ns")?);
    let (every_ns, gap_ns): (u64, u64) = (order.number("every_ns")?, order.number("gap_ns")?);
    let mut truth = Truth::begin(running_ns);
    let begin_ns = now_ns();
    let mut worked_ns = 0;
    let mut gaps = short::Gaps::new(gap_ns, running_ns());
    for burst in 1..=count {
        worked_ns += short::burst(&mut || gaps.note(running_ns()), burst_ns);
        wait_until(begin_ns.saturating_add(burst.saturating_mul(every_ns)));
    }
    truth.tell(short::FUNCTION, worked_ns);
    truth.tell("gap_ns", gaps.ns);
    truth.tell("gaps", gaps.count);
    Some(truth)
}

/// A turn of the leaf load that the order names, to be captured: the expected result is the samples
/// themselves, so a clock that costs nothing is enough.
pub fn leaf_turn(order: Order<'_>) -> Option<impl FnMut() + Send + use<>> {
    let load = order.leaf_load()?;
    let mut clock = || 0;
    let mut meter = Meter::new(&mut clock);
    let mut buffers = Box::new(Buffers::new());
    Some(move || load.turn(&mut meter, &mut clock, &mut buffers))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Guards an order whose values are taken for others, which would run for ever or not at all.
    #[test]
    fn an_order_has_its_values() {
        let order = Order("slowdown percent=50 ns=7 load=small_functions");
        assert_eq!((order.word(), order.number("ns")), ("slowdown", Some(7)));
        assert_eq!(order.number::<u32>("cent"), None);
        assert!(order.leaf_load().is_some());
        let clock = || 0;
        for none in ["", "shares", "shares ns=many", "chain fault=x ns=0", "none ns=0"] {
            assert!(run(Order(none), clock).is_none(), "{none}");
        }
        let answer = run(Order("shares ns=0"), clock).map(Truth::end);
        assert!(answer.is_some_and(|answer| answer.starts_with("total=0 alder=0 ")));
    }
}
