//! Random lives: what the client shows of a time is what the agent counted in it.
//!
//! A guest with a simulated clock works, waits and has no CPU, on vCPUs that come and go, while
//! recordings of all modes begin, are dumped and end, and files are fetched late. Each life is led
//! twice: with a ring that keeps everything, and with one that does not. A window over a whole
//! recording has its counts, also where a file of it is missing; windows that part it sum to it; and
//! what the smaller ring covers is the same as in the larger one.
#![allow(unsafe_code)]

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::io::{ErrorKind, Read as _, Write as _};
use std::mem::MaybeUninit;
use std::net::{TcpListener, TcpStream};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::thread;

use unikprof_agent::{
    Access, Agent, Config, EventName, Mapping, Platform, Registers, Runstate, Service, SessionId,
    SpanId, minimum_bytes, ring_bytes,
};
use unikprof_link::interrupt::Interrupt;
use unikprof_link::record::{self, Keep, Mode, Patience, Request, Session, Settings};
use unikprof_profile::profile::{Profile, VcpuStats};
use unikprof_profile::recording::{Reading, Recording};
use unikprof_profile::timeline::{SpanFilter, Window};

const VCPUS: usize = 2;
const MS: u64 = 1_000_000;
const CODE: u64 = 0x40_0000;

/// The state of a vCPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Does {
    Run,
    Wait,
    /// It would run, and has no CPU.
    Starve,
    /// Its thread does not exist.
    Nothing,
}

/// A platform whose clock the test advances.
struct Simulated {
    now_ns: Cell<u64>,
    vcpu: Cell<usize>,
    does: Cell<[Does; VCPUS]>,
    times: RefCell<[Runstate; VCPUS]>,
    stack: RefCell<Option<Range<u64>>>,
    random: Cell<u64>,
}

impl Simulated {
    fn advance(&self, ns: u64) {
        self.now_ns.set(self.now_ns.get() + ns);
        let mut times = self.times.borrow_mut();
        for (does, times) in self.does.get().into_iter().zip(times.iter_mut()) {
            *match does {
                Does::Run => &mut times.running_ns,
                Does::Wait => &mut times.blocked_ns,
                Does::Starve => &mut times.runnable_ns,
                Does::Nothing => &mut times.offline_ns,
            } += ns;
        }
    }

    fn set(&self, vcpu: usize, does: Does) {
        let mut all = self.does.get();
        all[vcpu] = does;
        self.does.set(all);
    }

    fn is(&self, does: Does) -> bool {
        self.does.get()[self.vcpu.get()] == does
    }

    /// Calls `body` with the registers of a stack of functions, leaf first.
    fn on_stack<T>(&self, frames: &[u64], body: impl FnOnce(&Registers) -> T) -> T {
        let mut words = vec![0_u64; 2 * frames.len()];
        let start = words.as_mut_ptr().expose_provenance() as u64;
        for (index, frame) in frames.iter().enumerate().skip(1) {
            let record = 2 * (index - 1);
            words[record] =
                if index + 1 < frames.len() { start + 8 * (record as u64 + 2) } else { 0 };
            words[record + 1] = CODE + frame;
        }
        let fp = if frames.len() > 1 { start } else { 0 };
        self.stack.replace(Some(start..start + 8 * words.len() as u64));
        let registers = Registers::new(CODE + frames[0], start, fp);
        let answer = body(&registers);
        self.stack.take();
        std::hint::black_box(&words);
        answer
    }
}

// SAFETY: the only bounds are those given to `on_stack`, of a stack that outlives the agent's call.
unsafe impl Platform for Simulated {
    fn now_ns(&self) -> u64 {
        self.now_ns.get()
    }
    fn work_ns(&self) -> u64 {
        0
    }
    fn wall_clock_ns(&self) -> Option<u64> {
        Some(1_800_000_000_000_000_000 + self.now_ns.get())
    }
    fn vcpu(&self) -> Option<u32> {
        Some(self.vcpu.get() as u32)
    }
    fn running_ns(&self, vcpu: u32) -> u64 {
        self.times.borrow()[vcpu as usize].running_ns
    }
    fn blocked_ns(&self, vcpu: u32) -> u64 {
        self.times.borrow()[vcpu as usize].blocked_ns
    }
    fn runstate(&self, vcpu: u32) -> Option<Runstate> {
        Some(self.times.borrow()[vcpu as usize])
    }
    fn kick(&self, _: u32) {}
    fn stack_bounds(&self, sp: u64) -> Option<Range<u64>> {
        self.stack.borrow().clone().filter(|bounds| bounds.contains(&sp))
    }
    fn random(&self) -> Option<u64> {
        self.random.set(self.random.get() + 1);
        Some(self.random.get().wrapping_mul(0x9e37_79b9_7f4a_7c15))
    }
}

