//! The HTTP interface.
//!
//! | request | answer |
//! |---|---|
//! | `GET /` | the fleet on one page, without any data: it asks for `/guests` |
//! | `GET /metrics` | [`metrics`] |
//! | `GET /guests` | the guests as JSON |
//! | `GET /targets` | the guests as Prometheus' `http_sd` lists them, for scrapers of profiles |
//! | `GET /guests/NAME/debug/pprof/profile?seconds=N` | pprof, gzip: a recording of N seconds in the guest's mode |
//! | `GET /guests/NAME/debug/pprof/wall` and `offcpu` | the same in these modes |
//! | `POST /guests/NAME/record?seconds=N` | the page of a recording of N seconds in the guest's mode |
//! | `GET /guests/NAME/recent?seconds=N` | the page of the last N seconds of the recording that always runs in the guest |
//!
//! `HEAD` of a profile records nothing. What fails is told as text: 400 for a request that makes no
//! sense, 403 for one of another site's page, 404 for a guest or profile that there is not, 429
//! where as many profiles are being taken as may be, 503 for a guest that is down.
//!
//! Encryption and authentication are a proxy's in front.

use std::sync::{Arc, OnceLock};
use std::time::{Duration, SystemTime};

use axum::Router;
use axum::extract::rejection::{PathRejection, QueryRejection};
use axum::extract::{Path, Query, Request, State};
use axum::http::{HeaderMap, HeaderValue, Method, StatusCode, header};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use serde::Deserialize;
use serde_json::{Value, json};
use unikprof_link::record::{Mode, RecordError, RecordingStatus};
use unikprof_profile::printable::Printable;
use unikprof_report::report::Format;
use unikprof_report::report::served_page;

use super::config::ExternalUrl;
use super::member::{Answer, GuestError, LOADS, Load, Member, PROFILES_AT_ONCE, Running, log};
use super::metrics;
use super::push;
use super::roster::Roster;
use super::take;

/// What requests are answered from.
pub(super) struct Service {
    pub(super) roster: Roster,
    /// The longest profile that a request may ask for.
    pub(super) longest: Duration,
    /// How often each guest is asked for its state.
    pub(super) every: Duration,
    /// How others reach it.
    pub(super) external: Option<ExternalUrl>,
}

/// How long a profile is if the request does not say so, as in Go's own servers.
const USUAL_SECONDS: u64 = 30;

/// How much of the last minutes is copied if the request does not say so, and the most that is.
const RECENT_SECONDS: u64 = 300;
const LONGEST_RECENT: Duration = Duration::from_secs(3600);

/// When to try again where two copies are being made.
const RETRY_COPY: Duration = Duration::from_secs(10);

const PAGE_TEMPLATE: &str = include_str!("../page/fleet.html");
const PAGE_STYLE: &str = include_str!("../page/fleet.css");

/// The page's modules. A module comes after those that it imports from.
const PAGE_MODULES: [&str; 2] =
    [include_str!("../page/fleet.js"), include_str!("../page/fleet-page.js")];

pub(super) fn router(service: Arc<Service>) -> Router {
    Router::new()
        .route("/", get(get_page))
        .route("/metrics", get(get_metrics))
        .route("/guests", get(get_guests))
        .route("/targets", get(get_targets))
        .route("/guests/{name}/debug/pprof/{profile}", get(get_profile))
        .route("/guests/{name}/record", post(post_record))
        .route("/guests/{name}/recent", get(get_recent))
        .fallback(|| async {
            refuse(
                StatusCode::NOT_FOUND,
                "there is nothing here; expected /, /metrics, /guests, /targets or \
                 /guests/NAME/debug/pprof/profile",
            )
        })
        .layer(middleware::from_fn_with_state(service.clone(), reject_other_sites))
        .with_state(service)
}

/// Rejects what another site's page has a browser ask for.
async fn reject_other_sites(
    State(service): State<Arc<Service>>,
    request: Request,
    next: Next,
) -> Response {
    let external = service.external.as_ref().map(|external| external.host.as_str());
    if is_own(request.headers(), external) {
        return next.run(request).await;
    }
    refuse(
        StatusCode::FORBIDDEN,
        "expected a request to an IP address, localhost or the host of `external-url`, and from no \
         other site's page",
    )
    .into_response()
}

