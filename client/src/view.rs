//! A recording for the Firefox profiler's hosted front end: a server on this machine that the front
//! end's page asks for the profile, symbols, source and code.
//!
//! | below the token | answer |
//! |---|---|
//! | `GET profile.json` | the profile, as `report -o run.profile.json.gz` writes it |
//! | `GET page.html` | our own page, for browsers that forbid pages of the network to ask this machine |
//! | `POST symbolicate/v5` | functions, files and lines of addresses |
//! | `POST source/v1` | the source file of an address: only one that the debug information names for it |
//! | `POST asm/v1` | a function's instructions |
//!
//! The server listens on 127.0.0.1 alone. A request needs the random token in its path and this
//! address as its host, so that no name that leads here is enough. A request of a page is answered
//! only if the page is the front end's or the server's own; other pages may not read the answers,
//! as the CORS headers say, and get none.

mod access;
mod modules;
mod queries;

use std::convert::Infallible;
use std::io;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::path::PathBuf;
use std::time::Duration;

use futures_util::stream::{FuturesUnordered, StreamExt as _};
use http_body_util::{BodyExt as _, Full, Limited};
use hyper::body::{Body as _, Bytes, Incoming};
use hyper::header::{self, HeaderMap, HeaderName, HeaderValue};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::TcpStream;

use crate::profile::Profile;
use crate::report::{Format, Report, ReportError};
use crate::symbols::{CodeError, Symbolizer};
use access::{Access, FRONT_END, Verdict};
use modules::Modules;

/// The largest body of a request, in bytes.
const MAX_BODY: u64 = 16 << 20;

/// Whoever has not sent a request's head by then is not a browser.
const FOR_HEAD: Duration = Duration::from_secs(5);

/// How long a connection may take for its one request and answer.
const FOR_ALL: Duration = Duration::from_secs(60);

/// The most connections at a time; more wait for these.
const MOST_CONNECTIONS: usize = 128;

/// What is served.
pub(crate) struct View<'a> {
    profile: &'a Profile,
    symbolizer: &'a Symbolizer,
    source_folders: &'a [PathBuf],
    modules: Modules,
    firefox: Bytes,
    page: Bytes,
}

/// An answer to a request.
#[derive(Debug, PartialEq, Eq)]
struct Answer {
    status: u16,
    kind: &'static str,
    body: Bytes,
}

impl Answer {
    fn json(body: &impl serde::Serialize) -> Answer {
        match serde_json::to_vec(body) {
            Ok(body) => Answer { status: 200, kind: "application/json", body: body.into() },
            Err(error) => Answer::error(500, &error.to_string()),
        }
    }

    fn error(status: u16, message: &str) -> Answer {
        Answer {
            status,
            kind: "application/json",
            body: serde_json::json!({ "error": message }).to_string().into(),
        }
    }
}

impl<'a> View<'a> {
    /// Makes the files that are served. `symbolizer` is the one that named the report's functions;
    /// source files are read at the paths in the debug information, or below one of
    /// `source_folders`.
    pub(crate) fn of(
        report: Report<'_>,
        profile: &'a Profile,
        symbolizer: &'a Symbolizer,
        source_folders: &'a [PathBuf],
    ) -> Result<View<'a>, ViewError> {
        let report = report.with_function_ranges(symbolizer)?;
        let (mut firefox, mut page) = (Vec::new(), Vec::new());
        report.write(Format::Firefox, &mut firefox)?;
        report.write(Format::Page, &mut page)?;
        Ok(View {
            profile,
            symbolizer,
            source_folders,
            modules: Modules::of(profile),
            firefox: firefox.into(),
            page: page.into(),
        })
    }

    /// The answer to a request that may be answered.
    fn answer(&self, is_post: bool, path: &str, body: &[u8]) -> Answer {
        let file = |kind, body: &Bytes| Answer { status: 200, kind, body: body.clone() };
        match (is_post, path) {
            (false, "profile.json") => file("application/gzip", &self.firefox),
            (false, "page.html") => file("text/html; charset=utf-8", &self.page),
            (true, "symbolicate/v5") => queries::symbolicate(self, body),
            (true, "source/v1") => queries::source(self, body),
            (true, "asm/v1") => queries::assembly(self, body),
            _ => Answer::error(404, "there is nothing here"),
        }
    }
}

