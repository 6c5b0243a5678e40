//! The caller table as the agent and the user meet it: sent before a recording, left out, refused,
//! and written to a file.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use crate::peer::program::has;
use crate::peer::{Asked, Peer, Script, program};
use gimli::X86_64;
use gimli::write::CallFrameInstruction;
use serde_json::Value;
use tempfile::TempDir;
use unikprof_proto::caller_table::{Row, Rule, TableFile, checksum};
use unikprof_proto::code::{message_type as types, mode, refusal, start_flag};
use unikprof_test_kit::call_frames::{self, frame_table};
use unikprof_test_kit::elf::{CODE_ADDRESS, CODE_OFFSET, TestElf};

const PROGRAM: &str = env!("CARGO_BIN_EXE_unikprof-client");
const BUILD_ID: &[u8] = &[0xc0, 0xff, 0xee, 1];
/// Enough that their rows take several requests. Every other one is a leaf without a frame.
const FUNCTIONS: u64 = 500;
/// Bytes from one function to the next; half of them are its own.
const STRIDE: u64 = 32;
/// Of a function with a frame: entry, pushed, frame record, return, and the unknown code behind; of
/// a leaf: entry, and the code behind.
const FULL_ROWS: u32 = (5 + 2) * FUNCTIONS as u32 / 2;
/// The leaves: the others are told by the frame pointer and their instructions, but for the very
/// first of them, since agents look at the byte before as well.
const SMALL_ROWS: u32 = 2 + 2 * FUNCTIONS as u32 / 2;

/// What an agent needs for so many rows, an even number.
fn block(rows: u32) -> u32 {
    rows * 10 + 72
}

/// A folder with an image in it.
struct Image {
    folder: TempDir,
    path: PathBuf,
    functions: u64,
}

impl Image {
    fn new() -> Image {
        Image::with_functions(FUNCTIONS)
    }

    fn with_functions(functions: u64) -> Image {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("guest.elf");
        // `hlt`, which is no padding.
        let mut code = vec![0xf4; (functions * STRIDE) as usize];
        for function in code.chunks_mut(2 * STRIDE as usize) {
            function[..4].copy_from_slice(&[0x55, 0x48, 0x89, 0xe5]);
            function[15] = 0xc3;
        }
        let elf = TestElf::new(&code, &[(".eh_frame", 0, &eh_frame(functions))]).bytes();
        fs::write(&path, elf).unwrap();
        Image { folder, path, functions }
    }

    fn path(&self) -> &str {
        self.path.to_str().unwrap()
    }

    fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// The guest that runs it, with an agent that has room for so many rows.
    fn guest(&self, caller_rows: u32) -> Script {
        let end = CODE_ADDRESS + self.functions * STRIDE;
        Script {
            mapping: (CODE_ADDRESS, end, CODE_OFFSET, BUILD_ID),
            caller_rows,
            ..Script::default()
        }
    }
}

fn eh_frame(functions: u64) -> Vec<u8> {
    let steps = [
        (1, CallFrameInstruction::CfaOffset(16)),
        (1, CallFrameInstruction::Offset(X86_64::RBP, -16)),
        (4, CallFrameInstruction::CfaRegister(X86_64::RBP)),
        (15, CallFrameInstruction::Cfa(X86_64::RSP, 8)),
    ];
    let steps = |function| if function % 2 == 0 { &steps[..] } else { &[] };
    let functions = (0..functions).map(|at| (at * STRIDE, 16, steps(at)));
    call_frames::eh_frame(&frame_table(&functions.collect::<Vec<_>>()))
}

/// Runs, demands this exit code, and answers stdout and stderr.
#[track_caller]
fn expect(code: i32, arguments: &[&str], directory: &Path) -> (String, String) {
    let (stdout, stderr) = program::run(code, arguments, directory);
    // These agents have no key, which is not the subject here.
    let lines = stderr.lines().filter(|line| !line.contains("requires no key"));
    let stderr = lines.map(|line| format!("{line}\n")).collect();
    (stdout, stderr)
}

/// Starts a recording with these further arguments; answers stderr.
#[track_caller]
fn start(code: i32, peer: &Peer, arguments: &[&str], folder: &Path) -> String {
    let address = peer.address.to_string();
    let all = [&["connect", &address, "start"], arguments].concat();
    expect(code, &all, folder).1
}

