//! A fleet for tests of scale: many guests in one process, each with an agent, keys and a way of 50
//! ms.
//!
//! The agents are real, and so is what they say; the guests' only vCPU is simulated. What a client
//! has of a guest can be compared with the ticks that the guest has had, which are printed at the
//! end.

mod guest;
mod line;
mod orders;
mod platform;
mod program;
mod report;

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::io;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::thread;
use std::time::{Duration, Instant};

use clap::Parser;
use serde_json::Value;
use tokio::runtime;
use tokio::sync::mpsc::{UnboundedSender, unbounded_channel};
use tokio::task::{JoinSet, LocalSet};
use unikprof_agent::{Keys, Role, ServeError, StartError};
use unikprof_client::cli::signals;
use unikprof_link::interrupt::Interrupt;
use unikprof_link::key::{self, Key};

use guest::{Guest, Order, Plan};
use orders::Orders;
use program::Program;

/// Runs many guests on addresses of loopback (127.77.0.1 and the following), and writes the
/// fleet.toml of them, with a key and the functions' names beside it. Each guest's vCPU always
/// runs, in one of its stacks after the other.
///
/// At the end the ticks of each guest are printed as JSON: ticks of the sampling timer in which an
/// instance of the agent read a stack. The sum over a recording's outcomes is the same number, if
/// no other recording ran at the time.
#[derive(Debug, Parser)]
#[command(name = "many-guests", after_help = orders::HELP)]
struct Arguments {
    /// The number of guests
    #[arg(long, default_value_t = 1000, value_parser = clap::value_parser!(u32).range(1..=60_000))]
    guests: u32,
    /// The time that the guests run, in seconds
    #[arg(long, default_value_t = 120.0)]
    seconds: f64,
    /// The time that they answer afterwards, without running, in seconds
    #[arg(long, default_value_t = 20.0)]
    rest: f64,
    /// The file to write; one that is there is replaced, and a key beside it is used again
    #[arg(long, value_name = "FILE")]
    fleet: PathBuf,
    /// The number of stacks of each guest
    #[arg(long, default_value_t = 2000, value_parser = clap::value_parser!(u16).range(1..))]
    stacks: u16,
    /// The time of a round trip, in ms
    #[arg(long, default_value_t = 50, value_name = "MS")]
    round_trip: u64,
    /// The agent's memory for stacks, in KiB
    #[arg(long, default_value_t = 512, value_name = "KIB")]
    memory: usize,
    /// The maximum number of simultaneous recordings of an agent
    #[arg(long, default_value_t = 2, value_name = "N")]
    recordings: u32,
    /// The time of their clocks at a boot, in s since 1970; this machine's time if omitted
    #[arg(long, value_name = "S")]
    date: Option<u64>,
    /// The port that the guests listen on; 0: each on a port that is free
    #[arg(long, default_value_t = 7777)]
    port: u16,
    /// The number of threads that run the guests
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=64))]
    threads: u16,
}

/// The beginning of the file that lists the guests. Ten labels `app` are spread over them.
const HEAD: &str = "[defaults]\nkey-file = \"key\"\nrate = 97\nsymbols = \"symbols\"\n";

/// Why the guests cannot run.
#[derive(Debug, thiserror::Error)]
enum Failure {
    #[error(
        "cannot listen on {0}: {1}; if too many files are open, raise `ulimit -n` to twice the \
         number of guests"
    )]
    Listen(SocketAddr, io::Error),
    #[error("cannot write {0:?}: {1}")]
    Write(PathBuf, io::Error),
    #[error("the agent cannot start: {0}")]
    Agent(StartError),
    #[error("the agent cannot be served: {0}")]
    Serve(ServeError),
    #[error("{0}")]
    System(#[from] io::Error),
    #[error("{0}")]
    Other(String),
}

impl Failure {
    fn listen(address: SocketAddr) -> impl FnOnce(io::Error) -> Failure {
        move |error| Failure::Listen(address, error)
    }
}