/// Whether a request was not made by a page of another site, or under another site's name that
/// leads here.
fn is_own(headers: &HeaderMap, external: Option<&str>) -> bool {
    let text = |name| headers.get(name).and_then(|value: &HeaderValue| value.to_str().ok());
    let host = text(header::HOST).unwrap_or_default();
    let name = match host.strip_prefix('[') {
        Some(inside) => inside.split(']').next(),
        None => host.split(':').next(),
    };
    let name = name.unwrap_or_default();
    let is_external = |found: &str| external == Some(found);
    let is_here =
        name == "localhost" || name.parse::<std::net::IpAddr>().is_ok() || is_external(host);
    let site = text(header::HeaderName::from_static("sec-fetch-site"));
    // Browsers that do not tell the site tell the page's origin.
    let origin = text(header::ORIGIN).and_then(|origin| origin.split_once("://"));
    let is_own = text(header::ORIGIN).is_none()
        || origin.is_some_and(|(_, origin)| origin == host || is_external(origin));
    is_here && is_own && !matches!(site, Some("cross-site" | "same-site"))
}

async fn get_metrics(State(service): State<Arc<Service>>) -> Response {
    let members = service.roster.members();
    let text = metrics::text(members.iter().map(AsRef::as_ref));
    ([(header::CONTENT_TYPE, metrics::CONTENT_TYPE)], text).into_response()
}

/// The page, made once.
async fn get_page() -> Response {
    static PAGE: OnceLock<(String, String)> = OnceLock::new();
    let (page, policy) = PAGE.get_or_init(|| served_page(PAGE_TEMPLATE, PAGE_STYLE, &PAGE_MODULES));
    let headers = [
        (header::CONTENT_TYPE, "text/html; charset=utf-8"),
        (header::CONTENT_SECURITY_POLICY, policy),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (header::REFERRER_POLICY, "no-referrer"),
        (header::CACHE_CONTROL, "no-cache"),
    ];
    (headers, page.as_str()).into_response()
}

async fn get_guests(State(service): State<Arc<Service>>) -> Response {
    let members = service.roster.members();
    let guests: Vec<Value> = members.iter().map(|member| guest(member)).collect();
    let answer = json!({
        "longest_seconds": service.longest.as_secs(),
        "every_seconds": service.every.as_secs_f64(),
        "history_length": LOADS,
        "guests": guests,
    });
    let body = format!("{answer}\n");
    ([(header::CONTENT_TYPE, "application/json")], body).into_response()
}

/// Where a scraper finds each guest's profiles: at the external URL, or the address by which it has
/// found this server, below a path that Alloy takes from `__profile_path_prefix__`, and Parca by a rule.
async fn get_targets(State(service): State<Arc<Service>>, headers: HeaderMap) -> Response {
    let host = headers.get(header::HOST).and_then(|value| value.to_str().ok());
    let (scheme, host) = match &service.external {
        Some(external) => (external.scheme.as_str(), Some(external.host.as_str())),
        None => ("http", host),
    };
    let target = |member: &Arc<Member>| {
        let guest = &member.guest;
        let mut labels = guest.labels.clone();
        labels.insert("__profile_path_prefix__".into(), format!("/guests/{}", guest.name));
        labels.insert("__scheme__".into(), scheme.into());
        labels.insert("instance".into(), guest.name.clone());
        labels.insert("service_name".into(), push::service_name(guest));
        json!({ "targets": [host], "labels": labels })
    };
    let targets: Vec<Value> = service.roster.members().iter().map(target).collect();
    let body = format!("{:#}\n", json!(targets));
    ([(header::CONTENT_TYPE, "application/json")], body).into_response()
}

