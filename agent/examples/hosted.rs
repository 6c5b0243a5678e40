//! A hosted guest with one hot function: the smallest program that can be profiled.
//!
//! ```text
//! cargo run --release -p unikprof-agent --features hosted --example hosted
//! unikprof-client connect 127.0.0.1:7777 record 5s
//! ```
use std::hint::black_box;

use unikprof_agent::Access;
use unikprof_agent::hosted::{self, Config, Listen};

fn main() -> Result<(), hosted::Error> {
    let agent =
        hosted::start(Config { listen: Listen::Loopback(7777), ..Config::new(Access::Open) })?;
    let _vcpu = agent.register_thread()?;
    println!("listening on {}", agent.address());
    loop {
        black_box(collatz(black_box(837_799)));
    }
}

#[inline(never)]
fn collatz(mut number: u64) -> u32 {
    let mut steps = 0;
    while number > 1 {
        number = if number.is_multiple_of(2) { number / 2 } else { 3 * number + 1 };
        steps += 1;
    }
    steps
}
