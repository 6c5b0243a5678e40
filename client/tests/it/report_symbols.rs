//! Symbols of real ELF files, built here by the host's compilers, beside what binutils says.

use std::collections::BTreeSet;
use std::fs;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use object::{Object, ObjectSection, ObjectSymbol};
use tempfile::TempDir;
use unikprof_profile::profile::{
    Architecture, Frame, FrameId, Mapping, Profile, ProfileBuilder, RecordingInfo,
};
use unikprof_profile::symbols::{
    Debuginfod, DownloadLimits, Force, ImageOptions, Images, SymbolError, SymbolWarning,
    Symbolized, Symbolizer,
};
use unikprof_test_kit::assert_is;

use crate::compiled::{C_SOURCE, Program, damaged_copies, nothing_found, profile, run};

const CPP_SOURCE: &str = "
namespace net {
struct Server {
    __attribute__((noinline)) int poll(int count, const char *name);
};
int Server::poll(int count, const char *name) { return count * 3 + name[0]; }
}
int main(int argc, char **argv) { return net::Server().poll(argc, argv[0]); }
";

fn resolve<'p>(profile: &'p Profile, image: &Path) -> Result<Symbolized<'p>, SymbolError> {
    let mut images = Images::new(nothing_found());
    images.add_image(image, Force::No)?;
    Symbolizer::new(images).resolve(profile)
}

/// `function file:line` of a frame, innermost first, `+` where the next one holds it inlined.
fn shown(symbolized: &Symbolized<'_>, frame: FrameId) -> Vec<String> {
    symbolized
        .frame(frame)
        .iter()
        .map(|s| {
            let file = s.file.map_or("?", |file| symbolized.file(file).rsplit('/').next().unwrap());
            let line = s.line.map_or("?".to_owned(), |line| line.to_string());
            let inlined = if s.inlined { " +" } else { "" };
            format!("{} {file}:{line}{inlined}", symbolized.function(s.function).name)
        })
        .collect()
}

/// The innermost function of a profile's first frame, as [`shown`].
fn first(symbolized: &Symbolized<'_>, profile: &Profile) -> String {
    shown(symbolized, profile.frame_ids().next().unwrap()).remove(0)
}

/// A sample at the beginning of `outer`.
fn in_outer(program: &Program, mappings: Vec<Mapping>) -> Profile {
    profile(mappings, [Frame::leaf(program.function("outer").start)])
}

/// What `addr2line -f -i -C` says of each address, in the form of [`shown`].
fn binutils(image: &Path, addresses: &[u64]) -> Vec<Vec<String>> {
    let hex: Vec<String> = addresses.iter().map(|a| format!("{a:#x}")).collect();
    let mut arguments = vec!["-a", "-f", "-i", "-C", "-e", image.to_str().unwrap()];
    arguments.extend(hex.iter().map(String::as_str));
    let mut all: Vec<Vec<String>> = Vec::new();
    let output = run("addr2line", &arguments);
    let mut lines = output.lines();
    while let Some(line) = lines.next() {
        if line.starts_with("0x") {
            all.push(Vec::new());
            continue;
        }
        let place = lines.next().unwrap().split(" (").next().unwrap();
        let place = place.rsplit('/').next().unwrap();
        let frames = all.last_mut().unwrap();
        if let Some(inner) = frames.last_mut() {
            inner.push_str(" +");
        }
        frames.push(format!("{line} {place}"));
    }
    all
}

/// Every address of a function, beside binutils.
fn compare_with_binutils(program: &Program, bias: u64, function: &str) -> Vec<Vec<String>> {
    let linked: Vec<u64> = program.function(function).collect();
    let profile = profile(program.mappings(bias), linked.iter().map(|a| Frame::leaf(bias + a)));
    let symbolized = resolve(&profile, &program.path).unwrap();
    assert!(symbolized.warnings().is_empty(), "{:?}", symbolized.warnings());
    let found: Vec<Vec<String>> =
        profile.frame_ids().map(|frame| shown(&symbolized, frame)).collect();
    for ((address, found), expected) in
        linked.iter().zip(&found).zip(binutils(&program.path, &linked))
    {
        assert_eq!(*found, expected, "at {address:#x}");
    }
    found
}

#[test]
fn inlined_c_functions_at_a_fixed_place_are_as_binutils_says() {
    let program = Program::c(&["-g", "-no-pie"]);
    assert!(!program.image().is_position_independent());
    let found = compare_with_binutils(&program, 0, "outer");
    let deepest = found.iter().max_by_key(|frames| frames.len()).unwrap();
    assert_eq!(deepest.len(), 3, "{deepest:?}");
    assert!(deepest[0].starts_with("innermost program.c:"), "{deepest:?}");
    assert!(deepest[1].starts_with("middle program.c:8 +"), "{deepest:?}");
    assert!(deepest[2].starts_with("outer program.c:14"), "{deepest:?}");
}

#[test]
fn a_position_independent_program_is_found_where_it_was_loaded() {
    let program = Program::c(&["-g", "-pie", "-fPIE"]);
    assert!(program.image().is_position_independent());
    let found = compare_with_binutils(&program, 0x5555_5000_0000, "outer");
    assert!(found.iter().any(|frames| frames.len() == 3));
}

#[test]
fn compressed_debug_sections_and_older_dwarf_are_read() {
    for options in [["-g", "-gz=zlib"], ["-gdwarf-4", "-no-pie"]] {
        compare_with_binutils(&Program::c(&options), 0, "outer");
    }
}

#[test]
fn c_plus_plus_names_are_demangled() {
    let program = Program::build("c++", "cc", CPP_SOURCE, &["-O1", "-g", "-Wl,--build-id"]);
    let found = compare_with_binutils(&program, 0, "_ZN3net6Server4poll");
    assert!(found[0][0].starts_with("net::Server::poll(int, char const*) program.cc:6"));
}

/// Whether a test is skipped, aloud, because this machine lacks a program.
fn is_skipped(program: &str, test: &str) -> bool {
    if Command::new(program).arg("-v").output().is_ok() {
        return false;
    }
    const REQUIRE: &str = "UNIKPROF_REQUIRE_ALL";
    let is_required = std::env::var_os(REQUIRE).is_some_and(|value| value == "1");
    assert!(!is_required, "{REQUIRE} is set, but there is no `{program}`");
    let mut uncaptured = std::io::stderr();
    writeln!(uncaptured, "SKIPPED {test}: there is no `{program}`").unwrap();
    true
}

