//! Which time a recording covers, and the unit of its counts.

use std::fmt;

use clap::ValueEnum;
use unikprof_proto::code::mode;

/// Which time a recording is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Mode {
    /// The vCPU's running time, sampled.
    #[default]
    Cpu,
    /// Running time, sampled, and blocked time, measured and counted in samples: one for each
    /// period blocked.
    Wall,
    /// Blocked time alone, measured: counts are nanoseconds.
    OffCpu,
    /// Allocations, sampled by bytes.
    Alloc,
    /// Allocations that were still held when they were fetched, sampled by bytes.
    Live,
    /// A code this client does not know.
    Other(u32),
}

impl Mode {
    /// The mode with this code of [`unikprof_proto::code::mode`].
    pub(crate) fn from_code(code: u32) -> Mode {
        match code {
            mode::CPU => Mode::Cpu,
            mode::WALL => Mode::Wall,
            mode::OFF_CPU => Mode::OffCpu,
            mode::ALLOC => Mode::Alloc,
            mode::LIVE => Mode::Live,
            other => Mode::Other(other),
        }
    }

    /// The unit in which the agent counts: of blocked time, and of stacks unless allocations are
    /// recorded.
    pub fn unit(self) -> Unit {
        match self {
            Mode::OffCpu => Unit::Nanoseconds,
            Mode::Cpu | Mode::Wall | Mode::Other(_) => Unit::Samples,
            Mode::Alloc | Mode::Live => Unit::Bytes,
        }
    }

    /// Whether allocations are recorded, and not time.
    pub fn is_heap(self) -> bool {
        matches!(self, Mode::Alloc | Mode::Live)
    }

    /// Whether running time is sampled.
    pub fn samples_time(self) -> bool {
        matches!(self, Mode::Cpu | Mode::Wall | Mode::Other(_))
    }
}

impl fmt::Display for Mode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Mode::Cpu => f.write_str("cpu"),
            Mode::Wall => f.write_str("wall"),
            Mode::OffCpu => f.write_str("off-cpu"),
            Mode::Alloc => f.write_str("alloc"),
            Mode::Live => f.write_str("live"),
            Mode::Other(code) => write!(f, "mode {code}"),
        }
    }
}

/// The unit of a stack's count.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Unit {
    /// Samples: a part of all that could have been taken, so shares have intervals.
    #[default]
    Samples,
    /// Nanoseconds, measured: shares are exact.
    Nanoseconds,
    /// Bytes of allocations, estimated from samples.
    Bytes,
    /// Allocations, estimated from samples.
    Objects,
}

impl fmt::Display for Unit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Unit::Samples => "samples",
            Unit::Nanoseconds => "nanoseconds",
            Unit::Bytes => "bytes",
            Unit::Objects => "objects",
        })
    }
}

/// How stacks are unwound.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, ValueEnum)]
pub enum Unwind {
    /// By frame pointers; the interrupted function's caller is looked up in the caller table
    #[default]
    #[value(name = "fp")]
    FramePointers,
    /// Every frame by the caller table: for guests built partly or wholly without frame pointers
    Table,
}

impl fmt::Display for Unwind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Unwind::FramePointers => "frame pointers",
            Unwind::Table => "table",
        })
    }
}
