//! The crash dump: the newest of what was recorded, on the guest's console.

use core::fmt::{self, Write as _};
use core::sync::atomic::{AtomicBool, Ordering};

use unikprof_agent::CrashLines;
use xen_sys_lite::last_words::LastWords;
use xen_sys_lite::{HypercallInstruction, PolledChannel};

use crate::machine::{self, own_stacks};
use crate::{exclusive, found, upcall};

type Console = LastWords<PolledChannel<'static, HypercallInstruction>>;

/// Writes the dump, once.
pub(crate) fn leave() {
    static IS_LEFT: AtomicBool = AtomicBool::new(false);
    if upcall::agent().is_none() || IS_LEFT.swap(true, Ordering::AcqRel) {
        return;
    }
    // What has crashed may be a tick, which the guest's handler returns through, or another vCPU.
    let were_on = machine::disable_interrupts();
    exclusive::claim_for_crash();
    own_stacks::on_crash_stack(write);
    if were_on {
        machine::enable_interrupts();
    }
}

extern "C" fn write() {
    let (Some(agent), Some(found)) = (upcall::agent(), found::found()) else {
        return;
    };
    if let Ok(name) = agent.event_name("abort") {
        agent.mark(name, 0);
    }
    let block = own_stacks::crash_block();
    let length = agent.crash_dump_into(block);
    found.with_console(|page, channel| {
        let mut console = Console::new(page, channel);
        // What the console does not take is lost: there is nowhere to report it.
        let _ = match length {
            Ok(length) => write_lines(&mut console, &block[..length]),
            Err(error) => write!(console, "\r\nunikprof: no crash dump: {error}\r\n"),
        };
        console.finish();
    });
}

fn write_lines(console: &mut Console, block: &[u8]) -> fmt::Result {
    // The guest's last line may be incomplete.
    write!(console, "\r\nunikprof: the guest ends; for `unikprof-client recover`:\r\n")?;
    for line in CrashLines::of(block) {
        write!(console, "{line}\r\n")?;
    }
    write!(console, "unikprof: the dump ends here\r\n")
}
