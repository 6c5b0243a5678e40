//! The recorder: which recording there is, and which epochs wait to be fetched.
//!
//! A recording is counted in epochs. While it runs one epoch is counted and at most one waits; when
//! it has ended, two may wait. An epoch is cleared only when a client acknowledges it, so a
//! download that breaks can be repeated. Nothing here waits: what a tick on another vCPU is in the
//! way of is finished by a later call.

mod checks;
mod epochs;

use unikprof_proto::code::{refusal, start_flag, state};
use unikprof_proto::message::{Counters, Start, TableEnd, TableRows};

use crate::agent::Agent;
use crate::platform::Platform;
use crate::slot::{Begin, Lookup};
use crate::text::Text;
use crate::upload::Upload;

/// The shortest sampling period, in ns: 100 kHz.
pub const MIN_PERIOD_NS: u64 = 10_000;
/// The longest sampling period, in ns.
pub const MAX_PERIOD_NS: u64 = 10_000_000_000;

/// What a tick was in the way of is tried again after this long.
pub(crate) const RETRY_NS: u64 = 100_000;

/// A request that is refused: the code and what the text needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Refused {
    pub(crate) code: u32,
    pub(crate) text: Text,
}

/// How a request fared.
pub(crate) enum Outcome<T> {
    Done(T),
    Refused(Refused),
    /// A tick is in the way: ask again.
    NotYet,
}

/// The epochs that wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Waiting {
    pub(crate) recording: u64,
    pub(crate) first_epoch: u64,
    pub(crate) epochs: u32,
    pub(crate) complete: bool,
}

/// What was so at an epoch's start.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Mark {
    pub(crate) at_ns: u64,
    pub(crate) wall_clock_ns: Option<u64>,
    pub(crate) server_ns: u64,
    pub(crate) gaps: u32,
}

/// What was asked for.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Settings {
    pub(crate) name: Text,
    pub(crate) mode: u32,
    pub(crate) flags: u32,
    pub(crate) period_ns: u64,
    pub(crate) depth: u32,
    pub(crate) duration_ns: u64,
    pub(crate) started_ns: u64,
    pub(crate) caller_table: Option<u32>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Phase {
    #[default]
    Idle,
    Delayed,
    Recording,
    /// Ended, but a tick is in the way of the last flip.
    Ending,
    Finished,
}

/// Where the clearing of an acknowledged epoch goes on.
#[derive(Clone, Copy, Debug)]
struct Clearing {
    epoch: u64,
    vcpu: u32,
    node: u32,
}

/// The one recording and its epochs.
#[derive(Debug, Default)]
pub(crate) struct Recorder {
    phase: Phase,
    recording: u64,
    settings: Settings,
    /// The epoch that is counted; ids go on over all recordings.
    epoch: u64,
    /// How many epochs before it wait.
    waiting: u32,
    /// A dump's flip that a tick was in the way of.
    dumping: bool,
    /// What is left to clear of the epoch that was acknowledged last: no other may use its column
    /// before.
    clearing: Option<Clearing>,
    marks: [Mark; 4],
    /// How often the guest had been resumed when the recording began.
    gaps_before: u32,
    upload: Upload,
}

impl Recorder {
    pub(crate) fn state(&self) -> u32 {
        match self.phase {
            Phase::Idle => state::IDLE,
            Phase::Delayed => state::DELAYED,
            Phase::Recording => state::RECORDING,
            Phase::Ending | Phase::Finished => state::FINISHED,
        }
    }

    /// The recording's id; 0 where there is none.
    pub(crate) fn recording(&self) -> u64 {
        if self.phase == Phase::Idle {
            0
        } else {
            self.recording
        }
    }

    pub(crate) fn settings(&self) -> &Settings {
        &self.settings
    }

    pub(crate) fn waiting(&self, complete: bool) -> Waiting {
        Waiting {
            recording: self.recording,
            first_epoch: self.epoch - u64::from(self.waiting),
            epochs: self.waiting,
            complete,
        }
    }

    /// Whether `epoch` waits to be fetched.
    pub(crate) fn has(&self, epoch: u64) -> bool {
        epoch < self.epoch && epoch >= self.epoch - u64::from(self.waiting)
    }

    /// What was so at the start of `epoch`, which is at the end of the one before.
    pub(crate) fn mark(&self, epoch: u64) -> Mark {
        self.marks[(epoch & 3) as usize]
    }

