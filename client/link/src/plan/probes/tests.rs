#![allow(clippy::unwrap_used)]

use std::collections::BTreeMap;

use super::*;
use unikprof_test_kit::elf::TestElf;

/// This program, in which the functions below are.
fn this_program() -> Image {
    Image::open("/proc/self/exe".as_ref()).unwrap()
}

/// The plan of a function of this program: parts, and for each probe its kind, its address counted
/// from the symbol `NAME`, its displacement's offset and its length.
type Found = Result<(usize, Vec<(u8, u64, u8, usize)>), Refusal>;

#[cfg(target_arch = "x86_64")]
mod assembly {
    #![allow(unsafe_code)]

    use std::arch::global_asm;

    use super::*;

    // Each function with the offsets that the test expects, counted by hand from the encodings.
    global_asm!(
        ".pushsection .text.unikprof_plan, \"ax\", @progbits",
        ".macro FUNCTION name",
        ".globl \\name",
        ".type \\name, @function",
        "\\name:",
        ".endm",
        ".macro END name",
        ".size \\name, . - \\name",
        ".endm",
        // 0: endbr64 (4), 4: push (1), 5: pop (1), 6: ret
        "FUNCTION plan_landing",
        ".byte 0xf3, 0x0f, 0x1e, 0xfa",
        "push rbp",
        "pop rbp",
        "ret",
        "END plan_landing",
        // 0: one NOP of 5 bytes, 5: rep ret (2)
        "FUNCTION plan_nop",
        ".byte 0x0f, 0x1f, 0x44, 0x00, 0x00",
        ".byte 0xf3, 0xc3",
        "END plan_nop",
        // 0: a compare with a displacement from the program counter and an immediate (3 + 4 + ...),
        // 7: conditional tail call (6), 13: tail call (5)
        "FUNCTION plan_tails",
        ".byte 0x83, 0x3d, 0, 0, 0, 0, 1",
        ".byte 0x0f, 0x84",
        ".long plan_landing - 1f",
        "1: .byte 0xe9",
        ".long plan_nop - 2f",
        "2: END plan_tails",
        // 0: test (3), 3: jump to the other part (6), 9: the same instruction is entered again by
        // the part; 9: ret 8
        "FUNCTION plan_split",
        "test rdi, rdi",
        ".byte 0x0f, 0x85",
        ".long plan_split.cold - 3f",
        "3: ret 8",
        "END plan_split",
        // 0: xor (2), 2: ret (1), 3: jump back (5)
        "FUNCTION plan_split.cold",
        "xor eax, eax",
        "ret",
        ".byte 0xe9",
        ".long 3b - 4f",
        "4: END plan_split.cold",
        // 0: lea of the table (7), 7: movslq (4), 11: add (3), 14: jump through the table, 16: ret,
        // 17: ret
        "FUNCTION plan_switch",
        "lea rdx, [rip + 7f]",
        "movsxd rax, dword ptr [rdx + rdi * 4]",
        "add rax, rdx",
        "jmp rax",
        "5: ret",
        "6: ret",
        "END plan_switch",
        // The same with a table of functions: 14 is an exit.
        "FUNCTION plan_table_of_functions",
        "lea rdx, [rip + 8f]",
        "movsxd rax, dword ptr [rdx + rdi * 4]",
        "add rax, rdx",
        "jmp rax",
        "END plan_table_of_functions",
        // 0: the entry is the exit
        "FUNCTION plan_pointer.constprop.0",
        "jmp qword ptr [rdi + 8]",
        "END plan_pointer.constprop.0",
        "FUNCTION plan_interrupt",
        "push rax",
        "pop rax",
        "iretq",
        "END plan_interrupt",
        "FUNCTION plan_falls_through",
        "push rax",
        "pop rax",
        "END plan_falls_through",
        // 0: ret, 1: entered from outside, 1: ret
        "FUNCTION plan_second_entry",
        "ret",
        "9: ret",
        "END plan_second_entry",
        "FUNCTION plan_jumps_inside",
        ".byte 0xe9",
        ".long 9b - 10f",
        "10: END plan_jumps_inside",
        "FUNCTION plan_odd",
        "11: loop 11b",
        "jrcxz plan_landing",
        "ret",
        "END plan_odd",
        "FUNCTION plan_call_first",
        "call rax",
        "ret",
        "END plan_call_first",
        "FUNCTION plan_data",
        ".byte 0x06",
        "ret",
        "END plan_data",
        // Jumps back to its first instruction, behind the endbr64, from its other part.
        "FUNCTION plan_loop",
        ".byte 0xf3, 0x0f, 0x1e, 0xfa",
        "12: dec rdi",
        ".byte 0x0f, 0x85",
        ".long plan_loop.cold - 13f",
        "13: ret",
        "END plan_loop",
        "FUNCTION plan_loop.cold",
        "nop",
        ".byte 0xe9",
        ".long 12b - 14f",
        "14: END plan_loop.cold",
        // The same without another part.
        "FUNCTION plan_short_loop.llvm.7",
        "15: dec rdi",
        "jne 15b",
        "ret",
        "END plan_short_loop.llvm.7",
        // An agent's handler, the guest's handler that calls it, and what both call.
        "FUNCTION unikprof_on_breakpoint",
        "mov rax, qword ptr [rip + plan_slot]",
        "call rax",
        "call plan_fatal",
        "ret",
        "END unikprof_on_breakpoint",
        "FUNCTION plan_by_pointer",
        "ret",
        "END plan_by_pointer",
        "FUNCTION plan_guest_handler",
        "call plan_helper",
        "call plan_agent_handler",
        "call plan_crash",
        "ret",
        "END plan_guest_handler",
        "FUNCTION plan_crash",
        "call plan_console",
        "ret",
        "END plan_crash",
        "FUNCTION plan_agent_handler",
        "jmp unikprof_on_breakpoint",
        "END plan_agent_handler",
        "FUNCTION plan_helper",
        "call plan_inner_helper",
        "ret",
        "END plan_helper",
        "FUNCTION plan_inner_helper",
        "ret",
        "END plan_inner_helper",
        "FUNCTION plan_fatal",
        "call plan_console",
        "ud2",
        "END plan_fatal",
        // A guest with the drop-in gives it two functions, by an address and by a pointer.
        "FUNCTION unikprof_dropin_call_stacks",
        "ret",
        "END unikprof_dropin_call_stacks",
        "FUNCTION plan_start",
        "lea rdi, [rip + plan_call_stack]",
        "call unikprof_dropin_call_stacks",
        "mov rdi, qword ptr [rip + plan_other_slot]",
        "jmp unikprof_dropin_call_stacks",
        "END plan_start",
        "FUNCTION plan_call_stack",
        "call plan_fibre",
        "ret",
        "END plan_call_stack",
        "FUNCTION plan_fibre",
        "ret",
        "END plan_fibre",
        "FUNCTION plan_other_call_stack",
        "ret",
        "END plan_other_call_stack",
        "FUNCTION plan_console",
        "ret",
        "END plan_console",
        ".pushsection .data.rel.ro.plan_slot, \"aw\", @progbits",
        ".p2align 3",
        "plan_slot: .quad plan_by_pointer",
        "plan_other_slot: .quad plan_other_call_stack",
        ".popsection",
        ".p2align 2",
        "7: .long 5b - 7b, 6b - 7b",
        "8: .long plan_landing - 8b, plan_nop - 8b",
        ".popsection",
    );

