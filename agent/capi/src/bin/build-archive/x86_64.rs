//! Assembly code of the archive's members on x86-64.

/// Calls the drop-in's start; registers of arguments (also al, their number in vector registers), and the stack's
/// alignment, are kept.
pub(crate) const CALL_START: &str = "push %rax
push %rdi
push %rsi
push %rdx
push %rcx
push %r8
push %r9
call unikprof_dropin_start
pop %r9
pop %r8
pop %rcx
pop %rdx
pop %rsi
pop %rdi
pop %rax
";

/// What compilers expect of every C library, for guests without one.
pub(crate) const MEMORY_FUNCTIONS: [(&str, &str); 3] = [
    ("memcpy", "mov %rdi, %rax\nmov %rdx, %rcx\nrep movsb\nret\n"),
    (
        "memset",
        "mov %rdi, %r8\nmov %esi, %eax\nmov %rdx, %rcx\nrep stosb\nmov %r8, %rax\nret\n",
    ),
    (
        "memcmp",
        "xor %ecx, %ecx\n1: cmp %rdx, %rcx\nje 2f\nmovzbl (%rdi, %rcx), %eax\nmovzbl (%rsi, %rcx), %r8d\n\
         inc %rcx\nsub %r8d, %eax\nje 1b\nret\n2: xor %eax, %eax\nret\n",
    ),
];
