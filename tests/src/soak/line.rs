//! A connection to an agent, byte by byte: for peers that do what no client would.

use std::io::{self, ErrorKind, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::time::Duration;

use socket2::SockRef;
use unikprof_proto::code::refusal;
use unikprof_proto::frame::Message;
use unikprof_proto::preamble;
use unikprof_test_kit::frames::{Frame, encoded, read_once, take_frame};

/// A time longer than the agent waits for anything but a silent session, and than a busy machine
/// keeps it from its processor.
pub(crate) const PATIENCE: Duration = Duration::from_secs(50);

/// An open connection.
#[derive(Debug)]
pub struct Line {
    stream: TcpStream,
    received: Vec<u8>,
}

/// The outcome of a conversation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum End {
    /// The agent closed it.
    Closed,
    /// The agent cut it.
    Reset,
    /// The agent refused something: the code.
    Refused(u32),
    /// Nothing came for longer than the patience.
    Silent,
    /// The bytes received are nothing that an agent sends.
    Nonsense,
    /// No connection was made at all.
    Unreachable,
    /// The peer left while everything went well.
    Left,
}

impl Line {
    /// Connects; reads wait for `PATIENCE`.
    pub fn connect(address: SocketAddr) -> io::Result<Line> {
        let stream = TcpStream::connect_timeout(&address, PATIENCE)?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        stream.set_write_timeout(Some(PATIENCE))?;
        Ok(Line { stream, received: Vec::new() })
    }

    /// Sets the time that reads wait.
    pub(crate) fn wait_for(&self, patience: Duration) -> io::Result<()> {
        self.stream.set_read_timeout(Some(patience))
    }

    /// Sets the time that writes wait.
    pub(crate) fn insist_for(&self, patience: Duration) -> io::Result<()> {
        self.stream.set_write_timeout(Some(patience))
    }

    /// Takes little at a time from now on: the system keeps no more than this for us.
    pub(crate) fn keep_little(&self, bytes: usize) -> io::Result<()> {
        SockRef::from(&self.stream).set_recv_buffer_size(bytes)
    }

    pub fn send(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.stream.write_all(bytes)
    }

    pub fn send_message<'m, M: Message<'m>>(&mut self, message: &M) -> io::Result<()> {
        self.send(&encoded(message))
    }

    pub fn half_close(&self) -> io::Result<()> {
        self.stream.shutdown(Shutdown::Write)
    }

    /// Goes away without a word: what is under way is lost.
    pub(crate) fn reset(self) {
        // Without it the connection would be closed in good order, which is as well.
        let _ = SockRef::from(&self.stream).set_linger(Some(Duration::ZERO));
    }

    pub(crate) fn read_exact(&mut self, length: usize) -> Result<Vec<u8>, End> {
        while self.received.len() < length {
            self.read_more()?;
        }
        Ok(self.received.drain(..length).collect())
    }

    pub fn read_preamble(&mut self) -> Result<[u8; preamble::LENGTH], End> {
        let bytes = self.read_exact(preamble::LENGTH)?;
        let bytes: [u8; preamble::LENGTH] = bytes.try_into().map_err(|_| End::Nonsense)?;
        preamble::decode(&bytes).map_err(|_| End::Nonsense)?;
        Ok(bytes)
    }

    pub fn read_frame(&mut self) -> Result<Frame, End> {
        loop {
            if let Some(frame) = take_frame(&mut self.received).map_err(|_| End::Nonsense)? {
                return Ok(frame);
            }
            self.read_more()?;
        }
    }

    /// Reads frames in the clear until there are no more; answers the last refusal, or the end.
    pub fn read_to_end(&mut self) -> End {
        last_of(|| self.read_frame())
    }

    fn read_more(&mut self) -> Result<(), End> {
        let mut buffer = [0; 4096];
        match read_once(&mut self.stream, &mut buffer) {
            Ok(0) => Err(End::Closed),
            Ok(length) => {
                self.received.extend_from_slice(&buffer[..length]);
                Ok(())
            }
            Err(error) => Err(error.into()),
        }
    }
}

/// Reads frames until there are no more; answers the last refusal, or the end.
pub(super) fn last_of(mut read: impl FnMut() -> Result<Frame, End>) -> End {
    let mut last = None;
    loop {
        match read() {
            Ok(frame) => last = frame.refusal().or(last),
            Err(end) => return last.map_or(end, End::Refused),
        }
    }
}

/// The message of a frame that answers a request; the end if it is a refusal.
pub(super) fn answer<'f, M: Message<'f>>(frame: &'f Frame) -> Result<M, End> {
    match frame.refusal() {
        Some(code) => Err(End::Refused(code)),
        None => frame.decode().map_err(|_| End::Nonsense),
    }
}

/// The meaning of an error of the stream.
impl From<io::Error> for End {
    fn from(error: io::Error) -> End {
        match error.kind() {
            ErrorKind::WouldBlock | ErrorKind::TimedOut => End::Silent,
            ErrorKind::ConnectionReset | ErrorKind::BrokenPipe => End::Reset,
            _ => End::Closed,
        }
    }
}

impl End {
    pub(crate) fn text(self) -> String {
        match self {
            End::Closed => "closed".into(),
            End::Reset => "cut".into(),
            End::Silent => "silent".into(),
            End::Nonsense => "nonsense".into(),
            End::Unreachable => "no connection".into(),
            End::Left => "served".into(),
            End::Refused(code) => format!("refused: {}", refusal_name(code)),
        }
    }
}

fn refusal_name(code: u32) -> &'static str {
    match code {
        refusal::NO_COMMON_VERSION => "no common version",
        refusal::MALFORMED => "malformed",
        refusal::UNKNOWN_REQUEST => "unknown request",
        refusal::NO_EPOCH => "no such epoch",
        refusal::NO_RECORDING => "no recording",
        refusal::BUSY => "busy",
        refusal::KEY_NEEDED => "key needed",
        refusal::BAD_KEY => "bad key",
        refusal::NOT_ALLOWED => "not allowed",
        refusal::NOT_KEYED => "not keyed",
        _ => "something else",
    }
}
