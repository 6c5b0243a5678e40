//! A conversation that outlives its connections.

use std::path::Path;
use std::time::{Duration, Instant};

use jiff::Timestamp;
use unikprof_proto::code::{refusal, role};
use unikprof_proto::message::{
    Acknowledge, Acknowledged, CONFIRM_WITHIN_NS, Check, RecordingStatus, Started, Status,
};

use super::approach::{Approach, Waits};
use super::collect::Request;
use super::upload::upload;
use super::{Event, Observer, RecordError, RecorderStatus, Settings};
use crate::connection::{Access, Address, Connection, ConnectionError, Greeting, Timeouts};
use crate::deadline;
use crate::interrupt::Interrupt;
use crate::key::KeyId;
use unikprof_profile::agent_info::AgentInfo;
use unikprof_profile::caller_table::CallerTable;
use unikprof_profile::output::OutputError;
use unikprof_profile::printable::path_word;
use unikprof_profile::profile::Unwind;
use unikprof_profile::recorder_status::MOST_RECORDINGS;
use unikprof_profile::recording::RecordingWriter;

/// How often a recording is started whose start could not be confirmed in time.
const MOST_STARTS: u32 = 16;

/// The first wait before a lost connection is taken up again; each further one is twice as long.
const FIRST_BACKOFF: Duration = Duration::from_millis(100);
const LONGEST_BACKOFF: Duration = Duration::from_secs(5);

/// How long the last request of a session that has failed is tried.
const LAST_TRY: Duration = Duration::from_secs(2);

/// How long to wait for the other side.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Patience {
    /// For each step of a conversation.
    pub timeouts: Timeouts,
    /// How long to retry a lost connection.
    pub reconnect: Duration,
}

impl Default for Patience {
    /// The default timeouts, and half a minute for a connection to come back.
    fn default() -> Self {
        Patience { timeouts: Timeouts::default(), reconnect: Duration::from_secs(30) }
    }
}

/// An agent, and the connection to it while there is one.
#[derive(Debug)]
pub struct Session {
    approach: Approach,
    guest_words: String,
    /// How long to retry a lost connection.
    pub(super) reconnect: Duration,
    connection: Option<Connection>,
    protocol: u16,
    greeting: Greeting,
    connected: Timestamp,
    /// The caller table that the agent holds with the parts that were sent for the recording that
    /// starts.
    installed: Option<u32>,
}

/// Why an attempt over one connection failed.
pub(super) enum Attempt {
    /// The conversation failed.
    Broken {
        error: ConnectionError,
        /// Whether anything new had arrived: then this is no endless repetition.
        progressed: bool,
    },
    /// Another connection would not help. The rest of the answer may not have been read, so the
    /// connection is dropped.
    Failed(RecordError),
}

impl Attempt {
    /// An error while answers to further requests are still to come: after a refusal, the next
    /// frames belong to these, so that the connection cannot be used on.
    pub(super) fn while_pipelined(error: ConnectionError) -> Attempt {
        if error.may_be_taken_up_again() { error.into() } else { Attempt::Failed(error.into()) }
    }
}

impl Attempt {
    /// The same, where anything new may have arrived.
    pub(super) fn after(self, progressed: bool) -> Attempt {
        match self {
            Attempt::Broken { error, .. } => Attempt::Broken { error, progressed },
            failed => failed,
        }
    }
}

impl From<ConnectionError> for Attempt {
    fn from(error: ConnectionError) -> Attempt {
        Attempt::Broken { error, progressed: false }
    }
}

impl Session {
    /// Connects to an agent without keys and requests its information: [`Session::with_access`]
    /// without a key.
    pub fn open(
        address: Address,
        patience: Patience,
        interrupt: Interrupt,
    ) -> Result<Session, ConnectionError> {
        Session::with_access(address, Access::Open, patience, interrupt)
    }

    /// Connects and requests the agent's information. If nothing listens at the address, there is
    /// one attempt. A connection that opens and then ends is retried until the connection timeout,
    /// since the agent may be overloaded, or may not have received the client's data in time on a
    /// bad connection. Every later connection of this session uses the same key.
    pub fn with_access(
        address: Address,
        access: Access,
        patience: Patience,
        interrupt: Interrupt,
    ) -> Result<Session, ConnectionError> {
        let approach = Approach { address, access, timeouts: patience.timeouts, interrupt };
        let (connection, greeting) = approach.begin()?;
        Ok(Session {
            guest_words: approach.address.to_string(),
            approach,
            reconnect: patience.reconnect,
            protocol: connection.version(),
            connection: Some(connection),
            greeting,
            connected: Timestamp::now(),
            installed: None,
        })
    }

    /// The agent and its guest, as of the session's start.
    pub fn agent(&self) -> &AgentInfo {
        &self.greeting.info
    }

