//! The start: finds what is needed in the running guest, and connects it.
#![allow(unsafe_code, reason = "what the guest has set up is found by address")]

use core::fmt;
use core::mem::{MaybeUninit, offset_of};
use core::ops::Range;
#[cfg(feature = "trace")]
use core::sync::atomic::AtomicU8;
use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

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
use xen_sys_lite::abi::PAGE_SIZE;
use xen_sys_lite::abi::xen::{SharedInfo, VcpuInfo, VcpuTimeInfo};
use xen_sys_lite::clock::{self, Clock, TimeSnapshot};
use xen_sys_lite::cpuid::XenLeaves;
use xen_sys_lite::events::EventChannels;
use xen_sys_lite::grant::{GrantTable, GrantTableError};
use xen_sys_lite::hvm;
use xen_sys_lite::net::{NetError, Netfront};
use xen_sys_lite::vcpu::VcpuId;
use xen_sys_lite::xenstore::{StoreError, Tree as _};
use xen_sys_lite::{Errno, HypercallInstruction, PolledChannel, SharedPage, memory};

use crate::configuration::{self, Configuration, Invalid};
use crate::console::print;
use crate::delivery::{Delivery, Unknown};
use crate::image::{self, NoImage};
use crate::machine::apic::{Apic, NoTimer};
use crate::machine::descriptors::{self, NoHandler};
use crate::machine::paging::{self, FIVE_LEVELS};
use crate::machine::{self, entry};
use crate::served::{Device, DevicePages, GRANTS, Grants, PAGES, Served, ServedAgent};
#[cfg(feature = "trace")]
use crate::stacks;
use crate::statics::{Once, Pages, Replaced, agent_memory};
use crate::store::{GuestStore, with_ring};
use crate::upcall::{self, Running};
use crate::vcpus::{self, MAX_VCPUS};

/// CR4: SSE registers can be used and saved.
const SSE: u64 = 1 << 9;
/// CR0: the next use of the FPU is an exception.
const TASK_SWITCHED: u64 = 1 << 3;
const FIRST: VcpuId = VcpuId(0);
/// Times that the shared information page is looked for: Xen may update the clock meanwhile.
const TRIES: u32 = 3;
/// Memory above is left to devices.
const MEMORY_END: u64 = 0xf000_0000;
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
/// A second copy of the vCPU's clock, by which the first is found.
static TIME: VcpuTimeInfo = VcpuTimeInfo::new();
static SHARED: core::sync::atomic::AtomicPtr<SharedInfo> =
    core::sync::atomic::AtomicPtr::new(core::ptr::null_mut());