/// Two functions without a name; the first instruction of the one on line 7 is that of a function
/// that was inlined. The other is the argument on line 9.
const OCAML_SOURCE: &str = "
let[@inline] doubled x = x * 2
let apply = (fun f -> fun x -> f (f x)) [@inline never]
let () =
  let count = Array.length Sys.argv in
  print_int (apply
    (fun x ->
      doubled x + count) 5);
  print_int (apply succ count)
";

/// Compiler, version and build determine the stamp in the name; the place in the source tells what
/// function it is.
#[test]
fn ocaml_functions_without_a_name_have_their_place() {
    if is_skipped("ocamlopt", "ocaml_functions_without_a_name_have_their_place") {
        return;
    }
    let names = |options: &[&str]| {
        let all = [options, &["-ccopt", "-Wl,--build-id=sha1"]].concat();
        let program = Program::build("ocamlopt", "ml", OCAML_SOURCE, &all);
        let bytes = fs::read(&program.path).unwrap();
        let file = object::File::parse(bytes.as_slice()).unwrap();
        let anonymous =
            file.symbols().filter(|symbol| symbol.name().unwrap().starts_with("camlProgram__fun_"));
        let anonymous = anonymous.map(|symbol| Frame::leaf(symbol.address() + 4));
        let profile = profile(program.mappings(0), anonymous);
        let symbolized = resolve(&profile, &program.path).unwrap();
        let frames = profile.frame_ids().map(|frame| {
            let [.., symbol] = symbolized.frame(frame) else {
                panic!("no name");
            };
            symbolized.function(symbol.function).name.clone()
        });
        frames.collect::<BTreeSet<String>>()
    };
    let expected = ["Program.(fun program.ml:7,4)", "Program.(fun program.ml:9,19)"];
    assert_eq!(names(&["-g"]), expected.map(String::from).into());
    // Without debug information the stamp has to tell them apart.
    let stamped = names(&[]);
    assert_eq!(stamped.len(), 2, "{stamped:?}");
    for name in stamped {
        let is_stamped = name.starts_with("Program.(fun ") && !name.contains(':');
        assert!(is_stamped, "{name}");
    }
}

const INLINED_RUST_SOURCE: &str = "
mod engine {
    pub mod gears {
        #[inline(always)]
        pub fn spin<T: Copy + Into<u64>>(by: T) -> u64 { std::hint::black_box(by.into()) ^ 3 }
    }
    pub struct Engine(pub u64);
    impl Engine {
        #[inline(never)]
        pub fn turn(&self, by: u64) -> u64 { gears::spin(self.0).wrapping_mul(by) ^ by }
    }
}
fn main() {
    let engine = engine::Engine(std::env::args().count() as u64);
    std::process::exit(engine.turn(3) as i32);
}
";

/// Line tables alone name inlined functions without their modules, full information with them.
#[test]
fn inlined_rust_functions_have_their_paths_whatever_the_debug_information() {
    let rustc = std::env::var("RUSTC").unwrap_or_else(|_| "rustc".into());
    let (bare, spin) = ("program::spin", "program::engine::gears::spin");
    for (level, extra, spin) in [
        ("line-tables-only", &[][..], bare),
        ("1", &[], spin),
        ("2", &[], spin),
        ("2", &["-Csplit-debuginfo=unpacked"], spin),
        ("2", &["-Csplit-debuginfo=packed", "-Cdwarf-version=5"], spin),
    ] {
        let debug = format!("-Cdebuginfo={level}");
        let usual = ["-Copt-level=2", debug.as_str(), "-Clink-arg=-Wl,--build-id"];
        let options = [&usual[..], extra].concat();
        let program = Program::build(&rustc, "rs", INLINED_RUST_SOURCE, &options);
        let turn = program.function_where(|name| name.contains("Engine4turn"));
        let profile = profile(program.mappings(0), turn.map(Frame::leaf));
        let symbolized = resolve(&profile, &program.path).unwrap();
        let mut names: Vec<Vec<&str>> = profile
            .frame_ids()
            .map(|frame| symbolized.frame(frame))
            .map(|symbols| {
                symbols.iter().map(|s| symbolized.function(s.function).name.as_str()).collect()
            })
            .collect();
        names.sort_by_key(Vec::len);
        let deepest = names.last().unwrap();
        let expected = ["core::hint::black_box", spin, "program::engine::Engine::turn"];
        assert_eq!(*deepest, expected, "{level} {extra:?}");
    }
}

const INLINED_CPP_SOURCE: &str = "
#include <algorithm>
#include <vector>
#define INLINE inline __attribute__((always_inline))
namespace shop { namespace detail {
static INLINE int third(int x) { return x / 3; }
struct Cart { INLINE int weigh(int v) const { return v ^ 0x55; } };
namespace { INLINE int hidden(volatile int *p) { return *p * 7; } }
__attribute__((noinline)) int sorted(volatile int *p)
{
    auto scaled = [&](int by) __attribute__((always_inline)) { return *p * by + 3; };
    int sum = 0;
    for (int i = 0; i < 10; i++)
        sum += scaled(i) + third(*p) + Cart().weigh(*p) + hidden(p);
    return sum;
}
} }
int main(int argc, char **argv)
{
    volatile int value = argc;
    std::vector<int> all;
    for (int i = 0; i < 100; i++)
        all.push_back(*argv[0] * i % 17);
    std::sort(all.begin(), all.end(), [](int x, int y) { return x > y; });
    return shop::detail::sorted(&value) + all[3];
}
";

/// What is left of a profile's warnings, and the functions at the address of `outer` that has most.
fn deepest(program: &Program, profile: &Profile) -> (Vec<String>, String) {
    let symbolized = resolve(profile, &program.path).unwrap();
    let names = profile.frame_ids().map(|frame| symbolized.frame(frame));
    let deepest = names.max_by_key(|symbols| symbols.len()).unwrap();
    let names = deepest.iter().map(|it| symbolized.function(it.function).name.clone()).collect();
    let warnings: Vec<String> = symbolized.warnings().iter().map(ToString::to_string).collect();
    (names, warnings.join("\n"))
}

/// The only file in a folder whose name ends so.
fn file_ending(folder: &Path, end: &str) -> PathBuf {
    let files = fs::read_dir(folder).unwrap().map(|file| file.unwrap().path());
    let mut found: Vec<PathBuf> = files.filter(|it| it.to_str().unwrap().ends_with(end)).collect();
    assert_eq!(found.len(), 1, "{found:?}");
    found.remove(0)
}

