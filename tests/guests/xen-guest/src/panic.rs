//! A panic says what it is on the debug port and ends the domain as crashed.

use core::panic::PanicInfo;

use crate::{early_println, interrupts, power};

#[panic_handler]
fn on_panic(info: &PanicInfo<'_>) -> ! {
    interrupts::disable();
    early_println!("{info}");
    power::crash()
}
