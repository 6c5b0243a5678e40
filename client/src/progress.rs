//! What a person sees while a recording is made: on a terminal only, and never on stdout.

use std::borrow::Cow;
use std::io::{self, IsTerminal as _};
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use unikprof_proto::code::state;
use unikprof_proto::message::TraceState;

use crate::charset;
use unikprof_link::record::{Event, Observer, RecorderStatus, RecordingStatus};
use unikprof_profile::printable::Printable;
use unikprof_profile::units::{grouped, std_duration};
use unikprof_report::report::warnings;

/// A line that follows the recording, with its samples, its rate and what was not recorded.
///
/// Where stderr is no terminal there is no line; lost connections are told there all the same.
#[derive(Debug)]
pub struct ProgressLine {
    bar: ProgressBar,
    is_terminal: bool,
    /// Whether it is one that cannot draw a line again: it gets a line now and then.
    is_dumb: bool,
    /// When such a line was written last.
    told: Option<Instant>,
    /// Whether the user was told that the recording does not end by itself; on a terminal the line
    /// does.
    endless: bool,
}

/// What takes long before and after a recording.
pub(crate) const READING_IMAGES: &str = "reading the images";

/// How often the line moves.
const TICK: Duration = Duration::from_millis(100);

/// How often a terminal that cannot draw a line again gets a new one.
const DUMB_EVERY: Duration = Duration::from_secs(5);

impl ProgressLine {
    /// A line on stderr.
    pub fn on_stderr() -> ProgressLine {
        let is_terminal = io::stderr().is_terminal();
        let is_dumb = is_terminal && std::env::var_os("TERM").is_some_and(|term| term == "dumb");
        let is_terminal = is_terminal && !is_dumb;
        let bar = ProgressBar::with_draw_target(
            None,
            if is_terminal { ProgressDrawTarget::stderr() } else { ProgressDrawTarget::hidden() },
        );
        bar.set_style(style("{spinner} {wide_msg}"));
        if is_terminal {
            bar.enable_steady_tick(TICK);
        }
        ProgressLine { bar, is_terminal, is_dumb, told: None, endless: false }
    }

    /// Takes the line away.
    pub fn finish(&self) {
        self.bar.finish_and_clear();
    }

    fn running(&mut self, status: &RecordingStatus, recorder: &RecorderStatus) {
        if !self.is_terminal && status.duration_ns == 0 && !self.endless {
            self.endless = true;
            self.say("recording until interrupted (no duration was given)");
        }
        if status.duration_ns != 0 && self.bar.length().is_none() {
            self.bar.set_length(status.duration_ns / 1_000_000);
            self.bar.set_style(style("{spinner} [{bar:24}] {wide_msg}"));
        }
        self.bar.set_position(u64::try_from(status.elapsed().as_millis()).unwrap_or(u64::MAX));
        let text = message(status, recorder);
        if self.is_dumb && self.told.is_none_or(|told| told.elapsed() >= DUMB_EVERY) {
            self.told = Some(Instant::now());
            tell!("{text}");
        }
        self.bar.set_message(text);
    }

    fn tracing(&mut self, state: &TraceState, calls: u64, duration_ns: u64) {
        if !self.is_terminal && duration_ns == 0 && !self.endless {
            self.endless = true;
            self.say("tracing until interrupted (no time was given)");
        }
        let elapsed_ns = state.ended_ns.saturating_sub(state.started_ns);
        if duration_ns != 0 && self.bar.length().is_none() {
            self.bar.set_length(duration_ns / 1_000_000);
            self.bar.set_style(style("{spinner} [{bar:24}] {wide_msg}"));
        }
        self.bar.set_position(elapsed_ns / 1_000_000);
        let seconds = elapsed_ns as f64 / 1e9;
        let time = match duration_ns {
            0 => format!("{seconds:.0} s, Ctrl-C stops"),
            total => format!("{seconds:.0}/{:.0} s", total as f64 / 1e9),
        };
        let cost = f64::from(state.cost_permille) / 10.0;
        self.bar.set_message(format!(
            "{time}  {} calls  {} probes  cost {cost:.1} %",
            grouped(calls),
            grouped(state.probes)
        ));
    }

    /// Shows on a terminal what is done, for as long as it takes.
    pub(crate) fn during<T>(doing: &'static str, work: impl FnOnce() -> T) -> T {
        let line = ProgressLine::on_stderr();
        line.prepare(doing);
        work()
    }

