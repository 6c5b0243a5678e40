//! A small HTTP/1.1 server for this machine, with a thread for each connection.
//!
//! A connection has one request and one answer. [`Limits`] bounds its head, its body, its time and
//! the number of connections. A slow or silent peer holds only its own thread, until its time is
//! over. If all connections are taken, a new one replaces the oldest whose request is not accepted
//! yet, so that idle connections keep nobody out.
//!
//! A body needs a Content-Length; transfer codings are rejected.

use std::io::{self, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use httparse::{Header, Status};

use super::Answer;

/// The largest head of a request, in bytes; those of browsers have about 1 KiB.
const MAX_HEAD: usize = 16 << 10;

/// The most header lines of a request.
const MAX_FIELDS: usize = 64;

/// How long the peer may take to end its side once it has the answer.
const FOR_END: Duration = Duration::from_secs(2);

/// What a peer may take.
#[derive(Clone, Copy)]
pub(super) struct Limits {
    /// The time for the whole head.
    pub(super) head: Duration,
    /// The time for head and body, and again for sending the answer. Finding the answer is not
    /// limited: then it is not the peer that is slow.
    pub(super) all: Duration,
    /// The largest body, in bytes.
    pub(super) body: u64,
    /// The most connections at a time.
    pub(super) connections: usize,
}

/// An answer, with header lines besides those that describe its body.
pub(super) struct Response {
    pub(super) answer: Answer,
    /// Each ends with CR LF.
    pub(super) fields: String,
}

/// A request whose body has not been read yet.
pub(super) struct Request<'c> {
    pub(super) method: &'c str,
    /// The path with its query.
    pub(super) target: &'c str,
    fields: &'c [Header<'c>],
    /// The bytes that were read along with the head.
    begun: &'c [u8],
    peer: Peer<'c>,
    place: &'c Place<'c>,
    max_body: u64,
}

impl Request<'_> {
    /// The value of a header line. It is "?" if it is no text, or if there are several of the name.
    pub(super) fn field(&self, name: &str) -> Option<&str> {
        let mut fields = self.fields.iter().filter(|field| field.name.eq_ignore_ascii_case(name));
        let field = fields.next()?;
        let text = std::str::from_utf8(field.value).ok().filter(|_| fields.next().is_none());
        Some(text.unwrap_or("?"))
    }

    /// Accepts the request and reads its body: a new connection does not replace this one any more.
    pub(super) fn body(mut self) -> Result<Vec<u8>, Answer> {
        self.place.set_accepted(true);
        if self.field("Transfer-Encoding").is_some() {
            return Err(Answer::error(411, "expected Content-Length, found Transfer-Encoding"));
        }
        let length = self.field("Content-Length").unwrap_or("0");
        // Rust's numbers may have a sign, those of HTTP may not.
        let length = Some(length).filter(|length| !length.starts_with('+'));
        let Some(length) = length.and_then(|length| length.parse::<u64>().ok()) else {
            return Err(Answer::error(400, "expected a number as Content-Length"));
        };
        if length > self.max_body {
            let problem = format!("the request's body is larger than {} bytes", self.max_body);
            return Err(Answer::error(413, &problem));
        }
        let waits = self.field("Expect").is_some_and(|it| it.eq_ignore_ascii_case("100-continue"));
        // The buffer grows with the bytes that come, not with the number that is announced.
        let mut body = Vec::new();
        let read = self.begun.take(length).read_to_end(&mut body).and_then(|begun| {
            let left = length - begun as u64;
            if waits && left != 0 {
                self.peer.write_all(b"HTTP/1.1 100 Continue\r\n\r\n")?;
            }
            self.peer.take(left).read_to_end(&mut body)
        });
        match read {
            Ok(_) if body.len() as u64 == length => Ok(body),
            Ok(_) => Err(Answer::error(400, "the request's body ends early")),
            Err(error) => Err(Answer::error(400, &format!("cannot read the request: {error}"))),
        }
    }
}