/// A guest, its server and its client's files.
struct World<'a, 'm> {
    agent: &'a Agent<'m, Simulated>,
    service: Service<'a, 'm, Simulated>,
    listener: TcpListener,
    connections: Vec<(TcpStream, SessionId, Vec<u8>)>,
    session: Option<Session>,
    folder: &'a Path,
    /// Whether each vCPU is inside its block call.
    blocked: [bool; VCPUS],
    span: EventName,
    /// The open spans of each vCPU.
    open: [Vec<SpanId>; VCPUS],
    running: Vec<Running>,
    ended: Vec<Running>,
}

#[derive(Clone)]
struct Running {
    id: u64,
    name: &'static str,
    ends: bool,
    files: Vec<PathBuf>,
}

impl World<'_, '_> {
    /// Serves the agent while a client does something on a thread of its own. The guest's clock
    /// stands still.
    fn client<T: Send>(&mut self, work: impl FnOnce(&mut Session) -> T + Send) -> T {
        self.agent.platform().advance(1_000);
        let address = self.listener.local_addr().unwrap().to_string().parse().unwrap();
        let mut session = self.session.take();
        let (session, answer) = thread::scope(|scope| {
            let client = scope.spawn(move || {
                let session = session.take().unwrap_or_else(|| {
                    Session::open(address, Patience::default(), Interrupt::default()).unwrap()
                });
                let mut session = session;
                let answer = work(&mut session);
                (session, answer)
            });
            while !client.is_finished() {
                self.serve();
            }
            client.join().unwrap()
        });
        self.session = Some(session);
        answer
    }

    fn serve(&mut self) {
        self.service.advance();
        match self.listener.accept() {
            Ok((stream, _)) => {
                stream.set_nonblocking(true).unwrap();
                let id = self.service.open().unwrap();
                self.connections.push((stream, id, Vec::new()));
            }
            Err(error) => assert_eq!(error.kind(), ErrorKind::WouldBlock),
        }
        let mut moved = false;
        for (stream, id, received) in &mut self.connections {
            let mut buffer = [0; 4096];
            if let Ok(length) = stream.read(&mut buffer) {
                received.extend_from_slice(&buffer[..length]);
            }
            let taken = self.service.receive(*id, received);
            received.drain(..taken);
            let length = self.service.transmit(*id, &mut buffer);
            let mut sent = 0;
            while sent < length {
                match stream.write(&buffer[sent..length]) {
                    Ok(length) => sent += length,
                    Err(error) => assert_eq!(error.kind(), ErrorKind::WouldBlock),
                }
            }
            moved |= taken + length > 0;
        }
        if !moved {
            thread::yield_now();
        }
    }

    fn fetch(&mut self, at: usize, stops: bool) {
        let one = &self.running[at];
        let path = self.folder.join(format!("{}-{}.unikprof", one.id, one.files.len()));
        let recording = one.id;
        let request = if stops { Request::Stop { recording } } else { Request::Dump { recording } };
        let to = path.clone();
        let outcome = self.client(move |session| record::fetch(session, request, &to, &mut ()));
        let outcome = outcome.unwrap();
        assert!(outcome.incomplete.is_none() && outcome.unacknowledged.is_none(), "{outcome:?}");
        self.running[at].files.push(path);
        if stops {
            let one = self.running.remove(at);
            self.ended.push(one);
        }
    }