/// Guards recordings without inlined functions and without a word why: their descriptions are in
/// files of their own, and the image has only names and lines.
#[test]
fn split_debug_information_is_read_where_it_is() {
    for (dwarf, has_packer) in [("-gdwarf-4", true), ("-gdwarf-5", false)] {
        let program = Program::c(&["-gsplit-dwarf", dwarf, "-no-pie"]);
        let folder = program.dir.path();
        let outer = program.function("outer");
        let recorded = profile(program.mappings(0), outer.map(Frame::leaf));
        let whole = (["innermost", "middle", "outer"].map(String::from).to_vec(), String::new());
        assert_eq!(deepest(&program, &recorded), whole, "{dwarf}: where it was compiled");

        // All was moved since.
        let unit = file_ending(folder, ".dwo");
        let moved = folder.join("moved");
        fs::create_dir(&moved).unwrap();
        let beside = moved.join(unit.file_name().unwrap());
        fs::rename(&unit, &beside).unwrap();
        let image = moved.join("program.elf");
        fs::copy(&program.path, &image).unwrap();
        let program = Program { path: image, ..program };
        assert_eq!(deepest(&program, &recorded), whole, "{dwarf}: beside the image");

        let package = moved.join("program.elf.dwp");
        if has_packer {
            run("dwp", &[beside.to_str().unwrap(), "-o", package.to_str().unwrap()]);
            fs::remove_file(&beside).unwrap();
            assert_eq!(deepest(&program, &recorded), whole, "{dwarf}: a package");
            fs::remove_file(&package).unwrap();
        }
        let other = Program::c(&["-gsplit-dwarf", dwarf, "-no-pie", "-Os"]);
        fs::copy(file_ending(other.dir.path(), ".dwo"), &beside).unwrap();
        for present in [true, false] {
            let (names, warnings) = deepest(&program, &recorded);
            assert_eq!(names, ["outer"], "{dwarf} {present}");
            let name = unit.file_name().unwrap().to_str().unwrap();
            assert!(warnings.contains(name), "{dwarf} {present}: {warnings}");
            if present {
                fs::remove_file(&beside).unwrap();
            }
        }
    }
}

/// What several images have in common may be in one more file.
#[test]
fn debug_information_that_images_share_is_read() {
    if is_skipped("dwz", "debug_information_that_images_share_is_read") {
        return;
    }
    let program =
        Program::build("c++", "cpp", INLINED_CPP_SOURCE, &["-O2", "-g", "-Wl,--build-id"]);
    let path = program.path.to_str().unwrap().to_owned();
    let [copy, shared] = ["copy.elf", "shared.debug"].map(|name| program.dir.path().join(name));
    fs::copy(&path, &copy).unwrap();
    let arguments = ["-m", shared.to_str().unwrap(), "-M", "shared.debug", &path];
    run("dwz", &[&arguments[..], &[copy.to_str().unwrap()]].concat());
    assert!(run("readelf", &["-SW", &path]).contains(".gnu_debugaltlink"));
    cpp_scopes(&program);
    let code = program.function("_ZN4shop6detail6sortedEPVi");
    let recorded = profile(program.mappings(0), code.map(Frame::leaf));
    assert_eq!(deepest(&program, &recorded).1, "");
    fs::remove_file(&shared).unwrap();
    let (_, warnings) = deepest(&program, &recorded);
    let is_told = warnings.contains("shared.debug") && warnings.contains("is missing or differs");
    assert!(is_told, "{warnings}");
}

/// Guards gigabytes of memory for a file of kilobytes: entries that name one long list of ranges.
#[test]
fn a_list_of_ranges_that_all_functions_share_is_damage() {
    let source = r#"
    .text
    .globl main
    .type main, @function
main:
    .fill 64, 1, 0x90
    ret
.Lend:
    .size main, . - main
    .section .debug_abbrev, "", @progbits
    .byte 1, 0x11, 1, 0x11, 0x01, 0x12, 0x07, 0, 0
    .byte 2, 0x2e, 0, 0x55, 0x17, 0, 0, 0
    .section .debug_info, "", @progbits
    .long .Linfo_end - .Linfo
.Linfo:
    .value 5
    .byte 1, 8
    .long 0
    .byte 1
    .quad main, .Lend - main
    .rept 5000
    .byte 2
    .long .Llist
    .endr
    .byte 0
.Linfo_end:
    .section .debug_rnglists, "", @progbits
    .long .Llists_end - .Llists
.Llists:
    .value 5
    .byte 8, 0
    .long 0
.Llist:
    .rept 20000
    .byte 4, 1, 2
    .endr
    .byte 0
.Llists_end:
    .section .note.GNU-stack, "", @progbits
"#;
    let program = Program::build("cc", "s", source, &["-Wl,--build-id"]);
    let code = program.function("main");
    let recorded = profile(program.mappings(0), code.map(Frame::leaf));
    let (names, warnings) = deepest(&program, &recorded);
    assert_eq!(names, ["main"]);
    assert!(warnings.contains("is damaged"), "{warnings}");
}

/// Guards the names of all functions against one unit that cannot be read.
#[test]
fn a_damaged_unit_costs_no_names_of_others() {
    let damaged = r#"
__asm__(
    ".section .debug_abbrev, \"\", @progbits\n"
    ".Ldamaged:\n"
    ".byte 1, 0x11, 0, 0x55, 0x17, 0, 0, 0\n"
    ".section .debug_info, \"\", @progbits\n"
    ".long .Lend - .Lbegin\n"
    ".Lbegin: .value 5\n"
    ".byte 1, 8\n"
    ".long .Ldamaged\n"
    ".byte 1\n"
    ".long 0x7fffffff\n"
    ".Lend:\n"
    ".text\n");
"#;
    let source = format!("{damaged}{C_SOURCE}");
    let program = Program::build("cc", "c", &source, &["-g", "-O2", "-gdwarf-5", "-no-pie"]);
    let recorded = profile(program.mappings(0), program.function("outer").map(Frame::leaf));
    let (names, _) = deepest(&program, &recorded);
    assert_eq!(names, ["innermost", "middle", "outer"]);
}

/// Guards names that could be anybody's: functions that were only inlined have no mangled name to
/// tell their scopes.
#[test]
fn inlined_cpp_functions_are_named_with_their_scopes() {
    // Units of types are in sections of the same name as that of the code.
    for debug in [&["-g"][..], &["-gsplit-dwarf"], &["-gsplit-dwarf", "-fdebug-types-section"]] {
        let options = [&["-O2", "-g", "-gdwarf-5", "-Wl,--build-id"], debug].concat();
        cpp_scopes(&Program::build("c++", "cpp", INLINED_CPP_SOURCE, &options));
    }
}

