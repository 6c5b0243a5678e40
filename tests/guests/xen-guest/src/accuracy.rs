//! Loads with known profiles, run by order, for the accuracy suite.
//!
//! A client of the port in `orders=PORT` sends a line, `WORD NAME=VALUE ...`. The guest executes it
//! without a break and answers `total=NS NAME=VALUE ...`, the true values; `total` is the running
//! time from the order to the answer. It answers `unknown` to an unknown order.
//!
//! Beside those of [`orders`](unikprof_accuracy_loads::orders):
//!
//! | order | what the first vCPU does | what it answers |
//! |---|---|---|
//! | `masked count=N masked_ns=NS open_ns=NS` | works with events masked, then with events open | |
//! | `waits count=N timer_ns=NS` | waits for its timer, then for a packet | ns blocked in each |
//! | `capture load=NAME samples=N` | captures `samples` samples of a leaf load, or of `frameless` (x86-64) | |
//!
//! Times are running times from Xen's runstate, unless the table says otherwise.

mod clock;
#[cfg(target_arch = "x86_64")]
mod frameless;
mod masked;
mod service;
mod waits;

use alloc::string::String;

use unikprof_accuracy_loads::orders::{self, Order, Truth};

use crate::capture as captured;
use crate::vcpus::FIRST;
use crate::{idle, timer};
use clock::running_ns;
pub(crate) use service::OrderService;

/// Executes an order; returns the line to answer.
pub(crate) fn follow(order: &str) -> String {
    let order = Order(order);
    let now_ns = || timer::now_ns(FIRST);
    let told = match order.word() {
        "capture" => capture(order),
        "masked" => masked::run(order),
        "bursts" => orders::bursts(order, running_ns, now_ns, |until_ns| {
            idle::wait_for_timer(until_ns);
        }),
        "waits" => waits::run(order),
        _ => orders::run(order, running_ns),
    };
    told.map_or_else(|| "unknown".into(), Truth::end)
}

/// Captures samples; the expected result is the samples themselves.
fn capture(order: Order<'_>) -> Option<Truth> {
    let samples = order.number("samples")?;
    let truth = Truth::begin(running_ns);
    #[cfg(target_arch = "x86_64")]
    if order.text("load")? == "frameless" {
        captured::take(samples, || _ = frameless::turn());
        return Some(truth);
    }
    captured::take(samples, orders::leaf_turn(order)?);
    Some(truth)
}
