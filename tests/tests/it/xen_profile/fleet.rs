//! A fleet with keys, end to end: a guest on Xen and two hosted ones, served and collected at the
//! same time.

use std::fs;
use std::net::SocketAddr;
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::thread;
use std::time::{Instant, SystemTime};

use serde_json::{Value, json};
use tempfile::TempDir;
use unikprof_client::exit_code;
use unikprof_test_kit::engines::{Failure, Receiver, functions};
use unikprof_tests::soak::audit::{Audit, instance};
use unikprof_tests::soak::downloads::stop;
use unikprof_tests::soak::target::{KeyFiles, Target};

use crate::xen_profile::harness::{
    Client, Collector, Fleet, Guest, HostedGuest, bad_answers, client_at, expect_at, fetched,
    is_delivered, on, seconds, ticks, wait_until,
};
use crate::xen_profile::keys::{KEYED, keys};

/// The guests as the audit orders them; the first two are hosted.
const GUESTS: [&str; 3] = [MORTAL, "steady", "xen"];
const MORTAL: &str = "mortal";
const TARGETS: [&str; 3] = ["pyroscope", "parca", "folder"];

/// The prefix of the service's functions, which all of them run.
const SERVICE: &str = "unikprof_demo_service::";

const SECOND_NS: u64 = 1_000_000_000;

/// `UNIKPROF_COLLECT_SECONDS` makes the faults go on for longer; the cases of `hosted collect::`
/// are its small ones.
#[test]
#[ignore = "by hand: takes five minutes of two processors, and more as it is asked"]
fn every_tick_is_somewhere_while_a_guest_engines_and_the_collector_fail() {
    on(&KEYED, |lab| {
        let folder = TempDir::with_prefix("unikprof-fleet-").unwrap();
        let files = KeyFiles::write(&keys(), folder.path()).unwrap();
        let key = fs::read_to_string(&files.control).unwrap();
        // No client's own port is on these addresses: a guest that starts again finds its port
        // free.
        let mortal = hosted(&files, "127.78.0.1:0");
        let steady = hosted(&files, "127.78.0.2:0");
        let xen = Guest::of_recording(lab, "keyed").address();
        let addresses = [mortal.address(), steady.address(), xen];
        let engines = [(); 2].map(|()| Receiver::start().unwrap());
        list(folder.path(), &addresses);
        without_lines(HostedGuest::program(), &folder.path().join("hosted"));
        without_lines(Guest::program(), &folder.path().join("unikernel"));
        let toml = fleet_toml(&engines);
        let fleet = Fleet::start(folder, "", &toml);
        for name in GUESTS {
            fleet.wait_for(name);
        }
        engines[0].fail_always(failure(500));
        let mut trial = Trial {
            collector: Collector::start(fleet.folder.path()),
            fleet: &fleet,
            clients: addresses.map(|address| client_at(address).with_key(&files.control)),
            engines,
            files,
            mortal: Some(mortal),
            deaths: 0,
        };
        let scrapes = Scrapes::default();
        thread::scope(|scope| {
            let _end = End(&scrapes.ended);
            scope.spawn(|| scrapes.keep_taking(&fleet));
            trial.begin();
            let began = Instant::now();
            loop {
                trial.answers_are_lost();
                trial.a_guest_dies();
                trial.an_engine_is_away();
                println!("after {:.0?}: {} deaths", began.elapsed(), trial.deaths);
                if began.elapsed() >= seconds() {
                    break;
                }
            }
            wait_until("profiles with names of each guest", || {
                let named = scrapes.named.iter().map(|count| count.load(Relaxed));
                named.min().filter(|least| *least >= 3)
            });
        });
        scrapes.expect_told(&fleet);
        trial.adds_up();
        let log = trial.collector.log();
        let log = log + &fleet.log() + &fleet.end();
        let secret = key.rsplit(':').next().unwrap().trim();
        assert!(!log.contains(secret), "a key was shown");
    });
}

fn hosted(files: &KeyFiles, address: &str) -> HostedGuest {
    let options = [
        Path::new("--view-key-file"),
        &files.view,
        Path::new("--control-key-file"),
        &files.control,
        Path::new("--listen"),
        Path::new(address),
    ];
    HostedGuest::start_with("service", &options)
}

/// Copies a program with its functions' names alone: reading all of its lines takes long where this
/// is not optimised.
fn without_lines(program: &Path, copy: &Path) {
    let copied = Command::new("objcopy")
        .arg("--strip-debug")
        .args([program, copy])
        .status()
        .expect("`objcopy`, which is needed for this case");
    assert!(copied.success());
}

