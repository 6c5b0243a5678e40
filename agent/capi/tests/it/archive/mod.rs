//! Checks the archive's object file: symbols, size, and instructions.

mod aarch64;
mod code;
mod x86_64;

use std::fs;
use std::path::Path;

use code::Code;
use object::read::archive::ArchiveFile;
use object::{
    Object as _, ObjectSection as _, ObjectSymbol as _, RelocationFlags, SectionKind, elf,
};

use crate::build;

/// The calls for upcalls.
const UPCALLS: [&str; 22] = [
    "unikprof_on_tick",
    "unikprof_on_block",
    "unikprof_on_wake",
    "unikprof_deadline",
    "unikprof_take_error",
    "unikprof_resume",
    "unikprof_event_name",
    "unikprof_mark",
    "unikprof_counter",
    "unikprof_span_begin",
    "unikprof_async_span_begin",
    "unikprof_span_end",
    "unikprof_span_trace",
    "unikprof_span_enter",
    "unikprof_span_leave",
    "unikprof_on_alloc",
    "unikprof_on_free",
    "unikprof_on_realloc",
    "unikprof_on_sampled_alloc",
    "unikprof_arena",
    "unikprof_on_breakpoint",
    "unikprof_original_pc",
];

/// The calls for panic handlers.
const CRASHES: [&str; 3] =
    ["unikprof_crash_dump", "unikprof_crash_dump_into", "unikprof_crash_lines"];

/// Archives of all kinds.
fn archives() -> Vec<&'static Path> {
    let mut all =
        vec![build::streams(), build::frames(), build::keyed(), build::recorder(), build::heap()];
    if !build::is_aarch64() {
        all.push(build::tracer());
    }
    all
}

fn codes() -> impl Iterator<Item = Code> {
    let objects = archives().into_iter().map(object_of);
    objects.map(|object| Code::read(&object))
}

/// The agent's object file in the archive.
fn object_of(folder: &Path) -> Vec<u8> {
    let bytes = fs::read(folder.join("libunikprof.a")).unwrap();
    let archive = ArchiveFile::parse(&*bytes).unwrap();
    let mut members = archive.members().map(Result::unwrap);
    let object = members.next().unwrap().data(&*bytes).unwrap().to_vec();
    let others: Vec<&[u8]> = members.map(|member| member.name()).collect();
    assert_eq!(others, [b"memmove.o"], "one linked object, and the weak memmove");
    object
}

/// The object file of the drop-in.
fn dropin_object() -> Vec<u8> {
    let bytes = fs::read(build::dropin().join("libunikprof-dropin.a")).unwrap();
    let archive = ArchiveFile::parse(&*bytes).unwrap();
    let member = archive.members().next().unwrap().unwrap();
    member.data(&*bytes).unwrap().to_vec()
}

/// A kernel has the memory functions, and no others that a compiler might need.
#[test]
fn the_memory_functions_are_all_it_asks_for() {
    for folder in archives() {
        let bytes = object_of(folder);
        let object = object::File::parse(&*bytes).unwrap();
        let undefined = object.symbols().filter(object::ObjectSymbol::is_undefined);
        for symbol in undefined {
            let name = symbol.name().unwrap();
            let allowed = ["", "memcpy", "memmove", "memset", "memcmp"];
            assert!(allowed.contains(&name), "it asks for `{name}`");
        }
    }
}

/// Its memory functions would replace those of the guest's C library if it defined them for others,
/// and the guest's, which may use SSE registers, would run in ticks if it did not have its own.
#[test]
fn the_dropin_has_memory_functions_of_its_own_and_keeps_them_hidden() {
    let bytes = fs::read(build::dropin().join("libunikprof-dropin.a")).unwrap();
    let archive = ArchiveFile::parse(&*bytes).unwrap();
    let mut hidden = Vec::new();
    for member in archive.members() {
        let data = member.unwrap().data(&*bytes).unwrap();
        let object = object::File::parse(data).unwrap();
        for symbol in object.symbols() {
            let name = symbol.name().unwrap();
            if ["memcpy", "memmove", "memset", "memcmp"].contains(&name) {
                assert!(symbol.is_local(), "`{name}` is not hidden");
                hidden.push(name.to_owned());
            }
        }
    }
    hidden.sort();
    assert_eq!(hidden, ["memcmp", "memcpy", "memmove", "memset"]);
}

