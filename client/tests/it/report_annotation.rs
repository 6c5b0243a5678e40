//! Functions with their lines and instructions, of programs that the host's compilers made, beside
//! what binutils says.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use serde_json::Value;
use unikprof_profile::profile::{
    Architecture, Frame, Profile, ProfileBuilder, RecordingInfo, SpecialFrame,
};
use unikprof_profile::symbols::{CodeError, Force, Images, Symbolizer};
use unikprof_report::report::{Annotation, AnnotationError, Format, Report, ReportOptions};
use unikprof_test_kit::assert_is;

use crate::compiled::{C_SOURCE, Program, damaged_copies, nothing_found, run};

const BIAS: u64 = 0x5555_5000_0000;

fn program() -> Program {
    Program::c(&["-g", "-pie", "-fPIE"])
}

/// Stacks, leaf first, with their counts.
fn profile(program: &Program, stacks: &[(u64, Vec<Frame>)]) -> Profile {
    let mut builder = ProfileBuilder::new();
    for mapping in program.mappings(BIAS) {
        builder.add_mapping(mapping);
    }
    for (count, frames) in stacks {
        builder.add_stack(0, *count, frames).unwrap();
    }
    builder.finish()
}

fn symbolizer(image: &Path) -> Symbolizer {
    let mut images = Images::new(nothing_found());
    images.add_image(image, Force::Yes).unwrap();
    Symbolizer::new(images)
}

/// The report as JSON and as text, or why there is none.
fn annotate(
    profile: &Profile,
    symbolizer: &Symbolizer,
    function: &str,
    options: ReportOptions,
) -> Result<(Value, String), AnnotationError> {
    let symbolized = symbolizer.resolve(profile).unwrap();
    let report = Report::new(&symbolized, options);
    let annotation = Annotation::of(&report, &function.parse().unwrap(), symbolizer, &[])?;
    let report = report.with_annotation(annotation);
    let written = |format| {
        let mut out = Vec::new();
        report.write(format, &mut out).unwrap();
        String::from_utf8(out).unwrap()
    };
    let json = serde_json::from_str(&written(Format::Json)).unwrap();
    Ok((json, written(Format::Text)))
}

fn wide() -> ReportOptions {
    ReportOptions { columns: None, top: 0, ..ReportOptions::default() }
}

/// The addresses of a function's instructions, as `objdump` finds them, with their operations.
fn objdump(program: &Program, function: &str) -> Vec<(u64, String)> {
    let option = format!("--disassemble={function}");
    let listing = run("objdump", &[&option, program.path.to_str().unwrap()]);
    let instruction = |line: &str| {
        let mut columns = line.split('\t');
        let address = columns.next()?.trim().strip_suffix(':')?;
        let address = u64::from_str_radix(address, 16).ok()?;
        // A long instruction's bytes go on in a line of their own.
        let operation = columns.nth(1)?.split_whitespace().next()?;
        Some((address, operation.to_owned()))
    };
    listing.lines().filter_map(instruction).collect()
}

/// The innermost line of each address, as `addr2line` says.
fn addr2line(program: &Program, addresses: &[u64]) -> Vec<u64> {
    let hex: Vec<String> = addresses.iter().map(|at| format!("{at:#x}")).collect();
    let mut words = vec!["-e", program.path.to_str().unwrap()];
    words.extend(hex.iter().map(String::as_str));
    let found = run("addr2line", &words);
    let line = |place: &str| {
        let place = place.split(" (").next().unwrap();
        place.rsplit(':').next().unwrap().parse().unwrap()
    };
    found.lines().map(line).collect()
}

fn number(value: &Value, key: &str) -> u64 {
    value[key].as_u64().unwrap_or_else(|| panic!("no {key} in {value:#}"))
}

fn rows<'j>(json: &'j Value, key: &str) -> &'j [Value] {
    json["annotation"][key].as_array().unwrap()
}

fn sum(rows: &[Value], key: &str) -> u64 {
    rows.iter().map(|row| number(row, key)).sum()
}

fn function<'j>(json: &'j Value, name: &str) -> &'j Value {
    let functions = json["functions"].as_array().unwrap();
    functions.iter().find(|f| f["name"] == name).unwrap()
}