/// Answers requests until no connection can be accepted any more; returns the reason.
pub(super) fn serve(
    listener: &TcpListener,
    limits: Limits,
    respond: impl Fn(Request<'_>) -> Response + Sync,
) -> io::Error {
    let places = Places::default();
    thread::scope(|scope| {
        let error = loop {
            let stream = match listener.accept() {
                Ok((stream, _)) => Arc::new(stream),
                // Of one connection, not of the listener.
                Err(error) if error.kind() == io::ErrorKind::ConnectionAborted => continue,
                Err(error) => break error,
            };
            let place = places.enter(&stream, limits.connections);
            let respond = &respond;
            let talk = move || {
                let _ = talk(&stream, &place, limits, respond);
            };
            // If there can be no thread, the connection ends here.
            let _ = thread::Builder::new().name("view".into()).spawn_scoped(scope, talk);
        };
        for connection in places.lock().iter() {
            connection.end();
        }
        error
    })
}

/// Reads one request and answers it. An error means that the peer is gone or too slow, or that a
/// new connection has replaced this one.
fn talk(
    stream: &TcpStream,
    place: &Place<'_>,
    limits: Limits,
    respond: impl Fn(Request<'_>) -> Response,
) -> io::Result<()> {
    let began = Instant::now();
    let until = |time| Peer { stream, deadline: began + time };
    let mut bytes = Vec::new();
    let head = read_head(&mut until(limits.head), &mut bytes)?;
    let (head, begun) = bytes.split_at(head.unwrap_or(0));
    let mut fields = [httparse::EMPTY_HEADER; MAX_FIELDS];
    let mut request = httparse::Request::new(&mut fields);
    let rejected = |status, problem| Response {
        answer: Answer::error(status, problem),
        fields: String::new(),
    };
    let response = match request.parse(head) {
        _ if head.is_empty() => rejected(431, "the request's head is too large"),
        Err(httparse::Error::TooManyHeaders) => rejected(431, "the request has too many headers"),
        // A bare LF may end the lines for httparse; then its head ends before this one.
        Ok(Status::Complete(length)) if length == head.len() => respond(Request {
            method: request.method.unwrap_or_default(),
            target: request.path.unwrap_or_default(),
            fields: request.headers,
            begun,
            peer: until(limits.all),
            place,
            max_body: limits.body,
        }),
        _ => rejected(400, "expected a request of HTTP/1.1"),
    };
    let mut peer = Peer { stream, deadline: Instant::now() + limits.all };
    send(&mut peer, &response)?;
    place.set_accepted(false);
    // To close with unread bytes would reset the connection, and the peer could lose the answer.
    stream.shutdown(Shutdown::Write)?;
    peer.deadline = peer.deadline.min(Instant::now() + FOR_END);
    io::copy(&mut peer, &mut io::sink()).map(drop)
}

/// Reads at least a head; returns its length, or `None` if it is too large.
fn read_head(peer: &mut Peer<'_>, bytes: &mut Vec<u8>) -> io::Result<Option<usize>> {
    const END: &[u8] = b"\r\n\r\n";
    let mut chunk = [0; 4096];
    loop {
        let read = match peer.read(&mut chunk)? {
            0 => return Err(io::ErrorKind::UnexpectedEof.into()),
            read => &chunk[..read],
        };
        // The end may have begun in the bytes before.
        let searched = bytes.len().saturating_sub(END.len() - 1);
        bytes.extend_from_slice(read);
        if let Some(at) = memchr::memmem::find(&bytes[searched..], END) {
            let length = searched + at + END.len();
            return Ok(Some(length).filter(|length| *length <= MAX_HEAD));
        }
        if bytes.len() > MAX_HEAD {
            return Ok(None);
        }
    }
}

fn send(peer: &mut Peer<'_>, Response { answer, fields }: &Response) -> io::Result<()> {
    let Answer { status, kind, body } = answer;
    let length = match status {
        // It has no body by its meaning.
        204 => String::new(),
        _ => format!("content-length: {}\r\n", body.len()),
    };
    let head = format!(
        "HTTP/1.1 {status} \r\ncontent-type: {kind}\r\n{length}connection: close\r\n{fields}\r\n"
    );
    peer.stream.set_nodelay(true)?;
    peer.write_all(head.as_bytes())?;
    peer.write_all(body)
}

/// A connection that is read and written until a deadline.
struct Peer<'s> {
    stream: &'s TcpStream,
    deadline: Instant,
}

impl Peer<'_> {
    fn left(&self) -> io::Result<Option<Duration>> {
        match self.deadline.saturating_duration_since(Instant::now()) {
            Duration::ZERO => Err(io::ErrorKind::TimedOut.into()),
            left => Ok(Some(left)),
        }
    }
}

impl Read for Peer<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.stream.set_read_timeout(self.left()?)?;
        self.stream.read(buffer)
    }
}

impl Write for Peer<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.stream.set_write_timeout(self.left()?)?;
        self.stream.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// The open connections, oldest first.
#[derive(Default)]
struct Places {
    open: Mutex<Vec<Connection>>,
    /// A connection has ended or is not accepted any more.
    changed: Condvar,
}

