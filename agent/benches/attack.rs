//! Measures the longest poll of an agent with keys under attack by hostile peers.
//!
//! ```text
//! cargo bench -p unikprof-agent --features noise,smoltcp --bench attack
//! ```
//!
//! The agent uses its own TCP server and real time; the peers are network stacks on the same wire,
//! in the same thread. A poll is timed from outside, by the thread's CPU time and by the clock,
//! which includes other programs of the machine.
#![allow(clippy::unwrap_used, unsafe_code)]

#[path = "../tests/it/client/mod.rs"]
mod client;
#[path = "../tests/it/fake_guest/mod.rs"]
mod fake_guest;
mod harness;
#[path = "../tests/it/keyed/mod.rs"]
mod keyed;
#[path = "../tests/it/network/mod.rs"]
mod network;

use std::time::{Duration, Instant};

use client::{Frame, encoded, frames, longest_request, read, whole};
use keyed::{CONTROL, Client, OTHER, VIEW, first_message};
use network::{Port, World, ipv4};
use smoltcp::phy::Medium;
use unikprof_agent::SESSIONS;
use unikprof_agent::tcp_server::smoltcp;
use unikprof_proto::code::message_type;
use unikprof_proto::message::{Check, HandshakeReply, Peers, Pending, Start, Status, Stop};
use unikprof_proto::preamble;

/// The duration of each kind of attack.
const ATTACK: Duration = Duration::from_secs(4);
/// The duration of one generation of peers, after which the next one connects.
const GENERATION: Duration = Duration::from_millis(40);
/// More than there are sockets, so that all are always in use.
const PEERS: usize = 8;
/// The number of distinct stacks in the recording that is fetched.
const STACKS: u64 = 60_000;

#[derive(Clone, Copy, PartialEq, Eq)]
enum Attack {
    /// No hostile peer, only the client with a key.
    Nobody,
    /// Replayed first messages: each costs the agent two curve multiplications.
    Replays,
    /// First messages with keys that the agent does not have.
    UnknownKeys,
    /// Preambles, then frames of every type with random bodies.
    Fuzz,
    /// Records that cannot be decrypted, after a replayed first message.
    Records,
    /// Clients with the view key that request everything repeatedly and read 512 bytes at a time.
    SlowReaders,
    /// Clients with the control key that send 16 KiB of rows at once.
    Writers,
    /// All of these at once.
    All,
}

fn main() {
    if !harness::asked_to_measure() {
        return;
    }
    println!(
        "| peers | polls | p99 | p99.9 | p99.99 | longest | by the clock, longest | by the agent's \
         account |"
    );
    println!("|---|---|---|---|---|---|---|---|");
    for (name, attack) in [
        ("nobody hostile, a download", Attack::Nobody),
        ("replayed handshakes", Attack::Replays),
        ("handshakes with unknown keys", Attack::UnknownKeys),
        ("fuzzed frames", Attack::Fuzz),
        ("forged records", Attack::Records),
        ("slow readers with a key", Attack::SlowReaders),
        ("writers with a key", Attack::Writers),
        ("all of these", Attack::All),
    ] {
        measure(name, attack);
    }
}

fn measure(name: &str, attack: Attack) {
    let mut bench = Bench::new();
    let until = Instant::now() + ATTACK;
    let mut generations = 0;
    while Instant::now() < until {
        bench.generation(attack, generations);
        generations += 1;
    }
    let (longest_ns, peers) = bench.status();
    let Bench { times, clock, .. } = &mut bench;
    times.sort_unstable();
    let us = |time: &Duration| time.as_nanos() as f64 / 1e3;
    let at = |part: f64| us(&times[((times.len() - 1) as f64 * part) as usize]);
    println!(
        "| {name} | {} | {:.0} µs | {:.0} µs | {:.0} µs | {:.0} µs | {:.0} µs | {:.0} µs |",
        times.len(),
        at(0.99),
        at(0.999),
        at(0.9999),
        at(1.0),
        us(clock),
        longest_ns as f64 / 1e3
    );
    eprintln!("{name}: {generations} generations; {peers:?}");
}