/// A sample at each instruction of `outer`, the second twice and so on, called by `main`.
fn everywhere(program: &Program) -> (Profile, Vec<(u64, String)>) {
    let expected = objdump(program, "outer");
    assert!(expected.len() > 5, "{expected:?}");
    let main = BIAS + program.function("main").start;
    let stacks: Vec<(u64, Vec<Frame>)> = (1..)
        .zip(&expected)
        .map(|(count, (at, _))| (count, vec![Frame::leaf(BIAS + at), Frame::caller(main + 1)]))
        .collect();
    (profile(program, &stacks), expected)
}

/// Each sample is at its instruction and its line, and all of them are those of the function.
#[test]
fn instructions_and_lines_have_the_samples_of_their_addresses() {
    let program = program();
    let (profile, expected) = everywhere(&program);
    let symbolizer = symbolizer(&program.path);
    let (json, text) = annotate(&profile, &symbolizer, "outer", wide()).unwrap();
    let instructions = rows(&json, "instructions");
    let addresses: Vec<u64> = expected.iter().map(|(at, _)| *at).collect();
    let found: Vec<u64> = instructions.iter().map(|row| number(row, "address")).collect();
    assert_eq!(found, addresses);
    let lines = addr2line(&program, &addresses);
    let mut by_line: BTreeMap<u64, u64> = BTreeMap::new();
    for (count, ((row, (at, operation)), line)) in
        (1..).zip(instructions.iter().zip(&expected).zip(lines))
    {
        assert_eq!((number(row, "self"), number(row, "total")), (count, count));
        assert_eq!(number(row, "line"), line, "{at:#x}");
        let shown = row["text"].as_str().unwrap();
        // Suffixes of operand sizes differ between assemblers.
        assert_eq!(shown[..2], operation[..2], "{shown}, {operation}");
        assert!(text.contains(&format!("{at:x}  {shown}")), "{text}");
        *by_line.entry(line).or_default() += count;
    }
    let lines = rows(&json, "lines");
    let counts = lines.iter().map(|row| (number(row, "line"), number(row, "self")));
    assert_eq!(counts.collect::<BTreeMap<_, _>>(), by_line);
    assert!(lines.is_sorted_by_key(|row| std::cmp::Reverse(number(row, "self"))));
    for row in lines {
        let source = C_SOURCE.lines().nth(number(row, "line") as usize - 1).unwrap();
        assert_eq!(row["text"], source);
        assert!(text.contains(source.trim()), "{source}: {text}");
    }

    let annotation = &json["annotation"];
    let all = number(annotation, "self");
    assert_eq!(all, profile.sample_count());
    assert_eq!(sum(instructions, "self"), all);
    let itself = number(annotation, "own_without_inlined");
    assert_eq!(itself, number(function(&json, "outer"), "self"));
    let own = instructions.iter().filter(|row| row["function"] == "outer");
    assert_eq!(own.map(|row| number(row, "self")).sum::<u64>(), itself);
    assert!(0 < itself && itself < all, "{itself} of {all}");
    let inlined = format!("{itself} self, {} in functions inlined into it;", all - itself);
    assert!(text.contains(&inlined), "{inlined}: {text}");

    let options = ReportOptions { no_inlines: true, ..wide() };
    let (json, _) = annotate(&profile, &symbolizer, "outer", options).unwrap();
    assert_eq!(number(&json["annotation"], "own_without_inlined"), all);
    assert_eq!(number(function(&json, "outer"), "self"), all);
}

/// An inlined function has the instructions that were compiled from it, wherever they are.
#[test]
fn an_inlined_function_has_its_part_of_the_code_around_it() {
    let program = program();
    let (profile, expected) = everywhere(&program);
    let (json, _) = annotate(&profile, &symbolizer(&program.path), "middle", wide()).unwrap();
    let instructions = rows(&json, "instructions");
    assert!(!instructions.is_empty() && instructions.len() < expected.len());
    let names: Vec<_> = instructions.iter().map(|row| row["function"].as_str().unwrap()).collect();
    assert!(names.contains(&"middle") && names.contains(&"innermost"), "{names:?}");
    assert!(!names.contains(&"outer"), "{names:?}");
    let own =
        number(function(&json, "middle"), "self") + number(function(&json, "innermost"), "self");
    assert_eq!(sum(instructions, "self"), own);
}

