//! Which code is one function: of images that the host's compilers make, within a profile.

use std::fs;
use std::path::Path;

use tempfile::TempDir;
use unikprof_profile::profile::{Frame, Mapping, Profile, ProfileBuilder};
use unikprof_profile::symbols::{Force, Images, Symbolized, Symbolizer};
use unikprof_report::report::{Format, Report, ReportOptions};

use crate::compiled::{Program, nothing_found, run};

/// The name of the function at each of these addresses.
fn names_of(image: &Path, mappings: Vec<Mapping>, addresses: &[u64]) -> Vec<String> {
    let mut images = Images::new(nothing_found());
    images.add_image(image, Force::No).unwrap();
    names_by(images, mappings, addresses)
}

fn names_by(images: Images, mappings: Vec<Mapping>, addresses: &[u64]) -> Vec<String> {
    let mut builder = ProfileBuilder::new();
    mappings.into_iter().for_each(|mapping| builder.add_mapping(mapping));
    for address in addresses {
        builder.add_stack(0, 1, &[Frame::leaf(*address)]).unwrap();
    }
    let profile: Profile = builder.finish();
    let symbolized = Symbolizer::new(images).resolve(&profile).unwrap();
    let outermost = |frame| symbolized.frame(frame).last().unwrap().function;
    let frames = profile.frame_ids();
    frames.map(|frame| symbolized.function(outermost(frame)).name.clone()).collect()
}

fn json(symbolized: &Symbolized<'_>) -> serde_json::Value {
    let mut json = Vec::new();
    Report::new(symbolized, ReportOptions::default()).write(Format::Json, &mut json).unwrap();
    serde_json::from_slice(&json).unwrap()
}

/// Sources compiled into one program that begins at `main`, without start files.
fn link(sources: &[(&str, &str)], options: &[&str]) -> Program {
    let dir = TempDir::new().unwrap();
    let path = dir.path().join("program.elf");
    let mut arguments = vec!["-o".to_owned(), path.to_str().unwrap().to_owned()];
    for (name, text) in sources {
        let file = dir.path().join(name);
        fs::create_dir_all(file.parent().unwrap()).unwrap();
        fs::write(&file, text).unwrap();
        arguments.push(file.to_str().unwrap().to_owned());
    }
    arguments.extend(["-nostdlib", "-Wl,-emain", "-Wl,--build-id=sha1"].map(str::to_owned));
    arguments.extend(options.iter().map(|option| (*option).to_owned()));
    run("cc", &arguments.iter().map(String::as_str).collect::<Vec<_>>());
    Program { dir, path }
}

/// 32 bytes of code that call frame information describes, without a symbol.
const UNNAMED: &str = ".cfi_startproc\n.fill 32, 1, 0x90\n.cfi_endproc\n";

/// Two functions, of one of which two addresses ran. Wherever the image lies, they are two rows.
#[test]
fn code_without_a_name_is_named_by_the_start_of_its_function() {
    let text =
        format!(".text\n.globl main\n.type main,@function\n{UNNAMED}main: ret\n.size main,1\n");
    let program = link(&[("program.s", &format!("{text}{UNNAMED}{UNNAMED}"))], &["-pie"]);
    let main = program.function("main").start;
    let addresses = [main + 5, main + 30, main + 33, main - 3];
    let mut all = Vec::new();
    for bias in [0x5555_5000_0000, 0x7f12_3400_0000] {
        let at = addresses.map(|address| address + bias);
        all.push(names_of(&program.path, program.mappings(bias), &at));
    }
    assert_eq!(all[0], all[1], "a name has nothing of where the image lies");
    let names = &all[0];
    assert!(names.iter().all(|name| name.starts_with("program.elf+0x")), "{names:?}");
    assert_eq!(names[0], names[1], "one function");
    assert_ne!(names[1], names[2], "the next one");
    assert_ne!(names[2], names[3], "the one before `main`");
}

