//! A diagnosis for programs.
//!
//! ```json
//! {
//!   "schema": 1, "subject": "recording", "what": "30.00 s of web, mode cpu",
//!   "verdict": "look", "trustworthy": true,
//!   "checks": [{
//!     "name": "lost", "verdict": "good", "finding": "0.0 % of the ticks ...", "advice": null,
//!     "figures": { "lost": 0 }
//!   }]
//! }
//! ```
//!
//! A check about one of an agent's recordings has its name in `recording`. Checks and figures may
//! be added, and texts may change; names stay.

use serde_json::{Value, json};

use super::{Diagnosis, Verdict};

/// The value of `schema`.
pub(crate) const SCHEMA: u32 = 1;

impl Diagnosis {
    /// For programs: an object whose shape `schema` names.
    pub fn json(&self) -> Value {
        json!({
            "schema": SCHEMA,
            "subject": self.subject,
            "what": self.what,
            "verdict": self.verdict(),
            "trustworthy": self.verdict() != Verdict::Bad,
            "checks": self.checks,
        })
    }
}
