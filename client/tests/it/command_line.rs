//! The program as its users meet it: help, exit codes, bad input, and peers that are no agents.

use crate::peer;
use std::fs;
use std::io::Write as _;
use std::net::TcpStream;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::peer::program::has;
use crate::peer::{Peer, Script, program};
use unikprof_proto::code::{message_type as types, refusal};
use unikprof_proto::preamble::{self, Preamble, VersionRange};

const PROGRAM: &str = env!("CARGO_BIN_EXE_unikprof-client");

/// Runs the program with the words of this line, which single spaces separate, demands this exit
/// code, and answers stdout and stderr.
#[track_caller]
fn expect(code: i32, line: &str, directory: &Path) -> (String, String) {
    program::run(code, &words(line), directory)
}

/// The same for `connect` to this peer.
#[track_caller]
fn connect(code: i32, peer: &Peer, line: &str, directory: &Path) -> (String, String) {
    expect(code, &format!("connect {} {line}", peer.address), directory)
}

/// Two spaces, or one at the end, stand for an empty word.
fn words(line: &str) -> Vec<&str> {
    line.split(' ').collect()
}

#[track_caller]
fn refused(code: i32, line: &str, words: &[&str]) {
    let directory = tempfile::tempdir().unwrap();
    let (stdout, stderr) = expect(code, line, directory.path());
    assert_eq!(stdout, "", "an error belongs to stderr");
    has(&stderr, words);
    program::is_empty(directory.path());
}

/// A peer that is no agent, and the answer to `info` asked of it. The time is what a busy machine
/// needs to bring them together; some are waited for so long, or tried again.
#[track_caller]
fn foreign(code: i32, words: &[&str], speak: impl Fn(TcpStream) + Send + 'static) {
    let peer = Peer::foreign(speak);
    let address = peer.address.to_string();
    refused(code, &format!("connect {address} --timeout 4s info"), words);
}

fn greeted(mut stream: TcpStream, rest: &[u8]) {
    let _ = stream.write_all(&preamble::encode(preamble::OPEN));
    let _ = stream.write_all(rest);
    // Open until the client has had enough, so that it does not see an early end.
    let _ = std::io::copy(&mut stream, &mut std::io::sink());
}

#[test]
fn help_teaches() {
    let here = tempfile::tempdir().unwrap();
    let of_all = "connect report doctor keygen --key-file completions Examples: Exit codes: 130";
    let of_connect = "info record start stop dump check copy [IPV6]:PORT 7777";
    for (line, words_of_it) in [
        ("--help", of_all),
        ("connect --help", of_connect),
        ("report --help", "--salvage Examples:"),
    ] {
        let (help, _) = expect(0, line, here.path());
        has(&help, &words(words_of_it));
    }
    for word in ["info", "record", "start", "stop", "dump", "check", "copy"] {
        let (help, _) = expect(0, &format!("connect h {word} --help"), here.path());
        assert!(help.contains("Usage:"), "{help}");
    }
    // Events have no beginning to count from: a time such as 12s is an error there.
    let (help, _) = expect(0, "connect h events --help", here.path());
    assert!(help.contains("-30s") && !help.contains("12s"), "{help}");
    let (version, _) = expect(0, "--version", here.path());
    assert_eq!(version, format!("unikprof-client {}\n", env!("CARGO_PKG_VERSION")));
    for shell in ["bash", "zsh", "fish"] {
        let (script, _) = expect(0, &format!("completions {shell}"), here.path());
        assert!(script.contains("unikprof-client"));
    }
}

#[test]
fn a_length_of_time_reads_the_same_in_every_output() {
    let directory = tempfile::tempdir().unwrap();
    let peer = Peer::start(Script::default());
    let address = peer.address.to_string();
    let run = |line: &str| expect(0, line, directory.path()).0;
    let told = run(&format!("connect {address} record 1s -o r.unikprof"));
    assert!(told.contains("in 50 µs, at 1000000 Hz"), "{told}");
    let report = run("report r.unikprof --accounting");
    assert!(report.contains("time        50 µs from"), "{report}");
    let started = run(&format!("connect {address} start --duration 90s"));
    assert!(started.contains("it ends after 1 min 30 s"), "{started}");
}

/// No clock holds the moment at which these end.
#[test]
fn times_that_never_end_are_waited_for_like_any_other() {
    const NEVER: &str = "18446744073709551615s";
    let directory = tempfile::tempdir().unwrap();
    let connect = |peer: &Peer, rest: &str| {
        let address = peer.address;
        let line = format!("connect {address} --timeout {NEVER} --retry {NEVER} {rest}");
        expect(0, &line, directory.path())
    };
    connect(&Peer::start(Script::default()), "info");
    // The line breaks within the greeting's bytes, and is taken up again.
    let broken = Peer::start(Script {
        cuts: vec![16 + peer::welcome(&Script::default(), 1_000).concat().len() + 1],
        ..Script::default()
    });
    connect(&broken, "stop -o r.unikprof");
    assert_eq!(broken.clients().len(), 2, "{:?}", broken.log());
}

/// Nobody who knew the subcommands here, or forgets `connect`, has to search for them.
#[test]
fn subcommands_of_the_fleet_name_its_program() {
    let here = tempfile::tempdir().unwrap();
    for line in ["serve --config fleet.toml", "collect"] {
        let (_, told) = expect(2, line, here.path());
        has(&told, &["unikprof-fleet", "cargo install --locked --path client/fleet"]);
        assert_eq!(told.lines().count(), 1, "{told}");
    }
    // First guesses.
    for (line, meant) in [
        ("record 30s", "connect ADDR record"),
        ("top", "connect ADDR top"),
        ("10.0.0.5 info", "connect 10.0.0.5"),
    ] {
        let (_, told) = expect(2, line, here.path());
        has(&told, &[meant]);
    }
    let (help, _) = expect(0, "--help", here.path());
    assert!(help.ends_with("Many guests: unikprof-fleet\n"), "{help}");
    assert!(!help.contains("  serve") && !help.contains("  collect"), "{help}");
}

