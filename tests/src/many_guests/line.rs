//! A connection with the delay of a long way.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::convert::Infallible;
use std::io::{self, ErrorKind};
use std::rc::Rc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use embedded_io::{ErrorType, Read, ReadReady, Write, WriteReady};
use tokio::net::TcpStream;

/// The bytes that are on their way in each direction, at most: they are on it for half a round
/// trip, so it is as fast as a TCP window of twice as many.
const WINDOW: usize = 32 << 10;

/// A connection. Clones are the same one.
#[derive(Debug, Clone)]
pub(super) struct Line(Rc<Inner>);

#[derive(Debug)]
struct Inner {
    socket: TcpStream,
    /// Half a round trip.
    way: Duration,
    /// The client's first bytes come after a round trip for the connection.
    first: Instant,
    now: Cell<Instant>,
    inbound: RefCell<Way>,
    outbound: RefCell<Way>,
}

/// Bytes on their way, each piece with its arrival. An empty piece is the end.
#[derive(Debug, Default)]
struct Way {
    pieces: VecDeque<(Instant, Vec<u8>)>,
    bytes: usize,
    ended: bool,
}

impl Way {
    fn push(&mut self, arrival: Instant, bytes: &[u8]) {
        self.bytes += bytes.len();
        self.ended |= bytes.is_empty();
        self.pieces.push_back((arrival, bytes.into()));
    }

    fn room(&self) -> usize {
        match self.ended {
            true => 0,
            false => WINDOW.saturating_sub(self.bytes),
        }
    }

    fn arrival(&self) -> Option<Instant> {
        self.pieces.front().map(|(arrival, _)| *arrival)
    }

    /// The first piece, if it has arrived.
    fn arrived(&self, now: Instant) -> Option<&[u8]> {
        let (arrival, bytes) = self.pieces.front()?;
        (*arrival <= now).then_some(bytes)
    }

    /// Removes so many bytes of the first piece.
    fn take(&mut self, length: usize) {
        if let Some((_, bytes)) = self.pieces.front_mut() {
            bytes.drain(..length);
            self.bytes -= length;
            if bytes.is_empty() {
                self.pieces.pop_front();
            }
        }
    }
}

impl Line {
    pub(super) fn new(socket: TcpStream, round_trip: Duration, now: Instant) -> io::Result<Line> {
        socket.set_nodelay(true)?;
        let way = round_trip / 2;
        Ok(Line(Rc::new(Inner {
            socket,
            way,
            first: now + round_trip + way,
            now: Cell::new(now),
            inbound: RefCell::default(),
            outbound: RefCell::default(),
        })))
    }

    /// Moves bytes from the socket to the way in, and those that have arrived from the way out to
    /// the socket. The task is woken when the socket is ready for more.
    ///
    /// # Errors
    /// The client is gone.
    pub(super) fn pump(&self, context: &mut Context<'_>, now: Instant) -> io::Result<()> {
        let line = &*self.0;
        line.now.set(now);
        let arrival = line.first.max(now + line.way);
        let mut inbound = line.inbound.borrow_mut();
        let mut buffer = [0; 4096];
        while inbound.room() > 0
            && let Poll::Ready(ready) = line.socket.poll_read_ready(context)
        {
            ready?;
            let room = inbound.room().min(buffer.len());
            match line.socket.try_read(&mut buffer[..room]) {
                Ok(length) => inbound.push(arrival, &buffer[..length]),
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                Err(error) => return Err(error),
            }
        }
        let mut outbound = line.outbound.borrow_mut();
        while let Some(bytes) = outbound.arrived(now)
            && let Poll::Ready(ready) = line.socket.poll_write_ready(context)
        {
            ready?;
            match line.socket.try_write(bytes) {
                Ok(length) => outbound.take(length),
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// When bytes arrive next that have not yet.
    pub(super) fn next(&self) -> Option<Instant> {
        let line = &*self.0;
        let ways = [&line.inbound, &line.outbound];
        let arrivals = ways.into_iter().filter_map(|way| way.borrow().arrival());
        arrivals.filter(|at| *at > line.now.get()).min()
    }

    /// Sends the only bytes of a connection.
    pub(super) fn send(&self, bytes: &[u8]) {
        let arrival = self.0.first;
        self.0.outbound.borrow_mut().push(arrival, bytes);
    }

    /// Whether all bytes have reached the client.
    pub(super) fn is_flushed(&self) -> bool {
        self.0.outbound.borrow().pieces.is_empty()
    }
}

impl ErrorType for Line {
    type Error = Infallible;
}

impl Read for Line {
    fn read(&mut self, buffer: &mut [u8]) -> Result<usize, Infallible> {
        let mut inbound = self.0.inbound.borrow_mut();
        let arrived = inbound.arrived(self.0.now.get()).unwrap_or_default();
        let length = arrived.len().min(buffer.len());
        buffer[..length].copy_from_slice(&arrived[..length]);
        if length > 0 {
            inbound.take(length);
        }
        Ok(length)
    }
}

impl ReadReady for Line {
    fn read_ready(&mut self) -> Result<bool, Infallible> {
        Ok(self.0.inbound.borrow().arrived(self.0.now.get()).is_some())
    }
}

impl Write for Line {
    fn write(&mut self, bytes: &[u8]) -> Result<usize, Infallible> {
        let mut outbound = self.0.outbound.borrow_mut();
        let length = bytes.len().min(outbound.room());
        if length > 0 {
            outbound.push(self.0.now.get() + self.0.way, &bytes[..length]);
        }
        Ok(length)
    }

    fn flush(&mut self) -> Result<(), Infallible> {
        Ok(())
    }
}

impl WriteReady for Line {
    fn write_ready(&mut self) -> Result<bool, Infallible> {
        Ok(self.0.outbound.borrow().room() > 0)
    }
}
