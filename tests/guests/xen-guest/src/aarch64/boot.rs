//! From Xen's entry to Rust: an arm64 image starts at exception level 1 with the MMU off, and the
//! physical address of the device tree in x0 (Linux, `Documentation/arch/arm64/booting.rst`).
//!
//! Memory is mapped one to one. Of the first GiB, where Xen has the interrupt controller, the pages
//! of its tools and the grant table, the first 2 MiB are not mapped, so that a null pointer faults;
//! the tools' pages and the grant table are memory, and the rest are devices. The three GiB behind
//! it, where the guest's memory begins, are memory.

#![allow(unsafe_code, reason = "the entry is assembly")]

use core::arch::global_asm;

/// The size of the vCPU's stack in bytes.
pub(crate) const STACK_SIZE: usize = 1024 * 1024;

global_asm!(
    r#"
    .section .text.boot, "ax", @progbits
    .globl start
    .type start, @function
start:
    b   1f
    .long 0
    .quad 0                     /* offset of the image in memory */
    .quad image_size
    .quad 0xa                   /* little-endian, pages of 4 KiB, anywhere in memory */
    .quad 0, 0, 0
    .ascii "ARM\x64"
    .long 0
1:  msr daifset, #0xf
    mov x19, x0                 /* the device tree */
    adrp x0, bss_start
    add x0, x0, :lo12:bss_start
    adrp x1, image_end
    add x1, x1, :lo12:image_end
2:  stp xzr, xzr, [x0], #16
    cmp x0, x1
    b.lo 2b

    adrp x0, page_level_1
    add x0, x0, :lo12:page_level_1
    adrp x1, page_level_2
    add x1, x1, :lo12:page_level_2
    orr x2, x1, #3
    str x2, [x0]
    movz x3, #0x705             /* accessed, inner shareable, memory, a block */
    movz x4, #0x4000, lsl #16
    movz x7, #0x4000, lsl #16
    mov x5, #1
3:  orr x6, x3, x4
    str x6, [x0, x5, lsl #3]
    add x4, x4, x7
    add x5, x5, #1
    cmp x5, #4
    b.lo 3b
    mov x4, #0x200000
    mov x5, #1                  /* entry 0 stays empty: null faults */
    movz x8, #0x401
    movk x8, #0x60, lsl #48     /* accessed, a device, not executable, a block */
4:  orr x6, x8, x4
    cmp x5, #0x1c0              /* 0x38000000: the grant table; 0x39000000: the tools' pages */
    b.lo 5f
    cmp x5, #0x1d0
    b.hs 5f
    orr x6, x3, x4
5:  str x6, [x1, x5, lsl #3]
    add x4, x4, #0x200000
    add x5, x5, #1
    cmp x5, #512
    b.lo 4b
    dsb sy
    bl  mmu_on
    adrp x0, boot_stack_end
    add x0, x0, :lo12:boot_stack_end
    mov sp, x0
    mov x29, xzr                /* the end of every chain of frame records */
    mov x30, xzr
    mov x0, x19
    bl kernel_main
    brk #0
    .size start, . - start

    /* Another vCPU, started by PSCI; x0: the top of its stack, and there the arguments of
       secondary_main. */
    .globl secondary_start
    .type secondary_start, @function
secondary_start:
    msr daifset, #0xf
    mov x19, x0
    bl  mmu_on
    mov sp, x19
    ldp x0, x1, [x19]
    ldr x2, [x19, #16]
    mov x29, xzr
    mov x30, xzr
    bl secondary_main
    brk #0
    .size secondary_start, . - secondary_start

    /* Of every vCPU: floating point, the page tables, caches, vectors. */
    .type mmu_on, @function
mmu_on:
    mov x0, #(3 << 20)
    msr cpacr_el1, x0           /* floating-point registers: compiled code uses them */
    movz x2, #0xff00            /* attribute 0: devices; 1: memory, write-back */
    msr mair_el1, x2
    movz x2, #0x3519            /* 39 bits of address, write-back tables, inner shareable */
    movk x2, #0x0080, lsl #16   /* no addresses in the upper half */
    movk x2, #0x0002, lsl #32   /* 40 bits of physical address */
    msr tcr_el1, x2
    adrp x0, page_level_1
    add x0, x0, :lo12:page_level_1
    msr ttbr0_el1, x0
    tlbi vmalle1
    ic iallu
    dsb sy
    isb
    mrs x2, sctlr_el1
    movz x3, #0x1005            /* MMU and caches */
    orr x2, x2, x3
    bic x2, x2, #2              /* accesses need no alignment */
    msr sctlr_el1, x2
    isb
    adrp x0, vectors
    add x0, x0, :lo12:vectors
    msr vbar_el1, x0
    isb
    ret
    .size mmu_on, . - mmu_on

    .section .bss.boot, "aw", @nobits
    .balign 4096
page_level_1: .skip 4096
page_level_2: .skip 4096
    .globl boot_stack
boot_stack: .skip {stack}
    .globl boot_stack_end
boot_stack_end:
    .text
"#,
    stack = const STACK_SIZE,
);
