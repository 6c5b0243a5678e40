//! A recording for the Firefox profiler's hosted front end: a server on this machine that the front end's page asks for
//! the profile, symbols, source and code.
//!
//! | below the token | answer |
//! |---|---|
//! | `GET profile.json` | the profile, as `report -o run.profile.json.gz` writes it |
//! | `GET page.html` | our own page, for browsers that forbid pages of the network to ask this machine |
//! | `POST symbolicate/v5` | functions, files and lines of addresses |
//! | `POST source/v1` | the source file of an address: only one that the debug information names for it |
//! | `POST asm/v1` | a function's instructions |
//!
//! The server listens on 127.0.0.1 alone. A request needs the random token in its path and this address as its host, so
//! that no name that leads here is enough. A request of a page is answered only if the page is the front end's or the
//! server's own; other pages may not read the answers, as the CORS headers say, and get none.

mod access;
mod modules;
mod queries;

use std::io::{self, Read as _};
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::path::PathBuf;

use tiny_http::{Header, Request, Response};

use crate::profile::Profile;
use crate::report::{Format, Report, ReportError};
use crate::symbols::{CodeError, Symbolizer};
use access::{Access, FRONT_END, Verdict};
use modules::Modules;

/// The largest body of a request, in bytes.
const MAX_BODY: u64 = 16 << 20;

/// What is served.
pub(crate) struct View<'a> {
    profile: &'a Profile,
    symbolizer: &'a Symbolizer,
    source_folders: &'a [PathBuf],
    modules: Modules,
    firefox: Vec<u8>,
    page: Vec<u8>,
}

/// An answer to a request.
#[derive(Debug, PartialEq, Eq)]
struct Answer {
    status: u16,
    kind: &'static str,
    body: Vec<u8>,
}

impl Answer {
    fn json(body: &impl serde::Serialize) -> Answer {
        match serde_json::to_vec(body) {
            Ok(body) => Answer {
                status: 200,
                kind: "application/json",
                body,
            },
            Err(error) => Answer::error(500, &error.to_string()),
        }
    }

    fn error(status: u16, message: &str) -> Answer {
        Answer {
            status,
            kind: "application/json",
            body: serde_json::json!({ "error": message })
                .to_string()
                .into_bytes(),
        }
    }
}

impl<'a> View<'a> {
    /// Makes the files that are served. `symbolizer` is the one that named the report's functions; source files are
    /// read at the paths in the debug information, or below one of `source_folders`.
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
            firefox,
            page,
        })
    }

    /// The answer to a request that may be answered.
    fn answer(&self, is_post: bool, path: &str, body: &[u8]) -> Answer {
        let file = |kind, body: &[u8]| Answer {
            status: 200,
            kind,
            body: body.to_vec(),
        };
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
    Listen {
        address: SocketAddr,
        source: io::Error,
    },
    #[error("no connection can be accepted any more: {0}")]
    Accept(io::Error),
}

/// A server on this machine.
pub(crate) struct Server {
    http: tiny_http::Server,
    access: Access,
}

impl Server {
    /// Listens on a port; 0 is any that is free.
    pub(crate) fn listen(port: u16) -> Result<Server, ViewError> {
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
        let failed = |source| ViewError::Listen { address, source };
        let listener = TcpListener::bind(address).map_err(failed)?;
        let bound = listener.local_addr().map_err(failed)?;
        let http = tiny_http::Server::from_listener(listener, None)
            .map_err(|error| failed(io::Error::other(error)))?;
        let access = Access::new(bound).map_err(|error| failed(io::Error::other(error)))?;
        Ok(Server { http, access })
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
    pub(crate) fn serve(&self, view: &View<'_>) -> ViewError {
        loop {
            match self.http.recv() {
                Ok(request) => self.answer(view, request),
                Err(error) => return ViewError::Accept(error),
            }
        }
    }

    fn answer(&self, view: &View<'_>, mut request: Request) {
        let header = |name: &'static str| {
            let found = request.headers().iter().find(|h| h.field.equiv(name));
            found.map(|header| header.value.as_str().to_owned())
        };
        let (host, origin) = (header("Host"), header("Origin"));
        let verdict = self
            .access
            .judge(request.url(), host.as_deref(), origin.as_deref());
        let (answer, is_front_end) = match verdict {
            Verdict::Refused { status, reason } => (Answer::error(status, reason), false),
            Verdict::Granted { path, is_front_end } => {
                let path = path.to_owned();
                (read(&mut request, view, &path), is_front_end)
            }
        };
        let body = io::Cursor::new(answer.body);
        let length = body.get_ref().len();
        let response = Response::new(answer.status.into(), Vec::new(), body, Some(length), None);
        // The length is known, and a browser shows how much of it has come.
        let mut response = response.with_chunked_threshold(usize::MAX);
        let mut fields = vec![
            ("Content-Type", answer.kind),
            ("X-Content-Type-Options", "nosniff"),
            // The token is in the address.
            ("Referrer-Policy", "no-referrer"),
            ("Cache-Control", "no-store"),
            ("Vary", "Origin"),
        ];
        if is_front_end {
            fields.extend([
                ("Access-Control-Allow-Origin", FRONT_END),
                ("Access-Control-Allow-Methods", "GET, POST"),
                ("Access-Control-Allow-Headers", "Content-Type"),
                // Browsers ask before a page of the network may ask this machine.
                ("Access-Control-Allow-Private-Network", "true"),
            ]);
        }
        for (name, value) in fields {
            if let Ok(header) = Header::from_bytes(name, value) {
                response.add_header(header);
            }
        }
        // Who asked may have gone.
        let _ = request.respond(response);
    }
}

/// Reads a request's body and finds the answer.
fn read(request: &mut Request, view: &View<'_>, path: &str) -> Answer {
    let is_post = match request.method() {
        tiny_http::Method::Get => false,
        tiny_http::Method::Post => true,
        // What browsers ask first; the headers are the answer.
        tiny_http::Method::Options => {
            return Answer {
                status: 204,
                kind: "text/plain",
                body: Vec::new(),
            };
        }
        _ => return Answer::error(405, "expected GET or POST"),
    };
    let mut body = Vec::new();
    let mut limited = request.as_reader().take(MAX_BODY + 1);
    if let Err(error) = limited.read_to_end(&mut body) {
        return Answer::error(400, &format!("cannot read the request: {error}"));
    }
    if body.len() as u64 > MAX_BODY {
        return Answer::error(413, "the request is larger than 16 MiB");
    }
    view.answer(is_post, path, &body)
}
