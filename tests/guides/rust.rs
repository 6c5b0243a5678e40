/// The code around the Rust of docs/guide/rust.md, in a guest.
use std::error::Error;
use std::mem::MaybeUninit;
use std::ops::Range;

use smoltcp::iface::{Interface, SocketSet};
use smoltcp::phy::Device;
use smoltcp::time::Instant;
use unikprof_agent::tcp_server::{TcpBuffers, TcpConfig, TcpServer, TcpSockets, TcpStorage};
use unikprof_agent::xen::{Hooks, TickSource, Ticks, VcpuAreas, XenPlatform};
use unikprof_agent::{
    Access, Agent, Config, Continuation, Key, Keys, Mapping, Platform, Registers, Role, Service,
};
use xen_sys_lite::Hypercall;
use xen_sys_lite::abi::xen::SharedInfo;
use xen_sys_lite::events::Port;

type Result<T> = std::result::Result<T, Box<dyn Error>>;

/// The guest's own functions; none is called.
macro_rules! of_the_guest {
    ($($name:ident($($argument:ty),*) $(-> $result:ty)?;)*) => {
        $(fn $name($(_: $argument),*) $(-> $result)? { panic!() })*
    };
}

of_the_guest! {
    current_vcpu() -> u32;
    areas_of(u32) -> Option<VcpuAreas>;
    stack_that_holds(u64) -> Option<Range<u64>>;
    beyond(u64, u64) -> Option<Continuation>;
    text_that_holds(u64) -> Option<Range<u64>>;
    ipi_port(u32) -> Option<Port>;
    console(&str);
    program(u64);
    block();
}

fn platform<H: Hypercall>(xen: H, shared_info: &'static SharedInfo) -> XenPlatform<H> {
//= 1
    platform
}

fn agent<'m, P: Platform>(
    platform: P,
    memory: &'m mut [MaybeUninit<u8>],
    [start, end, file_offset]: [u64; 3],
    build_id: &[u8],
    [name, uuid]: [&'m str; 2],
) -> Result<()> {
//= 2
    drop(agent);
    Ok(())
}

fn callers<'m, P: Platform>(
    agent: Agent<'m, P>,
    callers: &'m mut [MaybeUninit<u8>],
    linked: &[u8],
) -> Result<()> {
//= 3
    let mut agent = agent;
//= 4
    Ok(())
}

fn host<H: Hypercall>(
    agent: Agent<'_, XenPlatform<H>>,
    xen: H,
    [pc, sp, fp, own_deadline]: [u64; 4],
    registers: Registers,
) {
//= 5
}

fn owned<H: Hypercall>(
    agent: Agent<'_, XenPlatform<H>>,
    xen: H,
    ns: u64,
    registers: Registers,
) {
//= 6
}

fn sockets<P: Platform>(
    (agent, keys): (Agent<'_, P>, Keys),
    mut sockets: SocketSet<'static>,
    buffers: &'static mut TcpBuffers,
    (mut interface, mut device): (Interface, impl Device),
    now: Instant,
) -> Result<()> {
//= 7
}

fn server<P: Platform>(
    mut service: Service<'_, '_, P>,
    (tcp_config, mut device): (TcpConfig<'_>, impl Device),
) -> Result<()> {
    let mut storage: TcpStorage<'_> = TcpStorage::new();
//= 8
}

fn keys(view_line: &str, control_line: &str) -> Result<()> {
//= 9
    Ok(())
}
