//! Rightful clients: those that come and go, and one that wants to know how fast it gets in.

use anyhow::{Context as _, Result, bail};
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use unikprof_proto::code::message_type;
use unikprof_proto::message::{Check, Counters, Fetch, Hello, RecordingStatus, Status, Welcome};

use super::downloads::Downloads;
use super::line::{End, answer};
use super::phase::{Phase, Phases};
use super::random::Random;
use super::speaker::{Role, Speaker};
use super::target::Target;

pub const CLIENTS: &str = "clients";

/// The most tries of a client that is turned away.
const TRIES: u32 = 600;
const AGAIN: Duration = Duration::from_millis(50);

/// Does something over a conversation, and again where the agent had no room for it.
pub(crate) fn served<T>(
    target: &Target,
    role: Role,
    what: &'static str,
    mut doing: impl FnMut(&mut Speaker) -> Result<T, End>,
) -> Result<T> {
    let mut last = End::Unreachable;
    let began = Instant::now();
    let mut tries = 0;
    while tries < TRIES && began.elapsed() < Duration::from_secs(60) {
        tries += 1;
        match Speaker::open(target, role).and_then(|mut speaker| doing(&mut speaker)) {
            Ok(done) => return Ok(done),
            Err(end) => last = end,
        }
        thread::sleep(AGAIN);
    }
    bail!("{what}, in all of {tries} tries; the last was {last:?}")
}

/// The recorder's state.
#[derive(Debug)]
pub struct Checked {
    pub agent: Status,
    pub(crate) recordings: Vec<Recorded>,
}

/// A recording, as its agent tells of it.
#[derive(Debug, Clone)]
pub(crate) struct Recorded {
    pub(crate) id: u64,
    pub(crate) name: String,
    pub(crate) counters: Counters,
    /// The first of its epochs that waits.
    pub(crate) first_epoch: u64,
    /// The number of waiting epochs.
    pub(crate) epochs: u32,
}

impl Checked {
    pub(crate) fn named(&self, name: &str) -> Option<&Recorded> {
        self.recordings.iter().find(|one| one.name == name)
    }
}

/// The first message of each client.
pub(super) const HELLO: Hello<'static> = Hello { client: "soak", client_id: 0 };

/// The request for the first vCPU's share of an epoch.
pub fn fetch(epoch: u64) -> Fetch {
    Fetch { epoch, vcpu: 0, known: 0, counted: 0 }
}

pub fn check(speaker: &mut Speaker) -> Result<Checked, End> {
    let agent: Status = answer(&speaker.ask(&Check {})?)?;
    let mut checked = Checked { agent, recordings: Vec::new() };
    for _ in 0..checked.agent.recordings {
        let frame = speaker.read_frame()?;
        let one: RecordingStatus<'_> = answer(&frame)?;
        checked.recordings.push(Recorded {
            id: one.recording,
            name: one.name.into(),
            counters: one.counters,
            first_epoch: one.first_epoch,
            epochs: one.epochs,
        });
    }
    Ok(checked)
}

/// The times until a rightful client was answered, by phase.
#[derive(Debug, Default)]
pub struct Entries(Mutex<Vec<(Phase, Duration)>>);

impl Entries {
    /// Comes again and again, with the control key.
    pub(crate) fn keep_coming(
        &self,
        target: &Target,
        phases: &Phases,
        stop: &AtomicBool,
    ) -> Result<()> {
        while !stop.load(Ordering::Relaxed) {
            let phase = phases.current();
            let began = Instant::now();
            served(target, Role::Control, "a check", check)?;
            let mut entries = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            entries.push((phase, began.elapsed()));
            drop(entries);
            thread::sleep(Duration::from_millis(500));
        }
        Ok(())
    }

    /// The number of clients that got in during a phase, their median time, and the longest.
    pub fn of(&self, phase: Phase) -> (usize, Duration, Duration) {
        let entries = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let mut took: Vec<Duration> =
            entries.iter().filter(|(of, _)| *of == phase).map(|(_, took)| *took).collect();
        took.sort_unstable();
        let at = |index: usize| took.get(index).copied().unwrap_or_default();
        (took.len(), at(took.len() / 2), took.last().copied().unwrap_or_default())
    }
}

