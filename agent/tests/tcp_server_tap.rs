//! A process of its own, which moves to another network namespace: a hosted guest with its own
//! address on a TAP device, and Linux's TCP as its client.
//!
//! The test needs root and `/dev/net/tun`; the device is in a private network namespace. Without
//! them the test is skipped by name; `UNIKPROF_REQUIRE_ALL=1` makes that a failure.
#![allow(clippy::unwrap_used, clippy::panic, unsafe_code)]

#[path = "it/client/mod.rs"]
mod client;

use std::io::{self, ErrorKind, Read, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpStream};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use client::{Frame, HELLO, encoded, read, receive_whole, whole};
use unikprof_agent::hosted::{self, Config, Guest, Listen, Tap};
use unikprof_agent::{Access, SESSIONS};
use unikprof_proto::code::{message_type, refusal};
use unikprof_proto::frame::Message;
use unikprof_proto::message::{
    Acknowledge, Acknowledged, Check, Mapping, Pending, RecordingStatus, Refusal, Start, Stop,
    Welcome,
};
use unikprof_proto::preamble;
use unikprof_test_kit::frames::{read_once, take_frame};

const DEVICE: &str = "unikprof0";
const GUEST: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 5);
const HOST: &str = "10.77.0.1/24";
/// The maximum time for any step.
const PATIENCE: Duration = Duration::from_secs(60);

#[test]
fn a_linux_client_is_served_on_a_tap_device() {
    if let Err(reason) = enter_a_namespace() {
        const REQUIRE: &str = "UNIKPROF_REQUIRE_ALL";
        let is_required = std::env::var_os(REQUIRE).is_some_and(|value| value == "1");
        assert!(!is_required, "{REQUIRE} is set: {reason}");
        // Not `eprintln!`: the harness hides the output of a passing test.
        let line = "SKIPPED a_linux_client_is_served_on_a_tap_device";
        writeln!(io::stderr(), "{line}: {reason}").unwrap();
        return;
    }
    let guest = hosted::start(Config {
        listen: Listen::Tap(Tap {
            device: DEVICE,
            address: IpAddr::V4(GUEST),
            prefix: 24,
            gateway: None,
            port: 7777,
        }),
        ..Config::new(Access::Open)
    })
    .unwrap();
    ip(&["address", "add", HOST, "dev", DEVICE]);
    ip(&["link", "set", DEVICE, "up"]);

    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let _ends = Ends(&done);
        scope.spawn(|| burn(guest, &done));
        records(guest.address());
        crowds(guest.address());
    });
    ip(&["link", "delete", DEVICE]);
    sleeps_without_its_device();
}

/// A recording from start to acknowledge, over a link that goes down in between.
fn records(address: SocketAddr) {
    let mut client = Client::connect(address).unwrap();
    client.send(&HELLO);
    let welcome = client.frame();
    for _ in 0..read::<Welcome<'_>>(&welcome).mappings {
        assert_eq!(client.frame().kind, <Mapping<'_> as Message<'_>>::TYPE);
    }
    client.send(&Start::running_time("tap", 1_000_000));
    assert_eq!(client.frame().kind, message_type::STARTED);

    ip(&["link", "set", DEVICE, "down"]);
    ip(&["link", "set", DEVICE, "up"]);
    let began = Instant::now();
    loop {
        client.send(&Check {});
        assert_eq!(client.frame().kind, message_type::STATUS);
        let frame = client.frame();
        let status: RecordingStatus<'_> = read(&frame);
        if status.counters.recorded >= 50 {
            break;
        }
        assert!(began.elapsed() < PATIENCE, "{:?}", status.counters);
        std::thread::sleep(Duration::from_millis(10));
    }
    client.send(&Stop { recording: 0 });
    let epoch = read::<Pending>(&client.frame()).first_epoch;
    client.send(&whole(epoch));
    let got = receive_whole(|| Ok::<_, ()>(client.frame())).unwrap();
    assert!(got.samples >= 50);
    client.send(&Acknowledge { epoch });
    assert_eq!(read::<Acknowledged>(&client.frame()).epoch, epoch);
}

