//! A client that stays connected fetches counts and rings before the guest's memory is full: the
//! file holds all of the recording, and nothing is acknowledged before it is on disk.

use std::io::{BufRead as _, BufReader, Read as _};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use crate::peer::{self, PATIENT, Peer, Ring, Script, encode, program, ring, samples_of};
use unikprof_client::exit_code;
use unikprof_link::connection::Access;
use unikprof_link::interrupt::Interrupt;
use unikprof_link::record::{self, Event, Observer, RecordError, Settings};
use unikprof_profile::recording::{Completeness, Reading, Recording};
use unikprof_profile::timeline::Window;
use unikprof_proto::code::{message_type as types, mode, refusal};
use unikprof_proto::message::Started;
use unikprof_proto::ring::kind;
use unikprof_test_kit::assert_is;

/// One vCPU, whose epochs have a new stack each, and whose ring holds so many records and has so
/// many new ones at each look. The recording ends once it was dumped so often.
fn script(capacity: u64, each: u64, dumps: usize) -> Script {
    let usual = Script::default();
    Script {
        vcpus: usual.vcpus[..1].to_vec(),
        grows: true,
        ends_after_dumps: Some(dumps),
        // A quarter of this is the shortest time between two drains.
        windows: (Some(1_000_000_000), Some(500_000_000)),
        ring: Some(Ring {
            names: ring::names(&[], 0),
            live: Some((capacity, each)),
            ..Ring::default()
        }),
        ..usual
    }
}

fn read(path: &Path) -> Recording {
    Recording::open(path, Reading::Strict).unwrap()
}

/// The samples of these many epochs.
fn samples(script: &Script, epochs: u64) -> u64 {
    (7..7 + epochs).map(|epoch| samples_of(script, epoch)).sum()
}

/// How many records of a recording's ring are in the file.
fn records(recording: &Recording) -> u64 {
    let (timeline, of) = (recording.timeline.as_ref().unwrap(), recording.span.unwrap());
    let whole = timeline.profile(&recording.profile, &of, Window::ALL, None);
    whole.sample_count()
}

/// Guards against looking for a recording that the agent has forgotten, because a drain came after
/// its end.
#[test]
fn a_recording_that_ends_in_a_drain_is_complete() {
    let here = tempfile::tempdir().unwrap();
    let path = here.path().join("r.unikprof");
    let script = Script { ends_in_dump: true, ..script(20, 12, 3) };
    let peer = Peer::start(script.clone());
    let outcome = peer.record(&path, PATIENT).unwrap();
    assert!(outcome.incomplete.is_none(), "{outcome:?}");
    let asked = peer.log();
    let words = |word: &str| asked.iter().filter(|noted| *noted == word).count();
    assert_eq!((words("dump"), words("stop")), (3, 0), "{asked:?}");
    let recording = read(&path);
    assert_eq!(recording.completeness, Completeness::Complete);
    assert_eq!(recording.epochs, 3);
    assert_eq!(recording.profile.sample_count(), samples(&script, 3));
}

#[test]
fn a_recording_that_is_drained_is_complete() {
    let here = tempfile::tempdir().unwrap();
    let path = here.path().join("r.unikprof");
    let safe: Arc<Mutex<Vec<(u64, u32, u64)>>> = Arc::default();
    let (seen, place): (_, PathBuf) = (Arc::clone(&safe), path.clone());
    let script = Script {
        // What is on disk when an epoch is acknowledged.
        on_acknowledge: Some(Arc::new(move |epoch| {
            let kept = Recording::open(&place, Reading::Salvage).unwrap();
            let samples = kept.profile.sample_count();
            seen.lock().unwrap().push((epoch, kept.epochs, samples));
        })),
        ..script(20, 12, 3)
    };
    let peer = Peer::start(script.clone());
    let outcome = peer.record(&path, PATIENT).unwrap();
    assert!(outcome.incomplete.is_none(), "{outcome:?}");
    let asked: Vec<String> = peer.log();
    let words = |word: &str| asked.iter().filter(|noted| *noted == word).count();
    assert_eq!((words("dump"), words("stop")), (3, 1), "{asked:?}");
    let recording = read(&path);
    assert_eq!(recording.completeness, Completeness::Complete);
    assert_eq!(recording.contradictions, [""; 0]);
    assert_eq!(recording.epochs, 4);
    assert_eq!(recording.profile.sample_count(), samples(&script, 4));
    // The ring holds 20 records, and the file all.
    assert_eq!(records(&recording), 4 * 12);
    assert_eq!(recording.timeline.unwrap().rings()[0].overwritten, 0);
    let positions: Vec<u64> = peer.asked_rings().iter().map(|ring| ring.position).collect();
    assert_eq!(positions, [0, 12, 24, 36]);
    let expected: Vec<_> =
        (1..=4).map(|epochs| (6 + epochs, epochs as u32, samples(&script, epochs))).collect();
    assert_eq!(*safe.lock().unwrap(), expected);
    assert_eq!(peer.clients().len(), 1);
}