/// Each guest is in a list of its own.
fn fleet_toml([pyroscope, parca]: &[Receiver; 2]) -> String {
    let mut toml = format!(
        "[defaults]\nkey-file = \"control.key\"\n\
         [[push]]\nkind = \"pyroscope\"\nurl = \"{}\"\n\
         [[push]]\nkind = \"parca\"\nurl = \"{}\"\n\
         [[push]]\nkind = \"folder\"\npath = \"recordings\"\n",
        pyroscope.url(),
        parca.url(),
    );
    for (name, image) in GUESTS.iter().zip(["hosted", "hosted", "unikernel"]) {
        toml += &format!("[[targets]]\nfile = \"{name}.json\"\nimage = \"{image}\"\n");
    }
    toml + "[collect]\nevery = \"1s\"\n"
}

/// Writes the lists of the guests, which are at these addresses; without any, all of them are
/// empty.
fn list(folder: &Path, addresses: &[SocketAddr]) {
    for (at, name) in GUESTS.iter().enumerate() {
        let address = addresses.get(at);
        let group = address.map(|it| json!({"targets": [it], "labels": {"instance": name}}));
        let groups: Vec<Value> = group.into_iter().collect();
        let (new, path) = (folder.join("new"), folder.join(format!("{name}.json")));
        fs::write(&new, json!(groups).to_string()).unwrap();
        fs::rename(new, path).unwrap();
    }
}

fn failure(status: u16) -> Failure {
    Failure::Status(status, Vec::new())
}

fn unix_ns() -> u64 {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    since.unwrap().as_nanos().try_into().unwrap()
}

/// The collector with all that fails around it.
struct Trial<'a> {
    fleet: &'a Fleet,
    collector: Collector,
    clients: [Client; 3],
    /// Pyroscope and Parca.
    engines: [Receiver; 2],
    files: KeyFiles,
    mortal: Option<HostedGuest>,
    deaths: u64,
}

impl Trial<'_> {
    /// One engine is away from the beginning: what it does not take waits for it, and goes to the
    /// others.
    fn begin(&mut self) {
        self.wait_for("ticks at the other targets", |guest| {
            let others = ["parca", "folder"].iter();
            let mut others = others.map(|target| ticks(guest, target, "accepted"));
            others.all(|accepted| accepted > 100) && ticks(guest, "pyroscope", "spooled") > 100
        });
        let log = self.collector.log();
        assert!(log.contains("pyroscope does not take profiles now"), "{log}");
        for client in &self.clients {
            let refused = client.connect(&["dump", "--name", "collect", "-o", "mine.unikprof"]);
            let refused = refused.expect_code(exit_code::LEASED);
            assert!(refused.stderr.contains("unikprof-client"), "{refused:?}");
            client.must(&["copy", "--name", "collect", "-o", "copy.unikprof"]);
        }
    }

    fn answers_are_lost(&mut self) {
        let [pyroscope, _] = &self.engines;
        pyroscope.fail_next(bad_answers());
        pyroscope.fail_always(None);
        self.collector.start_again();
        self.catch_up();
        for _ in 0..2 {
            self.collector.start_again_among_lost_answers(pyroscope);
        }
        self.catch_up();
    }

    fn a_guest_dies(&mut self) {
        let address = self.clients[0].address().to_string();
        let before = fetched(&self.collector.audit()[0]);
        let died_ns = unix_ns();
        self.mortal = None;
        wait_until("the server to say so", || {
            let guest = self.fleet.guest(MORTAL).unwrap();
            (guest["up"] == false).then_some(())
        });
        if self.deaths % 2 == 1 {
            self.collector.start_again();
        }
        let born_ns = unix_ns();
        self.mortal = Some(hosted(&self.files, &address));
        self.deaths += 1;
        let audit = self.wait_for("another life", |guest| {
            guest["name"] != MORTAL
                || guest["lost"]["times"] == self.deaths && fetched(guest) > before + 100
        });
        let span = audit[0]["lost"]["latest"].as_array().unwrap().last().unwrap();
        let [from, to] = ["from_unix_ns", "to_unix_ns"].map(|it| span[it].as_u64().unwrap());
        // The clocks that tell these times are read at different moments.
        assert!(from <= died_ns + SECOND_NS, "{span}, died at {died_ns}");
        assert!(to + SECOND_NS >= born_ns, "{span}, born at {born_ns}");
        self.fleet.wait_for(MORTAL);
    }

    /// Takes an engine away for so long that a spool of the smallest size is full.
    fn an_engine_is_away(&mut self) {
        let dropped = |audit: &[Value]| -> u64 {
            let each = audit.iter().map(|guest| ticks(guest, "parca", "dropped"));
            each.sum()
        };
        self.catch_up();
        let path = self.fleet.path("fleet.toml");
        let toml = fs::read_to_string(&path).unwrap();
        self.collector.end();
        let before = dropped(&self.collector.audit());
        self.engines[1].fail_always(failure(500));
        fs::write(&path, toml.clone() + "spool-bytes = 1_048_576\n").unwrap();
        self.collector.start_again();
        wait_until("a full spool", || (dropped(&self.collector.audit()) > before).then_some(()));
        fs::write(&path, toml).unwrap();
        self.collector.start_again();
        self.engines[1].fail_always(None);
        self.catch_up();
    }

    /// Waits until all that was counted by now has left the spool.
    fn catch_up(&self) {
        let now = self.collector.audit();
        self.wait_for("what was counted so far, at all targets", |guest| {
            let then = now.iter().find(|then| then["name"] == guest["name"]).unwrap();
            TARGETS.iter().all(|target| {
                let gone = ["accepted", "dropped"].map(|amount| ticks(guest, target, amount));
                gone.iter().sum::<u64>() >= fetched(then)
            })
        });
    }

    fn wait_for(&self, what: &str, are: impl Fn(&Value) -> bool) -> Vec<Value> {
        self.collector.wait_for(what, GUESTS.len(), are)
    }

    /// Ends it all, and compares what the guests have counted with what is in the audit, the folder
    /// and the engines.
    fn adds_up(&mut self) {
        // From now on the collector only delivers.
        list(self.fleet.folder.path(), &[]);
        self.collector.end();
        let counted = self.clients.each_ref().map(|client| {
            let target = Target { address: client.address(), keys: Some(keys()) };
            let counted = stop(&target, "collect").unwrap();
            wait_until("the rest of the recording", || {
                let stopped = client.connect(&["stop", "--name", "collect", "-o", "rest.unikprof"]);
                // That of a collector that was killed.
                let is_leased = stopped.code == Some(exit_code::LEASED.into());
                (!is_leased).then(|| stopped.expect_success())
            });
            // Of profiles that were given up.
            for name in client.recording_names() {
                client.must(&["stop", "--discard", "--name", &name]);
            }
            counted
        });
        self.collector.start_again();
        let audit = self.wait_for("all ticks at their targets", |guest| {
            TARGETS.iter().all(|target| is_delivered(guest, target))
        });
        self.collector.end();
        println!("{}", self.collector.told(&[]));

        self.collector.expect_in_folder(&audit);
        for (engine, target) in self.engines.iter().zip(TARGETS) {
            expect_at(engine, target, &audit);
        }
        for ((guest, client), counted) in audit.iter().zip(&self.clients).zip(&counted) {
            let name = guest["name"].as_str().unwrap();
            // Epoch by epoch, in the life that was the last.
            let rest = client.path("rest.unikprof");
            let life = instance(&rest).unwrap().unwrap();
            let mut files = self.collector.files(name);
            files.retain(|file| instance(file).unwrap() == Some(life));
            files.push(rest);
            let mut found = Audit::of(&files).unwrap();
            let sum = found.compare(counted.recording, &counted.counters);
            assert_eq!(found.wrong, [""; 0], "{name}");
            assert!(sum.samples > 0, "{name}");
            let deaths = if name == MORTAL { self.deaths } else { 0 };
            assert_eq!(guest["lost"]["times"], deaths, "{guest:#}");
        }
    }
}

