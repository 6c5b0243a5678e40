//! The guest's end.

use std::io::{self, Read};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

/// The time in which a load must notice the end, even on a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);

/// A flag that ends the load. Clones share it.
#[derive(Clone, Default)]
pub(crate) struct Stop(Arc<Flags>);

#[derive(Default)]
struct Flags {
    stop: AtomicBool,
    told: AtomicBool,
}

impl Stop {
    /// A flag that is set when standard input ends. A load that does not check it, such as an
    /// endless loop, is ended a minute later with exit code 3.
    pub(crate) fn at_end_of_input() -> io::Result<Stop> {
        let stop = Stop::default();
        let set = stop.clone();
        thread::Builder::new().name("stdin".into()).spawn(move || {
            let mut ignored = [0; 64];
            while matches!(io::stdin().read(&mut ignored), Ok(length) if length > 0) {
                set.0.told.store(true, Ordering::Relaxed);
            }
            set.0.stop.store(true, Ordering::Relaxed);
            thread::sleep(PATIENCE);
            std::process::exit(3);
        })?;
        Ok(stop)
    }

    /// Whether the load should end.
    pub(crate) fn is_set(&self) -> bool {
        self.0.stop.load(Ordering::Relaxed)
    }

    /// Whether anything was received on standard input.
    pub(crate) fn was_told(&self) -> bool {
        self.0.told.load(Ordering::Relaxed)
    }
}
