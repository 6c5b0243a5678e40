//! A hosted agent for programs that know nothing of it: it is linked into them, and starts before `main`.
//!
//! It prints `listening on ADDRESS` and waits for a line on standard input before `main` runs. All threads that the
//! program makes are registered. When the program is over, the process waits for the end of standard input.

#![allow(unsafe_code)]

use std::ffi::{c_int, c_void};
use std::io::{BufRead as _, Read as _, Write as _, stdin, stdout};
use std::mem::transmute;
use std::sync::OnceLock;

use unikprof_agent::Access;
use unikprof_agent::hosted::{self, Config, Guest};

/// The most threads that may run at a time.
const VCPUS: u32 = 8;

/// The agent, once threads are to be registered.
static GUEST: OnceLock<Guest> = OnceLock::new();

/// Referred to by the linker's command line, so that the archive is linked.
#[used]
#[unsafe(no_mangle)]
#[unsafe(link_section = ".init_array")]
pub static unikprof_linked_guest: extern "C" fn() = begin;

extern "C" fn begin() {
    let config = Config {
        vcpus: VCPUS,
        trace_functions: 1000,
        ring_bytes: 16 << 20,
        cpu_share_permille: 1000,
        guest_name: Some("linked".into()),
        ..Config::new(Access::Open)
    };
    let guest = match hosted::start(config) {
        Ok(guest) => guest,
        Err(error) => {
            eprintln!("the agent does not start: {error}");
            std::process::abort();
        }
    };
    println!("listening on {}", guest.address());
    let _ = stdout().flush();
    let _ = stdin().lock().read_line(&mut String::new());
    register(&guest);
    let _ = GUEST.set(guest);
    // SAFETY: the function may be called when the process ends.
    unsafe { libc::atexit(wait_for_end) };
}

/// Registers this thread until the process ends.
fn register(guest: &Guest) {
    match guest.register_thread() {
        Ok(vcpu) => std::mem::forget(vcpu),
        Err(error) => eprintln!("a thread is not registered: {error}"),
    }
}

extern "C" fn wait_for_end() {
    let _ = stdin().lock().read_to_end(&mut Vec::new());
}

type Main = extern "C" fn(*mut c_void) -> *mut c_void;
type Create = unsafe extern "C" fn(
    *mut libc::pthread_t,
    *const libc::pthread_attr_t,
    Main,
    *mut c_void,
) -> c_int;

/// What a thread of the program runs.
struct Begun {
    main: Main,
    argument: *mut c_void,
}

extern "C" fn registered(begun: *mut c_void) -> *mut c_void {
    // SAFETY: it is the box that `pthread_create` made for this thread alone.
    let begun = unsafe { Box::from_raw(begun.cast::<Begun>()) };
    let vcpu = GUEST.get().map(Guest::register_thread);
    let result = (begun.main)(begun.argument);
    drop(vcpu);
    result
}

/// Replaces the C library's function, which it calls.
///
/// # Safety
/// As for the C library's function.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pthread_create(
    thread: *mut libc::pthread_t,
    attributes: *const libc::pthread_attr_t,
    main: Main,
    argument: *mut c_void,
) -> c_int {
    static CREATE: OnceLock<usize> = OnceLock::new();
    let address = *CREATE.get_or_init(|| {
        // SAFETY: the name is a C string.
        unsafe { libc::dlsym(libc::RTLD_NEXT, c"pthread_create".as_ptr()) as usize }
    });
    // SAFETY: the C library's function has this type.
    let create: Create = unsafe { transmute::<usize, Create>(address) };
    if GUEST.get().is_none() {
        // SAFETY: the caller's.
        return unsafe { create(thread, attributes, main, argument) };
    }
    let begun = Box::into_raw(Box::new(Begun { main, argument }));
    // SAFETY: the caller's; `registered` takes the box.
    let failed = unsafe { create(thread, attributes, registered, begun.cast()) };
    if failed != 0 {
        // SAFETY: no thread has taken it.
        drop(unsafe { Box::from_raw(begun) });
    }
    failed
}
