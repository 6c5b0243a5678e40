//! `connect ADDR events`: what happened in the guest, one line each.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::time::{Duration, Instant};

use clap::ValueEnum;
use jiff::Timestamp;
use serde_json::{Value, json};
use unikprof_proto::code::{mode, state};

use super::arguments::EventsArguments;
use super::failure::Failure;
use super::{print, signals};
use crate::charset;
use unikprof_link::interrupt::Interrupt;
use unikprof_link::record::{EventReader, RecordError, RecordingStatus, Session};
use unikprof_profile::printable::Printable;
use unikprof_profile::timeline::{Event, Moment, WallClock, What, Window};
use unikprof_profile::units::grouped;

/// Which events are wanted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(super) enum Kind {
    /// Marks of the guest
    Mark,
    /// Beginnings and ends of the guest's spans
    Span,
    /// Counters of the guest
    Counter,
    /// vCPUs that blocked and woke
    Block,
    /// Recordings that began and ended
    Recording,
    /// Stolen time: another domain had the CPU
    Stolen,
    /// Resumes of the guest after a suspend
    Resumed,
    /// Failed handshakes
    BadKey,
}

impl Kind {
    /// The [kinds](What::kind) of the events.
    fn names(self) -> &'static [&'static str] {
        match self {
            Kind::Mark => &["mark"],
            Kind::Span => &["span_begin", "span_end"],
            Kind::Counter => &["counter"],
            Kind::Block => &["wake"],
            Kind::Recording => &["recording_began", "recording_ended"],
            Kind::Stolen => &["stolen"],
            Kind::Resumed => &["resumed"],
            Kind::BadKey => &["bad_key"],
        }
    }
}

/// How much before the time that is asked for is looked at: spans and blocks that end in it have
/// their lengths.
const BEFORE_NS: u64 = 5_000_000_000;

/// How often the agent is asked for more.
const EVERY: Duration = Duration::from_millis(500);

pub(super) fn run(
    session: &mut Session,
    interrupt: &Interrupt,
    arguments: &EventsArguments,
    as_json: bool,
) -> Result<(), Failure> {
    let asked = arguments.window.asked();
    if [asked.from, asked.to].iter().any(|moment| matches!(moment, Some(Moment::Since(_)))) {
        return Err(Failure::Usage(
            "events belong to no single recording, so there is no beginning to count from; write \
             `-30s` (before \
             now), `21:34:50` or `2026-11-21T21:34:50Z` (UTC)"
                .into(),
        ));
    }
    if arguments.follow {
        signals::listen(interrupt).map_err(Failure::Signals)?;
    }
    // What was before is asked for with --last or --from.
    let is_new = arguments.follow && matches!(asked.from, None | Some(Moment::BeforeEnd(0)));
    let window = if is_new {
        Window { from_ns: session.check(&mut ())?.agent.now_ns, to_ns: u64::MAX }
    } else {
        session.window_until_now(asked, &mut ())?
    };
    let kinds: Vec<&str> = arguments.only.iter().flat_map(|kind| kind.names()).copied().collect();
    let mut reader = EventReader::default();
    let mut names = RecordingNames::default();
    let mut is_first = true;
    loop {
        let looked = reader
            .look(session, window.from_ns.saturating_sub(BEFORE_NS), &mut ())
            .and_then(|look| names.learn(session, &look.events).map(|()| look));
        let look = match looked {
            // Ctrl-C is how following ends, also where an answer is on its way.
            Err(error) if arguments.follow && error.is_interrupt() => return Ok(()),
            look => look?,
        };
        if is_first && arguments.only.contains(&Kind::Block) {
            warn_where_few_blocks_are_kept(session)?;
        }
        if look.evicted > 0 && !(is_first && is_new) {
            let since =
                if is_first { "since the agent started" } else { "before they could be fetched" };
            tell!("warning: {} records were evicted {since}", grouped(look.evicted));
        }
        is_first = false;
        let mut text = String::new();
        let wanted = |event: &&Event| {
            window.contains(event.at_ns) && (kinds.is_empty() || kinds.contains(&event.what.kind()))
        };
        for event in look.events.iter().filter(wanted) {
            // A string takes everything.
            let _ = if as_json {
                writeln!(text, "{}", value(event, &look.clock, &names))
            } else {
                writeln!(text, "{}", charset::local(line(event, &look.clock, &names)))
            };
        }
        if !text.is_empty() {
            print(text)?;
        }
        let next = Instant::now() + EVERY;
        if !arguments.follow || !interrupt.sleep_until(next, Interrupt::stop) {
            return Ok(());
        }
    }
}

