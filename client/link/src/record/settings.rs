//! The settings of a recording.

use clap::ValueEnum;
use unikprof_proto::code::{mode, start_flag};
use unikprof_proto::message::{MAX_INTERVAL_BYTES, MIN_INTERVAL_BYTES, Start};

use super::RecordError;
use unikprof_profile::agent_info::AgentInfo;
use unikprof_profile::caller_table::{CallerTable, PartialTable};
use unikprof_profile::profile::Unwind;
use unikprof_profile::units;

/// The default rate, in samples per second of running time: a prime, so that it is not in step with
/// periodic work.
pub(crate) const DEFAULT_RATE_HZ: f64 = 997.0;

/// The default mean number of bytes between two that are sampled, where allocations are recorded.
pub const DEFAULT_INTERVAL_BYTES: u64 = 512 << 10;

/// The default name of a recording.
pub const DEFAULT_NAME: &str = "default";

/// The default depth in frames, unless the agent's limit is lower.
const DEFAULT_DEPTH: u32 = 128;

/// What is sampled.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, ValueEnum)]
pub enum Mode {
    /// Running time: where CPU time is spent
    #[default]
    Cpu,
    /// Running and blocked time; waits appear as a separate frame on top of the waiting stack
    Wall,
    /// Blocked time only, measured instead of sampled: where the guest waits, and how long
    OffCpu,
    /// Allocations, sampled by bytes: which code allocates how much
    Alloc,
    /// Allocations that are still held at the end: which code's memory stays, and for how long
    Live,
}

impl Mode {
    /// Its [code](unikprof_proto::code::mode).
    pub fn code(self) -> u32 {
        match self {
            Mode::Cpu => mode::CPU,
            Mode::Wall => mode::WALL,
            Mode::OffCpu => mode::OFF_CPU,
            Mode::Alloc => mode::ALLOC,
            Mode::Live => mode::LIVE,
        }
    }
}

impl Mode {
    /// Whether allocations are recorded, and not time.
    pub fn is_heap(self) -> bool {
        mode::is_heap(self.code())
    }
}

/// What a recording keeps when the guest's memory is full.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, ValueEnum)]
pub enum Keep {
    /// The newest stacks: the oldest unfetched ones are dropped and counted as `aged`
    Newest,
    /// All unfetched stacks: samples with new stacks are counted as `overflow`
    #[default]
    All,
}

/// What and how to record.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Settings {
    /// The recording's name.
    pub name: String,
    /// The mean time between two samples, in ns of running time.
    pub period_ns: u64,
    /// The mean number of bytes between two that are sampled, where allocations are recorded.
    pub interval_bytes: u64,
    /// What is sampled.
    pub mode: Mode,
    /// Maximum number of frames in a stack; `None` for the agent's limit, at most 128.
    pub depth: Option<u32>,
    /// How long to record, in ns; 0 = until stopped.
    pub duration_ns: u64,
    /// How long to wait before sampling starts, in ns.
    pub delay_ns: u64,
    /// Maximum age of a dump's ring records, in ns; 0 = no limit.
    pub max_age_ns: u64,
    /// Maximum size of a dump's ring records in bytes, newest first; 0 = no limit.
    pub max_bytes: u64,
    /// What is kept when memory is full.
    pub keep: Keep,
    /// Replace a finished recording that no client has fetched.
    pub replace: bool,
    /// Discard it once the client has been silent for half a minute.
    pub is_watched: bool,
    /// Sample at fixed intervals: for comparison only, since periodic work in step with them biases
    /// the profile.
    pub fixed_interval: bool,
    /// How stacks are unwound.
    pub unwind: Unwind,
    /// The table to look callers up in, made [for this agent](unikprof_profile::caller_table::prepare); it is
    /// sent unless the agent has it.
    pub callers: Option<CallerTable>,
    /// If the agent had no room for all rows: the table from which [`callers`](Self::callers) was
    /// taken, so that [`record`](super::record()) can add rows.
    pub partial: Option<PartialTable>,
    /// If no table is to be sent: the checksum of the agent's table to use.
    pub held_callers: Option<u32>,
}

