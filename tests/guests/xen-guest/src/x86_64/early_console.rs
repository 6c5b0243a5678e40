//! The debug port 0xE9, which Xen prints line by line: for messages before the console ring is
//! connected, and after a crash.

#![allow(unsafe_code, reason = "port output")]

use core::arch::asm;
use core::fmt::{self, Write as _};
use core::sync::atomic::{AtomicBool, Ordering};

/// Writes formatted text and a newline to the debug port.
#[macro_export]
macro_rules! early_println {
    ($($argument:tt)*) => {
        $crate::early_console::write_line(format_args!($($argument)*))
    };
}

/// Writes a line in one piece, even if another vCPU writes one too.
pub(crate) fn write_line(line: fmt::Arguments<'_>) {
    static LOCKED: AtomicBool = AtomicBool::new(false);
    /// A vCPU that holds the lock longer has crashed while writing.
    const PATIENCE: u32 = 10_000_000;
    let mut tries = 0;
    while LOCKED.swap(true, Ordering::Acquire) && tries < PATIENCE {
        tries += 1;
        core::hint::spin_loop();
    }
    // Writing to the port cannot fail.
    let _ = writeln!(DebugPort, "{line}");
    LOCKED.store(false, Ordering::Release);
}

struct DebugPort;

impl fmt::Write for DebugPort {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        for byte in text.bytes() {
            // SAFETY: Xen receives the byte; the guest's memory is not accessed.
            unsafe {
                asm!("out 0xe9, al", in("al") byte, options(nomem, nostack, preserves_flags));
            }
        }
        Ok(())
    }
}
