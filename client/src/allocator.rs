//! The allocator of the programs.
#![allow(unsafe_code, reason = "allocators are unsafe to implement and to call")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::exit_code;

/// The system's allocator. Where it has no more memory, the program ends with an error instead of
/// being aborted. Nothing is cleaned up, as after SIGKILL: a recording stays in the guest, and files
/// that are being written keep their temporary names.
#[derive(Debug)]
pub struct Allocator;

// SAFETY: the system's allocator does everything, and callers have its obligations.
unsafe impl GlobalAlloc for Allocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: as above.
        got(unsafe { System.alloc(layout) }, layout.size())
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        // SAFETY: as above.
        got(unsafe { System.alloc_zeroed(layout) }, layout.size())
    }

    unsafe fn realloc(&self, memory: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        // SAFETY: as above.
        got(unsafe { System.realloc(memory, layout, size) }, size)
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        // SAFETY: as above.
        unsafe { System.dealloc(memory, layout) }
    }
}

#[inline]
fn got(memory: *mut u8, size: usize) -> *mut u8 {
    if memory.is_null() {
        end(size);
    }
    memory
}

/// Where what is fetched from a guest is written, if anything is.
static FETCHED: OnceLock<PathBuf> = OnceLock::new();

/// Has the error tell what was kept in this file, which does not exist yet or is empty.
pub(crate) fn tell_where(path: &Path) {
    let _ = FETCHED.set(path.to_owned());
}

/// Writes what is left of what was fetched.
fn write_kept(path: &Path, out: &mut impl io::Write) -> io::Result<()> {
    match path.metadata() {
        Ok(found) if found.len() > 0 => write!(out, "; what was fetched is in {}", path.display()),
        _ => out.write_all(b"; nothing that was fetched is kept"),
    }
}

/// Ends the program: numbers and paths are formatted in place, and no handlers run.
#[cold]
fn end(size: usize) -> ! {
    static IS_ENDING: AtomicBool = AtomicBool::new(false);
    if !IS_ENDING.swap(true, Ordering::Relaxed) {
        let mut stderr = io::stderr();
        let _ = write!(stderr, "error: out of memory: no room for {size} bytes more");
        let _ = FETCHED.get().map(|path| write_kept(path, &mut stderr));
        let _ = stderr.write_all(b"\n");
    }
    signal_hook::low_level::exit(exit_code::OTHER.into())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn the_error_tells_where_what_was_fetched_is() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("r.unikprof");
        let told = || {
            let mut out = Vec::new();
            write_kept(&path, &mut out).unwrap();
            String::from_utf8(out).unwrap()
        };
        assert_eq!(told(), "; nothing that was fetched is kept");
        std::fs::write(&path, "samples").unwrap();
        assert_eq!(told(), format!("; what was fetched is in {}", path.display()));
    }
}