/// The guest's memory that is mapped one to one: start and end.
static MEMORY: [AtomicU64; 2] = [const { AtomicU64::new(0) }; 2];
/// The vector of the guest's events.
#[cfg(feature = "trace")]
static EVENTS: AtomicU8 = AtomicU8::new(0);
/// The code: start and end.
static CODE: [AtomicU64; 2] = [const { AtomicU64::new(0) }; 2];

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
    Xen(&'static str, Errno),
    Store(StoreError),
    NoStore,
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
            Self::Xen(what, errno) => write!(f, "{what}: {errno}"),
            Self::Store(error) => write!(f, "xenstore: {error}"),
            Self::NoStore => f.write_str("the page of xenstore cannot be mapped"),
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

/// The state that every step needs.
#[derive(Clone, Copy)]
pub(crate) struct Found {
    xen: HypercallInstruction,
    shared: &'static SharedInfo,
}

/// Starts the profiler, once.
pub(crate) fn start() {
    // Not in memory that the guest may zero between two calls.
    #[unsafe(link_section = ".data.unikprof_dropin_is_started")]
    static IS_STARTED: AtomicBool = AtomicBool::new(false);
    if !IS_STARTED.swap(true, Ordering::AcqRel) {
        USER.store(FIRST.0 + 1, Ordering::Relaxed);
        // A poll uses the same stack, so none may begin before this is done.
        let were_on = machine::disable_interrupts();
        entry::on_poll_stack(run);
        USER.store(0, Ordering::Release);
        if were_on {
            machine::enable_interrupts();
        }
    }
}

extern "C" fn run() {
    let found = match find_xen() {
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
    } else if !claim(&USER, FIRST.0 + 1) {
        machine::debug_line("not connected again: a crash dump is written");
    } else {
        entry::on_poll_stack(run_again);
        USER.store(0, Ordering::Release);
    }
    if were_on {
        machine::enable_interrupts();
    }
}

/// The vCPU that uses the copies of the page tables, the window, the rings of Xen's tools and the
/// whole stack of polls, plus one; or 0.
static USER: AtomicU32 = AtomicU32::new(0);
/// It uses them no longer than that, mostly: it waits 10 s for the device's backend.
const LONGEST_USE_NS: u64 = 12_000_000_000;

fn claim(user: &AtomicU32, id: u32) -> bool {
    user.compare_exchange(0, id, Ordering::Acquire, Ordering::Relaxed).is_ok()
}

/// Claims what this vCPU needs for a crash dump, or waits until another has done with it. After a
/// while, or if this vCPU itself had it when it crashed, there is nothing to wait for.
pub(crate) fn claim_for_crash() {
    let clock = found().and_then(|found| Clock::new(found.shared, FIRST));
    let now_ns = || clock.as_ref().map_or(u64::MAX, Clock::now_ns);
    let until_ns = now_ns().saturating_add(LONGEST_USE_NS);
    let id = vcpus::current().unwrap_or(FIRST.0) + 1;
    wait_for(&USER, id, || now_ns() >= until_ns);
}

fn wait_for(user: &AtomicU32, id: u32, is_over: impl Fn() -> bool) {
    while user.load(Ordering::Relaxed) != id && !claim(user, id) && !is_over() {
        core::hint::spin_loop();
    }
}

/// The results of the start.
pub(crate) fn found() -> Option<Found> {
    // SAFETY: null, or the page that Xen shares with the guest, which has it at the same place
    // after a restore.
    let shared = unsafe { SHARED.load(Ordering::Acquire).as_ref() }?;
    let xen = HypercallInstruction::find().ok()?;
    Some(Found { xen, shared })
}

extern "C" fn run_again() {
    let (Some(running), Some(found)) = (upcall::running(), found()) else {
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
        found.with_store(|store| {
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
        })?
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

/// Finds Xen and the page that it shares with the guest; the console cannot be used before. The
/// error says what is missing.
fn find_xen() -> Result<Found, &'static str> {
    let cr4 = machine::read_cr4();
    if cr4 & SSE == 0 {
        return Err("not started: the guest has not enabled SSE (CR4.OSFXSR)");
    }
    if machine::read_cr0() & TASK_SWITCHED != 0 {
        return Err("not started: the guest saves the FPU's state when it is used only (CR0.TS)");
    }
    if cr4 & FIVE_LEVELS != 0 {
        return Err("not started: the guest uses five levels of page tables");
    }
    let xen = HypercallInstruction::find().map_err(|_| "not started: this is no guest of Xen")?;
    let size = memory::current_pages(&xen).unwrap_or(0).saturating_mul(PAGE_SIZE as u64);
    let size = size.min(MEMORY_END);
    const ELSEWHERE: &str = "not started: the guest's image is not mapped one to one";
    let address = &raw const PAGES as u64;
    let end = address + size_of_val(&PAGES) as u64;
    if end > size {
        return Err(ELSEWHERE);
    }
    // SAFETY: the image is below the memory's size, and nobody else has such tables.
    let tables = unsafe { paging::current(&xen) }.ok_or(ELSEWHERE)?;
    if tables.identity_end(address, end) != end {
        return Err(ELSEWHERE);
    }
    let starts = [PAGE_SIZE as u64, 1 << 20, 2 << 20, address];
    let start = starts.into_iter().find(|start| tables.identity_end(*start, size) > address);
    let memory = start.map_or(0..0, |start| start..tables.identity_end(start, size));
    for (word, value) in MEMORY.iter().zip([memory.start, memory.end]) {
        word.store(value, Ordering::Relaxed);
    }
    let shared = find_shared_info(&xen, memory).ok_or(
        "not started: no shared information page is mapped: start the profiler after the \
                guest has mapped it",
    )?;
    SHARED.store(core::ptr::from_ref(shared).cast_mut(), Ordering::Release);
    Ok(Found { xen, shared })
}

/// Finds the page that Xen shares with the guest by its copy of the first vCPU's clock. `memory` is
/// mapped one to one.
fn find_shared_info(xen: &HypercallInstruction, memory: Range<u64>) -> Option<&'static SharedInfo> {
    const CLOCK: usize = offset_of!(SharedInfo, vcpu_info) + offset_of!(VcpuInfo, time);
    clock::register_copy(xen, FIRST, Some(&TIME)).ok()?;
    let found = (0..TRIES).find_map(|_| {
        let wanted = TimeSnapshot::try_read(&TIME)?;
        let mut pages = memory.clone().step_by(PAGE_SIZE);
        pages.find_map(|address| {
            let page = core::ptr::with_exposed_provenance::<SharedInfo>(address as usize);
            // SAFETY: a page of the guest's memory; all fields are atomics, of which only the
            // clock's are read.
            let time = unsafe { &*page.byte_add(CLOCK).cast::<VcpuTimeInfo>() };
            let is_own = core::ptr::eq(time, &TIME);
            let is_it = !is_own
                && wanted.tsc_timestamp == time.tsc_timestamp.load(Ordering::Relaxed)
                && TimeSnapshot::try_read(time) == Some(wanted);
            // SAFETY: Xen shares this page with the guest, for as long as the guest lives.
            is_it.then(|| unsafe { &*page })
        })
    });
    // Fails only as the registration would have.
    let _ = clock::register_copy(xen, FIRST, None);
    found
}

/// Connects everything, and prints what it did.
fn connect(found: &Found) -> Result<(), Refusal> {
    let Found { xen, shared } = *found;
    let memory = range(&MEMORY).unwrap_or_default();
    let mapping = image::mapping(memory).map_err(Refusal::Image)?;
    for (word, value) in CODE.iter().zip([mapping.start, mapping.end]) {
        word.store(value, Ordering::Relaxed);
    }
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
    entry::set_vcpu_leaf(vcpu_leaf.unwrap_or(0));

    let identity = IDENTITY.take().ok_or(Refusal::Static)?;
    let (settings, vif, network) =
        found.with_store(|store| from_store(found, store, identity))??;
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
            // SAFETY: null, or the page that Xen shares with the guest for ever.
            let shared = unsafe { SHARED.load(Ordering::Acquire).as_ref() }?;
            let vcpu = vcpus::of(vcpu)?;
            Some(VcpuAreas {
                time: vcpu.time(shared),
                // Xen's only area is left to the guest.
                runstate: None,
            })
        },
        stack_bounds: |sp| range(&MEMORY).filter(|memory| memory.contains(&sp)),
        continuation: upcall::continuation,
        code_bounds: |pc| range(&CODE).filter(|code| code.contains(&pc)),
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

/// Whether an address is in the image's code.
pub(crate) fn is_code(address: u64) -> bool {
    range(&CODE).is_some_and(|code| code.contains(&address))
}

fn range(words: &[AtomicU64; 2]) -> Option<Range<u64>> {
    let [start, end] = words.each_ref().map(|word| word.load(Ordering::Relaxed));
    Some(start..end)
}

impl Found {
    /// The physical address of a virtual one.
    fn translate(&self, address: u64) -> Option<u64> {
        // SAFETY: `find_xen` has done the same; the tables are not used beyond this line.
        unsafe { paging::current(&self.xen) }?.translate(address)
    }

    /// Whether any address leads to the page at a physical one.
    fn is_mapped(&self, physical: u64) -> bool {
        // SAFETY: as above.
        unsafe { paging::current(&self.xen) }.is_none_or(|tables| tables.is_mapped(physical))
    }

    fn is_identity(&self, address: u64) -> bool {
        self.translate(address) == Some(address)
    }

    /// Calls `work` with xenstore.
    fn with_store<T>(&self, work: impl FnOnce(&mut GuestStore) -> T) -> Result<T, Refusal> {
        let ring = hvm::store_ring(&self.xen).map_err(|errno| Refusal::Xen("xenstore", errno))?;
        let is_identity = |address| self.is_identity(address);
        // SAFETY: the guest has not begun to use it: the contract of the start. Interrupts are off,
        // and this runs on a stack in the image.
        let result = unsafe {
            with_ring(ring, self.shared, self.xen, is_identity, |page, channel| {
                work(&mut GuestStore::new(page, channel))
            })
        };
        result.ok_or(Refusal::NoStore)
    }

    /// Calls `work` with the console's page and channel, if there is a console.
    pub(crate) fn with_console(
        &self,
        work: impl FnOnce(SharedPage, PolledChannel<'static, HypercallInstruction>),
    ) {
        if let Ok(ring) = hvm::console_ring(&self.xen) {
            let is_identity = |address| self.is_identity(address);
            // SAFETY: the guest does not write while this runs; it continues where the ring's index
            // is. The rest as above.
            unsafe { with_ring(ring, self.shared, self.xen, is_identity, work) };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Guards against a crash that uses the tables of a window that another vCPU has open.
    #[test]
    fn a_crash_waits_for_another_vcpu_and_not_for_ever() {
        let user = AtomicU32::new(1);
        let looks = core::cell::Cell::new(0);
        let is_over = |most, releases_at| {
            let (looks, user) = (&looks, &user);
            move || {
                looks.set(looks.get() + 1);
                if looks.get() == releases_at {
                    user.store(0, Ordering::Release);
                }
                looks.get() == most
            }
        };
        wait_for(&user, 2, is_over(5, 9));
        assert_eq!((looks.take(), user.load(Ordering::Relaxed)), (5, 1));
        wait_for(&user, 2, is_over(9, 3));
        assert_eq!((looks.take(), user.load(Ordering::Relaxed)), (3, 2));
        // This vCPU itself crashed while it had them.
        wait_for(&user, 2, is_over(5, 9));
        assert_eq!((looks.take(), user.load(Ordering::Relaxed)), (0, 2));
        assert!(!claim(&user, 1));
    }
}
