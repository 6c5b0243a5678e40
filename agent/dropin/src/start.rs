//! The start: finds what is needed in the running guest, and connects it.
#![allow(unsafe_code, reason = "what the guest has set up is found by address")]

use core::fmt;
use core::mem::MaybeUninit;
#[cfg(feature = "trace")]
use core::sync::atomic::AtomicU8;
use core::sync::atomic::{AtomicBool, Ordering};

use unikprof_agent::tcp_server::TcpError;
#[cfg(feature = "trace")]
use unikprof_agent::trace_bytes;
#[cfg(feature = "trace")]
use unikprof_agent::xen::TraceHooks;
use unikprof_agent::xen::{Hooks, VcpuAreas, XenPlatform};
use unikprof_agent::{
    Agent, BootRecording, Config, DEFAULT_CPU_SHARE_PERMILLE, Mapping, ServeError, Service,
    StartError,
};
use xen_sys_lite::Errno;
use xen_sys_lite::clock::Clock;
use xen_sys_lite::cpuid::XenLeaves;
use xen_sys_lite::events::EventChannels;
use xen_sys_lite::grant::{GrantTable, GrantTableError};
use xen_sys_lite::net::{NetError, Netfront};
use xen_sys_lite::xenstore::{StoreError, Tree as _};

use crate::configuration::{self, Configuration, Invalid};
use crate::console::print;
use crate::delivery::{Delivery, Unknown};
use crate::exclusive;
use crate::found::{self, FIRST, Found, NoStore};
use crate::image::{self, NoImage};
use crate::machine;
use crate::machine::apic::{Apic, NoTimer};
use crate::machine::descriptors::{self, NoHandler};
use crate::machine::own_stacks::{self, MAX_VCPUS};
use crate::served::{Device, DevicePages, GRANTS, Grants, PAGES, Served, ServedAgent};
#[cfg(feature = "trace")]
use crate::stacks;
use crate::statics::{Once, Pages, Replaced, agent_memory};
use crate::store::GuestStore;
use crate::upcall::{self, Running};
use crate::vcpus;

/// Memory for traces of so many functions, on so many stacks.
#[cfg(feature = "trace")]
const TRACE_FUNCTIONS: usize = 300;
#[cfg(feature = "trace")]
const TRACE_STACKS: usize = 64;
#[cfg(feature = "trace")]
static TRACE: Once<[MaybeUninit<u8>; trace_bytes(TRACE_FUNCTIONS, TRACE_STACKS)]> =
    Once::new([MaybeUninit::uninit(); trace_bytes(TRACE_FUNCTIONS, TRACE_STACKS)]);
static AGENT: Once<MaybeUninit<ServedAgent>> = Once::empty();
static RUNNING: Once<MaybeUninit<Running>> = Once::empty();
static SETTINGS: Replaced<Configuration> = Replaced::empty();
/// Whether xenstore has said who may connect.
static WAS_TOLD: AtomicBool = AtomicBool::new(false);
static MAPPING: Once<MaybeUninit<[Mapping<'static>; 1]>> = Once::empty();
static IDENTITY: Once<Identity> = Once::new(Identity::UNKNOWN);
/// The vector of the guest's events.
#[cfg(feature = "trace")]
static EVENTS: AtomicU8 = AtomicU8::new(0);

/// The domain's name and UUID.
struct Identity {
    name: heapless::String<128>,
    id: heapless::String<64>,
}

impl Identity {
    const UNKNOWN: Self = Self { name: heapless::String::new(), id: heapless::String::new() };
}

/// Why the guest is not profiled.
#[derive(Debug)]
enum Refusal {
    Store(StoreError),
    NoStore(NoStore),
    Setting(Invalid),
    NoAccess,
    Devices(usize),
    Image(NoImage),
    Timer(NoTimer),
    Events(Unknown),
    Handler(NoHandler),
    Grants(GrantTableError),
    Network(u32, NetError),
    Reconnect(NetError),
    Tcp(TcpError),
    Agent(StartError),
    Vcpu,
    Serve(ServeError),
    Static,
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Store(error) => write!(f, "xenstore: {error}"),
            Self::NoStore(error) => error.fmt(f),
            Self::Setting(invalid) => invalid.fmt(f),
            Self::NoAccess => f.write_str(
                "no client may connect: write a key of `unikprof-client keygen` to \
                 data/unikprof/control in xenstore, \
                 or into the image by `unikprof-client configure`",
            ),
            Self::Devices(count) => write!(
                f,
                "the guest has {count} network devices: add one for the profiler, or name one in \
                 data/unikprof/vif"
            ),
            Self::Image(error) => error.fmt(f),
            Self::Timer(error) => error.fmt(f),
            Self::Events(error) => error.fmt(f),
            Self::Handler(error) => error.fmt(f),
            Self::Grants(error) => error.fmt(f),
            Self::Network(vif, error) => write!(f, "device/vif/{vif}: {error}"),
            Self::Reconnect(error) => error.fmt(f),
            Self::Tcp(error) => error.fmt(f),
            Self::Agent(error) => error.fmt(f),
            Self::Serve(error) => error.fmt(f),
            Self::Vcpu => f.write_str(
                "the guest has several vCPUs, and this is not the first, or Xen does not number \
                 them (CPUID 0x40000004)",
            ),
            Self::Static => f.write_str("started before"),
        }
    }
}

