//! What a soak has seen, as Markdown.

use std::fmt::{self, Display, Formatter};

use unikprof_proto::message::Counters;

use super::keeper::DOWNLOADS;
use super::latency::Spread;
use super::phase::{PHASES, Phase};
use super::proxy::{FAULTS, PLACES};
use super::rightful::CLIENTS;
use super::run::{Outcome, PEERS};
use super::samples::Sample;

impl Display for Outcome {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let minutes = self.plan.duration.as_secs_f64() / 60.0;
        let access = if self.plan.keyed {
            "a guest with keys"
        } else {
            "an open guest"
        };
        writeln!(
            f,
            "{minutes:.1} minutes, {access}, seed {}.\n",
            self.plan.seed
        )?;
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
        ] {
            writeln!(f, "\n{heading}: {} in all.\n", self.ledger.total(subject))?;
            writeln!(f, "| what | times | how it ended |\n|---|---|---|")?;
            for row in self.ledger.rows(subject) {
                writeln!(f, "{row}")?;
            }
        }
        writeln!(
            f,
            "\nThe cuts were at {} places, each a byte further than the one before (up to {PLACES}, \
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
        row("memory (RSS)", &|s| {
            format!("{} KiB", s.footprint.resident_kib)
        })?;
        row("open descriptors", &|s| s.footprint.descriptors.to_string())?;
        row("stack nodes", &|s| {
            format!("{} of {}", s.nodes.0, s.nodes.1)
        })?;
        row("recording", &|s| s.recording.to_string())?;
        row("its ticks", &|s| s.counters.ticks.to_string())?;
        row("longest poll so far", &|s| {
            format!("{} µs", s.server_longest_ns / 1_000)
        })?;
        row("agent's network work so far", &|s| {
            format!("{} ms", s.server_ns / 1_000_000)
        })?;
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
            "\nThe agent's network work took {:.2} % of a CPU by its own clock, its thread {:.2} %.",
            share(last.server_ns.saturating_sub(first.server_ns)),
            share(
                last.footprint
                    .agent_cpu_ns
                    .saturating_sub(first.footprint.agent_cpu_ns)
            )
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
        writeln!(
            f,
            "| | requests | p50 | p99 | p99.9 | longest |\n|---|---|---|---|---|---|"
        )?;
        let mut row = |what: String, spread: Spread| {
            let Spread {
                requests,
                p50_us,
                p99_us,
                p999_us,
                max_us,
            } = spread;
            writeln!(
                f,
                "| {what} | {requests} | {p50_us} | {p99_us} | {p999_us} | {max_us} |"
            )
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
            "\nA client with the control key that comes twice a second, from its first packet to its \
             answer, all tries included:\n"
        )?;
        writeln!(
            f,
            "| | clients | half within | longest |\n|---|---|---|---|"
        )?;
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
        let none = Counters::default();
        let sum = self.recordings.iter().fold(none, |sum, (_, of)| {
            sum.zip(&of.counters, u64::wrapping_add)
        });
        let epochs: u64 = self.recordings.iter().map(|(_, of)| of.epochs).sum();
        let samples: u64 = self.recordings.iter().map(|(_, of)| of.samples).sum();
        writeln!(
            f,
            "\n{} always-on recordings, {epochs} epochs, {} files of {} MB; {} epochs came more than \
             once and were the same, {} files ended within one that another has.\n",
            self.recordings.len(),
            self.audit.files,
            self.audit.bytes / 1_000_000,
            self.audit.repeated,
            self.audit.partial
        )?;
        let Counters {
            ticks,
            recorded,
            overflow,
            lost,
            masked,
            idle,
            ..
        } = sum;
        writeln!(
            f,
            "{ticks} ticks = {recorded} recorded + {overflow} overflow + {lost} lost + {masked} masked + \
             {idle} idle; the stacks hold {samples} samples. The agent's own counters at each stop \
             are the same."
        )
    }
}
