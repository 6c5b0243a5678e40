//! All of it at once.

use anyhow::{Context as _, Result};
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use super::audit::{Audit, Sum};
use super::downloads::{Counted, Downloads};
use super::events::{EVENTS, Followed, Follower};
use super::guest::Guest;
use super::keeper::{DOWNLOADS, Keeper};
use super::latency::Latencies;
use super::ledger::Ledger;
use super::others::{Ended, OTHERS, Others};
use super::peers::{Overheard, Peer, Visit};
use super::phase::{Phase, Phases};
use super::program::Program;
use super::proxy::FaultyLine;
use super::random::Random;
use super::rightful::{CLIENTS, Comers, Entries};
use super::samples::Sample;
use super::target::{Keys, Target};

pub const PEERS: &str = "peers";

/// The plan of a soak.
#[derive(Debug, Clone)]
pub struct Plan {
    pub duration: Duration,
    /// The seed of all random choices.
    pub seed: u64,
    pub keyed: bool,
    pub guest: PathBuf,
    pub client: PathBuf,
    /// The folder for downloads, which exists.
    pub folder: PathBuf,
}

/// The results of a soak.
#[derive(Debug)]
pub struct Outcome {
    pub(crate) plan: Plan,
    /// Once a minute, or more often where it is short; the last one when everybody had left.
    pub samples: Vec<Sample>,
    pub latencies: Latencies,
    /// The times until a rightful client gets in.
    pub entries: Entries,
    pub ledger: Arc<Ledger>,
    pub(crate) audit: Audit,
    /// The sums of each always-on recording.
    pub recordings: Vec<(u64, Sum)>,
    /// The sums of each other recording, those that were thrown away left out.
    pub others: Vec<(u64, Sum)>,
    pub(crate) discarded: u64,
    pub followed: Followed,
    /// Requests to the guest's own service.
    pub(crate) requests: u64,
    /// The number of cuts; see [`FaultyLine::cuts`].
    pub(crate) cuts: u64,
    /// The problems found.
    pub problems: Vec<String>,
}

/// The number of hostile peers at a time.
const HOSTILE: u64 = 5;
/// The number of rightful clients that come and go at a time.
const COMERS: u64 = 2;
/// The longest phase.
const PHASE: Duration = Duration::from_secs(15);
/// The longest recording.
const SHIFT: Duration = Duration::from_secs(300);

pub fn run(plan: Plan) -> Result<Outcome> {
    let keys = plan.keyed.then(|| Keys::draw(&mut Random::stream(plan.seed, 0)));
    let mut guest = Guest::start(&plan.guest, "service", &plan.folder, keys.clone())?;
    let decoy = Guest::start(&plan.guest, "idle", &plan.folder, keys.clone())?;
    let program =
        Program::new(&plan.client, &plan.folder, keys.as_ref()).context("writing the keys")?;
    let downloads = plan.folder.join("downloads");
    fs::create_dir_all(&downloads).context("making a folder for downloads")?;
    let ledger = Arc::new(Ledger::default());
    let faulty = FaultyLine::to(
        guest.target.address,
        plan.keyed,
        Random::stream(plan.seed, 1).number(),
        Arc::clone(&ledger),
    )
    .context("making a faulty line")?;
    let soak = Soak {
        guest: &guest,
        decoy: &decoy.target,
        program: &program,
        faulty: &faulty,
        downloads: &downloads,
        ledger: &ledger,
        seed: plan.seed,
        duration: plan.duration,
        phases: Phases::default(),
        overheard: Overheard::default(),
        stop: AtomicBool::new(false),
        peers_stop: AtomicBool::new(false),
        latencies: Latencies::default(),
        entries: Entries::default(),
        problems: Mutex::default(),
    };
    let Seen { mut samples, counted, mut others, mut followed, requests } = soak.all();
    let Soak { latencies, entries, problems, .. } = soak;
    let mut problems = problems.into_inner().unwrap_or_else(PoisonError::into_inner);
    match calm(&guest, plan.duration) {
        Ok(sample) => samples.push(sample),
        Err(error) => problems.push(format!("at the end: {error}")),
    }
    if !guest.is_alive() {
        problems.push("the guest has ended".into());
    }
    guest.end()?;
    problems.append(&mut others.problems);
    problems.append(&mut followed.problems);
    problems.extend(growth(&samples));
    let mut audit = Audit::folder(&downloads)?;
    let mut compare = |counted: &Counted| {
        let sum = audit.compare(counted.recording, &counted.counters);
        (counted.recording, sum)
    };
    let recordings = counted.iter().map(&mut compare).collect();
    let others_sums = others.counted.iter().map(&mut compare).collect();
    problems.append(&mut audit.wrong);
    let cuts = faulty.cuts();
    drop(faulty);
    Ok(Outcome {
        plan,
        samples,
        latencies,
        entries,
        ledger,
        audit,
        recordings,
        others: others_sums,
        discarded: others.discarded,
        followed,
        requests,
        cuts,
        problems,
    })
}