fn guest(member: &Member) -> Value {
    let known = member.known();
    let last = known.last.as_deref();
    let ago = |at: SystemTime| at.elapsed().map_or(0, |ago| ago.as_secs());
    let load = known.loads.back().copied().flatten();
    let vcpus = last.map_or(1, |last| last.agent.vcpus.max(1));
    // In thousandths: a thousand guests have 60,000 of them.
    let share = |load: &Option<Load>| {
        load.map(|load| (load.running_vcpus / f64::from(vcpus) * 1000.0).round() / 1000.0)
    };
    let recordings = last.map_or(&[][..], |last| &last.status.recordings);
    let recording = |one: &RecordingStatus| {
        json!({
            "name": one.name, "state": one.state_name(), "sampling": one.sampling()
        })
    };
    let hottest = known.hottest.as_ref().map(|hottest| {
        json!({
            "function": hottest.function,
            "share": hottest.share,
            "mode": hottest.mode,
            "seconds": hottest.seconds,
            "seconds_ago": ago(hottest.at),
            "recording": hottest.recording,
        })
    });
    json!({
        "name": member.guest.name,
        "address": member.guest.address.to_string(),
        "labels": member.guest.labels,
        "up": known.up(),
        "failure": known.failure,
        "guest_name": last.and_then(|last| last.agent.guest_name.clone()),
        "vcpus": last.map(|last| last.agent.vcpus),
        "last_contact_seconds_ago": known.answered.map(ago),
        "rate_hz": 1e9 / member.guest.how.period_ns as f64,
        "recordings": recordings.iter().map(recording).collect::<Vec<_>>(),
        "recent": last.and_then(Answer::always_on).map(|one| &one.name),
        "running_vcpus": load.map(|load| load.running_vcpus),
        "stolen_share": load.and_then(|load| load.stolen_share),
        "history": known.loads.iter().map(share).collect::<Vec<_>>(),
        "hottest": hottest,
    })
}

#[derive(Deserialize)]
struct ProfileQuery {
    seconds: Option<String>,
}

type Asked<P> = (Result<Path<P>, PathRejection>, Result<Query<ProfileQuery>, QueryRejection>);

/// What stands in a request's path, and its seconds.
fn parts<P>((path, query): Asked<P>) -> Result<(P, Option<String>), Refused> {
    match (path, query) {
        (Ok(Path(path)), Ok(Query(query))) => Ok((path, query.seconds)),
        _ => Err(refuse(StatusCode::BAD_REQUEST, "expected UTF-8, and `seconds` at most once")),
    }
}

impl Service {
    fn member(&self, name: &str) -> Result<Arc<Member>, Refused> {
        self.roster.member(name).ok_or_else(|| {
            let text = format!("the fleet has no guest `{}`; /guests lists them", Printable(name));
            refuse(StatusCode::NOT_FOUND, &text)
        })
    }
}

async fn get_profile(
    State(service): State<Arc<Service>>,
    method: Method,
    asked: Asked<(String, String)>,
) -> Result<Response, Refused> {
    let ((name, profile), found) = parts(asked)?;
    let member = service.member(&name)?;
    let mode = match profile.as_str() {
        "profile" => member.guest.how.mode,
        "wall" => Mode::Wall,
        "offcpu" => Mode::OffCpu,
        _ => {
            let text = "expected the profile `profile`, `wall` or `offcpu`; disable the others \
                        where they are scraped";
            return Err(refuse(StatusCode::NOT_FOUND, text));
        }
    };
    let length = seconds(found.as_deref(), USUAL_SECONDS, service.longest)?;
    if method == Method::HEAD {
        let known = member.known();
        return match (&known.last, &known.failure) {
            (Some(_), _) => Ok(pprof(Vec::new())),
            (None, failure) => {
                let failure = failure.as_deref().unwrap_or("it was not asked yet");
                Err(refuse(StatusCode::SERVICE_UNAVAILABLE, failure))
            }
        };
    }
    let take = move |running: &Running| take::profile(running, mode, length, Format::Pprof);
    run(member, length, take).await.map(pprof)
}

async fn post_record(
    State(service): State<Arc<Service>>,
    asked: Asked<String>,
) -> Result<Response, Refused> {
    let (name, found) = parts(asked)?;
    let member = service.member(&name)?;
    let length = seconds(found.as_deref(), USUAL_SECONDS, service.longest)?;
    let mode = member.guest.how.mode;
    let take = move |running: &Running| take::profile(running, mode, length, Format::Page);
    run(member, length, take).await.map(recording_page)
}

