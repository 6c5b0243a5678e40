//! Loads with known profiles, run by order, for the accuracy suite.
//!
//! A client of the port in `orders=PORT` sends a line, `WORD NAME=VALUE ...`. The guest executes it without a break
//! and answers `total=NS NAME=VALUE ...`, the true values; `total` is the running time from the order to the answer.
//! It answers `unknown` to an unknown order.
//!
//! | order | what the first vCPU does | what it answers |
//! |---|---|---|
//! | `shares ns=NS` | a dozen functions with known shares | ns of each |
//! | `leaves load=NAME ns=NS` | callers of shared leaf functions; `_` for a blank in the name | ns of each caller |
//! | `periodic period_ns=NS periods=N` | two halves of a period | ns of each |
//! | `slowdown percent=N ns=NS` | a function made slower, and a steady one | ns of each |
//! | `bursts count=N burst_ns=NS every_ns=NS gap_ns=NS` | works, then waits for its timer | ns of the bursts, and the gaps in them |
//! | `deep depth=N ns=NS` | works at the bottom of a stack | |
//! | `chain fault=NAME ns=NS` | works below a broken chain of frame pointers | |
//! | `masked count=N masked_ns=NS open_ns=NS` | works with events masked, then with events open | ns of each |
//! | `frameless ns=NS` | works below functions without a frame | ns below each caller |
//! | `waits count=N timer_ns=NS` | waits for its timer, then for a packet | ns blocked in each |
//! | `capture load=NAME samples=N` | captures `samples` samples of a leaf load, or of `frameless` | |
//!
//! Times are running times from Xen's runstate, unless the table says otherwise.

mod command;
mod frameless;
mod loads;
mod masked;
mod orders;
mod truth;
mod waits;

use alloc::string::String;

use command::Command;
pub(crate) use orders::OrderService;

/// Executes an order; returns the line to answer.
pub(crate) fn follow(order: &str) -> String {
    let command = Command(order);
    let told = match command.word() {
        "shares" => loads::shares(command),
        "leaves" => loads::leaves(command),
        "periodic" => loads::periodic(command),
        "slowdown" => loads::slowdown(command),
        "deep" => loads::deep(command),
        "chain" => loads::chain(command),
        "capture" => loads::capture(command),
        "frameless" => frameless::run(command),
        "masked" => masked::run(command),
        "bursts" => waits::bursts(command),
        "waits" => waits::waits(command),
        _ => None,
    };
    told.map_or_else(|| "unknown".into(), truth::Truth::end)
}
