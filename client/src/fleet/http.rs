//! The HTTP interface.
//!
//! | request | answer |
//! |---|---|
//! | `GET /metrics` | [`metrics`] |
//! | `GET /guests` | the guests as JSON |
//! | `GET /targets` | the guests as Prometheus' `http_sd` lists them, for scrapers of profiles |
//! | `GET /guests/NAME/debug/pprof/profile?seconds=N` | pprof, gzip: a recording of N seconds in the guest's mode |
//! | `GET /guests/NAME/debug/pprof/wall` and `offcpu` | the same in these modes |
//!
//! `HEAD` of a profile records nothing. What fails is told as text: 400 for a request that makes no sense, 401 and 403
//! for a missing token, 404 for a guest or profile that there is not, 429 where as many profiles are being taken as may
//! be, 503 for a guest that is down.

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::extract::rejection::{PathRejection, QueryRejection};
use axum::extract::{Path, Query, Request, State};
use axum::http::{HeaderMap, HeaderValue, Method, StatusCode, header};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use serde::Deserialize;
use serde_json::{Value, json};

use super::member::{GuestError, Member, PROFILES_AT_ONCE, log};
use super::metrics;
use super::roster::Roster;
use super::take;
use super::tokens::{Right, TokenFiles};
use crate::printable::Printable;
use crate::record::{Mode, RecordError};

/// What requests are answered from.
#[derive(Debug)]
pub(super) struct Service {
    pub(super) roster: Roster,
    pub(super) tokens: TokenFiles,
    /// The longest profile that a request may ask for.
    pub(super) longest: Duration,
    /// How it is asked.
    pub(super) scheme: &'static str,
}

/// How long a profile is if the request does not say so, as in Go's own servers.
const USUAL_SECONDS: u64 = 30;

pub(super) fn router(service: Arc<Service>) -> Router {
    Router::new()
        .route("/metrics", get(get_metrics))
        .route("/guests", get(get_guests))
        .route("/targets", get(get_targets))
        .route("/guests/{name}/debug/pprof/{profile}", get(get_profile))
        .fallback(|| async { refuse(StatusCode::NOT_FOUND, "there is nothing here; expected /metrics, /guests, /targets or /guests/NAME/debug/pprof/profile") })
        .layer(middleware::from_fn_with_state(service.clone(), authorize))
        .with_state(service)
}

/// Lets a request through that has a token, or where there are none, that comes from no other site's page.
async fn authorize(State(service): State<Arc<Service>>, request: Request, next: Next) -> Response {
    let headers = request.headers();
    if service.tokens.now().is_empty() && !is_local(headers) {
        return refuse(
            StatusCode::FORBIDDEN,
            "without tokens, only requests to an IP address or localhost, and from no other site's page, are answered",
        );
    }
    let needed = if request.uri().path().contains("/debug/pprof/") {
        Right::Control
    } else {
        Right::View
    };
    let right = service.tokens.now().right(headers);
    match right {
        None => {
            let mut answer = refuse(
                StatusCode::UNAUTHORIZED,
                "expected a bearer token that this server knows",
            );
            let scheme = HeaderValue::from_static("Bearer");
            answer
                .headers_mut()
                .insert(header::WWW_AUTHENTICATE, scheme);
            answer
        }
        Some(right) if right < needed => refuse(
            StatusCode::FORBIDDEN,
            "the token permits to look, not to record: use one of `control-tokens`",
        ),
        Some(_) => next.run(request).await,
    }
}

/// Whether a request was not made by a page of another site, or under another site's name that leads here.
fn is_local(headers: &HeaderMap) -> bool {
    let text = |name| {
        headers
            .get(name)
            .and_then(|value: &HeaderValue| value.to_str().ok())
    };
    let host = text(header::HOST).unwrap_or_default();
    let name = match host.strip_prefix('[') {
        Some(inside) => inside.split(']').next(),
        None => host.split(':').next(),
    };
    let name = name.unwrap_or_default();
    let is_here = name == "localhost" || name.parse::<std::net::IpAddr>().is_ok();
    let site = text(header::HeaderName::from_static("sec-fetch-site"));
    // Browsers that do not tell the site tell the page's origin.
    let origin = text(header::ORIGIN).and_then(|origin| origin.split_once("://"));
    let is_own = text(header::ORIGIN).is_none() || origin.is_some_and(|(_, origin)| origin == host);
    is_here && is_own && !matches!(site, Some("cross-site" | "same-site"))
}

async fn get_metrics(State(service): State<Arc<Service>>) -> Response {
    let members = service.roster.members();
    let text = metrics::text(members.iter().map(AsRef::as_ref));
    ([(header::CONTENT_TYPE, metrics::CONTENT_TYPE)], text).into_response()
}

async fn get_guests(State(service): State<Arc<Service>>) -> Response {
    let members = service.roster.members();
    let guests: Vec<Value> = members.iter().map(|member| guest(member)).collect();
    let body = format!("{:#}\n", json!({ "guests": guests }));
    ([(header::CONTENT_TYPE, "application/json")], body).into_response()
}

/// Where a scraper finds each guest's profiles: at the address by which it has found this server, below a path that
/// Alloy takes from `__profile_path_prefix__`, and Parca by a rule.
async fn get_targets(State(service): State<Arc<Service>>, headers: HeaderMap) -> Response {
    let host = headers
        .get(header::HOST)
        .and_then(|value| value.to_str().ok());
    let target = |member: &Arc<Member>| {
        let guest = &member.guest;
        let mut labels = guest.labels.clone();
        labels.insert(
            "__profile_path_prefix__".into(),
            format!("/guests/{}", guest.name),
        );
        labels.insert("__scheme__".into(), service.scheme.into());
        labels.insert("instance".into(), guest.name.clone());
        labels
            .entry("service_name".into())
            .or_insert_with(|| guest.name.clone());
        json!({ "targets": [host], "labels": labels })
    };
    let targets: Vec<Value> = service.roster.members().iter().map(target).collect();
    let body = format!("{:#}\n", json!(targets));
    ([(header::CONTENT_TYPE, "application/json")], body).into_response()
}