/// Clients that come and go, over good lines and bad ones.
pub(crate) struct Comers<'c> {
    /// The client's program and the lines to the guest.
    pub(crate) downloads: Downloads<'c>,
    /// Set when everybody is to leave.
    pub(crate) stop: &'c AtomicBool,
}

impl Comers<'_> {
    /// Comes and goes until told to stop.
    pub(crate) fn keep_coming(&self, random: &mut Random) -> Result<()> {
        while !self.stop.load(Ordering::Relaxed) {
            self.come_once(random)?;
            thread::sleep(Duration::from_millis(random.below(250)));
        }
        Ok(())
    }

    fn come_once(&self, random: &mut Random) -> Result<()> {
        let role = random.pick(&[Role::View, Role::Control]);
        let Downloads { target, faulty, .. } = self.downloads;
        let bad = Target { address: faulty, keys: target.keys.clone() };
        let either = |random: &mut Random| random.pick(&[target.address, faulty]);
        let patience = Duration::from_secs(4);
        match random.below(18) {
            0 => self.program(target.address, role, &["info"], random)?,
            1 => self.program(target.address, role, &["check"], random)?,
            2 => self.program(faulty, role, &["info"], random)?,
            3 => self.program(faulty, role, &["check"], random)?,
            4 => self.start(either(random))?,
            5 => {
                let end = Speaker::open(target, role).and_then(|mut speaker| {
                    speaker.send_message(&HELLO)?;
                    // In the middle of an answer.
                    let bytes = random.below(300) as usize;
                    speaker.line().read_exact(bytes)
                });
                self.count_end("vanishes in an answer", end.map(drop));
            }
            6 => self.program(either(random), role, &["events", "--last", "3s"], random)?,
            7 => self.program(either(random), role, &["events", "--json"], random)?,
            8..=12 => {
                let end = Speaker::open(&bad, role).and_then(|mut speaker| {
                    let _ = speaker.line().wait_for(patience);
                    hello(&mut speaker)
                });
                self.count_end("hello over a bad line", end);
            }
            _ => {
                let end = Speaker::open(&bad, role).and_then(|mut speaker| {
                    let _ = speaker.line().wait_for(patience);
                    check(&mut speaker)
                });
                self.count_end("check over a bad line", end.map(drop));
            }
        }
        Ok(())
    }

    /// Runs the program; now and then it is killed.
    fn program(
        &self,
        address: SocketAddr,
        role: Role,
        words: &[&str],
        random: &mut Random,
    ) -> Result<()> {
        let failed = "running the client";
        let Downloads { program, faulty, .. } = self.downloads;
        let running = program.begin(address, role, words).context(failed)?;
        let word = words.first().copied().unwrap_or_default();
        if random.below(3) == 0 {
            let killed = running.kill_after(Duration::from_millis(random.below(30)));
            let outcome = if killed { "killed" } else { "done before" };
            self.count(&format!("{word}, to be killed"), outcome);
        } else {
            let finished = running.finish().context(failed)?;
            let is_bad = address == faulty;
            let how = if is_bad { " over a bad line" } else { "" };
            self.count(&format!("{word}{how}"), finished.outcome());
        }
        Ok(())
    }

    /// A second recording; only by those who may not, since between two recordings it would begin.
    fn start(&self, address: SocketAddr) -> Result<()> {
        if self.downloads.target.keys.is_none() {
            return Ok(());
        }
        let finished = self
            .downloads
            .program
            .run(address, Role::View, &["start", "--name", "second"])
            .context("running the client")?;
        self.count("start with the view key", finished.outcome());
        Ok(())
    }

    fn count_end(&self, kind: &str, end: Result<(), End>) {
        self.count(kind, end.map_or_else(End::text, |()| "done".into()));
    }

    fn count(&self, kind: &str, outcome: impl Into<String>) {
        let Downloads { ledger, subject, .. } = self.downloads;
        ledger.count(subject, kind, outcome);
    }
}

/// Asks who the agent is, and reads all of the answer.
fn hello(speaker: &mut Speaker) -> Result<(), End> {
    let frame = speaker.ask(&HELLO)?;
    let welcome: Welcome<'_> = answer(&frame)?;
    for _ in 0..welcome.mappings {
        if speaker.read_frame()?.kind != message_type::MAPPING {
            return Err(End::Nonsense);
        }
    }
    Ok(())
}