impl Default for Settings {
    fn default() -> Self {
        Settings {
            name: DEFAULT_NAME.into(),
            period_ns: (1e9 / DEFAULT_RATE_HZ) as u64,
            interval_bytes: DEFAULT_INTERVAL_BYTES,
            mode: Mode::default(),
            depth: None,
            duration_ns: 0,
            delay_ns: 0,
            max_age_ns: 0,
            max_bytes: 0,
            keep: Keep::default(),
            replace: false,
            is_watched: false,
            fixed_interval: false,
            unwind: Unwind::default(),
            callers: None,
            partial: None,
            held_callers: None,
        }
    }
}

impl Settings {
    /// Whether they are within the agent's limits. The caller table is not looked at: it may come
    /// later, since it takes long to make.
    pub fn check(&self, agent: &AgentInfo) -> Result<(), RecordError> {
        self.depth(agent).map(|_| ())
    }

    /// [`check`](Self::check), which answers the depth.
    fn depth(&self, agent: &AgentInfo) -> Result<u32, RecordError> {
        let periods = agent.min_period_ns..=agent.max_period_ns;
        let is_heap = self.mode.is_heap();
        if is_heap && !agent.records_allocations() {
            return Err(RecordError::NoAllocations);
        }
        if !is_heap && !periods.contains(&self.period_ns) {
            let shown = |ns| format!("{} ({} Hz)", units::duration(ns), units::rate_text(ns));
            return Err(RecordError::Limit {
                setting: "sampling interval",
                asked: shown(self.period_ns),
                lowest: shown(agent.min_period_ns),
                highest: shown(agent.max_period_ns),
            });
        }
        if is_heap && !(MIN_INTERVAL_BYTES..=MAX_INTERVAL_BYTES).contains(&self.interval_bytes) {
            return Err(RecordError::Limit {
                setting: "sampling interval",
                asked: units::size(self.interval_bytes),
                lowest: units::size(MIN_INTERVAL_BYTES),
                highest: units::size(MAX_INTERVAL_BYTES),
            });
        }
        let depth = self.depth.unwrap_or(agent.max_depth.min(DEFAULT_DEPTH));
        if !(1..=agent.max_depth).contains(&depth) {
            return Err(RecordError::Limit {
                setting: "depth",
                asked: format!("{depth} frames"),
                lowest: "1".into(),
                highest: format!("{} frames", agent.max_depth),
            });
        }
        Ok(depth)
    }

    /// The request, if this agent takes it.
    pub(super) fn request(&self, agent: &AgentInfo) -> Result<Start<'_>, RecordError> {
        let depth = self.depth(agent)?;
        let is_heap = self.mode.is_heap();
        let by_table = self.unwind == Unwind::Table;
        let caller_table = self.callers.as_ref().map(CallerTable::checksum);
        let caller_table = caller_table.or(self.held_callers);
        if by_table && caller_table.is_none() {
            return Err(RecordError::NoCallerTable);
        }
        let flag = |set, flag| if set { flag } else { 0 };
        Ok(Start {
            interval_bytes: if is_heap { self.interval_bytes } else { 0 },
            name: &self.name,
            period_ns: if is_heap { 0 } else { self.period_ns },
            mode: self.mode.code(),
            depth,
            duration_ns: self.duration_ns,
            delay_ns: self.delay_ns,
            flags: flag(self.replace, start_flag::REPLACE)
                | flag(self.is_watched, start_flag::WATCHED)
                | flag(self.fixed_interval, start_flag::FIXED_INTERVAL)
                | flag(by_table, start_flag::UNWIND_TABLE)
                | flag(self.keep == Keep::Newest, start_flag::KEEP_NEWEST),
            caller_table,
            max_age_ns: self.max_age_ns,
            max_bytes: self.max_bytes,
        })
    }
}