fn guest(member: &Member) -> Value {
    let known = member.known();
    let last = known.last.as_ref();
    json!({
        "name": member.guest.name,
        "address": member.guest.address.to_string(),
        "labels": member.guest.labels,
        "up": last.is_some(),
        "failure": known.failure,
        "guest_name": last.and_then(|last| last.agent.guest_name.clone()),
        "vcpus": last.map(|last| last.agent.vcpus),
        "last_contact_seconds_ago": known.answered.and_then(|at| at.elapsed().ok()).map(|ago| ago.as_secs()),
    })
}

#[derive(Deserialize)]
struct ProfileQuery {
    seconds: Option<String>,
}

async fn get_profile(
    State(service): State<Arc<Service>>,
    method: Method,
    path: Result<Path<(String, String)>, PathRejection>,
    query: Result<Query<ProfileQuery>, QueryRejection>,
) -> Response {
    let (Ok(Path((name, profile))), Ok(Query(query))) = (path, query) else {
        return refuse(
            StatusCode::BAD_REQUEST,
            "expected UTF-8, and `seconds` at most once",
        );
    };
    let Some(member) = service.roster.member(&name) else {
        let text = format!(
            "the fleet has no guest `{}`; /guests lists them",
            Printable(&name)
        );
        return refuse(StatusCode::NOT_FOUND, &text);
    };
    let mode = match profile.as_str() {
        "profile" => member.guest.how.mode,
        "wall" => Mode::Wall,
        "offcpu" => Mode::OffCpu,
        _ => {
            let text = "expected the profile `profile`, `wall` or `offcpu`; disable the others where they are scraped";
            return refuse(StatusCode::NOT_FOUND, text);
        }
    };
    let length = match seconds(query.seconds.as_deref(), service.longest) {
        Ok(length) => length,
        Err(text) => return refuse(StatusCode::BAD_REQUEST, &text),
    };
    if method == Method::HEAD {
        let known = member.known();
        return match (&known.last, &known.failure) {
            (Some(_), _) => pprof(Vec::new()),
            (None, failure) => {
                let failure = failure.as_deref().unwrap_or("it was not asked yet");
                refuse(StatusCode::SERVICE_UNAVAILABLE, failure)
            }
        };
    }
    take_profile(member, mode, length).await
}

/// Records until the time is over, or nobody waits for the answer any more: then the future is dropped.
async fn take_profile(member: Arc<Member>, mode: Mode, length: Duration) -> Response {
    if member.gone.stop() {
        return refuse(
            StatusCode::SERVICE_UNAVAILABLE,
            "the server stops, or the guest has left the fleet",
        );
    }
    let Some(running) = member.begin() else {
        let text = format!(
            "{PROFILES_AT_ONCE} profiles of this guest are being taken already; try again later"
        );
        let mut answer = refuse(StatusCode::TOO_MANY_REQUESTS, &text);
        let after = HeaderValue::from(length.as_secs());
        answer.headers_mut().insert(header::RETRY_AFTER, after);
        return answer;
    };
    let waiting = running.waiting();
    let taken = tokio::task::spawn_blocking(move || {
        let taken = take::pprof(&running, mode, length);
        if let Err(error) = &taken {
            let (name, text) = (&running.member().guest.name, error.to_string());
            log(format_args!(
                "warning: no profile of {}: {}",
                Printable(name),
                Printable(&text)
            ));
        }
        taken
    });
    let taken = taken.await;
    drop(waiting);
    match taken {
        Ok(Ok(bytes)) => pprof(bytes),
        Ok(Err(error)) => refuse(error.status(), &error.told()),
        Err(_) => refuse(
            StatusCode::INTERNAL_SERVER_ERROR,
            "the profile could not be made; the server's log says why",
        ),
    }
}

impl GuestError {
    /// Whose fault it is: this machine's files, or the guest.
    fn status(&self) -> StatusCode {
        match self {
            GuestError::Key(_)
            | GuestError::Symbols(_)
            | GuestError::CallerTable(_)
            | GuestError::Record(RecordError::Output(_))
            | GuestError::Temporary(_) => StatusCode::INTERNAL_SERVER_ERROR,
            _ => StatusCode::SERVICE_UNAVAILABLE,
        }
    }
}

fn seconds(found: Option<&str>, longest: Duration) -> Result<Duration, String> {
    let usual = USUAL_SECONDS.min(longest.as_secs());
    let seconds = found.map_or(Some(usual), |text| text.parse().ok());
    match seconds {
        Some(seconds) if (1..=longest.as_secs()).contains(&seconds) => {
            Ok(Duration::from_secs(seconds))
        }
        _ => Err(format!(
            "expected `seconds` from 1 to {}, found `{}`; `longest` in fleet.toml is the limit",
            longest.as_secs(),
            Printable(found.unwrap_or_default())
        )),
    }
}

fn pprof(bytes: Vec<u8>) -> Response {
    let headers = [
        (header::CONTENT_TYPE, "application/octet-stream"),
        (
            header::CONTENT_DISPOSITION,
            "attachment; filename=\"profile.pb.gz\"",
        ),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
    ];
    (headers, bytes).into_response()
}

fn refuse(status: StatusCode, text: &str) -> Response {
    (
        status,
        [(header::X_CONTENT_TYPE_OPTIONS, "nosniff")],
        format!("{}\n", Printable(text)),
    )
        .into_response()
}
