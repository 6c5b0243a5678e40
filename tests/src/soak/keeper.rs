//! The recording that is always on: started, dumped again and again in every way that can go wrong,
//! stopped, and compared with what the agent has counted.

use std::net::SocketAddr;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use unikprof_proto::message::{Counters, Dump, Fetch, Pending, Stop};

use super::error::SoakError;
use super::ledger::Ledger;
use super::line::End;
use super::program::{Finished, Program};
use super::random::Random;
use super::rightful::{check, served};
use super::speaker::{Role, Speaker};
use super::target::Target;

/// The subject of downloads in the ledger.
pub const DOWNLOADS: &str = "downloads";

/// Who keeps a recording running.
pub struct Keeper<'k> {
    /// The client's program.
    pub program: &'k Program,
    /// The guest.
    pub target: &'k Target,
    /// A line to it with faults.
    pub faulty: SocketAddr,
    /// Where downloads go.
    pub folder: &'k Path,
    /// What was done is noted here.
    pub ledger: &'k Ledger,
    /// Set when the last recording is to end.
    pub stop: &'k AtomicBool,
    /// How long each recording goes on.
    pub shift: Duration,
}

/// What the agent counted in one recording, by its own word.
#[derive(Debug, Clone, Copy)]
pub struct Counted {
    /// Which.
    pub recording: u64,
    /// All of it.
    pub counters: Counters,
}

/// A client of the program's may find all sessions taken so often.
const TRIES: u32 = 40;

impl Keeper<'_> {
    /// Records until told to stop; answers what the agent counted.
    ///
    /// # Errors
    /// [`SoakError`]: what must succeed did not.
    pub fn keep(&self, random: &mut Random) -> Result<Vec<Counted>, SoakError> {
        let mut counted = Vec::new();
        let mut files = 0;
        loop {
            self.must("start", &["start", "--name", "always-on", "-F", "997"])?;
            let end = Instant::now() + self.shift;
            while Instant::now() < end && !self.stop.load(Ordering::Relaxed) {
                files += 1;
                self.download(&format!("dump-{files}.unikprof"), random)?;
                self.wait(Duration::from_millis(100 + random.below(2_500)), end);
            }
            counted.push(self.end_recording()?);
            files += 1;
            let name = self.path(&format!("stop-{files}.unikprof"));
            self.must("stop", &["stop", "-o", &name])?;
            if self.stop.load(Ordering::Relaxed) {
                return Ok(counted);
            }
            // A recording from its beginning to its end by one client.
            files += 1;
            let name = self.path(&format!("record-{files}.unikprof"));
            let words = ["record", "1s", "-F", "997", "-o", &name];
            self.must("record", &words)?;
        }
    }

    /// Takes what was counted so far, in one way or another.
    fn download(&self, name: &str, random: &mut Random) -> Result<(), SoakError> {
        let path = self.path(name);
        let words = ["dump", "-o", &path];
        let failed = |source| SoakError::Io {
            what: "running the client",
            source,
        };
        let begin = |address| {
            let running = self.program.begin(address, Role::Control, &words);
            running.map_err(failed)
        };
        match random.below(8) {
            0 => {
                let running = begin(self.target.address)?;
                let killed = running.kill_after(Duration::from_millis(random.below(40)));
                let outcome = if killed { "killed" } else { "done before" };
                self.ledger.count(DOWNLOADS, "dump, to be killed", outcome);
            }
            1 => {
                let running = begin(self.target.address)?;
                let wait = Duration::from_millis(random.below(40));
                let finished = running.interrupt_after(wait).map_err(failed)?;
                let outcome = finished.outcome();
                self.ledger.count(DOWNLOADS, "dump, interrupted", outcome);
            }
            2..=4 => {
                let finished = begin(self.faulty)?.finish().map_err(failed)?;
                self.ledger
                    .count(DOWNLOADS, "dump over a bad line", finished.outcome());
            }
            5 => {
                let bytes = random.below(20_000) as usize;
                let end = self.fetch_in_part(bytes);
                let outcome = end.map_or_else(End::text, |()| "left in the middle".into());
                self.ledger
                    .count(DOWNLOADS, "fetch, left in the middle", outcome);
            }
            _ => self.must("dump", &words)?,
        }
        Ok(())
    }

    /// Makes an epoch, fetches some of it and vanishes.
    fn fetch_in_part(&self, bytes: usize) -> Result<(), End> {
        let mut speaker = Speaker::open(self.target, Role::Control)?;
        let pending = pending(&mut speaker, |speaker| speaker.ask(&Dump { recording: 0 }))?;
        let fetch = Fetch {
            epoch: pending.first_epoch,
            vcpu: 0,
            node: 1,
        };
        let sent = speaker.send_message(&fetch);
        sent.map_err(|error| End::of(&error))?;
        let _ = speaker.line().wait_for(Duration::from_millis(300));
        match speaker.line().read_exact(bytes) {
            // There was no more.
            Ok(_) | Err(End::Silent) => Ok(()),
            Err(end) => Err(end),
        }
    }

    /// Ends the recording; what it counted is asked for before anything of it is taken.
    fn end_recording(&self) -> Result<Counted, SoakError> {
        served(
            self.target,
            Role::Control,
            "the end of a recording",
            |speaker| {
                pending(speaker, |speaker| speaker.ask(&Stop { recording: 0 }))?;
                let checked = check(speaker)?;
                Ok(Counted {
                    recording: checked.recording,
                    counters: checked.counters,
                })
            },
        )
    }

    /// Runs the program until it succeeds; only an agent without room may be in the way.
    fn must(&self, kind: &'static str, words: &[&str]) -> Result<(), SoakError> {
        for last in 0..TRIES {
            let finished = self
                .program
                .run(self.target.address, Role::Control, words)
                .map_err(SoakError::io("running the client"))?;
            self.ledger.count(DOWNLOADS, kind, finished.outcome());
            match finished.code {
                Some(0) => return Ok(()),
                _ if was_crowded(&finished) && last + 1 < TRIES => {
                    thread::sleep(Duration::from_millis(250));
                }
                _ => return Err(finished.into_error()),
            }
        }
        unreachable!("the last try returns");
    }

    fn path(&self, name: &str) -> String {
        self.folder.join(name).display().to_string()
    }

    fn wait(&self, wait: Duration, end: Instant) {
        let end = end.min(Instant::now() + wait);
        while Instant::now() < end && !self.stop.load(Ordering::Relaxed) {
            thread::sleep(Duration::from_millis(20));
        }
    }
}

fn pending(
    speaker: &mut Speaker,
    ask: impl FnOnce(&mut Speaker) -> Result<super::line::OwnedFrame, End>,
) -> Result<Pending, End> {
    let answer = ask(speaker)?;
    match answer.refusal() {
        Some(code) => Err(End::Refused(code)),
        None => answer.decode().ok_or(End::Nonsense),
    }
}

/// Whether the agent had no session for it: refused as busy, or closed before a word.
fn was_crowded(finished: &Finished) -> bool {
    match finished.code {
        Some(3) => true,
        Some(5) => finished.said.contains("sessions"),
        _ => false,
    }
}