    unsafe extern "C" {
        fn plan_landing();
    }

    #[test]
    fn probes_are_at_the_entry_and_at_each_exit() {
        assert_ne!(plan_landing as *const () as usize, 0, "linked");
        let image = this_program();
        let planner = Planner::of(&image, &[]).unwrap();
        let by_name: BTreeMap<&str, usize> = (0..planner.len())
            .filter(|at| planner.name(*at).starts_with("plan_"))
            .map(|at| (planner.name(at), at))
            .collect();
        let found = |name: &str| -> Found {
            let function = by_name[name];
            let plan = planner.plan(function)?;
            let entry = planner.entry(function);
            let mut probes = Vec::new();
            for probe in &plan.probes {
                let part = plan.parts.iter().position(|it| it.contains(&probe.address));
                let part = part.unwrap();
                // Probes of further parts are counted from 1000, 2000 and so on.
                let base = if part == 0 { entry } else { plan.parts[part].start };
                let at = part as u64 * 1000 + (probe.address - base);
                probes.push((probe.kind, at, probe.displacement, probe.instruction.len()));
            }
            Ok((plan.parts.len(), probes))
        };
        const ENTRY: u8 = probe_kind::ENTRY;
        const EXIT: u8 = probe_kind::EXIT;
        let one = || Ok((1, vec![(ENTRY | EXIT, 0, 0, 1)]));
        let expected: [(&str, Found); 24] = [
            ("plan_landing", Ok((1, vec![(ENTRY, 4, 0, 1), (EXIT, 6, 0, 1)]))),
            ("plan_nop", Ok((1, vec![(ENTRY, 0, 0, 5), (EXIT, 5, 0, 2)]))),
            ("plan_tails", Ok((1, vec![(ENTRY, 0, 2, 7), (EXIT, 7, 0, 6), (EXIT, 13, 0, 5)]))),
            ("plan_split", Ok((2, vec![(ENTRY, 0, 0, 3), (EXIT, 9, 0, 3), (EXIT, 1002, 0, 1)]))),
            ("plan_switch", Ok((1, vec![(ENTRY, 0, 3, 7), (EXIT, 16, 0, 1), (EXIT, 17, 0, 1)]))),
            ("plan_table_of_functions", Ok((1, vec![(ENTRY, 0, 3, 7), (EXIT, 14, 0, 2)]))),
            ("plan_pointer.constprop.0", Ok((1, vec![(ENTRY | EXIT, 0, 0, 3)]))),
            ("plan_interrupt", Err(Refusal::FarReturn)),
            ("plan_falls_through", Err(Refusal::FallsThrough)),
            ("plan_second_entry", Err(Refusal::SecondEntry)),
            ("plan_jumps_inside", Err(Refusal::IntoFunction)),
            ("plan_call_first", Err(Refusal::Instruction)),
            ("plan_data", Err(Refusal::Undecodable)),
            ("plan_by_pointer", Err(Refusal::Agent)),
            ("plan_guest_handler", Err(Refusal::Agent)),
            ("plan_agent_handler", Err(Refusal::Agent)),
            ("plan_helper", Err(Refusal::Agent)),
            ("plan_inner_helper", Err(Refusal::Agent)),
            ("plan_fatal", Err(Refusal::Agent)),
            ("plan_crash", Err(Refusal::Agent)),
            ("plan_call_stack", Err(Refusal::Agent)),
            ("plan_fibre", Err(Refusal::Agent)),
            ("plan_other_call_stack", Err(Refusal::Agent)),
            // Called only by a function that does not return, and by one that is called behind the
            // agent's handler.
            ("plan_console", one()),
        ];
        for (name, expected) in expected {
            assert_eq!(found(name), expected, "{name}");
        }
        // `jrcxz` has a distance of one byte: it leaves the function, and cannot be emulated.
        assert_eq!(found("plan_odd"), Err(Refusal::Instruction));
        let loops = |name: &str| planner.plan(by_name[name]).unwrap().loops;
        for name in ["plan_loop", "plan_short_loop.llvm.7", "plan_pointer.constprop.0"] {
            assert!(loops(name), "{name}");
        }
        for name in ["plan_landing", "plan_split", "plan_switch", "plan_tails"] {
            assert!(!loops(name), "{name}");
        }
        assert!(!by_name.contains_key("plan_split.cold"), "a part is no function");
    }
}