/// A kernel whose link creates no global offset table (64-bit code in a 32-bit ELF file) would call
/// an arbitrary address.
#[test]
fn it_asks_for_no_global_offset_table() {
    for folder in archives() {
        let bytes = object_of(folder);
        let object = object::File::parse(&*bytes).unwrap();
        let mut looked_at = 0;
        for (offset, relocation) in object.sections().flat_map(|section| section.relocations()) {
            let RelocationFlags::Elf { r_type } = relocation.flags() else {
                panic!("not an ELF object");
            };
            let known: &[elf::RelocationType] = if build::is_aarch64() {
                &[
                    elf::R_AARCH64_ABS64,
                    elf::R_AARCH64_ADR_PREL_PG_HI21,
                    elf::R_AARCH64_ADD_ABS_LO12_NC,
                    elf::R_AARCH64_LDST8_ABS_LO12_NC,
                    elf::R_AARCH64_LDST32_ABS_LO12_NC,
                    elf::R_AARCH64_LDST64_ABS_LO12_NC,
                    elf::R_AARCH64_CALL26,
                    elf::R_AARCH64_JUMP26,
                ]
            } else {
                &[elf::R_X86_64_64, elf::R_X86_64_PC32, elf::R_X86_64_PLT32]
            };
            assert!(known.contains(&r_type), "type {r_type} at {offset:#x}");
            looked_at += 1;
        }
        assert!(looked_at > 100, "no code was found");
    }
}

/// A name that is not hidden could clash with one of the kernel, or of another Rust archive.
#[test]
fn what_the_header_declares_is_all_it_exports() {
    let header = fs::read_to_string(build::streams().join("unikprof.h")).unwrap();
    for folder in archives() {
        let bytes = object_of(folder);
        let object = object::File::parse(&*bytes).unwrap();
        let symbols = object.symbols();
        let exported: Vec<&str> = symbols
            .filter(|symbol| symbol.is_global() && !symbol.is_undefined())
            .map(|symbol| symbol.name().unwrap())
            .collect();
        for call in UPCALLS.iter().chain(&CRASHES) {
            assert!(exported.contains(call), "{call}");
        }
        for name in exported {
            assert!(header.contains(&format!("{name}(")), "`{name}` is exported");
        }
    }
}

#[test]
fn it_takes_no_more_room_than_it_may() {
    const MOST: u64 = 103 << 10;
    const CRYPTOGRAPHY: u64 = 32 << 10;
    const FLIGHT_RECORDER: u64 = 25 << 10;
    // With 576 bytes of countdowns.
    const HEAP: u64 = 11 << 10;
    // Beside 2,048 slots of 20 bytes.
    const TRACE: u64 = 2_048 * 20 + (34 << 10);
    let mut without = 0;
    // In the order of the archives.
    let limits =
        [Some(MOST), None, Some(CRYPTOGRAPHY), Some(FLIGHT_RECORDER), Some(HEAP), Some(TRACE)];
    for (folder, most) in archives().into_iter().zip(limits) {
        let bytes = object_of(folder);
        let object = object::File::parse(&*bytes).unwrap();
        let (mut text, mut data, mut zero) = (0, 0, 0);
        for section in object.sections() {
            match section.kind() {
                SectionKind::Text => text += section.size(),
                SectionKind::UninitializedData => zero += section.size(),
                SectionKind::Data | SectionKind::ReadOnlyData => data += section.size(),
                SectionKind::ReadOnlyString | SectionKind::ReadOnlyDataWithRel => {
                    data += section.size();
                }
                _ => {}
            }
        }
        println!("{}: text {text}, data {data}, zeroed {zero} bytes", folder.display());
        assert!(text > 0 && data > 0);
        let added = text + data + zero - without;
        if without == 0 {
            without = added;
        }
        if let Some(most) = most {
            assert!(added <= most, "{added} of {most}");
        }
    }
}