struct Bench {
    world: World<Port>,
    fetch: Vec<u8>,
    /// The CPU time of every poll with work.
    times: Vec<Duration>,
    /// The longest of these polls by the clock.
    clock: Duration,
    random: u64,
}

impl Bench {
    /// A guest whose recording has ended and waits to be fetched.
    fn new() -> Self {
        let world = World::with_access(keyed::access(), Medium::Ethernet, ipv4, |port| port);
        let mut bench =
            Self { world, fetch: Vec::new(), times: Vec::new(), clock: Duration::ZERO, random: 1 };
        // The recording is complete before the silent client would time out.
        let start = encoded(&Start::running_time("attack", 20_000));
        let mut client = bench.connect(CONTROL, 65_535);
        bench.ask(&mut client, &start, message_type::STARTED);
        for n in 0..STACKS {
            assert!(fake_guest::tick(bench.world.agent, &[n % 251, n / 251]));
        }
        let stop = encoded(&Stop { recording: 0 });
        let pending = bench.ask(&mut client, &stop, message_type::PENDING);
        let pending: Pending = read(&pending);
        bench.fetch = encoded(&whole(pending.first_epoch));
        bench.leave();
        bench.world.agent.platform().follow_the_machine();
        bench
    }

    /// The agent's own report of its longest piece of work and of its peers.
    fn status(&mut self) -> (u64, Peers) {
        let mut client = self.connect(CONTROL, 65_535);
        let status = self.ask(&mut client, &encoded(&Check {}), message_type::STATUS);
        let status: Status = read(&status);
        (status.server_longest_ns, status.peers)
    }

    /// Connects hostile peers and a client with a key, which fetches everything.
    fn generation(&mut self, attack: Attack, generation: u64) {
        let mut hostile = Vec::new();
        let mut client = self.connect(CONTROL, 65_535);
        // The role applies only after the first request.
        self.ask(&mut client, &encoded(&Check {}), message_type::STATUS);
        for number in 0..PEERS as u64 {
            let kinds = [
                Attack::Replays,
                Attack::UnknownKeys,
                Attack::Fuzz,
                Attack::Records,
                Attack::SlowReaders,
                Attack::Writers,
            ];
            let kind = match attack {
                Attack::Nobody => break,
                Attack::All => kinds[((generation + number) % 6) as usize],
                one => one,
            };
            hostile.extend(self.attack(kind).map(|peer| (peer, kind)));
        }
        let fetch = client.seal(&self.fetch);
        self.world.peers[client.session].send(&fetch);
        let until = Instant::now() + GENERATION;
        let mut opened = Vec::new();
        // The client with a key must be served, however little CPU time this thread gets.
        while Instant::now() < until || opened.is_empty() {
            self.poll();
            let bytes = self.world.peers[client.session].take_bytes();
            opened.extend(client.open(&bytes));
            for (peer, kind) in &hostile {
                let peer = &mut self.world.peers[*peer];
                if *kind == Attack::SlowReaders {
                    peer.reads = self.random.is_multiple_of(4);
                    self.random = self.random.wrapping_mul(5).wrapping_add(1);
                }
            }
        }
        self.leave();
    }

