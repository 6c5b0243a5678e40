//! The live table: as plain text, as lines of JSON, and on a terminal.

use std::collections::HashMap;
use std::fs;
use std::path::PathBuf;
use std::process::Command;
use std::time::Instant;

use serde_json::Value;
use unikprof_client::exit_code;

use crate::harness::time::lines;
use crate::harness::{Client, Guest, Keyed, SOON, Terminal, wait_until};

const IMAGE: &str = "--image";

fn image() -> &'static str {
    Guest::program().to_str().unwrap()
}

/// The fields of each recording in `check` that time alone does not change.
fn recordings(client: &Client) -> Vec<(Value, Value, Value, Value)> {
    let status = client.connect(&["check", "--json"]).expect_json();
    let all = status["recordings"].as_array().unwrap().iter();
    all.map(|one| {
        (one["name"].clone(), one["state"].clone(), one["epochs"].clone(), one["holder"].clone())
    })
    .collect()
}

/// The function with the most samples of its own in a part of a line's time.
fn hottest(line: &Value, part: &str) -> String {
    let functions = line["functions"].as_array().unwrap();
    let of = |function: &&Value| function[part]["self"].as_u64();
    let most = functions.iter().max_by_key(of).unwrap();
    most["name"].as_str().unwrap().to_owned()
}

/// A client that may only look sees a recording of another one, which keeps its counts and its
/// holder.
#[test]
#[ignore = "full: records a guest"]
fn a_running_recording_is_shown_and_left_alone() {
    let keyed = Keyed::start("shares");
    let owner = keyed.owner();
    let words = ["start", "--name", "flight", "--no-caller-table"];
    owner.must(&words);
    owner.wait_for_samples(500);
    // The other one is faster: what is shown is the recording that was named.
    let other = ["start", "--name", "busy", "-F", "4999", "--no-caller-table"];
    owner.must(&other);
    let before = recordings(&owner);

    let viewer = keyed.viewer();
    let several = viewer.connect(&["top", "-n", "1"]);
    several.expect_code(exit_code::NO_SUCH_RECORDING);
    let words = ["--json", "top", "--name", "flight", "-n", "3", "--every", "300ms"];
    // What was recorded so far is in the window, however long ago that is.
    let words = [&words[..], &["--window", "10m", IMAGE, image()]].concat();
    let shown = viewer.must(&words);
    let shown = lines(&shown.stdout);
    assert_eq!(shown.len(), 3);
    for line in &shown {
        assert_eq!(line["recording"], "flight");
        assert_eq!(line["own"], false);
        assert_eq!(line["period_ns"], 1_003_009);
        assert!(hottest(line, "recent").ends_with("::sixty"), "{line:#}");
        let of = &line["functions"][0]["recent"];
        let ends = of["self_interval"].as_array().unwrap();
        assert!(ends[0].as_f64() < of["self_share"].as_f64());
        assert!(ends[1].as_f64() > of["self_share"].as_f64());
    }
    // Later lines go on from earlier ones, and nothing is counted twice.
    let since = |line: &Value| line["watched"]["recorded"].as_u64().unwrap();
    assert!(since(&shown[0]) <= since(&shown[1]) && since(&shown[1]) <= since(&shown[2]));
    let all = owner.wait_for_status("the recordings", |_| true);
    let flight = all["recordings"].as_array().unwrap().iter();
    let flight = flight.clone().find(|one| one["name"] == "flight").unwrap();
    assert!(Some(since(&shown[2])) <= flight["counters"]["recorded"].as_u64());
    assert_eq!(recordings(&owner), before);

    // A copy is of the recording that was named as well.
    let words = ["copy", "--name", "flight", "-o", "copy.unikprof"];
    viewer.must(&words);
    let copy = viewer.recording("copy.unikprof");
    assert_eq!(copy.profile.recording().name, "flight");

    // As text, with the same functions.
    let words = ["top", "--name", "flight", "-n", "1", IMAGE, image()];
    let text = viewer.must(&words).stdout;
    assert!(text.contains("recording `flight` (cpu, 997 Hz)"), "{text}");
    assert!(text.contains("::sixty"), "{text}");
}

/// The time that each of a guest's threads has spent so far, as Linux says, in seconds: running,
/// and ready without a processor; and when that was read.
struct Scheduled {
    threads: HashMap<PathBuf, [f64; 2]>,
    at: Instant,
}

impl Scheduled {
    fn read(guest: &Guest) -> Scheduled {
        let threads = fs::read_dir(format!("/proc/{}/task", guest.id())).unwrap();
        let threads = threads.map(|thread| {
            let path = thread.unwrap().path();
            let told = fs::read_to_string(path.join("schedstat")).unwrap();
            let mut seconds = told.split(' ').map(|ns| ns.parse::<f64>().unwrap() / 1e9);
            (path, [seconds.next().unwrap(), seconds.next().unwrap()])
        });
        Scheduled { threads: threads.collect(), at: Instant::now() }
    }