/// Guards a file that is called complete while another client has a part of the recording, which
/// it fetched when the connection of this one was down.
#[test]
fn what_another_client_fetched_meanwhile_is_missing() {
    let here = tempfile::tempdir().unwrap();
    let peer = Peer::start(Script { elsewhere: 2, ..script(20, 12, 3) });
    let (_, stderr) = program::connect(8, &peer, &["record", "-o", "r.unikprof"], here.path());
    program::has(&stderr, &["2 of its epochs"]);
    let recording = read(&here.path().join("r.unikprof"));
    assert_is!(recording.completeness, Completeness::Incomplete(_));
}

/// The windows are those of the last seconds: a load that rises makes them too long.
#[test]
fn a_guest_that_waits_for_a_fetch_is_drained_whatever_its_windows_say() {
    let here = tempfile::tempdir().unwrap();
    let path = here.path().join("r.unikprof");
    const HOUR_NS: u64 = 3_600_000_000_000;
    let peer = Peer::start(Script {
        windows: (Some(HOUR_NS), Some(HOUR_NS)),
        wants_fetch: true,
        ..script(20, 12, 3)
    });
    peer.record(&path, PATIENT).unwrap();
    let asked = peer.log();
    let at = |wanted: &str| asked.iter().position(|noted| noted == wanted).unwrap();
    let from_the_first = &asked[at("dump")..at("stop")];
    let looks = from_the_first.iter().filter(|noted| *noted == "check").count();
    // Before each of the other dumps one that begins the shortest pause and one that ends it, and
    // one that sees the end; and in each dump one.
    assert!(looks <= 5 + 3, "{asked:?}");
}

/// Guards that records which a ring lost between two looks are lost silently.
#[test]
fn what_a_ring_evicts_between_two_drains_is_counted() {
    let here = tempfile::tempdir().unwrap();
    let path = here.path().join("r.unikprof");
    let peer = Peer::start(script(8, 12, 2));
    let (_, stderr) = program::connect(0, &peer, &["record", "-o", "r.unikprof"], here.path());
    assert!(stderr.contains("8 records of the rings were evicted"), "{stderr}");
    let recording = read(&path);
    assert_eq!(records(&recording), 3 * 8);
    let timeline = recording.timeline.unwrap();
    let ring = &timeline.rings()[0];
    // Four before the first look, and four before each later one.
    assert_eq!((ring.evicted, ring.overwritten), (4, 8));
    // Four of twelve are gone in each look's part of time.
    assert_eq!(timeline.held_since(), 1_000 + 4 * 10);
    let of = recording.span.unwrap();
    let window = Window { from_ns: 1_040, to_ns: 1_360 };
    let slices = timeline.slices(&of, window, None, 80);
    let held: Vec<bool> = slices.iter().map(|slice| slice.is_held).collect();
    assert_eq!(held, [false, false, false, true]);
    let whole = timeline.profile(&recording.profile, &of, Window::ALL, None);
    let warnings = whole.recording().warnings.join("\n");
    assert!(warnings.contains("8 records were evicted before"), "{warnings}");
}

