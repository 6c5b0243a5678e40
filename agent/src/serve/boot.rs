//! Recordings that begin when the guest starts, before any client connects.

use core::fmt;

use unikprof_proto::code::{mode, start_flag};
use unikprof_proto::message::Start;

use crate::agent::AnyAgent;
use crate::ground::platform::Platform;
use crate::ground::text::Text;
use crate::record::recorder::{Client, Outcome};
use crate::serve::conversations::Conversations;
use crate::serve::service::Service;
use crate::stack::caller_table::CallerTable;
use crate::stack::path::MAX_DEPTH;

/// The time that a recording samples.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum BootMode {
    /// Running time.
    #[default]
    Cpu,
    /// Running and blocked time.
    Wall,
    /// Blocked time only, measured.
    OffCpu,
}

/// A recording that [begins at boot](Service::start_at_boot). Clients find it by its name, like any
/// other.
///
/// ```
/// use unikprof_agent::BootRecording;
///
/// let flight = BootRecording {
///     max_age_ns: 60_000_000_000,
///     ..BootRecording::always_on("flight")
/// };
/// # assert_eq!(flight.duration_ns, 0);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BootRecording<'n> {
    /// Its name, 1 to [`MAX_NAME`](unikprof_proto::message::MAX_NAME) bytes without control
    /// characters.
    pub name: &'n str,
    /// The sampled time.
    pub mode: BootMode,
    /// The mean time between two samples, in ns of running time.
    pub period_ns: u64,
    /// The maximum number of frames kept of a stack, 1 to [`MAX_DEPTH`].
    pub depth: u32,
    /// The length of the recording in ns; 0 to record until a client stops it.
    pub duration_ns: u64,
    /// The delay before the recording begins, in ns.
    pub delay_ns: u64,
    /// The time before a dump that its samples need to cover, in ns; 0: no limit.
    pub max_age_ns: u64,
    /// The maximum number of bytes that the samples of a dump may take, the newest first; 0: no
    /// limit.
    pub max_bytes: u64,
}

impl<'n> BootRecording<'n> {
    /// The settings of the client's preset `default`: running time at 97 Hz, without an end; a dump
    /// holds the samples of the last five minutes, at most 512 KiB.
    pub const fn always_on(name: &'n str) -> Self {
        Self {
            name,
            mode: BootMode::Cpu,
            period_ns: 1_000_000_000 / 97,
            depth: MAX_DEPTH as u32,
            duration_ns: 0,
            delay_ns: 0,
            max_age_ns: 300_000_000_000,
            max_bytes: 512 << 10,
        }
    }
}

/// Why a recording did not begin: expected, found, and what to do.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct BootError(Text);

impl fmt::Display for BootError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "no recording at boot: {}", self.0)
    }
}

impl core::error::Error for BootError {}

impl<P: Platform> Service<'_, '_, P> {
    /// Begins a recording before any client connects; returns its id. Callers are looked up in the
    /// [linked caller table](crate::Agent::install_caller_table), if there is one. Errors are also
    /// [logged](Platform::log).
    ///
    /// Call it after the service is created and before it serves clients. Each recording takes one
    /// of [`Config::recordings`](crate::Config::recordings).
    ///
    /// # Errors
    ///
    /// [`BootError`], under the conditions that would make a client's request fail. The service can
    /// still be used.
    pub fn start_at_boot(&mut self, recording: &BootRecording<'_>) -> Result<u64, BootError> {
        self.conversations.start_at_boot(self.agent, recording)
    }
}

impl Conversations<'_> {
    fn start_at_boot(
        &mut self,
        agent: &AnyAgent<'_, '_>,
        recording: &BootRecording<'_>,
    ) -> Result<u64, BootError> {
        let request = Start {
            interval_bytes: 0,
            name: recording.name,
            period_ns: recording.period_ns,
            mode: match recording.mode {
                BootMode::Cpu => mode::CPU,
                BootMode::Wall => mode::WALL,
                BootMode::OffCpu => mode::OFF_CPU,
            },
            depth: recording.depth,
            duration_ns: recording.duration_ns,
            delay_ns: recording.delay_ns,
            // Perhaps no client ever fetches it.
            flags: start_flag::KEEP_NEWEST,
            caller_table: agent.callers().and_then(CallerTable::checksum),
            max_age_ns: recording.max_age_ns,
            max_bytes: recording.max_bytes,
        };
        let started =
            self.recorder.start(agent, &Client::default(), &request, self.server.total_ns);
        let error = match started {
            Outcome::Done((id, _)) => return Ok(id),
            Outcome::Refused(refused) => BootError(refused.text),
            Outcome::NotYet => BootError(Text::from(
                "a tick in progress prevents it; begin it before clients are served",
            )),
        };
        let text = Text::format(format_args!("unikprof: {error}"));
        agent.platform().log(text.as_str());
        Err(error)
    }
}
