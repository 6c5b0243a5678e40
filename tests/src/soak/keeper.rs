//! The recording that is always on: started, dumped again and again, stopped, and compared with
//! what the agent has counted.

use anyhow::Result;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use super::downloads::{Counted, Downloads};
use super::random::Random;

pub const DOWNLOADS: &str = "downloads";

pub(crate) const ALWAYS_ON: &str = "always-on";

pub(crate) struct Keeper<'k> {
    pub(crate) downloads: Downloads<'k>,
    /// Held while the recording is not on; its place in the agent must be kept for it.
    pub(crate) place: &'k Mutex<()>,
    /// Set when the last recording is to end.
    pub(crate) stop: &'k AtomicBool,
    /// The length of each recording.
    pub(crate) shift: Duration,
}

impl Keeper<'_> {
    /// Records until told to stop; answers what the agent counted.
    pub(crate) fn keep(&self, random: &mut Random) -> Result<Vec<Counted>> {
        let mut counted = Vec::new();
        let mut files = 0;
        let mut place = self.place.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            let words = ["start", "--name", ALWAYS_ON, "-F", "997"];
            self.downloads.must("start", &words)?;
            drop(place);
            let end = Instant::now() + self.shift;
            while Instant::now() < end && !self.stop.load(Ordering::Relaxed) {
                files += 1;
                let part = random.pick(&[&[][..], &[], &["--last", "5s"]]);
                let file = format!("dump-{files}.unikprof");
                self.downloads.take(ALWAYS_ON, part, &file, random)?;
                self.wait(Duration::from_millis(100 + random.below(2_500)), end);
            }
            place = self.place.lock().unwrap_or_else(PoisonError::into_inner);
            files += 1;
            let file = format!("stop-{files}.unikprof");
            counted.push(self.downloads.end(ALWAYS_ON, &file)?);
            if self.stop.load(Ordering::Relaxed) {
                return Ok(counted);
            }
            // A recording from its beginning to its end by one client.
            files += 1;
            let path = self.downloads.path(&format!("record-{files}.unikprof"));
            let words = ["record", "1s", "-F", "997", "-o", &path];
            self.downloads.must("record", &words)?;
        }
    }

    fn wait(&self, wait: Duration, end: Instant) {
        let end = end.min(Instant::now() + wait);
        while Instant::now() < end && !self.stop.load(Ordering::Relaxed) {
            thread::sleep(Duration::from_millis(20));
        }
    }
}