/// Starts the profiler, once.
pub(crate) fn start() {
    // Not in memory that the guest may zero between two calls.
    #[unsafe(link_section = ".data.unikprof_dropin_is_started")]
    static IS_STARTED: AtomicBool = AtomicBool::new(false);
    if !IS_STARTED.swap(true, Ordering::AcqRel) {
        // A poll uses the same stack, so none may begin before this is done.
        let were_on = machine::disable_interrupts();
        exclusive::with(|| own_stacks::on_poll_stack(run));
        if were_on {
            machine::enable_interrupts();
        }
    }
}

extern "C" fn run() {
    let found = match found::find() {
        Ok(found) => found,
        Err(reason) => return machine::debug_line(reason),
    };
    if let Err(reason) = connect(&found) {
        print(&found, format_args!("not started: {reason}"));
    }
}

/// Connects the network device again, after a restore or when its backend comes anew.
pub(crate) fn resume() {
    let Some(running) = upcall::running() else {
        return;
    };
    let were_on = machine::disable_interrupts();
    if vcpus::current() != Some(0) {
        machine::debug_line("not connected again: not called on the first vCPU");
    } else if running.is_polling() {
        machine::debug_line("not connected again: called from within network work");
    } else if !exclusive::with(|| own_stacks::on_poll_stack(run_again)) {
        machine::debug_line("not connected again: a crash dump is written");
    }
    if were_on {
        machine::enable_interrupts();
    }
}

extern "C" fn run_again() {
    let (Some(running), Some(found)) = (upcall::running(), found::found()) else {
        return;
    };
    // The guest may have loaded another table, or written its gate anew.
    // SAFETY: interrupts are off; the guest runs with these tables.
    match unsafe { descriptors::intercept(running.vector()) } {
        Ok(false) => {}
        Ok(true) => print(
            &found,
            format_args!(
                "the guest has changed the interrupt gate of its events, so there were no ticks \
                 since then"
            ),
        ),
        Err(reason) => return print(&found, format_args!("not connected again: {reason}")),
    }
    #[cfg(feature = "trace")]
    if upcall::agent().is_some_and(ServedAgent::can_trace) {
        handles_breakpoints();
    }
    let result = running.reconnect(|served, is_new_domain| {
        found
            .with_store(|store| {
                // Without the image's: those in use may have been in xenstore once, and would be
                // others.
                let settings = Configuration::read(store, "").map_err(Refusal::Setting)?;
                // What xenstore no longer says is withdrawn: without anybody else there is no network.
                let is_told = settings.is_told;
                let is_replaced = WAS_TOLD.fetch_or(is_told, Ordering::Relaxed) || is_told;
                if let Some(share) = settings.cpu_share {
                    served.set_cpu_share(share);
                    running.set_cpu_share(share);
                }
                if is_replaced {
                    // SAFETY: interrupts are off; only the service has the settings.
                    unsafe { SETTINGS.replace(settings, |settings| served.follow(settings)) }
                        .map_err(Refusal::Serve)?;
                }
                let result = served.reconnect(&found.xen, store, is_new_domain);
                result.map_err(Refusal::Reconnect)?;
                Ok::<_, Refusal>(is_replaced)
            })
            .map_err(Refusal::NoStore)?
    });
    match result {
        Ok(is_replaced) => print(
            &found,
            format_args!(
                "connected again, {}",
                if is_replaced {
                    "for those named in xenstore now"
                } else {
                    "for the same clients"
                }
            ),
        ),
        Err(reason) => print(&found, format_args!("no network: {reason}")),
    }
}

