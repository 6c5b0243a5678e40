//! Lines on the guest's console, before the guest uses it.

use core::fmt::{self, Write as _};

use xen_sys_lite::console::Console;

use crate::found::Found;

/// Writes a line; it is lost if the console is missing or full.
pub(crate) fn print(found: &Found, line: fmt::Arguments<'_>) {
    found.with_console(|page, channel| {
        let mut console = Console::new(page, channel);
        let _ = writeln!(console, "unikprof: {line}");
    });
}
