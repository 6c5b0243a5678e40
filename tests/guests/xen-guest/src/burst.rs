//! Two seconds of other work, once: hidden in a profile of a whole run, and visible in a time
//! window.
//!
//! `burst_after=SECONDS`. The guest reports it by its own events: a mark `burst due`, a span
//! `burst`, and a counter `burst rounds`.

use core::hint::black_box;

use unikprof_agent::{EventName, SpanId};

use crate::command_line::CommandLine;
use crate::events;
use crate::timer;
use crate::vcpus::FIRST;

const LENGTH_NS: u64 = 2_000_000_000;
/// The maximum length of a turn, so that the main loop polls in time.
const TURN_NS: u64 = 1_000_000;

pub(crate) struct Burst {
    due_ns: u64,
    running: Option<Running>,
    names: Names,
}

struct Running {
    span: SpanId,
    /// The running time of the vCPU at which the burst ends.
    end_ns: u64,
    rounds: i64,
    state: u64,
}

struct Names {
    due: EventName,
    burst: EventName,
    rounds: EventName,
}

impl Burst {
    /// The burst that the command line requests; `None` without a profiler with a ring to report
    /// it.
    pub(crate) fn from_command_line(command_line: CommandLine) -> Option<Self> {
        let after_s = command_line.parsed::<u64>("burst_after")?;
        let after_ns = after_s.saturating_mul(1_000_000_000);
        Some(Self {
            due_ns: timer::now_ns(FIRST).saturating_add(after_ns),
            running: None,
            names: Names {
                due: events::name("burst due")?,
                burst: events::name("burst")?,
                rounds: events::name("burst rounds")?,
            },
        })
    }

    /// Whether it runs, so that other work has to wait.
    pub(crate) fn is_on(&self) -> bool {
        self.running.is_some()
    }

    /// Works for a turn if it is due; returns when the next turn begins, on the guest's clock, and
    /// `None` when the burst is over.
    pub(crate) fn turn(&mut self) -> Option<u64> {
        let agent = events::agent()?;
        let now_ns = timer::now_ns(FIRST);
        let Some(running) = &mut self.running else {
            if now_ns >= self.due_ns {
                agent.mark(self.names.due, now_ns - self.due_ns);
                agent.counter(self.names.rounds, 0);
                self.running = Some(Running {
                    span: agent.span_begin(self.names.burst),
                    end_ns: events::running_ns().saturating_add(LENGTH_NS),
                    rounds: 0,
                    state: 1,
                });
                self.due_ns = u64::MAX;
                return Some(now_ns);
            }
            return Some(self.due_ns).filter(|&due_ns| due_ns != u64::MAX);
        };
        while timer::now_ns(FIRST) < now_ns + TURN_NS {
            running.state = black_box(burst(black_box(running.state)));
            running.rounds += 1;
        }
        if events::running_ns() < running.end_ns {
            return Some(now_ns);
        }
        agent.span_end(self.names.burst, running.span);
        agent.counter(self.names.rounds, running.rounds);
        self.running = None;
        None
    }
}

/// A fraction of a millisecond.
#[inline(never)]
fn burst(mut state: u64) -> u64 {
    let mut left = 20_000;
    while left > 0 {
        state ^= state << 17;
        state ^= state >> 5;
        left -= 1;
    }
    state | 1
}
