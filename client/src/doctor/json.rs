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
//! A check about one of an agent's recordings has its name in `recording`. Checks and figures may be
//! added, and texts may change; names stay.

use serde_json::{Map, Value, json};

use super::{Diagnosis, Subject, Verdict};

/// The value of `schema`.
pub(crate) const SCHEMA: u32 = 1;

impl Diagnosis {
    /// For programs: an object whose shape `schema` names.
    pub fn json(&self) -> Value {
        let checks: Vec<Value> = self
            .checks
            .iter()
            .map(|check| {
                let figures: Map<String, Value> = check
                    .figures
                    .iter()
                    .map(|(name, figure)| ((*name).to_owned(), json!(figure)))
                    .collect();
                let mut object = json!({
                    "name": check.name,
                    "verdict": check.verdict,
                    "finding": check.finding,
                    "advice": check.advice,
                    "figures": figures,
                });
                if let (Some(name), Value::Object(fields)) = (&check.recording, &mut object) {
                    fields.insert("recording".to_owned(), json!(name));
                }
                object
            })
            .collect();
        json!({
            "schema": SCHEMA,
            "subject": match self.subject {
                Subject::Recording => "recording",
                Subject::Agent => "agent",
            },
            "what": self.what,
            "verdict": self.verdict(),
            "trustworthy": self.verdict() != Verdict::Bad,
            "checks": checks,
        })
    }
}