    /// Shows what is done before there is anything to follow.
    pub(crate) fn prepare(&self, doing: impl Into<Cow<'static, str>>) {
        self.bar.set_message(doing);
    }

    /// Says that the user's first request to stop has arrived; may be called on any thread.
    pub(crate) fn stopping(&self, kept: &str) -> impl Fn() + Send + 'static {
        let text = stopping(kept);
        let (bar, is_terminal) = (self.bar.clone(), self.is_terminal);
        move || say(&bar, is_terminal, &text)
    }

    fn say(&self, text: &str) {
        say(&self.bar, self.is_terminal, text);
    }
}

/// What the user's first request to stop is acknowledged with.
pub(crate) fn stopping(kept: &str) -> String {
    format!("stopping; the {kept} so far are kept (press Ctrl-C again to give up)")
}

impl Observer for ProgressLine {
    fn event(&mut self, event: Event<'_>) {
        match event {
            Event::Running { recording, recorder } => self.running(recording, recorder),
            Event::Tracing { state, calls, duration_ns } => self.tracing(state, calls, duration_ns),
            Event::SettingUp { functions, probes } => {
                self.prepare(format!(
                    "setting {} probes in {} functions, Ctrl-C gives up",
                    grouped(probes as u64),
                    grouped(functions as u64)
                ));
            }
            Event::Abandoned { is_restored: true } => self.say("all probes are removed"),
            Event::Abandoned { is_restored: false } => self.say(
                "it is not known whether the probes are removed: the agent removes them itself, 30 \
                 s after it last heard from this client",
            ),
            Event::Fetching { samples, bytes } => {
                self.bar.set_message(format!(
                    "fetching: {samples} samples, {} KiB",
                    bytes.div_ceil(1024)
                ));
            }
            Event::CallerTableNotTaken { uses_held } => {
                self.say(&format!("warning: {}", warnings::caller_table_warning(uses_held)));
            }
            Event::ConnectionLost(error) => {
                self.say(&format!("{error}; reconnecting"));
                self.bar.set_message("reconnecting");
            }
            Event::EndedByAnother { after } => {
                let after = std_duration(after);
                self.say(&format!("another client has ended the recording, after {after}"));
            }
            Event::Waiting(error) => self.say(&format!("{error}; waiting")),
            Event::Reconnected => self.say("reconnected"),
        }
    }
}

fn say(bar: &ProgressBar, is_terminal: bool, text: &str) {
    if is_terminal {
        bar.println(charset::local(text.to_owned()));
    } else {
        tell!("{text}");
    }
}

impl Drop for ProgressLine {
    fn drop(&mut self) {
        self.finish();
    }
}

fn message(status: &RecordingStatus, recorder: &RecorderStatus) -> String {
    let counters = &status.counters;
    if status.state == state::DELAYED {
        let left = status.delay_left().as_secs_f64();
        return format!("`{}` starts in {left:.0} s", Printable(&status.name));
    }
    let elapsed = status.elapsed().as_secs_f64();
    let time = match status.duration_ns {
        0 => format!("{elapsed:.0} s, Ctrl-C stops"),
        total => format!("{:.0}/{:.0} s", elapsed, total as f64 / 1e9),
    };
    let rate = if elapsed > 0.0 { counters.recorded as f64 / elapsed } else { 0.0 };
    let mut text = format!("{time}  {} samples, {rate:.0}/s", counters.recorded);
    for (what, count) in [
        ("lost", counters.lost),
        ("aged", counters.aged),
        ("overflow", counters.overflow),
        ("masked", counters.masked),
    ] {
        if count != 0 {
            text.push_str(&format!("  {what} {count}"));
        }
    }
    if let Some(used) =
        (recorder.agent.nodes_used.saturating_mul(100)).checked_div(recorder.agent.nodes_capacity)
    {
        text.push_str(&format!("  memory {used} % full"));
    }
    text
}

fn style(template: &str) -> ProgressStyle {
    // The templates are this file's own and tested; a wrong one would only look plain.
    ProgressStyle::with_template(template)
        .unwrap_or_else(|_| ProgressStyle::default_spinner())
        .tick_chars("|/-\\ ")
        .progress_chars("=> ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_templates_are_templates() {
        for template in ["{spinner} {wide_msg}", "{spinner} [{bar:24}] {wide_msg}"] {
            assert!(ProgressStyle::with_template(template).is_ok());
        }
    }
}
