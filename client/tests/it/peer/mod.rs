//! A scripted agent: follows the protocol, except where a test wants it not to.
#![allow(unreachable_pub)]

mod frames;
pub mod keyed;
pub mod program;
pub mod ring;

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use jiff::Timestamp;
use unikprof_link::connection::{Access, Address, ConnectionError, Timeouts};
use unikprof_link::interrupt::Interrupt;
use unikprof_link::record::{self, Outcome, Patience, RecordError, Session, Settings};
use unikprof_profile::recording::RecordingWriter;
use unikprof_proto::caller_table::{Row, checksum, decode_run};
use unikprof_proto::code::{message_type as types, mode, refusal};
use unikprof_proto::frame::{self, Message};
use unikprof_proto::live;
use unikprof_proto::message::{Ring as RingRequest, *};
use unikprof_proto::preamble::{self, Preamble};
use unikprof_test_kit::frames::read_once;

pub use frames::{
    SEGMENT, encode, epoch, epoch_after, number, recording_status, samples_of, share, stacks,
    status, welcome,
};
use keyed::{Keyed, Seal};

/// Longer than a busy machine takes for anything.
pub const PATIENT: Duration = Duration::from_secs(60);

/// A stack node: its parent, its frame codes leaf first, its count.
pub type StackNode = (u32, Vec<u32>, u64);

/// What a test does when an epoch is acknowledged.
pub type OnAcknowledge = Arc<dyn Fn(u64) + Send + Sync>;