    /// A hostile peer; `None` if all sessions are taken.
    fn attack(&mut self, kind: Attack) -> Option<usize> {
        let sent = preamble::encode(preamble::KEYED);
        match kind {
            Attack::Replays | Attack::UnknownKeys => {
                let key = if kind == Attack::UnknownKeys { OTHER } else { VIEW };
                let client = self.world.connect_silent(4096);
                let first = first_message(client, key, sent).first;
                self.world.peers[client].send(&sent);
                self.world.peers[client].send(&first);
                Some(client)
            }
            Attack::Records => {
                let client = self.try_connect(VIEW, 4096)?.session;
                let mut record = 1040_u16.to_le_bytes().to_vec();
                record.extend(self.noise(1040));
                self.world.peers[client].send(&record);
                Some(client)
            }
            Attack::Fuzz => {
                let client = self.world.connect_silent(4096);
                self.world.peers[client].send(&sent);
                let noise = self.noise(1500);
                self.world.peers[client].send(&noise);
                Some(client)
            }
            Attack::SlowReaders => {
                let mut client = self.try_connect(VIEW, 512)?;
                let request = client.seal(&self.fetch);
                self.world.peers[client.session].send(&request);
                Some(client.session)
            }
            Attack::Writers => {
                let mut client = self.try_connect(CONTROL, 4096)?;
                for part in longest_request().repeat(16).chunks(1024) {
                    let record = client.seal(part);
                    self.world.peers[client.session].send(&record);
                }
                Some(client.session)
            }
            Attack::Nobody | Attack::All => None,
        }
    }

    fn noise(&mut self, bytes: usize) -> Vec<u8> {
        let mut next = || {
            self.random ^= self.random << 13;
            self.random ^= self.random >> 7;
            self.random ^= self.random << 17;
            self.random as u8
        };
        (0..bytes).map(|_| next()).collect()
    }

    /// A client after its handshake.
    fn connect(&mut self, key: [u8; 32], receive_bytes: usize) -> Client<usize> {
        self.try_connect(key, receive_bytes).unwrap()
    }

    /// The same; `None` if all sessions are taken.
    fn try_connect(&mut self, key: [u8; 32], receive_bytes: usize) -> Option<Client<usize>> {
        let client = self.world.connect_silent(receive_bytes);
        let sent = preamble::encode(preamble::KEYED);
        let shaking = first_message(client, key, sent);
        self.world.peers[client].send(&sent);
        self.world.peers[client].send(&shaking.first);
        let until = Instant::now() + Duration::from_secs(5);
        loop {
            self.poll();
            match self.world.peers[client].take_frame() {
                Ok(Some(reply)) if reply.kind == message_type::HANDSHAKE_REPLY => {
                    let reply: HandshakeReply = read(&reply);
                    return Some(shaking.finish(&encoded(&reply)));
                }
                Ok(None) if !self.world.peers[client].is_over() => {}
                _ => return None,
            }
            assert!(Instant::now() < until, "no answer to a handshake");
        }
    }

    fn ask(&mut self, client: &mut Client<usize>, request: &[u8], kind: u16) -> Frame {
        let record = client.seal(request);
        self.world.peers[client.session].send(&record);
        let until = Instant::now() + Duration::from_secs(5);
        loop {
            self.poll();
            let bytes = self.world.peers[client.session].take_bytes();
            let opened = client.open(&bytes);
            // A status consists of several frames.
            let mut answers = frames(&opened).into_iter();
            if let Some(answer) =
                answers.find(|answer| answer.kind != message_type::RECORDING_STATUS)
            {
                assert_eq!(answer.kind, kind);
                return answer;
            }
            assert!(Instant::now() < until, "no answer");
        }
    }

    /// Disconnects all peers and polls until the guest has noticed.
    fn leave(&mut self) {
        for peer in &mut self.world.peers {
            peer.abort();
        }
        let until = Instant::now() + Duration::from_millis(5);
        while Instant::now() < until {
            self.poll();
        }
        self.world.forget_clients();
    }

    /// Polls the guest once, timed, and then all peers.
    fn poll(&mut self) {
        let (clock, processor) = (Instant::now(), harness::thread_cpu_ns());
        self.world.poll_guest();
        let took = Duration::from_nanos(harness::thread_cpu_ns() - processor);
        self.clock = self.clock.max(clock.elapsed());
        self.times.push(took);
        let now = self.world.now();
        for peer in &mut self.world.peers {
            peer.poll(now);
        }
        let platform = self.world.agent.platform();
        if platform.followed.get().is_none() {
            platform.idle(100_000);
        }
    }
}

// There is one socket more than sessions; the peers above take all of both.
const _: () = assert!(PEERS > SESSIONS + 1);
