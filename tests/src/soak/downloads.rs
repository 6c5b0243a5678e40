//! A recording brought home again and again, in every way that can go wrong; and its end, compared
//! with what the agent has counted.

use anyhow::{Context as _, Result};
use std::net::SocketAddr;
use std::path::Path;
use std::thread;
use std::time::Duration;

use unikprof_proto::message::{Counters, Dump, Pending, Stop};

use super::ledger::Ledger;
use super::line::{End, answer};
use super::program::{Finished, Program, Running};
use super::random::Random;
use super::rightful::{check, fetch, served};
use super::speaker::{Role, Speaker};
use super::target::Target;

/// Downloads of recordings, with all that they need.
#[derive(Clone, Copy)]
pub(crate) struct Downloads<'d> {
    pub(crate) program: &'d Program,
    pub(crate) target: &'d Target,
    /// A line to it with faults.
    pub(crate) faulty: SocketAddr,
    pub(crate) folder: &'d Path,
    /// The ledger in which they are noted.
    pub(crate) ledger: &'d Ledger,
    /// Their subject in the ledger.
    pub(crate) subject: &'static str,
}

/// The agent's counters of one recording.
#[derive(Debug, Clone, Copy)]
pub struct Counted {
    pub recording: u64,
    pub counters: Counters,
}

/// Ends a recording; answers what it has counted. What was not fetched waits in the guest.
pub fn stop(target: &Target, recording: &str) -> Result<Counted> {
    served(target, Role::Control, "the end of a recording", |speaker| {
        let checked = check(speaker)?;
        let id = checked.named(recording).ok_or(End::Nonsense)?.id;
        answer::<Pending>(&speaker.ask(&Stop { recording: id })?)?;
        let checked = check(speaker)?;
        let ended = checked.named(recording).ok_or(End::Nonsense)?;
        Ok(Counted { recording: ended.id, counters: ended.counters })
    })
}

/// A client of the program's may find all sessions taken, or the recording leased to one that has
/// vanished, so often.
const TRIES: u32 = 120;

impl Downloads<'_> {
    /// Takes what a recording has counted so far into the file of this name, in one way or another;
    /// `more` are words for `dump`.
    pub(crate) fn take(
        &self,
        recording: &str,
        more: &[&str],
        file: &str,
        random: &mut Random,
    ) -> Result<()> {
        let path = self.path(file);
        let mut words = vec!["dump", "--name", recording, "-o", &path];
        words.extend(more);
        let kind = match more.first() {
            None => String::from("dump"),
            Some(part) => format!("dump {part}"),
        };
        let count = |how: &str, outcome: String| {
            self.ledger.count(self.subject, format!("{kind}{how}"), outcome);
        };
        let failed = "running the client";
        let begin = |address| self.program.begin(address, Role::Control, &words);
        match random.below(8) {
            0 => {
                let running = begin(self.target.address).context(failed)?;
                let killed = running.kill_after(Duration::from_millis(random.below(40)));
                let outcome = if killed { "killed" } else { "done before" };
                count(", to be killed", outcome.into());
            }
            1 => {
                let wait = Duration::from_millis(random.below(40));
                let running = begin(self.target.address);
                let ended = running.and_then(|running| running.interrupt_after(wait));
                count(", interrupted", ended.context(failed)?.outcome());
            }
            2..=4 => {
                let ended = begin(self.faulty).and_then(Running::finish);
                count(" over a bad line", ended.context(failed)?.outcome());
            }
            5 => {
                let bytes = random.below(20_000) as usize;
                let end = self.fetch_in_part(recording, bytes);
                let outcome = end.map_or_else(End::text, |()| "left in the middle".into());
                self.ledger.count(self.subject, "fetch, left in the middle", outcome);
            }
            _ => self.must(&kind, &words)?,
        }
        Ok(())
    }

    /// Makes an epoch, fetches some of it and vanishes.
    fn fetch_in_part(&self, recording: &str, bytes: usize) -> Result<(), End> {
        let mut speaker = Speaker::open(self.target, Role::Control)?;
        let checked = check(&mut speaker)?;
        let recording = checked.named(recording).ok_or(End::Nonsense)?.id;
        let pending: Pending = answer(&speaker.ask(&Dump { recording })?)?;
        speaker.send_message(&fetch(pending.first_epoch))?;
        let _ = speaker.line().wait_for(Duration::from_millis(300));
        match speaker.line().read_exact(bytes) {
            // There was no more.
            Ok(_) | Err(End::Silent) => Ok(()),
            Err(end) => Err(end),
        }
    }

    /// Ends a recording and takes its rest into the file of this name; what it counted is asked for
    /// before.
    pub(crate) fn end(&self, recording: &str, file: &str) -> Result<Counted> {
        let counted = stop(self.target, recording)?;
        let path = self.path(file);
        self.must("stop", &["stop", "--name", recording, "-o", &path])?;
        Ok(counted)
    }

    /// Runs the program until it succeeds; only an agent without room may be in the way.
    pub(crate) fn must(&self, kind: &str, words: &[&str]) -> Result<()> {
        let finished = self.unless_crowded(kind, words)?;
        match finished.code {
            Some(0) => Ok(()),
            _ => Err(finished.into_error()),
        }
    }

    /// Runs the program until the agent has a session for it.
    pub(crate) fn unless_crowded(&self, kind: &str, words: &[&str]) -> Result<Finished> {
        let mut tries = 0;
        loop {
            tries += 1;
            let finished = self
                .program
                .run(self.target.address, Role::Control, words)
                .context("running the client")?;
            self.ledger.count(self.subject, kind, finished.outcome());
            if !finished.was_crowded() || tries == TRIES {
                return Ok(finished);
            }
            thread::sleep(Duration::from_millis(500));
        }
    }

    /// The path of the file of this name.
    pub(crate) fn path(&self, file: &str) -> String {
        self.folder.join(file).display().to_string()
    }
}