#[test]
fn a_connection_that_breaks_anywhere_while_draining_loses_nothing() {
    let here = tempfile::tempdir().unwrap();
    let script = script(40, 5, 1);
    let started = encode(&Started { recording: 3, started_ns: 1_000 });
    let before = 16 + peer::welcome(&script, 1_000).concat().len() + started.len();
    let whole_path = here.path().join("whole.unikprof");
    Peer::start(script.clone()).record(&whole_path, PATIENT).unwrap();
    let whole = read(&whole_path);
    // Every twenty-third byte meets each kind of frame, of a check, a drain and the end.
    for cut in (0..1_000).step_by(23) {
        let peer = Peer::start(Script { cuts: vec![before + cut], ..script.clone() });
        let path = here.path().join(format!("{cut}.unikprof"));
        let outcome = peer.record(&path, PATIENT).unwrap();
        assert!(outcome.incomplete.is_none(), "cut at {cut}: {outcome:?}");
        let recording = read(&path);
        assert_eq!(recording.contradictions, [""; 0], "cut at {cut}");
        assert_eq!(recording.profile.samples(), whole.profile.samples(), "cut at {cut}");
        assert_eq!(recording.profile.counters(), whole.profile.counters());
        let ring = &recording.timeline.as_ref().unwrap().rings()[0];
        assert_eq!((ring.evicted, ring.overwritten), (0, 0), "cut at {cut}");
        assert!(records(&recording) >= 10, "cut at {cut}");
        let clients = peer.clients();
        assert!(clients.iter().all(|client| *client == clients[0] && *client != 0));
    }
}

#[test]
fn what_was_drained_before_the_connection_broke_for_good_is_kept() {
    let here = tempfile::tempdir().unwrap();
    let path = here.path().join("r.unikprof");
    let script = script(40, 5, 1_000);
    let one = Script { ends_after_dumps: Some(1), ..script.clone() };
    let uncut = here.path().join("uncut.unikprof");
    Peer::start(one).record(&uncut, PATIENT).unwrap();
    let length = std::fs::metadata(&uncut).unwrap().len() as usize;
    let peer = Peer::start(Script {
        cuts: [vec![2 * length], vec![20; 1_000]].concat(),
        ..script.clone()
    });
    let outcome = peer.record(&path, Duration::from_millis(300)).unwrap();
    let error = outcome.incomplete.unwrap();
    assert!(matches!(error, RecordError::StillRunning { .. }), "{error}");
    program::has(&error.to_string(), &["stop --name", "its console tells why"]);
    assert!(outcome.displaced.is_none());
    let recording = read(&path);
    assert_is!(recording.completeness, Completeness::Incomplete(_));
    assert!(recording.profile.sample_count() >= samples(&script, 1));
}

/// The guest has cleared what was in the file that is gone, or has another one's content.
#[cfg(unix)]
#[test]
fn a_file_that_is_removed_or_replaced_while_it_is_written_is_kept_beside() {
    let outer = tempfile::tempdir().unwrap();
    let removed: fn(&Path) = |file| std::fs::remove_file(file).unwrap();
    let replaced: fn(&Path) = |file| {
        std::fs::write(file.with_extension("new"), "another's").unwrap();
        std::fs::rename(file.with_extension("new"), file).unwrap();
    };
    let folder_removed: fn(&Path) = |file| std::fs::remove_dir_all(file.parent().unwrap()).unwrap();
    let usual = script(20, 12, 3);
    let live = Script::live();
    let record = &["record", "-o", "r.unikprof", "-o", "../r.folded"][..];
    let leaks = &["leaks", "1h", "-o", "r.unikprof"][..];
    for (harm, at, script, words) in [
        (removed, 7, &usual, record),
        (removed, 10, &usual, record),
        (replaced, 7, &usual, record),
        (replaced, 10, &usual, record),
        (folder_removed, 7, &usual, record),
        (folder_removed, 10, &usual, record),
        (removed, 7, &live, leaks),
        (folder_removed, 10, &live, leaks),
    ] {
        let folder = outer.path().join("here");
        let place = folder.join("r.unikprof");
        let spoils = move |epoch: u64| {
            if epoch == at {
                harm(&place);
            }
        };
        let script = Script { on_acknowledge: Some(Arc::new(spoils)), ..script.clone() };
        std::fs::create_dir(&folder).unwrap();
        let peer = Peer::start(script.clone());
        let address = peer.address.to_string();
        let words = [&["connect", &address], words].concat();
        let outcome = program::command(&words, &folder).env("TMPDIR", outer.path()).output();
        let outcome = outcome.unwrap();
        let stderr = String::from_utf8(outcome.stderr).unwrap();
        assert_eq!(outcome.status.code(), Some(7), "{stderr}");
        let named = stderr.split("the recording itself is in ").nth(1).unwrap();
        let kept = read(&folder.join(named.split(';').next().unwrap()));
        assert_eq!((kept.completeness, kept.epochs), (Completeness::Complete, 4));
        if script.mode == mode::CPU {
            assert_eq!(kept.profile.sample_count(), samples(&script, 4));
        }
        let _ = std::fs::remove_dir_all(&folder);
    }
}