/// What the agent does.
#[derive(Clone)]
pub struct Script {
    /// Connection `n` is closed after `cuts[n]` bytes were sent; later ones are left alone.
    pub cuts: Vec<usize>,
    /// The nodes of each vCPU.
    pub vcpus: Vec<Vec<StackNode>>,
    /// How many nodes go into a frame.
    pub nodes_per_frame: usize,
    /// Refuses the request of this type.
    pub refuses: Option<(u16, u32, &'static str)>,
    /// How many times.
    pub refusals: usize,
    /// An older epoch waits, so that the first stop or dump is not complete.
    pub older_epoch: bool,
    /// Whether the recording ends when it is first looked at.
    pub ends_by_itself: bool,
    /// The guest's clock when its recordings are looked at.
    pub looked_at_ns: u64,
    /// The clock at the welcome of connection `n`: tells a restarted guest.
    pub clock_ns: fn(usize) -> u64,
    /// The date at the welcome, if the guest knows any.
    pub wall_clock_ns: Option<u64>,
    /// What the end of the first vCPU's share says beyond the truth.
    pub extra_samples: u64,
    /// How many samples of each epoch and vCPU the agent gave up.
    pub aged: u64,
    /// Of how many samples of each epoch and vCPU the caller table told the caller.
    pub by_table: u64,
    pub fold: Option<Fold>,
    /// Each epoch has a new stack.
    pub grows: bool,
    /// The agent's instance, and that which it has from the second connection on.
    pub instance: u64,
    pub second_instance: Option<u64>,
    /// Which client holds the recordings, since the clock's 1,000.
    pub holder: Option<&'static str>,
    /// How long the memory holds samples and new stacks, in ns.
    pub windows: (Option<u64>, Option<u64>),
    /// Whether its memory waits for a fetch.
    pub wants_fetch: bool,
    /// The recording ends once it was dumped so often.
    pub ends_after_dumps: Option<usize>,
    /// The last of these dumps fetches all of it: once that is acknowledged, the recording is
    /// forgotten.
    pub ends_in_dump: bool,
    /// Called with the epoch before an acknowledgement is answered.
    pub on_acknowledge: Option<OnAcknowledge>,
    /// The mode of its recordings; counts of blocked time alone are no samples.
    pub mode: u32,
    /// The mean number of bytes between two samples, of allocations.
    pub interval_bytes: u64,
    /// What is held at the end of its epochs, by vCPU; nodes by their place in the script, from 1.
    pub held: Vec<Vec<live::Sample>>,
    /// What each vCPU allocated in an epoch, and how many samples it freed.
    pub allocated_bytes: u64,
    pub freed_samples: u64,
    /// How many samples found no place in each epoch.
    pub overflow: u64,
    /// How long its epochs are, in ns.
    pub epoch_ns: u64,
    /// The recording of its epochs, and the mean time between its samples, in ns.
    pub recording: u64,
    pub period_ns: u64,
    /// How its recordings were made, as the flags of a start.
    pub epoch_flags: u32,
    pub guest_name: &'static str,
    /// Where the guest's code is: start, end, file offset and build-id.
    pub mapping: (u64, u64, u64, &'static [u8]),
    /// How many rows of a caller table there is room for.
    pub caller_rows: u32,
    /// The checksum of the caller table that the agent holds at first.
    pub caller_table: Option<u32>,
    /// Another client's table takes this one's place before the first start.
    pub table_replaced: bool,
    /// Once this many rows of a caller table have arrived, nothing more is read.
    pub stalls_after_rows: Option<usize>,
    /// Hangs up behind each message with rows of a caller table.
    pub breaks_uploads: bool,
    /// Hangs up when it has refused something.
    pub hangs_up: bool,
    /// The key it asks for, and what it does with it; open without.
    pub keyed: Option<Keyed>,
    /// From the second connection on it is open, as nobody's agent becomes by itself.
    pub second_is_open: bool,
    /// This many connections come while all sessions are taken.
    pub turned_away: usize,
    /// This many connections then make room for others.
    pub displaced: usize,
    /// The recordings beside the first one, which is 3, `default`: their ids and names.
    pub others: Vec<(u64, &'static str)>,
    /// There is no recording at all.
    pub is_empty: bool,
    /// So many starts come to nothing: they are not confirmed in time.
    pub unconfirmed: usize,
    /// So many epochs behind the first one are fetched by another client.
    pub elsewhere: u64,
    /// How many epochs wait before anything is stopped.
    pub waiting: u32,
    /// Whether the delay of its recordings is not over, so that no epoch waits when one is stopped
    /// or dumped.
    pub is_delayed: bool,
    /// Connections that were refused or cut.
    pub peers: Peers,
    /// What happened when; without it the agent keeps counts alone.
    pub ring: Option<Ring>,
    /// What the first recording asked for at its start: how far back, and how many bytes.
    pub keeps: (u64, u64),
}

/// Memory runs short in the middle of the first answer to a fetch: the agent gives up the counts of
/// the first vCPU's oldest stack.
#[derive(Clone, Copy)]
pub struct Fold {
    /// How many frames of that answer are sent.
    pub after_frames: usize,
    /// Whether a refusal follows; otherwise the connection is closed.
    pub is_told: bool,
}

/// Answers about rings, as bytes, so that they may be anything.
#[derive(Clone, Default)]
pub struct Ring {
    /// The names of events and their end.
    pub names: Vec<u8>,
    /// The ring's records, by vCPU: from its head to its end.
    pub records: Vec<Vec<u8>>,
    /// The stacks that these name, by vCPU.
    pub stacks: Vec<Vec<u8>>,
    /// After this many bytes of records the connection is closed.
    pub closes_after: Option<usize>,
    /// Instead of all that, a ring that holds so many records, and has so many new ones at each
    /// look.
    pub live: Option<(u64, u64)>,
    /// Instead of `records`, a ring's head, its runs of one record each between head and end: each
    /// connection is closed behind the first run asked for.
    pub goes_on: Option<(RingHead, Vec<Vec<u8>>)>,
}

impl Default for Script {
    fn default() -> Self {
        Script {
            cuts: Vec::new(),
            vcpus: vec![
                vec![
                    (0, vec![0x130, 0x110], 0),
                    (1, vec![0x150], 5),
                    (1, vec![0x170, 0x160], 7),
                    (3, vec![4], 1),
                    (0, vec![0x110, 1], 2),
                ],
                vec![(0, vec![0x190], 3)],
            ],
            nodes_per_frame: 2,
            refuses: None,
            refusals: usize::MAX,
            older_epoch: false,
            ends_by_itself: true,
            looked_at_ns: 2_000,
            clock_ns: |connection| 1_000 + connection as u64,
            wall_clock_ns: Some(1_700_000_000_000_000_000),
            extra_samples: 0,
            aged: 0,
            by_table: 0,
            fold: None,
            grows: false,
            instance: 0xfeed,
            second_instance: None,
            holder: None,
            windows: (None, None),
            wants_fetch: false,
            ends_after_dumps: None,
            ends_in_dump: false,
            on_acknowledge: None,
            mode: mode::CPU,
            interval_bytes: 0,
            held: Vec::new(),
            allocated_bytes: 0,
            freed_samples: 0,
            overflow: 0,
            epoch_ns: 50_000,
            recording: RECORDING,
            period_ns: 1_000,
            epoch_flags: 0,
            guest_name: "web-1",
            mapping: (0x10_0000, 0x10_1000, 0x1000, &[0xab; 20]),
            caller_rows: 0,
            caller_table: None,
            table_replaced: false,
            stalls_after_rows: None,
            breaks_uploads: false,
            hangs_up: false,
            keyed: None,
            second_is_open: false,
            turned_away: 0,
            displaced: 0,
            others: Vec::new(),
            is_empty: false,
            unconfirmed: 0,
            elsewhere: 0,
            waiting: 0,
            is_delayed: false,
            peers: Peers::default(),
            ring: None,
            keeps: (0, 0),
        }
    }
}

impl Script {
    /// A recording of what is held, which ends at the third look.
    pub fn live() -> Script {
        Script {
            mode: mode::LIVE,
            interval_bytes: 64,
            period_ns: 0,
            vcpus: vec![vec![(0, vec![0x130, 0x110], 0)]],
            held: vec![vec![live::Sample { node: 1, size: 64, born_ns: 1_000 }]],
            windows: (Some(1_000_000_000), Some(500_000_000)),
            wants_fetch: true,
            ends_after_dumps: Some(3),
            ..Script::default()
        }
    }

    /// The same agent after a [`Fold`].
    pub fn folded(mut self) -> Self {
        let counted = self.vcpus[0].iter_mut().find(|node| node.2 > 0);
        self.aged += std::mem::take(&mut counted.unwrap().2);
        self
    }

    pub fn samples(&self) -> u64 {
        self.vcpus.iter().flatten().map(|(_, _, count)| count).sum()
    }
}

/// A running agent and what it was asked.
pub struct Peer {
    pub address: SocketAddr,
    seen: Arc<Mutex<Seen>>,
}

#[derive(Default)]
struct Seen {
    log: Vec<String>,
    tables: Vec<Vec<Row>>,
    starts: Vec<Asked>,
    rings: Vec<RingRequest>,
    clients: Vec<u64>,
}

/// What a start asked for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Asked {
    pub name: String,
    pub period_ns: u64,
    pub max_age_ns: u64,
    pub max_bytes: u64,
    pub mode: u32,
    pub flags: u32,
    pub caller_table: Option<u32>,
}

impl Peer {
    pub fn start(script: Script) -> Peer {
        let seen: Arc<Mutex<Seen>> = Arc::default();
        let mut guest = Guest {
            older: script.older_epoch,
            acknowledged: Vec::new(),
            held: script.caller_table,
            arriving: Vec::new(),
            announced: None,
            script,
            seen: Arc::clone(&seen),
            looks: 0,
            dumps: 0,
        };
        let address = listen(move |stream, number| {
            // A broken conversation is what many tests want.
            let _ = guest.converse(stream, number);
        });
        Peer { address, seen }
    }

    /// A peer that is no agent: `speak` has the connection to itself.
    pub fn foreign(speak: impl Fn(TcpStream) + Send + 'static) -> Peer {
        Peer { address: listen(move |stream, _| speak(stream)), seen: Arc::default() }
    }

    /// A session with it, which waits so long for a connection and so long for one that was lost.
    pub fn open(
        &self,
        access: impl Into<Access>,
        connect: Duration,
        reconnect: Duration,
        interrupt: &Interrupt,
    ) -> Result<Session, ConnectionError> {
        let address = Address::new(self.address.ip().to_string(), self.address.port());
        let patience = Patience { timeouts: Timeouts { connect, answer: PATIENT }, reconnect };
        Session::with_access(address, access.into(), patience, interrupt.clone())
    }

    /// A session without a key.
    pub fn session(&self, reconnect: Duration) -> Session {
        let interrupt = Interrupt::default();
        self.open(Access::Open, PATIENT, reconnect, &interrupt).unwrap()
    }

    /// Records with the usual settings into a file.
    pub fn record(&self, path: &Path, reconnect: Duration) -> Result<Outcome, RecordError> {
        let mut session = self.session(reconnect);
        record::record(&mut session, &Settings::default(), path, &mut ())
    }

    /// The ids that clients gave, one for each greeting.
    pub fn clients(&self) -> Vec<u64> {
        self.seen.lock().unwrap().clients.clone()
    }

    /// Which records were asked for.
    pub fn asked_rings(&self) -> Vec<RingRequest> {
        self.seen.lock().unwrap().rings.clone()
    }

    /// What the agent was asked so far, a word each.
    pub fn log(&self) -> Vec<String> {
        self.seen.lock().unwrap().log.clone()
    }

    /// How many requests so far begin with this word.
    pub fn asked(&self, word: &str) -> usize {
        let log = self.log();
        log.iter().filter(|told| told.starts_with(word)).count()
    }

    /// The caller tables that were installed.
    pub fn tables(&self) -> Vec<Vec<Row>> {
        self.seen.lock().unwrap().tables.clone()
    }

    /// What the recordings that were started were to be.
    pub fn starts(&self) -> Vec<Asked> {
        self.seen.lock().unwrap().starts.clone()
    }

    /// Waits until the agent was asked this.
    pub fn wait_for(&self, word: &str) {
        let deadline = Instant::now() + Duration::from_secs(60);
        while !self.log().iter().any(|entry| entry == word) {
            assert!(Instant::now() < deadline, "`{word}` never came: {:?}", self.log());
            thread::sleep(Duration::from_millis(5));
        }
    }
}

/// Gives each connection to `speak`, with its number.
fn listen(mut speak: impl FnMut(TcpStream, usize) + Send + 'static) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    thread::spawn(move || {
        for (number, stream) in listener.incoming().enumerate() {
            speak(stream.unwrap(), number);
        }
    });
    address
}

