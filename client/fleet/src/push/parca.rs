//! Parca: `ProfileStoreService/WriteRaw` through its HTTP gateway, as JSON.
//!
//! <https://github.com/parca-dev/parca/blob/main/proto/parca/profilestore/v1alpha1/profilestore.proto>.
//! The gateway stands below `/api`. Parca adds up what it gets: a second delivery counts twice.

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use serde_json::json;
use unikprof_report::report::PieceLimits;

use super::http::Http;
use super::pyroscope::{pairs, pieces};
use super::{Delivery, Target, Verdict};

pub(super) const PATH: &str = "/api/profiles/writeraw";

/// Parca has no limit but 64 MiB for a message, so that hardly any profile is split.
const LIMITS: PieceLimits = PieceLimits { samples: usize::MAX, bytes: 32 << 20 };

#[derive(Debug)]
pub(super) struct Parca(pub(super) Http);

impl Target for Parca {
    fn deliver(&self, delivery: &Delivery<'_>) -> Verdict {
        let pieces = match pieces(delivery, LIMITS) {
            Ok(pieces) => pieces,
            Err(verdict) => return verdict,
        };
        if pieces.is_empty() {
            return Verdict::Accepted;
        }
        let profile = |piece| json!({ "rawProfile": BASE64_STANDARD.encode(piece) });
        let profiles: Vec<_> = pieces.iter().map(profile).collect();
        let series = json!({ "labels": { "labels": pairs(delivery) }, "samples": profiles });
        self.0.push_json(&json!({ "series": [series], "normalized": false }))
    }
}
