//! The service thread of hosted guests: accepts clients and moves bytes between sockets and the
//! service.
#![allow(unsafe_code)]

use std::boxed::Box;
use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsRawFd, RawFd};
use std::thread;
use std::vec::Vec;

use libc::pollfd;

use super::platform::Hosted;
use super::{Config, Error, HostedAgent, Listen};
use crate::ground::platform::Platform;
use crate::serve::service::{SESSIONS, ServeError, Service};
use crate::serve::stream_server::{Connection, Progress};

/// An open listening socket or TAP device that is not served yet.
pub(super) enum Network {
    /// The operating system's sockets.
    Sockets(TcpListener, SocketAddr),
    #[cfg(feature = "tap")]
    Tap(super::tap::OpenTap),
}

impl Network {
    pub(super) fn open(listen: &Listen) -> Result<Self, Error> {
        let address = match listen {
            Listen::Loopback(port) => SocketAddr::from((Ipv4Addr::LOCALHOST, *port)),
            Listen::Address(address) => *address,
            #[cfg(feature = "tap")]
            Listen::Tap(tap) => return super::tap::OpenTap::open(tap).map(Self::Tap),
        };
        let failed = |error| Error::Listen(address, error);
        let listener = TcpListener::bind(address).map_err(failed)?;
        listener.set_nonblocking(true).map_err(failed)?;
        let address = listener.local_addr().map_err(failed)?;
        Ok(Self::Sockets(listener, address))
    }

    /// The address that clients connect to.
    pub(super) fn address(&self) -> SocketAddr {
        match self {
            Self::Sockets(_, address) => *address,
            #[cfg(feature = "tap")]
            Self::Tap(tap) => tap.address(),
        }
    }

    /// Starts the thread that serves `agent` until the process ends.
    pub(super) fn spawn(self, agent: &'static HostedAgent, config: &Config) -> Result<(), Error> {
        let mut service = Service::new(agent, config.access).map_err(|error| match error {
            ServeError::Served => Error::Started,
            error => Error::Serve(error),
        })?;
        service.set_cpu_share(config.cpu_share_permille);
        if let Some(recording) = &config.record_at_boot {
            let begun = service.start_at_boot(recording);
            begun.map_err(|error| Error::Boot(Box::new(error)))?;
        }
        match self {
            Self::Sockets(listener, _) => spawn(move || serve(service, &listener)),
            #[cfg(feature = "tap")]
            Self::Tap(tap) => {
                let server = tap.server(&service)?;
                spawn(move || server.serve(service))
            }
        }
    }
}

fn spawn(serve: impl FnOnce() + Send + 'static) -> Result<(), Error> {
    thread::Builder::new()
        .name("unikprof".into())
        .spawn(serve)
        .map(drop)
        .map_err(|error| Error::System("starting the service thread", error))
}

fn serve(mut service: Service<'static, 'static, Hosted>, listener: &TcpListener) {
    // Includes connections that are just being replaced by others.
    let mut connections: Vec<Connection<Socket>> = Vec::with_capacity(2 * SESSIONS);
    loop {
        let work = service.begin_work();
        accept(&mut service, listener, &mut connections);
        // Rotates the polling order, so that no connection starves another.
        if !connections.is_empty() {
            connections.rotate_left(1);
        }
        let mut index = 0;
        while let Some(connection) = connections.get_mut(index) {
            match connection.poll(&mut service) {
                Ok(Progress::Open) => index += 1,
                Ok(Progress::Over) | Err(_) => {
                    connections.swap_remove(index).close(&mut service);
                }
            }
        }
        let next_ns = service.advance();
        service.end_work(work);
        let door = service.place_from_ns();
        wait(&service, listener, &connections, door, next_ns);
    }
}

fn accept(
    service: &mut Service<'static, 'static, Hosted>,
    listener: &TcpListener,
    connections: &mut Vec<Connection<Socket>>,
) {
    // The maximum number of connections that are accepted in one round; the others stay in the
    // backlog.
    for _ in 0..2 * SESSIONS {
        // New connections wait in the backlog in order of arrival until a session is free.
        if service.place_from_ns().is_some() {
            return;
        }
        let Ok((stream, _)) = listener.accept() else {
            return;
        };
        if stream.set_nonblocking(true).and_then(|()| stream.set_nodelay(true)).is_err() {
            continue;
        }
        match Connection::open(service, Socket(stream)) {
            Ok(connection) => connections.push(connection),
            Err(Socket(mut stream)) => {
                let mut answer = [0; 128];
                let length = service.busy_answer(&mut answer);
                let _ = stream.write(&answer[..length]);
            }
        }
    }
}

