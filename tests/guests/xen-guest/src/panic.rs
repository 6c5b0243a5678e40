//! A panic prints its message on the debug port, writes the crash dump, and ends the domain as
//! crashed.

use core::panic::PanicInfo;

#[cfg(feature = "gate")]
use crate::arch::dropin;
#[cfg(feature = "agent")]
use crate::crash;
use crate::{early_println, interrupts, power};

#[panic_handler]
fn on_panic(info: &PanicInfo<'_>) -> ! {
    interrupts::disable();
    early_println!("{info}");
    #[cfg(feature = "agent")]
    crash::leave(info);
    #[cfg(feature = "gate")]
    dropin::crash();
    power::crash()
}
