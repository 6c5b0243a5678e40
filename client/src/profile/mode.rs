//! Which time a recording covers, and the unit of its counts.

use std::fmt;

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
            other => Mode::Other(other),
        }
    }

    /// The unit of the stacks' counts.
    pub fn unit(self) -> Unit {
        match self {
            Mode::OffCpu => Unit::Nanoseconds,
            Mode::Cpu | Mode::Wall | Mode::Other(_) => Unit::Samples,
        }
    }
}

impl fmt::Display for Mode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Mode::Cpu => f.write_str("cpu"),
            Mode::Wall => f.write_str("wall"),
            Mode::OffCpu => f.write_str("off-cpu"),
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
}

impl fmt::Display for Unit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Unit::Samples => "samples",
            Unit::Nanoseconds => "nanoseconds",
        })
    }
}

/// How the agent found the callers of a stack's frames.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Unwind {
    /// By frame pointers; the interrupted function's own caller also by table or instructions.
    #[default]
    FramePointers,
    /// By the caller table, frame by frame; by frame pointers for code that it does not cover.
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
