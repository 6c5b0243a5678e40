//! Assembly code of the archive's members on x86-64.

/// Registers of arguments, and al: the number of arguments in vector registers.
const ARGUMENTS: [&str; 7] = ["rax", "rdi", "rsi", "rdx", "rcx", "r8", "r9"];

/// Calls `function` at the entry of another function, whose arguments are kept, as is the stack's
/// alignment.
pub(crate) fn call_before(function: &str) -> String {
    let push = ARGUMENTS.map(|register| format!("push %{register}\n"));
    let mut pop = ARGUMENTS.map(|register| format!("pop %{register}\n"));
    pop.reverse();
    format!("{}call {function}\n{}", push.concat(), pop.concat())
}

/// For kernels that have none.
pub(crate) const MEMMOVE: &str = include_str!("../../x86_64/memmove.s");

/// The functions that compilers expect of every C library.
pub(crate) const MEMORY_FUNCTIONS: [(&str, &str); 3] = [
    ("memcpy", "mov %rdi, %rax\nmov %rdx, %rcx\nrep movsb\nret\n"),
    ("memset", "mov %rdi, %r8\nmov %esi, %eax\nmov %rdx, %rcx\nrep stosb\nmov %r8, %rax\nret\n"),
    (
        "memcmp",
        "xor %ecx, %ecx\n1: cmp %rdx, %rcx\nje 2f\nmovzbl (%rdi, %rcx), %eax\nmovzbl (%rsi, %rcx), \
         %r8d\n\
         inc %rcx\nsub %r8d, %eax\nje 1b\nret\n2: xor %eax, %eax\nret\n",
    ),
];
