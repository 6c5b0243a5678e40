//! The recorder: which recording there is, and which epochs wait to be fetched.
//!
//! A recording is counted in epochs. While it runs one epoch is counted and at most one waits; when
//! it has ended, two may wait. An epoch is cleared only when a client acknowledges it, so a
//! download that breaks can be repeated. Nothing here waits: what a tick on another vCPU is in the
//! way of is finished by a later call.

use unikprof_proto::code::{mode, refusal, start_flag, state};
use unikprof_proto::message::{Counters, MAX_NAME, Start, TableEnd, TableRows};

use crate::agent::Agent;
use crate::caller_table::CallerTable;
use crate::path::MAX_DEPTH;
use crate::platform::Platform;
use crate::slot::{Begin, Lookup};
use crate::table::Column;
use crate::text::Text;
use crate::upload::Upload;

/// The shortest sampling period, in ns: 100 kHz.
pub const MIN_PERIOD_NS: u64 = 10_000;
/// The longest sampling period, in ns.
pub const MAX_PERIOD_NS: u64 = 10_000_000_000;

/// Nodes whose counts one call clears at the most: each is a cache line.
const CLEAR_BUDGET: u32 = 16_384;

/// How often a busy slot is tried before the call gives up for now. A tick takes about a
/// microsecond, unless its vCPU is not running.
const TRIES: u32 = 64;

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
        check(request)?;
        check_table(agent, request)?;
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

    /// Forgets an epoch that is safe with a client. From here on it does not wait any more; its
    /// counts are cleared bit by bit, whether or not that client stays.
    pub(crate) fn acknowledge<P: Platform>(
        &mut self,
        agent: &Agent<'_, P>,
        epoch: u64,
    ) -> Outcome<()> {
        if !self.has(epoch) {
            return Outcome::Refused(self.no_epoch(epoch));
        }
        if epoch != self.epoch - u64::from(self.waiting) {
            return Outcome::Refused(Refused {
                code: refusal::NO_EPOCH,
                text: Text::format(format_args!(
                    "epoch {} is older than epoch {epoch}; fetch and acknowledge it first",
                    self.epoch - u64::from(self.waiting)
                )),
            });
        }
        if !self.clear_some(agent) {
            return Outcome::NotYet;
        }
        self.clearing = Some(Clearing {
            epoch,
            vcpu: 0,
            node: 0,
        });
        self.waiting -= 1;
        self.clear_some(agent);
        if self.waiting == 0 && self.phase == Phase::Finished {
            self.phase = Phase::Idle;
        }
        Outcome::Done(())
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

    /// Makes the next epoch current on every vCPU, and with `last` ends the recording there. Answers
    /// whether all are done; if not, ask again.
    fn flip<P: Platform>(&mut self, agent: &Agent<'_, P>, last: bool, server_ns: u64) -> bool {
        if !self.clear_some(agent) || last && self.dumping && !self.flip(agent, false, server_ns) {
            return false;
        }
        let next = self.epoch + 1;
        self.dumping = !last;
        for (vcpu, slot) in agent.slots() {
            let Some(owned) = (0..TRIES).find_map(|_| {
                core::hint::spin_loop();
                slot.take()
            }) else {
                return false;
            };
            owned.flip(next, last, agent.snapshot(vcpu));
        }
        self.set_mark(agent, next, server_ns);
        self.dumping = false;
        self.epoch = next;
        self.waiting += 1;
        if last {
            self.phase = Phase::Finished;
        }
        true
    }

    /// Clears some of what was acknowledged; answers whether nothing is left to clear.
    fn clear_some<P: Platform>(&mut self, agent: &Agent<'_, P>) -> bool {
        let Some(clearing) = &mut self.clearing else {
            return true;
        };
        let column = Column::of(clearing.epoch);
        let mut budget = CLEAR_BUDGET;
        while let Some(slot) = agent.slot(clearing.vcpu) {
            if let Some(next) = slot.table.clear_column(column, clearing.node, budget) {
                clearing.node = next;
                return false;
            }
            budget = budget.saturating_sub(slot.table.used().saturating_sub(clearing.node));
            clearing.vcpu += 1;
            clearing.node = 0;
        }
        self.clearing = None;
        true
    }

    fn set_mark<P: Platform>(&mut self, agent: &Agent<'_, P>, epoch: u64, server_ns: u64) {
        self.marks[(epoch & 3) as usize] = Mark {
            at_ns: agent.platform().now_ns(),
            wall_clock_ns: agent.platform().wall_clock_ns(),
            server_ns,
            gaps: agent.gaps().wrapping_sub(self.gaps_before),
        };
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

fn check(request: &Start<'_>) -> Result<(), Refused> {
    let refused = |code, text| Err(Refused { code, text });
    let name = request.name;
    if name.is_empty() || name.len() > MAX_NAME || name.chars().any(char::is_control) {
        return refused(
            refusal::BAD_NAME,
            Text::format(format_args!(
                "a name has 1 to {MAX_NAME} bytes and no control characters; this one has {} bytes",
                name.len()
            )),
        );
    }
    if !(MIN_PERIOD_NS..=MAX_PERIOD_NS).contains(&request.period_ns) {
        return refused(
            refusal::BAD_PERIOD,
            Text::format(format_args!(
                "the period may be {MIN_PERIOD_NS} to {MAX_PERIOD_NS} ns (0.1 Hz to 100 kHz); asked \
                 for {} ns",
                request.period_ns
            )),
        );
    }
    if request.depth == 0 || request.depth as usize > MAX_DEPTH {
        return refused(
            refusal::BAD_DEPTH,
            Text::format(format_args!(
                "the depth may be 1 to {MAX_DEPTH} frames; asked for {}",
                request.depth
            )),
        );
    }
    if !matches!(request.mode, mode::CPU | mode::WALL | mode::OFF_CPU) {
        return refused(
            refusal::UNSUPPORTED_MODE,
            Text::format(format_args!(
                "this agent records running, wall-clock and blocked time (modes {}, {} and {}); asked \
                 for mode {}",
                mode::CPU,
                mode::WALL,
                mode::OFF_CPU,
                request.mode
            )),
        );
    }
    Ok(())
}

/// The caller table that is asked for must be the one that is held.
fn check_table<P: Platform>(agent: &Agent<'_, P>, request: &Start<'_>) -> Result<(), Refused> {
    let held = agent.callers().and_then(CallerTable::checksum);
    let text = match (request.caller_table, held) {
        (None, _) if request.flags & start_flag::UNWIND_TABLE != 0 => {
            Text::from("to look every frame up in a caller table, name the table")
        }
        (None, _) => return Ok(()),
        (Some(asked), Some(held)) if asked == held => return Ok(()),
        (Some(asked), Some(held)) => Text::format(format_args!(
            "the agent holds the caller table {held:#010x}, not {asked:#010x}: another client sent its \
             own; try again"
        )),
        (Some(_), None) => Text::from("the agent holds no caller table; send one first"),
    };
    Err(Refused {
        code: refusal::NO_TABLE,
        text,
    })
}
