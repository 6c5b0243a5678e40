//! The calls to and from a function: each stack counts once, also where the function calls itself.

use serde_json::Value;
use unikprof_profile::profile::{Frame, Profile, ProfileBuilder};
use unikprof_profile::symbols::{ImageOptions, Images, Symbolizer};
use unikprof_report::report::{Calls, Direction, Format, Report, ReportOptions};

const MAIN: u64 = 0x1001;
const OTHER: u64 = 0x2001;
const F: u64 = 0x3001;
const G: u64 = 0x4001;

/// `main` calls `f` from two places, which calls `g` and, through it, itself; and `other` calls `f`,
/// too.
fn profile() -> Profile {
    let mut builder = ProfileBuilder::new();
    let stacks: [(u64, &[u64]); 5] = [
        (4, &[G, F, MAIN]),
        (6, &[G, F, MAIN + 8]),
        (20, &[F, G, F, MAIN]),
        (30, &[F, OTHER]),
        (40, &[OTHER]),
    ];
    for (count, addresses) in stacks {
        let frames: Vec<Frame> = addresses.iter().map(|at| Frame::caller(*at)).collect();
        builder.add_stack(0, count, &frames).unwrap();
    }
    builder.finish()
}

/// Names functions by a symbol list of these lines.
fn listed(lines: &str) -> Symbolizer {
    let list = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(&list, lines).unwrap();
    let mut images = Images::new(ImageOptions::default());
    images.add_symbols(list.path()).unwrap();
    Symbolizer::new(images)
}

/// The rows as depth, function, self and total; functions as their addresses.
fn tree(direction: Direction) -> Vec<(u64, u64, u64, u64)> {
    let profile = profile();
    let symbolizer = listed("1000 T main\n2000 T other\n3000 T f\n4000 T g\n5000 D data\n");
    let symbolized = symbolizer.resolve(&profile).unwrap();
    let report = Report::new(&symbolized, ReportOptions::default());
    let address = |name: &str| {
        let all = [("main", MAIN), ("other", OTHER), ("f", F), ("g", G)];
        all.into_iter().find(|(function, _)| *function == name).unwrap().1
    };
    let calls = Calls::of(&report, &"f".parse().unwrap(), direction).unwrap();
    let report = report.with_calls(calls);
    let mut json = Vec::new();
    report.write(Format::Json, &mut json).unwrap();
    let json: Value = serde_json::from_slice(&json).unwrap();
    let mut text = Vec::new();
    report.write(Format::Text, &mut text).unwrap();
    let text = String::from_utf8(text).unwrap();
    let rows = json["calls"]["tree"].as_array().unwrap();
    rows.iter()
        .map(|row| {
            let name = row["name"].as_str().unwrap();
            assert!(text.contains(name), "{text}");
            let number = |key: &str| row[key].as_u64().unwrap();
            (number("depth"), address(name), number("self"), number("total"))
        })
        .collect()
}

#[test]
fn callers_are_those_of_the_innermost_call() {
    assert_eq!(
        tree(Direction::Callers),
        [
            (0, F, 0, 60),
            (1, OTHER, 30, 30),
            (1, G, 0, 20),
            (2, F, 0, 20),
            (3, MAIN, 20, 20),
            (1, MAIN, 10, 10),
        ]
    );
}

/// A name that stands for several functions heads what they have together.
#[test]
fn calls_of_several_functions_do_not_name_one() {
    let profile = profile();
    let symbolizer = listed("1000 T main\n2000 T other\n3000 t f\n4000 t f\n5000 D data\n");
    let symbolized = symbolizer.resolve(&profile).unwrap();
    for (name, heading) in [
        ("f", "callers of f (2 functions), 60 samples"),
        ("f (#2)", "callers of f (#2), 30 samples"),
    ] {
        let report = Report::new(&symbolized, ReportOptions::default());
        let calls = Calls::of(&report, &name.parse().unwrap(), Direction::Callers).unwrap();
        let mut text = Vec::new();
        report.with_calls(calls).write(Format::Text, &mut text).unwrap();
        let text = String::from_utf8(text).unwrap();
        assert!(text.contains(heading), "{text}");
    }
}

#[test]
fn callees_are_those_of_the_outermost_call() {
    assert_eq!(tree(Direction::Callees), [(0, F, 30, 60), (1, G, 10, 30), (2, F, 20, 20)]);
}
