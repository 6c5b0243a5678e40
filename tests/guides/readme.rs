/// What surrounds the Rust of README.md.
use std::error::Error;
use std::mem::MaybeUninit;

use unikprof_agent::hosted::{self, Listen};
use unikprof_agent::xen::{TickSource, Ticks, XenPlatform};
use unikprof_agent::{Access, Agent, Config, Keys, Registers, Service};
use xen_sys_lite::Hypercall;

fn xen<H: Hypercall>(
    (platform, config): (XenPlatform<H>, Config<'_>),
    (memory, keys): (&mut [MaybeUninit<u8>], Keys),
    hypercalls: H,
    [pc, sp, fp]: [u64; 3],
    block: impl Fn(),
) -> Result<(), Box<dyn Error>> {
//= 1
    Ok(())
}

fn hosted(access: Access<'static>, wait_for_work: impl FnOnce()) -> Result<(), Box<dyn Error>> {
//= 2
    Ok(())
}