/// A line for each address of it, as for code with lines.
#[test]
fn lines_of_code_without_a_name_are_offsets() {
    let text = format!(".text\n.globl main\nmain: ret\n.balign 32, 0xcc\n{UNNAMED}");
    let program = link(&[("program.s", &text)], &["-pie"]);
    let start = program.function("main").start + 32;
    let profile = crate::compiled::profile(
        program.mappings(0x5555_5000_0000),
        [0, 4].map(|distance| Frame::leaf(0x5555_5000_0000 + start + distance)),
    );
    let mut images = Images::new(nothing_found());
    images.add_image(&program.path, Force::No).unwrap();
    let symbolized = Symbolizer::new(images).resolve(&profile).unwrap();
    let options = ReportOptions { lines: true, ..ReportOptions::default() };
    let mut folded = Vec::new();
    Report::new(&symbolized, options).write(Format::Folded, &mut folded).unwrap();
    let folded = String::from_utf8(folded).unwrap();
    let offset = program.mappings(0).iter().find_map(|mapping| mapping.offset_of(start)).unwrap();
    let name = format!("program.elf+{offset:#x}");
    assert_eq!(folded, format!("{name} 1\n{name} at {:#x} 1\n", offset + 4));
}

/// The functions behind it have descriptions but no symbols.
#[test]
fn a_symbol_without_a_size_ends_where_the_next_function_begins() {
    let text = format!(".text\n.globl main\nmain: ret\n.balign 32, 0xcc\n{UNNAMED}{UNNAMED}");
    let program = link(&[("program.s", &text)], &["-no-pie"]);
    let main = program.function("main").start;
    let names = names_of(&program.path, Vec::new(), &[main, main + 32, main + 63, main + 64]);
    assert_eq!(names[0], "main");
    assert!(names[1..].iter().all(|name| name.starts_with("program.elf+0x")), "{names:?}");
    assert_eq!(names[1], names[2]);
    assert_ne!(names[2], names[3]);
}

/// A list names no more than what the image's descriptions hold of a function.
#[test]
fn the_last_symbol_of_a_list_ends_where_its_function_does() {
    let main = ".text\n.globl main\n.type main,@function\nmain: ret\n.size main,1\n";
    let program = link(&[("program.s", &format!("{main}{UNNAMED}{UNNAMED}"))], &["-no-pie"]);
    let first = program.function("main").end;
    let list = program.dir.path().join("list");
    for mappings in [Vec::new(), program.mappings(0)] {
        fs::write(&list, format!("{first:x} T first\n")).unwrap();
        let mut images = Images::new(nothing_found());
        images.add_image(&program.path, Force::No).unwrap();
        images.add_symbols(&list).unwrap();
        let names = names_by(images, mappings, &[first, first + 31, first + 32]);
        assert_eq!(names[..2], ["first", "first"]);
        assert!(names[2].starts_with("program.elf+0x"), "{names:?}");
    }
}

/// The names of the functions at these addresses, by symbol lists alone.
fn names_by_lists(lists: &[&str], addresses: &[u64]) -> Vec<String> {
    let dir = TempDir::new().unwrap();
    let mut images = Images::new(nothing_found());
    for (at, lines) in lists.iter().enumerate() {
        let list = dir.path().join(at.to_string());
        fs::write(&list, lines).unwrap();
        images.add_symbols(&list).unwrap();
    }
    names_by(images, Vec::new(), addresses)
}

/// By their order, as of a symbol table without files, whichever of them ran. Instances of one
/// generic function are one.
#[test]
fn functions_of_one_name_in_a_list_are_told_apart() {
    let list = "1000 t helper\n1010 T camlWeb__f_1\n1020 t helper\n1030 T camlWeb__f_2\n\
                1040 t web::push\n1050 t web::push\n1060 t helper.part.0\n1070 D data\n";
    for (addresses, expected) in [
        (
            &[0x1000, 0x1010, 0x1020, 0x1030][..],
            &["helper (#1)", "Web.f (#1)", "helper (#2)", "Web.f (#2)"][..],
        ),
        (
            &[0x1024, 0x1044, 0x1054, 0x1064],
            &["helper (#2)", "web::push", "web::push", "helper.part.0"],
        ),
    ] {
        assert_eq!(names_by_lists(&[list], addresses), expected);
    }
}

/// Of two functions, only the clones are left.
#[test]
fn clones_of_one_name_in_a_list_are_told_apart() {
    let list = "1000 t helper.isra.0\n1010 t helper.isra.0\n1020 D data\n";
    let expected = ["helper.isra.0 (#1)", "helper.isra.0 (#2)"];
    assert_eq!(names_by_lists(&[list], &[0x1000, 0x1010]), expected);
}