/// Problems with growth of the guest: memory since the first quarter, by when all of it was used
/// once, descriptors since the start, and sessions that are left at the end.
fn growth(samples: &[Sample]) -> Vec<String> {
    /// The guest's own service keeps documents, whose sizes differ.
    const MEMORY_KIB: u64 = 2_048;
    const DESCRIPTORS: usize = 2;
    let (Some(first), Some(quarter), Some(last)) =
        (samples.first(), samples.get(samples.len() / 4), samples.last())
    else {
        return vec!["nothing was looked at".into()];
    };
    let mut grown = Vec::new();
    let [before, after] = [quarter, last].map(|sample| sample.footprint.resident_kib);
    // A short soak is over before everything was used once.
    if after > before + MEMORY_KIB && last.at >= Duration::from_secs(600) {
        grown.push(format!("the guest's memory grew from {before} to {after} KiB"));
    }
    let [before, after] = [first, last].map(|sample| sample.footprint.descriptors);
    if after > before + DESCRIPTORS {
        grown.push(format!("the guest's descriptors grew from {before} to {after}"));
    }
    if last.sessions != 1 {
        let sessions = last.sessions - 1;
        grown.push(format!("{sessions} sessions were left when everybody had gone"));
    }
    grown
}

/// Waits until everybody has left, and looks once more.
fn calm(guest: &Guest, at: Duration) -> Result<Sample> {
    // Longer than an agent keeps anybody who does not read.
    let end = Instant::now() + Duration::from_secs(70);
    loop {
        let sample = Sample::take(guest, at)?;
        if sample.sessions == 1 || Instant::now() > end {
            return Ok(sample);
        }
        thread::sleep(Duration::from_millis(100));
    }
}

/// The results of the threads.
struct Seen {
    samples: Vec<Sample>,
    counted: Vec<Counted>,
    others: Ended,
    followed: Followed,
    requests: u64,
}

struct Soak<'s> {
    guest: &'s Guest,
    decoy: &'s Target,
    program: &'s Program,
    faulty: &'s FaultyLine,
    downloads: &'s Path,
    ledger: &'s Ledger,
    seed: u64,
    duration: Duration,
    phases: Phases,
    overheard: Overheard,
    /// Stops all that is rightful.
    stop: AtomicBool,
    /// Stops hostile peers: they leave first.
    peers_stop: AtomicBool,
    latencies: Latencies,
    entries: Entries,
    problems: Mutex<Vec<String>>,
}