    /// One step of the life.
    fn step(&mut self, random: &mut fastrand::Rng) {
        let step = random.u64(1..3 * MS);
        let platform = self.agent.platform();
        let vcpu = platform.vcpu.get();
        let stack: Vec<u64> = (0..random.usize(1..4)).map(|_| random.u64(0..400)).collect();
        let is_blocked = self.blocked[vcpu];
        let exists = !platform.is(Does::Nothing);
        match random.u32(0..24) {
            0 | 1 if self.running.len() < 3 => {
                let is_free = |name: &&str| self.running.iter().all(|one| one.name != *name);
                let name = ["a", "b", "c"].into_iter().find(is_free).unwrap();
                let mode = random.choice([Mode::Cpu, Mode::Wall, Mode::OffCpu]).unwrap();
                let duration_ns = if random.bool() { 0 } else { step * 40 };
                let period_ns = random.choice([MS / 3, MS]).unwrap();
                let keep = random.choice([Keep::All, Keep::Newest]).unwrap();
                let settings = Settings {
                    name: name.into(),
                    mode,
                    duration_ns,
                    period_ns,
                    keep,
                    ..Settings::default()
                };
                let started = self.client(move |session| session.start(&settings)).unwrap();
                let ends = duration_ns != 0;
                self.running.push(Running { id: started.recording, name, ends, files: Vec::new() });
            }
            2 if !self.running.is_empty() && random.u32(0..4) == 0 => {
                let at = random.usize(0..self.running.len());
                let stops = self.running[at].ends || random.u32(0..3) == 0;
                self.fetch(at, stops);
            }
            3 => {
                platform.vcpu.set(random.usize(0..VCPUS));
            }
            4 if !is_blocked && random.u32(0..4) == 0 => {
                platform.set(vcpu, if exists { Does::Nothing } else { Does::Run });
            }
            5..8 if exists && !is_blocked => {
                // A timer that is due is delivered before the guest blocks: it ends recordings.
                if self.running.iter().any(|one| one.ends) {
                    platform.on_stack(&stack, |registers| _ = self.agent.on_tick(Some(registers)));
                }
                match random.u32(0..4) {
                    0 => self.agent.on_block(None),
                    _ => platform.on_stack(&stack, |registers| {
                        self.agent.on_block(Some(registers));
                    }),
                }
                self.blocked[vcpu] = true;
                platform.set(vcpu, Does::Wait);
            }
            8..11 if is_blocked => {
                platform.set(vcpu, Does::Run);
                self.agent.on_wake();
                self.blocked[vcpu] = false;
            }
            11 if exists => platform.set(vcpu, random.choice([Does::Run, Does::Starve]).unwrap()),
            12 if is_blocked => platform.set(vcpu, Does::Wait),
            13 if exists => _ = self.agent.on_tick(None),
            14..17 if exists && !is_blocked => {
                let deadline_ns = self.agent.deadline().unwrap_or(0);
                platform.set(vcpu, Does::Run);
                platform.advance(deadline_ns.saturating_sub(platform.now_ns()).min(5 * MS));
                platform.on_stack(&stack, |registers| _ = self.agent.on_tick(Some(registers)));
            }
            17 if exists => {
                platform.on_stack(&stack, |registers| _ = self.agent.on_tick(Some(registers)));
            }
            18 => self.open[vcpu].push(self.agent.span_begin(self.span)),
            19 => {
                if let Some(id) = self.open[vcpu].pop() {
                    self.agent.span_end(self.span, id);
                }
            }
            20 => self.serve(),
            // Some waits last for seconds.
            21 if is_blocked && random.u32(0..20) == 0 => platform.advance(step * 1_000),
            _ => platform.advance(step),
        }
    }
}

