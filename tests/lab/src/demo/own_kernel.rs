//! `xen-demo --kernel`: any guest on the lab's Xen, with its console on the screen and its port on
//! this machine.

use std::fmt::Write as _;
use std::fs::File;
use std::net::{Ipv4Addr, SocketAddrV4};
use std::path::PathBuf;
use std::time::Instant;

use clap::Args;
use unikprof_client::cli::signals;
use unikprof_link::interrupt::Interrupt;

use super::{Arguments, DemoError, fill_cache, hold_while, print};
use crate::profiled::PROFILER_PORT;
use crate::{ConsolePosition, GuestConfig, Lab, LabConfig, LabError};

const GUEST: &str = "own";
const ADDRESS: Ipv4Addr = Ipv4Addr::new(10, 0, 2, 50);
const PROFILER: SocketAddrV4 = SocketAddrV4::new(ADDRESS, PROFILER_PORT);

/// A guest that the user brings.
#[derive(Debug, Args)]
#[command(next_help_heading = "A guest of your own")]
pub(super) struct KernelArguments {
    /// Boot this kernel instead of the demo's guest, show its console, and print how to connect to
    /// it: an ELF file or what else xl boots, on aarch64 a flat image or an ELF file with one. It
    /// runs for --duration, or with --hold until Ctrl-C or Enter
    #[arg(long, value_name = "FILE", conflicts_with_all = ["rate", "load", "output"])]
    pub(super) kernel: Option<PathBuf>,
    /// The kernel's domain type
    #[arg(
        long = "type", value_name = "TYPE", value_parser = ["pvh", "pv"], default_value = "pvh",
        requires = "kernel"
    )]
    domain_type: String,
    /// A network interface in xl's words, for example ip=10.0.2.50; can be repeated. The lab adds
    /// its bridge. The network is 10.0.2.0/24, its gateway 10.0.2.2 [default: one with
    /// ip=10.0.2.50]
    #[arg(long = "vif", value_name = "SPEC", requires = "kernel")]
    interfaces: Vec<String>,
    /// A TCP port of the guest to forward to this machine, of its address 10.0.2.50 unless another
    /// one is given; can be repeated
    #[arg(
        long = "port", value_name = "[ADDRESS:]PORT", value_parser = port,
        default_values_t = [PROFILER], requires = "kernel"
    )]
    ports: Vec<SocketAddrV4>,
    /// The guest's memory in MiB
    #[arg(long, value_name = "MIB", default_value_t = 64, requires = "kernel")]
    memory: u64,
    /// The kernel's command line. If it has no ip=, `ip=10.0.2.50/24 gateway=10.0.2.2` is added
    #[arg(long, value_name = "TEXT", default_value = "", requires = "kernel")]
    command_line: String,
    /// A node of xenstore below the guest's own path, there before the guest runs, for example
    /// data/unikprof/control=KEY; can be repeated
    #[arg(long = "store", value_name = "NODE=VALUE", value_parser = node, requires = "kernel")]
    store: Vec<(String, String)>,
    /// Do not clear the machine's memory at boot: faster, but a guest may find data where it
    /// expects zeroes
    #[arg(long, requires = "kernel")]
    no_scrub: bool,
}

fn port(text: &str) -> Result<SocketAddrV4, String> {
    let port = text.parse().map(|port| SocketAddrV4::new(ADDRESS, port));
    port.or_else(|_| text.parse())
        .map_err(|_| "expected PORT or ADDRESS:PORT, for example 10.0.2.60:80".to_owned())
}

fn node(text: &str) -> Result<(String, String), String> {
    let (node, value) =
        text.split_once('=').ok_or("expected NODE=VALUE, for example data/name=web")?;
    Ok((node.to_owned(), value.to_owned()))
}

/// Boots the kernel and shows its console until it ends, its time is over, or the user has seen
/// enough.
pub(super) fn run(arguments: &Arguments, kernel: PathBuf) -> Result<(), DemoError> {
    let own = &arguments.own;
    if let Err(source) = File::open(&kernel) {
        return Err(DemoError::Kernel { path: kernel, source });
    }
    fill_cache(arguments.arch)?;
    eprintln!("booting Xen and dom0 in QEMU, then {}", kernel.display());
    let image = kernel.display().to_string();
    let lab = Lab::start(LabConfig {
        processor: arguments.arch,
        guests: vec![GuestConfig {
            domain_type: own.domain_type.clone(),
            memory_mb: own.memory,
            vcpus: arguments.vcpus,
            command_line: own.command_line.clone(),
            interfaces: own.interfaces.clone(),
            store: own.store.clone(),
            other_ports: own.ports.clone(),
            ..GuestConfig::new(GUEST, kernel)
        }],
        // Dom0 has the first.
        processors: Some(2),
        scrub_memory: !own.no_scrub,
        ..LabConfig::default()
    })?;
    let interrupt = Interrupt::default();
    signals::listen(&interrupt).map_err(DemoError::Signals)?;
    let addresses = own.ports.iter().map(|at| {
        let port = lab.forwarded_from(GUEST, *at);
        let port = port.ok_or_else(|| LabError::Config(format!("{at} is not forwarded")))?;
        Ok::<_, LabError>(SocketAddrV4::new(Ipv4Addr::LOCALHOST, port))
    });
    let addresses: Vec<SocketAddrV4> = addresses.collect::<Result<_, _>>()?;
    print(introduction(&own.ports, &addresses, &image).as_bytes())?;
    let until = (!arguments.hold).then(|| Instant::now() + arguments.duration);
    let mut shown = ConsolePosition::default();
    hold_while(&lab, GUEST, &interrupt, || {
        print(lab.new_console(GUEST, &mut shown)?.as_bytes())?;
        Ok(until.is_none_or(|until| Instant::now() < until))
    })
}

fn introduction(ports: &[SocketAddrV4], addresses: &[SocketAddrV4], image: &str) -> String {
    let mut text = String::from("\nOnce its agent listens:\n");
    for (port, address) in ports.iter().zip(addresses) {
        // Writing to a string does not fail.
        let _ = match port.port() {
            PROFILER_PORT => writeln!(
                text,
                "  unikprof-client connect {address} info\n\
                 \x20 unikprof-client connect {address} record 10s --image {image} -o own.svg"
            ),
            _ => writeln!(text, "  {port} of the guest is {address}"),
        };
    }
    text + "Enter or Ctrl-C ends the guest. Its console:\n\n"
}