/// A call counts for each stack through it, once, and is not where the sample was taken.
#[test]
fn a_call_has_the_samples_of_what_it_calls_as_its_total() {
    let program = program();
    let main = objdump(&program, "main");
    let call = main.iter().position(|(_, operation)| operation.starts_with("call")).unwrap();
    let returns_to = Frame::caller(BIAS + main[call + 1].0);
    let outer = Frame::leaf(BIAS + program.function("outer").start);
    let stacks = [
        (5, vec![outer, returns_to]),
        (3, vec![outer, returns_to, returns_to]),
        (2, vec![Frame::leaf(BIAS + main[0].0)]),
    ];
    let profile = profile(&program, &stacks);
    let (json, text) = annotate(&profile, &symbolizer(&program.path), "main", wide()).unwrap();
    let row = &rows(&json, "instructions")[call];
    assert_eq!((number(row, "self"), number(row, "total")), (0, 8));
    let shown = row["text"].as_str().unwrap();
    assert!(shown.starts_with("call") && shown.ends_with("<outer>"), "{shown}");
    let annotation = &json["annotation"];
    assert_eq!((number(annotation, "self"), number(annotation, "total")), (2, 10));
    assert!(text.contains(shown), "{text}");
    let blank = format!("\n{:72}{:x}  ", "", main[call + 1].0);
    assert!(text.contains(&blank), "instructions without samples have no numbers: {text}");
}

#[test]
fn what_has_no_code_is_an_error_that_says_why() {
    let program = program();
    let (profile, _) = everywhere(&program);
    let fails = |symbolizer: &Symbolizer, profile: &Profile, name: &str| {
        annotate(profile, symbolizer, name, wide()).unwrap_err()
    };
    let with_image = symbolizer(&program.path);
    let unknown = fails(&with_image, &profile, "no_such_function");
    assert!(matches!(unknown, AnnotationError::Function(_)), "{unknown}");

    let nothing = Symbolizer::new(Images::new(nothing_found()));
    let no_image = fails(&nothing, &profile, "^program.elf.0x[0-9a-f]*1[0-9a-f]$");
    assert_is!(no_image, AnnotationError::Function(_));
    let at = BIAS + program.function("outer").start;
    let offset = program.mappings(BIAS).iter().find_map(|mapping| mapping.offset_of(at)).unwrap();
    let no_image = fails(&nothing, &profile, &format!("program.elf+{offset:#x}"));
    assert!(no_image.to_string().contains("--image"), "{no_image}");

    let stripped = program.dir.path().join("stripped");
    let debug = program.dir.path().join("debug");
    let path = program.path.to_str().unwrap();
    run("objcopy", &["--strip-all", path, stripped.to_str().unwrap()]);
    run("objcopy", &["--only-keep-debug", path, debug.to_str().unwrap()]);
    let no_function = fails(&symbolizer(&stripped), &profile, &format!("program.elf+{offset:#x}"));
    let source = |error: &AnnotationError| match error {
        AnnotationError::Code { source, .. } => source.to_string(),
        other => panic!("{other}"),
    };
    assert!(source(&no_function).contains("in no function of"), "{no_function}");
    let no_bytes = fails(&symbolizer(&debug), &profile, "outer");
    assert!(source(&no_bytes).contains("holds no code"), "{no_bytes}");

    let marked = [(1, vec![Frame::Special(SpecialFrame::Blocked), Frame::leaf(at)])];
    let marked = self::profile(&program, &marked);
    let mark = fails(&with_image, &marked, "[blocked]");
    assert!(matches!(mark, AnnotationError::NotCode(_)), "{mark}");

    let outside = self::profile(&program, &[(1, vec![Frame::leaf(0x10)])]);
    let outside = fails(&with_image, &outside, "0x10");
    let is_outside =
        matches!(&outside, AnnotationError::Code { source: CodeError::NotMapped { .. }, .. });
    assert!(is_outside, "{outside}");
}