/// Guards against a kernel without functions to trace, whose code begins at address 0.
#[test]
fn a_function_may_be_at_address_0() {
    let code = [0x55, 0x5d, 0xc3];
    // No symbol, and a function's in the first section: its name, kind, section, address and size.
    let mut symbols = [0; 48];
    symbols[24] = 1;
    (symbols[28], symbols[30], symbols[40]) = (2, 1, code.len() as u8);
    let mut elf = TestElf::new(
        &code,
        &[(".text", 0, &code), (".symtab", 0, &symbols), (".strtab", 0, b"\0first\0")],
    );
    elf.segments[0].1 = 0;
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("kernel");
    std::fs::write(&path, elf.bytes()).unwrap();
    let image = Image::open(&path).unwrap();
    let planner = Planner::of(&image, &[]).unwrap();
    assert_eq!((planner.len(), planner.name(0)), (1, "first"));
    let plan = planner.plan(0).unwrap();
    let places: Vec<u64> = plan.probes.iter().map(|probe| probe.address).collect();
    assert_eq!(places, [0, 2]);
}

/// As `diff` names them: without lines, which differ between builds.
#[test]
fn static_functions_of_one_name_are_told_apart_by_their_files() {
    let code = [0x55, 0x5d, 0xc3, 0x55, 0x5d, 0xc3];
    let names = b"\0helper\0a.c\0b.c\0";
    // Name, kind, section, address and size.
    let symbols = [
        (0, 0, 0, 0, 0),
        (8, 4, 0xf1, 0, 0),
        (1, 2, 1, 0, 3),
        (12, 4, 0xf1, 0, 0),
        (1, 2, 1, 3, 3),
    ];
    let symbols = symbols.map(|(name, kind, section, address, size)| {
        let mut symbol = [0; 24];
        symbol[0] = name;
        (symbol[4], symbol[6], symbol[8], symbol[16]) = (kind, section, address, size);
        symbol[7] = if section == 0xf1 { 0xff } else { 0 };
        symbol
    });
    let symbols = symbols.concat();
    let mut elf = TestElf::new(
        &code,
        &[(".text", 0, &code), (".symtab", 0, &symbols), (".strtab", 0, names)],
    );
    elf.segments[0].1 = 0;
    let image = Image::parse("kernel".as_ref(), elf.bytes()).unwrap();
    let planner = Planner::of(&image, &[]).unwrap();
    assert_eq!([planner.name(0), planner.name(1)], ["helper (a.c)", "helper (b.c)"]);
}