/// A file that another program has written to cannot be read: nothing is said to be in it.
#[test]
fn a_file_that_is_overwritten_in_place_is_told_once() {
    let here = tempfile::tempdir().unwrap();
    let place = here.path().join("r.unikprof");
    for (elsewhere, code) in [(0, 6), (2, 8)] {
        let spoiled = place.clone();
        let spoils = move |epoch: u64| {
            if epoch >= 8 {
                std::fs::write(&spoiled, "another's").unwrap();
            }
        };
        let script = script(20, 12, 3);
        let script = Script { on_acknowledge: Some(Arc::new(spoils)), elsewhere, ..script };
        let words = ["record", "-o", "r.unikprof"];
        let (_, told) = program::connect(code, &Peer::start(script), &words, here.path());
        assert_eq!(told.matches("r.unikprof").count(), 1, "{told}");
        assert_eq!(told.contains("2 of its epochs"), elsewhere > 0, "{told}");
        std::fs::remove_file(&place).unwrap();
    }
}

/// A file that is not there is not said to hold anything.
#[cfg(unix)]
#[test]
fn what_cannot_be_kept_anywhere_is_told_as_lost() {
    let outer = tempfile::tempdir().unwrap();
    for at in [7, 10] {
        let folder = outer.path().join("here");
        std::fs::create_dir(&folder).unwrap();
        let place = folder.clone();
        let spoils = move |epoch: u64| {
            if epoch == at {
                std::fs::remove_dir_all(&place).unwrap();
            }
        };
        let script = Script { on_acknowledge: Some(Arc::new(spoils)), ..script(20, 12, 3) };
        let peer = Peer::start(script);
        let address = peer.address.to_string();
        let words = ["connect", &address, "record", "--name", "n", "-o", "r.unikprof"];
        let mut command = program::command(&words, &folder);
        let (_, told) = program::finished(7, command.env("TMPDIR", outer.path().join("none")));
        program::has(&told, &["r.unikprof", " bytes, which the guest has cleared, are lost"]);
        assert!(!told.contains("what arrived is in"), "{told}");
        assert_eq!(told.contains("stop --name n` fetches it"), at == 7, "{told}");
    }
}