    /// Starts a recording; answers its id.
    pub(crate) fn start<P: Platform>(
        &mut self,
        agent: &Agent<'_, P>,
        request: &Start<'_>,
        server_ns: u64,
    ) -> Result<u64, Refused> {
        checks::check(request)?;
        checks::check_table(agent, request)?;
        if !self.settle(agent, server_ns) {
            return Err(Refused {
                code: refusal::BUSY,
                text: Text::from("a vCPU is in the middle of its last sample; try again"),
            });
        }
        let refused = |code, text| Err(Refused { code, text });
        match self.phase {
            Phase::Delayed | Phase::Recording => return Err(self.already_recording()),
            Phase::Finished if request.flags & start_flag::DISCARD == 0 => {
                return refused(
                    refusal::UNFETCHED,
                    Text::format(format_args!(
                        "`{}` (recording {}) has ended and nobody has fetched it; stop fetches it, \
                         start with discard throws it away",
                        self.settings.name, self.recording
                    )),
                );
            }
            _ => {}
        }
        let now_ns = agent.platform().now_ns();
        self.recording += 1;
        self.waiting = 0;
        self.settings = Settings {
            name: Text::from(request.name),
            mode: request.mode,
            flags: request.flags,
            period_ns: request.period_ns,
            depth: request.depth,
            duration_ns: request.duration_ns,
            started_ns: now_ns.saturating_add(request.delay_ns),
            caller_table: request.caller_table,
        };
        self.phase = Phase::Delayed;
        self.advance(agent, server_ns);
        Ok(self.recording)
    }

    /// Ends the recording, or tells again how it ended.
    pub(crate) fn stop<P: Platform>(
        &mut self,
        agent: &Agent<'_, P>,
        recording: u64,
        server_ns: u64,
    ) -> Outcome<Waiting> {
        if let Err(refused) = self.check_recording(recording) {
            return Outcome::Refused(refused);
        }
        match self.phase {
            Phase::Delayed => {
                self.phase = Phase::Idle;
                return Outcome::Done(self.waiting(true));
            }
            Phase::Recording => self.phase = Phase::Ending,
            Phase::Idle | Phase::Ending | Phase::Finished => {}
        }
        if self.settle(agent, server_ns) {
            Outcome::Done(self.waiting(true))
        } else {
            Outcome::NotYet
        }
    }

    /// Makes an epoch of the counts so far, if none waits. `again` says that this very request was
    /// answered with [`Outcome::NotYet`] before.
    pub(crate) fn dump<P: Platform>(
        &mut self,
        agent: &Agent<'_, P>,
        recording: u64,
        server_ns: u64,
        again: bool,
    ) -> Outcome<Waiting> {
        if let Err(refused) = self.check_recording(recording) {
            return Outcome::Refused(refused);
        }
        if !self.settle(agent, server_ns) {
            return Outcome::NotYet;
        }
        match self.phase {
            Phase::Recording if self.dumping || self.waiting == 0 => {
                if self.flip(agent, false, server_ns) {
                    Outcome::Done(self.waiting(true))
                } else {
                    Outcome::NotYet
                }
            }
            Phase::Recording => Outcome::Done(self.waiting(again)),
            _ => Outcome::Done(self.waiting(true)),
        }
    }

    /// Does what time has come for; answers when to come back, on the monotonic clock in ns.
    pub(crate) fn advance<P: Platform>(
        &mut self,
        agent: &Agent<'_, P>,
        server_ns: u64,
    ) -> Option<u64> {
        let now_ns = agent.platform().now_ns();
        let Settings {
            started_ns,
            duration_ns,
            ..
        } = self.settings;
        let until_ns = until_ns(started_ns, duration_ns);
        if self.phase == Phase::Delayed && now_ns >= started_ns {
            self.begin(agent, now_ns, until_ns, server_ns);
        }
        if self.phase == Phase::Recording && now_ns >= until_ns {
            self.phase = Phase::Ending;
        }
        self.settle(agent, server_ns);
        if !self.clear_some(agent) || self.phase == Phase::Ending {
            return Some(now_ns.saturating_add(RETRY_NS));
        }
        match self.phase {
            Phase::Delayed => Some(started_ns),
            Phase::Recording => (duration_ns != 0).then_some(until_ns),
            Phase::Idle | Phase::Ending | Phase::Finished => None,
        }
    }

