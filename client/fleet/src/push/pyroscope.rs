//! Pyroscope: `push.v1.PusherService/Push` by the Connect protocol, as JSON.
//!
//! <https://github.com/grafana/pyroscope/blob/main/api/push/v1/push.proto>. A request has one
//! profile: of several, some could be accepted and some not. Profiles of one series with equal
//! times are one profile for Pyroscope, so the pieces of a profile that was split have times of
//! their own, and a second delivery has the times of the first.

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use blake2::{Blake2s256, Digest as _};
use serde_json::{Value, json};
use unikprof_report::report::{PieceLimits, Report, ReportOptions};

use super::http::Http;
use super::{Delivery, Target, Verdict, series_labels};

pub(super) const PATH: &str = "/push.v1.PusherService/Push";

/// Below Pyroscope's limits for a profile, 16,000 samples and 4 MiB, and for what comes at a time,
/// 2 MiB: one that is larger than that would be told to come later for ever.
const LIMITS: PieceLimits = PieceLimits { samples: 15_999, bytes: 1 << 20 };

#[derive(Debug)]
pub(super) struct Pyroscope(pub(super) Http);

impl Target for Pyroscope {
    fn deliver(&self, delivery: &Delivery<'_>) -> Verdict {
        let pieces = match pieces(delivery, LIMITS) {
            Ok(pieces) => pieces,
            Err(verdict) => return verdict,
        };
        let labels = pairs(delivery);
        for (at, piece) in pieces.iter().enumerate() {
            let sample = json!({
                "ID": id(delivery, at),
                "rawProfile": BASE64_STANDARD.encode(piece),
            });
            let series = json!({ "labels": labels, "samples": [sample] });
            match self.0.push_json(&json!({ "series": [series] })) {
                Verdict::Accepted => {}
                Verdict::Never { reason, .. } => {
                    return Verdict::Never { reason, in_part: at > 0 };
                }
                later => return later,
            }
        }
        Verdict::Accepted
    }
}

/// The delivery as pprof, without the labels that its series has.
pub(super) fn pieces(
    delivery: &Delivery<'_>,
    limits: PieceLimits,
) -> Result<Vec<Vec<u8>>, Verdict> {
    let options = ReportOptions { guest_labels: Some(Vec::new()), ..ReportOptions::default() };
    Report::new(delivery.symbolized, options)
        .pprof_pieces(delivery.from_unix_ns..delivery.to_unix_ns, limits)
        .map_err(Verdict::later)
}

/// The labels of the series as both Pyroscope and Parca take them.
pub(super) fn pairs(delivery: &Delivery<'_>) -> Vec<Value> {
    let labels = series_labels(delivery).into_iter();
    let pair = |(name, value)| json!({ "name": name, "value": value });
    labels.map(pair).collect()
}

/// A UUID, the same for each delivery of this piece.
fn id(delivery: &Delivery<'_>, piece: usize) -> String {
    let digest = Blake2s256::new()
        .chain_update(delivery.from_unix_ns.to_le_bytes())
        .chain_update((piece as u64).to_le_bytes())
        .chain_update(delivery.guest.name.as_bytes())
        .finalize();
    let mut bytes = [0; 16];
    bytes.copy_from_slice(&digest[..16]);
    // Version 8, variant 1: one's own way to make it.
    let number = u128::from_be_bytes(bytes) & !(0xf << 76) & !(0x3 << 62) | 0x8 << 76 | 0x2 << 62;
    let text = format!("{number:032x}");
    let parts = [0..8, 8..12, 12..16, 16..20, 20..32].map(|range| &text[range]);
    parts.join("-")
}