/// Runs the program with the arguments of this process.
pub fn main() -> ExitCode {
    match run(&Arguments::parse()) {
        Ok(report) => {
            println!("{report:#}");
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run(arguments: &Arguments) -> Result<Value, Failure> {
    let folder = arguments.fleet.parent().unwrap_or(Path::new(""));
    if !folder.as_os_str().is_empty() {
        fs::create_dir_all(folder).map_err(|error| Failure::Write(folder.into(), error))?;
    }
    // Until the process ends.
    let plan: &'static Plan = Box::leak(Box::new(Plan {
        program: Program::new(arguments.stacks.into()),
        keys: keys(&folder.join("key"))?,
        round_trip: Duration::from_millis(arguments.round_trip),
        memory: arguments.memory << 10,
        recordings: arguments.recordings,
        date: arguments.date,
    }));
    let mut parts: Vec<Vec<(Guest, TcpListener)>> = Vec::new();
    parts.resize_with(arguments.threads.into(), Vec::new);
    let mut senders = BTreeMap::new();
    let mut fleet = HEAD.to_owned();
    for (number, part) in (0..arguments.guests).zip((0..parts.len()).cycle()) {
        let address = address(number, arguments.port);
        let listener = TcpListener::bind(address).map_err(Failure::listen(address))?;
        listener.set_nonblocking(true)?;
        let address = listener.local_addr()?;
        let name = format!("guest-{number:04}");
        let _ = write!(
            fleet,
            "\n[[guests]]\nname = \"{name}\"\naddress = \"{address}\"\nlabels = {{ app \
             = \"app-{}\" }}\n",
            number % 10
        );
        let (sender, orders) = unbounded_channel();
        senders.insert(name.clone(), sender);
        let guest = Guest { plan, name, address, orders, rests: false, lives: Vec::new() };
        parts[part].push((guest, listener));
    }
    write(&folder.join("symbols"), &Program::symbols())?;
    write(&arguments.fleet, &fleet)?;
    let interrupt = Interrupt::default();
    signals::listen(&interrupt)?;
    thread::scope(|scope| {
        let parts = parts.into_iter().map(|part| scope.spawn(|| serve(part)));
        let parts: Vec<_> = parts.collect();
        // Whoever started the program may wait for this line.
        eprintln!("serving {} guests of {}", arguments.guests, arguments.fleet.display());
        command(arguments, senders, &interrupt);
        let mut guests = Vec::new();
        for part in parts {
            let part = part.join();
            guests.extend(part.map_err(|_| Failure::Other("a thread panicked".into()))??);
        }
        Ok(report::report(arguments, guests))
    })
}

/// Runs the guests until nobody can tell them anything more.
fn serve(part: Vec<(Guest, TcpListener)>) -> Result<Vec<Value>, Failure> {
    let runtime = runtime::Builder::new_current_thread().enable_all().build()?;
    let local = LocalSet::new();
    local.block_on(&runtime, async {
        let mut guests = JoinSet::new();
        for (guest, listener) in part {
            guests.spawn_local(guest.run(listener));
        }
        let mut ticks = Vec::new();
        while let Some(guest) = guests.join_next().await {
            ticks.push(guest.map_err(|error| Failure::Other(error.to_string()))??);
        }
        Ok(ticks)
    })
}

/// Passes on orders until the time is over, and then ends the guests.
fn command(
    arguments: &Arguments,
    guests: BTreeMap<String, UnboundedSender<Order>>,
    interrupt: &Interrupt,
) {
    let orders = Orders::read();
    let start = Instant::now();
    let seconds = |seconds: f64| Duration::from_secs_f64(seconds.clamp(0.0, 1e8));
    let (rest_at, end) =
        (seconds(arguments.seconds), seconds(arguments.seconds) + seconds(arguments.rest));
    let mut rests = false;
    while start.elapsed() < end && !interrupt.stop() {
        if !rests && start.elapsed() >= rest_at {
            rests = true;
            orders::send(&guests, "all", Order::Rest);
        }
        if orders.pass_on(&guests, Duration::from_millis(50)).is_break() {
            return;
        }
    }
}

/// The guests' key, which clients find in this file.
fn keys(path: &Path) -> Result<Keys, Failure> {
    let wrong = |error: &dyn std::fmt::Display| Failure::Other(error.to_string());
    let key = if path.exists() {
        Key::read(path).map_err(|error| wrong(&error))?
    } else {
        let key = Key::generate().map_err(|error| wrong(&error))?;
        let written = key.write_new(path, key::Role::Control);
        written.map_err(|error| wrong(&error))?;
        key
    };
    let key = unikprof_agent::Key::parse(&key.to_text()).map_err(|error| wrong(&error))?;
    let mut keys = Keys::new();
    keys.add(Role::Control, key).map_err(|error| wrong(&error))?;
    Ok(keys)
}

fn address(number: u32, port: u16) -> SocketAddr {
    let [high, low] = [number / 250, 1 + number % 250].map(|part| part as u8);
    SocketAddr::from((Ipv4Addr::new(127, 77, high, low), port))
}

fn write(path: &Path, text: &str) -> Result<(), Failure> {
    fs::write(path, text).map_err(|error| Failure::Write(path.into(), error))
}
