//! Asks a guest how it is, again and again. Each time over a new connection: an agent has few, and
//! somebody may need one at once.

use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, SystemTime};

use unikprof_link::record::{EventReader, RecordError, Session};
use unikprof_profile::timeline::What;

use super::member::{Answer, GuestError, Member, log};

/// The most counters that are kept of one guest.
const MOST_COUNTERS: usize = 256;

/// Within so long, a guest that is new in the fleet has been asked.
const FIRST: Duration = Duration::from_secs(15);

/// The size of a thread's stack.
const STACK_BYTES: usize = 1 << 20;

/// Asks the guest on a thread of its own.
///
/// # Errors
/// There is none to be had.
pub(super) fn start(member: Arc<Member>, every: Duration) -> io::Result<()> {
    let thread = thread::Builder::new().name("contact".into()).stack_size(STACK_BYTES);
    thread.spawn(move || keep(&member, every)).map(drop)
}

/// Asks every so often until the guest leaves the fleet. The first times of many are spread, so
/// that a thousand guests are not asked at once.
fn keep(member: &Member, every: Duration) {
    let first = every.min(FIRST).mul_f64(fastrand::f64());
    let (mut wait, mut events) = (first, Events::default());
    let mut last = None;
    while member.wait(wait) {
        wait = every;
        let asked = ask(member, &mut events);
        let mut known = member.known();
        match asked {
            Ok(answer) => {
                let answer = Arc::new(answer);
                let before: Option<Arc<Answer>> = last.replace(answer.clone());
                known.add_load(before.and_then(|before| answer.load_since(&before)));
                known.firsts.see(&answer);
                known.counters = events.counters.clone();
                known.last = Some(answer);
                known.answered = Some(SystemTime::now());
                let was_down = known.failure.take().is_some();
                drop(known);
                if was_down {
                    log(&format!("{}: answers again", member.guest.name));
                }
            }
            Err(error) => {
                (known.last, last) = (None, None);
                known.add_load(None);
                known.failures = known.failures.saturating_add(1);
                let before = known.failure.replace(error.told());
                drop(known);
                if before.is_none() {
                    log(&format!("warning: {}: {error}", member.guest.name));
                }
            }
        }
    }
}

fn ask(member: &Member, events: &mut Events) -> Result<Answer, GuestError> {
    let mut session = member.session(member.gone.clone(), Duration::ZERO)?;
    let status = session.check(&mut ())?;
    let rings = session.ring_fill(&mut ())?;
    let times = session.times(&mut ())?;
    events.look(&mut session)?;
    Ok(Answer {
        agent: session.agent().clone(),
        status,
        rings,
        times: times.into_iter().reduce(|sum, next| sum.plus(&next)).unwrap_or_default(),
    })
}

/// The guest's own counters, as its ring tells them.
#[derive(Default)]
struct Events {
    /// The instance of the agent that the positions belong to.
    instance: u64,
    reader: EventReader,
    counters: BTreeMap<String, i64>,
}

impl Events {
    fn look(&mut self, session: &mut Session) -> Result<(), RecordError> {
        if !session.agent().keeps_time() {
            return Ok(());
        }
        if self.instance != session.agent().instance {
            *self = Events { instance: session.agent().instance, ..Events::default() };
        }
        // The first look takes what the ring has, further ones what has come since.
        for event in self.reader.look(session, 0, &mut ())?.events {
            if let What::Counter { name, value } = event.what
                && (self.counters.len() < MOST_COUNTERS || self.counters.contains_key(&name))
            {
                self.counters.insert(name, value);
            }
        }
        Ok(())
    }
}
