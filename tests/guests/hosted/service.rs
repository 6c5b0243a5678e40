//! The demo service over TCP, so that another program can measure its response times; and a second
//! vCPU with bursts of the same work, which blocks in between. Each request and each burst causes
//! events: a mark with its number, a span around it, and a counter with its number.
//!
//! The load prints `serving on ADDRESS` when both are registered. A request to that address is its
//! length in bytes (u32, little endian) and that many bytes; so is its answer.

use std::error::Error;
use std::io::{self, ErrorKind, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::mpsc::{Sender, channel};
use std::thread;
use std::time::Duration;

use unikprof_agent::hosted::{self, Guest, HostedAgent, Vcpu};
use unikprof_agent::{EventName, EventNameError};
use unikprof_demo_service::{RequestGenerator, Service};

use crate::stop::Stop;

pub(crate) const VCPUS: u32 = 2;

const SEED: u64 = 1;
const NOTES: usize = 128;
const MOST: usize = 1 << 20;
/// The interval at which a wait checks for the guest's end.
const SLICE: Duration = Duration::from_millis(200);

const BURST: usize = 40;
const PAUSE: Duration = Duration::from_millis(50);

pub(crate) fn run(guest: &Guest, stop: &Stop) -> Result<(), Box<dyn Error>> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    listener.set_nonblocking(true)?;
    let (registered, other) = channel();
    let [requests, teller] = [Teller::new(guest, "request")?, Teller::new(guest, "burst")?];
    thread::scope(|scope| {
        let bursts = scope.spawn(|| bursts(guest, stop, teller, registered));
        let vcpu = guest.register_thread()?;
        // If the registration failed, its thread has ended and reported the reason.
        let _ = other.recv();
        println!("serving on {}", listener.local_addr()?);
        let served = serve(&vcpu, stop, &listener, requests);
        bursts.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))?;
        served
    })?;
    Ok(())
}

/// Reports each of a sequence of operations by events.
struct Teller {
    agent: &'static HostedAgent,
    name: EventName,
    /// The number of operations reported so far.
    number: u64,
}

impl Teller {
    fn new(guest: &Guest, name: &str) -> Result<Teller, EventNameError> {
        let agent = guest.agent();
        Ok(Teller { agent, name: agent.event_name(name)?, number: 0 })
    }

    /// Performs one operation and reports it.
    fn tell(&mut self, work: impl FnOnce()) {
        self.number += 1;
        self.agent.mark(self.name, self.number);
        let span = self.agent.span(self.name);
        work();
        drop(span);
        self.agent.counter(self.name, self.number as i64);
    }
}

fn serve(
    vcpu: &Vcpu,
    stop: &Stop,
    listener: &TcpListener,
    mut teller: Teller,
) -> Result<(), Box<dyn Error>> {
    let mut service = Service::new(SEED, NOTES);
    while !stop.is_set() {
        match listener.accept() {
            Ok((stream, _)) => {
                // A client that disconnects ends only its own connection.
                if let Err(error) = answer(vcpu, stop, &mut service, &mut teller, stream) {
                    eprintln!("a client of the service: {error}");
                }
            }
            Err(error) if error.kind() == ErrorKind::WouldBlock => {
                vcpu.block(|| thread::sleep(Duration::from_millis(10)));
            }
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}

fn answer(
    vcpu: &Vcpu,
    stop: &Stop,
    service: &mut Service,
    teller: &mut Teller,
    mut stream: TcpStream,
) -> io::Result<()> {
    stream.set_nonblocking(false)?;
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(SLICE))?;
    let mut length = [0; 4];
    let (mut request, mut response, mut answer) = (Vec::new(), Vec::new(), Vec::new());
    while vcpu.block(|| fill(&mut stream, &mut length, stop))? {
        let bytes = u32::from_le_bytes(length) as usize;
        if bytes > MOST {
            return Err(io::Error::new(ErrorKind::InvalidData, "a request too long"));
        }
        request.resize(bytes, 0);
        if !vcpu.block(|| fill(&mut stream, &mut request, stop))? {
            return Ok(());
        }
        teller.tell(|| {
            service.handle(&request, &mut response);
        });
        answer.clear();
        answer.extend((response.len() as u32).to_le_bytes());
        answer.extend(&response);
        stream.write_all(&answer)?;
    }
    Ok(())
}

/// Reads until `buffer` is full; `false` if the stream ends or the guest should end.
fn fill(stream: &mut TcpStream, buffer: &mut [u8], stop: &Stop) -> io::Result<bool> {
    let mut filled = 0;
    while filled < buffer.len() {
        match stream.read(&mut buffer[filled..]) {
            Ok(0) => return Ok(false),
            Ok(length) => filled += length,
            Err(error) if is_pause(error.kind()) && !stop.is_set() => {}
            Err(error) if is_pause(error.kind()) => return Ok(false),
            Err(error) => return Err(error),
        }
    }
    Ok(true)
}

fn is_pause(kind: ErrorKind) -> bool {
    matches!(kind, ErrorKind::WouldBlock | ErrorKind::TimedOut | ErrorKind::Interrupted)
}

fn bursts(
    guest: &Guest,
    stop: &Stop,
    mut teller: Teller,
    registered: Sender<()>,
) -> Result<(), hosted::Error> {
    let vcpu = guest.register_thread()?;
    let _ = registered.send(());
    let mut service = Service::new(SEED + 1, NOTES);
    let mut requests = RequestGenerator::new(SEED + 1, NOTES);
    let mut response = Vec::new();
    while !stop.is_set() {
        teller.tell(|| {
            for request in requests.by_ref().take(BURST) {
                service.handle(&request, &mut response);
            }
        });
        vcpu.block(|| thread::sleep(PAUSE));
    }
    Ok(())
}