fn cpp_scopes(program: &Program) {
    let names_in = |function: &str| -> BTreeSet<String> {
        let code = program.function_where(|name| name == function);
        let profile = profile(program.mappings(0), code.map(Frame::leaf));
        let symbolized = resolve(&profile, &program.path).unwrap();
        profile
            .frame_ids()
            .flat_map(|frame| symbolized.frame(frame))
            .map(|symbol| symbolized.function(symbol.function).name.clone())
            .collect()
    };
    let found = names_in("_ZN4shop6detail6sortedEPVi");
    let expected = [
        "shop::detail::(anonymous namespace)::hidden",
        "shop::detail::Cart::weigh(int) const",
        "shop::detail::sorted(int volatile*)",
        "shop::detail::sorted(…)::{lambda}",
        "shop::detail::third",
    ];
    assert_eq!(found.iter().collect::<Vec<_>>(), expected);
    let found = names_in("main");
    for start in ["std::__sort<", "std::sort<"] {
        assert!(found.iter().any(|name| name.starts_with(start)), "{start} in {found:#?}");
    }
}

/// The instruction behind the last call of `main` may be another line, or no part of it.
#[test]
fn a_return_address_belongs_to_the_call_before_it() {
    let program = Program::c(&["-g", "-no-pie"]);
    let outer = program.function("outer");
    let ends = [Frame::caller(outer.end), Frame::caller(outer.start)];
    let profile = profile(program.mappings(0), ends);
    let symbolized = resolve(&profile, &program.path).unwrap();
    let names: Vec<String> = profile
        .frame_ids()
        .map(|f| {
            let outermost = symbolized.frame(f).last().unwrap();
            symbolized.function(outermost.function).name.clone()
        })
        .collect();
    assert_eq!(names[0], "outer");
    assert_ne!(names[1], "outer");
}

#[test]
fn another_build_is_refused_and_can_be_forced() {
    let program = Program::c(&["-g", "-no-pie"]);
    let other = Program::c(&["-g", "-no-pie", "-O1"]);
    let profile = in_outer(&program, program.mappings(0));
    let error = resolve(&profile, &other.path).unwrap_err();
    let SymbolError::WrongBuildId { expected, found, .. } = &error else { panic!("{error}") };
    assert_eq!(*expected, program.build_id());
    assert_eq!(*found, Some(other.build_id()));
    let text = error.to_string();
    for part in [expected.to_string(), other.build_id().to_string(), "--force-image".into()] {
        assert!(text.contains(&part), "{text}");
    }

    let mut images = Images::new(nothing_found());
    images.add_image(&other.path, Force::Yes).unwrap();
    let symbolized = Symbolizer::new(images).resolve(&profile).unwrap();
    assert_is!(symbolized.warnings()[0], SymbolWarning::Forced { .. });
}

#[test]
fn an_image_without_a_build_id_is_refused_where_one_was_recorded() {
    let program = Program::c(&["-g", "-no-pie"]);
    let anonymous = Program::c(&["-g", "-no-pie", "-Wl,--build-id=none"]);
    let profile = in_outer(&program, program.mappings(0));
    let error = resolve(&profile, &anonymous.path).unwrap_err();
    assert!(error.to_string().contains("found none"), "{error}");
}

#[test]
fn a_recording_without_build_ids_is_named_with_a_warning() {
    let program = Program::c(&["-g", "-no-pie"]);
    let mut mappings = program.mappings(0);
    mappings.iter_mut().for_each(|mapping| mapping.build_id = None);
    let profile = in_outer(&program, mappings);
    let symbolized = resolve(&profile, &program.path).unwrap();
    assert_is!(symbolized.warnings(), [SymbolWarning::NotVerified { .. }]);
    assert!(first(&symbolized, &profile).starts_with("outer"));
}

#[test]
fn without_debug_information_the_symbol_table_names_functions() {
    let program = Program::c(&["-no-pie"]);
    let profile = profile(program.mappings(0), [Frame::leaf(program.function("outer").start + 1)]);
    let symbolized = resolve(&profile, &program.path).unwrap();
    assert_eq!(first(&symbolized, &profile), "outer ?:?");
    assert_is!(symbolized.warnings(), [SymbolWarning::NoDebugInfo { .. }]);
}

