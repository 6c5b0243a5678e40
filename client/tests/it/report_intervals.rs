//! Intervals beside shares hold the truth, whatever the samples were that did not come.

use unikprof_profile::profile::{
    Counters, Frame, Profile, ProfileBuilder, SpecialFrame, VcpuStats,
};
use unikprof_profile::symbols::Symbolizer;
use unikprof_report::report::{Format, FunctionRow, FunctionTable, Report, ReportOptions};

fn hot() -> Frame {
    Frame::leaf(0x1000)
}

fn cold() -> Frame {
    Frame::leaf(0x2000)
}

/// 1,000 samples, 300 of them hot; `late` of the others came late.
fn profile(counters: Counters, late: u64) -> Profile {
    let mut builder = ProfileBuilder::new();
    builder.add_stack(0, 300, &[hot()]).unwrap();
    builder.add_stack(0, 700 - late, &[cold()]).unwrap();
    if late != 0 {
        let arrived = [Frame::Special(SpecialFrame::Late), cold()];
        builder.add_stack(0, late, &arrived).unwrap();
    }
    builder.add_vcpu(VcpuStats {
        counters: Counters { recorded: 1_000, by_frame_pointer: 1_000, late, ..counters },
        ..VcpuStats::default()
    });
    builder.finish()
}

/// The row of the hot function, the report as text, and its warnings.
fn report(profile: &Profile) -> (FunctionRow, String, String) {
    let symbolized = Symbolizer::default().resolve(profile).unwrap();
    let report = Report::new(&symbolized, ReportOptions::default());
    let mut text = Vec::new();
    report.write(Format::Text, &mut text).unwrap();
    let rows = &report.functions().rows;
    let hot = rows.iter().find(|row| row.own == 300).unwrap().clone();
    let text = String::from_utf8(text).unwrap();
    (hot, text, report.warnings().join("\n"))
}

/// Guards an interval of ±3 points where a third of the ticks is missing: all of them may have been
/// hot, or none.
#[test]
fn an_interval_holds_the_truth_whatever_the_missing_ticks_were() {
    let (without, text, warnings) =
        report(&profile(Counters { ticks: 1_000, missing: Some(20), ..Counters::default() }, 0));
    assert!(without.own_share.low > 0.27 && without.own_share.high < 0.33);
    assert!(!warnings.contains("worst case"), "noise: {warnings}");
    assert!(text.contains("; 95 % intervals\n"), "{text}");
    for (ticks, counters, late) in [
        (1_000, Counters { missing: Some(500), ..Counters::default() }, 0),
        (1_500, Counters { lost: 200, overflow: 200, masked: 100, ..Counters::default() }, 0),
        (1_000, Counters { missing: Some(250), ..Counters::default() }, 250),
    ] {
        let unplaced = 500;
        let outside = unplaced - late;
        let (hot, text, warnings) = report(&profile(Counters { ticks, ..counters }, late));
        let due = (1_000 + outside) as f64;
        let (least, most) = (300.0 / due, (300 + unplaced) as f64 / due);
        for interval in [hot.own_share, hot.total_share] {
            assert!(interval.low < least, "{interval:?}, at least {least}");
            assert!(interval.high > most, "{interval:?}, at most {most}");
            assert!(interval.low > least - 0.05, "no more than that: {interval:?}");
            assert!(interval.high < most + 0.05, "no more than that: {interval:?}");
        }
        assert_eq!(hot.own_share.share, 0.3);
        assert!(warnings.contains("of 500 samples without a known function ("), "{warnings}");
        assert!(text.contains("; 95 % intervals, worst case of 500\n"), "{text}");
    }
}

/// The table takes a walk of all stacks, and every format shows it.
#[test]
fn the_functions_are_put_together_once() {
    let profile = profile(Counters::default(), 0);
    let symbolized = Symbolizer::default().resolve(&profile).unwrap();
    let report = Report::new(&symbolized, ReportOptions::default());
    let table: *const FunctionTable = report.functions();
    for format in [Format::Text, Format::Json] {
        report.write(format, &mut Vec::new()).unwrap();
    }
    assert!(std::ptr::eq(table, report.functions()));
}

/// What one vCPU has too many of does not make up for what another lacks.
#[test]
fn ticks_too_many_on_one_vcpu_do_not_hide_those_missing_on_another() {
    let mut builder = ProfileBuilder::new();
    builder.add_stack(0, 300, &[hot()]).unwrap();
    builder.add_stack(1, 700, &[cold()]).unwrap();
    for (vcpu, missing) in [(0, 400), (1, -400)] {
        builder.add_vcpu(VcpuStats {
            vcpu,
            counters: Counters {
                ticks: 500,
                recorded: 500,
                by_frame_pointer: 500,
                missing: Some(missing),
                ..Counters::default()
            },
            ..VcpuStats::default()
        });
    }
    let (hot, _, _) = report(&builder.finish());
    assert!(hot.own_share.high > 0.5, "{:?}", hot.own_share);
}
