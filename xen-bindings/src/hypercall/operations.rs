//! The table that ties each hypercall command to the structure it takes.
//!
//! A row of the table is a promise: this command reads and writes exactly that structure, which
//! holds no address, and changes no other memory of the guest. With that promise made here, the
//! modules above issue commands without `unsafe`. Commands that take addresses have functions of
//! their own below.

use super::Hypercall;
use crate::abi::xen::hypercall as number;
use crate::abi::{event_channel, grant_table, hvm, sched, vcpu, version, xen};
use crate::errno::Errno;
use crate::events::Port;
use crate::runstate::RunstateArea;
use crate::vcpu::VcpuId;

/// A hypercall command and its argument.
///
/// # Safety
/// The command reads and writes exactly one `Argument` (none where that is `()`), any bit pattern
/// of which is valid, and changes no other memory of the guest.
pub(crate) unsafe trait Operation {
    /// Hypercall.
    const NUMBER: u32;
    /// Its first argument.
    const COMMAND: u32;
    /// The type that the address points to.
    type Argument;
}

macro_rules! operations {
    ($($name:ident: $number:path, $command:expr, $argument:ty;)*) => {
        $(
            pub(crate) struct $name;
            // SAFETY: checked row by row against the public header named in the argument's module.
            unsafe impl Operation for $name {
                const NUMBER: u32 = $number;
                const COMMAND: u32 = $command;
                type Argument = $argument;
            }
        )*
    };
}

operations! {
    EvtchnBindInterdomain: number::EVENT_CHANNEL_OP, event_channel::op::BIND_INTERDOMAIN,
        event_channel::BindInterdomain;
    EvtchnBindVirq: number::EVENT_CHANNEL_OP, event_channel::op::BIND_VIRQ, event_channel::BindVirq;
    EvtchnClose: number::EVENT_CHANNEL_OP, event_channel::op::CLOSE, event_channel::PortArgument;
    EvtchnSend: number::EVENT_CHANNEL_OP, event_channel::op::SEND, event_channel::PortArgument;
    EvtchnStatus: number::EVENT_CHANNEL_OP, event_channel::op::STATUS, event_channel::Status;
    EvtchnAllocUnbound: number::EVENT_CHANNEL_OP, event_channel::op::ALLOC_UNBOUND,
        event_channel::AllocUnbound;
    EvtchnBindIpi: number::EVENT_CHANNEL_OP, event_channel::op::BIND_IPI, event_channel::BindIpi;
    EvtchnBindVcpu: number::EVENT_CHANNEL_OP, event_channel::op::BIND_VCPU, event_channel::BindVcpu;
    EvtchnUnmask: number::EVENT_CHANNEL_OP, event_channel::op::UNMASK, event_channel::PortArgument;
    SchedYield: number::SCHED_OP, sched::op::YIELD, ();
    SchedBlock: number::SCHED_OP, sched::op::BLOCK, ();
    SchedShutdown: number::SCHED_OP, sched::op::SHUTDOWN, sched::Shutdown;
    HvmSetParam: number::HVM_OP, hvm::op::SET_PARAM, hvm::Param;
    HvmGetParam: number::HVM_OP, hvm::op::GET_PARAM, hvm::Param;
    VersionNumber: number::XEN_VERSION, version::VERSION, ();
    VersionFeatures: number::XEN_VERSION, version::GET_FEATURES, version::FeatureInfo;
    GrantQuerySize: number::GRANT_TABLE_OP, grant_table::op::QUERY_SIZE, grant_table::QuerySize;
    GrantSetVersion: number::GRANT_TABLE_OP, grant_table::op::SET_VERSION, grant_table::SetVersion;
}

// Xen on Arm has no local APIC, and leaves the life of vCPUs and their timers to PSCI and the
// architecture.
#[cfg(target_arch = "x86_64")]
operations! {
    HvmSetUpcallVector: number::HVM_OP, hvm::op::SET_EVTCHN_UPCALL_VECTOR, hvm::EvtchnUpcallVector;
    VcpuDown: number::VCPU_OP, vcpu::op::DOWN, ();
    VcpuIsUp: number::VCPU_OP, vcpu::op::IS_UP, ();
    VcpuStopPeriodicTimer: number::VCPU_OP, vcpu::op::STOP_PERIODIC_TIMER, ();
}

/// Issues a command of the shape (command, argument).
#[inline]
pub(crate) fn issue<O: Operation>(
    hypercall: &(impl Hypercall + ?Sized),
    argument: &mut O::Argument,
) -> Result<u64, Errno> {
    // The grant table hypercall takes an array and its length; the others ignore the third
    // argument.
    let arguments = [u64::from(O::COMMAND), address_of(argument), 1, 0, 0];
    // SAFETY: the table promises that the command touches the argument only, which is exclusively
    // ours.
    Errno::from_result(unsafe { hypercall.call(O::NUMBER, arguments) })
}

