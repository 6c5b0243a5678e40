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