#[test]
fn a_wrong_command_line_is_usage() {
    for (line, words) in [
        ("connect", &["Usage"][..]),
        ("connect h", &["Usage"]),
        ("connect info", &["no address", "connect ADDR", "UNIKPROF_ADDR"]),
        ("connect h:0 info", &["port", "1 to 65535"]),
        ("connect http://h info", &["without a scheme"]),
        ("connect h record -F 0", &["from 0.1 to 100000 samples"]),
        ("connect h record -F 99999999", &["from 0.1 to 100000 samples"]),
        ("connect h record --interval 0s", &["from 10us to 10s"]),
        ("connect h record -F 9 --interval 1ms", &["cannot be used with"]),
        ("connect h record 30", &["`30s`"]),
        ("connect h record --name ", &["1 to 64 bytes"]),
        ("connect h record -o %x.svg", &["unknown placeholder", "%t"]),
        ("connect h record --mode sleep", &["cpu", "wall", "off-cpu"]),
        ("connect h record --unwind dwarf", &["fp", "table"]),
        ("connect h record --format pdf", &["pprof"]),
        ("connect h record --force-image", &["--image"]),
        ("report f --last -3s", &["`30s`", "without a sign"]),
        ("report f --vcpu x", &["a vCPU's number", "`--vcpu 0,2`"]),
        ("report f --top x", &["a whole number"]),
        ("nonsense", &["unrecognized subcommand"]),
        ("trace", &["'connect ADDR trace'"]),
        ("help trace", &["'connect ADDR trace'"]),
    ] {
        refused(2, line, words);
    }
}

#[test]
fn the_address_may_be_in_the_environment() {
    let here = tempfile::tempdir().unwrap();
    let peer = Peer::start(Script::default());
    let connect = |set: &str, words: &[&str]| {
        Command::new(PROGRAM)
            .args(["connect", "--timeout", "4s"])
            .args(words)
            .current_dir(here.path())
            .env("UNIKPROF_ADDR", set)
            .stdin(Stdio::null())
            .output()
            .unwrap()
    };
    let address = peer.address.to_string();
    let found = connect(&address, &["info"]);
    assert!(found.status.success(), "{found:?}");
    let found = connect("192.0.2.1:1", &[&address, "info"]);
    assert!(found.status.success(), "the argument overrides it: {found:?}");
    let wrong = connect("http://h", &["info"]);
    assert_eq!(wrong.status.code(), Some(2), "{wrong:?}");
    let told = String::from_utf8(wrong.stderr).unwrap();
    assert!(told.contains("without a scheme"), "{told}");
}

#[test]
fn manual_pages_and_completions_are_installed_by_one_command() {
    let here = tempfile::tempdir().unwrap();
    let (told, _) = expect(0, "install-docs --prefix there", here.path());
    let share = here.path().join("there/share");
    let page = |name: &str| fs::read_to_string(share.join("man/man1").join(name)).unwrap();
    assert!(page("unikprof-client.1").contains("Exit codes"));
    // Pages say what the help says, options and examples alike.
    let record = page("unikprof-client-connect-record.1");
    has(
        &record,
        &["\\-\\-interval", "record 30s", "TH unikprof-client-connect-record 1  \"unikprof "],
    );
    for path in [
        "bash-completion/completions/unikprof-client",
        "zsh/site-functions/_unikprof-client",
        "fish/vendor_completions.d/unikprof-client.fish",
    ] {
        let script = fs::read_to_string(share.join(path)).unwrap();
        assert!(script.contains("caller-table"), "{path}");
        assert!(told.contains(path), "{told}");
    }
    // A file is in the way of the folder.
    let blocked = "install-docs --prefix there/share/man/man1/unikprof-client.1";
    let (_, stderr) = expect(7, blocked, here.path());
    assert!(stderr.contains("unikprof-client.1"), "{stderr}");
}

/// Where nobody listens. A port that was free a moment ago may be another test's.
const NOBODY: &str = "127.0.0.1:1";

#[test]
fn where_nothing_listens_there_is_no_connection() {
    refused(3, &format!("connect {NOBODY} info"), &["cannot connect", NOBODY, "refused"]);
    refused(
        3,
        "connect no-such-host.invalid info",
        &["cannot resolve the host `no-such-host.invalid`"],
    );
}

#[test]
fn other_servers_are_told_from_agents() {
    foreign(4, &["web server", "HTTP/1.1 400", "7777"], |mut stream| {
        let _ = stream.write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n");
        let _ = std::io::copy(&mut stream, &mut std::io::sink());
    });
    foreign(4, &["SSH server"], |mut stream| {
        let _ = stream.write_all(b"SSH-2.0-OpenSSH_9.6\r\n");
        let _ = std::io::copy(&mut stream, &mut std::io::sink());
    });
    foreign(4, &["not a unikprof agent", "\\x1b"], |mut stream| {
        let _ = stream.write_all(b"\x1b[2J\x00\xff\xfe\x01random bytes here");
        let _ = std::io::copy(&mut stream, &mut std::io::sink());
    });
    foreign(4, &["closed it without sending anything"], drop);
    foreign(4, &["sent nothing within 4 s", "--timeout"], |mut stream| {
        let _ = std::io::copy(&mut stream, &mut std::io::sink());
    });
    foreign(4, &["found `unik`"], |mut stream| {
        let _ = stream.write_all(b"unik");
    });
}

#[test]
fn agents_that_break_the_protocol_are_told_so() {
    let theirs = VersionRange { lowest: 7, highest: 9 };
    foreign(4, &["version 7 to 9", "this client 1", "newer client"], move |mut stream| {
        let _ =
            stream.write_all(&preamble::encode(Preamble { versions: theirs, ..preamble::OPEN }));
    });
    foreign(4, &["1000000 bytes", "the limit is 16384"], |stream| {
        let mut header = [0x01, 0x80, 0, 0, 0, 0, 0, 0, 0, 0];
        header[2..6].copy_from_slice(&1_000_000_u32.to_le_bytes());
        greeted(stream, &header);
    });
    foreign(4, &["violated the protocol", "checksum"], |stream| {
        greeted(stream, &[0x01, 0x80, 1, 0, 0, 0, 9, 9, 9, 9, 9]);
    });
    let welcome = peer::welcome(&Script::default(), 1).concat();
    let half = welcome[..welcome.len() / 2].to_vec();
    foreign(4, &["in the middle of a frame"], move |mut stream| {
        let _ = stream.write_all(&preamble::encode(preamble::OPEN));
        let _ = stream.write_all(&half);
        // Reading what the client sent: closing with it unread would reset the connection.
        let mut request = [0; 64];
        let _ = std::io::Read::read(&mut stream, &mut request);
        let _ = stream.shutdown(std::net::Shutdown::Write);
        let _ = std::io::copy(&mut stream, &mut std::io::sink());
    });
    foreign(4, &["expected a welcome", "found a status"], |stream| {
        greeted(stream, &peer::encode(&peer::status()));
    });
    // Stops in the middle of its mappings and says nothing more.
    let only_welcome = peer::welcome(&Script::default(), 1)[0].clone();
    foreign(3, &["no response from the agent within 4 s", "hello messages"], move |stream| {
        greeted(stream, &only_welcome);
    });
}

