//! Functions that copy or allocate memory, by their names.

use std::sync::LazyLock;

use regex_lite::Regex;

use super::symbolized::{Function, FunctionKind};

/// What a function does with memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MemoryWork {
    /// Copying, comparing and filling.
    Copy,
    /// Allocating and freeing.
    Allocation,
}

/// Names of functions of C, C++, Rust and OCaml, each as one of `patterns` says.
fn one_of(patterns: &[&str]) -> Option<Regex> {
    Regex::new(&format!("^(?:{})", patterns.join("|"))).ok()
}

static COPIES: LazyLock<Option<Regex>> = LazyLock::new(|| {
    one_of(&[
        r"_*(w?mem(p?cpy|move|set|ccpy)|bcopy|bzero|rep_movs[bwdq]?|rep_stos[bwdq]?)(_\w+)?$",
        r"(core|std)::(ptr|intrinsics)(::\w+)*::(copy|copy_nonoverlapping|write_bytes)(::<.*>)?$",
        r"compiler_builtins::mem::",
        r"caml_(array|floatarray|string|bytes|blit)_?(blit|bytes|string)\w*$",
    ])
});

static ALLOCATORS: LazyLock<Option<Regex>> = LazyLock::new(|| {
    one_of(&[
        r"_*((GI___)?libc_|int_|je_|mi_|tc_|dl|tlsf_|uk_|k)?(m|c|re|v|z)alloc(_\w+)?$",
        r"_*((GI___)?libc_|int_|je_|mi_|tc_|dl|tlsf_|uk_|k|c)?free(_\w+)?$",
        r"_*(GI___)?(libc_)?(memalign|posix_memalign|aligned_alloc|sysmalloc|malloc_consolidate|unlink_chunk|tcache_\w+)(\.\w+)*$",
        r"_*x(m|z)alloc(_\w+)?$",
        r"memp?_(m|c)alloc\w*$",
        r"uk_(do_)?(p|memalign|posix_memalign)\w*alloc\w*$",
        r"unikprof_(ml_)?on_(sampled_alloc|alloc|realloc|free)$",
        r"operator (new|delete)(\[\])?(\(.*\))?$",
        r"(__rustc::)?_*(rust|rdl|rg|rustc)_*(alloc|dealloc|realloc|alloc_zeroed)$",
        r"<?alloc::alloc::",
        r"<.* as (core|alloc)::alloc(::global)?::(GlobalAlloc|Allocator)>::",
        r"(dlmalloc|talc|linked_list_allocator|buddy_system_allocator|buddy_alloc|wee_alloc)::",
        r"caml_(alloc|minor|major|empty_minor|oldify|gc|garbage|memprof|darken|mark|sweep|compact|shared_try_alloc|call_gc)",
    ])
});

/// What is between OCaml's runtime and the agent where `Gc.Memprof` tells of a block.
static MEMPROF: LazyLock<Option<Regex>> = LazyLock::new(|| {
    one_of(&[
        r"Unikprof\.allocated",
        r"run_(alloc_)?callback_(exn|res)",
        r"caml_(callback|start_program|process_pending|do_pending)",
    ])
});

/// What a function does with memory, if that is all it does.
pub fn memory_work(function: &Function) -> Option<MemoryWork> {
    if function.kind != FunctionKind::Named {
        return None;
    }
    let is =
        |names: &Option<Regex>| names.as_ref().is_some_and(|it| it.is_match(function.bare_name()));
    let copies = is(&COPIES).then_some(MemoryWork::Copy);
    copies.or_else(|| is(&ALLOCATORS).then_some(MemoryWork::Allocation))
}

/// Whether a function allocates memory, or is the agent's: in the stack of an allocation it is not
/// what asked for it.
fn is_allocator(function: &Function) -> bool {
    function.kind == FunctionKind::Agent
        || memory_work(function) == Some(MemoryWork::Allocation)
        || MEMPROF.as_ref().is_some_and(|names| names.is_match(function.bare_name()))
        || function.name.trim_start_matches('<').starts_with("alloc::raw_vec::")
}

/// How many of an allocation's functions, the innermost first, are not what asked for it: the
/// allocator's and the agent's, and a single one that the agent calls, such as a shim by the
/// compiler.
pub fn allocator_depth<'f>(functions: impl Iterator<Item = &'f Function>) -> usize {
    let mut depth = 0;
    for (at, function) in functions.enumerate() {
        let is_called_by_agent = function.kind == FunctionKind::Agent && at == depth + 1;
        if is_called_by_agent || (at == depth && is_allocator(function)) {
            depth = at + 1;
        } else if at > depth {
            break;
        }
    }
    depth
}