/// Connects everything, and prints what it did.
fn connect(found: &Found) -> Result<(), Refusal> {
    let Found { xen, shared } = *found;
    let memory = found::memory();
    let mapping = image::mapping(memory).map_err(Refusal::Image)?;
    found::set_code(mapping.start..mapping.end);
    let clock = Clock::new(shared, FIRST).ok_or(Refusal::Static)?;
    let apic = Apic::find(
        |address| found.translate(address),
        |address| found.is_mapped(address),
        clock.snapshot().counter_hz(),
    )
    .map_err(Refusal::Timer)?;
    let delivery = Delivery::find(&xen, shared, &apic).map_err(Refusal::Events)?;
    let count = vcpus::count(&xen);
    let leaves = XenLeaves::find().ok_or(Refusal::Static)?;
    let vcpu_leaf = if count > 1 { leaves.vcpu_leaf() } else { None };
    // Without a number of its own, a vCPU cannot be told from the first.
    if count > 1 && leaves.vcpu() != Some(FIRST) {
        return Err(Refusal::Vcpu);
    }
    let sampled = count.min(MAX_VCPUS as u32);
    vcpus::set_count(sampled);
    own_stacks::set_vcpu_leaf(vcpu_leaf.unwrap_or(0));

    let identity = IDENTITY.take().ok_or(Refusal::Static)?;
    let (settings, vif, network) = found
        .with_store(|store| from_store(found, store, identity))
        .map_err(Refusal::NoStore)??;
    WAS_TOLD.store(settings.is_told, Ordering::Relaxed);
    // SAFETY: the first one.
    let settings = unsafe { SETTINGS.replace(settings, Ok::<_, Refusal>) }?;
    #[cfg(feature = "trace")]
    let may_trace = {
        EVENTS.store(delivery.vector, Ordering::Relaxed);
        settings.may_trace && handles_breakpoints()
    };
    #[cfg(not(feature = "trace"))]
    let may_trace = false;
    let agent = start_agent(found, mapping, identity, may_trace)?;
    let mut service = Service::new(agent, settings.access()).map_err(Refusal::Serve)?;
    if let Some(share) = settings.cpu_share {
        service.set_cpu_share(share);
    }
    let recording = settings
        .record
        .as_ref()
        .map(|name| service.start_at_boot(&BootRecording::always_on(name)).is_ok());
    let served = Served::new(network, service, settings).map_err(Refusal::Tcp)?;
    let share = settings.cpu_share.unwrap_or(DEFAULT_CPU_SHARE_PERMILLE);
    let running =
        Running::new(agent, shared, clock, (xen, leaves), (apic, delivery), (served, share));
    let running = RUNNING.take().ok_or(Refusal::Static)?.write(running);
    // SAFETY: interrupts are off; the guest runs with these tables.
    unsafe { descriptors::intercept(delivery.vector) }.map_err(Refusal::Handler)?;
    let running = upcall::publish(running);
    running.begin();

    print(
        found,
        format_args!(
            "profiler on port {} of device/vif/{vif}, {}, ticks by {}{}{}{}",
            settings.port,
            if settings.is_open { "open to everybody" } else { "for those with a key" },
            apic.kind(),
            match recording {
                None => "",
                Some(true) => ", recording",
                Some(false) => ", not recording (see data/unikprof/record)",
            },
            match (settings.may_trace, may_trace) {
                (false, _) => "",
                (true, true) => ", tracing",
                (true, false) => ", not tracing (see docs/guide/dropin.md)",
            },
            Sampled(count),
        ),
    );
    Ok(())
}

/// Which of several vCPUs are sampled, for the line on the console.
struct Sampled(u32);

impl fmt::Display for Sampled {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            ..=1 => Ok(()),
            count if count as usize <= MAX_VCPUS => write!(f, ", {count} vCPUs"),
            _ => write!(f, ", the first {MAX_VCPUS} vCPUs only"),
        }
    }
}

