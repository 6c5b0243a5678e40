//! Recordings beside the one that is always on, at other rates and in other modes: begun and ended
//! by clients that come and go, up to as many as the agent holds, and one more, which must be
//! refused.

use anyhow::{Context as _, Result};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use super::downloads::{Counted, Downloads};
use super::keeper::ALWAYS_ON;
use super::random::Random;
use super::rightful::{check, served};
use super::speaker::Role;

pub const OTHERS: &str = "others";

/// The maximum number beside the one that is always on; the agent holds one more than that.
const MOST: usize = 3;

/// A client with recordings beside the one that is always on.
pub(crate) struct Others<'o> {
    pub(crate) downloads: Downloads<'o>,
    /// Taken while the agent is asked for more than it holds, so that the other one is not in its
    /// place.
    pub(crate) place: &'o Mutex<()>,
    /// Set when all are to end.
    pub(crate) stop: &'o AtomicBool,
}

/// A recording that runs, or has run.
#[derive(Debug)]
struct Other {
    name: String,
    /// When it was seen first.
    began: Instant,
    /// Whether it ends by itself. Then its last dump takes it away, and it would not be there to be
    /// compared.
    ends: bool,
}

/// The results of the others.
#[derive(Debug, Default)]
pub(crate) struct Ended {
    /// Recordings that were stopped.
    pub(crate) counted: Vec<Counted>,
    pub(crate) discarded: u64,
    /// The problems found.
    pub(crate) problems: Vec<String>,
}

impl Others<'_> {
    /// Has recordings begin and end until told to stop; ends them all.
    pub(crate) fn keep(&self, random: &mut Random) -> Result<Ended> {
        let mut ended = Ended::default();
        let mut running: Vec<Other> = Vec::new();
        let mut number = 0;
        while !self.stop.load(Ordering::Relaxed) {
            number += 1;
            let some = random.below(running.len() as u64) as usize;
            match (running.get(some), random.below(8)) {
                (None, _) | (_, 0..=2) if running.len() < MOST => {
                    let name = format!("other-{number}");
                    running.extend(self.start(name, random)?);
                }
                (_, 0) => self.one_more(&mut ended)?,
                (Some(_), 1..=2) => {
                    let other = running.swap_remove(some);
                    self.end(&other, number, random, &mut ended)?;
                }
                (Some(Other { name, began, ends: false }), _) => {
                    let parts = [
                        &[][..],
                        &["--last", "3s"],
                        // A window that ends before the recording begins is an error.
                        &["--from", "-4s", "--to", "-1s"],
                    ];
                    let old_enough = began.elapsed() > Duration::from_secs(2);
                    let part = random.pick(if old_enough { &parts } else { &parts[..2] });
                    let file = format!("other-dump-{number}.unikprof");
                    self.downloads.take(name, part, &file, random)?;
                }
                _ => {}
            }
            thread::sleep(Duration::from_millis(100 + random.below(900)));
        }
        for other in running {
            number += 1;
            self.end(&other, number, random, &mut ended)?;
        }
        Ok(ended)
    }

    /// Begins a recording, over a good line or a bad one; answers it if it is there then.
    fn start(&self, name: String, random: &mut Random) -> Result<Option<Other>> {
        let mut words = vec!["start", "--name", &name];
        words.extend(random.pick(&[
            &["-F", "97"][..],
            &["-F", "499", "--mode", "wall"],
            &["-F", "1999"],
            &["--mode", "off-cpu"],
            &["--preset", "default", "--mode", "wall"],
            &["--preset", "default"],
        ]));
        let ends = random.below(3) == 0;
        if ends {
            words.extend(["--duration", "3s"]);
        }
        if random.below(3) == 0 {
            let Downloads { program, faulty, ledger, .. } = self.downloads;
            let finished =
                program.run(faulty, Role::Control, &words).context("running the client")?;
            ledger.count(OTHERS, "start over a bad line", finished.outcome());
        } else {
            self.downloads.must("start", &words)?;
        }
        let checked = served(self.downloads.target, Role::View, "a check", check)?;
        let is_there = checked.named(&name).is_some();
        Ok(is_there.then(|| Other { name, began: Instant::now(), ends }))
    }

    /// Asks for one more than the agent holds.
    fn one_more(&self, ended: &mut Ended) -> Result<()> {
        const NAME: &str = "one-too-many";
        let _place = self.place.lock().unwrap_or_else(PoisonError::into_inner);
        let checked = served(self.downloads.target, Role::View, "a check", check)?;
        if checked.named(ALWAYS_ON).is_none() || checked.recordings.len() <= MOST {
            return Ok(());
        }
        let words = ["start", "--name", NAME];
        let finished = self.downloads.unless_crowded("start, one too many", &words)?;
        if finished.code != Some(5) {
            let problem = format!("one recording more than the agent holds: {finished:?}");
            ended.problems.push(problem);
        }
        Ok(())
    }

    /// Stops a recording and takes its rest, or throws it away.
    fn end(
        &self,
        other: &Other,
        number: u64,
        random: &mut Random,
        ended: &mut Ended,
    ) -> Result<()> {
        let Other { name, .. } = other;
        // The first is always compared, however short the soak.
        if !ended.counted.is_empty() && random.below(4) == 0 {
            let words = ["stop", "--name", name, "--discard"];
            self.downloads.must("stop, discarded", &words)?;
            ended.discarded += 1;
        } else {
            let file = format!("other-stop-{number}.unikprof");
            ended.counted.push(self.downloads.end(name, &file)?);
        }
        Ok(())
    }
}