impl Soak<'_> {
    fn all(&self) -> Seen {
        let place = Mutex::new(());
        thread::scope(|scope| {
            let keeper = scope.spawn(|| {
                let keeper = Keeper {
                    downloads: self.downloads_as(DOWNLOADS),
                    place: &place,
                    stop: &self.stop,
                    shift: SHIFT.min(self.duration / 3),
                };
                keeper.keep(&mut Random::stream(self.seed, 2))
            });
            let others = scope.spawn(|| {
                let others = Others {
                    downloads: self.downloads_as(OTHERS),
                    place: &place,
                    stop: &self.stop,
                };
                others.keep(&mut Random::stream(self.seed, 3))
            });
            let follower = scope.spawn(|| {
                let follower = Follower { downloads: self.downloads_as(EVENTS), stop: &self.stop };
                follower.follow(&mut Random::stream(self.seed, 4))
            });
            let load = self.guest.service.map(|service| {
                scope.spawn(move || self.latencies.drive(service, &self.phases, &self.stop))
            });
            let entrant = scope.spawn(|| {
                let target = &self.guest.target;
                self.entries.keep_coming(target, &self.phases, &self.stop)
            });
            let comers: Vec<_> = (0..COMERS)
                .map(|number| {
                    scope.spawn(move || {
                        let comers =
                            Comers { downloads: self.downloads_as(CLIENTS), stop: &self.stop };
                        comers.keep_coming(&mut Random::stream(self.seed, 10 + number))
                    })
                })
                .collect();
            let hostile: Vec<_> =
                (0..HOSTILE).map(|number| scope.spawn(move || self.hostile(number))).collect();
            let samples = self.watch();
            self.peers_stop.store(true, Ordering::Relaxed);
            self.phases.set(Phase::Quiet);
            for peer in hostile {
                self.join("a hostile peer", peer.join().map(anyhow::Ok));
            }
            self.stop.store(true, Ordering::Relaxed);
            let counted = self.join("the always-on recording", keeper.join());
            let others = self.join("other recordings", others.join());
            let followed = self.join("the guest's own events", follower.join());
            let requests = match load {
                Some(load) => self.join("the guest's own service", load.join()),
                None => None,
            };
            self.join("a client that comes in", entrant.join());
            for comer in comers {
                self.join("clients that come and go", comer.join());
            }
            Seen {
                samples,
                counted: counted.unwrap_or_default(),
                others: others.unwrap_or_default(),
                followed: followed.unwrap_or_default(),
                requests: requests.unwrap_or(0),
            }
        })
    }

    fn downloads_as(&self, subject: &'static str) -> Downloads<'_> {
        Downloads {
            program: self.program,
            target: &self.guest.target,
            faulty: self.faulty.address,
            folder: self.downloads,
            ledger: self.ledger,
            subject,
        }
    }

    /// Goes through the phases and looks once a minute, until the time is over and a client has
    /// come in during an attack: on a busy machine the attacks of a short soak may pass between two
    /// clients.
    fn watch(&self) -> Vec<Sample> {
        let began = Instant::now();
        let phase = PHASE.min(self.duration / 8);
        let every = Duration::from_secs(60).min(self.duration / 6);
        let mut samples = Vec::new();
        let mut next = Duration::ZERO;
        let came_in = || self.entries.of(Phase::Attack).0 > 0;
        while began.elapsed() < self.duration || (!came_in() && began.elapsed() < self.duration * 4)
        {
            let at = began.elapsed();
            // Half of the time under attack.
            let part = at.as_millis() / phase.as_millis().max(1) % 4;
            self.phases.set(match part {
                0 => Phase::Quiet,
                1 => Phase::Elsewhere,
                _ => Phase::Attack,
            });
            if at >= next {
                next += every;
                match Sample::take(self.guest, at) {
                    Ok(sample) => {
                        eprintln!("{sample}");
                        samples.push(sample);
                    }
                    Err(error) => self.problem(format!("after {at:?}: {error}")),
                }
            }
            thread::sleep(Duration::from_millis(20));
        }
        samples
    }

    /// Visits as one hostile peer after the other.
    fn hostile(&self, number: u64) {
        let mut random = Random::stream(self.seed, 100 + number);
        let target = &self.guest.target;
        let kinds = Peer::all_for(target);
        while !self.peers_stop.load(Ordering::Relaxed) {
            let (target, phase) = match self.phases.current() {
                Phase::Quiet => {
                    thread::sleep(Duration::from_millis(20));
                    continue;
                }
                Phase::Elsewhere => (self.decoy, Phase::Elsewhere),
                Phase::Attack => (target, Phase::Attack),
            };
            let peer = random.pick(&kinds);
            let visit = Visit { target, overheard: &self.overheard, stop: &self.peers_stop };
            for end in peer.visit(&visit, &mut random) {
                if phase == Phase::Attack {
                    self.ledger.count(PEERS, peer.name(), end.text());
                }
                if peer.got_in(end) {
                    self.problem(format!("{}: {}", peer.name(), end.text()));
                }
            }
            thread::sleep(Duration::from_millis(random.below(30)));
        }
    }

    fn problem(&self, problem: String) {
        // So many say enough.
        const MOST: usize = 100;
        let mut problems = self.problems.lock().unwrap_or_else(PoisonError::into_inner);
        if problems.len() < MOST {
            eprintln!("problem: {problem}");
            problems.push(problem);
        }
    }

    /// The result of a thread; its failure is a problem.
    fn join<T, E: std::fmt::Display>(
        &self,
        who: &str,
        ended: thread::Result<Result<T, E>>,
    ) -> Option<T> {
        match ended {
            Ok(Ok(done)) => Some(done),
            Ok(Err(error)) => {
                self.problem(format!("{who}: {error}"));
                None
            }
            Err(_) => {
                self.problem(format!("{who}: its thread panicked"));
                None
            }
        }
    }
}
