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
mod http;
mod modules;
mod queries;

use std::io;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use access::{Access, FRONT_END, Verdict};
use http::{Limits, Request, Response};
use modules::Modules;
use unikprof_profile::profile::Profile;
use unikprof_profile::symbols::{CodeError, Symbolizer};
use unikprof_report::report::{Format, Report, ReportError};

/// Who has not sent a request's head within 5 s is not a browser.
const LIMITS: Limits = Limits {
    head: Duration::from_secs(5),
    all: Duration::from_secs(60),
    body: 16 << 20,
    connections: 128,
};

/// Header lines of every answer: the token is in the address.
const FIELDS: &str = "x-content-type-options: nosniff\r\n\
    referrer-policy: no-referrer\r\n\
    cache-control: no-store\r\n\
    vary: Origin\r\n";

/// What is served.
pub(crate) struct View<'a> {
    profile: &'a Profile,
    symbolizer: &'a Symbolizer,
    source_folders: &'a [PathBuf],
    modules: Modules,
    firefox: Arc<[u8]>,
    page: Arc<[u8]>,
}

/// An answer to a request.
#[derive(Debug, PartialEq, Eq)]
struct Answer {
    status: u16,
    kind: &'static str,
    body: Arc<[u8]>,
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
            body: serde_json::json!({ "error": message }).to_string().into_bytes().into(),
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
        let file = |kind, body: &Arc<[u8]>| Answer { status: 200, kind, body: body.clone() };
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
        let respond = |request: Request<'_>| respond(&self.access, view, request);
        ViewError::Accept(http::serve(&self.listener, LIMITS, respond))
    }
}

fn respond(access: &Access, view: &View<'_>, request: Request<'_>) -> Response {
    let target = request.target;
    match access.judge(target, request.field("Host"), request.field("Origin")) {
        Verdict::Refused { status, reason } => {
            Response { answer: Answer::error(status, reason), fields: FIELDS.to_owned() }
        }
        Verdict::Granted { path, is_front_end } => {
            Response { answer: read(request, view, path), fields: fields(is_front_end) }
        }
    }
}

fn fields(is_front_end: bool) -> String {
    if !is_front_end {
        return FIELDS.to_owned();
    }
    // Browsers ask before a page of the network may ask this machine.
    format!(
        "{FIELDS}access-control-allow-origin: {FRONT_END}\r\n\
         access-control-allow-methods: GET, POST\r\n\
         access-control-allow-headers: Content-Type\r\n\
         access-control-allow-private-network: true\r\n"
    )
}

/// Reads a request's body and finds the answer.
fn read(request: Request<'_>, view: &View<'_>, path: &str) -> Answer {
    let is_post = match request.method {
        "GET" => false,
        "POST" => true,
        // What browsers ask first; the headers are the answer.
        "OPTIONS" => return Answer { status: 204, kind: "text/plain", body: Arc::default() },
        _ => return Answer::error(405, "expected GET or POST"),
    };
    match request.body() {
        Ok(body) => view.answer(is_post, path, &body),
        Err(answer) => answer,
    }
}
