//! The report of a soak, as Markdown.

use std::fmt::{self, Display, Formatter};

use unikprof_proto::message::Counters;

use super::audit::{Audit, Sum};
use super::events::EVENTS;
use super::keeper::DOWNLOADS;
use super::latency::Spread;
use super::others::OTHERS;
use super::phase::{PHASES, Phase};
use super::proxy::{FAULTS, PLACES};
use super::rightful::CLIENTS;
use super::run::{Outcome, PEERS};
use super::samples::Sample;

impl Display for Outcome {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let minutes = self.plan.duration.as_secs_f64() / 60.0;
        let access = if self.plan.keyed { "a guest with keys" } else { "an open guest" };
        writeln!(f, "{minutes:.1} minutes, {access}, seed {}.\n", self.plan.seed)?;
        self.verdict(f)?;
        self.start_and_end(f)?;
        self.latency(f)?;
        self.entries(f)?;
        self.lost(f)?;
        for (heading, subject) in [
            ("Hostile peers", PEERS),
            ("Faults of lines", FAULTS),
            ("Clients that came and went", CLIENTS),
            ("Downloads of the always-on recording", DOWNLOADS),
            ("What was done with other recordings", OTHERS),
            ("Those who followed the guest's events", EVENTS),
        ] {
            writeln!(f, "\n{heading}: {} in all.\n", self.ledger.total(subject))?;
            writeln!(f, "| what | times | how it ended |\n|---|---|---|")?;
            for row in self.ledger.rows(subject) {
                writeln!(f, "{row}")?;
            }
        }
        writeln!(
            f,
            "\nThe cuts were at {} places, each a byte further than the one before (up to \
             {PLACES}, \
             then again from the first).",
            self.cuts.min(PLACES)
        )
    }
}

impl Outcome {
    fn verdict(&self, f: &mut Formatter<'_>) -> fmt::Result {
        if self.problems.is_empty() {
            return writeln!(f, "Nothing that must not be was seen.");
        }
        writeln!(f, "**What must not be:**\n")?;
        for problem in &self.problems {
            writeln!(f, "- {problem}")?;
        }
        Ok(())
    }

    fn start_and_end(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let [first, .., last] = &self.samples[..] else {
            return writeln!(f, "\nThere are not two samples.");
        };
        let middle = &self.samples[self.samples.len() / 2];
        let columns = [first, middle, last];
        writeln!(f, "\n| | start | middle | end |\n|---|---|---|---|")?;
        let mut row = |what: &str, value: &dyn Fn(&Sample) -> String| {
            let [first, middle, last] = columns.map(value);
            writeln!(f, "| {what} | {first} | {middle} | {last} |")
        };
        row("at", &|s| format!("{:.1} min", s.at.as_secs_f64() / 60.0))?;
        row("memory (RSS)", &|s| format!("{} KiB", s.footprint.resident_kib))?;
        row("open descriptors", &|s| s.footprint.descriptors.to_string())?;
        row("stack nodes", &|s| format!("{} of {}", s.nodes.0, s.nodes.1))?;
        row("recordings", &|s| s.recordings.to_string())?;
        row("the id of the one that is always on", &|s| s.recording.to_string())?;
        row("its ticks", &|s| s.counters.ticks.to_string())?;
        row("records in the rings", &|s| s.ring.held.to_string())?;
        row("records evicted for newer ones", &|s| s.ring.evicted.to_string())?;
        row("records given up while written", &|s| s.ring.given_up.to_string())?;
        row("longest poll so far", &|s| format!("{} µs", s.server_longest_ns / 1_000))?;
        row("agent's network work so far", &|s| format!("{} ms", s.server_ns / 1_000_000))?;
        row("CPU of the agent's thread so far", &|s| {
            format!("{} ms", s.footprint.agent_cpu_ns / 1_000_000)
        })?;
        row("the thread waited for a CPU", &|s| {
            format!("{} ms", s.footprint.agent_waited_ns / 1_000_000)
        })?;
        row("malformed", &|s| s.peers.malformed.to_string())?;
        row("timed out", &|s| s.peers.timed_out.to_string())?;
        row("turned away", &|s| s.peers.turned_away.to_string())?;
        row("displaced", &|s| s.peers.displaced.to_string())?;
        row("bad key", &|s| s.peers.bad_key.to_string())?;
        row("bad record", &|s| s.peers.bad_record.to_string())?;
        row("not allowed", &|s| s.peers.not_allowed.to_string())?;
        let elapsed = last.at.saturating_sub(first.at).as_nanos().max(1);
        let share = |ns: u64| ns as f64 * 100.0 / elapsed as f64;
        writeln!(
            f,
            "\nThe agent's network work took {:.2} % of a CPU by its own clock, its thread {:.2} \
             %.",
            share(last.server_ns.saturating_sub(first.server_ns)),
            share(last.footprint.agent_cpu_ns.saturating_sub(first.footprint.agent_cpu_ns))
        )
    }

