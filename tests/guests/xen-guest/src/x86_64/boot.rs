//! From Xen's entry to Rust: a PVH guest starts in 32-bit protected mode with paging off.
//!
//! Xen finds the entry through the ELF note `XEN_ELFNOTE_PHYS32_ENTRY` (18) and puts the physical
//! address of `struct hvm_start_info` in ebx (`xen/include/public/elfnote.h`, `docs/misc/pvh`).
//!
//! Memory is mapped one to one: the first 4 GiB in 2 MiB pages, all writable and executable, except
//! the first 2 MiB, which are not mapped, so that a null pointer faults. SSE is enabled before any
//! Rust runs, because the compiled core library uses it.

#![allow(unsafe_code, reason = "the entry is assembly")]

use core::arch::global_asm;

pub(crate) const CODE_SELECTOR: u16 = 0x08;

pub(crate) const DATA_SELECTOR: u16 = 0x10;

/// The size of the first vCPU's stack in bytes.
pub(crate) const STACK_SIZE: usize = 1024 * 1024;

global_asm!(
    r#"
    .section .note.Xen, "a", @note
    .balign 4
    .long 4, 4, 18
    .asciz "Xen"
    .long start_32

    .section .text.boot, "ax", @progbits
    .code32
    .globl start_32
start_32:
    cld
    lea esp, [boot_stack_end]
    mov edi, ebx                    /* start_info: the first argument of kernel_main */

    /* One level-4 entry, four level-3 entries, 2,048 entries of 2 MiB. */
    lea eax, [page_level_3 + 3]     /* present, writable */
    mov [page_level_4], eax
    lea eax, [page_level_2 + 3]
    lea edx, [page_level_3]
    mov ecx, 4
2:  mov [edx], eax
    add edx, 8
    add eax, 4096
    dec ecx
    jnz 2b
    mov ecx, 1                      /* entry 0 stays empty: null faults */
3:  mov eax, ecx
    shl eax, 21
    or eax, 0x83                    /* present, writable, large */
    mov [page_level_2 + ecx * 8], eax
    inc ecx
    cmp ecx, 2048
    jne 3b

    mov eax, cr4
    or eax, 0x620                   /* PAE, OSFXSR, OSXMMEXCPT */
    mov cr4, eax
    lea eax, [page_level_4]
    mov cr3, eax
    mov ecx, 0xc0000080             /* EFER */
    rdmsr
    or eax, 0x100                   /* LME */
    wrmsr
    mov eax, 0x80010033             /* PG, WP, NE, ET, MP, PE */
    mov cr0, eax
    lgdt [boot_gdt_pointer]
    .byte 0xea                      /* ljmp {code}:start_64 */
    .long start_64
    .word {code}

    .code64
start_64:
    mov eax, {data}
    mov ds, eax
    mov es, eax
    mov ss, eax
    mov edi, edi                    /* clears the upper half */
    xor ebp, ebp                    /* the end of every frame-pointer chain */
    call kernel_main
    ud2

    .section .rodata
    .balign 8
boot_gdt:
    .quad 0, 0x00af9b000000ffff, 0x00cf93000000ffff
boot_gdt_pointer:
    .word 23
    .long boot_gdt

    .bss
    .balign 4096
    .globl page_level_4
page_level_4: .skip 4096
page_level_3: .skip 4096
page_level_2: .skip 16384
    .globl boot_stack
boot_stack: .skip {stack}
    .globl boot_stack_end
boot_stack_end:
    .text
"#,
    code = const CODE_SELECTOR,
    data = const DATA_SELECTOR,
    stack = const STACK_SIZE,
);
