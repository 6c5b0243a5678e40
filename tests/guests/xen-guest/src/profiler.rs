//! The profiler inside this guest: its platform, its memory, and its service over TCP.

#![allow(unsafe_code, reason = "the platform vouches for stacks, and the linker's marks are read")]

use alloc::boxed::Box;
use core::fmt;
use core::mem::MaybeUninit;
use core::ops::Range;
use core::slice;
use core::sync::atomic::{AtomicPtr, Ordering};

use smoltcp::iface::SocketSet;
use unikprof_agent::tcp_server::{TcpBuffers, TcpSockets};
use unikprof_agent::xen::{Hooks, TickSource, Ticks, VcpuAreas, XenPlatform};
use unikprof_agent::{
    Access, Agent, BootRecording, Config, Mapping, Platform, Service, caller_table_bytes,
};
use xen_sys_lite::vcpu::VcpuId;
#[cfg(feature = "trace")]
use {crate::processor::MAX_VCPUS, unikprof_agent::trace_bytes};

use crate::command_line::CommandLine;
use crate::hypercalls::CountedCalls;
use crate::hypervisor::{shared_info, xen};
use crate::processor::{self, TEXT_FILE_OFFSET};
use crate::store::{GuestStore, Identity};
use crate::{println, profiler_access, timer, vcpus};

/// Memory for the stacks of all vCPUs.
const MEMORY: usize = 4 << 20;
/// Memory for a caller table: room for an image several times as large.
const CALLERS: usize = caller_table_bytes(20_000);

/// Memory for the rings: some minutes of records per vCPU.
const RING: usize = 1 << 20;

/// Memory for the samples of allocations that are still held.
#[cfg(feature = "heap")]
const LIVE: usize = unikprof_agent::live_bytes(8_000);

/// Memory for tracing so many functions, on the vCPUs' stacks.
#[cfg(feature = "trace")]
const TRACE_FUNCTIONS: usize = 300;

pub(crate) type GuestPlatform = XenPlatform<CountedCalls>;
type GuestTicks = Ticks<'static, 'static, CountedCalls>;

static TICKS: AtomicPtr<GuestTicks> = AtomicPtr::new(core::ptr::null_mut());

/// The profiler's ticks, once it has started. May be called from upcalls.
pub(crate) fn ticks() -> Option<&'static GuestTicks> {
    // SAFETY: the pointer is null or comes from a box that is never freed.
    unsafe { TICKS.load(Ordering::Acquire).as_ref() }
}

/// The same, if the profiler arms the timer itself.
pub(crate) fn timer_owner() -> Option<&'static GuestTicks> {
    ticks().filter(|ticks| ticks.source() == TickSource::Owned)
}

/// The profiler requested by the command line.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Request {
    access: Access<'static>,
    port: u16,
    source: TickSource,
    vcpus: u32,
    record_at_boot: Option<&'static str>,
    #[cfg(feature = "trace")]
    traces: bool,
}

impl Request {
    /// Reads the access, `ticks=host` (the default) or `ticks=owned`, and `record-at-boot=NAME`,
    /// which begins an always-on recording. Prints the reason and returns `None` if no client can
    /// be served.
    pub(crate) fn find(command_line: CommandLine, store: &mut GuestStore) -> Option<Self> {
        let (access, port) = profiler_access::find(command_line, store)?;
        let source = match command_line.value("ticks") {
            Some("owned") => TickSource::Owned,
            _ => TickSource::Host,
        };
        Some(Self {
            access,
            port,
            source,
            vcpus: command_line.parsed("vcpus").unwrap_or(1),
            record_at_boot: command_line.value("record-at-boot"),
            #[cfg(feature = "trace")]
            traces: command_line.value("trace") == Some("yes"),
        })
    }
}

/// The agent's service on one TCP port.
pub(crate) struct Profiler {
    service: Service<'static, 'static, GuestPlatform>,
    sockets: TcpSockets,
}