    /// The frames of the agent's welcome and mappings, as they came.
    pub(super) fn greeting_frames(&self) -> &[u8] {
        &self.greeting.frames
    }

    /// How a command names the guest: its address, and the options that were given to reach it.
    pub fn guest_words(&self) -> &str {
        &self.guest_words
    }

    /// Adds the option of this key file to [`guest_words`](Self::guest_words).
    pub fn tell_key_file(&mut self, path: &Path) {
        self.guest_words += &format!(" --key-file {}", path_word(path));
    }

    /// The agent's address.
    pub fn address(&self) -> &Address {
        &self.approach.address
    }

    /// The key that encrypts the conversation; `None` if it is not encrypted.
    pub fn key(&self) -> Option<KeyId> {
        // No connection is opened otherwise than with this.
        self.approach.access.key_id()
    }

    /// The protocol version in use.
    pub fn protocol(&self) -> u16 {
        self.protocol
    }

    /// When the session was opened, by the client's clock.
    pub fn connected(&self) -> Timestamp {
        self.connected
    }

    /// The same in ns since 1970, for files.
    pub(super) fn connected_unix_ns(&self) -> u64 {
        u64::try_from(self.connected.as_nanosecond()).unwrap_or(0)
    }

    /// Sends the caller table given in the settings, unless the agent already has it, and starts a
    /// recording. While other recordings run the agent replaces no table: if it has no room for a
    /// second one, the recording uses the one that is there. If there is none, it starts without,
    /// unless every frame is to be looked up. The agent ends a recording by itself if this client
    /// does not learn that it has started.
    pub fn start(&mut self, settings: &Settings) -> Result<Started, RecordError> {
        self.start_observed(settings, &mut ())
    }

    /// [`start`](Self::start), which also reports events to `observer`.
    pub fn start_observed(
        &mut self,
        settings: &Settings,
        observer: &mut dyn Observer,
    ) -> Result<Started, RecordError> {
        Ok(self.start_telling(settings, observer)?.0)
    }

    /// [`start`](Self::start), which also answers whether the recording uses the caller table of
    /// the settings.
    pub(super) fn start_telling(
        &mut self,
        settings: &Settings,
        observer: &mut dyn Observer,
    ) -> Result<(Started, bool), RecordError> {
        let mut starts = 0;
        loop {
            let (started, has_callers) = self.start_unconfirmed(settings, observer)?;
            // The agent takes any further request for the confirmation.
            let confirmed = self.check(observer);
            let status = confirmed.map_err(|error| self.advised(error, settings))?;
            let recording = started.recording;
            if status.by_id(recording).is_some() {
                return Ok((started, has_callers));
            }
            let begun_ns = started.started_ns.saturating_sub(settings.delay_ns);
            let is_late = status.agent.now_ns.saturating_sub(begun_ns) >= CONFIRM_WITHIN_NS;
            starts += 1;
            // Or else another client has ended it.
            if !is_late || starts == MOST_STARTS {
                return Err(RecordError::Gone { recording });
            }
        }
    }

    fn start_unconfirmed(
        &mut self,
        settings: &Settings,
        observer: &mut dyn Observer,
    ) -> Result<(Started, bool), RecordError> {
        self.installed = None;
        // Before a table is sent for nothing.
        settings.request(&self.greeting.info)?;
        let Some(callers) = &settings.callers else {
            return Ok((self.start_once(settings, observer)?, false));
        };
        let held = self.greeting.info.caller_table;
        let with_callers = |started| Ok((started, true));
        // Who may only look is told so of the recording, not of a table that nobody asked about.
        let may_install = self.greeting.info.role != role::VIEW;
        if may_install && self.greeting.info.caller_table != Some(callers.checksum()) {
            match self.install(callers, observer) {
                // Others use the table that is there. It may have become this one since the
                // greeting.
                Err(error) if error.is_refused(refusal::ALREADY_RECORDING) => {
                    return match self.start_once(settings, observer) {
                        Err(error) if error.is_refused(refusal::NO_TABLE) => {
                            self.start_with_held(settings, held, error, observer)
                        }
                        other => other.and_then(with_callers),
                    };
                }
                other => other?,
            }
        }
        match self.start_once(settings, observer) {
            // Another client has replaced the table since the greeting.
            Err(error) if error.is_refused(refusal::NO_TABLE) => {
                match self.install(callers, observer) {
                    Err(error) if error.is_refused(refusal::ALREADY_RECORDING) => {
                        self.start_with_held(settings, held, error, observer)
                    }
                    Err(error) => Err(error),
                    Ok(()) => self.start_once(settings, observer).and_then(with_callers),
                }
            }
            other => other.and_then(with_callers),
        }
    }

