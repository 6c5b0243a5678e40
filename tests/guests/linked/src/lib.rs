//! A hosted agent for programs that know nothing of it: it is linked into them, and starts before
//! `main`.
//!
//! It prints `listening on ADDRESS` and waits for a line on standard input before `main` runs. All
//! threads that the program makes are registered. When the program is over, the process waits for
//! the end of standard input.

#![allow(unsafe_code)]

use std::ffi::{CStr, c_char, c_int, c_void};
use std::io::{BufRead as _, Read as _, Write as _, stdin, stdout};
use std::mem::transmute;
use std::sync::OnceLock;

use unikprof_agent::Access;
use unikprof_agent::hosted::{self, Config, Guest};

/// The most threads that may run at a time.
const VCPUS: u32 = 8;

/// The agent, once threads are to be registered.
static GUEST: OnceLock<Guest> = OnceLock::new();

/// A program's `main`.
type ProgramMain = extern "C" fn(c_int, *mut *mut c_char, *mut *mut c_char) -> c_int;
type StartMain = unsafe extern "C" fn(
    ProgramMain,
    c_int,
    *mut *mut c_char,
    *mut c_void,
    *mut c_void,
    *mut c_void,
    *mut c_void,
) -> c_int;

static MAIN: OnceLock<ProgramMain> = OnceLock::new();

/// Replaces the C library's function, which it calls with another `main`.
///
/// # Safety
/// As for the C library's function.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn __libc_start_main(
    main: ProgramMain,
    count: c_int,
    arguments: *mut *mut c_char,
    begin: *mut c_void,
    end: *mut c_void,
    loader_end: *mut c_void,
    stack: *mut c_void,
) -> c_int {
    let _ = MAIN.set(main);
    // SAFETY: the C library's function has this type.
    let start: StartMain = unsafe { transmute::<usize, StartMain>(next(c"__libc_start_main")) };
    // SAFETY: the caller's.
    unsafe { start(registered_main, count, arguments, begin, end, loader_end, stack) }
}

/// The address of the C library's function that one of these replaces.
fn next(name: &CStr) -> usize {
    // SAFETY: the name is a C string.
    unsafe { libc::dlsym(libc::RTLD_NEXT, name.as_ptr()) as usize }
}

extern "C" fn registered_main(
    count: c_int,
    arguments: *mut *mut c_char,
    environment: *mut *mut c_char,
) -> c_int {
    begin();
    MAIN.get().map_or(1, |main| main(count, arguments, environment))
}

fn begin() {
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

/// The function that a thread of the program runs, and its argument.
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
    let address = *CREATE.get_or_init(|| next(c"pthread_create"));
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