/// Profiles from the server, of one guest after the other.
#[derive(Default)]
struct Scrapes {
    ended: AtomicBool,
    taken: [AtomicU64; 3],
    /// Profiles in which the service's functions are named.
    named: [AtomicU64; 3],
}

impl Scrapes {
    fn keep_taking(&self, fleet: &Fleet) {
        let file = fleet.path("profile.pb.gz");
        while !self.ended.load(Relaxed) {
            for (at, name) in GUESTS.iter().enumerate() {
                let path = format!("/guests/{name}/debug/pprof/profile?seconds=1");
                let (status, _) = fleet.get(&path, &["--output", &file]);
                let answer = fs::read(&file).unwrap();
                if status != 200 {
                    let told = String::from_utf8_lossy(&answer);
                    assert_eq!(status, 503, "{name}: {told}");
                    continue;
                }
                self.taken[at].fetch_add(1, Relaxed);
                let names = functions(&answer).unwrap();
                if names.iter().any(|name| name.contains(SERVICE)) {
                    self.named[at].fetch_add(1, Relaxed);
                }
            }
        }
    }

    /// The server has counted what it has answered.
    fn expect_told(&self, fleet: &Fleet) {
        for (name, taken) in GUESTS.iter().zip(&self.taken) {
            let metric = |outcome: &str| {
                let line =
                    format!("unikprof_profiles_total{{outcome=\"{outcome}\",guest=\"{name}\"}}");
                fleet.metric(&line).unwrap()
            };
            assert_eq!(metric("taken"), taken.load(Relaxed) as f64, "{name}");
            println!("{name}: {} profiles, {} not", metric("taken"), metric("failed"));
        }
    }
}

/// Ends other threads also where this one panics.
struct End<'a>(&'a AtomicBool);

impl Drop for End<'_> {
    fn drop(&mut self) {
        self.0.store(true, Relaxed);
    }
}