struct Guest {
    script: Script,
    older: bool,
    acknowledged: Vec<u64>,
    /// The checksum of the caller table in use.
    held: Option<u32>,
    /// The rows of the one that is being sent.
    arriving: Vec<Row>,
    announced: Option<TableBegin>,
    /// How often a live ring was looked at.
    looks: u64,
    dumps: usize,
    seen: Arc<Mutex<Seen>>,
}

/// Writes a file of these epochs and rings.
pub fn write_file(
    path: &Path,
    script: &Script,
    epochs: &[u64],
    rings: &[u8],
    incomplete: Option<&str>,
) {
    let welcome = welcome(script, 1_000).concat();
    let created = Timestamp::from_second(1_700_000_000).unwrap();
    let mut writer = RecordingWriter::create(path, 1, created, &welcome).unwrap();
    for (at, epoch) in epochs.iter().enumerate() {
        // A file holds each node once.
        let known = if at == 0 { 0 } else { 2 * SEGMENT - 1 };
        let frames = epoch_after(script, *epoch, known).concat();
        writer.append(&frames).unwrap();
    }
    writer.append(rings).unwrap();
    writer.end(incomplete).unwrap();
    writer.publish().unwrap();
}

const RECORDING: u64 = 3;
const UPLOAD: u64 = 9;
const MAX_REQUEST: u32 = 1024;
const OLDER: u64 = 6;
const NEWER: u64 = 7;

