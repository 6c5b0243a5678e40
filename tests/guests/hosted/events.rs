//! Events of every kind that a guest can cause, and more names than allowed: one empty, one too
//! long, and 44 too many.

use std::error::Error;
use std::thread;
use std::time::Duration;

use unikprof_agent::hosted::Guest;

use crate::stop::Stop;

const NAP: Duration = Duration::from_millis(50);

pub(crate) fn run(guest: &Guest, stop: &Stop) -> Result<(), Box<dyn Error>> {
    let vcpu = guest.register_thread()?;
    let agent = guest.agent();
    let (mark, outer, inner) =
        (agent.event_name("mark")?, agent.event_name("outer")?, agent.event_name("inner")?);
    let level = agent.event_name("level")?;
    let more = (0..296).map(|number| format!("name {number}"));
    let refused =
        more.chain([String::new(), "x".repeat(49)]).filter(|name| agent.event_name(name).is_err());
    println!("refused {}", refused.count());
    // Never ended: it stays open as long as the guest lives.
    agent.span_begin(outer);
    let mut number = 0;
    while !stop.is_set() {
        number += 1;
        agent.mark(mark, number);
        agent.counter(level, -(number as i64));
        // One inside the other, and one that ends after it.
        let around = agent.span_begin(inner);
        let across = agent.span_begin(inner);
        vcpu.block(|| thread::sleep(NAP));
        agent.span_end(inner, around);
        if number % 10 == 0 {
            agent.resume();
        }
        vcpu.block(|| thread::sleep(NAP));
        agent.span_end(inner, across);
    }
    Ok(())
}