/// The precompiled core library was built with the red zone. On an interrupted stack, an upcall
/// overwrites the red zone.
#[test]
fn nothing_is_kept_below_the_stack_pointer() {
    for code in codes() {
        let below: Vec<String> = code
            .functions()
            .filter_map(|function| Some((&function.name, function.body.below_the_stack()?)))
            .map(|(name, below)| format!("{name}: {below}"))
            .collect();
        assert_eq!(below, [""; 0]);
        assert!(code.functions().count() > 50, "no code was found");
    }
}

/// The search must be able to find something: gcc uses the red zone if it may.
#[test]
fn the_search_finds_a_red_zone() {
    const LEAF: &str =
        "int leaf(int i) { volatile int kept[4] = {i, 2, 3, 4}; return kept[i & 3]; }";
    // A loop whose index is at least 3, which is not enough here.
    const LOOP: &str = "__attribute__((naked)) void leaf(void) { __asm__(\
        \"push %rbp; mov %rsp, %rbp; sub $DEPTH, %rsp; mov $3, %ecx\\n\"\
        \"0: movb $0, -64(%rbp,%rcx); add $4, %rcx; cmp $67, %rcx; jne 0b\\n\"\
        \"leave; ret\"); }";
    let shallow = LOOP.replace("DEPTH", "60");
    let enough = LOOP.replace("DEPTH", "61");
    let wild = enough.replace("jne 0b", "jl 0b");
    let folder = tempfile::tempdir().unwrap();
    let (unit, object) = (folder.path().join("leaf.c"), folder.path().join("leaf.o"));
    for (source, frames, red_zone, expected) in [
        (LEAF, "-fomit-frame-pointer", "-mred-zone", 1),
        (LEAF, "-fno-omit-frame-pointer", "-mred-zone", 1),
        (LEAF, "-fomit-frame-pointer", "-mno-red-zone", 0),
        (LEAF, "-fno-omit-frame-pointer", "-mno-red-zone", 0),
        (&shallow, "-fomit-frame-pointer", "-mno-red-zone", 1),
        (&enough, "-fomit-frame-pointer", "-mno-red-zone", 0),
        (&wild, "-fomit-frame-pointer", "-mno-red-zone", 1),
    ] {
        fs::write(&unit, source).unwrap();
        let mut gcc = build::gcc();
        gcc.args(["-c", "-O0", frames, red_zone]).arg(&unit).arg("-o").arg(&object);
        assert!(gcc.status().unwrap().success());
        let bytes = fs::read(&object).unwrap();
        let code = Code::read(&bytes);
        let below = code.functions();
        let below = below.filter_map(|function| function.body.below_the_stack());
        assert_eq!(below.count(), expected, "{frames} {red_zone}: {source}");
    }
}

/// A kernel's stacks are small, so large values must be written in place: a network alone has 150
/// KB. The largest frame, in the start, holds a service once; the header states the start's whole
/// stack use.
#[test]
fn no_function_has_a_large_frame() {
    for code in codes() {
        for function in code.functions() {
            let frame = function.body.frame_bytes();
            assert!(frame <= 28 << 10, "{}: {frame} bytes", function.name);
        }
        let start = code.stack_bytes("unikprof_init");
        println!("stack of unikprof_init: {start} bytes");
        assert!(start <= 40 << 10, "{start} bytes");
    }
}

/// Kernels that build their interrupt path without SSE save none of its state. Those for aarch64
/// are often compiled without vector registers as a whole, and processors trap if they are used:
/// then no call may use them.
#[test]
fn upcalls_touch_no_vector_or_floating_point_state() {
    for code in codes() {
        let functions = if build::is_aarch64() {
            code.functions().collect()
        } else {
            code.reached_from(&[&UPCALLS[..], &CRASHES].concat())
        };
        assert!(functions.len() > 50, "no code was found");
        for function in functions {
            let found = function.body.vector_instruction();
            assert_eq!(found, None, "{}", function.name);
        }
    }
}

/// A guest may run on any processor, and migrate to an older one. The drop-in's entry saves no AVX
/// state.
#[test]
fn every_x86_64_processor_has_its_instructions() {
    let dropin = Code::read(&dropin_object());
    for code in codes().chain([dropin]) {
        for function in code.functions() {
            let missing = function.body.missing_instruction();
            assert_eq!(missing, None, "{}", function.name);
        }
    }
}