fn checksum_of(rows: &[Row]) -> u32 {
    rows.iter().fold(0, |crc, row| checksum(crc, *row))
}

#[test]
fn the_table_is_sent_before_the_recording_starts_and_asked_for_by_it() {
    let image = Image::new();
    let peer = Peer::start(image.guest(FULL_ROWS));
    let stderr = start(0, &peer, &["--image", image.path()], image.folder());
    assert_eq!(stderr, "");
    let begin = format!("table of {FULL_ROWS}");
    // The last confirms that the client knows of the recording.
    assert_eq!(peer.log(), ["hello", &begin, "table installed", "start", "check"]);
    let [rows] = &peer.tables()[..] else {
        panic!("one table");
    };
    let first: Vec<(u32, Rule)> = rows[..6].iter().map(|row| (row.code, row.rule)).collect();
    let pushed = Rule(2 | 2 << 2 | 2 << 8);
    let expected = [
        (0x100, Rule::ENTRY),
        (0x101, pushed),
        (0x104, Rule::FRAME_RECORD),
        (0x10f, Rule::ENTRY),
        (0x110, Rule::UNKNOWN),
        (0x120, Rule::ENTRY),
    ];
    assert_eq!(first, expected, "keyed by the codes of the mapping");
    let asked = Asked {
        name: "default".into(),
        period_ns: 1_003_009,
        max_age_ns: 0,
        max_bytes: 0,
        mode: mode::CPU,
        flags: 0,
        caller_table: Some(checksum_of(rows)),
    };
    assert_eq!(peer.starts(), std::slice::from_ref(&asked));
    // The second client finds it there.
    start(0, &peer, &["--image", image.path()], image.folder());
    assert_eq!(peer.tables().len(), 1, "{:?}", peer.log());
    assert_eq!(peer.starts(), [asked.clone(), asked]);
}

#[test]
fn record_sends_it_as_start_does() {
    let image = Image::new();
    let peer = Peer::start(image.guest(FULL_ROWS));
    let address = peer.address.to_string();
    let arguments = ["--image", image.path(), "-o", "r.unikprof"];
    let arguments = [&["connect", &address, "record", "1s"], &arguments[..]].concat();
    expect(0, &arguments, image.folder());
    assert_eq!(peer.log()[2..5], ["table installed", "start", "check"]);
    assert!(peer.starts()[0].caller_table.is_some());
}

/// Several times what a socket's buffers and an agent hold of it.
const MANY_FUNCTIONS: u64 = 40_000;

/// An agent that has stopped reading after some of the rows, and the image whose table it does not
/// take.
fn stalled() -> (Image, Peer) {
    let image = Image::with_functions(MANY_FUNCTIONS);
    let peer = Peer::start(Script { stalls_after_rows: Some(100), ..image.guest(u32::MAX) });
    (image, peer)
}

#[test]
fn clients_that_send_at_the_same_time_try_again() {
    let image = Image::new();
    let peer = Peer::start(Script {
        refuses: Some((types::TABLE_END, refusal::OTHER_UPLOAD, "another client sends")),
        refusals: 2,
        ..image.guest(FULL_ROWS)
    });
    start(0, &peer, &["--image", image.path()], image.folder());
    assert_eq!((peer.asked("refused"), peer.tables().len()), (2, 1));
    assert!(peer.starts()[0].caller_table.is_some());
}

/// Each connection brings some of it: that is progress, however often it breaks.
#[test]
fn an_upload_goes_on_over_connections_that_break_within_it() {
    let image = Image::new();
    let peer = Peer::start(Script { breaks_uploads: true, ..image.guest(FULL_ROWS) });
    start(0, &peer, &["--image", image.path(), "--retry", "100ms"], image.folder());
    assert_eq!(peer.tables().len(), 1);
    assert!(peer.asked("hello") > 4, "{:?}", peer.log());
}

/// Guards a timeout that grew with the table: what the system takes off the client's hands the
/// agent has not read.
#[test]
fn an_upload_fails_one_timeout_after_the_agent_stops_reading() {
    let (image, peer) = stalled();
    let address = peer.address.to_string();
    let words = ["connect", &address, "--timeout", "2s", "--retry", "0s"];
    let rest = ["start", "--image", image.path()];
    let (_, stderr) = expect(3, &[&words[..], &rest].concat(), image.folder());
    has(&stderr, &["no response from the agent within 2 s while sending"]);
}