/// Names that begin as the assembler's own labels do, which are neither global nor have a size.
#[test]
fn functions_may_be_named_like_labels() {
    let source = "int odd(int x) __asm__(\"$odd\"); int odd(int x) { return x * 3; }
        static int kept(int x) __asm__(\".Lkept\");
        static __attribute__((noinline)) int kept(int x) { return x * 5; }
        int main(int argc, char **argv) { return odd(argc) + kept(argc); }";
    let program = Program::build("cc", "c", source, &["-O1", "-no-pie", "-Wl,--build-id"]);
    let list = run("objdump", &["-d", "-j", ".text", program.path.to_str().unwrap()]);
    let after_odd = list.split("<$odd>:").nth(1).unwrap_or_else(|| panic!("{list}"));
    let odd = after_odd.trim_start().split(':').next().unwrap();
    let odd = u64::from_str_radix(odd, 16).unwrap();
    let profile = profile(program.mappings(0), [Frame::leaf(odd)]);
    let symbolized = resolve(&profile, &program.path).unwrap();
    assert_eq!(first(&symbolized, &profile), "$odd ?:?");
}

const LINKED_SOURCE: &str = "
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
int main(int argc, char **argv)
{
    size_t (*volatile length)(const char *) = strlen;
    const char *home = getenv(argv[0]);
    return puts(argv[0]) + strcmp(argv[0], argv[argc - 1]) + length(argv[0]) + (home != 0);
}
";

/// `objdump` names the entries of linkage tables, too.
#[test]
fn entries_of_linkage_tables_are_named_as_binutils_names_them() {
    let guarded = &["-fcf-protection=full", "-Wl,-z,ibtplt"][..];
    let arm_guarded = &["-mbranch-protection=standard", "-Wl,-z,force-bti"][..];
    for (prefix, options, stripped) in [
        ("", &["-no-pie"][..], false),
        ("", &["-pie", "-fPIE", "-Wl,-z,now"], true),
        ("", guarded, false),
        ("aarch64-linux-gnu-", &[], false),
        ("aarch64-linux-gnu-", arm_guarded, true),
    ] {
        let compiler = format!("{prefix}gcc");
        if !prefix.is_empty() && is_skipped(&compiler, "entries_of_linkage_tables") {
            continue;
        }
        let usual = ["-O1", "-fno-builtin", "-Wl,--build-id"];
        let all = [&usual[..], options].concat();
        let program = Program::build(&compiler, "c", LINKED_SOURCE, &all);
        let path = program.path.to_str().unwrap();
        let tables = ["-d", "-j", ".plt", "-j", ".plt.got", "-j", ".plt.sec", path];
        let listed = Command::new(format!("{prefix}objdump")).args(tables).output().unwrap();
        let listed = String::from_utf8(listed.stdout).unwrap();
        let entry = |line: &str| {
            let (address, name) = line.strip_suffix(">:")?.split_once(" <")?;
            let address = u64::from_str_radix(address, 16).unwrap();
            name.ends_with("@plt").then(|| (address, name.to_owned()))
        };
        let expected: Vec<(u64, String)> = listed.lines().filter_map(entry).collect();
        assert!(expected.len() >= 3, "{options:?}: {listed}");
        if stripped {
            run(&format!("{prefix}strip"), &[path]);
        }
        let mut builder = ProfileBuilder::new();
        let architecture = match prefix {
            "" => Architecture::X86_64,
            _ => Architecture::Aarch64,
        };
        builder.set_recording(RecordingInfo { architecture, ..RecordingInfo::default() });
        program.mappings(0).into_iter().for_each(|mapping| builder.add_mapping(mapping));
        for address in expected.iter().flat_map(|(start, _)| [*start, start + 5]) {
            builder.add_stack(0, 1, &[Frame::leaf(address)]).unwrap();
        }
        let profile = builder.finish();
        let symbolized = resolve(&profile, &program.path).unwrap();
        let names = profile.frame_ids().map(|frame| shown(&symbolized, frame).remove(0));
        let expected =
            expected.iter().flat_map(|(_, name)| [name, name].map(|it| format!("{it} ?:?")));
        assert_eq!(names.collect::<Vec<_>>(), expected.collect::<Vec<_>>(), "{options:?}");
    }
}

/// In a static program the entries lead to what a function of the library chooses, which has the
/// name that callers use.
#[test]
fn entries_of_a_static_program_are_named_by_who_chooses_their_targets() {
    let options = ["-O1", "-fno-builtin", "-static", "-Wl,--build-id"];
    let program = Program::build("gcc", "c", LINKED_SOURCE, &options);
    let path = program.path.to_str().unwrap();
    let headers = run("readelf", &["-SW", path]);
    let table = headers.lines().find_map(|line| line.split_once("] .plt ")).unwrap().1;
    let fields: Vec<&str> = table.split_whitespace().collect();
    let number = |at: usize| u64::from_str_radix(fields[at], 16).unwrap();
    let (start, size) = (number(1), number(3));
    let profile = profile(program.mappings(0), (start..start + size).step_by(4).map(Frame::leaf));
    let symbolized = resolve(&profile, &program.path).unwrap();
    let names: BTreeSet<String> =
        profile.frame_ids().map(|frame| shown(&symbolized, frame).remove(0)).collect();
    assert!(names.iter().all(|name| name.ends_with("@plt ?:?")), "{names:?}");
    assert!(names.contains("strlen@plt ?:?"), "{names:?}");
}

/// Newer tools compress these, too. None of the machine's own may do so.
#[test]
fn compressed_symbol_tables_are_read() {
    let program = Program::c(&["-no-pie"]);
    let (address, mappings) = (program.function("outer").start, program.mappings(0));
    let mut bytes = fs::read(&program.path).unwrap();
    let file = object::File::parse(bytes.as_slice()).unwrap();
    let word = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap()) as usize;
    let mut packed = Vec::new();
    for name in [".symtab", ".strtab"] {
        let section = file.section_by_name(name).unwrap();
        let mut stream = flate2::write::ZlibEncoder::new(Vec::new(), flate2::Compression::best());
        stream.write_all(section.data().unwrap()).unwrap();
        let head = [1, section.size(), section.align()].map(u64::to_le_bytes).concat();
        let header = word(40) + section.index().0 * 64;
        packed.push((header, [head, stream.finish().unwrap()].concat()));
    }
    for (header, data) in packed {
        for (at, value) in [(8, 0x800), (24, bytes.len()), (32, data.len())] {
            bytes[header + at..][..8].copy_from_slice(&(value as u64).to_le_bytes());
        }
        bytes.extend(data);
    }
    fs::write(&program.path, bytes).unwrap();
    let read = run("readelf", &["-SW", program.path.to_str().unwrap()]);
    assert!(read.lines().any(|line| line.contains(".symtab") && line.contains(" C ")), "{read}");
    let profile = profile(mappings, [Frame::leaf(address)]);
    let symbolized = resolve(&profile, &program.path).unwrap();
    assert_eq!(first(&symbolized, &profile), "outer ?:?");
}

/// Zeros in place of a build-id are no other build.
#[test]
fn a_build_id_of_zeros_is_none() {
    let zeros = format!("-Wl,--build-id=0x{}", "00".repeat(20));
    let program = Program::c(&["-g", "-no-pie", &zeros]);
    assert_eq!(program.image().build_id(), None);
}

#[test]
fn a_stripped_image_leaves_addresses_and_says_so() {
    let program = Program::c(&["-g", "-no-pie"]);
    let address = program.function("outer").start;
    run("strip", &[program.path.to_str().unwrap()]);
    let mappings = program.mappings(0);
    let profile = profile(mappings.clone(), [Frame::leaf(address)]);
    let symbolized = resolve(&profile, &program.path).unwrap();
    assert_is!(symbolized.warnings(), [SymbolWarning::Stripped { .. }]);
    let offset = mappings.iter().find_map(|m| m.offset_of(address)).unwrap();
    assert_eq!(first(&symbolized, &profile), format!("program.elf+{offset:#x} ?:?"));
}

