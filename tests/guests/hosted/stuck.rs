//! A guest that hangs: it neither polls nor calls the agent nor returns.

use std::error::Error;

use unikprof_agent::hosted::Guest;

use crate::stop::Stop;

pub(crate) fn run(guest: &Guest, _: &Stop) -> Result<(), Box<dyn Error>> {
    let _vcpu = guest.register_thread()?;
    hang()
}

#[inline(never)]
#[allow(clippy::empty_loop, reason = "this is the hang that is to be found")]
fn hang() -> ! {
    loop {}
}
