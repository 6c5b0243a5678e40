//! The debug port 0xE9, which Xen prints line by line: for what comes before the console ring, and for the
//! guest's last words.

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

/// Writes a line, whole even if another vCPU writes one too.
pub(crate) fn write_line(line: fmt::Arguments<'_>) {
    static LOCKED: AtomicBool = AtomicBool::new(false);
    /// Whoever holds the lock longer has died in the middle of a line.
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
            // SAFETY: Xen takes the byte; the guest's memory is not touched.
            unsafe {
                asm!("out 0xe9, al", in("al") byte, options(nomem, nostack, preserves_flags));
            }
        }
        Ok(())
    }
}