/// At least 98 % of the functions of a Rust program, but for those of the agent, can be traced.
#[test]
fn most_functions_can_be_traced() {
    let image = this_program();
    let planner = Planner::of(&image, &[]).unwrap();
    let mut refused: BTreeMap<Refusal, Vec<&str>> = BTreeMap::new();
    let mut planned = 0;
    for function in 0..planner.len() {
        match planner.plan(function) {
            Err(Refusal::Agent) => {}
            Ok(plan) => {
                planned += 1;
                assert!(plan.probes.iter().any(|probe| probe.kind & probe_kind::ENTRY != 0));
            }
            Err(refusal) => {
                let names = refused.entry(refusal).or_default();
                names.push(planner.name(function));
            }
        }
    }
    let count: usize = refused.values().map(Vec::len).sum();
    assert!(planned > 1000, "{planned}");
    assert!(count * 50 < planned + count, "{planned} planned, refused: {refused:?}");
}

/// Named as ocamlopt names one.
#[allow(unsafe_code)]
#[unsafe(export_name = "camlPlan.fun_12")]
extern "C" fn anonymous() {}

/// As reports name it: a trace and a profile have one name for it.
#[test]
fn an_anonymous_function_of_ocaml_has_its_place() {
    const LINE: u32 = line!() - 5;
    std::hint::black_box(anonymous as extern "C" fn())();
    let image = this_program();
    let planner = Planner::of(&image, &[]).unwrap();
    let is_it = |function: &usize| planner.raw_names(*function) == ["camlPlan.fun_12"];
    let function = (0..planner.len()).find(is_it).unwrap();
    assert_eq!(planner.name(function), format!("Plan.(fun tests.rs:{LINE})"));
}