#[test]
fn a_separate_debug_file_is_found_by_link_and_by_build_id() {
    let program = Program::c(&["-g", "-no-pie"]);
    let address = program.function("outer").start;
    let mappings = program.mappings(0);
    let id = program.build_id().to_string();
    let path = program.path.to_str().unwrap();
    let beside = program.dir.path().join("program.debug");
    run("objcopy", &["--only-keep-debug", path, beside.to_str().unwrap()]);
    run("strip", &[path]);
    run("objcopy", &[&format!("--add-gnu-debuglink={}", beside.display()), path]);
    let profile = profile(mappings, [Frame::leaf(address)]);
    let first = profile.frame_ids().next().unwrap();
    let symbolized = resolve(&profile, &program.path).unwrap();
    assert!(shown(&symbolized, first)[0].starts_with("outer program.c:"));
    assert!(symbolized.warnings().is_empty(), "{:?}", symbolized.warnings());

    // Damaged, it is left aside.
    let good = fs::read(&beside).unwrap();
    let mut bad = good.clone();
    *bad.last_mut().unwrap() ^= 1;
    fs::write(&beside, &bad).unwrap();
    let symbolized = resolve(&profile, &program.path).unwrap();
    assert_is!(symbolized.warnings()[0], SymbolWarning::DebugFileDiffers { .. });

    fs::remove_file(&beside).unwrap();
    let debug = TempDir::new().unwrap();
    let folder = debug.path().join(".build-id").join(&id[..2]);
    fs::create_dir_all(&folder).unwrap();
    fs::write(folder.join(format!("{}.debug", &id[2..])), &good).unwrap();
    let options = ImageOptions { debug_dirs: vec![debug.path().to_owned()], ..nothing_found() };
    let mut images = Images::new(options);
    images.add_image(&program.path, Force::No).unwrap();
    let symbolized = Symbolizer::new(images).resolve(&profile).unwrap();
    assert!(shown(&symbolized, first)[0].starts_with("outer program.c:"));
}

/// A separate debug file keeps the sections of the code without their bytes. Functions without
/// debug information, as those of assembly or the C library's start, have their names there.
#[test]
fn a_separate_debug_file_names_functions_by_its_symbol_table() {
    let program = Program::c(&["-no-pie"]);
    let address = program.function("outer").start;
    let mappings = program.mappings(0);
    let (stripped, debug) = split(&program);
    fs::write(&program.path, stripped).unwrap();
    let beside = program.dir.path().join("program.debug");
    fs::write(&beside, debug).unwrap();
    let link = format!("--add-gnu-debuglink={}", beside.display());
    run("objcopy", &[&link, program.path.to_str().unwrap()]);
    let profile = profile(mappings, [Frame::leaf(address)]);
    let symbolized = resolve(&profile, &program.path).unwrap();
    let first = profile.frame_ids().next().unwrap();
    assert!(shown(&symbolized, first)[0].starts_with("outer "));
}

/// The file without what a debugger needs, and the debug information alone.
fn split(program: &Program) -> (Vec<u8>, Vec<u8>) {
    let path = program.path.to_str().unwrap();
    let place = |name| program.dir.path().join(name);
    let (stripped, debug) = (place("stripped"), place("debug"));
    let pairs = [("--strip-all", &stripped), ("--only-keep-debug", &debug)];
    for (option, to) in pairs {
        run("objcopy", &[option, path, to.to_str().unwrap()]);
    }
    (fs::read(stripped).unwrap(), fs::read(debug).unwrap())
}

/// A profile of one sample in `outer`, of a program that was loaded far from where it was linked.
fn one_sample(program: &Program) -> Profile {
    let bias = 0x5555_0000_0000;
    let address = bias + program.function("outer").start;
    let mappings = program.mappings(bias);
    let code = mappings.into_iter().filter(|m| m.contains(address));
    profile(code.collect(), [Frame::leaf(address)])
}

#[test]
fn a_folder_gives_files_by_build_id_in_every_layout() {
    let program = Program::c(&["-g", "-pie", "-fPIE"]);
    let (stripped, debug) = split(&program);
    let whole = fs::read(&program.path).unwrap();
    let id = program.build_id().to_string();
    let (first, rest) = id.split_at(2);
    let below = format!(".build-id/{first}/{rest}");
    let recorded = one_sample(&program);
    let frame = recorded.frame_ids().next().unwrap();
    let named = |files: &[(String, &[u8])]| {
        let folder = TempDir::new().unwrap();
        for (name, bytes) in files {
            let path = folder.path().join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, bytes).unwrap();
        }
        let mut images = Images::new(nothing_found());
        images.add_symbols(folder.path()).unwrap();
        let symbolized = Symbolizer::new(images).resolve(&recorded).unwrap();
        let warnings = format!("{:?}", symbolized.warnings());
        (shown(&symbolized, frame).remove(0), warnings)
    };
    for files in [
        vec![(below.clone(), &whole[..])],
        vec![(id.clone(), &whole[..])],
        vec![(format!("{id}/executable"), &whole[..])],
        vec![(format!("{below}.debug"), &debug[..])],
        vec![(format!("{id}.debug"), &debug[..])],
        vec![(format!("{id}/debuginfo"), &debug[..])],
        vec![(below.clone(), &stripped[..]), (format!("{below}.debug"), &debug[..])],
    ] {
        let (name, warnings) = named(&files);
        let names: Vec<_> = files.iter().map(|(name, _)| name).collect();
        assert!(name.starts_with("outer program.c:"), "{names:?}: {name}");
        assert_eq!(warnings, "[]", "{names:?}");
    }
    let other = fs::read(&Program::build("cc", "c", C_SOURCE, &["-g", "-Wl,--build-id=sha1"]).path);
    let (name, warnings) = named(&[(format!("{below}.debug"), &other.unwrap())]);
    assert!(name.starts_with("program.elf+0x"), "{name}");
    assert!(warnings.contains("LocalFileDiffers"), "{warnings}");
}

/// A server on this machine that answers every path as `answer` says, and what it was asked for.
fn http_server(
    answer: impl Fn(&str) -> Vec<u8> + Send + Sync + 'static,
) -> (String, Arc<Mutex<Vec<String>>>) {
    let asked = Arc::new(Mutex::new(Vec::new()));
    let log = Arc::clone(&asked);
    let url = server(move |stream, path| {
        let bytes = answer(path);
        log.lock().unwrap().push(path.to_owned());
        // A client that has had enough is gone.
        let _ = stream.write_all(&bytes);
    });
    (url, asked)
}

fn http(status: u16, length: u64, body: &[u8]) -> Vec<u8> {
    let head =
        format!("HTTP/1.1 {status} -\r\nConnection: close\r\nContent-Length: {length}\r\n\r\n");
    [head.as_bytes(), body].concat()
}

/// Resolves one sample with these servers alone; answers its name and the warnings.
fn with_servers(recorded: &Profile, urls: &str, cache: &Path) -> (String, String) {
    with_limits(recorded, urls, cache, DownloadLimits::default())
}

