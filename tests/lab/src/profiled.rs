//! Guests with the profiler in them, on a real Xen.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

use crate::{GuestConfig, Lab, LabConfig, LabError, Processor, build_xen_guest_for};

/// The port of the profiler in a guest.
pub const PROFILER_PORT: u16 = 7777;

/// The port of the statistics of a guest with `stats=7001` on its command line.
pub const STATISTICS_PORT: u16 = 7001;

/// The port for orders of the accuracy suite, in a guest with `orders=7002` on its command line.
pub const ORDERS_PORT: u16 = 7002;

/// The port from which a guest with `captures=7003` on its command line sends the samples that an
/// order has captured.
pub const CAPTURES_PORT: u16 = 7003;

/// The features of the guest that nearly all cases boot: built once, it does what its command line
/// says.
pub const FEATURES: &[&str] = &["accuracy", "demo", "heap", "keys", "trace"];

/// The same on a processor. Functions are traced on x86-64 only.
pub fn features(processor: Processor) -> &'static [&'static str] {
    match processor {
        Processor::X86_64 => FEATURES,
        Processor::Aarch64 => &["accuracy", "demo", "heap", "keys"],
    }
}

/// The maximum time from a guest's creation to its profiler.
const START: Duration = Duration::from_secs(600);

/// A guest of this name with the profiler, and with `command_line` for what else it is to do.
///
/// The guest is built first; see [`build_xen_guest_for`].
pub fn profiled_guest(name: &str, command_line: &str) -> Result<GuestConfig, LabError> {
    profiled_guest_on(Processor::X86_64, name, command_line)
}

/// The same on a processor.
pub fn profiled_guest_on(
    processor: Processor,
    name: &str,
    command_line: &str,
) -> Result<GuestConfig, LabError> {
    let kernel = build_xen_guest_for(processor, features(processor))?;
    Ok(profiled_kernel(kernel, name, command_line))
}

/// A guest that runs this image with the profiler.
pub fn profiled_kernel(kernel: PathBuf, name: &str, command_line: &str) -> GuestConfig {
    let mut guest = GuestConfig::new(name, kernel);
    guest.command_line =
        format!("profiler=open:{PROFILER_PORT} stats={STATISTICS_PORT} {command_line}");
    guest.ports = vec![PROFILER_PORT, STATISTICS_PORT];
    guest
}

/// A guest with so many vCPUs, all of which work.
pub fn profiled_guest_with_vcpus(
    name: &str,
    vcpus: u32,
    command_line: &str,
) -> Result<GuestConfig, LabError> {
    let mut guest = profiled_guest(name, &format!("vcpus={vcpus} {command_line}"))?;
    guest.vcpus = vcpus;
    Ok(guest)
}

/// Starts a lab and waits until the profiler of every guest listens.
pub fn start_profiled(config: &LabConfig) -> Result<Lab, LabError> {
    let lab = Lab::start(config.clone())?;
    for guest in &config.guests {
        lab.wait_for_console(&guest.name, "profiler on port", START)?;
    }
    Ok(lab)
}

/// The address of a guest's profiler on this machine.
pub fn profiler_address(lab: &Lab, guest: &str) -> Result<SocketAddr, LabError> {
    address_of(lab, guest, PROFILER_PORT)
}

pub fn address_of(lab: &Lab, guest: &str, port: u16) -> Result<SocketAddr, LabError> {
    lab.forwarded(guest, port)
        .map(|forwarded| SocketAddr::from((Ipv4Addr::LOCALHOST, forwarded)))
        .ok_or_else(|| LabError::Config(format!("port {port} of {guest} is not forwarded")))
}
