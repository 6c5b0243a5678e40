//! `push.v1.PusherService/Push` of Pyroscope with its validation, by `pkg/distributor` and
//! `pkg/validation` of its sources.

use std::collections::BTreeMap;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use serde::Deserialize;
use serde_json::json;

use super::pprof::Profile;
use super::{Batch, Refusal, Series};

/// Pyroscope's default limits: samples of a profile.
const SAMPLES: usize = 16_000;

/// Bytes of a profile before compression.
const BYTES: usize = 4 << 20;

/// How long ago a profile may have begun, and how far ahead of this machine's clock.
const OLDER: Duration = Duration::from_secs(3600);
const NEWER: Duration = Duration::from_secs(600);

/// Bytes of one request before compression; one with more is always told to come later.
const BURST: usize = 2 << 20;

/// Labels of a series, with those of the samples.
const LABELS: usize = 30;

/// The longest name and value of a label, in bytes.
const LABEL_NAME: usize = 1024;
const LABEL_VALUE: usize = 2048;

/// Frames of a stack. Deeper stacks are refused here; Pyroscope cuts them.
const DEPTH: usize = 1000;

/// Unlike Pyroscope, a field with another name is refused: it would be passed over.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct PushRequest {
    series: Vec<RawProfileSeries>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawProfileSeries {
    labels: Vec<LabelPair>,
    samples: Vec<RawSample>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct LabelPair {
    pub(super) name: String,
    pub(super) value: String,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawSample {
    #[serde(rename = "rawProfile")]
    raw_profile: String,
    #[serde(rename = "ID")]
    id: String,
}

pub(super) fn batch(body: &[u8]) -> Result<Batch, Refusal> {
    let request: PushRequest =
        serde_json::from_slice(body).map_err(|error| Refusal::invalid(error.to_string()))?;
    let mut batch = Batch::default();
    let mut size = 0;
    for series in request.series {
        let labels = unique(series.labels)?;
        for sample in series.samples {
            let (profile, bytes) = Profile::read(&decoded(&sample.raw_profile)?, BYTES)?;
            size += bytes;
            if size > BURST {
                return Err(Refusal {
                    status: 429,
                    text: format!("push rate limit exceeded while adding {bytes} bytes"),
                });
            }
            check_profile(&profile)?;
            profile.check()?;
            let profiles = profile.by_series(&labels)?;
            for (series, ..) in &profiles {
                check_labels(series)?;
            }
            if !is_uuid(&sample.id) {
                return Err(Refusal::invalid(format!("no UUID: {}", sample.id)));
            }
            batch.ids.push(sample.id);
            batch.profiles.extend(profiles);
        }
    }
    if batch.ids.is_empty() {
        return Err(Refusal::invalid("no profiles received"));
    }
    Ok(batch)
}

/// Connect's code and message.
pub(super) fn error(refusal: &Refusal) -> Vec<u8> {
    let code = match refusal.status {
        400 => "invalid_argument",
        401 => "unauthenticated",
        429 => "resource_exhausted",
        503 => "unavailable",
        _ => "unknown",
    };
    json!({ "code": code, "message": refusal.text }).to_string().into_bytes()
}

pub(super) fn decoded(base64: &str) -> Result<Vec<u8>, Refusal> {
    let bytes = BASE64_STANDARD.decode(base64);
    bytes.map_err(|error| Refusal::invalid(error.to_string()))
}

pub(super) fn unique(labels: Vec<LabelPair>) -> Result<Series, Refusal> {
    let mut series = BTreeMap::new();
    for label in labels {
        if let Some(before) = series.insert(label.name, label.value) {
            let text = format!("duplicate label name, with the value {before} before");
            return Err(Refusal::invalid(text));
        }
    }
    Ok(series)
}

fn check_profile(profile: &Profile) -> Result<(), Refusal> {
    let began = u128::try_from(profile.time_nanos).unwrap_or(0);
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let is_within =
        began > now.saturating_sub(OLDER).as_nanos() && began < (now + NEWER).as_nanos();
    if began != 0 && !is_within {
        let text = format!("profile is outside of ingestion window (profile timestamp: {began})");
        return Err(Refusal::invalid(text));
    }
    let samples = profile.sample.len();
    if samples > SAMPLES {
        let text = format!(
            "the profile exceeds the samples count limit (actual: {samples}, limit: {SAMPLES})"
        );
        return Err(Refusal::invalid(text));
    }
    // Pyroscope cuts deeper stacks; here they would go unseen.
    let deepest = profile.sample.iter().map(|sample| sample.location_id.len()).max();
    if deepest > Some(DEPTH) {
        return Err(Refusal::invalid("a stack is deeper than the limit"));
    }
    Ok(())
}

fn check_labels(series: &Series) -> Result<(), Refusal> {
    let is = |right: bool, rule: &str| match right {
        true => Ok(()),
        false => Err(Refusal::invalid(format!("invalid labels {series:?}: {rule}"))),
    };
    is(series.len() <= LABELS, "too many label names")?;
    for needed in ["__name__", "service_name"] {
        is(series.get(needed).is_some_and(|value| !value.is_empty()), needed)?;
    }
    for (name, value) in series {
        let is_letter = |c: char| c.is_ascii_alphabetic() || c == '_';
        let is_rest = |c: char| is_letter(c) || c.is_ascii_digit();
        is(name.starts_with(is_letter) && name.chars().all(is_rest), "invalid label name")?;
        is(name.len() <= LABEL_NAME, "label name too long")?;
        is(value.len() <= LABEL_VALUE, "label value too long")?;
    }
    Ok(())
}

fn is_uuid(text: &str) -> bool {
    let lengths = text.split('-').map(str::len);
    lengths.eq([8, 4, 4, 4, 12]) && text.chars().all(|c| c == '-' || c.is_ascii_hexdigit())
}
