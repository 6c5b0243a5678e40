/* From Xen's entry to C. A PVH guest starts in 32-bit protected mode, paging off, with the physical address of
 * struct hvm_start_info in ebx; Xen finds the entry through XEN_ELFNOTE_PHYS32_ENTRY (18).
 *
 * Memory is mapped one to one, the first 4 GiB in pages of 2 MiB, all of it writable and executable. The first
 * 2 MiB are not mapped, so that a NULL pointer faults. */
#include "threads.h"

#define CODE_SELECTOR 0x08
#define DATA_SELECTOR 0x10

    .section .note.Xen, "a", @note
    .balign 4
    .long 4, 4, 18
    .asciz "Xen"
    .long boot_entry

    .section .text.boot, "ax", @progbits
    .code32
    .globl boot_entry
    .type boot_entry, @function
boot_entry:
    cld
    /* The boot code runs on the first thread's stack. */
    mov $(thread_stacks + THREAD_STACK_SIZE), %esp
    mov %ebx, %edi                  /* the first argument of kernel_main */

    movl $(page_level_3 + 3), page_level_4      /* present, writable */
    mov $(page_level_2 + 3), %eax
    mov $page_level_3, %edx
    mov $4, %ecx
1:  mov %eax, (%edx)
    add $8, %edx
    add $4096, %eax
    dec %ecx
    jnz 1b
    mov $1, %ecx                    /* entry 0 stays empty */
2:  mov %ecx, %eax
    shl $21, %eax
    or $0x83, %eax                  /* present, writable, large */
    mov %eax, page_level_2(, %ecx, 8)
    inc %ecx
    cmp $2048, %ecx
    jne 2b

    /* PAE and SSE: this kernel's own code uses no SSE, but unikprof_poll and similar calls may. */
    mov %cr4, %eax
    or $0x620, %eax                 /* PAE, OSFXSR, OSXMMEXCPT */
    mov %eax, %cr4
    mov $page_level_4, %eax
    mov %eax, %cr3
    mov $0xc0000080, %ecx           /* EFER */
    rdmsr
    or $0x100, %eax                 /* LME */
    wrmsr
    mov $0x80010033, %eax           /* PG, WP, NE, ET, MP, PE */
    mov %eax, %cr0
    lgdt boot_gdt_pointer
    ljmp $CODE_SELECTOR, $boot_64

    .code64
boot_64:
    mov $DATA_SELECTOR, %eax
    mov %eax, %ds
    mov %eax, %es
    mov %eax, %ss
    mov %edi, %edi                  /* clears the upper half */
    xor %ebp, %ebp                  /* where every chain of frames ends */
    call kernel_main
    ud2
    .size boot_entry, . - boot_entry

    .section .rodata
    .balign 8
boot_gdt:
    .quad 0, 0x00af9b000000ffff, 0x00cf93000000ffff
boot_gdt_pointer:
    .word 23
    .long boot_gdt

    .bss
    .balign 4096
page_level_4: .skip 4096
page_level_3: .skip 4096
    .globl page_level_2
page_level_2: .skip 16384

    .section .note.GNU-stack, "", @progbits
