//! A process that runs the accuracy suite's loads and reports their true values.
//!
//! It prints `listening on ADDRESS`, then executes each line of its standard input and answers with
//! a line: see [`orders`], and the modules for its own orders. Between orders it blocks and is not
//! sampled. It ends when its standard input ends, so that it does not outlive the test.

mod capture;
mod clock;
mod frameless;
mod masked;
mod waits;

use std::error::Error;
use std::time::Duration;
use std::{io, thread};

use unikprof_accuracy_loads::orders::{self, Order};
use unikprof_agent::Access;
use unikprof_agent::hosted::{self, Config, Vcpu};

use clock::{now_ns, running_ns};

fn main() -> Result<(), Box<dyn Error>> {
    let guest = hosted::start(Config {
        vcpus: 1,
        memory_bytes: 4 << 20,
        guest_name: Some("accuracy".into()),
        ..Config::new(Access::Open)
    })?;
    let vcpu = guest.register_thread()?;
    println!("listening on {}", guest.address());
    while let Some(line) = next_line(&vcpu)? {
        println!("{}", run(Order(&line), &vcpu)?);
    }
    Ok(())
}

fn next_line(vcpu: &Vcpu) -> io::Result<Option<String>> {
    let mut line = String::new();
    let length = vcpu.block(|| io::stdin().read_line(&mut line))?;
    Ok((length > 0).then_some(line))
}

fn run(order: Order<'_>, vcpu: &Vcpu) -> Result<String, Box<dyn Error>> {
    let truth = match order.word() {
        "bursts" => orders::bursts(order, running_ns, now_ns, |until_ns| {
            let left_ns = until_ns.saturating_sub(now_ns());
            vcpu.block(|| thread::sleep(Duration::from_nanos(left_ns)));
        }),
        "waits" => waits::run(order, vcpu)?,
        "masked" => masked::run(order)?,
        "capture" => capture::run(order)?,
        _ => orders::run(order, running_ns),
    };
    let wrong = || format!("`{}` is no order of this guest, or lacks a value", order.0);
    Ok(truth.ok_or_else(wrong)?.end())
}
