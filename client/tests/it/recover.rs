//! `recover`: what a crashed guest left, out of a console's log or a dump of memory.

use std::fs::{self, File};
use std::io::{Seek as _, SeekFrom, Write as _};
use std::path::Path;
use std::process::Command;

use crate::peer::program::{self, has};
use unikprof_client::exit_code;
use unikprof_proto::console::Lines;
use unikprof_proto::file::BlockHead;

/// Runs `recover`, demands this exit code, and answers stdout and stderr.
#[track_caller]
fn expect(code: u8, directory: &Path, words: &[&str]) -> (String, String) {
    program::run(code.into(), &[&["recover"], words].concat(), directory)
}

fn block(file: &[u8]) -> Vec<u8> {
    [&BlockHead::of(file).encode()[..], file].concat()
}

/// A console's log in which two guests have crashed.
fn log(files: [&[u8]; 2]) -> String {
    let mut log = "guest: up\r\n".to_owned();
    for file in files {
        log += "guest: panicked\r\n";
        for line in Lines::of(&block(file)) {
            log += &format!("{line}\r\nguest: more\r\n");
        }
    }
    log
}

#[test]
fn the_last_crash_of_a_log_is_written_and_others_if_asked_for() {
    let directory = tempfile::tempdir().unwrap();
    let directory = directory.path();
    let files: [&[u8]; 2] = [&[1; 500], &[2; 90]];
    fs::write(directory.join("console.log"), log(files)).unwrap();
    let (told, _) = expect(exit_code::SUCCESS, directory, &["console.log"]);
    has(&told, &["2 of 2", "report console.log.unikprof"]);
    let written = |name: &str| fs::read(directory.join(name)).unwrap();
    assert_eq!(written("console.log.unikprof"), files[1]);
    #[cfg(unix)]
    {
        use std::os::unix::fs::PermissionsExt as _;
        let written = fs::metadata(directory.join("console.log.unikprof")).unwrap();
        let mode = written.permissions().mode() & 0o777;
        assert_eq!(mode, 0o600, "a recording is its owner's alone");
    }

    let first = ["console.log", "--crash", "1", "-o", "first", "--json"];
    let (told, _) = expect(exit_code::SUCCESS, directory, &first);
    let told = program::json(&told);
    assert_eq!((&told["crash"], &told["crashes"][1]["bytes"]), (&1.into(), &90.into()));
    assert_eq!(written("first"), files[0]);

    let log = File::open(directory.join("console.log")).unwrap();
    let mut piped = program::command(&["recover", "-", "-o", "-"], directory);
    let piped = piped.stdin(log).output().unwrap();
    assert_eq!(piped.stdout, files[1]);
    expect(exit_code::INPUT, directory, &["console.log", "--crash", "3"]);
    expect(exit_code::USAGE, directory, &["-"]);

    fs::write(directory.join("core"), [&[0x7f; 999][..], &block(files[0])].concat()).unwrap();
    expect(exit_code::SUCCESS, directory, &["core"]);
    assert_eq!(written("core.unikprof"), files[0]);
}

/// Guards a dead end: who has a log or a dump of a guest that crashed, and asks for a report of it,
/// is told of `recover`.
#[test]
fn a_report_of_what_a_crash_left_points_to_recover() {
    let directory = tempfile::tempdir().unwrap();
    let directory = directory.path();
    let left = [1; 500];
    fs::write(directory.join("console.log"), log([&left, &left])).unwrap();
    fs::write(directory.join("memory"), [&[7; 99][..], &block(&left)].concat()).unwrap();
    fs::write(directory.join("core"), b"\x7fELF\x02\x01\x01\0\0\0\0\0\0\0\0\0\x04\0").unwrap();
    fs::write(directory.join("other"), "guest: up\n").unwrap();
    for word in ["report", "doctor"] {
        for (file, said) in [
            ("console.log", "`unikprof-client recover console.log`"),
            ("memory", "`unikprof-client recover memory`"),
            ("core", "`unikprof-client recover core`"),
            ("other", "found `guest: up"),
        ] {
            let (_, error) = program::run(exit_code::INPUT.into(), &[word, file], directory);
            assert!(error.contains(said), "{word} {file}: {error}");
        }
    }
}

