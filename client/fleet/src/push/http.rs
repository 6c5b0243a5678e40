//! Requests to engines, and what their answers mean.

use std::io::Read as _;
use std::path::Path;
use std::time::Duration;

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use serde_json::Value;
use unikprof_profile::printable::Printable;
use ureq::http::{HeaderMap, header};
use ureq::tls::{Certificate, RootCerts, TlsConfig};
use ureq::unversioned::resolver::DefaultResolver;
use ureq::unversioned::transport::{Connector as _, DefaultConnector};
use zeroize::Zeroizing;

use super::super::config::{Login, Remote};
use super::super::targets::regular;
use super::Verdict;
use super::hangup::DespiteHangup;

/// How long a connection may take to be made.
const CONNECT: Duration = Duration::from_secs(5);

/// How long a request may take with its answer.
const WHOLE: Duration = Duration::from_secs(30);

/// The codes that call a message itself wrong, as gRPC's gateway and as Connect write them.
const REJECTIONS: [(u64, &str); 2] = [(3, "invalid_argument"), (11, "out_of_range")];

/// The longest answer that is read, in bytes.
const MAX_ANSWER: u64 = 64 << 10;

/// The longest reason that is told, in characters.
const MAX_REASON: usize = 300;

/// The longest file of a password or token, in bytes.
const MAX_SECRET: u64 = 8 << 10;

/// The longest wait that an engine can ask for.
const LONGEST_WAIT: Duration = Duration::from_secs(3600);

/// An engine's address for profiles.
#[derive(Debug)]
pub(super) struct Http {
    agent: ureq::Agent,
    url: String,
    tenant: Option<String>,
    login: Option<Login>,
}

/// An engine's answer.
#[derive(Debug)]
pub(super) struct Answer {
    pub(super) status: u16,
    headers: HeaderMap,
    /// The beginning of it.
    pub(super) body: Vec<u8>,
    /// Whether that is all of it.
    pub(super) is_whole: bool,
}

impl Http {
    pub(super) fn new(remote: &Remote, path: &str) -> Http {
        Http::with_timeout(remote, path, WHOLE)
    }

    pub(super) fn with_timeout(remote: &Remote, path: &str, whole: Duration) -> Http {
        let config = ureq::Agent::config_builder()
            .user_agent(concat!("unikprof-fleet/", env!("CARGO_PKG_VERSION")))
            .http_status_as_error(false)
            // A redirected POST becomes a GET, whose success says nothing.
            .max_redirects(0)
            .max_redirects_will_error(false)
            .timeout_connect(Some(CONNECT))
            .timeout_global(Some(whole));
        let config = match &remote.authorities[..] {
            [] => config,
            authorities => {
                let certificates =
                    authorities.iter().map(|der| Certificate::from_der(der).to_owned());
                let roots = RootCerts::from(certificates);
                config.tls_config(TlsConfig::builder().root_certs(roots).build())
            }
        };
        let connector = DefaultConnector::new().chain(DespiteHangup);
        Http {
            agent: ureq::Agent::with_parts(config.build(), connector, DefaultResolver::default()),
            url: format!("{}{path}", remote.url),
            tenant: remote.tenant.clone(),
            login: remote.login.clone(),
        }
    }

    /// Sends a message to an engine that answers in JSON.
    pub(super) fn push_json(&self, message: &Value) -> Verdict {
        match self.post("application/json", message.to_string().as_bytes()) {
            Err(verdict) => verdict,
            Ok(answer) if answer.is_json_success() => Verdict::Accepted,
            Ok(answer) if answer.is_success() => self.strange(&answer, "a JSON object"),
            Ok(answer) => self.failure(&answer, answer.is_json_rejection()),
        }
    }

    /// Sends a message, and reads the answer; a verdict if there is none.
    pub(super) fn post(&self, content_type: &str, body: &[u8]) -> Result<Answer, Verdict> {
        let failed = |error: &dyn std::fmt::Display| {
            Verdict::later(format_args!("{}: {}", self.url, Printable(&error.to_string())))
        };
        let mut request = self.agent.post(&self.url).content_type(content_type);
        if let Some(tenant) = &self.tenant {
            request = request.header("X-Scope-OrgID", tenant);
        }
        if let Some(login) = &self.login {
            let login = authorization(login).map_err(Verdict::later)?;
            request = request.header(header::AUTHORIZATION, login.as_str());
        }
        let response = request.send(body).map_err(|error| failed(&error))?;
        let (parts, received) = response.into_parts();
        let mut body = Vec::new();
        let read = received.into_reader().take(MAX_ANSWER).read_to_end(&mut body);
        Ok(Answer {
            status: parts.status.as_u16(),
            headers: parts.headers,
            body,
            is_whole: read.is_ok(),
        })
    }