#[test]
fn info_and_check_tell_what_there_is() {
    let here = tempfile::tempdir().unwrap();
    let peer = Peer::start(Script::default());
    let address = peer.address.to_string();
    let (info, stderr) = connect(0, &peer, "info", here.path());
    has(&info, &["web-1", "2 vCPUs", "abababab", "/boot/guest.elf", "100000 Hz"]);
    assert!(info.starts_with("guest `web-1` can be recorded: "), "{info}");
    assert_eq!(stderr, "", "on loopback nobody else reads along");
    let (info, _) = connect(0, &peer, "info --json", here.path());
    let info = program::json(&info);
    assert_eq!(info["guest_name"], "web-1");
    assert_eq!(info["mappings"][0]["start"], 0x10_0000);
    let (status, _) = expect(0, &format!("connect --json {address} check"), here.path());
    let status = program::json(&status);
    assert_eq!(status["recordings"][0]["state"], "finished");
    assert_eq!(status["nodes_capacity"], 8192);
    let (started, _) = connect(0, &peer, "start --name n", here.path());
    has(&started, &["started recording 3 `n`: running time at 997 Hz"]);
}

#[test]
fn a_guests_name_cannot_move_the_cursor() {
    let here = tempfile::tempdir().unwrap();
    let peer = Peer::start(Script { guest_name: "web\x1b[2J/../x", ..Script::default() });
    let (info, _) = connect(0, &peer, "info", here.path());
    assert!(!info.contains('\x1b'), "{info:?}");
    let (out, _) = connect(0, &peer, "record 1s -o %n.unikprof", here.path());
    assert!(!out.contains('\x1b'), "{out:?}");
    assert!(here.path().join("web__2J_.._x.unikprof").exists(), "{out}");
}

#[test]
fn a_recording_becomes_every_format() {
    let here = tempfile::tempdir().unwrap();
    let peer = Peer::start(Script::default());
    let (out, stderr) = connect(
        0,
        &peer,
        "record 1s -o r.unikprof -o r.folded -o r.pb.gz -o r.json -o r.txt",
        here.path(),
    );
    assert!(out.contains("18 samples of web-1"), "{out}");
    assert!(!stderr.contains('\r') && !stderr.contains('\x1b'), "no progress here: {stderr:?}");
    for name in ["r.unikprof", "r.folded", "r.pb.gz", "r.json", "r.txt"] {
        assert!(out.contains(name) && here.path().join(name).exists(), "{name}: {out}");
    }
    let (text, _) = expect(0, "report r.unikprof", here.path());
    assert!(text.contains(" functions by total, 18 samples"), "{text}");
    let (json, _) = expect(0, "report r.unikprof --json", here.path());
    let _ = program::json(&json);
    let (folded, _) = expect(0, "report r.unikprof --format folded", here.path());
    assert_eq!(folded, fs::read_to_string(here.path().join("r.folded")).unwrap());
    refused(
        2,
        &format!("report {} -o again.unikprof", here.path().join("r.unikprof").to_str().unwrap()),
        &["cannot write a .unikprof file"],
    );
}

#[test]
fn a_report_alone_leaves_no_recording_behind() {
    let here = tempfile::tempdir().unwrap();
    let peer = Peer::start(Script::default());
    connect(0, &peer, "record 1s -o %n.folded", here.path());
    let left: Vec<_> = fs::read_dir(here.path()).unwrap().map(|e| e.unwrap().file_name()).collect();
    assert_eq!(left, ["web-1.folded"]);
    let (out, _) = connect(0, &peer, "dump -o - --format folded", here.path());
    assert_eq!(out, fs::read_to_string(here.path().join("web-1.folded")).unwrap());
}

/// Runs the program after a line of shell in the same process, so that `$$` is the program's own
/// id.
#[cfg(unix)]
fn run_after(shell: &str, line: &str, directory: &Path) -> Output {
    Command::new("sh")
        .args(["-ec", &format!("{shell}; exec \"$@\""), "sh", PROGRAM])
        .args(words(line))
        .current_dir(directory)
        .env("TMPDIR", directory)
        .env_remove("UNIKPROF_ADDR")
        .env_remove("UNIKPROF_KEY_FILE")
        .env_remove("DEBUGINFOD_URLS")
        .stdin(Stdio::null())
        .output()
        .unwrap()
}

/// Whoever guesses the name of the recording behind a report could have another file replaced and
/// deleted.
#[cfg(unix)]
#[test]
fn a_temporary_recording_follows_no_link_that_waits_for_it() {
    let peer = Peer::start(Script::default());
    let address = peer.address.to_string();
    for output in ["-", "out.folded"] {
        let here = tempfile::tempdir().unwrap();
        let victim = here.path().join("victim");
        fs::write(&victim, "precious").unwrap();
        let links = "ln -s victim unikprof-$$.unikprof; ln -s victim out.folded.$$.unikprof";
        let dump = format!("connect {address} dump --format folded -o {output}");
        let output = run_after(links, &dump, here.path());
        let stderr = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(0), "{stderr}");
        assert_eq!(fs::read_to_string(&victim).ok().as_deref(), Some("precious"));
        let mut left = fs::read_dir(here.path()).unwrap();
        let stray = left.find(|entry| {
            let entry = entry.as_ref().unwrap();
            let name = entry.file_name().into_string().unwrap();
            let is_link = entry.file_type().unwrap().is_symlink();
            !is_link && name != "victim" && name != "out.folded"
        });
        assert!(stray.is_none(), "left behind: {stray:?}");
    }
}