/// What a pipe has taken is cleared in the guest, and the rest is not lost.
#[cfg(unix)]
#[test]
fn a_pipe_whose_reader_goes_away_says_what_is_left_in_the_guest() {
    let here = tempfile::tempdir().unwrap();
    let pipe = here.path().join("p.unikprof");
    assert!(Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    let mut script = script(20, 12, 1_000);
    let reader = Arc::new(Mutex::new(Some(Command::new("cat").arg(&pipe).spawn().unwrap())));
    let of_peer = Arc::clone(&reader);
    script.on_acknowledge = Some(Arc::new(move |epoch| {
        if epoch == 8
            && let Some(mut reader) = of_peer.lock().unwrap().take()
        {
            reader.kill().unwrap();
            reader.wait().unwrap();
        }
    }));
    let peer = Peer::start(script);
    let words = ["record", "--name", "n", "-o", "p.unikprof"];
    let (_, told) = program::connect(7, &peer, &words, here.path());
    program::has(&told, &["is still in the guest", "stop --name n"]);
    assert!(!told.contains("othing is lost"), "{told}");
}

/// All is safe once the recording is in its file: whoever gives up then does not wait for reports.
#[cfg(unix)]
#[test]
fn giving_up_while_a_report_is_written_ends_at_once() {
    for subcommand in [&["dump"][..], &["record", "1s"]] {
        let here = tempfile::tempdir().unwrap();
        let pipe = here.path().join("p.folded");
        assert!(Command::new("mkfifo").arg(&pipe).status().unwrap().success());
        let peer = Peer::start(Script::default());
        let address = peer.address.to_string();
        let outputs = ["-o", "r.unikprof", "-o", "p.folded"];
        let words = [&["connect", &address, "--json"], subcommand, &outputs].concat();
        let mut child =
            program::command(&words, here.path()).stderr(Stdio::piped()).spawn().unwrap();
        let mut stderr = child.stderr.take().unwrap();
        let deadline = Instant::now() + Duration::from_secs(60);
        // Nobody reads the pipe. On a busy machine the first signal may come before the report.
        let file = here.path().join("r.unikprof");
        while child.try_wait().unwrap().is_none() {
            assert!(Instant::now() < deadline, "it has not ended");
            thread::sleep(Duration::from_millis(500));
            if file.exists() {
                program::signal("INT", child.id());
            }
        }
        let mut told = String::new();
        stderr.read_to_string(&mut told).unwrap();
        assert_eq!(child.wait().unwrap().code(), Some(7), "the report is not written");
        program::has(&told, &["interrupted; the recording is in ", "r.unikprof"]);
        read(&here.path().join("r.unikprof"));
    }
}

/// The guest has cleared what is in the file, and no file was asked for.
#[cfg(unix)]
#[test]
fn two_signals_while_a_dump_is_acknowledged_lose_nothing() {
    let here = tempfile::tempdir().unwrap();
    let (client, pid) = std::sync::mpsc::channel();
    let pid = Mutex::new(pid);
    let script = Script {
        on_acknowledge: Some(Arc::new(move |_| {
            let client = pid.lock().unwrap().recv().unwrap();
            program::signal("INT", client);
            program::signal("INT", client);
        })),
        ..Script::default()
    };
    let peer = Peer::start(script.clone());
    let words = ["connect", &peer.address.to_string(), "dump", "-o", "r.folded"];
    let child = program::command(&words, here.path()).stderr(Stdio::piped()).spawn().unwrap();
    client.send(child.id()).unwrap();
    let ended = child.wait_with_output().unwrap();
    let stderr = String::from_utf8(ended.stderr).unwrap();
    // A busy machine delivers them late: then the recording is safe, and the report not wanted.
    if ended.status.code() == Some(7) {
        let place = stderr.split("the recording is in ").nth(1).unwrap().lines().next().unwrap();
        assert_eq!(read(Path::new(place)).profile.sample_count(), script.samples());
        return;
    }
    assert_eq!(ended.status.code(), Some(0), "{stderr}");
    let report = std::fs::read_to_string(here.path().join("r.folded")).unwrap();
    let counts = report.lines().map(|line| line.rsplit(' ').next().unwrap());
    assert_eq!(counts.map(|count| count.parse::<u64>().unwrap()).sum::<u64>(), script.samples());
}

/// A terminal that is closed sends the signal more than once.
#[cfg(unix)]
#[test]
fn top_discards_its_own_recording_when_the_terminal_is_closed() {
    let here = tempfile::tempdir().unwrap();
    let (client, pid) = std::sync::mpsc::channel();
    let pid = Mutex::new(pid);
    let peer = Peer::start(Script {
        on_acknowledge: Some(Arc::new(move |_| {
            if let Ok(client) = pid.lock().unwrap().try_recv() {
                program::signal("HUP", client);
                // The client gives up waiting for the answer.
                std::thread::sleep(Duration::from_secs(1));
            }
        })),
        ..script(20, 12, 1_000)
    });
    let words = ["connect", &peer.address.to_string(), "top", "--own", "--every", "1h"];
    let mut child = program::heeding_hangup()
        .arg(env!("CARGO_BIN_EXE_unikprof-client"))
        .args(words)
        .current_dir(here.path())
        .spawn()
        .unwrap();
    client.send(child.id()).unwrap();
    peer.wait_for("start");
    peer.wait_for("check");
    program::signal("HUP", child.id());
    assert_eq!(child.wait().unwrap().code(), Some(0));
    assert!(peer.asked("acknowledge") >= 1);
}

/// Guards against a signal that is told only once the guest has answered, and against one that
/// leaves a recording in the guest without a word.
#[cfg(unix)]
#[test]
fn a_signal_is_told_while_the_guest_is_silent() {
    let here = tempfile::tempdir().unwrap();
    let (release, held) = std::sync::mpsc::channel::<()>();
    let held = Mutex::new(held);
    let peer = Peer::start(Script {
        on_acknowledge: Some(Arc::new(move |_| {
            let _ = held.lock().unwrap().recv_timeout(PATIENT);
        })),
        ..script(20, 12, 3)
    });
    let address = peer.address.to_string();
    let words =
        ["connect", &address, "--timeout", "1h", "record", "--name", "n", "-o", "r.unikprof"];
    let mut child = program::command(&words, here.path()).stderr(Stdio::piped()).spawn().unwrap();
    peer.wait_for("acknowledge 7");
    let mut lines = BufReader::new(child.stderr.take().unwrap()).lines().map(Result::unwrap);
    for told in ["the samples so far are kept", "stop --name n` ends it and fetches the rest"] {
        program::signal("INT", child.id());
        assert!(lines.any(|line| line.contains(told)), "{told}");
    }
    assert_eq!(child.wait().unwrap().code(), Some(8));
    assert_eq!(peer.asked("acknowledge"), 1, "the guest was silent all the time");
    drop(release);
    let kept = Recording::open(&here.path().join("r.unikprof"), Reading::Salvage).unwrap();
    assert_eq!(kept.epochs, 1);
}

/// Each look at the guest takes longer than the pause between two drains.
struct SlowLine {
    user: Interrupt,
    /// What has arrived of the last part, at each word of it.
    last: Vec<u64>,
}

impl Observer for SlowLine {
    fn event(&mut self, event: Event<'_>) {
        match event {
            Event::Running { .. } => std::thread::sleep(Duration::from_millis(300)),
            Event::Fetching { samples, .. } if self.user.stop() => self.last.push(samples),
            _ => {}
        }
    }
}

/// Guards a recording that is drained on and on after the user has ended it, and a last part that
/// comes in silence.
#[test]
fn a_recording_on_a_slow_line_ends_when_the_user_wants() {
    let here = tempfile::tempdir().unwrap();
    let user = Interrupt::default();
    let signal = user.clone();
    let script = Script {
        on_acknowledge: Some(Arc::new(move |_| signal.raise_once())),
        ..script(20, 12, 3)
    };
    let peer = Peer::start(script.clone());
    let mut session = peer.open(Access::Open, PATIENT, PATIENT, &user).unwrap();
    let mut observer = SlowLine { user, last: Vec::new() };
    let path = here.path().join("r.unikprof");
    record::record(&mut session, &Settings::default(), &path, &mut observer).unwrap();
    let asked = peer.log();
    let words = |word: &str| asked.iter().filter(|noted| *noted == word).count();
    assert_eq!((words("dump"), words("stop")), (1, 1), "{asked:?}");
    assert_eq!(read(&path).profile.sample_count(), samples(&script, 2));
    assert_eq!(observer.last.last(), Some(&samples(&script, 2)));
}

/// Each connection brings a run of a ring's records: the next one goes on behind it.
#[test]
fn a_ring_is_fetched_over_connections_that_break_within_it() {
    let here = tempfile::tempdir().unwrap();
    let path = here.path().join("r.unikprof");
    let usual = Script::default();
    let runs: Vec<_> = (0..30_u64)
        .map(|at| ring::run(0, at, &[ring::record(kind::SAMPLE, 1_000 + at, 0, 1)]))
        .collect();
    let frames = [vec![encode(&ring::head(0, 0, 30))], runs, vec![ring::end(0, 30)]].concat();
    let peer = Peer::start(Script {
        vcpus: usual.vcpus[..1].to_vec(),
        ring: Some(Ring {
            names: ring::names(&[], 0),
            records: vec![frames.concat()],
            stacks: vec![ring::stacks(0, &[&[0x150, 0x110]])],
            goes_on: Some((ring::head(0, 0, 30), frames)),
            ..Ring::default()
        }),
        ..usual
    });
    let request = record::Request::Stop { recording: 3 };
    let outcome = record::fetch(&mut peer.session(PATIENT), request, &path, &mut ()).unwrap();
    assert!(outcome.incomplete.is_none(), "{outcome:?}");
    let asked: Vec<u64> = peer.asked_rings().iter().map(|ring| ring.position).collect();
    assert_eq!(asked, (0..=30).collect::<Vec<u64>>());
    let recording = read(&path);
    assert_eq!(recording.contradictions, [""; 0]);
    let ring = &recording.timeline.as_ref().unwrap().rings()[0];
    assert_eq!((ring.evicted, ring.overwritten), (0, 0));
    assert_eq!(records(&recording), 30);
}

/// Another client took the recording over: what this one has is kept, and the error says what to
/// do.
#[test]
fn a_lease_that_is_lost_ends_the_draining() {
    let here = tempfile::tempdir().unwrap();
    let path = here.path().join("r.unikprof");
    let peer = Peer::start(Script {
        refuses: Some((
            types::DUMP,
            refusal::LEASED,
            "`collector 1.0` fetches recording 3 `default` since 12 s",
        )),
        ..script(40, 5, 1)
    });
    let error = peer.record(&path, PATIENT).unwrap_err();
    assert_eq!(exit_code::of_record(&error), 12, "{error}");
    assert!(error.to_string().contains("`collector 1.0`"), "{error}");
    assert!(!path.exists());
}

/// A guest that was suspended has another instance: its numbers are not those that are in the file.
#[test]
fn a_guest_that_was_suspended_is_not_drained_into_the_same_file() {
    let here = tempfile::tempdir().unwrap();
    let path = here.path().join("r.unikprof");
    let script = script(40, 5, 1);
    let greeting = 16 + peer::welcome(&script, 1_000).concat().len();
    let script = Script { cuts: vec![greeting + 40], second_instance: Some(9), ..script };
    let error = Peer::start(script.clone()).record(&path, PATIENT).unwrap_err();
    assert!(matches!(error, RecordError::GuestChanged), "{error}");
    for words in [&["events", "--follow"][..], &["top"], &["dump"]] {
        let peer = Peer::start(script.clone());
        let (_, stderr) = program::connect(3, &peer, words, here.path());
        program::has(&stderr, &["what is there now is another, and `check` shows what it has"]);
        assert!(!stderr.contains("stop --name"), "{stderr}");
    }
}

/// A table whose names are looked for on a server that does not answer ends when the user wants it
/// to, before it has a picture as after.
#[cfg(all(target_os = "linux", feature = "debuginfod"))]
#[test]
fn top_ends_while_an_image_is_looked_for() {
    let here = tempfile::tempdir().unwrap();
    for (words, on_terminal) in
        [(&["--own"][..], false), (&["--own"], true), (&["--window", "10m"], false)]
    {
        let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let peer = Peer::start(script(20, 12, 1_000));
        let line = format!("connect {} top {}", peer.address, words.join(" "));
        let program = env!("CARGO_BIN_EXE_unikprof-client");
        let mut command = match on_terminal {
            true => Command::new("script"),
            false => program::heeding_hangup(),
        };
        match on_terminal {
            true => command.args(["-qefc", &format!("{program} {line}"), "typescript"]),
            false => command.arg(program).args(line.split(' ')),
        };
        let urls = format!("http://{}", silent.local_addr().unwrap());
        command.env("DEBUGINFOD_URLS", urls).env("DEBUGINFOD_CACHE_PATH", here.path());
        command.current_dir(here.path()).stdin(Stdio::piped()).stdout(Stdio::null());
        let mut child = command.spawn().unwrap();
        let asked = silent.accept().unwrap();
        match on_terminal {
            true => std::io::Write::write_all(&mut child.stdin.as_ref().unwrap(), b"q").unwrap(),
            false => program::signal("INT", child.id()),
        }
        let end = Instant::now() + PATIENT;
        let ended = loop {
            match child.try_wait().unwrap() {
                Some(status) => break status,
                None if Instant::now() < end => thread::sleep(Duration::from_millis(10)),
                None => panic!("{words:?}: top goes on"),
            }
        };
        assert_eq!(ended.code(), Some(0), "{words:?}");
        drop(asked);
    }
}