fn with_limits(
    recorded: &Profile,
    urls: &str,
    cache: &Path,
    limits: DownloadLimits,
) -> (String, String) {
    let frame = recorded.frame_ids().next().unwrap();
    let options = ImageOptions {
        debuginfod: Debuginfod::new(urls, cache.to_owned(), limits),
        ..nothing_found()
    };
    let symbolized = Symbolizer::new(Images::new(options)).resolve(recorded).unwrap();
    let warnings: Vec<_> = symbolized.warnings().iter().map(ToString::to_string).collect();
    (shown(&symbolized, frame).remove(0), warnings.join("\n"))
}

#[test]
fn a_debuginfod_server_is_asked_once_for_what_is_missing() {
    let program = Program::c(&["-g", "-pie", "-fPIE"]);
    let (stripped, debug) = split(&program);
    let id = program.build_id().to_string();
    let recorded = one_sample(&program);
    let cache = TempDir::new().unwrap();
    let (executable, debuginfo) =
        (format!("/buildid/{id}/executable"), format!("/buildid/{id}/debuginfo"));

    let (lacking, asked_first) = http_server(|_| http(404, 0, b""));
    let (url, asked) = http_server({
        let executable = executable.clone();
        move |path| {
            let body = if *path == executable { &stripped } else { &debug };
            http(200, body.len() as u64, body)
        }
    });
    let urls = format!("{lacking}/ {url}");
    for round in ["asked", "cached"] {
        let (name, warnings) = with_servers(&recorded, &urls, cache.path());
        assert!(name.starts_with("outer program.c:"), "{round}: {name}");
        assert_eq!(warnings, "", "{round}");
        for log in [&asked, &asked_first] {
            assert_eq!(*log.lock().unwrap(), [executable.clone(), debuginfo.clone()], "{round}");
        }
    }

    // What no server has is remembered as well.
    let cache = TempDir::new().unwrap();
    for _ in 0..2 {
        let (name, warnings) = with_servers(&recorded, &lacking, cache.path());
        assert!(name.starts_with("program.elf+0x"), "{name}");
        assert!(!warnings.contains("debuginfod"), "{warnings}");
        assert_eq!(asked_first.lock().unwrap().len(), 4);
    }
}

#[test]
fn what_a_server_sends_is_used_only_if_it_is_the_file() {
    let program = Program::c(&["-g", "-pie", "-fPIE"]);
    let recorded = one_sample(&program);
    let whole = fs::read(&program.path).unwrap();
    let other = Program::build("cc", "c", C_SOURCE, &["-g", "-Wl,--build-id=sha1"]);
    let other = fs::read(&other.path).unwrap();
    let length = |bytes: &[u8]| bytes.len() as u64;
    for (answer, said) in [
        (http(200, length(&other), &other), "it sent a file with build-id"),
        (http(200, 7, b"#!/bin/"), "it sent no usable file"),
        (http(200, 0, b""), "it sent no usable file"),
        (http(200, length(&whole), &whole[..1000]), "the download ended early"),
        (http(200, 5 << 30, &whole), "the file has more than 4294967296 bytes"),
        (http(503, 0, b""), "it answered with status 503"),
        (b"SSH-2.0-a\r\n\r\n".to_vec(), "gave no file"),
        (
            b"HTTP/1.1 302 -\r\nLocation: /a\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
                .to_vec(),
            "gave no file",
        ),
        (Vec::new(), "gave no file"),
    ] {
        let cache = TempDir::new().unwrap();
        let (url, _) = http_server(move |_| answer.clone());
        let (name, warnings) = with_servers(&recorded, &url, cache.path());
        assert!(name.starts_with("program.elf+0x"), "{said}: {name}");
        assert!(warnings.contains(said), "{said}: {warnings}");
        let folders = fs::read_dir(cache.path()).unwrap();
        let kept = folders.flat_map(|folder| fs::read_dir(folder.unwrap().path()).unwrap());
        assert_eq!(kept.count(), 0, "{said}: nothing is kept");
    }
}

/// Servers that take a connection and say nothing, or too little, or too much: each is named with
/// its reason, and the next one gives the file.
#[test]
fn a_server_that_takes_too_long_is_passed_over() {
    let program = Program::c(&["-g", "-pie", "-fPIE"]);
    let recorded = one_sample(&program);
    let whole = fs::read(&program.path).unwrap();
    let usual = DownloadLimits::default();
    // Long enough for the good server on a busy machine.
    let soon = Some(Duration::from_secs(10));
    let impatient = DownloadLimits { timeout: soon, ..usual };
    // The file is there, but its bytes come one by one.
    let trickle = |pause: Duration| {
        let whole = whole.clone();
        move |stream: &mut TcpStream, _: &str| {
            let head = http(200, whole.len() as u64, b"");
            let _ = stream.write_all(&head);
            for byte in &whole {
                thread::sleep(pause);
                if stream.write_all(&[*byte]).is_err() {
                    return;
                }
            }
        }
    };
    let silent = server(|stream, _| {
        let _ = stream.read(&mut [0; 1]);
    });
    let slow = server(trickle(Duration::from_millis(20)));
    let (good, _) = http_server({
        let whole = whole.clone();
        move |_| http(200, whole.len() as u64, &whole)
    });
    let hurried = DownloadLimits { max_time: soon, ..usual };
    let too_little = "it sent less than 100 KiB within 10 s";
    let too_late = "the file did not arrive within 10 s, the DEBUGINFOD_MAXTIME";
    let cases = [
        (&silent, impatient, too_little),
        (&slow, impatient, too_little),
        (&slow, hurried, too_late),
    ];
    let passed_over = |(server, limits, why): (&String, DownloadLimits, &str)| {
        let cache = TempDir::new().unwrap();
        let urls = format!("{server} {good}");
        let (name, warnings) = with_limits(&recorded, &urls, cache.path(), limits);
        assert!(name.starts_with("outer program.c:"), "{why}: {name}");
        assert!(warnings.contains(why) && warnings.contains(server), "{why}: {warnings}");
        let (name, warnings) =
            with_limits(&recorded, server, TempDir::new().unwrap().path(), limits);
        assert!(name.starts_with("program.elf+0x"), "{why}: {name}");
        assert_eq!(warnings.matches(why).count(), 1, "{warnings}");
    };
    // Side by side: all that each does is wait.
    thread::scope(|scope| {
        for case in cases {
            let passed_over = &passed_over;
            scope.spawn(move || passed_over(case));
        }
    });
    let small = DownloadLimits { max_bytes: 1_000, ..usual };
    let (name, warnings) = with_limits(&recorded, &good, TempDir::new().unwrap().path(), small);
    assert!(name.starts_with("program.elf+0x"), "{name}");
    assert!(warnings.contains("the file has more than 1000 bytes"), "{warnings}");
}

