//! `ProfileStoreService/WriteRaw` of Parca with its validation, by `pkg/normalizer` of its sources.

use serde::Deserialize;
use serde_json::json;

use super::pprof::Profile;
use super::pyroscope::{LabelPair, decoded, unique};
use super::{Batch, Refusal, Series};

/// The largest message that Parca's server takes.
const MAX_BYTES: usize = 64 << 20;

/// A field with another name is refused: Parca would pass it over.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct WriteRawRequest {
    series: Vec<RawProfileSeries>,
    #[serde(rename = "normalized")]
    _normalized: bool,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawProfileSeries {
    labels: LabelSet,
    samples: Vec<RawSample>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct LabelSet {
    labels: Vec<LabelPair>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawSample {
    #[serde(rename = "rawProfile")]
    raw_profile: String,
}

pub(super) fn batch(body: &[u8]) -> Result<Batch, Refusal> {
    let request: WriteRawRequest =
        serde_json::from_slice(body).map_err(|error| Refusal::invalid(error.to_string()))?;
    let mut batch = Batch::default();
    for series in request.series {
        let labels = unique(series.labels.labels)?;
        if labels.get("__name__").is_none_or(String::is_empty) {
            return Err(Refusal::invalid("missing __name__ label"));
        }
        check_names(&labels)?;
        for sample in series.samples {
            let (profile, _) = Profile::read(&decoded(&sample.raw_profile)?, MAX_BYTES)?;
            profile.check()?;
            batch.profiles.extend(profile.by_series(&labels)?);
        }
    }
    Ok(batch)
}

fn check_names(labels: &Series) -> Result<(), Refusal> {
    let is_rest = |c: char| c.is_ascii_alphanumeric() || c == '_';
    let is_name = |name: &&String| {
        name.chars().all(is_rest)
            && !name.starts_with(|c: char| c.is_ascii_digit())
            && !name.is_empty()
    };
    match labels.keys().find(|name| !is_name(name)) {
        None => Ok(()),
        Some(name) => Err(Refusal::invalid(format!("invalid label name: {name}"))),
    }
}

/// gRPC's status as the gateway writes it.
pub(super) fn error(refusal: &Refusal) -> Vec<u8> {
    let code = match refusal.status {
        400 => 3,
        401 => 16,
        429 => 8,
        503 => 14,
        _ => 2,
    };
    let status = json!({ "code": code, "message": refusal.text, "details": [] });
    status.to_string().into_bytes()
}