/// Each list has one `helper`; both have `same`.
#[test]
fn functions_of_one_name_in_two_lists_are_told_apart() {
    let lists = ["1000 10 t helper\n1010 10 t same\n", "1010 20 t same\n2000 10 t helper\n"];
    let expected = ["helper (#1)", "same", "same", "helper (#2)"];
    assert_eq!(names_by_lists(&lists, &[0x1000, 0x1010, 0x1028, 0x2000]), expected);
}

/// Of two programs.
#[test]
fn functions_that_begin_at_one_address_in_two_lists_are_two() {
    let lists = ["1000 10 t helper\n3000 10 t helper\n", "1000 20 t other\n4000 10 t other\n"];
    let expected = ["helper (#1)", "other (#1)"];
    assert_eq!(names_by_lists(&lists, &[0x1000, 0x1018]), expected);
}

/// Two libraries of one file name.
#[test]
fn images_of_one_file_name_are_told_apart_by_their_folders() {
    let programs = ["-O1", "-O2"].map(|level| Program::c(&["-g", "-pie", "-fPIE", level]));
    let bias = [0x5555_5000_0000, 0x7f12_3400_0000];
    let mut images = Images::new(nothing_found());
    let mut builder = ProfileBuilder::new();
    for (program, bias) in programs.iter().zip(bias) {
        images.add_image(&program.path, Force::No).unwrap();
        program.mappings(bias).into_iter().for_each(|mapping| builder.add_mapping(mapping));
        let outer = program.function("outer").start;
        builder.add_stack(0, 1, &[Frame::leaf(bias + outer)]).unwrap();
    }
    let profile = builder.finish();
    let symbolized = Symbolizer::new(images).resolve(&profile).unwrap();
    let json = json(&symbolized);
    let rows = json["functions"].as_array().unwrap();
    let mut found: Vec<&str> = rows
        .iter()
        .filter(|row| row["name"].as_str().unwrap().starts_with("outer"))
        .map(|row| row["image"].as_str().unwrap())
        .collect();
    let folder = |it: &Program| it.path.parent().unwrap().file_name().unwrap().to_owned();
    let mut expected =
        programs.each_ref().map(|it| format!("{}/program.elf", folder(it).display()));
    found.sort_unstable();
    let library = format!("outer ({})", expected[1]);
    assert!(rows.iter().any(|row| row["name"] == library.as_str()), "{rows:#?}");
    assert!(rows.iter().any(|row| row["name"] == "outer"), "{rows:#?}");
    expected.sort_unstable();
    assert_eq!(found, expected);
}

const HELPER: &str =
    "static __attribute__((noinline)) int helper(volatile int *p) { return *p; }\n";

fn helpers(files: [&str; 2], options: &[&str]) -> (Program, Vec<u64>) {
    let main = "int other(volatile int *);\n\
                int main() { volatile int x = 1; return helper(&x) + other(&x); }\n";
    let other = "int other(volatile int *p) { return helper(p); }\n";
    let sources = [(files[0], format!("{HELPER}{main}")), (files[1], format!("{HELPER}{other}"))];
    let sources: Vec<(&str, &str)> = sources.iter().map(|(name, it)| (*name, &**it)).collect();
    let program = link(&sources, &[&["-O1", "-no-pie", "-fno-ipa-icf"], options].concat());
    let addresses = starts(&program, "helper");
    (program, addresses)
}

/// Where the two functions of this name begin.
fn starts(program: &Program, name: &str) -> Vec<u64> {
    let bytes = fs::read(&program.path).unwrap();
    let file = object::File::parse(bytes.as_slice()).unwrap();
    use object::{Object as _, ObjectSymbol as _};
    let found = file.symbols().filter(|symbol| symbol.name() == Ok(name));
    let addresses: Vec<u64> = found.map(|symbol| symbol.address()).collect();
    assert_eq!(addresses.len(), 2);
    addresses
}