impl Profiler {
    /// Starts the agent and adds its sockets. Prints the reason and returns `None` if it cannot
    /// start.
    pub(crate) fn start(
        request: Request,
        identity: Option<&Identity>,
        sockets: &mut SocketSet<'static>,
    ) -> Option<Self> {
        let name = identity.map(|identity| &*Box::leak(identity.name.clone().into_boxed_str()));
        let uuid = identity.map(|identity| &*Box::leak(identity.uuid.clone().into_boxed_str()));
        let config = Config {
            vcpus: request.vcpus,
            recordings: 4,
            mappings: Box::leak(Box::new([image()])),
            guest_name: name,
            guest_id: uuid,
            platform_name: "xen",
            reachable_when_busy: true,
        };
        let memory = Box::leak(Box::<[u8]>::new_uninit_slice(MEMORY));
        let memory: &'static mut [MaybeUninit<u8>] = memory;
        let agent = match Agent::new(platform(), config, memory) {
            Ok(agent) => {
                let callers = Box::leak(Box::<[u8]>::new_uninit_slice(CALLERS));
                let ring = Box::leak(Box::<[u8]>::new_uninit_slice(RING));
                let agent = agent.with_caller_memory(callers).with_ring(ring);
                #[cfg(feature = "heap")]
                let agent = agent.with_live_memory(Box::leak(Box::<[u8]>::new_uninit_slice(LIVE)));
                #[cfg(feature = "trace")]
                let agent = if request.traces {
                    let bytes = trace_bytes(TRACE_FUNCTIONS, MAX_VCPUS);
                    agent.with_trace(Box::leak(Box::<[u8]>::new_uninit_slice(bytes)), MAX_VCPUS)
                } else {
                    agent
                };
                &*Box::leak(Box::new(agent))
            }
            Err(error) => {
                println!("xen-guest: no profiler: {error}");
                return None;
            }
        };
        let mut service = match Service::new(agent, request.access) {
            Ok(service) => service,
            // The agent has logged the reason.
            Err(_) => return None,
        };
        if let Some(name) = request.record_at_boot {
            // A refusal is logged; the guest continues.
            if service.start_at_boot(&BootRecording::always_on(name)).is_ok() {
                println!("xen-guest: recording `{name}` from boot");
            }
        }
        let ticks = Box::leak(Box::new(Ticks::new(agent, xen(), request.source)));
        TICKS.store(ticks, Ordering::Release);
        #[cfg(feature = "heap")]
        crate::heap::report_to(agent);
        let buffers = Box::leak(Box::new(TcpBuffers::<16384>::new()));
        let Request { port, .. } = request;
        println!("xen-guest: profiler on port {port}");
        Some(Self { service, sockets: TcpSockets::add_to(sockets, buffers, port) })
    }

    /// Serves the clients; returns when to call it again without a packet, on the guest's clock.
    pub(crate) fn poll(&mut self, sockets: &mut SocketSet<'static>) -> Option<u64> {
        let next_ns = self.sockets.poll(sockets, &mut self.service)?;
        let platform = self.service.agent().platform();
        Some(timer::from_system(platform.timer_deadline(next_ns)))
    }
}

impl fmt::Debug for Profiler {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Profiler").field("sockets", &self.sockets).finish_non_exhaustive()
    }
}

fn platform() -> GuestPlatform {
    let hooks = Hooks {
        vcpu: || Some(vcpus::current().0),
        stack_bounds: vcpus::stack_bounds,
        continuation: |_, _| None,
        code_bounds: |pc| Some(text()).filter(|text| text.contains(&pc)),
        kick_port: |vcpu| vcpus::kick_port(VcpuId(vcpu)),
        areas,
        log: |line| println!("xen-guest: {line}"),
    };
    // SAFETY: the bounds are those of the vCPUs' stacks and of the image's text, which are always
    // mapped.
    unsafe { XenPlatform::new(xen(), shared_info(), hooks) }
}

/// The memory in which a vCPU's times are stored.
fn areas(vcpu: u32) -> Option<VcpuAreas> {
    Some(VcpuAreas {
        time: processor::time_info(VcpuId(vcpu))?,
        runstate: Some(vcpus::runstate(VcpuId(vcpu))?),
    })
}

/// The addresses of the guest's code, including the file's headers before it.
pub(crate) fn text() -> Range<u64> {
    unsafe extern "C" {
        static image_start: u8;
        static text_end: u8;
    }
    &raw const image_start as u64..&raw const text_end as u64
}

/// The mapping of the guest's code in memory and in its file.
pub(crate) fn image() -> Mapping<'static> {
    unsafe extern "C" {
        static build_id_note: u8;
        static build_id_note_end: u8;
    }
    let note = &raw const build_id_note;
    let length = &raw const build_id_note_end as usize - note as usize;
    // SAFETY: the linker's symbols enclose the note, which is never written.
    let note = unsafe { slice::from_raw_parts(note, length) };
    Mapping {
        start: text().start,
        end: text().end,
        file_offset: TEXT_FILE_OFFSET,
        build_id: build_id(note).unwrap_or(&[]),
        path: "xen-guest",
    }
}

/// The id in a note: sizes of name and description, the type, the name `GNU` with its NUL, the id.
fn build_id(note: &'static [u8]) -> Option<&'static [u8]> {
    let size = u32::from_le_bytes(note.get(4..8)?.try_into().ok()?);
    note.get(16..16 + size as usize)
}