/// The search must be able to find something.
#[test]
fn the_search_finds_instructions_of_x86_64_v3() {
    let folder = tempfile::tempdir().unwrap();
    let (unit, object) = (folder.path().join("f.c"), folder.path().join("f.o"));
    fs::write(&unit, "long f(long a, long b) { return a >> b; }").unwrap();
    for (processor, is_found) in [("x86-64", false), ("x86-64-v3", true)] {
        let mut gcc = build::gcc();
        gcc.args(["-c", "-O2", &format!("-march={processor}")]).arg(&unit).arg("-o").arg(&object);
        assert!(gcc.status().unwrap().success());
        let code = Code::read(&fs::read(&object).unwrap());
        let found = code.functions().find_map(|function| function.body.missing_instruction());
        assert_eq!(found.is_some(), is_found, "{found:?}: {processor}");
    }
}

/// The drop-in's entry saves SSE state for a poll only.
#[test]
fn ticks_of_the_dropin_touch_no_vector_or_floating_point_state() {
    let code = Code::read(&dropin_object());
    let mut found = code.functions().filter(|function| function.name.contains("12on_interrupt"));
    let reached = code.reached_from(&[found.next().unwrap().name.as_str()]);
    assert!(reached.iter().any(|function| function.name.contains("walk")));
    for function in reached {
        let found = function.body.vector_instruction();
        assert_eq!(found, None, "{}", function.name);
    }
}

/// The search must be able to find something, and must take nothing else for it.
#[test]
fn the_search_finds_vector_registers() {
    const INTEGERS: &str = "long f(long *a, long n) { return n ? f(a + 1, n / 3) + *a * n : 0; }";
    const FLOATS: [&str; 3] = [
        "double f(double *a, long n) { return *a * n; }",
        "void f(float *a, float *b) { *a = *b + 1; }",
        "typedef char v __attribute__((vector_size(16))); void f(v *a, v *b) { *a = *b; }",
    ];
    let folder = tempfile::tempdir().unwrap();
    let (unit, object) = (folder.path().join("f.c"), folder.path().join("f.o"));
    for (source, is_found) in
        [(INTEGERS, false)].into_iter().chain(FLOATS.map(|source| (source, true)))
    {
        fs::write(&unit, source).unwrap();
        let mut gcc = build::gcc();
        gcc.args(["-c", "-O2"]).arg(&unit).arg("-o").arg(&object);
        assert!(gcc.status().unwrap().success());
        let code = Code::read(&fs::read(&object).unwrap());
        let mut functions = code.functions();
        let found = functions.find_map(|function| function.body.vector_instruction());
        assert_eq!(found.is_some(), is_found, "{found:?}: {source}");
    }
}

/// An upcall calls only the archive's code and the guest's functions, and cannot panic.
#[test]
fn upcalls_reach_no_panic_and_nothing_outside() {
    for code in codes() {
        let reached = code.reached_from(&UPCALLS);
        for function in &reached {
            assert!(!function.name.contains("panic"), "{}", function.name);
            assert!(!function.body.traps(), "{} has a trap", function.name);
            assert_eq!(function.outside, [""; 0], "{} calls", function.name);
        }
        // The walk must be among them, or the search went wrong.
        assert!(reached.iter().any(|function| function.name.contains("walk")));
        let deepest = UPCALLS.map(|upcall| code.stack_bytes(upcall));
        println!("stack of {UPCALLS:?}: {deepest:?} bytes beside the guest's functions");
        assert!(deepest.iter().all(|bytes| *bytes <= 2048), "{deepest:?}");
    }
}

/// A panic inside a panic handler's call would lose the report.
#[test]
fn a_crash_dump_reaches_no_panic_and_takes_as_much_stack_as_it_says() {
    for code in codes() {
        for function in code.reached_from(&CRASHES) {
            assert!(!function.name.contains("panic"), "{}", function.name);
            assert!(!function.body.traps(), "{} has a trap", function.name);
        }
        let deepest = CRASHES.map(|call| code.stack_bytes(call));
        println!("stack of {CRASHES:?}: {deepest:?} bytes beside the guest's functions");
        assert!(deepest.iter().all(|bytes| *bytes <= 6 << 10), "{deepest:?}");
    }
}