/// Leads a life; returns the recordings with their files.
fn live(seed: u64, memory: usize, records: usize, folder: &Path) -> Vec<Running> {
    let mappings = [Mapping {
        start: CODE,
        end: CODE + 0x10_0000,
        file_offset: 0,
        build_id: &[0xab; 20],
        path: "guest.elf",
    }];
    let config = Config {
        vcpus: VCPUS as u32,
        recordings: 3,
        mappings: &mappings,
        guest_name: Some("lives"),
        guest_id: None,
        platform_name: "simulated",
        reachable_when_busy: false,
    };
    let platform = Simulated {
        now_ns: Cell::new(1_000 * MS),
        vcpu: Cell::new(0),
        does: Cell::new([Does::Run; VCPUS]),
        times: RefCell::default(),
        stack: RefCell::default(),
        random: Cell::new(seed),
    };
    let mut own = vec![MaybeUninit::uninit(); memory];
    let mut ring = vec![MaybeUninit::uninit(); ring_bytes(VCPUS, records)];
    let agent = Agent::new(platform, config, &mut own).unwrap().with_ring(&mut ring);
    let mut service = Service::new(&agent, Access::Open).unwrap();
    service.set_cpu_share(1_000);
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    listener.set_nonblocking(true).unwrap();
    let mut world = World {
        agent: &agent,
        service,
        listener,
        connections: Vec::new(),
        session: None,
        folder,
        blocked: [false; VCPUS],
        span: agent.event_name("span").unwrap(),
        open: Default::default(),
        running: Vec::new(),
        ended: Vec::new(),
    };
    let mut random = fastrand::Rng::with_seed(seed);
    (0..2_000).for_each(|_| world.step(&mut random));
    while !world.running.is_empty() {
        world.fetch(0, true);
    }
    world.ended
}

type ByVcpu = BTreeMap<u32, [u64; 10]>;

/// The counters that the ring tells of. What has aged was recorded when its record was written.
fn told(profile: &Profile) -> ByVcpu {
    let of = |vcpu: &VcpuStats| {
        let c = &vcpu.counters;
        let recorded = c.recorded + c.aged;
        let blocked = c.blocked + c.blocked_aged;
        let ticks = [c.ticks, recorded, c.overflow, c.lost, c.masked, c.idle, c.late];
        let waits = [c.blocks, blocked, c.blocked_overflow];
        (vcpu.vcpu, std::array::from_fn(|at| if at < 7 { ticks[at] } else { waits[at - 7] }))
    };
    profile.vcpus().iter().map(of).collect()
}

/// The counts of a window of a recording.
fn counts(recording: &Recording, window: Window, inside: Option<&str>) -> ByVcpu {
    let (timeline, of) = (recording.timeline.as_ref().unwrap(), recording.span.unwrap());
    let part = timeline.profile(&recording.profile, &of, window, inside.map(SpanFilter::named));
    let stacks: u64 = part.samples().iter().map(|sample| sample.count).sum();
    let sum = part.counters();
    let blocked = sum.blocked + sum.blocked_aged;
    assert_eq!(stacks, sum.recorded + sum.aged + blocked, "each count has a stack");
    told(&part)
}

/// Moments in a window, in order, its ends among them.
fn cuts(random: &mut fastrand::Rng, window: Window) -> Vec<u64> {
    let mut cuts = vec![window.from_ns, window.to_ns];
    cuts.extend((0..random.usize(1..6)).map(|_| random.u64(window.from_ns..=window.to_ns)));
    cuts.sort_unstable();
    cuts
}

