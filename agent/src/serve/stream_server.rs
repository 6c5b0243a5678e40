//! Serves byte streams, for guests with their own TCP stack.
//!
//! The guest accepts connections and wraps each in a [`Connection`]. Its loop calls
//! [`Connection::poll`] whenever a stream may be ready, and [`Service::advance`] when that is due.
//! Nothing here waits: streams are read and written only while they report that they are ready.

use embedded_io::{Read, ReadReady, Write, WriteReady};

use crate::ground::platform::Platform;
use crate::serve::service::{Service, SessionId};

/// One client on a stream of the guest.
#[derive(Debug)]
pub struct Connection<S> {
    stream: S,
    session: SessionId,
    input: Buffer<512>,
    output: Buffer<4096>,
}

/// The state of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress {
    /// The conversation continues. Poll again when the stream is ready (to be read only if the
    /// connection [wants input](Connection::wants_input)), and when [`Service::advance`] is due,
    /// which is at once if the time of one poll was used up.
    Open,
    /// The conversation is over: close the connection.
    Over,
}

impl<S: Read + Write + ReadReady + WriteReady> Connection<S> {
    /// Begins a conversation on `stream`.
    ///
    /// # Errors
    ///
    /// Returns the stream if all sessions are in use: send [`Service::busy_answer`] to the client
    /// and close it.
    pub fn open<P: Platform>(service: &mut Service<'_, '_, P>, stream: S) -> Result<Self, S> {
        match service.open() {
            Some(session) => {
                Ok(Self { stream, session, input: Buffer::default(), output: Buffer::default() })
            }
            None => Err(stream),
        }
    }

    /// Moves bytes in both directions until neither moves, or until the time of one poll is used
    /// up: 1 ms, of this call or of all since [`Service::begin_work`].
    ///
    /// # Errors
    /// Those of the stream; the connection should then be closed.
    pub fn poll<P: Platform>(
        &mut self,
        service: &mut Service<'_, '_, P>,
    ) -> Result<Progress, S::Error> {
        let progress = service.limited(|service| self.exchange(service));
        service.set_undelivered(self.session, self.has_output());
        progress
    }

    fn exchange<P: Platform>(
        &mut self,
        service: &mut Service<'_, '_, P>,
    ) -> Result<Progress, S::Error> {
        loop {
            let mut moved = false;
            if self.input.is_empty() && self.stream.read_ready()? {
                match self.stream.read(self.input.space())? {
                    0 => return Ok(Progress::Over),
                    length => self.input.fill(length),
                }
            }
            if self.output.is_empty() {
                let length = service.transmit(self.session, self.output.space());
                self.output.fill(length);
            }
            // After `transmit` too: the waiting bytes of a session that has just ended must not be
            // sent.
            if service.is_given_up(self.session) {
                return Ok(Progress::Over);
            }
            if !self.output.is_empty() && self.stream.write_ready()? {
                let written = self.stream.write(self.output.filled())?;
                self.output.take(written);
                moved |= written > 0;
            }
            // After the answers: the bytes that were left by the last poll may have room now, and
            // perhaps nothing else will cause another poll.
            if !self.input.is_empty() {
                let taken = service.receive(self.session, self.input.filled());
                self.input.take(taken);
                moved |= taken > 0;
            }
            if self.output.is_empty() && service.is_over(self.session) {
                return Ok(Progress::Over);
            }
            if !moved || service.is_out_of_time() {
                return Ok(Progress::Open);
            }
        }
    }

    /// Whether bytes wait until the stream accepts them.
    pub fn has_output(&self) -> bool {
        !self.output.is_empty()
    }

    /// Whether the guest should be woken when the stream has bytes to read. It should not while the
    /// client does not read its answers, or waits for its part of the
    /// [share](Service::set_cpu_share): its bytes would not be accepted, and the stream would stay
    /// ready and wake the guest again and again.
    pub fn wants_input<P: Platform>(&self, service: &Service<'_, '_, P>) -> bool {
        !self.has_output() && !service.is_deferred(self.session)
    }

    /// The stream.
    pub fn stream(&self) -> &S {
        &self.stream
    }

    /// Ends the conversation and returns the stream, to be closed.
    pub fn close<P: Platform>(self, service: &mut Service<'_, '_, P>) -> S {
        service.close(self.session);
        self.stream
    }
}

/// Bytes on their way from one side to the other.
#[derive(Debug)]
struct Buffer<const N: usize> {
    bytes: [u8; N],
    start: usize,
    end: usize,
}

impl<const N: usize> Default for Buffer<N> {
    fn default() -> Self {
        Self { bytes: [0; N], start: 0, end: 0 }
    }
}

impl<const N: usize> Buffer<N> {
    fn is_empty(&self) -> bool {
        self.start == self.end
    }

    /// The whole buffer, which must be empty; call [`fill`](Self::fill) with the number of bytes
    /// written.
    fn space(&mut self) -> &mut [u8] {
        &mut self.bytes
    }

    fn fill(&mut self, length: usize) {
        self.start = 0;
        self.end = length.min(N);
    }

    fn filled(&self) -> &[u8] {
        self.bytes.get(self.start..self.end).unwrap_or_default()
    }

    fn take(&mut self, length: usize) {
        self.start = (self.start + length).min(self.end);
    }
}