    /// The verdict on what is no success: for good if the engine itself calls the message wrong.
    pub(super) fn failure(&self, answer: &Answer, is_rejection: bool) -> Verdict {
        let text = format!("{} answered {}{}", self.url, answer.status, answer.text());
        if is_rejection {
            return Verdict::never(text);
        }
        Verdict::Later { reason: text, after: answer.retry_after() }
    }

    /// The verdict on a success that an engine would not write so.
    pub(super) fn strange(&self, answer: &Answer, expected: &str) -> Verdict {
        Verdict::later(format_args!(
            "{} answered {}, but not with {expected}{}; is this the engine's own address?",
            self.url,
            answer.status,
            answer.text()
        ))
    }
}

impl Answer {
    pub(super) fn is_success(&self) -> bool {
        (200..300).contains(&self.status)
    }

    /// Whether an engine that answers in JSON has done what it was asked: it writes the status when
    /// it is done. The rest of the answer may be lost.
    fn is_json_success(&self) -> bool {
        self.is_success()
            && self.is_of("application/json")
            && (!self.is_whole || self.json().is_some_and(|it| it.is_object()))
    }

    /// Whether an engine that answers in JSON calls the message wrong.
    fn is_json_rejection(&self) -> bool {
        let json = self.json().filter(|_| self.is_of("application/json"));
        let code = json.as_ref().and_then(|it| it.get("code"));
        let is_it = |code: &Value| REJECTIONS.iter().any(|(n, name)| code == n || code == name);
        code.is_some_and(is_it)
    }

    pub(super) fn is_of(&self, content_type: &str) -> bool {
        let found = self.header(header::CONTENT_TYPE).unwrap_or_default();
        let found = found.split(';').next().unwrap_or_default();
        found.trim().eq_ignore_ascii_case(content_type)
    }

    fn json(&self) -> Option<Value> {
        serde_json::from_slice(&self.body).ok()
    }

    fn header(&self, name: header::HeaderName) -> Option<&str> {
        self.headers.get(name)?.to_str().ok()
    }

    /// What the engine says about it, after a colon; nothing if it says nothing.
    fn text(&self) -> String {
        let told = match self.header(header::LOCATION) {
            Some(location) => format!("to {location}"),
            None => self.message(),
        };
        let told: String = told.trim().chars().take(MAX_REASON).collect();
        match told.as_str() {
            "" => String::new(),
            told => format!(": {}", Printable(told)),
        }
    }

    fn message(&self) -> String {
        let json = self.json();
        let message = json.as_ref().and_then(|it| it.get("message")?.as_str());
        if let Some(message) = message {
            return message.into();
        }
        #[cfg(feature = "otlp")]
        if let Some(message) = super::otlp::message(self) {
            return message;
        }
        String::from_utf8_lossy(&self.body).into_owned()
    }

    /// A date instead of seconds counts as none.
    fn retry_after(&self) -> Option<Duration> {
        let seconds = self.header(header::RETRY_AFTER)?.trim().parse().ok()?;
        Some(Duration::from_secs(seconds).min(LONGEST_WAIT))
    }
}

/// The header's value, from the file as it is now.
fn authorization(login: &Login) -> Result<Zeroizing<String>, String> {
    Ok(Zeroizing::new(match login {
        Login::Basic { username, password_file } => {
            let password = secret(password_file)?;
            let both = Zeroizing::new(format!("{username}:{}", password.as_str()));
            format!("Basic {}", BASE64_STANDARD.encode(both.as_bytes()))
        }
        Login::Bearer { token_file } => {
            let token = secret(token_file)?;
            if !token.bytes().all(|byte| byte.is_ascii_graphic()) {
                return Err(format!(
                    "{}: expected a token of printable ASCII characters without spaces",
                    token_file.display()
                ));
            }
            format!("Bearer {}", token.as_str())
        }
    }))
}

/// The first line of a file.
fn secret(path: &Path) -> Result<Zeroizing<String>, String> {
    let told = |problem: &str| format!("{}: {problem}", path.display());
    let mut text = Zeroizing::new(String::new());
    let read = regular(path).and_then(|file| file.take(MAX_SECRET).read_to_string(&mut text));
    read.map_err(|error| told(&error.to_string()))?;
    match text.lines().next() {
        Some(line) if !line.is_empty() => Ok(Zeroizing::new(line.to_owned())),
        _ => Err(told("expected a password or token in the first line, found none")),
    }
}