struct Connection {
    stream: Arc<TcpStream>,
    is_accepted: bool,
}

impl Connection {
    /// Lets the connection's thread read the end and fail to write.
    fn end(&self) {
        // A peer that is gone already has no connection to end.
        let _ = self.stream.shutdown(Shutdown::Both);
    }
}

impl Places {
    fn lock(&self) -> MutexGuard<'_, Vec<Connection>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until there is a place; the oldest connection that is not accepted yet gives its up.
    fn enter(&self, stream: &Arc<TcpStream>, most: usize) -> Place<'_> {
        let mut open = self.lock();
        while open.len() >= most {
            if let Some(oldest) = open.iter().find(|connection| !connection.is_accepted) {
                oldest.end();
            }
            open = self.changed.wait(open).unwrap_or_else(PoisonError::into_inner);
        }
        open.push(Connection { stream: stream.clone(), is_accepted: false });
        Place { places: self, stream: stream.clone() }
    }
}

/// A connection's place among those that are open, given up on drop.
struct Place<'p> {
    places: &'p Places,
    stream: Arc<TcpStream>,
}

impl Place<'_> {
    fn set_accepted(&self, is_accepted: bool) {
        for connection in self.places.lock().iter_mut() {
            if Arc::ptr_eq(&connection.stream, &self.stream) {
                connection.is_accepted = is_accepted;
            }
        }
        self.places.changed.notify_one();
    }
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        let mut open = self.places.lock();
        open.retain(|connection| !Arc::ptr_eq(&connection.stream, &self.stream));
        self.places.changed.notify_one();
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::net::{Ipv4Addr, SocketAddr};
    use std::sync::mpsc::{Sender, channel};

    use super::*;

    /// Longer than any wait of these tests, on a busy machine too.
    const LONG: Duration = Duration::from_secs(300);

    const LIMITS: Limits = Limits { head: LONG, all: LONG, body: 16, connections: 8 };

    /// A server that answers a body with its host and the body, and that does not accept `/other`.
    fn start(limits: Limits) -> SocketAddr {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let address = listener.local_addr().unwrap();
        let respond = |request: Request<'_>| {
            let host = request.field("host").unwrap_or("none").to_owned();
            let answer = match request.target {
                "/other" => Answer::error(404, "other"),
                _ => request.body().map_or_else(
                    |answer| answer,
                    |body| Answer {
                        status: 200,
                        kind: "text/plain",
                        body: [host.as_bytes(), b": ", &body].concat().into(),
                    },
                ),
            };
            Response { answer, fields: "vary: Origin\r\n".to_owned() }
        };
        thread::spawn(move || serve(&listener, limits, respond));
        address
    }

    /// A server that finds its answer when it is told to.
    fn start_slow(limits: Limits) -> (SocketAddr, Sender<()>) {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let address = listener.local_addr().unwrap();
        let (sender, receiver) = channel();
        let receiver = Mutex::new(receiver);
        let respond = move |request: Request<'_>| {
            let body = request.body().unwrap().into();
            receiver.lock().unwrap().recv().unwrap();
            let answer = Answer { status: 200, kind: "text/plain", body };
            Response { answer, fields: String::new() }
        };
        thread::spawn(move || serve(&listener, limits, respond));
        (address, sender)
    }

    fn connect(address: SocketAddr, bytes: &[u8]) -> TcpStream {
        let mut stream = TcpStream::connect(address).unwrap();
        stream.set_read_timeout(Some(LONG)).unwrap();
        stream.write_all(bytes).unwrap();
        stream
    }

    /// All bytes until the server ends the connection in good order.
    fn rest(mut stream: TcpStream) -> String {
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        answer
    }

    fn status(address: SocketAddr, request: &[u8]) -> String {
        let answer = rest(connect(address, request));
        answer.split(' ').nth(1).unwrap().to_owned()
    }

    #[test]
    fn a_request_has_one_answer() {
        let address = start(LIMITS);
        let request =
            b"POST /a HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n\r\nhiPOST /a HTTP/1.1\r\n";
        let expected = "HTTP/1.1 200 \r\ncontent-type: text/plain\r\ncontent-length: 5\r\n\
                        connection: close\r\nvary: Origin\r\n\r\na: hi";
        assert_eq!(rest(connect(address, request)), expected);
        // Nobody's host, not one of the two.
        let answer = rest(connect(address, b"GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n"));
        assert!(answer.ends_with("\r\n\r\n?: "), "{answer}");
    }

    /// All of these come with more than the server reads; the answer must not be lost by that.
    #[test]
    fn heads_and_bodies_are_bounded() {
        let address = start(LIMITS);
        let much = vec![b'a'; 1 << 20];
        let head =
            |fields: &str| [format!("POST / HTTP/1.1\r\n{fields}\r\n").as_bytes(), &much].concat();
        assert_eq!(status(address, &[b"GET /", &much[..]].concat()), "431");
        let end = b" HTTP/1.1\r\n\r\n";
        assert_eq!(status(address, &[b"GET /", &much[..MAX_HEAD], end].concat()), "431");
        assert_eq!(status(address, &head(&"a: b\r\n".repeat(MAX_FIELDS + 1))), "431");
        assert_eq!(status(address, &head("Content-Length: 17\r\n")), "413");
        assert_eq!(status(address, &head(&format!("Content-Length: {}\r\n", u64::MAX))), "413");
        assert_eq!(status(address, &head("Content-Length: 16\r\n")), "200");
        for length in ["-1", "+1", "", "0x1", "1\r\nContent-Length: 1", "99999999999999999999"] {
            assert_eq!(status(address, &head(&format!("Content-Length: {length}\r\n"))), "400");
        }
        assert_eq!(status(address, &head("Transfer-Encoding: chunked\r\n")), "411");
        assert_eq!(status(address, b"\x16\x03\x01 no HTTP\r\n\r\n"), "400");
        // The head ends at the first empty line, whatever follows it.
        let two = b"POST / HTTP/1.1\nContent-Length: 2\n\nhi\r\n\r\nno";
        assert_eq!(status(address, two), "400");
        let short = connect(address, b"POST / HTTP/1.1\r\nContent-Length: 2\r\n\r\nh");
        short.shutdown(Shutdown::Write).unwrap();
        assert!(rest(short).starts_with("HTTP/1.1 400 "));
    }

    /// The time is that of the whole head: a byte now and then does not renew it.
    #[test]
    fn a_slow_head_ends_the_connection_and_stops_nobody() {
        let address = start(Limits { head: Duration::from_millis(500), ..LIMITS });
        let mut slow = connect(address, b"GET / HTTP/1.1\r\n");
        slow.set_read_timeout(Some(Duration::from_millis(50))).unwrap();
        assert_eq!(status(address, b"GET / HTTP/1.1\r\n\r\n"), "200");
        let deadline = Instant::now() + LONG;
        // The end, or a reset for what was written after it.
        while let Err(error) = slow.read(&mut [0])
            && matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut)
        {
            assert!(Instant::now() < deadline, "it is still open");
            if slow.write_all(b"a").is_err() {
                break;
            }
        }
    }

    #[test]
    fn a_slow_body_ends_the_connection() {
        let address = start(Limits { all: Duration::from_millis(500), ..LIMITS });
        let silent = connect(address, b"POST / HTTP/1.1\r\nContent-Length: 9\r\n\r\nabc");
        assert!(rest(silent).starts_with("HTTP/1.1 400 "));
    }

    /// Symbols of a large image on a busy machine: the peer is not the slow one.
    #[test]
    fn an_answer_that_takes_long_to_find_is_sent() {
        let all = Duration::from_millis(500);
        let (address, found) = start_slow(Limits { all, ..LIMITS });
        let asked = connect(address, b"GET / HTTP/1.1\r\n\r\n");
        thread::sleep(2 * all);
        found.send(()).unwrap();
        assert!(rest(asked).starts_with("HTTP/1.1 200 "));
    }

    #[test]
    fn idle_connections_make_room_and_accepted_ones_stay() {
        let address = start(Limits { connections: 3, ..LIMITS });
        let head = b"POST / HTTP/1.1\r\nExpect: 100-continue\r\nContent-Length: 2\r\n\r\n";
        let mut accepted = connect(address, head);
        let mut go_on = [0; 25];
        accepted.read_exact(&mut go_on).unwrap();
        assert_eq!(&go_on, b"HTTP/1.1 100 Continue\r\n\r\n");
        let idle: Vec<TcpStream> = (0..20).map(|_| connect(address, b"GET /")).collect();
        assert_eq!(status(address, b"GET / HTTP/1.1\r\n\r\n"), "200");
        // Those that are rejected and stay make room as well.
        let request = b"GET /other HTTP/1.1\r\n\r\n";
        let rejected: Vec<TcpStream> = (0..20).map(|_| connect(address, request)).collect();
        assert_eq!(status(address, b"GET / HTTP/1.1\r\n\r\n"), "200");
        drop((idle, rejected));
        accepted.write_all(b"hi").unwrap();
        assert!(rest(accepted).ends_with("none: hi"));
    }
}