    /// The counters of all vCPUs since the recording began.
    pub(crate) fn counters<P: Platform>(&self, agent: &Agent<'_, P>) -> Counters {
        if matches!(self.phase, Phase::Idle | Phase::Delayed) {
            return Counters::default();
        }
        agent.slots().fold(Counters::default(), |sum, (_, slot)| {
            sum.zip(&slot.cells.counters.read(), u64::wrapping_add)
        })
    }

    /// Begins to take a caller table; answers the upload's id.
    pub(crate) fn begin_table<P: Platform>(
        &mut self,
        agent: &Agent<'_, P>,
        rows: u32,
        server_ns: u64,
    ) -> Result<u64, Refused> {
        // Once a recording is settled no tick reads the table.
        if matches!(self.phase, Phase::Delayed | Phase::Recording) || !self.settle(agent, server_ns)
        {
            return Err(self.already_recording());
        }
        self.upload.begin(agent.callers(), rows)
    }

    /// Takes rows of a caller table.
    pub(crate) fn table_rows<P: Platform>(&mut self, agent: &Agent<'_, P>, run: &TableRows<'_>) {
        self.upload.rows(agent.callers(), run);
    }

    /// Installs the caller table that was sent; answers its rows.
    pub(crate) fn end_table<P: Platform>(
        &mut self,
        agent: &Agent<'_, P>,
        end: &TableEnd,
    ) -> Result<u32, Refused> {
        self.upload.end(agent.callers(), end)
    }

    fn already_recording(&self) -> Refused {
        Refused {
            code: refusal::ALREADY_RECORDING,
            text: Text::format(format_args!(
                "`{}` is being recorded (recording {}); dump it, stop it or wait",
                self.settings.name, self.recording
            )),
        }
    }

    /// That `epoch` does not wait.
    pub(crate) fn no_epoch(&self, epoch: u64) -> Refused {
        Refused {
            code: refusal::NO_EPOCH,
            text: Text::format(format_args!(
                "epoch {epoch} does not wait; {} do, from epoch {} on",
                self.waiting,
                self.epoch - u64::from(self.waiting)
            )),
        }
    }

    fn begin<P: Platform>(
        &mut self,
        agent: &Agent<'_, P>,
        now_ns: u64,
        until_ns: u64,
        server_ns: u64,
    ) {
        self.phase = Phase::Recording;
        self.settings.started_ns = now_ns;
        self.gaps_before = agent.gaps();
        // The column that the last recording's epoch lies in may not be cleared yet: the table is.
        self.clearing = None;
        self.epoch += 1;
        self.set_mark(agent, self.epoch, server_ns);
        for (vcpu, slot) in agent.slots() {
            let seed = agent.platform().random();
            let begin = Begin {
                recording: self.recording,
                epoch: self.epoch,
                mode: self.settings.mode,
                lookup: match self.settings.caller_table {
                    None => Lookup::None,
                    Some(_) if self.settings.flags & start_flag::UNWIND_TABLE != 0 => {
                        Lookup::EveryFrame
                    }
                    Some(_) => Lookup::Leaf,
                },
                depth: self.settings.depth,
                period_ns: self.settings.period_ns,
                fixed: self.settings.flags & start_flag::FIXED_INTERVAL != 0,
                until_ns,
                seed: seed
                    .unwrap_or(now_ns ^ u64::from(vcpu + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15)),
            };
            slot.begin(&begin, &agent.snapshot(vcpu));
            agent.platform().kick(vcpu);
        }
    }

    /// Finishes the end of a recording that ticks were in the way of; answers whether none is left.
    fn settle<P: Platform>(&mut self, agent: &Agent<'_, P>, server_ns: u64) -> bool {
        self.phase != Phase::Ending || self.flip(agent, true, server_ns)
    }

    fn check_recording(&self, recording: u64) -> Result<(), Refused> {
        let text = match self.phase {
            Phase::Idle => Text::from("there is no recording; start one"),
            _ if recording != 0 && recording != self.recording => Text::format(format_args!(
                "recording {recording} is gone; there is `{}` (recording {})",
                self.settings.name, self.recording
            )),
            _ => return Ok(()),
        };
        Err(Refused {
            code: refusal::NO_RECORDING,
            text,
        })
    }
}

fn until_ns(started_ns: u64, duration_ns: u64) -> u64 {
    if duration_ns == 0 {
        u64::MAX
    } else {
        started_ns.saturating_add(duration_ns)
    }
}
