/// The code around the Rust of docs/guide/rust-more.md, in a guest.
use std::error::Error;
use std::mem::MaybeUninit;

use unikprof_agent::xen::Ticks;
use unikprof_agent::{Access, Agent, BootRecording, CrashLines, Platform, Service};
use xen_sys_lite::Hypercall;

type Result<T> = std::result::Result<T, Box<dyn Error>>;

fn restored<H: Hypercall>(ticks: &Ticks<'_, '_, H>) {
//= 1
//= 2
}

fn recorder<'m, P: Platform>(
    agent: Agent<'m, P>,
    ring: &'m mut [MaybeUninit<u8>],
    access: Access<'_>,
) -> Result<()> {
//= 3
    Ok(())
}

trait Console {
    fn write(&mut self, line: &str);
}

fn crash<P: Platform>(agent: &Agent<'_, P>, block: &mut [u8], mut console: impl Console) {
//= 4
}
