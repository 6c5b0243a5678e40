//! Warnings reach the user whatever format a report has: those without room for text say nothing
//! themselves.

use std::fs;

use std::time::Duration;

use crate::peer::{self, Peer, Script, program};
use unikprof_link::record::{self, Request};

const NO_IMAGE: &str = "warning: no image for /boot/guest.elf";

#[test]
fn every_format_tells_of_missing_symbols_once() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let peer = Peer::start(Script::default());
    program::connect(0, &peer, &["record", "1s", "-o", "run.unikprof"], folder);
    for name in ["x.svg", "x.pb.gz", "x.folded", "x.json", "x.txt", "x.html"] {
        let (stdout, stderr) = program::run(0, &["report", "run.unikprof", "-o", name], folder);
        assert_eq!(stderr.matches(NO_IMAGE).count(), 1, "{name}: {stderr}");
        assert_eq!(stdout, "", "{name}");
        // On its way to a file.
        let peer = Peer::start(Script::default());
        let (stdout, stderr) = program::connect(0, &peer, &["record", "1s", "-o", name], folder);
        assert_eq!(stdout.matches(NO_IMAGE).count(), 1, "{name}: {stdout}");
        assert!(!stderr.contains(NO_IMAGE), "{name}: {stderr}");
    }
    for format in ["svg", "folded", "json", "text", "html"] {
        let (stdout, stderr) =
            program::run(0, &["report", "run.unikprof", "--format", format], folder);
        let is_told = matches!(format, "json" | "text");
        assert_eq!(stderr.matches(NO_IMAGE).count(), usize::from(!is_told), "{format}: {stderr}");
        assert_eq!(stdout.contains("no image for /boot/guest.elf"), is_told, "{format}");
    }
    let several = ["report", "run.unikprof", "-o", "a.svg", "-o", "b.folded"];
    let (_, stderr) = program::run(0, &several, folder);
    assert_eq!(stderr.matches(NO_IMAGE).count(), 1, "once: {stderr}");
    let text = fs::read_to_string(folder.join("x.txt")).unwrap();
    assert!(text.contains(NO_IMAGE), "the text holds them as well");
}

/// Guards a claim that nobody can make: a host that stalls delays samples of code that masks
/// nothing.
#[test]
fn a_late_sample_is_said_to_be_late_and_no_more() {
    const LATE: u32 = 6;
    let folder = tempfile::tempdir().unwrap();
    let peer = Peer::start(Script {
        vcpus: vec![vec![(0, vec![0x150, 0x110], 3), (1, vec![LATE], 2)]],
        ..Script::default()
    });
    program::connect(0, &peer, &["record", "1s", "-o", "run.unikprof"], folder.path());
    let words = ["report", "run.unikprof", "--format", "folded"];
    let (folded, _) = program::run(0, &words, folder.path());
    assert!(folded.contains(";[sample arrived late] 2"), "{folded}");
}

/// Guards a broken fetch that reads as an idle guest, or with samples that are missing or too many.
#[test]
fn a_fetch_that_broke_is_told_as_no_more_than_that() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("run.unikprof");
    let script = Script { aged: 2, ..Script::default() };
    let greeting = 16 + peer::welcome(&script, 1_000).concat().len();
    let epoch = peer::share(&script, 7, 0, 0, 0).concat().len();
    let mut reports = 0;
    for cut in (0..2 * epoch).step_by(epoch / 12) {
        let cuts = [vec![greeting + 16 + cut], vec![20; 100]].concat();
        let peer = Peer::start(Script { cuts, ..script.clone() });
        let mut session = peer.session(Duration::ZERO);
        let request = Request::Stop { recording: 0 };
        let Ok(outcome) = record::fetch(&mut session, request, &path, &mut ()) else {
            continue;
        };
        if outcome.incomplete.is_none() {
            continue;
        }
        reports += 1;
        let (text, _) = program::run(0, &["report", "run.unikprof"], folder.path());
        assert!(text.contains("the recording is incomplete"), "{text}");
        assert!(text.matches("is truncated").count() <= 1, "{text}");
        for word in ["did not run", "all accounted", " missing", "add up", "at least 0"] {
            assert!(!text.contains(word), "{word}: {text}");
        }
    }
    assert!(reports > 3, "{reports}");
}