    fn latency(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let last = self.latencies.last_minute();
        let edge = (last / 6).max(1);
        writeln!(
            f,
            "\nThe guest's own service, {} requests in all; times in µs, from the moment that a \
             request was due:\n",
            self.requests
        )?;
        writeln!(f, "| | requests | p50 | p99 | p99.9 | longest |\n|---|---|---|---|---|---|")?;
        let mut row = |what: String, spread: Spread| {
            let Spread { requests, p50_us, p99_us, p999_us, max_us } = spread;
            writeln!(f, "| {what} | {requests} | {p50_us} | {p99_us} | {p999_us} | {max_us} |")
        };
        for phase in PHASES {
            row(phase.name().into(), self.latencies.spread(phase, |_| true))?;
        }
        for phase in [Phase::Quiet, Phase::Attack] {
            let name = phase.name();
            let start = self.latencies.spread(phase, |minute| minute < edge);
            row(format!("{name}, first {edge} min"), start)?;
            let end = self.latencies.spread(phase, |minute| minute + edge > last);
            row(format!("{name}, last {edge} min"), end)?;
        }
        Ok(())
    }

    fn entries(&self, f: &mut Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "\nA client with the control key that comes twice a second, from its first packet to \
             its \
             answer, all tries included:\n"
        )?;
        writeln!(f, "| | clients | half within | longest |\n|---|---|---|---|")?;
        for phase in PHASES {
            let (count, half, longest) = self.entries.of(phase);
            writeln!(
                f,
                "| {} | {count} | {:.1} ms | {:.1} ms |",
                phase.name(),
                half.as_secs_f64() * 1e3,
                longest.as_secs_f64() * 1e3
            )?;
        }
        Ok(())
    }

    fn lost(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let Audit { files, repeated, partial, bytes, .. } = &self.audit;
        writeln!(
            f,
            "\n{files} files of {} MB; {repeated} epochs came more than once and were the same, \
             {partial} \
             files ended within one that another has. The agent's own counters at each stop of a \
             recording are what its downloads come to.\n",
            bytes / 1_000_000
        )?;
        sum(f, "always-on recordings", &self.recordings)?;
        sum(f, "other recordings", &self.others)?;
        writeln!(f, "Thrown away, and so not compared: {} other recordings.\n", self.discarded)?;
        let followed = &self.followed;
        writeln!(
            f,
            "The guest's own marks, spans and counters: {} received, and {} of these again; {} \
             were evicted \
             before a client came for them, as it was told.",
            followed.events, followed.repeated, followed.evicted
        )
    }
}

/// The sums of recordings, each of which was compared.
fn sum(f: &mut Formatter<'_>, what: &str, recordings: &[(u64, Sum)]) -> fmt::Result {
    let mut sum = Sum::default();
    for (_, of) in recordings {
        sum.epochs += of.epochs;
        sum.counters = sum.counters.zip(&of.counters, u64::wrapping_add);
    }
    let Counters { ticks, recorded, aged, overflow, lost, masked, idle, blocks, .. } = sum.counters;
    writeln!(
        f,
        "{} {what} of {} epochs: {ticks} ticks = {recorded} recorded + {aged} aged + {overflow} \
         overflow + \
         {lost} lost + {masked} masked + {idle} idle; {blocks} blocks.\n",
        recordings.len(),
        sum.epochs
    )
}
