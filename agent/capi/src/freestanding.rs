//! Symbols that the compiled core library refers to, for an image without a Rust runtime. Only in
//! the archive, where they are hidden.
#![allow(unsafe_code, reason = "the names and contracts are the compiler's")]

/// A panic executes an invalid instruction; the guest's own handler shows where. It cannot be
/// reached from the upcall (a test checks this).
#[panic_handler]
fn on_panic(_: &core::panic::PanicInfo<'_>) -> ! {
    crate::arch::trap()
}

#[unsafe(no_mangle)]
extern "C" fn rust_eh_personality() {}

unsafe extern "C" {
    fn memcmp(left: *const u8, right: *const u8, count: usize) -> i32;
}

/// The compiler calls this for comparisons that only need equality; kernels seldom have it.
#[unsafe(no_mangle)]
unsafe extern "C" fn bcmp(left: *const u8, right: *const u8, count: usize) -> i32 {
    // SAFETY: guaranteed by the caller.
    unsafe { memcmp(left, right, count) }
}