    /// The time in which the vCPU ran, had no processor and was blocked since then, in seconds.
    fn since(&self, guest: &Guest) -> [f64; 3] {
        let now = Scheduled::read(guest);
        let elapsed = now.at.duration_since(self.at).as_secs_f64();
        let spent = now.threads.iter().filter_map(|(thread, now)| {
            let before = self.threads.get(thread)?;
            Some([now[0] - before[0], now[1] - before[1]])
        });
        let [ran, ready] = spent.max_by(|a, b| a[0].total_cmp(&b[0])).unwrap();
        [ran, ready, elapsed - ran - ready]
    }
}

/// A guest's times are recorded once a second and interpolated: so many seconds may be wrong at
/// both ends of a window together.
const INTERPOLATED: f64 = 1.0;

/// The live table's times are those of the scheduler, as far as the longer time in which these are
/// read allows; one guest works, the other waits for half of its time.
#[test]
#[ignore = "full: records a guest"]
fn stolen_and_blocked_time_and_the_rate_are_as_linux_says() {
    for load in ["shares", "waits"] {
        let guest = Guest::start(load);
        let client = guest.client();
        let before = Scheduled::read(&guest);
        let words = ["start", "--name", "flight", "--no-caller-table"];
        client.must(&words);
        client.wait_for_status("samples of more than one phase", |status| {
            let recorded = status["counters"]["recorded"].as_u64();
            let began = status["recordings"][0]["started_ns"].as_u64();
            let elapsed = status["now_ns"].as_u64().zip(began).map(|(now, began)| now - began);
            recorded >= Some(500) && elapsed >= Some(5_000_000_000)
        });
        let words = ["--json", "top", "--name", "flight", "-n", "1", "--window", "60s"];
        let shown = lines(&client.must(&words).stdout);
        let outer = before.since(&guest);
        let recent = &shown[0]["recent"];
        let number =
            |key: &str| recent[key].as_f64().unwrap_or_else(|| panic!("{key}: {recent:#}"));
        let length = number("length_ns") / 1e9;
        let (stolen, blocked) = (number("stolen"), number("blocked"));
        let awake = (1.0 - blocked) * length;
        let shown = [(1.0 - stolen) * awake, stolen * awake, blocked * length];
        // What was read before the first and after the last sample of the table.
        let beside = outer.iter().sum::<f64>() - length;
        assert!(beside >= 0.0 && length > 4.0, "{length} s, {beside} s beside");
        for (kind, (shown, outer)) in
            ["ran", "stolen", "blocked"].iter().zip(shown.iter().zip(outer))
        {
            let least = outer - beside - INTERPOLATED;
            assert!(
                (least..=outer + INTERPOLATED).contains(shown),
                "{load}: {kind} for {shown} s, Linux says {least} to {outer} s: {recent:#}"
            );
        }
        let recorded = recent["counters"]["recorded"].as_f64().unwrap();
        let rate = number("samples_per_second");
        assert!(
            (rate * length - recorded).abs() < 0.5,
            "{rate}/s for {length} s, {recorded} samples"
        );
        // 997 a second of running time, in random intervals: six standard deviations.
        let most = 997.0 * (outer[0] + 0.1);
        assert!(recorded > 0.0 && recorded < most + 6.0 * most.sqrt(), "{recorded} of {most}");
    }
}

#[test]
#[ignore = "full: records a guest"]
fn a_view_key_starts_nothing() {
    let keyed = Keyed::start("shares");
    let refused = keyed.viewer().connect(&["top", "-n", "1"]);
    let refused = refused.expect_code(exit_code::KEY);
    assert!(refused.stderr.contains("no recording is running in the guest"), "{}", refused.stderr);
}

/// Without a recording `top` has one of its own, and leaves none: at its own end, and when a signal
/// ends it.
#[test]
#[ignore = "full: records a guest"]
fn an_own_recording_is_discarded_at_the_end() {
    let guest = Guest::start("shares");
    let client = guest.client();
    let words = ["--json", "top", "-n", "2", "--every", "1s", IMAGE, image()];
    // Again if the guest had no processor in that time.
    wait_until("the hottest function", || {
        let shown = lines(&client.must(&words).stdout);
        assert!(recordings(&client).is_empty());
        let last = shown.last().unwrap();
        assert_eq!(last["own"], true);
        let mut names = last["functions"].as_array().unwrap().iter();
        let is_there = names.any(|it| it["name"].as_str().unwrap().ends_with("::sixty"));
        is_there.then_some(())
    });

    for signal in ["-INT", "-TERM"] {
        let words = ["top", "--every", "100ms"];
        let running = client.begin(&words);
        let found = wait_until("a recording of its own", || recordings(&client).pop());
        assert!(found.0.as_str().unwrap().starts_with("top-"), "{found:?}");
        running.signal(signal);
        running.finish().expect_success();
        // A guest that is busy is not waited for.
        let ended = || recordings(&client).is_empty().then_some(());
        wait_until(&format!("no recording after {signal}"), ended);
    }
    // Beside another one if it is asked for.
    let words = ["start", "--name", "flight"];
    client.must(&words);
    let words = ["--json", "top", "--own", "-n", "1"];
    let shown = lines(&client.must(&words).stdout);
    assert_eq!(shown[0]["own"], true);
    assert_eq!(recordings(&client).len(), 1);
    // One that has ended does not move; nobody has it to fetch before `top` does.
    client.must(&["stop", "--discard"]);
}

