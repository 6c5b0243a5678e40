//! What the compiled core library refers to in an image that has no Rust runtime. Only in the archive,
//! where all of it is hidden.
#![allow(unsafe_code, reason = "the names and contracts are the compiler's")]

/// A panic ends in an invalid instruction: the guest's own handler shows where. There is no road to it
/// from the upcall (a test holds that).
#[panic_handler]
fn on_panic(_: &core::panic::PanicInfo<'_>) -> ! {
    crate::arch::trap()
}

#[unsafe(no_mangle)]
extern "C" fn rust_eh_personality() {}

unsafe extern "C" {
    fn memcmp(left: *const u8, right: *const u8, count: usize) -> i32;
}

/// The compiler asks for it where only equality counts; kernels seldom have it.
#[unsafe(no_mangle)]
unsafe extern "C" fn bcmp(left: *const u8, right: *const u8, count: usize) -> i32 {
    // SAFETY: the caller's promise is the same.
    unsafe { memcmp(left, right, count) }
}