async fn get_recent(
    State(service): State<Arc<Service>>,
    asked: Asked<String>,
) -> Result<Response, Refused> {
    let (name, found) = parts(asked)?;
    let member = service.member(&name)?;
    let length = seconds(found.as_deref(), RECENT_SECONDS, LONGEST_RECENT)?;
    let take = move |running: &Running| take::recent(running, length);
    run(member, RETRY_COPY, take).await.map(recording_page)
}

/// Takes a profile until it is there, or nobody waits for the answer any more: then the future is
/// dropped. Whoever comes too early is told to try again after so long.
async fn run(
    member: Arc<Member>,
    retry: Duration,
    take: impl FnOnce(&Running) -> Result<Vec<u8>, GuestError> + Send + 'static,
) -> Result<Vec<u8>, Refused> {
    if member.gone.stop() {
        return Err(refuse(
            StatusCode::SERVICE_UNAVAILABLE,
            "the server stops, or the guest has left the fleet",
        ));
    }
    let Some(running) = member.begin() else {
        let text = format!(
            "{PROFILES_AT_ONCE} profiles of this guest are being taken already; try again later"
        );
        return Err(Refused { retry: Some(retry), ..refuse(StatusCode::TOO_MANY_REQUESTS, &text) });
    };
    let waiting = running.waiting();
    let taken = tokio::task::spawn_blocking(move || {
        let taken = take(&running);
        if let Err(error) = &taken {
            let name = &running.member.guest.name;
            log(&format!("warning: no profile of {name}: {error}"));
        }
        taken
    });
    let taken = taken.await;
    drop(waiting);
    match taken {
        Ok(Ok(bytes)) => Ok(bytes),
        Ok(Err(error)) => Err(refuse(error.status(), &error.told())),
        Err(_) => Err(refuse(
            StatusCode::INTERNAL_SERVER_ERROR,
            "the profile could not be made; the server's log says why",
        )),
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
            GuestError::NothingRecent => StatusCode::NOT_FOUND,
            _ => StatusCode::SERVICE_UNAVAILABLE,
        }
    }
}

fn seconds(found: Option<&str>, usual: u64, longest: Duration) -> Result<Duration, Refused> {
    let usual = usual.min(longest.as_secs());
    let seconds = found.map_or(Some(usual), |text| text.parse().ok());
    match seconds {
        Some(seconds) if (1..=longest.as_secs()).contains(&seconds) => {
            Ok(Duration::from_secs(seconds))
        }
        _ => {
            let text = format!(
                "expected `seconds` from 1 to {}, found `{}`; `longest` in fleet.toml is the limit \
                 of what is recorded",
                longest.as_secs(),
                Printable(found.unwrap_or_default())
            );
            Err(refuse(StatusCode::BAD_REQUEST, &text))
        }
    }
}

/// The page of a recording, whose policy stands in it.
fn recording_page(bytes: Vec<u8>) -> Response {
    let headers = [
        (header::CONTENT_TYPE, "text/html; charset=utf-8"),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (header::REFERRER_POLICY, "no-referrer"),
        (header::CACHE_CONTROL, "no-store"),
    ];
    (headers, bytes).into_response()
}

fn pprof(bytes: Vec<u8>) -> Response {
    let headers = [
        (header::CONTENT_TYPE, "application/octet-stream"),
        (header::CONTENT_DISPOSITION, "attachment; filename=\"profile.pb.gz\""),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
    ];
    (headers, bytes).into_response()
}

/// A request that is not answered with what it asks for.
struct Refused {
    status: StatusCode,
    text: String,
    /// When to try again.
    retry: Option<Duration>,
}

impl IntoResponse for Refused {
    fn into_response(self) -> Response {
        let nosniff = [(header::X_CONTENT_TYPE_OPTIONS, "nosniff")];
        let text = format!("{}\n", Printable(&self.text));
        let mut answer = (self.status, nosniff, text).into_response();
        if let Some(after) = self.retry {
            let after = HeaderValue::from(after.as_secs());
            answer.headers_mut().insert(header::RETRY_AFTER, after);
        }
        answer
    }
}

fn refuse(status: StatusCode, text: &str) -> Refused {
    Refused { status, text: text.into(), retry: None }
}
