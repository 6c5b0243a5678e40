//! Guests that are Linux processes: the "Unix build" of a unikernel.
//!
//! Each registered thread is a vCPU. A timer on `CLOCK_MONOTONIC` signals the thread for each tick;
//! the sampler's targets are on the thread's CPU time. A separate service thread serves clients, by
//! default on loopback.
//!
//! ```no_run
//! use unikprof_agent::Access;
//! use unikprof_agent::hosted::{self, Config, Listen};
//!
//! let agent = hosted::start(Config { listen: Listen::Loopback(7777), ..Config::new(Access::Open) })?;
//! let vcpu = agent.register_thread()?;
//! println!("unikprof-client connect {} record 30s", agent.address());
//! loop {
//!     // the guest's work; around what blocks:
//!     vcpu.block(|| std::thread::sleep(std::time::Duration::from_millis(1)));
//! }
//! # #[allow(unreachable_code)]
//! # Ok::<(), hosted::Error>(())
//! ```
//!
//! Limits: code in libraries loaded after the start is shown as unknown code, and threads that are
//! not registered are not sampled.

mod alternate_stack;
#[cfg(feature = "trace")]
mod breakpoint;
mod mappings;
mod network;
mod platform;
#[cfg(feature = "tap")]
mod tap;
mod thread;

// The architecture-specific part: `cycles` and `registers`.
#[cfg(target_arch = "x86_64")]
mod x86_64;
#[cfg(target_arch = "x86_64")]
use x86_64 as arch;
#[cfg(not(target_arch = "x86_64"))]
compile_error!("hosted guests are supported on x86_64 Linux");

use std::boxed::Box;
use std::fmt;
use std::io;
use std::mem::MaybeUninit;
use std::net::SocketAddr;
use std::string::String;
use std::sync::OnceLock;
use std::vec::Vec;

use crate::{
    Access, Agent, BootError, BootRecording, DEFAULT_CPU_SHARE_PERMILLE, LinkedTableError,
    ServeError, StartError,
};

use network::Network;

pub use platform::Hosted;
#[cfg(feature = "tap")]
pub use tap::Tap;
pub use thread::Vcpu;

/// The threads that can be registered at a time if nobody says otherwise.
const VCPUS: u32 = 16;

/// The configuration of a hosted guest's agent.
#[derive(Clone, Debug)]
pub struct Config {
    /// The clients that are served.
    pub access: Access<'static>,
    /// The maximum number of threads registered at a time. The memory is divided evenly between
    /// them.
    pub vcpus: u32,
    /// The memory for stacks, in bytes.
    pub memory_bytes: usize,
    /// The maximum number of simultaneous recordings; see
    /// [`Config::recordings`](crate::Config::recordings).
    pub recordings: u32,
    /// The address that clients connect to.
    pub listen: Listen,
    /// The guest's name, shown in recordings.
    pub guest_name: Option<String>,
    /// The guest's id, shown in recordings.
    pub guest_id: Option<String>,
    /// The signal that delivers ticks.
    pub signal: i32,
    /// The memory for a caller table that clients upload, 10 bytes per row. 0: the agent accepts
    /// none.
    pub caller_table_bytes: usize,
    /// The memory for the flight recorder's rings, in bytes. 0: there are no rings.
    pub ring_bytes: usize,
    /// The number of samples that the table of live allocations has room for; see
    /// [`Agent::with_live_memory`](crate::Agent::with_live_memory). 0: there is no table.
    #[cfg(feature = "heap")]
    pub live_samples: usize,
    /// The number of functions that a client may trace at a time; see [`Agent::with_trace`]. 0, the
    /// default: no client may trace. Tracing handles the signal SIGTRAP.
    #[cfg(feature = "trace")]
    pub trace_functions: usize,
    /// A caller table that is linked into the program, in the format of
    /// `unikprof-client caller-table`. It is installed at the start.
    pub linked_caller_table: Option<&'static [u8]>,
    /// A recording that begins when the agent starts, before a client connects.
    pub record_at_boot: Option<BootRecording<'static>>,
    /// The share of a CPU that the agent's network work may take over time, in thousandths; see
    /// [`Service::set_cpu_share`](crate::Service::set_cpu_share).
    pub cpu_share_permille: u32,
}

impl Config {
    /// 16 vCPUs, for each 1 MiB for stacks of up to four recordings and 512 KiB for a ring, 1 MiB
    /// for a caller table, any free port on loopback, SIGPROF.
    pub fn new(access: Access<'static>) -> Self {
        Self {
            access,
            vcpus: VCPUS,
            memory_bytes: (VCPUS as usize) << 20,
            recordings: 4,
            listen: Listen::Loopback(0),
            guest_name: None,
            guest_id: None,
            signal: libc::SIGPROF,
            caller_table_bytes: 1 << 20,
            ring_bytes: (VCPUS as usize) << 19,
            #[cfg(feature = "heap")]
            live_samples: 16_000,
            #[cfg(feature = "trace")]
            trace_functions: 0,
            linked_caller_table: None,
            record_at_boot: None,
            cpu_share_permille: DEFAULT_CPU_SHARE_PERMILLE,
        }
    }
}

/// The address that clients connect to. [`Config::access`] decides which of them are served.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Listen {
    /// This port on 127.0.0.1; 0 = any free port.
    Loopback(u16),
    /// This address, which other machines may be able to reach.
    Address(SocketAddr),
    /// An address on a TAP device, served by the agent's own TCP, as in a unikernel.
    #[cfg(feature = "tap")]
    Tap(Tap),
}