/// Issues a vCPU command, of the shape (command, vCPU, argument).
#[cfg(target_arch = "x86_64")]
#[inline]
pub(crate) fn issue_for_vcpu<O: Operation>(
    hypercall: &(impl Hypercall + ?Sized),
    vcpu: VcpuId,
    argument: &mut O::Argument,
) -> Result<u64, Errno> {
    const { assert!(O::NUMBER == number::VCPU_OP) };
    let arguments = [u64::from(O::COMMAND), u64::from(vcpu.0), address_of(argument), 0, 0];
    // SAFETY: as in `issue`.
    Errno::from_result(unsafe { hypercall.call(O::NUMBER, arguments) })
}

/// Sets the calling vCPU's single-shot timer; zero stops it.
#[cfg(target_arch = "x86_64")]
#[inline]
pub(crate) fn set_timer(
    hypercall: &(impl Hypercall + ?Sized),
    system_time_ns: u64,
) -> Result<(), Errno> {
    // SAFETY: Xen touches no memory of the guest.
    let result = unsafe { hypercall.call(number::SET_TIMER_OP, [system_time_ns, 0, 0, 0, 0]) };
    Errno::from_result(result).map(drop)
}

/// Sleeps until one of `ports` is pending or system time reaches `timeout_abs_ns` (zero: never).
pub(crate) fn poll(
    hypercall: &(impl Hypercall + ?Sized),
    ports: &[Port],
    timeout_abs_ns: u64,
) -> Result<(), Errno> {
    if ports.len() > sched::POLL_MAX_PORTS {
        return Err(Errno::EINVAL);
    }
    let mut argument = sched::Poll {
        ports: ports.as_ptr().expose_provenance() as u64,
        count: ports.len() as u32,
        pad: 0,
        timeout_abs_ns,
    };
    let arguments = [u64::from(sched::op::POLL), address_of(&mut argument), 0, 0, 0];
    // SAFETY: Xen reads the argument and `ports`, both of which outlive the call; `Port` is a
    // transparent `u32`.
    Errno::from_result(unsafe { hypercall.call(number::SCHED_OP, arguments) }).map(drop)
}

/// Has Xen keep `vcpu`'s runstate in `area`.
pub(crate) fn register_runstate(
    hypercall: &(impl Hypercall + ?Sized),
    vcpu: VcpuId,
    area: &'static RunstateArea,
) -> Result<(), Errno> {
    let address = core::ptr::from_ref(area).expose_provenance() as u64;
    // SAFETY: Xen writes the area from now on; it lives for ever and all its fields are atomics.
    unsafe { register_area(hypercall, vcpu, vcpu::op::REGISTER_RUNSTATE_MEMORY_AREA, address) }
}

/// Has Xen fill `info` with `vcpu`'s runstate.
pub(crate) fn get_runstate(
    hypercall: &(impl Hypercall + ?Sized),
    vcpu: VcpuId,
    info: &mut vcpu::RunstateInfo,
) -> Result<(), Errno> {
    let arguments =
        [u64::from(vcpu::op::GET_RUNSTATE_INFO), u64::from(vcpu.0), address_of(info), 0, 0];
    // SAFETY: Xen writes the structure of that command, which outlives the call.
    Errno::from_result(unsafe { hypercall.call(number::VCPU_OP, arguments) }).map(drop)
}

/// Has Xen keep a second copy of `vcpu`'s clock in `area`; `None` ends it.
pub(crate) fn register_time(
    hypercall: &(impl Hypercall + ?Sized),
    vcpu: VcpuId,
    area: Option<&'static xen::VcpuTimeInfo>,
) -> Result<(), Errno> {
    let address = area.map_or(0, |area| core::ptr::from_ref(area).expose_provenance() as u64);
    // SAFETY: as above.
    unsafe { register_area(hypercall, vcpu, vcpu::op::REGISTER_VCPU_TIME_MEMORY_AREA, address) }
}

/// # Safety
/// Xen may write what `command` keeps at `address` for ever.
unsafe fn register_area(
    hypercall: &(impl Hypercall + ?Sized),
    vcpu: VcpuId,
    command: u32,
    address: u64,
) -> Result<(), Errno> {
    let mut argument = vcpu::RegisterMemoryArea { address };
    let arguments = [u64::from(command), u64::from(vcpu.0), address_of(&mut argument), 0, 0];
    // SAFETY: Xen reads the argument; the rest is the caller's contract.
    Errno::from_result(unsafe { hypercall.call(number::VCPU_OP, arguments) }).map(drop)
}

/// Enables an optional behaviour; the hypercall takes two numbers and no address.
pub(crate) fn vm_assist_enable(
    hypercall: &(impl Hypercall + ?Sized),
    kind: u32,
) -> Result<(), Errno> {
    let arguments = [u64::from(xen::VMASST_CMD_ENABLE), u64::from(kind), 0, 0, 0];
    // SAFETY: no address is passed.
    Errno::from_result(unsafe { hypercall.call(number::VM_ASSIST, arguments) }).map(drop)
}

/// Address of an argument, null for a command that takes none.
fn address_of<T>(argument: &mut T) -> u64 {
    if size_of::<T>() == 0 { 0 } else { core::ptr::from_mut(argument).expose_provenance() as u64 }
}