/// The names of recordings: an event tells their number alone.
#[derive(Default)]
struct RecordingNames(BTreeMap<u64, String>);

impl RecordingNames {
    /// Asks the agent where an event is about a recording that is not known. It knows those that
    /// are there; of others the number has to do.
    fn learn(&mut self, session: &mut Session, events: &[Event]) -> Result<(), RecordError> {
        let is_unknown = |event: &Event| match event.what {
            What::Began { recording } | What::Ended { recording } => {
                !self.0.contains_key(&recording)
            }
            _ => false,
        };
        if events.iter().any(is_unknown) {
            let there = session.check(&mut ())?.recordings.into_iter();
            self.0.extend(there.map(|one| (one.recording, one.name)));
        }
        Ok(())
    }

    /// The name of the recording that an event is about.
    fn of(&self, event: &Event) -> Option<&str> {
        match event.what {
            What::Began { recording } | What::Ended { recording } => {
                self.0.get(&recording).map(String::as_str)
            }
            _ => None,
        }
    }
}

/// Who asks for blocks and gets few should know why.
fn warn_where_few_blocks_are_kept(session: &mut Session) -> Result<(), RecordError> {
    let there = session.check(&mut ())?.recordings;
    let keeps_all = |one: &RecordingStatus| {
        one.state == state::RECORDING && matches!(one.mode, mode::WALL | mode::OFF_CPU)
    };
    if !there.iter().any(keeps_all) {
        tell!(
            "warning: no recording in mode wall or off-cpu is running, so the agent keeps only \
             waits of at least 20 ms, \
             and only while it records; `start --name waits --mode off-cpu` starts one that keeps \
             all"
        );
    }
    Ok(())
}

/// An event for people: when, where, what.
fn line(event: &Event, clock: &WallClock, names: &RecordingNames) -> String {
    let date = clock.unix_ns(event.at_ns).and_then(|unix_ns| {
        let date = Timestamp::from_nanosecond(unix_ns.into()).ok()?;
        Some(date.strftime("%Y-%m-%d %H:%M:%S%.6f").to_string())
    });
    let when = date.unwrap_or_else(|| format!("{:>18.6} s up", event.at_ns as f64 / 1e9));
    let mut line = format!("{when}  vcpu {:<3} {}", event.vcpu, event.what);
    if let Some(name) = names.of(event) {
        // A string takes everything.
        let _ = write!(line, " `{}`", Printable(name));
    }
    line
}

/// An event for programs, on one line.
fn value(event: &Event, clock: &WallClock, names: &RecordingNames) -> Value {
    let mut value = json!({
        "at_ns": event.at_ns,
        "unix_ns": clock.unix_ns(event.at_ns),
        "vcpu": event.vcpu,
        "kind": event.what.kind(),
    });
    let more = match &event.what {
        What::Mark { name, value } => json!({"name": name, "value": value}),
        What::SpanBegin { name, number, is_async } => {
            json!({"name": name, "number": number, "asynchronous": is_async})
        }
        What::SpanEnd { name, number, length_ns } => {
            json!({"name": name, "number": number, "length_ns": length_ns})
        }
        What::Counter { name, value } => json!({"name": name, "value": value}),
        What::Wake { length_ns } => json!({"length_ns": length_ns}),
        What::Began { recording } | What::Ended { recording } => {
            json!({"recording": recording, "name": names.of(event)})
        }
        What::Stolen { ns } => json!({"stolen_ns": ns}),
        What::Resumed | What::BadKey => json!({}),
    };
    if let (Value::Object(value), Value::Object(more)) = (&mut value, more) {
        value.extend(more);
    }
    value
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_are_told_with_their_dates_where_these_are_known() {
        let event = Event {
            at_ns: 1_500_000,
            vcpu: 1,
            what: What::SpanEnd {
                name: "disk\x1b[2J".into(),
                number: 7,
                length_ns: Some(1_200_000),
            },
        };
        let clock = WallClock::new([(0, 1_700_000_000_000_000_000)]);
        assert_eq!(
            line(&event, &clock, &RecordingNames::default()),
            "2023-11-14 22:13:20.001500  vcpu 1   end      disk\\u{1b}[2J #7 after 1.2 ms"
        );
        let names = RecordingNames::default();
        let unknown = line(&event, &WallClock::default(), &names);
        assert!(unknown.starts_with("          0.001500 s up  vcpu 1"), "{unknown}");
        let value = value(&event, &clock, &names);
        assert_eq!(value["kind"], "span_end");
        assert_eq!(value["length_ns"], 1_200_000);
        assert_eq!(value["unix_ns"], 1_700_000_000_001_500_000_u64);
    }
}
