//! Opens a connection and greets the agent; tries again if the agent is overloaded.

use std::time::{Duration, Instant};

use crate::connection::{Access, Address, Connection, ConnectionError, Greeting, Timeouts};
use crate::interrupt::Interrupt;

/// How often a connection may break before its greeting is over, however long that took.
const GREETINGS: u32 = 3;

/// The first wait before an agent is tried again, and the longest: strangers who do not wait at all
/// are the competition, and each try is a draw.
const FIRST_WAIT: Duration = Duration::from_millis(20);
const LONGEST_WAIT: Duration = Duration::from_millis(250);

/// A small guest's TCP stack refuses connections while other clients use all its sockets.
const REFUSED: Duration = Duration::from_secs(1);

/// The minimum time for an attempt, however little is left.
const LEAST_TRY: Duration = Duration::from_secs(1);

/// Whom to talk to, and with what.
#[derive(Debug)]
pub(super) struct Approach {
    pub(super) address: Address,
    pub(super) access: Access,
    pub(super) timeouts: Timeouts,
    pub(super) interrupt: Interrupt,
}

impl Approach {
    pub(super) fn open(&self, timeouts: Timeouts) -> Result<Connection, ConnectionError> {
        Connection::open(&self.address, &self.access, timeouts, &self.interrupt)
    }

    /// Opens one connection and asks who is there.
    pub(super) fn greet(
        &self,
        timeouts: Timeouts,
    ) -> Result<(Connection, Greeting), ConnectionError> {
        let mut connection = self.open(timeouts)?;
        let greeting = connection.hello()?;
        Ok((connection, greeting))
    }

    /// The first greeting. An address where nothing listens is tried once, or under a key for
    /// [`REFUSED`]. A connection that opens and then ends is tried again for as long as connecting
    /// may take: strangers may have crowded it out.
    pub(super) fn begin(&self) -> Result<(Connection, Greeting), ConnectionError> {
        let began = Instant::now();
        let mut waits = Waits::new(FIRST_WAIT, LONGEST_WAIT);
        let mut tries = 1;
        let mut timeouts = self.timeouts;
        let mut before = None;
        let is_busy = |error: &ConnectionError| matches!(error, ConnectionError::Refused { .. });
        loop {
            let error = match self.greet(timeouts) {
                Ok(begun) => return Ok(begun),
                Err(error) => error,
            };
            let may_be_a_crowd = error.may_be_a_crowd()
                || error.is_refused()
                    && matches!(self.access, Access::Key(_))
                    && began.elapsed() < REFUSED;
            if !may_be_a_crowd {
                // That the time is up says less than what took it.
                return Err(match (error.is_for_want_of_time(), before) {
                    (true, Some(before)) => before,
                    _ => error,
                });
            }
            let wait = waits.next();
            let left = self.timeouts.connect.saturating_sub(began.elapsed());
            // Why there is no room says more than how a connection ended.
            let error =
                if is_busy(&error) { error } else { before.filter(is_busy).unwrap_or(error) };
            if left <= wait && tries >= GREETINGS {
                return Err(error);
            }
            if !self.interrupt.sleep_unless_quit(wait.min(self.timeouts.connect)) {
                return Err(ConnectionError::Interrupted);
            }
            tries += 1;
            timeouts.connect = left.saturating_sub(wait).max(LEAST_TRY).min(self.timeouts.connect);
            before = Some(error);
        }
    }
}

/// Waits that double, each between half and all of its length: clients that were turned away
/// together must not come back together.
#[derive(Debug)]
pub(super) struct Waits {
    next: Duration,
    longest: Duration,
}

impl Waits {
    pub(super) fn new(first: Duration, longest: Duration) -> Waits {
        Waits { next: first, longest }
    }

    /// The next wait.
    pub(super) fn next(&mut self) -> Duration {
        let whole = self.next;
        self.next = (whole * 2).min(self.longest);
        // Without random numbers it is the whole wait.
        let share = getrandom::u32()
            .map_or(1.0, |random| 0.5 + 0.5 * f64::from(random) / f64::from(u32::MAX));
        whole.mul_f64(share)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::io;

    use super::*;

    /// On a busy machine the last of many tries may not even have the time to look up the name.
    #[test]
    fn a_name_that_was_not_resolved_in_time_is_for_want_of_time() {
        for (kind, is_for_want) in
            [(io::ErrorKind::TimedOut, true), (io::ErrorKind::NotFound, false)]
        {
            let error = ConnectionError::Resolve {
                address: "guest:7777".parse().unwrap(),
                source: kind.into(),
            };
            assert_eq!(error.is_for_want_of_time(), is_for_want);
        }
    }

    #[test]
    fn waits_double_up_to_the_longest_and_are_never_all_the_same() {
        let mut waits = Waits::new(FIRST_WAIT, LONGEST_WAIT);
        let mut whole = FIRST_WAIT;
        for _ in 0..20 {
            let wait = waits.next();
            assert!(wait >= whole / 2 && wait <= whole, "{wait:?} of {whole:?}");
            whole = (whole * 2).min(LONGEST_WAIT);
        }
        let longest: Vec<Duration> = (0..20).map(|_| waits.next()).collect();
        assert!(longest.iter().any(|wait| *wait != longest[0]));
    }
}