#[test]
fn every_window_has_what_was_counted_in_it() {
    let mut random = fastrand::Rng::with_seed(7);
    let (mut compared, mut uncovered, mut lacking) = (0, 0, 0);
    for seed in 0..12 {
        let memory = if seed % 3 == 0 { 0 } else { 1 << 18 };
        let memory = memory.max(minimum_bytes(VCPUS, 3));
        let folders = [(); 2].map(|()| tempfile::tempdir().unwrap());
        let whole = live(seed, memory, 100_000, folders[0].path());
        let part = live(seed, memory, 64 + 24 * seed as usize, folders[1].path());
        assert_eq!(whole.len(), part.len());
        for (one, cut) in whole.iter().zip(&part) {
            let about = format!("seed {seed}, recording {}", one.id);
            let all = Recording::open_all(&one.files, Reading::Strict).unwrap();
            let counted = told(&all.profile);
            assert_eq!(counts(&all, Window::ALL, None), counted, "{about}");
            let span = all.span.unwrap().window;
            let (mut sum, cuts) = (ByVcpu::new(), cuts(&mut random, span));
            for pair in cuts.windows(2).filter(|pair| pair[0] < pair[1]) {
                for (vcpu, counters) in counts(&all, Window::new(pair[0], pair[1]), None) {
                    let sum = sum.entry(vcpu).or_default();
                    *sum = std::array::from_fn(|at| sum[at] + counters[at]);
                }
            }
            assert_eq!(sum, counted, "{about}");

            // What the rings hold of the time of a file that is missing is not counted.
            for lost in (0..one.files.len()).filter(|_| one.files.len() > 2) {
                let files: Vec<PathBuf> = [&one.files[..lost], &one.files[lost + 1..]].concat();
                let rest = Recording::open_all(&files, Reading::Strict).unwrap();
                let shown = counts(&rest, Window::ALL, None);
                assert_eq!(shown, told(&rest.profile), "{about} without file {lost}");
                lacking += 1;
            }

            let few = Recording::open_all(&cut.files, Reading::Strict).unwrap();
            assert_eq!(told(&few.profile), counted, "{about}: both lives are the same");
            let rings = few.timeline.as_ref().unwrap().rings();
            let shown = counts(&few, Window::ALL, None);
            let is_covered = rings.iter().all(|ring| ring.covered(span) == [span]);
            if is_covered {
                assert_eq!(shown, counted, "{about}");
            } else {
                let timeline = few.timeline.as_ref().unwrap();
                let part = timeline.profile(&few.profile, &few.span.unwrap(), span, None);
                let warnings = &part.recording().warnings;
                let is_told = |warning: &String| {
                    warning.contains("the ring begins at") || warning.contains("not covered")
                };
                assert!(warnings.iter().any(is_told), "{about}: {warnings:?}");
                uncovered += 1;
            }
            let held = Window::new(few.timeline.as_ref().unwrap().held_since(), u64::MAX);
            for (ring, number) in rings.iter().zip(0..) {
                for covered in ring.covered(span) {
                    let from_ns = covered.from_ns.max(held.from_ns);
                    if from_ns + 2 >= covered.to_ns {
                        continue;
                    }
                    let from_ns = random.u64(from_ns..covered.to_ns - 1);
                    let window = Window::new(from_ns, random.u64(from_ns + 1..=covered.to_ns));
                    let (expected, found) =
                        (counts(&all, window, None), counts(&few, window, None));
                    assert_eq!(found[&number], expected[&number], "{about}: {window:?}");
                    // Spans whose ends are lost are not known to go on, and none is invented.
                    let [expected, found] =
                        [&all, &few].map(|file| counts(file, window, Some("span"))[&number]);
                    let more = found.iter().zip(expected).any(|(found, whole)| *found > whole);
                    assert!(!more, "{about}: {found:?} of {expected:?} in spans in {window:?}");
                    compared += 1;
                }
            }
        }
    }
    assert!(compared > 100 && uncovered > 10 && lacking > 10, "{compared}, {uncovered}, {lacking}");
}

/// Files of recordings that follow each other count what each of them counts, and no span that
/// ended between them.
#[test]
fn files_of_several_recordings_have_the_counts_and_the_spans_of_each() {
    let mut merged = 0;
    for seed in 20..26 {
        let folder = tempfile::tempdir().unwrap();
        let all = live(seed, 1 << 18, 100_000, folder.path());
        let open = |files: &[PathBuf]| Recording::open_all(files, Reading::Strict);
        for (at, first) in all.iter().enumerate() {
            for next in &all[at + 1..] {
                // Most overlap, or are of different modes or rates.
                let Ok(both) = open(&[&first.files[..], &next.files].concat()) else {
                    continue;
                };
                let about = format!("seed {seed}, recordings {} and {}", first.id, next.id);
                assert_eq!(counts(&both, Window::ALL, None), told(&both.profile), "{about}");
                let ended = |recording: &Recording, window| {
                    let tables = recording.timeline.as_ref().unwrap().spans(window);
                    tables.iter().map(|table| table.times.count() + table.cut).sum::<u64>()
                };
                // The end of one may be noticed late: the merged timeline has when it was counted.
                let counted = both.timeline.as_ref().unwrap().recordings();
                let of_one = |one: &Running| {
                    let span = counted.iter().find(|span| span.recording == Some(one.id)).unwrap();
                    ended(&open(&one.files).unwrap(), span.window)
                };
                let together = ended(&both, both.span.unwrap().window);
                assert_eq!(together, of_one(first) + of_one(next), "{about}");
                merged += 1;
            }
        }
    }
    assert!(merged > 10, "{merged}");
}