/// Why the agent of a hosted guest cannot start, or a thread cannot be registered.
pub enum Error {
    /// This process has an agent already.
    Started,
    /// The configuration cannot be used.
    Start(StartError),
    /// The agent cannot be served.
    Serve(ServeError),
    /// [`Config::record_at_boot`] cannot begin.
    Boot(Box<BootError>),
    /// [`Config::linked_caller_table`] cannot be used.
    CallerTable(LinkedTableError),
    /// Listening on the address failed.
    Listen(SocketAddr, io::Error),
    /// A system call failed: its name and the error.
    System(&'static str, io::Error),
    /// This thread is registered already.
    Registered,
    /// [`Config::vcpus`] threads are registered already.
    NoFreeVcpu(u32),
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Started => f.write_str("this process has an agent already"),
            Self::Start(error) => write!(f, "the agent's configuration cannot be used: {error}"),
            Self::Serve(error) => write!(f, "{error}"),
            Self::Boot(error) => write!(f, "{error}"),
            Self::CallerTable(error) => write!(f, "{error}"),
            Self::Listen(address, error) => write!(f, "cannot listen on {address}: {error}"),
            Self::System(call, error) => write!(f, "{call} failed: {error}"),
            Self::Registered => f.write_str("this thread is registered already"),
            Self::NoFreeVcpu(vcpus) => write!(
                f,
                "all {vcpus} vCPUs are in use; raise Config::vcpus or end a registered thread"
            ),
        }
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Start(error) => Some(error),
            Self::Serve(error) => Some(error),
            Self::Boot(error) => Some(&**error),
            Self::CallerTable(error) => Some(error),
            Self::Listen(_, error) | Self::System(_, error) => Some(error),
            Self::Started | Self::Registered | Self::NoFreeVcpu(_) => None,
        }
    }
}

/// The running agent of this process. It runs until the process ends.
#[derive(Clone, Copy, Debug)]
pub struct Guest {
    agent: &'static HostedAgent,
    address: SocketAddr,
}

/// The agent of a hosted guest.
pub type HostedAgent = Agent<'static, Hosted>;

/// The threads that may be inside traced functions at a time.
#[cfg(feature = "trace")]
const TRACED_STACKS: usize = 64;

/// The agent of this process, for the signal handler.
static AGENT: OnceLock<HostedAgent> = OnceLock::new();

/// Starts the agent and its service thread. Threads are sampled once they are
/// [registered](Guest::register_thread).
///
/// # Errors
/// [`Error`]; a process can have one agent.
pub fn start(mut config: Config) -> Result<Guest, Error> {
    let network = Network::open(&config.listen)?;
    let address = network.address();
    let mappings = mappings::of_this_process().leak();
    #[cfg_attr(not(feature = "trace"), expect(unused_mut))]
    let mut platform = Hosted::new(config.vcpus, config.signal, mappings::of_the_agent(mappings));
    #[cfg(feature = "trace")]
    if config.trace_functions > 0 {
        let opened = platform.open_memory();
        opened.map_err(|error| Error::System("open of /proc/self/mem", error))?;
    }
    let memory: &'static mut [MaybeUninit<u8>] =
        Vec::leak(std::vec![MaybeUninit::uninit(); config.memory_bytes]);
    let leak = |text: String| -> &'static str { text.leak() };
    let agent_config = crate::Config {
        vcpus: config.vcpus,
        recordings: config.recordings,
        mappings,
        guest_name: config.guest_name.take().map(leak),
        guest_id: config.guest_id.take().map(leak),
        platform_name: "hosted",
        reachable_when_busy: true,
    };
    let callers: &'static mut [MaybeUninit<u8>] =
        Vec::leak(std::vec![MaybeUninit::uninit(); config.caller_table_bytes]);
    let ring: &'static mut [MaybeUninit<u8>] =
        Vec::leak(std::vec![MaybeUninit::uninit(); config.ring_bytes]);
    let agent = Agent::new(platform, agent_config, memory)
        .map_err(Error::Start)?
        .with_caller_memory(callers)
        .with_ring(ring);
    #[cfg(feature = "heap")]
    let agent = match config.live_samples {
        0 => agent,
        samples => {
            let bytes = crate::live_bytes(samples);
            agent.with_live_memory(Vec::leak(std::vec![MaybeUninit::uninit(); bytes]))
        }
    };
    #[cfg(feature = "trace")]
    let agent = match config.trace_functions {
        0 => agent,
        functions => {
            let bytes = crate::trace_bytes(functions, TRACED_STACKS);
            let block = Vec::leak(std::vec![MaybeUninit::uninit(); bytes]);
            agent.with_trace(block, TRACED_STACKS)
        }
    };
    if let Some(table) = config.linked_caller_table {
        agent.install_caller_table(table).map_err(Error::CallerTable)?;
    }
    AGENT.set(agent).map_err(|_| Error::Started)?;
    let agent = AGENT.get().ok_or(Error::Started)?;
    thread::install_handler(config.signal)?;
    #[cfg(feature = "trace")]
    if config.trace_functions > 0 {
        breakpoint::install_handler()?;
    }
    network.spawn(agent, &config)?;
    Ok(Guest { agent, address })
}

impl Guest {
    /// Makes the calling thread a vCPU until the returned value is dropped.
    ///
    /// # Errors
    /// [`Error`].
    pub fn register_thread(&self) -> Result<Vcpu, Error> {
        Vcpu::register(self.agent)
    }

    /// The address that clients connect to.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// The agent.
    pub fn agent(&self) -> &'static HostedAgent {
        self.agent
    }
}

#[cfg(test)]
mod tests {
    use std::string::ToString as _;

    use super::*;

    /// Guards `Error: NoFreeVcpu(1)` from a `main` that returns it.
    #[test]
    fn errors_are_shown_by_their_text_in_each_way() {
        let error = Error::NoFreeVcpu(1);
        assert_eq!(std::format!("{error:?}"), error.to_string());
    }
}