#[test]
fn a_signal_ends_an_upload() {
    for signal in ["TERM", "INT"] {
        let (image, peer) = stalled();
        let mut client = Command::new(PROGRAM)
            .args(["connect", &peer.address.to_string(), "--timeout", "1h"])
            .args(["record", "1s", "--image", image.path(), "-o", "r.unikprof"])
            .current_dir(image.folder())
            .stdin(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        peer.wait_for("stalled");
        program::signal(signal, client.id());
        let code = wait(&mut client);
        assert_eq!(code, Some(130), "SIG{signal}");
        let left: Vec<_> = fs::read_dir(image.folder()).unwrap().collect();
        assert_eq!(left.len(), 1, "only the image: {left:?}");
    }
}

/// The exit code of a program that is about to end.
#[track_caller]
fn wait(client: &mut Child) -> Option<i32> {
    let deadline = Instant::now() + Duration::from_secs(60);
    while Instant::now() < deadline {
        if let Some(status) = client.try_wait().unwrap() {
            return status.code();
        }
        thread::sleep(Duration::from_millis(10));
    }
    client.kill().unwrap();
    panic!("the program did not end");
}

/// The summary, the report and `doctor` have one number for that.
#[test]
fn it_is_told_for_how_many_samples_the_table_knew_the_caller() {
    let folder = tempfile::tempdir().unwrap();
    let record = |caller_table| {
        let peer = Peer::start(Script { caller_table, by_table: 2, ..Script::default() });
        let address = peer.address.to_string();
        let words = ["connect", &address, "record", "1s", "--no-caller-table", "-o", "r.unikprof"];
        expect(0, &words, folder.path()).0
    };
    assert!(!record(None).contains("callers by table"));
    let summary = record(Some(7));
    let told = |code, command| {
        let output = expect(code, &[command, "r.unikprof"], folder.path());
        output.0 + &output.1
    };
    for text in [summary, told(0, "report")] {
        has(&text, &["callers by table 22.2 %"]);
    }
    let covered = "by caller table 22.2 %, by instructions 0.0 %, by frame pointer 77.8 %";
    has(&told(9, "doctor"), &[covered]);
}

#[test]
fn modes_and_the_way_of_unwinding_are_sent() {
    let image = Image::new();
    let peer = Peer::start(image.guest(FULL_ROWS));
    for (name, code) in [("cpu", mode::CPU), ("wall", mode::WALL), ("off-cpu", mode::OFF_CPU)] {
        let arguments = ["--image", image.path(), "--unwind", "table", "--mode", name];
        start(0, &peer, &arguments, image.folder());
        let asked = peer.starts().last().unwrap().clone();
        assert_eq!((asked.mode, asked.flags), (code, start_flag::UNWIND_TABLE));
        assert!(asked.caller_table.is_some());
    }
}

#[test]
fn a_table_that_another_client_replaced_is_sent_again() {
    let image = Image::new();
    let peer = Peer::start(Script { table_replaced: true, ..image.guest(FULL_ROWS) });
    start(0, &peer, &["--image", image.path()], image.folder());
    let log = peer.log();
    let again = log.iter().skip_while(|word| *word != "no table").nth(2);
    assert_eq!(again.map(String::as_str), Some("table installed"), "{log:?}");
    assert_eq!(peer.starts().len(), 1);
}

#[test]
fn what_the_agent_refuses_is_told_and_nothing_is_started() {
    let image = Image::new();
    for (request, code, text, hangs_up) in [
        (types::TABLE_END, refusal::BAD_TABLE, "another client has begun to send one", false),
        (types::TABLE_ROWS, refusal::MALFORMED, "a row too many", true),
    ] {
        let peer = Peer::start(Script {
            refuses: Some((request, code, text)),
            hangs_up,
            ..image.guest(FULL_ROWS)
        });
        let stderr = start(5, &peer, &["--image", image.path()], image.folder());
        has(&stderr, &["the agent rejected the request", text]);
        assert!(peer.starts().is_empty());
    }
}

/// A table in use is not replaced; that must not keep a second recording from being made.
#[test]
fn beside_a_recording_it_goes_on_without_and_says_so() {
    let image = Image::new();
    let peer = Peer::start(Script {
        refuses: Some((
            types::TABLE_BEGIN,
            refusal::ALREADY_RECORDING,
            "`nightly` is being recorded",
        )),
        ..image.guest(FULL_ROWS)
    });
    let stderr = start(0, &peer, &["--image", image.path()], image.folder());
    has(&stderr, &["another recording runs, so the agent takes no caller table"]);
    assert_eq!(peer.starts()[0].caller_table, None);

    // A recording that cannot do without is none.
    let by_table = ["--image", image.path(), "--unwind", "table"];
    let stderr = start(5, &peer, &by_table, image.folder());
    assert!(stderr.contains("table"), "{stderr}");
    assert_eq!(peer.starts().len(), 1);
}

/// Such a table may be linked into the guest: it is better than none, also where every frame is
/// looked up.
#[test]
fn beside_a_recording_the_agents_own_table_serves() {
    const HELD: u32 = 7;
    let image = Image::new();
    let peer = Peer::start(Script {
        caller_table: Some(HELD),
        refuses: Some((
            types::TABLE_BEGIN,
            refusal::ALREADY_RECORDING,
            "`nightly` is being recorded",
        )),
        ..image.guest(FULL_ROWS)
    });
    for unwind in ["fp", "table"] {
        let arguments = ["--image", image.path(), "--unwind", unwind];
        let stderr = start(0, &peer, &arguments, image.folder());
        assert!(stderr.contains("it uses its own"), "{stderr}");
        assert_eq!(peer.starts().last().unwrap().caller_table, Some(HELD));
    }
}

#[test]
fn of_a_table_that_does_not_fit_the_rows_that_do_are_sent() {
    let image = Image::new();
    // Each function takes two.
    let room = SMALL_ROWS / 2 - 1;
    // In the last function, a leaf.
    let met = CODE_BASE + (FUNCTIONS - 1) as u32 * STRIDE as u32;
    let peer = Peer::start(Script {
        vcpus: vec![vec![(0, vec![met + 4, CODE_BASE + 9], 5)]],
        ..image.guest(room)
    });
    let arguments = ["--image", image.path()];
    let stderr = start(0, &peer, &arguments, image.folder());
    let needed = format!("of {FULL_ROWS} caller-table rows");
    let block = format!("{} bytes", block(FULL_ROWS));
    has(&stderr, &[&needed, &format!(" {room} are sent"), &block]);
    let [rows] = &peer.tables()[..] else {
        panic!("one table");
    };
    assert_eq!(rows.len() as u32, room, "as many as fit");
    assert_eq!(rows.last().unwrap().rule, Rule::UNKNOWN);
    let whole = Peer::start(image.guest(SMALL_ROWS));
    start(0, &whole, &arguments, image.folder());
    let whole = &whole.tables()[0];
    let (first, last) = rows.split_at(rows.len() - 2);
    assert_eq!(first, &whole[..first.len()], "the first that fit");
    assert_eq!(last, &whole[whole.len() - 2..], "what was sampled");
    assert_eq!(last[0].code, met);
    // To see what is sampled takes a recording of its own, which needs no table.
    let [seen, started] = &peer.starts()[..] else {
        panic!("two recordings");
    };
    assert!(seen.name.starts_with("first-second-"), "{}", seen.name);
    assert_eq!(seen.caller_table, None);
    assert_eq!(started.caller_table, Some(checksum_of(rows)));
}

/// Those of clients that were killed before they could fetch them: nobody else would, and each
/// takes a place in the agent.
#[test]
fn first_seconds_that_nobody_fetches_any_more_are_discarded() {
    let image = Image::new();
    let left = vec![(5, "first-second-0badcafe"), (6, "first-seconds")];
    let script = Script { others: left, ..image.guest(SMALL_ROWS / 2 - 1) };
    let peer = Peer::start(script.clone());
    let arguments = ["--image", image.path()];
    start(0, &peer, &arguments, image.folder());
    let log = peer.log();
    assert!(log.contains(&"stop 5".into()), "{log:?}");
    assert!(!log.contains(&"stop 6".into()), "{log:?}");

    // Somebody is about to fetch it.
    let peer = Peer::start(Script { holder: Some("unikprof-client 0.1.0"), ..script });
    start(0, &peer, &arguments, image.folder());
    let log = peer.log();
    assert!(!log.contains(&"stop 5".into()), "{log:?}");
}

#[test]
fn a_table_that_does_not_fit_is_an_error_where_every_frame_is_looked_up() {
    let image = Image::new();
    let room = SMALL_ROWS - 1;
    let peer = Peer::start(image.guest(room));
    let needed = format!("{FULL_ROWS} rows");
    let block = format!("{} bytes", block(FULL_ROWS));
    let by_table = ["--image", image.path(), "--unwind", "table"];
    let stderr = start(5, &peer, &by_table, image.folder());
    has(&stderr, &[&needed, "error", &format!("room for {room}"), &block]);
    assert!(peer.starts().is_empty(), "nothing was started");
    assert!(peer.tables().is_empty());
}

/// Without room for any row there is no table to send.
#[test]
fn an_agent_without_room_is_recorded_without_a_table() {
    let image = Image::new();
    for room in [0, 1] {
        let peer = Peer::start(image.guest(room));
        let arguments = ["--image", image.path()];
        let stderr = start(0, &peer, &arguments, image.folder());
        assert!(stderr.contains("guessed"), "{stderr}");
        assert_eq!(peer.starts()[0].caller_table, None);
    }
}

#[test]
fn an_agent_with_little_room_gets_what_serves_the_interrupted_function() {
    let image = Image::new();
    let peer = Peer::start(image.guest(SMALL_ROWS));
    let stderr = start(0, &peer, &["--image", image.path()], image.folder());
    assert_eq!(stderr, "", "nothing is lost");
    let [rows] = &peer.tables()[..] else {
        panic!("one table");
    };
    assert_eq!(rows.len() as u32, SMALL_ROWS);
    let first: Vec<(u32, Rule)> = rows[..4].iter().map(|row| (row.code, row.rule)).collect();
    let expected = [
        (0x100, Rule::ENTRY),
        (0x101, Rule::UNKNOWN),
        (0x120, Rule::ENTRY),
        (0x130, Rule::UNKNOWN),
    ];
    assert_eq!(first, expected);
    assert!(peer.starts()[0].caller_table.is_some());
}

#[test]
fn without_an_image_callers_are_guessed_and_the_user_told_once() {
    let folder = tempfile::tempdir().unwrap();
    let peer = Peer::start(Script { caller_rows: 1000, ..Script::default() });
    let stderr = start(0, &peer, &[], folder.path());
    has(&stderr, &["guessed", "--image"]);
    assert_eq!(stderr.lines().count(), 1, "{stderr}");
    for quiet in ["--json", "--no-caller-table"] {
        assert_eq!(start(0, &peer, &[quiet], folder.path()), "");
    }
    let stderr = start(2, &peer, &["--unwind", "table"], folder.path());
    assert!(stderr.contains("--image"), "{stderr}");
    let both = ["--unwind", "table", "--no-caller-table"];
    let stderr = start(2, &peer, &both, folder.path());
    assert!(stderr.contains("--no-caller-table"), "{stderr}");
}

#[test]
fn a_wrong_image_is_refused_before_anything_is_sent() {
    let image = Image::new();
    let peer = Peer::start(Script { caller_rows: FULL_ROWS, ..Script::default() });
    let stderr = start(6, &peer, &["--image", image.path()], image.folder());
    has(&stderr, &["c0ffee01", "abab"]);
    assert_eq!(peer.log(), ["hello"]);
}

#[test]
fn the_file_holds_the_image_and_its_rows() {
    let image = Image::new();
    let (stdout, _) = expect(0, &["caller-table", "guest.elf"], image.folder());
    has(&stdout, &["guest.elf.callers", "c0ffee01", "1750 in 14088 bytes", "17592"]);
    let bytes = fs::read(image.folder().join("guest.elf.callers")).unwrap();
    let file = TableFile::parse(&bytes).unwrap();
    assert_eq!(file.build_id(), BUILD_ID);
    assert_eq!(file.rows().len() as u32, FULL_ROWS);
    let first = file.rows().next().map(|row| u64::from(row.code));
    assert_eq!(first, Some(CODE_OFFSET), "keyed by file offset");
    let arguments = ["caller-table", "guest.elf", "-o", "t", "--json"];
    let (json, _) = expect(0, &arguments, image.folder());
    let json = program::json(&json);
    assert_eq!(json["rows"], FULL_ROWS);
    assert_eq!(json["block_bytes"], block(FULL_ROWS + 2));
    assert_eq!(fs::read(image.folder().join("t")).unwrap(), bytes);
    let piped =
        Command::new(PROGRAM).args(["caller-table", image.path(), "-o", "-"]).output().unwrap();
    assert_eq!(piped.stdout, bytes);
}

#[test]
fn what_yields_no_file_says_why() {
    let folder = tempfile::tempdir().unwrap();
    let here = folder.path();
    let section = eh_frame(FUNCTIONS);
    let mut no_id = TestElf::new(&[0xf4; 64], &[(".eh_frame", 0, &section)]);
    no_id.sections.truncate(1);
    fs::write(here.join("no-id"), no_id.bytes()).unwrap();
    fs::write(here.join("no-calls"), TestElf::new(&[0xf4; 64], &[]).bytes()).unwrap();
    fs::write(here.join("text"), "no ELF").unwrap();
    for (file, words) in [
        ("no-id", "--build-id"),
        ("no-calls", "-fasynchronous-unwind-tables"),
        ("text", "not an ELF file"),
        ("nothing", "cannot read"),
    ] {
        let (stdout, stderr) = expect(6, &["caller-table", file], here);
        assert!(stderr.contains(words), "{file}: {stderr}");
        assert_eq!(stdout, "");
    }
    assert_eq!(fs::read_dir(here).unwrap().count(), 3, "no file was written");
}

/// The frame code of the first byte of the mapping.
const CODE_BASE: u32 = 0x100;

/// A recording of two functions, the first with a frame record and the second without, both as
/// callers of a third; answers what `doctor` says of the frame pointers.
fn doctor_of_callers(image: &Image, epoch_flags: u32, kept: u64, without: u64) -> Value {
    // Return addresses; the calls before them lie where the frame record is complete.
    let (with_record, no_record) = (CODE_BASE + 9, CODE_BASE + STRIDE as u32 + 9);
    let (leaf, outermost) = (CODE_BASE + 2 * STRIDE as u32, CODE_BASE + 4 * STRIDE as u32 + 9);
    let peer = Peer::start(Script {
        epoch_flags,
        vcpus: vec![vec![
            (0, vec![leaf, with_record, outermost], kept),
            (0, vec![leaf, no_record, outermost], without),
        ]],
        ..image.guest(FULL_ROWS)
    });
    let address = peer.address.to_string();
    let record = ["record", "1s", "--image", image.path(), "-o", "r.unikprof"];
    let record = [&["connect", &address], &record[..]].concat();
    expect(0, &record, image.folder());
    let doctor = ["doctor", "r.unikprof", "--json", "--image", image.path()];
    // Its rate is always bad: it did not last long enough for so many samples.
    let (stdout, _) = expect(9, &doctor, image.folder());
    let document = program::json(&stdout);
    let checks = document["checks"].as_array().unwrap();
    let check = checks.iter().find(|c| c["name"] == "frame pointers");
    check.unwrap().clone()
}

/// A chain of frame pointers passes over the callers of such a function, and the agent cannot see
/// it.
#[test]
fn doctor_tells_of_callers_that_the_chain_passed_over() {
    let image = Image::new();
    for (kept, without, verdict) in [(995, 5, "good"), (990, 10, "look"), (800, 200, "bad")] {
        let check = doctor_of_callers(&image, 0, kept, without);
        assert_eq!(check["verdict"], verdict, "{check:#}");
        let share = check["figures"]["passed_over_share"].as_f64();
        assert_eq!(share, Some(without as f64 / 1000.0), "{check:#}");
        assert_eq!(check["figures"]["broken_share"], 0.0);
        let advice = check["advice"].as_str().unwrap_or_default();
        assert_eq!(advice.contains("--unwind table"), verdict != "good");
    }
}

/// A walk by the table passes over nothing, and of damaged information nothing follows.
#[test]
fn doctor_says_nothing_of_callers_it_cannot_judge() {
    let image = Image::new();
    let by_table = doctor_of_callers(&image, start_flag::UNWIND_TABLE, 0, 1000);
    assert_eq!(by_table["verdict"], "good", "{by_table:#}");
    assert!(by_table["figures"]["passed_over_share"].is_null());
    let code = [0xf4; (FUNCTIONS * STRIDE) as usize];
    let damaged = TestElf::new(&code, &[(".eh_frame", 0, &[0x11; 64])]);
    fs::write(&image.path, damaged.bytes()).unwrap();
    let check = doctor_of_callers(&image, 0, 0, 1000);
    assert_eq!(check["verdict"], "good", "{check:#}");
    assert!(check["figures"]["passed_over_share"].is_null());
}