impl Guest {
    fn converse(&mut self, stream: TcpStream, number: usize) -> std::io::Result<()> {
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(Duration::from_secs(60)))?;
        let mut line = Line {
            budget: self.script.cuts.get(number).copied(),
            input: Vec::new(),
            seal: None,
            stream,
        };
        let keyed = self.script.keyed.clone();
        let keyed = keyed.filter(|_| number == 0 || !self.script.second_is_open);
        let ours = preamble::encode(match &keyed {
            None => preamble::OPEN,
            Some(keyed) => Preamble { security: keyed.says, ..preamble::KEYED },
        });
        if keyed.as_ref().is_none_or(|keyed| !keyed.is_silent_first) {
            line.write(&ours)?;
        }
        let mut theirs = [0; preamble::LENGTH];
        line.stream.read_exact(&mut theirs)?;
        if number < self.script.turned_away {
            self.note("turned away");
            return line.send(&Refusal {
                code: refusal::BUSY,
                request: 0,
                text: "all sessions are taken",
            });
        }
        if number < self.script.turned_away + self.script.displaced {
            self.note("displaced");
            return Ok(());
        }
        match keyed {
            // Who has a key has nothing more to say.
            None if preamble::decode(&theirs) != Ok(preamble::OPEN) => {
                assert_eq!(line.request()?, None);
                return Ok(());
            }
            None => {}
            Some(keyed) => {
                if keyed.handshake(&mut line, &ours, &theirs, number)? {
                    self.note("handshake");
                } else {
                    self.note("refused");
                    return Ok(());
                }
            }
        }
        while let Some((kind, body)) = line.request()? {
            self.answer(&mut line, kind, &body, number)?;
        }
        Ok(())
    }

    fn answer(
        &mut self,
        line: &mut Line,
        kind: u16,
        body: &[u8],
        number: usize,
    ) -> std::io::Result<()> {
        if let Some((refused, code, text)) = self.script.refuses
            && refused == kind
            && self.script.refusals > 0
        {
            self.script.refusals -= 1;
            self.note("refused");
            line.send(&Refusal { code, request: kind, text })?;
            return if self.script.hangs_up {
                Err(std::io::ErrorKind::ConnectionAborted.into())
            } else {
                Ok(())
            };
        }
        if let Some(keyed) = &self.script.keyed
            && !keyed.allows(kind)
        {
            self.note("not allowed");
            return line.send(&Refusal {
                code: refusal::NOT_ALLOWED,
                request: kind,
                text: "the key's role does not allow it",
            });
        }
        let frame = frame::Frame { kind, body };
        match kind {
            types::HELLO => {
                self.note("hello");
                let hello: Hello<'_> = frame::decode(&frame).unwrap();
                self.seen.lock().unwrap().clients.push(hello.client_id);
                let script = Script {
                    caller_table: self.held,
                    instance: match self.script.second_instance {
                        Some(second) if number > 0 => second,
                        _ => self.script.instance,
                    },
                    ..self.script.clone()
                };
                for frame in welcome(&script, (self.script.clock_ns)(number)) {
                    line.write(&frame)?;
                }
                Ok(())
            }
            types::START => {
                let start: Start<'_> = frame::decode(&frame).unwrap();
                if std::mem::take(&mut self.script.table_replaced) {
                    self.held = Some(0);
                }
                if start.caller_table.is_some() && start.caller_table != self.held {
                    self.note("no table");
                    return line.send(&Refusal {
                        code: refusal::NO_TABLE,
                        request: kind,
                        text: "another caller table is in use",
                    });
                }
                self.note("start");
                self.seen.lock().unwrap().starts.push(Asked {
                    name: start.name.into(),
                    period_ns: start.period_ns,
                    max_age_ns: start.max_age_ns,
                    max_bytes: start.max_bytes,
                    mode: start.mode,
                    flags: start.flags,
                    caller_table: start.caller_table,
                });
                line.send(&Started { recording: RECORDING, started_ns: 1_000 })
            }
            types::TABLE_BEGIN => {
                let begin: TableBegin = frame::decode(&frame).unwrap();
                if self.announced != Some(begin) {
                    self.note(&format!("table of {}", begin.rows));
                    self.arriving.clear();
                    self.announced = Some(begin);
                }
                line.send(&TableReady { upload: UPLOAD, rows: self.arriving.len() as u32 })
            }
            types::TABLE_ROWS => {
                let run: TableRows<'_> = frame::decode(&frame).unwrap();
                assert!(body.len() <= MAX_REQUEST as usize);
                assert_eq!((run.upload, run.first), (UPLOAD, self.arriving.len() as u32));
                let after = self.arriving.last().map_or(0, |row| row.code);
                let rows = &mut self.arriving;
                decode_run(after, run.count, run.payload, |row| rows.push(row)).unwrap();
                let (stalls, arrived) = (self.script.stalls_after_rows, rows.len());
                if stalls.is_some_and(|stalls| stalls <= arrived) {
                    self.note("stalled");
                    loop {
                        thread::park();
                    }
                }
                match self.script.breaks_uploads {
                    true => Err(std::io::ErrorKind::ConnectionAborted.into()),
                    false => Ok(()),
                }
            }
            types::TABLE_END => {
                let end: TableEnd = frame::decode(&frame).unwrap();
                let rows = std::mem::take(&mut self.arriving);
                let found = rows.iter().fold(0, |crc, row| checksum(crc, *row));
                let announced = self.announced.take().unwrap();
                assert_eq!((end.upload, announced.checksum), (UPLOAD, found));
                assert_eq!(announced.rows as usize, rows.len());
                let inside = announced.first..=announced.end;
                assert!(rows.iter().all(|row| inside.contains(&row.code)));
                self.held = Some(found);
                self.note("table installed");
                let count = rows.len() as u32;
                self.seen.lock().unwrap().tables.push(rows);
                line.send(&TableInstalled { rows: count, caller_table: found })
            }
            types::CHECK => {
                self.note("check");
                let has_ended = match self.script.ends_after_dumps {
                    Some(dumps) => self.dumps >= dumps,
                    None => self.script.ends_by_itself,
                };
                // What the last dump made waits, and what came after it.
                let (first_epoch, epochs) = match self.script.ends_after_dumps {
                    Some(_) if has_ended => {
                        (self.newest(), 2 - u32::from(self.script.ends_in_dump))
                    }
                    _ => (NEWER, self.script.waiting),
                };
                let is_forgotten =
                    has_ended && self.script.ends_in_dump && self.acknowledged.len() >= self.dumps;
                let is_lost = match self.script.unconfirmed {
                    0 => false,
                    starts => self.seen.lock().unwrap().starts.len() <= starts,
                };
                let is_there = !self.script.is_empty && !is_forgotten && !is_lost;
                let first = is_there.then_some((RECORDING, "default"));
                let there: Vec<_> = first.into_iter().chain(self.script.others.clone()).collect();
                line.send(&Status {
                    recordings: there.len() as u32,
                    peers: self.script.peers,
                    now_ns: self.script.looked_at_ns,
                    ..status()
                })?;
                for (recording, name) in there {
                    line.send(&RecordingStatus {
                        recording,
                        name,
                        epochs,
                        first_epoch,
                        max_age_ns: self.script.keeps.0,
                        max_bytes: self.script.keeps.1,
                        mode: self.script.mode,
                        holder: self.script.holder,
                        held_since_ns: 1_000,
                        samples_window_ns: self.script.windows.0,
                        stacks_window_ns: self.script.windows.1,
                        wants_fetch: self.script.wants_fetch,
                        ..recording_status(has_ended)
                    })?;
                }
                Ok(())
            }
            types::STOP | types::DUMP => {
                let Dump { recording } = match kind {
                    types::DUMP => frame::decode(&frame).unwrap(),
                    _ => Dump { recording: frame::decode::<Stop>(&frame).unwrap().recording },
                };
                let word = if kind == types::STOP { "stop" } else { "dump" };
                match recording {
                    0 | RECORDING => self.note(word),
                    other => self.note(&format!("{word} {other}")),
                }
                self.dumps += 1;
                line.send(&Pending {
                    recording,
                    first_epoch: if self.older { OLDER } else { self.newest() },
                    epochs: u32::from(!self.script.is_delayed),
                    complete: !self.older,
                })
            }
            types::FETCH => {
                let fetch: Fetch = frame::decode(&frame).unwrap();
                let Fetch { epoch, vcpu, known, counted } = fetch;
                self.note(&format!("fetch {epoch} {vcpu}"));
                let mut frames = share(&self.script, epoch, vcpu, known, counted);
                let fold = self.script.fold.take();
                if let Some(Fold { after_frames, .. }) = fold {
                    frames.truncate(after_frames);
                    self.script = self.script.clone().folded();
                }
                for frame in frames {
                    line.write(&frame)?;
                }
                match fold {
                    Some(Fold { is_told: true, .. }) => line.send(&Refusal {
                        code: refusal::EPOCH_CHANGED,
                        request: kind,
                        text: "its oldest stacks were given up",
                    }),
                    Some(_) => Err(std::io::ErrorKind::ConnectionAborted.into()),
                    None => Ok(()),
                }
            }
            types::ACKNOWLEDGE => {
                let Acknowledge { epoch } = frame::decode(&frame).unwrap();
                self.note(&format!("acknowledge {epoch}"));
                if let Some(call) = &self.script.on_acknowledge {
                    call(epoch);
                }
                if self.acknowledged.contains(&epoch) {
                    return line.send(&Refusal {
                        code: refusal::NO_EPOCH,
                        request: kind,
                        text: "no such epoch",
                    });
                }
                self.acknowledged.push(epoch);
                self.older = false;
                line.send(&Acknowledged { epoch })
            }
            types::RING => {
                let request: RingRequest = frame::decode(&frame).unwrap();
                self.note(&format!("ring {}", request.vcpu));
                self.seen.lock().unwrap().rings.push(request);
                let ring = self.script.ring.clone().unwrap();
                if let Some((capacity, each)) = ring.live {
                    self.looks += 1;
                    let written = each * self.looks;
                    let position = request.position;
                    return line.write(&ring::live(request.vcpu, capacity, written, position));
                }
                if let Some((head, runs)) = ring.goes_on {
                    line.send(&RingHead { oldest: 0, ..head })?;
                    line.write(&runs[1 + request.position as usize])?;
                    return match request.position < head.next {
                        true => Err(std::io::ErrorKind::ConnectionAborted.into()),
                        false => Ok(()),
                    };
                }
                let records = &ring.records[request.vcpu as usize];
                match ring.closes_after {
                    Some(length) => {
                        line.write(&records[..length])?;
                        Err(std::io::ErrorKind::ConnectionAborted.into())
                    }
                    None => line.write(records),
                }
            }
            types::STACKS => {
                let request: Stacks = frame::decode(&frame).unwrap();
                let ring = self.script.ring.clone().unwrap();
                self.note("stacks");
                if ring.live.is_some() {
                    let epoch = self.newest();
                    return line.write(&stacks(&self.script, epoch, request.vcpu, request.known));
                }
                line.write(&ring.stacks[request.vcpu as usize])
            }
            types::EVENT_NAMES => {
                let ring = self.script.ring.clone().unwrap();
                line.write(&ring.names)
            }
            other => panic!("the client sent a message of type {other:#06x}"),
        }
    }

    /// The epoch that waits, or the next one.
    fn newest(&self) -> u64 {
        let done = self.acknowledged.iter().filter(|epoch| **epoch != OLDER);
        match done.count() as u64 {
            0 => NEWER,
            done => NEWER + done + self.script.elsewhere,
        }
    }

    fn note(&self, word: &str) {
        self.seen.lock().unwrap().log.push(word.into());
    }
}