/// A recording tells what its guest does; a report is made to be handed on.
#[cfg(unix)]
#[test]
fn recordings_are_their_owners_alone() {
    use std::os::unix::fs::PermissionsExt as _;
    let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
    let here = tempfile::tempdir().unwrap();
    let peer = Peer::start(Script::default());
    let address = peer.address.to_string();
    // An empty file that all may read, as a shell makes it.
    fs::write(here.path().join("r.unikprof"), "").unwrap();
    let record = format!("connect {address} record 1s -o r.unikprof -o r.folded");
    let output = run_after("umask 022", &record, here.path());
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    assert_eq!(mode(&here.path().join("r.unikprof")), 0o600);
    assert_eq!(mode(&here.path().join("r.folded")), 0o644);

    let dump = format!("connect {address} dump --format text -o /dev/full");
    let output = run_after("umask 022", &dump, here.path());
    let stderr = String::from_utf8(output.stderr).unwrap();
    let kept = stderr.split("recording itself is in ").nth(1).expect(&stderr);
    let kept = kept.split(';').next().unwrap();
    assert_eq!(mode(Path::new(kept)), 0o600);
}

#[test]
fn a_report_that_cannot_be_written_does_not_cost_the_recording() {
    let here = tempfile::tempdir().unwrap();
    let peer = Peer::start(Script::default());
    let (_, stderr) = connect(7, &peer, "record 1s -o /dev/full --format text", here.path());
    has(&stderr, &["/dev/full", "recording itself is in "]);
    let kept = stderr.split("recording itself is in ").nth(1).unwrap().split(';').next().unwrap();
    expect(0, &format!("report {kept}"), here.path());
    fs::remove_file(kept).unwrap();
}

#[test]
fn outputs_that_cannot_be_written() {
    let peer = Peer::start(Script::default());
    let address = peer.address.to_string();
    refused(
        7,
        &format!("connect {address} record 1s -o /no/such/r.unikprof"),
        &["/no/such/r.unikprof", "check that its directory exists"],
    );
    assert_eq!(peer.log(), ["hello"], "before the guest is asked");
    let leaks = format!("connect {address} leaks 1h -o /dev/null");
    refused(2, &leaks, &["/dev/null", "is a device or a pipe"]);
    refused(
        7,
        &format!("connect {address} record 1s -o /dev/full --format unikprof"),
        &[
            "/dev/full",
            "free some space",
            "is still in the guest",
            &format!("`unikprof-client connect {address} stop --name record-"),
        ],
    );
    assert_eq!(peer.asked("acknowledge"), 0, "the guest keeps its counts");
}

/// The two commands that `start` prints, pasted at once.
#[test]
fn fetches_within_a_second_get_names_of_their_own() {
    let here = tempfile::tempdir().unwrap();
    for word in ["dump", "dump", "dump", "stop"] {
        connect(0, &Peer::start(Script::default()), word, here.path());
    }
    assert_eq!(fs::read_dir(here.path()).unwrap().count(), 4);
}

/// Stacks of one vCPU that take many blocks of a disk.
fn many_stacks() -> Vec<(u32, Vec<u32>, u64)> {
    let stack = |node: u32| (0, vec![0x110 + node % 64], 1);
    (0..2_000).map(stack).collect()
}

/// An older epoch is safe on disk, and cleared in the guest, when there is no more room: it is kept
/// whole, and no half of the newer one.
#[test]
fn a_disk_that_fills_up_keeps_what_the_guest_has_cleared() {
    let here = tempfile::tempdir().unwrap();
    let script = Script { vcpus: vec![many_stacks()], older_epoch: true, ..Script::default() };
    let roomy = Peer::start(script.clone());
    connect(0, &roomy, "dump -o whole.unikprof", here.path());
    let length = fs::metadata(here.path().join("whole.unikprof")).unwrap().len();

    let peer = Peer::start(script.clone());
    // The limit stands for a full disk: three quarters of what would be written, in blocks of 512
    // bytes.
    let limited = format!("trap '' XFSZ; ulimit -f {}; exec \"$@\"", length * 3 / 4 / 512);
    let output = Command::new("sh")
        .args(["-c", &limited, "sh", PROGRAM])
        .args(["connect", &peer.address.to_string(), "dump"])
        .args(["-o", "cut.unikprof"])
        .current_dir(here.path())
        .output()
        .unwrap();
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(8), "{stderr}");
    let command = format!("`unikprof-client connect {} dump --name default`", peer.address);
    assert!(stderr.contains(&command), "{stderr}");
    let log = peer.log();
    assert!(log.contains(&"fetch 7 0".into()), "{log:?}");
    assert!(!log.contains(&"acknowledge 7".into()), "{log:?}");
    let (out, _) = expect(0, "report cut.unikprof --json", here.path());
    assert!(out.contains("the recording is incomplete"), "{out}");
}

/// A file is removed, and its disk has no room for another one: a second disk has.
#[cfg(target_os = "linux")]
#[test]
fn a_file_that_is_removed_from_a_full_disk_is_kept_on_another() {
    let here = tempfile::tempdir().unwrap();
    let unshared = |script: &str| {
        let script = format!("mount -t tmpfs -o size=64k tmpfs small; {script}");
        let mut command = Command::new("unshare");
        command.args(["-rm", "sh", "-ec", &script, "sh"]).current_dir(here.path());
        command
    };
    fs::create_dir(here.path().join("small")).unwrap();
    if !unshared(":").status().is_ok_and(|status| status.success()) {
        return skipped("a_file_that_is_removed_from_a_full_disk_is_kept_on_another", "unshare");
    }
    let full = here.path().join("full");
    let peer = Peer::start(Script {
        vcpus: vec![many_stacks()],
        older_epoch: true,
        on_acknowledge: Some(Arc::new(move |_| {
            let deadline = Instant::now() + peer::PATIENT;
            while !full.exists() && Instant::now() < deadline {
                std::thread::sleep(Duration::from_millis(5));
            }
        })),
        ..Script::default()
    });
    let spoil = "until rm small/o.unikprof; do sleep 0.01; done; cat /dev/zero >small/z || : >full";
    let output = unshared(&format!("({spoil}) 2>/dev/null & exec \"$@\""))
        .args([PROGRAM, "connect", &peer.address.to_string(), "dump", "-o", "small/o.unikprof"])
        .env("TMPDIR", here.path())
        .output()
        .unwrap();
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(7), "{stderr}");
    let kept = stderr.split("what arrived is in ").nth(1).unwrap().split(';').next().unwrap();
    let (out, _) = expect(0, &format!("report {kept} --json"), here.path());
    assert!(out.contains("the recording is incomplete"), "{out}");
}

