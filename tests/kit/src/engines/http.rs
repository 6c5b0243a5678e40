//! Requests and answers over HTTP/1.1: written by hand, since a server that keeps to the rules
//! cannot fail as it should.

use std::io::{self, BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpStream;
use std::thread;
use std::time::Duration;

use super::{Failure, Refusal, Shared, otlp, parca, pyroscope};

/// The largest request, in bytes.
const MAX_BODY: usize = 256 << 20;

/// Between the bytes of a slow answer.
const PAUSE: Duration = Duration::from_millis(5);

#[derive(Debug)]
struct Request {
    path: String,
    /// The headers, with names in lower case.
    headers: Vec<(String, String)>,
    body: Vec<u8>,
}

impl Request {
    fn header(&self, name: &str) -> Option<&str> {
        let mut headers = self.headers.iter();
        headers.find_map(|(found, value)| (found == name).then_some(value.as_str()))
    }
}

/// Answers the requests of a connection.
pub(super) fn serve(stream: TcpStream, shared: &Shared) -> io::Result<()> {
    let mut reader = BufReader::new(stream.try_clone()?);
    let mut stream = stream;
    while let Some(request) = read(&mut reader)? {
        let failure = {
            let mut state = shared.state();
            state.received.requests += 1;
            state.failure()
        };
        let engine = Engine::of(&request.path);
        match failure {
            Some(Failure::Close) => return Ok(()),
            Some(Failure::Silence) => {
                reader.read_to_end(&mut Vec::new())?;
                return Ok(());
            }
            Some(Failure::Slow) => {
                stream.write_all(b"HTTP/1.1 200 OK\r\nX-Slow: ")?;
                loop {
                    stream.write_all(b"a")?;
                    thread::sleep(PAUSE);
                }
            }
            Some(Failure::Status(status, headers)) => {
                let text = "it was told to fail".to_owned();
                stream.write_all(&engine.refusal(&Refusal { status, text }, &headers))?;
            }
            Some(Failure::Page(status)) => {
                stream.write_all(&answer(status, "text/html", &[], b"<h1>Log in</h1>"))?;
            }
            Some(Failure::Partial) if engine == Engine::Otlp => {
                stream.write_all(&answer(200, otlp::PROTOBUF, &[], &otlp::partial()))?;
            }
            Some(Failure::NoAnswer) => {
                engine.take(&request, shared);
                return Ok(());
            }
            Some(Failure::HalfAnswer) => {
                let whole = match engine {
                    Engine::Otlp => answer(200, otlp::PROTOBUF, &[], &otlp::partial()),
                    _ => engine.take(&request, shared),
                };
                // All of the header is there; of the body, if there is one, the half.
                let body = whole.windows(4).position(|it| it == b"\r\n\r\n");
                let body = body.map_or(whole.len(), |at| at + 4);
                let half = usize::midpoint(body, whole.len());
                stream.write_all(&whole[..half])?;
                return Ok(());
            }
            Some(Failure::Partial) | None => stream.write_all(&engine.take(&request, shared))?,
        }
    }
    Ok(())
}

/// Reads a request; `None` at the end of the connection.
fn read(reader: &mut BufReader<TcpStream>) -> io::Result<Option<Request>> {
    let mut line = String::new();
    if reader.read_line(&mut line)? == 0 {
        return Ok(None);
    }
    let wrong = |what: &str| io::Error::new(io::ErrorKind::InvalidData, what.to_owned());
    let path = line
        .strip_prefix("POST ")
        .and_then(|rest| rest.split(' ').next())
        .ok_or_else(|| wrong("expected POST"))?
        .to_owned();
    let mut headers = Vec::new();
    loop {
        line.clear();
        reader.read_line(&mut line)?;
        let Some((name, value)) = line.trim_end().split_once(':') else {
            break;
        };
        headers.push((name.to_ascii_lowercase(), value.trim().to_owned()));
    }
    let mut request = Request { path, headers, body: Vec::new() };
    let length = request.header("content-length");
    let length = length.and_then(|length| length.parse().ok());
    let length: usize = length.ok_or_else(|| wrong("expected a length"))?;
    if length > MAX_BODY {
        return Err(wrong("expected a shorter request"));
    }
    request.body.resize(length, 0);
    reader.read_exact(&mut request.body)?;
    Ok(Some(request))
}

/// The engine that a request is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Engine {
    Pyroscope,
    Parca,
    Otlp,
    Nobody,
}

impl Engine {
    fn of(path: &str) -> Engine {
        match path {
            "/push.v1.PusherService/Push" => Engine::Pyroscope,
            "/api/profiles/writeraw" => Engine::Parca,
            "/v1development/profiles" => Engine::Otlp,
            _ => Engine::Nobody,
        }
    }

    /// Takes what keeps to the rules, and answers.
    fn take(self, request: &Request, shared: &Shared) -> Vec<u8> {
        let mut state = shared.state();
        state.received.tenant = request.header("x-scope-orgid").map(Into::into);
        let mut demanded = state.demanded.iter();
        let lacks = demanded.find(|(name, value)| request.header(name) != Some(value));
        let content_type = match self {
            Engine::Otlp => otlp::PROTOBUF,
            _ => "application/json",
        };
        let batch = if let Some((name, _)) = lacks {
            Err(Refusal { status: 401, text: format!("no valid {name}") })
        } else if request.header("content-type") != Some(content_type) {
            Err(Refusal { status: 415, text: format!("expected {content_type}") })
        } else {
            match self {
                Engine::Pyroscope => pyroscope::batch(&request.body),
                Engine::Parca => parca::batch(&request.body),
                Engine::Otlp => otlp::batch(&request.body),
                Engine::Nobody => Err(Refusal { status: 404, text: "no such path".into() }),
            }
        };
        match batch {
            Ok(batch) => {
                state.received.take(batch);
                let body: &[u8] = if self == Engine::Otlp { b"" } else { b"{}" };
                answer(200, content_type, &[], body)
            }
            Err(refusal) => {
                state.received.refused.push(refusal.text.clone());
                self.refusal(&refusal, &[])
            }
        }
    }

    /// An error as this engine writes it.
    fn refusal(self, refusal: &Refusal, headers: &[(String, String)]) -> Vec<u8> {
        let (content_type, body) = match self {
            Engine::Pyroscope => ("application/json", pyroscope::error(refusal)),
            Engine::Parca => ("application/json", parca::error(refusal)),
            Engine::Otlp => (otlp::PROTOBUF, otlp::error(refusal)),
            Engine::Nobody => ("text/plain", refusal.text.clone().into_bytes()),
        };
        answer(refusal.status, content_type, headers, &body)
    }
}

fn answer(status: u16, content_type: &str, headers: &[(String, String)], body: &[u8]) -> Vec<u8> {
    let length = body.len();
    let mut head = format!(
        "HTTP/1.1 {status} Status\r\nContent-Type: {content_type}\r\nContent-Length: {length}\r\n"
    );
    for (name, value) in headers {
        head += &format!("{name}: {value}\r\n");
    }
    head += "\r\n";
    [head.as_bytes(), body].concat()
}
