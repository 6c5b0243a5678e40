//! OpenTelemetry's profiles over HTTP as protobuf; the signal is in development.
//!
//! <https://opentelemetry.io/docs/specs/otlp/#otlphttp>. A collector does not know a second
//! delivery as one.

use opentelemetry_proto::tonic::collector::profiles::v1development::ExportProfilesServiceResponse;
use prost::Message;
use unikprof_report::report::{Report, ReportOptions};

use super::http::{Answer, Http};
use super::{Delivery, Target, Verdict, service_name};

pub(super) const PATH: &str = "/v1development/profiles";

const PROTOBUF: &str = "application/x-protobuf";

/// The codes that call a message itself wrong: invalid argument, out of range, and internal, which
/// a collector's receiver gives to errors that it calls permanent.
const REJECTIONS: [i32; 3] = [3, 11, 13];

#[derive(Debug)]
pub(super) struct Otlp(pub(super) Http);

impl Target for Otlp {
    fn deliver(&self, delivery: &Delivery<'_>) -> Verdict {
        if delivery.symbolized.profile().samples().is_empty() {
            return Verdict::Accepted;
        }
        let report = Report::new(delivery.symbolized, ReportOptions::default());
        let unix_ns = delivery.from_unix_ns..delivery.to_unix_ns;
        let message = match report.otlp_request(attributes(delivery), unix_ns) {
            Ok(message) => message,
            Err(error) => return Verdict::later(error),
        };
        match self.0.post(PROTOBUF, &message) {
            Err(verdict) => verdict,
            Ok(answer) if answer.is_success() => self.success(&answer),
            Ok(answer) => {
                let code = status(&answer).filter(|_| answer.is_whole).map(|it| it.code);
                self.0.failure(&answer, code.is_some_and(|code| REJECTIONS.contains(&code)))
            }
        }
    }
}

impl Otlp {
    /// What is lost of the answer may be what says that something was rejected.
    fn success(&self, answer: &Answer) -> Verdict {
        let is_whole = answer.is_whole && answer.is_of(PROTOBUF);
        let response = ExportProfilesServiceResponse::decode(&*answer.body).ok();
        let Some(response) = response.filter(|_| is_whole) else {
            return self.0.strange(answer, "a whole OTLP response");
        };
        match response.partial_success {
            Some(partial) if partial.rejected_profiles > 0 => Verdict::never(format_args!(
                "{} profiles were rejected: {}",
                partial.rejected_profiles,
                unikprof_profile::printable::Printable(&partial.error_message)
            )),
            // A warning.
            _ => Verdict::Accepted,
        }
    }
}

/// The guest as a resource: its name, its service and its own labels.
fn attributes(delivery: &Delivery<'_>) -> Vec<(String, String)> {
    let guest = delivery.guest;
    let own = guest.labels.iter().filter(|(key, _)| *key != "service_name");
    let own = own.map(|(key, value)| (key.clone(), value.clone()));
    [
        ("service.name".to_owned(), service_name(guest)),
        ("service.instance.id".to_owned(), guest.name.clone()),
    ]
    .into_iter()
    .chain(own)
    .collect()
}

/// `google.rpc.Status`, as far as it is used.
#[derive(Clone, PartialEq, Message)]
struct Status {
    #[prost(int32, tag = "1")]
    code: i32,
    #[prost(string, tag = "2")]
    message: String,
}

fn status(answer: &Answer) -> Option<Status> {
    answer.is_of(PROTOBUF).then(|| Status::decode(&*answer.body).ok())?
}

/// What is wrong, as a collector says it.
pub(super) fn message(answer: &Answer) -> Option<String> {
    Some(status(answer)?.message)
}