/// An older epoch and one that breaks for good within the last 1,000 bytes of the file or so.
fn broken_near_its_end(folder: &Path) -> Script {
    let script = Script { vcpus: vec![many_stacks()], older_epoch: true, ..Script::default() };
    connect(0, &Peer::start(script.clone()), "dump -o whole.unikprof", folder);
    let whole = fs::metadata(folder.join("whole.unikprof")).unwrap();
    Script { cuts: [vec![whole.len() as usize - 1_000], vec![20; 100]].concat(), ..script }
}

/// An older epoch is safe on disk, and cleared in the guest, when the line breaks within the next
/// one and the disk has no room to say so: the file is kept, and what is told is that it is
/// incomplete.
#[cfg(unix)]
#[test]
fn a_line_that_breaks_and_a_full_disk_keep_what_the_guest_has_cleared() {
    let here = tempfile::tempdir().unwrap();
    let script = broken_near_its_end(here.path());
    let dump = |limit: &str| {
        let _ = fs::remove_file(here.path().join("cut.unikprof"));
        let peer = Peer::start(script.clone());
        let address = peer.address.to_string();
        let dump = format!("connect {address} --retry 300ms dump -o cut.unikprof");
        let output = run_after(limit, &dump, here.path());
        let stderr = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(8), "{stderr}");
        assert!(stderr.contains("what arrived is in"), "{stderr}");
        let file = fs::metadata(here.path().join("cut.unikprof")).unwrap();
        (file.len(), peer.log())
    };
    let (length, log) = dump("true");
    assert!(log.contains(&"acknowledge 6".into()), "{log:?}");
    assert!(!log.contains(&"acknowledge 7".into()), "{log:?}");
    // A file of as many whole blocks as have room cannot hold its end.
    let (limited, _) = dump(&format!("trap '' XFSZ; ulimit -f {}", (length - 1) / 512));
    assert!(limited < length, "{limited} of {length}");
    expect(0, "report cut.unikprof --salvage", here.path());
}

/// What is missing is told whatever becomes of the reports, and once.
#[cfg(unix)]
#[test]
fn an_incomplete_recording_is_told_beside_all_else_that_fails() {
    let here = tempfile::tempdir().unwrap();
    let script = broken_near_its_end(here.path());
    fs::create_dir(here.path().join("folder.folded")).unwrap();
    let place = here.path().join("r.unikprof");
    let dump = |code: i32, removes: bool, outputs: &str, out: Stdio| {
        let _ = fs::remove_file(&place);
        let place = place.clone();
        let peer = Peer::start(Script {
            on_acknowledge: removes.then_some(Arc::new(move |_| {
                let _ = fs::remove_file(&place);
            })),
            ..script.clone()
        });
        let line = format!("connect {} --retry 300ms dump -o r.unikprof{outputs}", peer.address);
        program::finished(code, program::command(&words(&line), here.path()).stdout(out))
    };
    let incomplete = "the recording is incomplete";
    let (text, told) = dump(8, false, "", Stdio::piped());
    has(&told, &[incomplete, "what arrived is in r.unikprof"]);
    assert!(text.contains("ticks") && !text.contains("incomplete"), "{text}");
    let (_, told) = dump(8, false, " -o folder.folded", Stdio::piped());
    has(&told, &[incomplete, "what arrived is in r.unikprof", "folder.folded"]);
    let (_, told) = dump(7, true, "", Stdio::piped());
    has(&told, &[incomplete, "the recording itself is in"]);
    let (reader, closed) = std::io::pipe().unwrap();
    drop(reader);
    let (_, told) = dump(8, false, "", closed.into());
    has(&told, &[incomplete]);
}

/// A reader that has had enough wants nothing more, neither words nor a file.
#[cfg(unix)]
#[test]
fn a_closed_pipe_leaves_nothing_behind() {
    let here = tempfile::tempdir().unwrap();
    let live = Script::live();
    for (script, line) in
        [(Script::default(), "record 1s -o - --format folded"), (live, "leaks 1h")]
    {
        let peer = Peer::start(script);
        let line = format!("connect {} {line}", peer.address);
        let (reader, closed) = std::io::pipe().unwrap();
        drop(reader);
        let mut command = program::command(&words(&line), here.path());
        let (_, told) = program::finished(0, command.env("TMPDIR", here.path()).stdout(closed));
        assert!(!told.contains("error") && !told.contains("the recording itself"), "{told}");
        program::is_empty(here.path());
    }
}

/// What a dump has fetched is cleared in the guest, and the reader of its report took none of it.
#[cfg(unix)]
#[test]
fn a_dump_into_a_closed_pipe_is_kept() {
    let here = tempfile::tempdir().unwrap();
    for (line, is_kept) in [
        ("dump -o -", true),
        ("stop -o - --format folded", true),
        ("copy -o -", false),
        ("dump -o r.folded", false),
    ] {
        let peer = Peer::start(Script { waiting: 1, ..Script::default() });
        let line = format!("connect {} {line}", peer.address);
        let (reader, closed) = std::io::pipe().unwrap();
        drop(reader);
        let mut command = program::command(&words(&line), here.path());
        let command = command.env("TMPDIR", here.path()).stdout(closed);
        let (_, told) = program::finished(if is_kept { 7 } else { 0 }, command);
        let kept = told.split("recording itself is in ").nth(1);
        assert_eq!(kept.is_some(), is_kept, "{line}: {told}");
        if let Some(kept) = kept {
            expect(0, &format!("report {}", kept.split(';').next().unwrap()), here.path());
        }
    }
}

