//! A load that reads the clock all the time: nearly all of it runs in the code that Linux maps into
//! every process.

use std::error::Error;
use std::hint::black_box;
use std::time::Instant;

use unikprof_agent::hosted::Guest;

use crate::stop::Stop;

pub(crate) fn run(guest: &Guest, stop: &Stop) -> Result<(), Box<dyn Error>> {
    let _vcpu = guest.register_thread()?;
    while !stop.is_set() {
        for _ in 0..1_000 {
            black_box(Instant::now());
        }
    }
    Ok(())
}
