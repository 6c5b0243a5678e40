//! `connect ADDR events`: what happened in the guest, one line each.

use std::fmt::Write as _;
use std::time::{Duration, Instant};

use clap::ValueEnum;
use jiff::Timestamp;
use serde_json::{Value, json};

use super::arguments::EventsArguments;
use super::failure::Failure;
use super::print;
use crate::interrupt::Interrupt;
use crate::record::{EventReader, Session};
use crate::report::units::grouped;
use crate::timeline::{Event, WallClock, What};

/// Which events are wanted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(super) enum Kind {
    /// The guest's marks
    Mark,
    /// The guest's spans: their beginnings and ends
    Span,
    /// The guest's counters
    Counter,
    /// vCPUs that blocked and woke
    Block,
    /// Recordings that began and ended
    Recording,
    /// Time that others took
    Stolen,
    /// The guest was suspended and resumed
    Resumed,
    /// Handshakes that failed
    BadKey,
}

impl Kind {
    /// The [kinds](What::kind) of the events.
    fn names(self) -> &'static [&'static str] {
        match self {
            Kind::Mark => &["mark"],
            Kind::Span => &["span_begin", "span_end"],
            Kind::Counter => &["counter"],
            Kind::Block => &["block", "wake"],
            Kind::Recording => &["recording_began", "recording_ended"],
            Kind::Stolen => &["stolen"],
            Kind::Resumed => &["resumed"],
            Kind::BadKey => &["bad_key"],
        }
    }
}

/// How often the agent is asked for more.
const EVERY: Duration = Duration::from_millis(500);

pub(super) fn run(
    session: &mut Session,
    interrupt: &Interrupt,
    arguments: &EventsArguments,
    as_json: bool,
) -> Result<(), Failure> {
    if arguments.follow {
        interrupt.listen().map_err(Failure::Signals)?;
    }
    let since_ns = match arguments.last {
        None => 0,
        Some(last_ns) => session.check(&mut ())?.now_ns.saturating_sub(last_ns),
    };
    let kinds: Vec<&str> = arguments
        .only
        .iter()
        .flat_map(|kind| kind.names())
        .copied()
        .collect();
    let mut reader = EventReader::default();
    let mut is_first = true;
    loop {
        let look = match reader.look(session, since_ns, &mut ()) {
            // Ctrl-C is how following ends, also where an answer is on its way.
            Err(error) if arguments.follow && error.is_interrupt() => return Ok(()),
            look => look?,
        };
        if look.evicted > 0 {
            let since = match is_first {
                true => "since the agent started",
                false => "before they could be fetched",
            };
            eprintln!(
                "warning: {} records were evicted {since}",
                grouped(look.evicted)
            );
        }
        is_first = false;
        let mut text = String::new();
        let wanted = |event: &&Event| kinds.is_empty() || kinds.contains(&event.what.kind());
        for event in look.events.iter().filter(wanted) {
            // A string takes everything.
            let _ = match as_json {
                true => writeln!(text, "{}", value(event, &look.clock)),
                false => writeln!(text, "{}", line(event, &look.clock)),
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

/// An event for people: when, where, what.
fn line(event: &Event, clock: &WallClock) -> String {
    let date = clock.unix_ns(event.at_ns).and_then(|unix_ns| {
        let date = Timestamp::from_nanosecond(unix_ns.into()).ok()?;
        Some(date.strftime("%Y-%m-%d %H:%M:%S%.6f").to_string())
    });
    let when = date.unwrap_or_else(|| format!("{:>18.6} s up", event.at_ns as f64 / 1e9));
    format!("{when}  vcpu {:<3} {}", event.vcpu, event.what)
}

/// An event for programs, on one line.
fn value(event: &Event, clock: &WallClock) -> Value {
    let mut value = json!({
        "at_ns": event.at_ns,
        "unix_ns": clock.unix_ns(event.at_ns),
        "vcpu": event.vcpu,
        "kind": event.what.kind(),
    });
    let more = match &event.what {
        What::Mark { name, value } => json!({"name": name, "value": value}),
        What::SpanBegin { name, number } => json!({"name": name, "number": number}),
        What::SpanEnd {
            name,
            number,
            length_ns,
        } => json!({"name": name, "number": number, "length_ns": length_ns}),
        What::Counter { name, value } => json!({"name": name, "value": value}),
        What::Wake { length_ns } => json!({"length_ns": length_ns}),
        What::Began { recording } | What::Ended { recording } => json!({"recording": recording}),
        What::Stolen { ns } => json!({"stolen_ns": ns}),
        What::Block | What::Resumed | What::BadKey => json!({}),
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
            line(&event, &clock),
            "2023-11-14 22:13:20.001500  vcpu 1   end      disk\\u{1b}[2J #7 after 1.2 ms"
        );
        let unknown = line(&event, &WallClock::default());
        assert!(
            unknown.starts_with("          0.001500 s up  vcpu 1"),
            "{unknown}"
        );
        let value = value(&event, &clock);
        assert_eq!(value["kind"], "span_end");
        assert_eq!(value["length_ns"], 1_200_000);
        assert_eq!(value["unix_ns"], 1_700_000_000_001_500_000_u64);
    }
}