#[test]
#[ignore = "full: records a guest"]
fn a_table_ends_with_its_recording() {
    let guest = Guest::start("shares");
    let client = guest.client();
    // Long enough for `top` to come before its end.
    let seen = ["3s", "12s", "48s", "192s"].iter().any(|duration| {
        client.must(&["start", "--name", "short", "--duration", duration]);
        let words = ["--json", "top", "--name", "short", "--every", "100ms"];
        let shown = client.begin(&words).finish_within(2 * SOON);
        let shown = lines(&shown.expect_success().stdout);
        assert!(shown.iter().all(|line| line["recording"] == "short"));
        assert_eq!(recordings(&client).len(), 1, "it can still be fetched");
        client.must(&["stop", "-o", "short.unikprof"]);
        !shown.is_empty()
    });
    assert!(seen);
}

fn first_row(screen: &str) -> &str {
    let mut lines = screen.lines().skip_while(|line| !line.contains("function"));
    lines.nth(1).unwrap_or_default()
}

#[test]
#[ignore = "full: records a guest"]
fn keys_change_the_table_on_a_terminal_which_is_restored() {
    if !Terminal::is_there() {
        return;
    }
    let guest = Guest::start("shares");
    let client = guest.client();
    // Ctrl-C, and a signal that somebody sends.
    for end in ["q", "C-c", "TERM"] {
        let folder = tempfile::tempdir().unwrap();
        let line = format!(
            "stty -g > before; {} connect {} --timeout 30s top --every 200ms --image {} & \
             wait_for=$!; \
             echo $wait_for > id; fg >/dev/null; echo code $?; stty -g > after; sleep 600",
            env!("CARGO_BIN_EXE_hosted-client"),
            guest.address(),
            image()
        );
        // Job control, so that the program is in the foreground and its id is known.
        let line = format!("bash -mc '{line}'");
        let terminal = Terminal::open(folder.path(), [120, 30], &line);
        let screen = terminal.wait("the functions", |screen| screen.contains("sixty"));
        assert!(screen.contains("total*"), "{screen}");
        assert!(screen.contains("started by top"), "{screen}");
        assert_eq!(recordings(&client).len(), 1);
        if end == "q" {
            terminal.keys(&["t"]);
            terminal.wait("the hottest function", |screen| {
                screen.contains("self*") && first_row(screen).contains("sixty")
            });
            terminal.keys(&["s"]);
            terminal.wait("the other column", |screen| {
                let heading = screen.lines().find(|line| line.contains("function"));
                let mark = heading.and_then(|heading| heading.find("self*"));
                mark > Some(30)
            });
            terminal.keys(&["/", "thi[r]ty", "Enter"]);
            terminal.wait("the filter", |screen| {
                first_row(screen).contains("thirty") && !screen.contains("sixty")
            });
            terminal.keys(&["Escape"]);
            terminal.wait("all functions", |screen| screen.contains("sixty"));
            terminal.keys(&["Space"]);
            terminal.wait("a frozen table", |screen| screen.contains("frozen"));
            terminal.keys(&["?"]);
            terminal.wait("help", |screen| screen.contains("toggle self and total"));
        }
        if end == "TERM" {
            let id = fs::read_to_string(folder.path().join("id")).unwrap();
            let sent = Command::new("kill").args(["-TERM", id.trim()]).status();
            assert!(sent.unwrap().success());
        } else {
            terminal.keys(&[end]);
        }
        terminal.wait("the end", |screen| screen.contains("code 0"));
        let alternate = terminal.tmux(&["display-message", "-p", "#{alternate_on}"]);
        assert_eq!(alternate.trim(), "0", "the table is still on the screen");
        let after = || fs::read_to_string(folder.path().join("after")).ok();
        let after = wait_until("the terminal's settings", || after().filter(|it| !it.is_empty()));
        let before = fs::read_to_string(folder.path().join("before")).unwrap();
        assert_eq!(after, before, "{end}: the terminal's settings");
        // On a busy machine top does not wait for the guest, whose recording ends by itself.
        let is_gone = || recordings(&client).is_empty().then_some(());
        wait_until("the end of top's recording", is_gone);
    }
}