    /// Starts with the caller table that the agent has in place of that of the settings, which the
    /// agent does not take now: `refused` says why. `held` is what it had before. Without a table,
    /// only a recording that can do without starts.
    fn start_with_held(
        &mut self,
        settings: &Settings,
        held: Option<u32>,
        refused: RecordError,
        observer: &mut dyn Observer,
    ) -> Result<(Started, bool), RecordError> {
        let mut other = Settings { callers: None, held_callers: held, ..settings.clone() };
        if other.held_callers.is_some() {
            match self.start_once(&other, observer) {
                Err(error) if error.is_refused(refusal::NO_TABLE) => {}
                Err(error) => return Err(error),
                Ok(started) => {
                    // Of a table that is partial, any other part is as good.
                    if settings.partial.is_none() {
                        observer.event(Event::CallerTableNotTaken { uses_held: true });
                    }
                    return Ok((started, false));
                }
            }
        }
        if settings.unwind == Unwind::Table {
            return Err(refused);
        }
        other.held_callers = None;
        let started = self.start_once(&other, observer)?;
        observer.event(Event::CallerTableNotTaken { uses_held: false });
        Ok((started, false))
    }

    /// Sends further rows for a recording that runs.
    pub(super) fn add_callers(
        &mut self,
        callers: &CallerTable,
        observer: &mut dyn Observer,
    ) -> Result<(), RecordError> {
        let max_request = self.greeting.info.max_request;
        let mut arrived = 0;
        let held = self.persist(observer, |connection, _| {
            upload(connection, callers, max_request, &mut arrived)
        })?;
        self.greeting.info.caller_table = Some(held);
        Ok(())
    }

    fn install(
        &mut self,
        callers: &CallerTable,
        observer: &mut dyn Observer,
    ) -> Result<(), RecordError> {
        // Whatever happens on the way, the agent's former table may be gone.
        self.greeting.info.caller_table = None;
        self.quitting_at_first(|session| {
            // Clients that send at the same time disturb each other.
            session.wait_while(refusal::OTHER_UPLOAD, observer, |session, observer| {
                session.add_callers(callers, observer)
            })
        })?;
        self.installed = self.greeting.info.caller_table;
        Ok(())
    }

    /// Does something again while the agent refuses it for this reason, for as long as a lost
    /// connection is retried.
    pub(super) fn wait_while<T>(
        &mut self,
        refusal: u32,
        observer: &mut dyn Observer,
        mut attempt: impl FnMut(&mut Session, &mut dyn Observer) -> Result<T, RecordError>,
    ) -> Result<T, RecordError> {
        let end = deadline::after(self.reconnect);
        let mut waits = Waits::new(FIRST_BACKOFF, LONGEST_BACKOFF);
        let mut is_told = false;
        loop {
            match attempt(self, observer) {
                Err(error) if error.is_refused(refusal) && Instant::now() < end => {
                    if !std::mem::replace(&mut is_told, true) {
                        observer.event(Event::Waiting(&error));
                    }
                    if !self.approach.interrupt.sleep_unless_quit(waits.next()) {
                        return Err(ConnectionError::Interrupted.into());
                    }
                }
                other => return other,
            }
        }
    }

    /// Does what comes before there is anything that a first request to stop would end in good
    /// order.
    pub(super) fn quitting_at_first<T>(&mut self, set_up: impl FnOnce(&mut Session) -> T) -> T {
        let interrupt = self.approach.interrupt.clone();
        self.set_interrupt(interrupt.quitting_at_first());
        let done = set_up(self);
        self.set_interrupt(interrupt);
        done
    }

    /// Makes the last request use a new connection, which is tried for a moment, also after the
    /// user gave up.
    pub(super) fn renew(&mut self) {
        self.connection = None;
        self.reconnect = self.reconnect.min(LAST_TRY);
        self.set_interrupt(Interrupt::default());
    }

    /// Sets what ends the waits to come early.
    fn set_interrupt(&mut self, interrupt: Interrupt) {
        if let Some(connection) = &mut self.connection {
            connection.set_interrupt(interrupt.clone());
        }
        self.approach.interrupt = interrupt;
    }

    fn start_once(
        &mut self,
        settings: &Settings,
        observer: &mut dyn Observer,
    ) -> Result<Started, RecordError> {
        let mut request = settings.request(&self.greeting.info)?;
        if settings.callers.is_some() {
            request.caller_table = self.installed.or(request.caller_table);
        }
        const DOING: &str = "starting the recording";
        // The agent answers a start that is repeated as it did the first time.
        let started = self.persist(observer, |connection, _| {
            Ok(connection.ask(&request, "the start of a recording", DOING)?)
        });
        started.map_err(|error| match error {
            RecordError::Connection(ConnectionError::Refused { .. })
            | RecordError::Connection(ConnectionError::NotAllowed { .. }) => error,
            error => self.advised(error, settings),
        })
    }