/// Also where a profile has only one of them: labels are those of the build, not of the samples.
#[test]
fn static_functions_of_one_name_are_told_apart_by_their_files() {
    for (files, options, labels) in [
        (["a.c", "sub/b.c"], &["-g"][..], ["(a.c)", "(b.c)"]),
        (["a.c", "sub/b.c"], &[], ["(a.c)", "(b.c)"]),
        // The symbol table has no folders.
        (["one/b.c", "two/b.c"], &["-g"], ["(one/b.c)", "(two/b.c)"]),
        (["one/b.c", "two/b.c"], &[], ["(#1)", "(#2)"]),
    ] {
        let (program, helpers) = helpers(files, options);
        let labels = labels.map(|label| format!("helper {label}"));
        assert_eq!(names_of(&program.path, Vec::new(), &helpers), labels, "{options:?}");
        let one = names_of(&program.path, Vec::new(), &helpers[1..]);
        assert_eq!(one, labels[1..], "{options:?}");
        if options == ["-g"] {
            let mut images = Images::new(nothing_found());
            images.add_image(&program.path, Force::No).unwrap();
            let profile =
                crate::compiled::profile(Vec::new(), helpers.into_iter().map(Frame::leaf));
            let json = json(&Symbolizer::new(images).resolve(&profile).unwrap());
            let rows = json["functions"].as_array().unwrap();
            for (file, label) in files.iter().zip(&labels) {
                let row = rows.iter().find(|row| row["name"] == **label).unwrap();
                assert!(row["file"].as_str().unwrap().ends_with(&format!("/{file}")), "{row}");
            }
        }
    }
}

/// Of the functions of two files called the same, only the clones and their parts are left.
#[test]
fn clones_in_files_of_one_name_are_told_apart() {
    let symbol = |name: &str| {
        format!(".type {name},@function\n{name}: .fill 32, 1, 0x90\n.size {name},32\n")
    };
    let [whole, part] = ["helper.isra.0", "helper.isra.0.cold"].map(symbol);
    let clone = format!(".file \"b.c\"\n.text\n{whole}.section .text.unlikely,\"ax\"\n{part}");
    let main = format!("{clone}.text\n.globl main\nmain: ret\n");
    let program = link(&[("one/b.s", &main), ("two/b.s", &clone)], &["-no-pie"]);
    for name in ["helper.isra.0", "helper.isra.0.cold"] {
        let names = names_of(&program.path, Vec::new(), &starts(&program, name));
        assert_eq!(names, [1, 2].map(|number| format!("{name} (#{number})")));
    }
}

/// A function in a header has copies in the files that include it.
#[test]
fn copies_of_one_static_function_are_one() {
    let header = "static __attribute__((noinline)) int helper(volatile int *p) { return *p; }\n";
    let main = "#include \"h.h\"\nint other(volatile int *);\n\
                int main() { volatile int x = 1; return helper(&x) + other(&x); }\n";
    let other = "#include \"../h.h\"\nint other(volatile int *p) { return helper(p); }\n";
    let dir = TempDir::new().unwrap();
    for (name, text) in [("h.h", header), ("a.c", main), ("sub/b.c", other)] {
        fs::create_dir_all(dir.path().join(name).parent().unwrap()).unwrap();
        fs::write(dir.path().join(name), text).unwrap();
    }
    let path = |name: &str| dir.path().join(name).to_str().unwrap().to_owned();
    let options = ["-g", "-O1", "-no-pie", "-fno-ipa-icf", "-nostdlib", "-Wl,-emain"];
    let (a, b, out) = (path("a.c"), path("sub/b.c"), path("program.elf"));
    run("cc", &[&[a.as_str(), &b, "-o", &out], &options[..]].concat());
    use object::{Object as _, ObjectSymbol as _};
    let bytes = fs::read(&out).unwrap();
    let file = object::File::parse(bytes.as_slice()).unwrap();
    let helpers = file.symbols().filter(|symbol| symbol.name() == Ok("helper"));
    let helpers: Vec<u64> = helpers.map(|symbol| symbol.address()).collect();
    assert_eq!(helpers.len(), 2);
    assert_eq!(names_of(Path::new(&out), Vec::new(), &helpers), ["helper", "helper"]);
}