#[test]
fn without_debug_information_there_are_instructions_and_a_warning() {
    let program = Program::c(&["-pie", "-fPIE"]);
    let (profile, expected) = everywhere(&program);
    let (json, text) = annotate(&profile, &symbolizer(&program.path), "outer", wide()).unwrap();
    assert_eq!(rows(&json, "instructions").len(), expected.len());
    assert_eq!(sum(rows(&json, "instructions"), "self"), profile.sample_count());
    assert!(text.contains("(no source line)"), "{text}");
    assert!(text.contains("has no debug information"), "{text}");
}

/// Guards bytes of another processor that are decoded as if they were of a known one.
#[test]
fn functions_of_an_unknown_processor_are_refused() {
    let program = program();
    let (profile, _) = everywhere(&program);
    let mut builder = ProfileBuilder::new();
    for mapping in profile.mappings() {
        builder.add_mapping(mapping.clone());
    }
    let outer = Frame::leaf(BIAS + program.function("outer").start);
    builder.add_stack(0, 1, &[outer]).unwrap();
    builder.set_recording(RecordingInfo {
        architecture: Architecture::Other("riscv64".into()),
        ..RecordingInfo::default()
    });
    let profile = builder.finish();
    let error = annotate(&profile, &symbolizer(&program.path), "outer", wide()).unwrap_err();
    assert!(error.to_string().ends_with("the recording is of riscv64"), "{error}");
}

/// Changed bytes in every part of the file: whatever comes out, nothing panics or hangs.
#[test]
fn damaged_images_never_panic() {
    let program = program();
    let (profile, _) = everywhere(&program);
    let good = fs::read(&program.path).unwrap();
    let path = program.dir.path().join("damaged.elf");
    let mut annotated = 0;
    for bad in damaged_copies(&good) {
        fs::write(&path, &bad).unwrap();
        let mut images = Images::new(nothing_found());
        if images.add_image(&path, Force::Yes).is_ok() {
            let symbolizer = Symbolizer::new(images);
            if symbolizer.resolve(&profile).is_err() {
                continue;
            }
            if let Ok((json, _)) = annotate(&profile, &symbolizer, "outer", wide()) {
                annotated += 1;
                assert_eq!(
                    sum(rows(&json, "instructions"), "self"),
                    number(&json["annotation"], "self")
                );
            }
        }
    }
    assert!(annotated > 50, "{annotated} annotated");
}

/// Guards a false reason: what was overwritten meanwhile is not known to lack its code.
#[test]
fn an_image_that_changes_before_its_code_is_read_is_not_called_damaged() {
    let program = program();
    let (profile, _) = everywhere(&program);
    let path = program.dir.path().join("overwritten");
    fs::copy(&program.path, &path).unwrap();
    let symbolizer = symbolizer(&path);
    let symbolized = symbolizer.resolve(&profile).unwrap();
    let report = Report::new(&symbolized, wide());
    fs::write(&path, "").unwrap();
    let error = Annotation::of(&report, &"outer".parse().unwrap(), &symbolizer, &[]).unwrap_err();
    let AnnotationError::Code { source, .. } = error else { panic!("{error}") };
    assert!(source.to_string().contains("changed while it was read"), "{source}");
}

/// Guards the line that takes the time: it is cut only where no column of figures is left to drop.
#[test]
fn the_text_of_a_hot_line_is_whole_in_a_terminal_of_80_columns() {
    let call = "return outer(&value) + 1; /* THE END */";
    let source = C_SOURCE.replace("return outer(&value);", call);
    let program = Program::build("cc", "c", &source, &["-O2", "-g", "-pie", "-fPIE"]);
    let main = objdump(&program, "main");
    let at = main.iter().position(|(_, operation)| operation.starts_with("call")).unwrap();
    let outer = Frame::leaf(BIAS + program.function("outer").start);
    let profile = profile(&program, &[(1_464, vec![outer, Frame::caller(BIAS + main[at + 1].0)])]);
    let options = ReportOptions { columns: Some(80), ..ReportOptions::default() };
    let (_, text) = annotate(&profile, &symbolizer(&program.path), "main", options).unwrap();
    assert!(text.contains("annotation of main: 1,464 samples total, 0 self;"), "{text}");
    assert!(text.contains(&format!("program.c:20  {call}\n")), "{text}");
    assert!(text.lines().all(|line| line.chars().count() <= 80), "{text}");
}