/// Of several reports that fail each is told, then where the recording is.
#[test]
fn reports_that_fail_are_told_with_the_recordings_place_and_its_warnings() {
    let here = tempfile::tempdir().unwrap();
    fs::create_dir(here.path().join("folder.folded")).unwrap();
    let peer = Peer::start(Script { aged: 3, ..Script::default() });
    for (outputs, words) in [
        ("-o folder.folded", &["folder.folded"][..]),
        ("-o folder.folded -o a.trace.json", &["folder.folded", "a.trace.json"]),
    ] {
        let line = format!("record 1s -o r.unikprof {outputs}");
        let (text, told) = connect(7, &peer, &line, here.path());
        has(&told, words);
        has(&told, &["the recording itself is in ", "r.unikprof; show it"]);
        assert!(!told.contains("was printed"), "{told}");
        assert!(text.contains("ticks"), "{text}");
    }
}

#[test]
fn a_refusal_is_told() {
    let peer = Peer::start(Script {
        refuses: Some((types::START, refusal::UNFETCHED, "`nightly` waits to be fetched")),
        ..Script::default()
    });
    let address = peer.address.to_string();
    refused(
        5,
        &format!("connect {address} record 1s -o r.unikprof"),
        &["rejected", "`nightly` waits to be fetched"],
    );
    // Before the images are read, of which this is a wrong one.
    for (words, told) in [
        ("record 1s --depth 129", "outside the agent's limits: 1 to 128"),
        ("start --depth 129", "outside the agent's limits: 1 to 128"),
        ("record 1s --mode alloc", "no allocation"),
        ("start --mode live", "no allocation"),
        ("leaks 1m", "no allocation"),
    ] {
        refused(5, &format!("connect {address} {words} --image {PROGRAM}"), &[told]);
    }
    assert_eq!(peer.asked("refused"), 1, "the first alone was sent");
}

#[test]
fn bad_input_files() {
    let files = tempfile::tempdir().unwrap();
    let path = |name: &str| files.path().join(name).to_str().unwrap().to_owned();
    let peer = Peer::start(Script::default());
    connect(0, &peer, "record 1s -o r.unikprof", files.path());
    let recording = path("r.unikprof");
    let whole = fs::read(&recording).unwrap();
    let [none, text, empty, begun, cut] = ["none", "text", "empty", "begun", "cut"].map(path);
    fs::write(&text, "not a recording").unwrap();
    fs::write(&empty, "").unwrap();
    fs::write(&begun, &whole[..40]).unwrap();
    fs::write(&cut, &whole[..whole.len() - 20]).unwrap();
    let (folder, address) = (tempfile::tempdir().unwrap(), peer.address);
    let folder = folder.path().display();
    // The program itself is an ELF image, but not the guest's.
    let another = format!("--image {PROGRAM}");
    for (code, line, words) in [
        (6, format!("report {none}"), &["cannot read", "none"][..]),
        (6, format!("report {folder}"), &["the folder has no .unikprof file"]),
        (6, format!("report {text}"), &["not a unikprof recording", "found `not a recording`"]),
        (6, format!("report {empty}"), &["not a unikprof recording", "found an empty file"]),
        (6, format!("report {begun} --salvage"), &["damaged at byte", "nothing can be salvaged"]),
        (6, format!("report {cut}"), &["damaged at byte", "--salvage"]),
        (2, format!("report {recording} --vcpu 0,7"), &["has no vCPU 7", "it has 0"]),
        (6, format!("report {recording} {another}"), &["build-id", "abababab", "--force-image"]),
        (6, format!("report {recording} --image {text}"), &["not an ELF file"]),
        (6, format!("report {recording} --symbols {text}"), &["contains no functions"]),
        (6, format!("connect {address} record 1s -o r.svg {another}"), &["build-id", "abababab"]),
    ] {
        refused(code, &line, words);
    }
    let (stdout, _) = expect(0, &format!("report {cut} --salvage"), files.path());
    assert!(stdout.contains("incomplete"), "{stdout}");
}

#[test]
fn a_reader_that_goes_away_is_no_failure() {
    let here = tempfile::tempdir().unwrap();
    let mut child = Command::new(PROGRAM)
        .args(["completions", "bash"])
        .current_dir(here.path())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    drop(child.stdout.take());
    let output = child.wait_with_output().unwrap();
    assert_eq!(String::from_utf8(output.stderr).unwrap(), "");
    assert_eq!(output.status.code(), Some(0));
}

/// Guards samples that a program without a standard output takes out of the guest and throws away.
#[cfg(target_os = "linux")]
#[test]
fn a_closed_stdout_keeps_what_was_sampled() {
    let here = tempfile::tempdir().unwrap();
    for (end, code) in [(">&-", 7), (">/dev/null", 0)] {
        let peer = Peer::start(Script::default());
        let line = format!("{PROGRAM} connect {} stop -o - {end}", peer.address);
        let mut command = Command::new("sh");
        command.args(["-c", &line]).current_dir(here.path()).env("TMPDIR", here.path());
        let output = command.output().unwrap();
        let stderr = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(code), "{end}: {stderr}");
        assert_eq!(stderr.contains("the recording itself is in "), code == 7, "{end}: {stderr}");
    }
    assert_eq!(fs::read_dir(here.path()).unwrap().count(), 1);
}

/// Guards lines that wrap where nothing but the terminal gets the text.
#[test]
fn what_record_prints_fits_its_terminal() {
    let here = tempfile::tempdir().unwrap();
    let peer = Peer::start(Script::default());
    let mut command = Command::new(PROGRAM);
    command.args(["connect", &peer.address.to_string(), "record", "1s", "-o", "r.unikprof"]);
    let output = command.current_dir(here.path()).env("COLUMNS", "60").output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(text.contains(" samples"), "{text}");
    for line in text.lines() {
        // A command is pasted as one line.
        assert!(line.chars().count() <= 60 || line.starts_with("next "), "{line}");
    }
}

/// Records until the signals end it; with `begin`, the shell's commands before.
#[cfg(unix)]
fn recorded_until(signals: &[&str], begin: &str, keeps_stderr: bool) -> (Option<i32>, String) {
    let here = tempfile::tempdir().unwrap();
    let peer = Peer::start(Script { ends_by_itself: false, ..Script::default() });
    let record = format!("connect {} record -o r.unikprof -o r.folded", peer.address);
    let mut child = program::heeding_hangup()
        .args(["sh", "-c", &format!("{begin} exec {PROGRAM} {record}")])
        .current_dir(here.path())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    peer.wait_for("check");
    if !keeps_stderr {
        drop((child.stdout.take(), child.stderr.take()));
    }
    for signal in signals {
        program::signal(signal, child.id());
    }
    let output = child.wait_with_output().unwrap();
    assert_eq!(peer.asked("stop"), 1, "{signals:?}");
    expect(0, "report r.unikprof", here.path());
    assert!(here.path().join("r.folded").exists(), "{signals:?}");
    (output.status.code(), String::from_utf8(output.stderr).unwrap())
}

