//! Checks whether a profile can be trusted.
//!
//! [`Diagnosis::of_recording`] judges a recording, `Diagnosis::of_agent` an agent that answers: one
//! `Check` for each thing that can be wrong, with a `Verdict`, the figure it comes from, and what
//! to do about it. [`Diagnosis::text`] is for people, [`Diagnosis::json`] for programs.
//!
//! | verdict | meaning |
//! |---|---|
//! | `good` | no problem |
//! | `look` | a caveat: the profile is usable by somebody who knows about it |
//! | `bad` | the profile may be wrong in a way that it does not show |
//!
//! ```no_run
//! use unikprof_report::doctor::Diagnosis;
//! use unikprof_profile::recording::{Reading, Recording};
//! use unikprof_profile::symbols::Symbolizer;
//!
//! let recording = Recording::open("run.unikprof".as_ref(), Reading::Salvage)?;
//! let diagnosis = Diagnosis::of_recording(&recording, &Symbolizer::default());
//! print!("{}", diagnosis.text(100, false));
//! # Ok::<(), unikprof_profile::recording::RecordingError>(())
//! ```

mod agent_checks;
mod check;
mod frame_records;
#[cfg(test)]
mod golden_tests;
mod heap_checks;
mod image_checks;
mod json;
mod peer_checks;
mod recording_checks;
mod sampling_checks;
mod stack_checks;
mod text;

use std::borrow::Cow;
use std::time::Duration;

use serde::Serialize;
use unikprof_proto::secure::KeyId;

pub use check::{Check, Verdict};

use frame_records::PassedOver;

use crate::report::{Report, ReportOptions, TimelineView};
use unikprof_profile::agent_info::AgentInfo;
use unikprof_profile::printable::Printable;
use unikprof_profile::recorder_status::RecorderStatus;
use unikprof_profile::recording::Recording;
use unikprof_profile::symbols::{SymbolError, Symbolized, Symbolizer};

/// What was judged, and the checks made.
#[derive(Debug, Clone, PartialEq)]
pub struct Diagnosis {
    /// Whether a recording was judged or an agent.
    pub(crate) subject: Subject,
    /// What it is, in a few words.
    pub(crate) what: String,
    /// In the order in which they are to be read.
    pub(crate) checks: Vec<Check>,
}

/// What is judged.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Subject {
    /// A recording: what it shows.
    Recording,
    /// An agent: what its recordings would show.
    Agent,
}

/// What an agent has said.
#[derive(Debug, Clone, Copy)]
pub struct Answers<'a> {
    /// What the agent says of itself.
    pub agent: &'a AgentInfo,
    /// The protocol version in use.
    pub protocol: u16,
    /// The key that the conversation is sealed under; `None`: it is in the clear.
    pub key: Option<KeyId>,
    /// What its recorder does.
    pub status: &'a RecorderStatus,
    /// Nanoseconds since 1970-01-01 UTC by the client's clock when it said who it is.
    pub asked_unix_ns: i128,
    /// How long it took to answer the last request.
    pub took: Duration,
    /// The sampling period if the user chooses none, in ns.
    pub usual_period_ns: u64,
}

impl Diagnosis {
    /// Judges a recording. Images that are not the recorded ones are a finding, not a failure;
    /// names are then those that other files give.
    pub fn of_recording(recording: &Recording, symbolizer: &Symbolizer) -> Diagnosis {
        let profile = &recording.profile;
        let without_files = Symbolizer::default();
        let (symbolizer, symbolized, wrong_image) = match symbolizer.resolve(profile) {
            Ok(symbolized) => (symbolizer, Some(symbolized), None),
            // Without the user's files none of them can be wrong.
            Err(wrong) => (&without_files, without_files.resolve(profile).ok(), Some(wrong)),
        };
        let passed_over =
            symbolized.as_ref().and_then(|symbolized| PassedOver::of(symbolized, symbolizer));
        judge(recording, symbolized.as_ref(), wrong_image.as_ref(), passed_over.as_ref())
    }

    /// Judges an agent by what it has said; `wrong_image` is what is wrong with the images that the
    /// user named for it, and `None` in it where they are right. The agent is not asked anything.
    pub fn of_agent(answers: &Answers<'_>, wrong_image: Option<Option<&SymbolError>>) -> Diagnosis {
        let guest = answers.agent.guest_name.as_deref();
        let guest = guest.unwrap_or("an unnamed guest");
        Diagnosis {
            subject: Subject::Agent,
            what: format!(
                "agent {} in {}",
                Printable(&answers.agent.agent_version),
                Printable(guest)
            ),
            checks: agent_checks::of(answers, wrong_image),
        }
    }

    /// The worst verdict of all checks.
    pub fn verdict(&self) -> Verdict {
        self.checks.iter().map(|check| check.verdict).max().unwrap_or(Verdict::Good)
    }
}

/// Judges a recording with the names at hand, what is wrong with the image that the user named, and
/// what the images tell of the callers.
fn judge(
    recording: &Recording,
    symbolized: Option<&Symbolized<'_>>,
    wrong_image: Option<&SymbolError>,
    passed_over: Option<&PassedOver>,
) -> Diagnosis {
    let profile = &recording.profile;
    let info = profile.recording();
    let mut checks = Vec::new();
    // The agent's sums agree by construction: these checks do not use them.
    if info.mode.samples_time() {
        checks.extend(sampling_checks::rates(&profile.counters(), info));
    }
    checks.extend(recording_checks::of(recording));
    checks.push(image_checks::identity(symbolized, wrong_image));
    if let Some(symbolized) = symbolized {
        // In time, so that it shows whether samples come in bursts.
        let report = Report::new(symbolized, ReportOptions::default())
            .with_timeline(TimelineView::of(recording));
        let table = report.functions();
        checks.push(image_checks::names(symbolized));
        checks.extend(stack_checks::of(symbolized, passed_over));
        checks.extend(if profile.heap.is_some() {
            heap_checks::of(recording)
        } else {
            sampling_checks::of_recording(recording, symbolized, table)
        });
    }
    let guest = match info.guest_name.as_str() {
        "" => Cow::Borrowed("an unnamed guest"),
        name => Printable(name).to_string().into(),
    };
    Diagnosis {
        subject: Subject::Recording,
        what: format!(
            "{} of {guest}, mode {}",
            unikprof_profile::units::duration(info.elapsed_ns),
            info.mode
        ),
        checks,
    }
}
