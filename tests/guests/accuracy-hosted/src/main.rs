//! A process that runs the accuracy suite's loads and reports their true values.
//!
//! It prints `listening on ADDRESS`, then executes each line of its standard input and answers with a line; see
//! [`command`]. Between commands it blocks and is not sampled. It ends when its standard input ends, so that it does
//! not outlive the test.

mod capture;
mod clock;
mod command;
mod frameless;
mod loads;
mod masked;
mod waits;

use std::error::Error;
use std::io;

use unikprof_agent::Access;
use unikprof_agent::hosted::{self, Config, Vcpu};

use command::Command;

fn main() -> Result<(), Box<dyn Error>> {
    let guest = hosted::start(Config {
        memory_bytes: 4 << 20,
        guest_name: Some("accuracy".into()),
        ..Config::new(Access::Open)
    })?;
    let vcpu = guest.register_thread()?;
    println!("listening on {}", guest.address());
    while let Some(line) = next_line(&vcpu)? {
        println!("{}", run(&Command::parse(&line)?, &vcpu)?);
    }
    Ok(())
}

fn next_line(vcpu: &Vcpu) -> io::Result<Option<String>> {
    let mut line = String::new();
    let length = vcpu.block(|| io::stdin().read_line(&mut line))?;
    Ok((length > 0).then_some(line))
}

/// Executes a command; returns the answer.
fn run(command: &Command<'_>, vcpu: &Vcpu) -> Result<String, Box<dyn Error>> {
    Ok(match command.word {
        "shares" => loads::shares(command)?,
        "leaves" => loads::leaves(command)?,
        "periodic" => loads::periodic(command)?,
        "slowdown" => loads::slowdown(command)?,
        "deep" => loads::deep(command)?,
        "chain" => loads::chain(command)?,
        "frameless" => loads::frameless(command)?,
        "bursts" => waits::bursts(command, vcpu)?,
        "waits" => waits::waits(command, vcpu)?,
        "masked" => masked::run(command)?,
        "capture" => capture::run(command)?,
        word => return Err(format!("`{word}` is no command of this guest").into()),
    })
}