struct Line {
    stream: TcpStream,
    budget: Option<usize>,
    input: Vec<u8>,
    seal: Option<Seal>,
}

impl Line {
    fn request(&mut self) -> std::io::Result<Option<(u16, Vec<u8>)>> {
        loop {
            if let Some(frame) = frame::split(&self.input).unwrap() {
                let (kind, body, length) = (frame.kind, frame.body.to_vec(), frame.length());
                self.input.drain(..length);
                return Ok(Some((kind, body)));
            }
            let mut buffer = [0; 1024];
            let read = read_once(&mut self.stream, &mut buffer)?;
            if read == 0 {
                return Ok(None);
            }
            match &mut self.seal {
                None => self.input.extend_from_slice(&buffer[..read]),
                Some(seal) => self.input.extend(seal.open(&buffer[..read])),
            }
        }
    }

    fn send<'m, M: Message<'m>>(&mut self, message: &M) -> std::io::Result<()> {
        self.write(&encode(message))
    }

    fn write(&mut self, bytes: &[u8]) -> std::io::Result<()> {
        match &mut self.seal {
            None => self.write_raw(bytes),
            Some(seal) => {
                let records = seal.seal(bytes);
                self.write_raw(&records)
            }
        }
    }

    fn write_raw(&mut self, bytes: &[u8]) -> std::io::Result<()> {
        let allowed = self.budget.unwrap_or(usize::MAX).min(bytes.len());
        self.stream.write_all(&bytes[..allowed])?;
        if let Some(budget) = &mut self.budget {
            *budget -= allowed;
        }
        if allowed < bytes.len() {
            return Err(std::io::ErrorKind::BrokenPipe.into());
        }
        Ok(())
    }
}