/// Waits until a socket is ready or `next_ns` is reached. New connections are not waited for before
/// `door`, in ns.
fn wait(
    service: &Service<'static, 'static, Hosted>,
    listener: &TcpListener,
    connections: &[Connection<Socket>],
    door: Option<u64>,
    next_ns: Option<u64>,
) {
    let mut fds = [pollfd { fd: -1, events: 0, revents: 0 }; 1 + SESSIONS];
    fds[0] =
        pollfd { fd: door.map_or(listener.as_raw_fd(), |_| -1), events: libc::POLLIN, revents: 0 };
    for (entry, connection) in fds[1..].iter_mut().zip(connections) {
        let mut events = 0;
        if connection.has_output() {
            events |= libc::POLLOUT;
        }
        if connection.wants_input(service) {
            events |= libc::POLLIN;
        }
        // With no events to wait for, even a hang-up must not wake the thread, because it could do
        // nothing about it yet.
        let fd = if events == 0 { -1 } else { connection.stream().0.as_raw_fd() };
        *entry = pollfd { fd, events, revents: 0 };
    }
    let next_ns = [next_ns, door].into_iter().flatten().min();
    sleep(service.agent(), &mut fds, next_ns);
}

/// Sleeps until one of `fds` is ready or `next_ns` is reached. While a recording runs, it wakes at
/// least once per interval, so that the poll writes the vCPUs' times into the rings. This thread is
/// not a vCPU, so no idle vCPU is woken.
pub(super) fn sleep(agent: &HostedAgent, fds: &mut [pollfd], next_ns: Option<u64>) {
    let now_ns = agent.platform().now_ns();
    let noting = agent.notes_times_every_ns();
    let noting_ns = noting.map(|every_ns| now_ns.saturating_add(every_ns));
    let next_ns = [next_ns, noting_ns].into_iter().flatten().min();
    let timeout_ms = next_ns.map_or(-1, |next_ns| {
        let ms = next_ns.saturating_sub(now_ns).div_ceil(1_000_000);
        i32::try_from(ms).unwrap_or(i32::MAX)
    });
    poll(fds, timeout_ms);
}

fn poll(fds: &mut [pollfd], timeout_ms: i32) -> i32 {
    // SAFETY: the pointer and the length are those of one slice.
    unsafe { libc::poll(fds.as_mut_ptr(), fds.len() as libc::nfds_t, timeout_ms) }
}

/// A non-blocking socket for a [`Connection`].
#[derive(Debug)]
struct Socket(TcpStream);

#[derive(Debug)]
struct SocketError;

impl std::fmt::Display for SocketError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("the connection was closed")
    }
}

impl std::error::Error for SocketError {}

impl embedded_io::Error for SocketError {
    fn kind(&self) -> embedded_io::ErrorKind {
        embedded_io::ErrorKind::ConnectionReset
    }
}

impl embedded_io::ErrorType for Socket {
    type Error = SocketError;
}

impl embedded_io::Read for Socket {
    fn read(&mut self, buffer: &mut [u8]) -> Result<usize, SocketError> {
        retry(|| self.0.read(buffer))
    }
}

impl embedded_io::Write for Socket {
    fn write(&mut self, buffer: &[u8]) -> Result<usize, SocketError> {
        retry(|| self.0.write(buffer))
    }

    fn flush(&mut self) -> Result<(), SocketError> {
        Ok(())
    }
}

impl embedded_io::ReadReady for Socket {
    fn read_ready(&mut self) -> Result<bool, SocketError> {
        Ok(is_ready(self.0.as_raw_fd(), libc::POLLIN))
    }
}

impl embedded_io::WriteReady for Socket {
    fn write_ready(&mut self) -> Result<bool, SocketError> {
        Ok(is_ready(self.0.as_raw_fd(), libc::POLLOUT))
    }
}

fn is_ready(fd: RawFd, events: i16) -> bool {
    poll(&mut [pollfd { fd, events, revents: 0 }], 0) > 0
}

fn retry(mut call: impl FnMut() -> io::Result<usize>) -> Result<usize, SocketError> {
    loop {
        match call() {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            other => return other.map_err(|_| SocketError),
        }
    }
}