/// One client too many gets a refusal, and further ones are reset.
fn crowds(address: SocketAddr) {
    let mut clients: Vec<Client> = Vec::new();
    let began = Instant::now();
    // The session of the previous client is free once its FIN has arrived.
    while clients.len() < SESSIONS {
        assert!(began.elapsed() < PATIENCE);
        let mut client = Client::connect(address).unwrap();
        client.send(&Check {});
        if client.frame().kind == message_type::STATUS {
            clients.push(client);
        }
    }
    let mut busy = Client::connect(address).unwrap();
    let frame = busy.frame();
    assert_eq!(read::<Refusal<'_>>(&frame).code, refusal::BUSY);
    let refused = Client::connect(address).map(|_| ());
    assert_eq!(refused.unwrap_err().kind(), ErrorKind::ConnectionRefused);
}

/// A service thread whose device was removed must not spin.
fn sleeps_without_its_device() {
    let began = Instant::now();
    loop {
        let before = cpu_time();
        std::thread::sleep(Duration::from_millis(200));
        if cpu_time() - before < Duration::from_millis(20) {
            return;
        }
        assert!(began.elapsed() < PATIENCE, "the service thread spins");
    }
}

/// Ends the guest's work, also when the test panics.
struct Ends<'a>(&'a AtomicBool);

impl Drop for Ends<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// The guest's work, until `done`.
fn burn(guest: Guest, done: &AtomicBool) {
    let _vcpu = guest.register_thread().unwrap();
    let mut number = 1_u64;
    while !done.load(Ordering::Relaxed) {
        number = std::hint::black_box(number.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
    }
}

/// A client on this machine's own TCP.
struct Client {
    stream: TcpStream,
    received: Vec<u8>,
}

impl Client {
    fn connect(address: SocketAddr) -> io::Result<Self> {
        let mut stream = TcpStream::connect_timeout(&address, PATIENCE)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        stream.write_all(&preamble::encode(preamble::OPEN))?;
        let mut bytes = [0; preamble::LENGTH];
        stream.read_exact(&mut bytes)?;
        assert_eq!(preamble::decode(&bytes), Ok(preamble::OPEN));
        let received = Vec::new();
        Ok(Self { stream, received })
    }

    fn send<'a, M: Message<'a>>(&mut self, message: &M) {
        self.stream.write_all(&encoded(message)).unwrap();
    }

    fn frame(&mut self) -> Frame {
        loop {
            if let Some(frame) = take_frame(&mut self.received).unwrap() {
                return frame;
            }
            let mut buffer = [0; 4096];
            let length = read_once(&mut self.stream, &mut buffer).unwrap();
            assert!(length > 0, "the agent hung up");
            self.received.extend_from_slice(&buffer[..length]);
        }
    }
}

/// Moves this thread, and those that it starts, to a private network namespace.
fn enter_a_namespace() -> Result<(), String> {
    if !std::path::Path::new("/dev/net/tun").exists() {
        return Err("there is no /dev/net/tun".into());
    }
    let found = Command::new("ip").arg("-Version").output();
    if !found.is_ok_and(|output| output.status.success()) {
        return Err("there is no `ip` command".into());
    }
    // SAFETY: it takes no pointer; it only changes what this thread's system calls see.
    if unsafe { libc::unshare(libc::CLONE_NEWNET) } != 0 {
        let error = io::Error::last_os_error();
        return Err(format!("no network namespace can be made: {error}"));
    }
    Ok(())
}

fn ip(arguments: &[&str]) {
    let output = Command::new("ip").args(arguments).output().unwrap();
    assert!(output.status.success(), "ip {arguments:?}: {output:?}");
}

fn cpu_time() -> Duration {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the structure has the required type.
    let failed = unsafe { libc::clock_gettime(libc::CLOCK_PROCESS_CPUTIME_ID, &raw mut time) } != 0;
    assert!(!failed);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}