#[cfg(unix)]
#[test]
fn ctrl_c_keeps_what_was_sampled() {
    for signal in ["INT", "TERM", "HUP"] {
        let (code, stderr) = recorded_until(&[signal], "", true);
        assert_eq!(code, Some(0), "SIG{signal}: {stderr}");
        assert!(stderr.contains("the samples so far are kept"), "SIG{signal}: {stderr}");
    }
}

/// Guards against a recording that stays in the guest because a warning cannot be printed.
#[cfg(unix)]
#[test]
fn a_terminal_that_is_closed_keeps_what_was_sampled() {
    assert_eq!(recorded_until(&["HUP"], "", false).0, Some(0));
}

/// A second signal would drop what was sampled.
#[cfg(target_os = "linux")]
#[test]
fn an_ignored_hangup_stays_ignored() {
    let (code, stderr) = recorded_until(&["HUP", "INT"], "trap '' HUP;", true);
    assert_eq!(code, Some(0), "{stderr}");
}

/// Guards against an abort, which leaves a core file and a backtrace.
#[cfg(target_os = "linux")]
#[test]
fn too_little_memory_is_an_error() {
    let here = tempfile::tempdir().unwrap();
    let file = recorded(Script::default(), here.path());
    // As large as a list of symbols may be; it has no blocks on the disk.
    fs::File::create(here.path().join("large")).unwrap().set_len(1 << 30).unwrap();
    let report = format!("report {file} --symbols large");
    let output = run_after("ulimit -v 800000", &report, here.path());
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1), "{stderr}");
    assert_eq!(stderr, "error: out of memory: no room for 1073741824 bytes more\n");
}

/// Guards against an end by SIGXFSZ.
#[cfg(target_os = "linux")]
#[test]
fn a_limit_of_file_sizes_is_an_error() {
    let here = tempfile::tempdir().unwrap();
    let peer = Peer::start(Script::default());
    let address = peer.address.to_string();
    let record = format!("connect {address} record 1s --name a&b -o r.unikprof");
    let output = run_after("ulimit -f 0", &record, here.path());
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(7), "{stderr}");
    let command = format!("`unikprof-client connect {address} stop --name 'a&b'` fetches it");
    has(&stderr, &["is still in the guest", &command]);
}

#[test]
fn an_output_that_cannot_be_written_drops_no_other() {
    let here = tempfile::tempdir().unwrap();
    let idle = Script { vcpus: vec![Vec::new()], ..Script::default() };
    let file = recorded(idle, here.path());
    let outputs = "-o e.svg -o none/e.txt -o e.pb.gz -o e.txt";
    let (_, stderr) = expect(7, &format!("report {file} {outputs}"), here.path());
    has(&stderr, &["error: cannot write e.svg", "error: cannot write none/e.txt"]);
    let written = ["e.svg", "e.pb.gz", "e.txt"].map(|name| here.path().join(name).exists());
    assert_eq!(written, [false, true, true], "{stderr}");
}

/// The guest clears what a dump has fetched: a second one under the same name would replace the
/// only copy of the first.
#[test]
fn a_dump_replaces_no_other_of_the_same_recording() {
    let here = tempfile::tempdir().unwrap();
    let peer = Peer::start(Script::default());
    // An empty file holds nothing.
    fs::write(here.path().join("r.txt"), "").unwrap();
    connect(0, &peer, "dump -o r.unikprof", here.path());
    connect(0, &peer, "dump -o r.txt", here.path());
    for name in ["r.unikprof", "r.txt"] {
        let first = fs::read(here.path().join(name)).unwrap();
        for subcommand in ["dump", "stop"] {
            let words = format!("{subcommand} -o {name}");
            let (_, stderr) = connect(7, &peer, &words, here.path());
            has(&stderr, &[name, "may hold earlier samples", "choose another name"]);
            assert_eq!(fs::read(here.path().join(name)).unwrap(), first);
        }
    }
    // Nor a report whose samples may lie in no other file.
    let report = fs::read(here.path().join("r.txt")).unwrap();
    let (_, stderr) = connect(7, &peer, "dump -o new.unikprof -o r.txt", here.path());
    has(&stderr, &["r.txt may hold earlier samples"]);
    assert_eq!(fs::read(here.path().join("r.txt")).unwrap(), report);
    assert_eq!((peer.asked("dump"), peer.asked("stop")), (2, 0));
    // After a suspension, too.
    let resumed = Peer::start(Script { instance: 8, ..Script::default() });
    connect(7, &resumed, "stop -o r.unikprof", here.path());
    // Another recording is replaced, as any output is.
    let other = Peer::start(Script { recording: 9, ..Script::default() });
    connect(0, &other, "dump -o other.unikprof", here.path());
    connect(0, &peer, "stop -o other.unikprof", here.path());
}

/// Whether there is such a file already or not.
#[test]
fn an_output_is_told_by_the_name_that_was_given() {
    let here = tempfile::tempdir().unwrap();
    fs::write(here.path().join("target"), "old").unwrap();
    std::os::unix::fs::symlink("target", here.path().join("link.unikprof")).unwrap();
    let peer = Peer::start(Script::default());
    for name in ["r.unikprof", "r.unikprof", "link.unikprof"] {
        let (told, _) = connect(0, &peer, &format!("record 1s -o {name}"), here.path());
        has(&told, &[&format!("wrote        {name}\n")]);
    }
}

