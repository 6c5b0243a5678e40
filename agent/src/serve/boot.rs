//! A recording that begins with the guest, before any client has come.

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

/// What a recording samples.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum BootMode {
    /// Running time.
    #[default]
    Cpu,
    /// Running and blocked time.
    Wall,
    /// Blocked time alone, measured.
    OffCpu,
}

/// A recording that [begins at boot](Service::start_at_boot). Clients find it by its name, as any other.
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
    /// Its name, 1 to [`MAX_NAME`](unikprof_proto::message::MAX_NAME) bytes without control characters.
    pub name: &'n str,
    /// What is sampled.
    pub mode: BootMode,
    /// The mean time between two samples, in ns of running time.
    pub period_ns: u64,
    /// The most frames kept of one stack, 1 to [`MAX_DEPTH`].
    pub depth: u32,
    /// How long to record, in ns; 0: until a client stops it.
    pub duration_ns: u64,
    /// How long to wait before, in ns.
    pub delay_ns: u64,
    /// How far back the samples of a dump need to go, in ns; 0: as far as there are any.
    pub max_age_ns: u64,
    /// How many bytes the samples of a dump may take, the newest first; 0: all there are.
    pub max_bytes: u64,
}

impl<'n> BootRecording<'n> {
    /// What the client's preset `default` asks for: running time at 97 Hz, without an end; a dump holds the
    /// samples of the last five minutes, and at most 512 KiB of them.
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

/// Why a recording did not begin: what was expected, what was found, what to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BootError(Text);

impl fmt::Display for BootError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "no recording at boot: {}", self.0)
    }
}

impl core::error::Error for BootError {}

impl<P: Platform> Service<'_, '_, P> {
    /// Begins a recording before any client has come; answers its id. Callers are looked up in the
    /// [linked caller table](crate::Agent::install_caller_table), where there is one. What is wrong is also
    /// [logged](Platform::log).
    ///
    /// Call it when the service is made and before it serves anybody. Each further one takes another of
    /// [`Config::recordings`](crate::Config::recordings).
    ///
    /// # Errors
    /// [`BootError`], where a client would have been refused. The service can be used all the same.
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
            // No client may ever come to fetch it.
            flags: start_flag::KEEP_NEWEST,
            caller_table: agent.callers().and_then(CallerTable::checksum),
            max_age_ns: recording.max_age_ns,
            max_bytes: recording.max_bytes,
        };
        let started =
            self.recorder
                .start(agent, &Client::default(), &request, self.server.total_ns);
        let error = match started {
            Outcome::Done((id, _)) => return Ok(id),
            Outcome::Refused(refused) => BootError(refused.text),
            Outcome::NotYet => BootError(Text::from(
                "a tick is in the way; begin it before clients are served",
            )),
        };
        let text = Text::format(format_args!("unikprof: {error}"));
        agent.platform().log(text.as_str());
        Err(error)
    }
}
