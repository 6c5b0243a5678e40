//! Invalid registrations, and the agent's errors for them.

use std::error::Error;
use std::thread;
use std::time::Duration;

use unikprof_agent::hosted::Guest;

use crate::stop::Stop;

pub(crate) fn run(guest: &Guest, stop: &Stop) -> Result<(), Box<dyn Error>> {
    let vcpu = guest.register_thread()?;
    println!("again: {}", told(guest));
    let elsewhere = thread::scope(|scope| scope.spawn(|| told(guest)).join());
    println!("too many: {}", elsewhere.unwrap_or_else(|panic| std::panic::resume_unwind(panic)));
    drop(vcpu);
    println!("after the first has left: {}", told(guest));
    while !stop.is_set() {
        thread::sleep(Duration::from_millis(20));
    }
    Ok(())
}

fn told(guest: &Guest) -> String {
    match guest.register_thread() {
        Ok(vcpu) => format!("vCPU {}", vcpu.id()),
        Err(error) => error.to_string(),
    }
}