/// Of an inlined lambda, gcc tells only where its class is declared.
#[test]
fn lambdas_that_are_inlined_are_told_apart_by_their_lines() {
    let text = "int run(volatile int *p)\n{\n\
                auto one = [&](int by) __attribute__((always_inline)) { return *p * by; };\n\
                auto two = [&](int by) __attribute__((always_inline)) { return *p + by; };\n\
                return one(3) + two(5);\n}\nint main() { return 0; }\n";
    let program = link(&[("a.cpp", text)], &["-g", "-O1", "-no-pie"]);
    let code = program.function("_Z3runPVi");
    let profile = crate::compiled::profile(Vec::new(), code.map(Frame::leaf));
    let mut images = Images::new(nothing_found());
    images.add_image(&program.path, Force::No).unwrap();
    let symbolized = Symbolizer::new(images).resolve(&profile).unwrap();
    let symbols = profile.frame_ids().flat_map(|frame| symbolized.frame(frame));
    let mut names: Vec<&str> =
        symbols.map(|symbol| &*symbolized.function(symbol.function).name).collect();
    names.sort_unstable();
    names.dedup();
    let expected =
        ["run(int volatile*)", "run(…)::{lambda} (a.cpp:3)", "run(…)::{lambda} (a.cpp:4)"];
    assert_eq!(names, expected);
}

/// As ocamlopt writes a local `loop` of two functions, and an `f` that another one hides.
#[test]
fn ocaml_functions_of_one_name_are_told_apart_by_their_lines() {
    let function = |name: &str, line: u32, column: u32| {
        format!(
            ".globl {name}\n.type {name},@function\n{name}:\n.loc 1 {line} {column}\n\
             .rept 16\nnop\n.endr\n.size {name}, . - {name}\n"
        )
    };
    let functions = [
        ("camlWeb__loop_84", 1, 27),
        ("camlWeb__loop_227", 2, 28),
        ("camlWeb__f_230", 3, 6),
        ("camlWeb__f_236", 5, 6),
        ("camlWeb__g_233", 4, 6),
    ];
    let text: String =
        functions.iter().map(|(name, line, column)| function(name, *line, *column)).collect();
    let text = format!(".file 1 \"web.ml\"\n.text\n{text}.globl main\nmain: ret\n");
    let expected =
        ["Web.loop (web.ml:1)", "Web.loop (web.ml:2)", "Web.f (web.ml:3)", "Web.f (web.ml:5)"];
    let program = link(&[("web.s", &text)], &["-no-pie"]);
    let start = |at: usize| program.function(functions[at].0).start + 4;
    let addresses: Vec<u64> = (0..5).map(start).collect();
    let names = names_of(&program.path, Vec::new(), &addresses);
    assert_eq!(names[..4], expected);
    assert_eq!(names[4], "Web.g");
    for (at, expected) in expected.iter().enumerate() {
        assert_eq!(names_of(&program.path, Vec::new(), &[start(at)]), [*expected]);
    }
}

const RUST: &str = "
use std::hint::black_box;
#[inline(never)]
fn twice<T: std::ops::Add<Output = T> + Copy>(value: T) -> T { black_box(value) + value }
#[inline(never)]
fn call(of: &dyn Fn(u64) -> u64) -> u64 { of(black_box(3)) }
fn main() {
    let count = std::env::args().count() as u64;
    let first = |x: u64| black_box(x) * count;
    let second = |x: u64| black_box(x) ^ count;
    let all = call(&first) + call(&second) + twice(count) + u64::from(twice(count as u32));
    std::process::exit(all as i32);
}
";

#[test]
fn instances_of_a_generic_function_are_one_and_closures_are_not() {
    for split in ["off", "unpacked", "packed"] {
        instances_and_closures(&format!("-Csplit-debuginfo={split}"));
    }
}

fn instances_and_closures(split: &str) {
    let options = ["-g", "-O", "-Clink-arg=-no-pie", "-Crelocation-model=static", split];
    let program = Program::build("rustc", "rs", RUST, &options);
    use object::{Object as _, ObjectSymbol as _};
    let bytes = fs::read(&program.path).unwrap();
    let file = object::File::parse(bytes.as_slice()).unwrap();
    let starts = |part: &str| {
        let symbols = file.symbols().filter(|symbol| {
            symbol.name().is_ok_and(|it| it.contains("program") && it.contains(part))
        });
        symbols.map(|symbol| symbol.address() + 1).collect::<Vec<u64>>()
    };
    let instances = starts("5twice");
    assert_eq!(instances.len(), 2);
    let names = names_of(&program.path, Vec::new(), &instances);
    assert_eq!(names, ["program::twice", "program::twice"]);
    let closures = starts("closure");
    assert_eq!(closures.len(), 2);
    let mut names = names_of(&program.path, Vec::new(), &closures);
    names.sort();
    let closure = |line: u32| format!("program::main::{{{{closure}}}} (program.rs:{line})");
    assert_eq!(names, [closure(10), closure(9)], "{split}");
}