    fn advised(&self, error: RecordError, settings: &Settings) -> RecordError {
        error.while_running(Request::Stop { recording: 0 }, &settings.name, &self.guest_words)
    }

    /// Requests the state of the recorder and of each recording.
    pub fn check(&mut self, observer: &mut dyn Observer) -> Result<RecorderStatus, RecordError> {
        const DOING: &str = "reading the recorder's status";
        self.persist(observer, |connection, _| {
            let status: Status = connection.ask(&Check {}, "a status", DOING)?;
            let count = status.recordings;
            if count > MOST_RECORDINGS {
                return Err(Attempt::Failed(RecordError::TooManyTold { count }));
            }
            let mut found = RecorderStatus { recordings: Vec::new(), agent: status };
            for _ in 0..count {
                let one: RecordingStatus<'_> = connection.answer("a recording's status", DOING)?;
                found.add(&one);
            }
            Ok(found)
        })
    }

    /// Tells the agent that an epoch is safe.
    pub(super) fn acknowledge(
        &mut self,
        epoch: u64,
        observer: &mut dyn Observer,
    ) -> Result<(), RecordError> {
        self.persist(observer, |connection, _| {
            let request = Acknowledge { epoch };
            let answer: Result<Acknowledged, _> =
                connection.ask(&request, "an acknowledged epoch", "acknowledging an epoch");
            match answer {
                Ok(_) => Ok(()),
                // A first attempt arrived, but its answer did not.
                Err(ConnectionError::Refused { code: refusal::NO_EPOCH, .. }) => Ok(()),
                Err(error) => Err(error.into()),
            }
        })
    }

    /// Begins a recording file of this session.
    pub(super) fn create_recording(&self, path: &Path) -> Result<RecordingWriter, OutputError> {
        let frames = self.greeting_frames();
        RecordingWriter::create(path, self.protocol, self.connected, frames)
    }

    /// Waits; answers whether the user asked to stop, and then at once.
    pub(super) fn sleep(&self, wait: Duration) -> bool {
        let end = deadline::after(wait);
        !self.approach.interrupt.sleep_until(end, Interrupt::stop)
    }

    /// Whether the user has asked to stop.
    pub(super) fn is_stopped(&self) -> bool {
        self.approach.interrupt.stop()
    }

    /// Does something over the connection, and again over a new one where the line broke.
    pub(super) fn persist<T>(
        &mut self,
        observer: &mut dyn Observer,
        mut attempt: impl FnMut(&mut Connection, &mut dyn Observer) -> Result<T, Attempt>,
    ) -> Result<T, RecordError> {
        // Since when it breaks again and again without anything new.
        let mut broke: Option<Instant> = None;
        loop {
            let connection = match &mut self.connection {
                Some(connection) => connection,
                None => self.reconnect(broke, observer)?,
            };
            let (error, progressed) = match attempt(connection, observer) {
                Ok(answer) => return Ok(answer),
                Err(Attempt::Failed(error)) => {
                    self.connection = None;
                    return Err(error);
                }
                Err(Attempt::Broken { error, progressed }) => (error, progressed),
            };
            if !error.may_be_taken_up_again() {
                return Err(error.into());
            }
            // A small guest has few sockets: the old one must be closed before the new one opens.
            self.connection = None;
            if progressed {
                broke = None;
            }
            if broke.get_or_insert_with(Instant::now).elapsed() >= self.reconnect {
                return Err(error.into());
            }
            observer.event(Event::ConnectionLost(&error));
        }
    }

    /// Connects again, for as long as the line may be down; it has brought nothing new since it
    /// `broke`.
    fn reconnect(
        &mut self,
        broke: Option<Instant>,
        observer: &mut dyn Observer,
    ) -> Result<&mut Connection, RecordError> {
        let began = broke.unwrap_or_else(Instant::now);
        let end = deadline::after(self.reconnect.saturating_sub(began.elapsed()));
        let interrupt = &self.approach.interrupt;
        let mut waits = Waits::new(FIRST_BACKOFF, LONGEST_BACKOFF);
        loop {
            let until = (Instant::now() + waits.next()).min(end);
            if !interrupt.sleep_until(until, Interrupt::quit) {
                return Err(ConnectionError::Interrupted.into());
            }
            match self.approach.greet(self.approach.timeouts) {
                Ok((_, greeting)) if !greeting.info.continues(&self.greeting.info) => {
                    return Err(RecordError::GuestChanged);
                }
                Ok((connection, _)) => {
                    observer.event(Event::Reconnected);
                    return Ok(self.connection.insert(connection));
                }
                Err(error) if !error.may_be_taken_up_again() => return Err(error.into()),
                Err(source) if Instant::now() >= end => {
                    return Err(RecordError::Lost {
                        after: Duration::from_millis(began.elapsed().as_millis() as u64),
                        source,
                    });
                }
                Err(_) => {}
            }
        }
    }
}