/// A recording cannot be shown.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ViewError {
    #[error(transparent)]
    Report(#[from] ReportError),
    #[error(transparent)]
    Code(#[from] CodeError),
    #[error("cannot listen on {address}: {source}")]
    Listen { address: SocketAddr, source: io::Error },
    #[error("no connection can be accepted any more: {0}")]
    Accept(io::Error),
}

/// A server on this machine.
pub(crate) struct Server {
    listener: TcpListener,
    access: Access,
}

impl Server {
    /// Listens on a port; 0 is any that is free.
    pub(crate) fn listen(port: u16) -> Result<Server, ViewError> {
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
        let failed = |source| ViewError::Listen { address, source };
        let listener = TcpListener::bind(address).map_err(failed)?;
        let bound = listener.local_addr().map_err(failed)?;
        listener.set_nonblocking(true).map_err(failed)?;
        let access = Access::new(bound).map_err(|error| failed(io::Error::other(error)))?;
        Ok(Server { listener, access })
    }

    /// The address of the server itself, with the token.
    pub(crate) fn address(&self) -> String {
        self.access.address("")
    }

    /// Our own page's address.
    pub(crate) fn page(&self) -> String {
        self.access.address("page.html")
    }

    /// The front end's address with the profile in it.
    pub(crate) fn front_end(&self) -> String {
        format!(
            "{FRONT_END}/from-url/{}/?symbolServer={}",
            access::encoded(&self.access.address("profile.json")),
            access::encoded(&self.address()),
        )
    }

    /// Answers requests until no connection can be accepted any more.
    pub(crate) fn serve(self, view: &View<'_>) -> ViewError {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let served = runtime.and_then(|runtime| runtime.block_on(self.accept(view)));
        match served {
            Ok(never) => match never {},
            Err(error) => ViewError::Accept(error),
        }
    }

    async fn accept(self, view: &View<'_>) -> io::Result<Infallible> {
        let Server { listener, access } = self;
        let listener = tokio::net::TcpListener::from_std(listener)?;
        let mut connections = FuturesUnordered::new();
        loop {
            tokio::select! {
                accepted = listener.accept(), if connections.len() < MOST_CONNECTIONS =>
                match accepted {
                    Ok((stream, _)) => connections.push(talk(&access, view, stream)),
                    // Of one connection, not of the listener.
                    Err(error) if error.kind() == io::ErrorKind::ConnectionAborted => {}
                    Err(error) => return Err(error),
                },
                Some(()) = connections.next() => {}
            }
        }
    }
}

/// Answers one request.
async fn talk(access: &Access, view: &View<'_>, stream: TcpStream) {
    let answer = service_fn(async |request: Request<Incoming>| {
        Ok::<_, Infallible>(respond(access, view, request).await)
    });
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(FOR_HEAD)
        .keep_alive(false)
        .serve_connection(TokioIo::new(stream), answer);
    // Who asked may have gone, or say nothing any more.
    let _ = tokio::time::timeout(FOR_ALL, connection).await;
}

async fn respond(
    access: &Access,
    view: &View<'_>,
    request: Request<Incoming>,
) -> Response<Full<Bytes>> {
    let text = |name| request.headers().get(name).map(HeaderValue::to_str);
    // One that is no text is nobody's.
    let [host, origin] =
        [header::HOST, header::ORIGIN].map(|name| text(name).map(|t| t.unwrap_or("?")));
    let path = request.uri().path().to_owned();
    let (answer, is_front_end) = match access.judge(&path, host, origin) {
        Verdict::Refused { status, reason } => (Answer::error(status, reason), false),
        Verdict::Granted { path, is_front_end } => (read(request, view, path).await, is_front_end),
    };
    let mut response = Response::new(Full::new(answer.body));
    *response.status_mut() =
        StatusCode::from_u16(answer.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    add_fields(response.headers_mut(), answer.kind, is_front_end);
    response
}

fn add_fields(all: &mut HeaderMap, kind: &'static str, is_front_end: bool) {
    let mut add = |name: HeaderName, value| all.insert(name, HeaderValue::from_static(value));
    add(header::CONTENT_TYPE, kind);
    add(header::X_CONTENT_TYPE_OPTIONS, "nosniff");
    // The token is in the address.
    add(header::REFERRER_POLICY, "no-referrer");
    add(header::CACHE_CONTROL, "no-store");
    add(header::VARY, "Origin");
    if is_front_end {
        add(header::ACCESS_CONTROL_ALLOW_ORIGIN, FRONT_END);
        add(header::ACCESS_CONTROL_ALLOW_METHODS, "GET, POST");
        add(header::ACCESS_CONTROL_ALLOW_HEADERS, "Content-Type");
        // Browsers ask before a page of the network may ask this machine.
        let name = HeaderName::from_static("access-control-allow-private-network");
        add(name, "true");
    }
}

/// Reads a request's body and finds the answer.
async fn read(request: Request<Incoming>, view: &View<'_>, path: &str) -> Answer {
    let is_post = match *request.method() {
        Method::GET => false,
        Method::POST => true,
        // What browsers ask first; the headers are the answer.
        Method::OPTIONS => {
            return Answer { status: 204, kind: "text/plain", body: Bytes::new() };
        }
        _ => return Answer::error(405, "expected GET or POST"),
    };
    let body = request.into_body();
    if body.size_hint().lower() > MAX_BODY {
        return too_large();
    }
    match Limited::new(body, MAX_BODY as usize).collect().await {
        Ok(body) => view.answer(is_post, path, &body.to_bytes()),
        Err(error) if error.is::<http_body_util::LengthLimitError>() => too_large(),
        Err(error) => Answer::error(400, &format!("cannot read the request: {error}")),
    }
}

fn too_large() -> Answer {
    Answer::error(413, "the request is larger than 16 MiB")
}