/// Everything that needs xenstore: the settings, the domain's name, and the connected device.
fn from_store(
    found: &Found,
    store: &mut GuestStore,
    identity: &mut Identity,
) -> Result<(Configuration, u32, (Device, &'static Grants)), Refusal> {
    let settings = configuration::in_image()
        .and_then(|image| Configuration::read(store, image))
        .map_err(Refusal::Setting)?;
    if !settings.names_anybody() {
        return Err(Refusal::NoAccess);
    }
    let mut buffer = [0; 512];
    if let Ok(name) = store.read_text("name", &mut buffer) {
        let _ = identity.name.push_str(name);
    }
    // `/vm/UUID`
    if let Ok(path) = store.read_text("vm", &mut buffer) {
        let _ = identity.id.push_str(path.rsplit('/').next().unwrap_or(path));
    }
    let vif = match settings.vif {
        Some(vif) => vif,
        None => last_device(store, &mut buffer)?,
    };
    // SAFETY: mapped one to one, which was checked, and for this purpose.
    let mut pages = unsafe { Pages::new(&PAGES) };
    let mut page = || pages.next();
    let table = page().ok_or(Refusal::Static)?;
    let grants: &'static Grants = GRANTS
        .take()
        .ok_or(Refusal::Static)?
        .write(GrantTable::map_last(&found.xen, [table]).map_err(Refusal::Grants)?);
    let pages = DevicePages::new(|| page().unwrap_or_else(|| unreachable!("as many as `COUNT`")));
    let events = EventChannels::new(found.xen, found.shared);
    let mut device = Netfront::new(vif, events, grants, pages);
    device.connect(store).map_err(|error| Refusal::Network(vif, error))?;
    Ok((settings, vif, (device, grants)))
}

/// The last of several devices: the others are the guest's.
fn last_device(store: &mut GuestStore, buffer: &mut [u8]) -> Result<u32, Refusal> {
    let names = match store.list("device/vif", buffer) {
        Err(StoreError::Refused(Errno::ENOENT)) => return Err(Refusal::Devices(0)),
        other => other.map_err(Refusal::Store)?,
    };
    let count = names.clone().count();
    let last = names.filter_map(|name| name.parse().ok()).max();
    last.filter(|_| count > 1).ok_or(Refusal::Devices(count))
}

fn start_agent(
    found: &Found,
    mapping: Mapping<'static>,
    identity: &'static Identity,
    may_trace: bool,
) -> Result<&'static ServedAgent, Refusal> {
    let known = |text: &'static str| Some(text).filter(|text| !text.is_empty());
    let config = Config {
        vcpus: vcpus::all().len() as u32,
        recordings: 4,
        mappings: MAPPING.take().ok_or(Refusal::Static)?.write([mapping]),
        guest_name: known(&identity.name),
        guest_id: known(&identity.id),
        platform_name: "xen",
        reachable_when_busy: true,
    };
    let hooks = Hooks {
        vcpu: vcpus::current,
        areas: |vcpu| {
            let shared = found::shared()?;
            let vcpu = vcpus::of(vcpu)?;
            Some(VcpuAreas {
                time: vcpu.time(shared),
                // Xen's only area is left to the guest.
                runstate: None,
            })
        },
        stack_bounds: |sp| Some(found::memory()).filter(|memory| memory.contains(&sp)),
        continuation: upcall::continuation,
        code_bounds: |pc| Some(found::code()).filter(|code| code.contains(&pc)),
        kick_port: upcall::kick,
        // The console is the guest's once it runs.
        log: |_| {},
    };
    // SAFETY: the memory and the code are mapped: unikernels do not unmap theirs.
    let platform = unsafe { XenPlatform::new(found.xen, found.shared, hooks) };
    #[cfg(feature = "trace")]
    let platform = platform
        .with_trace_hooks(TraceHooks { call_stack: stacks::call_stack, handles_breakpoints });
    let memory = agent_memory();
    // An eighth for the caller table, three for the ring, the rest for stacks.
    let eighth = memory.len() / 8;
    let (stacks, others) = memory.split_at_mut(4 * eighth);
    let (callers, ring) = others.split_at_mut(eighth);
    let agent = Agent::new(platform, config, stacks).map_err(Refusal::Agent)?;
    let agent = agent.with_caller_memory(callers).with_ring(ring);
    #[cfg(feature = "trace")]
    let agent = match TRACE.take() {
        Some(memory) if may_trace => agent.with_trace(memory, TRACE_STACKS),
        _ => agent,
    };
    #[cfg(not(feature = "trace"))]
    let _ = may_trace;
    Ok(AGENT.take().ok_or(Refusal::Static)?.write(agent))
}

/// Has breakpoints on this vCPU pass by the profiler, also if the guest has written their gate
/// anew. `false` if they cannot.
#[cfg(feature = "trace")]
fn handles_breakpoints() -> bool {
    let were_on = machine::disable_interrupts();
    // SAFETY: interrupts are off; the guest runs with these tables.
    let handles = unsafe { descriptors::intercept_breakpoints(EVENTS.load(Ordering::Relaxed)) };
    if were_on {
        machine::enable_interrupts();
    }
    handles
}