#[test]
fn nothing_is_an_error_that_says_why() {
    let directory = tempfile::tempdir().unwrap();
    let directory = directory.path();
    let log = log([&[1; 500], &[1; 500]]);
    let second = log.match_indices("unikprof:").nth(1).unwrap().0;
    fs::write(directory.join("end.log"), &log[second..log.len() / 2]).unwrap();
    fs::write(directory.join("other.log"), "guest: up\n").unwrap();
    let refused = "unikprof: no crash dump: too small\r\n";
    fs::write(directory.join("refused.log"), refused).unwrap();
    fs::write(directory.join("log.bz2"), "BZh91AY").unwrap();
    let lines = log.lines().filter(|line| line.starts_with("unikprof:"));
    let cut: String = lines.map(|line| line[..70].to_owned() + "\n").collect();
    fs::write(directory.join("short.log"), cut).unwrap();
    fs::write(directory.join("demo.unikprof"), unikprof_profile::recording::MAGIC).unwrap();
    for (file, said) in [
        ("end.log", "the description of the guest"),
        ("other.log", "panic handler"),
        ("refused.log", "too small"),
        ("log.bz2", "bzip2"),
        ("short.log", "28 lines with `unikprof:` are cut or altered"),
        ("demo.unikprof", "demo.unikprof is a recording already"),
    ] {
        let (_, error) = expect(exit_code::INPUT, directory, &[file]);
        has(&error, &[said]);
        assert!(!directory.join(file).with_added_extension("unikprof").exists());
    }
}

/// A file that cannot be read may hold a newer crash than those that were found.
#[test]
fn each_file_that_cannot_be_read_is_told_by_its_own_name() {
    let directory = tempfile::tempdir().unwrap();
    let directory = directory.path();
    fs::write(directory.join("console.log"), log([&[1; 500], &[2; 90]])).unwrap();
    fs::write(directory.join("nothing.log"), "guest: up\n").unwrap();
    fs::write(directory.join("console.log.1.xz"), b"\xfd7zXZ\0").unwrap();
    fs::write(directory.join("console.log.2.gz"), b"\x1f\x8b\x08\0\0\0\0\0\0\x03").unwrap();
    let unread = ["console.log.1.xz is compressed by xz", "console.log.2.gz is compressed by gzip"];
    let names = ["console.log", "console.log.1.xz", "console.log.2.gz", "--json"];
    let (told, error) = expect(exit_code::SUCCESS, directory, &names);
    has(&error, &unread);
    let told = program::json(&told);
    let warnings = told["warnings"].as_array().unwrap();
    assert_eq!(warnings.len(), 2, "{told}");
    has(warnings[1].as_str().unwrap(), &unread[1..]);
    let (_, error) = expect(exit_code::INPUT, directory, &["nothing.log", "console.log.1.xz"]);
    has(&error, &[unread[0], "no crash dump in the 2 files"]);
}

/// Guards against a log that is replaced by what was found in it.
#[test]
fn an_output_that_is_an_input_is_refused() {
    let directory = tempfile::tempdir().unwrap();
    let directory = directory.path();
    let log = log([&[1; 500], &[2; 500]]);
    fs::write(directory.join("e.log"), &log).unwrap();
    expect(exit_code::USAGE, directory, &["e.log", "-o", "./e.log"]);
    let mut piped = program::command(&["recover", "-", "-o", "e.log"], directory);
    let piped = piped.stdin(File::open(directory.join("e.log")).unwrap()).output().unwrap();
    assert_eq!(piped.status.code(), Some(exit_code::USAGE.into()));
    assert_eq!(fs::read_to_string(directory.join("e.log")).unwrap(), log);
}

/// It would be a recording with the name of a report.
#[test]
fn an_output_that_names_a_report_is_refused() {
    let directory = tempfile::tempdir().unwrap();
    fs::write(directory.path().join("console.log"), log([&[1; 500], &[2; 90]])).unwrap();
    let words = ["console.log", "-o", "crash.html"];
    let (_, told) = expect(exit_code::USAGE, directory.path(), &words);
    has(&told, &["crash.html would be a report", "`report`"]);
    assert!(!directory.path().join("crash.html").exists());
}

/// Guards a client that reads a core into memory: cores are as large as their guests, and larger
/// than this machine.
#[test]
fn a_core_larger_than_memory_is_searched() {
    const CORE: u64 = 128 << 20;
    const MEMORY_KIB: u32 = 64 << 10;
    let directory = tempfile::tempdir().unwrap();
    let left = [3; 500];
    let mut core = File::create(directory.path().join("core")).unwrap();
    // A hole in the file, but for the block near its end.
    core.seek(SeekFrom::Start(CORE - 8192)).unwrap();
    core.write_all(&block(&left)).unwrap();
    core.set_len(CORE).unwrap();
    let output = Command::new("sh")
        .args(["-c", &format!("ulimit -d {MEMORY_KIB} && exec \"$0\" \"$@\"")])
        .args([env!("CARGO_BIN_EXE_unikprof-client"), "recover", "core"])
        .current_dir(directory.path())
        .output()
        .unwrap();
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{error}");
    let found = fs::read(directory.path().join("core.unikprof")).unwrap();
    assert_eq!(found, left);
}