/// Guards against characters that a terminal shows as others. Formats for programs keep them.
#[test]
fn text_is_in_the_characters_of_the_locale() {
    let here = tempfile::tempdir().unwrap();
    let file = recorded(Script::default(), here.path());
    let run = |locale: [(&str, &str); 2], words: &str| {
        let mut command = program::command(&words.split(' ').collect::<Vec<_>>(), here.path());
        for name in ["LC_ALL", "LC_CTYPE", "LANG"] {
            command.env_remove(name);
        }
        let output = command.envs(locale.into_iter().filter(|(name, _)| !name.is_empty()));
        let output = output.output().unwrap();
        [output.stdout, output.stderr].map(|text| String::from_utf8(text).unwrap())
    };
    let printed = |locale, words: &str| run(locale, words)[0].clone();
    let (unset, c) = (("", ""), ("LC_ALL", "C"));
    let utf8 = ("LANG", "en_US.UTF-8");
    let doctor = format!("doctor {file}");
    let ascii = printed([c, utf8], &doctor);
    assert!(ascii.is_ascii() && ascii.contains("+-"), "{ascii}");
    for locale in [[unset, unset], [unset, utf8], [("LC_ALL", ""), utf8]] {
        assert!(printed(locale, &doctor).contains('±'));
    }
    let json = format!("{doctor} --json");
    assert_eq!(printed([c, unset], &json), printed([unset, utf8], &json));

    let peer = Peer::start(Script { overflow: 7, ..Script::default() });
    let connect = format!("connect {}", peer.address);
    for (has_more, words) in [
        (true, format!("{connect} record 1s")),
        (true, format!("{connect} info")),
        (false, format!("{connect} stop -o other.unikprof")),
        (true, format!("report {file}")),
        (true, format!("diff {file} other.unikprof")),
        (false, "help report".to_owned()),
        (false, "report none.unikprof".to_owned()),
    ] {
        let [plain, drawn] = [c, utf8].map(|locale| run([locale, unset], &words).concat());
        assert!(plain.is_ascii() && !plain.is_empty(), "{words}: {plain}");
        assert!(!has_more || !drawn.is_ascii(), "{words}: {drawn}");
    }
}

/// A recording of this script, downloaded by the program itself.
fn recorded(script: Script, directory: &Path) -> String {
    let peer = Peer::start(script);
    let file = "run.unikprof";
    let _ = fs::remove_file(directory.join(file));
    connect(0, &peer, &format!("stop -o {file}"), directory);
    file.into()
}

#[test]
fn doctor_of_a_recording_tells_by_its_exit_code_whether_to_trust_it() {
    let here = tempfile::tempdir().unwrap();
    let blocked = Script { mode: 2, ..Script::default() };
    let file = recorded(blocked, here.path());
    let (stdout, stderr) = expect(0, &format!("doctor {file}"), here.path());
    assert!(stdout.starts_with("This profile can be trusted"), "{stdout}");
    assert!(stdout.ends_with("source                the file run.unikprof\n"), "{stdout}");
    assert_eq!(stderr, "");

    // 18 samples say nothing.
    let file = recorded(Script::default(), here.path());
    let (stdout, stderr) = expect(9, &format!("doctor {file} --json"), here.path());
    let document = program::json(&stdout);
    assert_eq!(document["trustworthy"], false);
    assert_eq!(document["source"], "the file run.unikprof");
    let checks = document["checks"].as_array().unwrap();
    let enough = checks.iter().find(|check| check["name"] == "enough").unwrap();
    assert_eq!(enough["verdict"], "bad");
    assert_eq!(enough["figures"]["samples"], 18);
    assert_eq!(stderr, "", "the verdict is the result, not an error");

    // A cut file is judged as far as it goes, not refused.
    let bytes = fs::read(here.path().join(&file)).unwrap();
    fs::write(here.path().join("cut.unikprof"), &bytes[..bytes.len() - 5]).unwrap();
    let (stdout, _) = expect(9, "doctor cut.unikprof", here.path());
    assert!(stdout.contains("bad   complete"), "{stdout}");
}

/// Tells that a test cannot run without a program.
fn skipped(test: &str, program: &str) {
    const REQUIRE: &str = "UNIKPROF_REQUIRE_ALL";
    let is_required = std::env::var_os(REQUIRE).is_some_and(|value| value == "1");
    assert!(!is_required, "{REQUIRE} is set, but `{program}` cannot be used");
    // Not `eprintln!`: the harness hides what a passing test prints.
    let mut stderr = std::io::stderr();
    writeln!(stderr, "SKIPPED {test}: `{program}` cannot be used").unwrap();
}

/// Go's own reader of the format: blocked time is a delay to it, and nothing else is in the file.
#[test]
fn go_tool_pprof_reads_blocked_time() {
    if Command::new("go").arg("version").output().is_err() {
        return skipped("go_tool_pprof_reads_blocked_time", "go");
    }
    let here = tempfile::tempdir().unwrap();
    let blocked = Script {
        mode: 2,
        vcpus: vec![vec![(0, vec![0x150, 0x110], 2_500_000_000)]],
        ..Script::default()
    };
    let file = recorded(blocked, here.path());
    expect(0, &format!("report {file} -o run.pb.gz"), here.path());
    let output = Command::new("go")
        .args(["tool", "pprof", "-top", "run.pb.gz"])
        .current_dir(here.path())
        .env("HOME", here.path())
        .output()
        .unwrap();
    let table = String::from_utf8_lossy(&output.stdout);
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{stderr}");
    assert!(table.contains("Type: delay"), "{table}");
    assert!(table.contains("2.50s total"), "{table}");
}

#[test]
fn doctor_asks_an_agent_without_disturbing_it() {
    let here = tempfile::tempdir().unwrap();
    let peer = Peer::start(Script::default());
    let address = peer.address.to_string();
    let (stdout, _) = expect(0, &format!("doctor {address}"), here.path());
    has(&stdout, &[&format!("the agent at {address}")]);
    has(&stdout, &["This agent's profiles can be trusted"]);
    assert_eq!(peer.log(), ["hello", "check"]);
}

#[test]
fn doctor_says_whether_it_took_a_file_or_an_address() {
    let here = tempfile::tempdir().unwrap();
    fs::write(here.path().join("web"), "").unwrap();
    let (_, stderr) = expect(6, "doctor web", here.path());
    has(&stderr, &["using the file web; for the agent, write `web:7777`"]);
    refused(6, "doctor gone.unikprof", &["gone.unikprof"]);
    // A mistyped file's name could be a host's: the error says that it was looked up as one.
    refused(
        3,
        "doctor gone.invalid",
        &["there is no file `gone.invalid`", "cannot resolve the host"],
    );
    refused(2, "doctor http://h", &["no such file", "without a scheme"]);
    refused(2, "doctor", &["Usage"]);
    refused(3, &format!("doctor {NOBODY}"), &[NOBODY]);
}