/// A server on this machine that reads each request and then does what `answer` does, which has its
/// path.
fn server(answer: impl Fn(&mut TcpStream, &str) + Send + Sync + 'static) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let answer = Arc::new(answer);
    thread::spawn(move || {
        for stream in listener.incoming() {
            let (mut stream, answer) = (BufReader::new(stream.unwrap()), Arc::clone(&answer));
            thread::spawn(move || {
                let mut head = String::new();
                while !head.ends_with("\r\n\r\n") && stream.read_line(&mut head).unwrap() != 0 {}
                let path = head.split(' ').nth(1).unwrap_or_default();
                answer(stream.get_mut(), path);
            });
        }
    });
    url
}

#[test]
fn a_recorded_path_is_opened_only_for_the_same_build() {
    let program = Program::c(&["-g", "-no-pie"]);
    let address = program.function("outer").start;
    let recorded = in_outer(&program, program.mappings(0));
    let first = recorded.frame_ids().next().unwrap();
    let options = || ImageOptions {
        debug_dirs: Vec::new(),
        open_recorded_paths: true,
        ..ImageOptions::default()
    };
    let symbolized = Symbolizer::new(Images::new(options())).resolve(&recorded).unwrap();
    assert!(shown(&symbolized, first)[0].starts_with("outer program.c:"));

    let mut mappings = program.mappings(0);
    for mapping in &mut mappings {
        mapping.build_id = Some("00".repeat(20).parse().unwrap());
    }
    let differs = profile(mappings, [Frame::leaf(address)]);
    let symbolized = Symbolizer::new(Images::new(options())).resolve(&differs).unwrap();
    assert!(shown(&symbolized, first)[0].starts_with("program.elf+0x"));
    assert_is!(symbolized.warnings()[0], SymbolWarning::LocalFileDiffers { .. });
    assert_is!(symbolized.warnings()[1], SymbolWarning::NoImage { addresses: 1, .. });
}

#[test]
fn programs_and_libraries_are_told_apart_by_build_id() {
    let program = Program::c(&["-g", "-no-pie"]);
    let library = Program::build(
        "cc",
        "c",
        "int from_library(int a) { return a * 7; }",
        &["-shared", "-fPIC", "-g", "-O1", "-Wl,--build-id"],
    );
    let bias = 0x7f00_0000_0000;
    let mut mappings = program.mappings(0);
    mappings.extend(library.mappings(bias));
    let frames = [
        Frame::leaf(program.function("outer").start),
        Frame::leaf(bias + library.function("from_library").start),
    ];
    let profile = profile(mappings, frames);
    let mut images = Images::new(nothing_found());
    // The order they are named in does not matter.
    images.add_image(&library.path, Force::No).unwrap();
    images.add_image(&program.path, Force::No).unwrap();
    let symbolized = Symbolizer::new(images).resolve(&profile).unwrap();
    let names: Vec<Vec<String>> =
        profile.frame_ids().map(|frame| shown(&symbolized, frame)).collect();
    assert!(names[0][0].starts_with("outer program.c:"), "{names:?}");
    assert!(names[1][0].starts_with("from_library program.c:1"), "{names:?}");
    assert!(symbolized.warnings().is_empty(), "{:?}", symbolized.warnings());
}

#[test]
fn a_list_from_nm_names_a_stripped_program_wherever_it_was_loaded() {
    for (options, bias) in [(["-no-pie", "-fno-PIE"], 0), (["-pie", "-fPIE"], 0x5555_5000_0000)] {
        let program = Program::c(&options);
        let list = program.dir.path().join("symbols");
        fs::write(&list, run("nm", &[program.path.to_str().unwrap()])).unwrap();
        let address = bias + program.function("outer").start;
        let profile = profile(program.mappings(bias), [Frame::leaf(address)]);
        for with_image in [false, true] {
            let mut images = Images::new(nothing_found());
            images.add_symbols(&list).unwrap();
            if with_image {
                run("strip", &[program.path.to_str().unwrap()]);
                images.add_image(&program.path, Force::No).unwrap();
            }
            let symbolized = Symbolizer::new(images).resolve(&profile).unwrap();
            let first = profile.frame_ids().next().unwrap();
            assert_eq!(shown(&symbolized, first), ["outer ?:?"], "{options:?} {with_image}");
        }
    }
}

#[test]
fn another_processors_image_is_refused() {
    let program = Program::c(&["-no-pie"]);
    let mut bytes = fs::read(&program.path).unwrap();
    // e_machine: EM_AARCH64.
    bytes[18..20].copy_from_slice(&183_u16.to_le_bytes());
    let path = program.dir.path().join("other.elf");
    fs::write(&path, bytes).unwrap();
    let error = resolve(&profile(program.mappings(0), []), &path).unwrap_err();
    assert_is!(error, SymbolError::WrongArchitecture { .. });
}

/// Changed bytes in every part of the file: whatever comes out, nothing panics or hangs.
#[test]
fn damaged_files_never_panic() {
    for (options, damaged) in [
        (["-g", "-no-pie"], ".elf"),
        (["-g", "-gz=zlib"], ".elf"),
        (["-g", "-gsplit-dwarf"], ".elf"),
        (["-g", "-gsplit-dwarf"], ".dwo"),
    ] {
        let program = Program::c(&options);
        let damaged = file_ending(program.dir.path(), damaged);
        let good = fs::read(&damaged).unwrap();
        let addresses: Vec<u64> =
            program.function("outer").chain(program.function("main")).collect();
        let profile = profile(program.mappings(0), addresses.iter().map(|a| Frame::leaf(*a)));
        let (mut resolved, mut warned) = (0, 0);
        for bad in damaged_copies(&good) {
            fs::write(&damaged, &bad).unwrap();
            let mut images = Images::new(nothing_found());
            if images.add_image(&program.path, Force::Yes).is_ok()
                && let Ok(symbolized) = Symbolizer::new(images).resolve(&profile)
            {
                resolved += 1;
                warned += usize::from(!symbolized.warnings().is_empty());
                assert!(profile.frame_ids().all(|frame| !symbolized.frame(frame).is_empty()));
            }
        }
        assert!(resolved > 50 && warned > 0, "{resolved} resolved, {warned} warned");
    }
}
