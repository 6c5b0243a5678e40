//! Loads the C archive as a library, with a guest that uses its calls.

use std::ffi::{CStr, CString, c_char, c_void};
use std::io::{self, Read, Write};
use std::ops::Range;
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};

use unikprof_agent::{Platform, Registers};

use super::abi;
use super::fake::platform::FakePlatform;

/// The functions that the bench calls.
struct Calls {
    on_tick: unsafe extern "C" fn(*const abi::Registers) -> u64,
    poll: unsafe extern "C" fn(u64) -> u64,
    open: unsafe extern "C" fn() -> i32,
    input: unsafe extern "C" fn(i32, *const c_void, usize) -> i64,
    output: unsafe extern "C" fn(i32, *mut c_void, usize) -> i64,
    close: unsafe extern "C" fn(i32) -> i32,
    event_name: unsafe extern "C" fn(*const c_char) -> i32,
    mark: unsafe extern "C" fn(i32, u64) -> i32,
    span_begin: unsafe extern "C" fn(i32) -> u64,
    span_end: unsafe extern "C" fn(i32, u64) -> i32,
    span_enter: unsafe extern "C" fn(u64) -> u64,
    on_alloc: unsafe extern "C" fn(*const c_void, usize),
    on_free: unsafe extern "C" fn(*const c_void),
}

/// Optional parts of a [`CGuest`]'s agent.
#[derive(Clone, Copy, Default)]
pub(crate) struct Extras {
    /// The length of its flight recorder.
    pub(crate) ring_bytes: usize,
    /// The length of its block for live samples.
    pub(crate) live_bytes: usize,
    /// The number of vCPUs beside the first.
    pub(crate) more_vcpus: u32,
}

/// A guest that reads the time from `clock` and whose stack is `stack`.
pub(crate) struct CGuest<'p> {
    calls: Calls,
    clock: &'p FakePlatform,
    /// Unloaded before the agent's context and memory are gone.
    _library: Library,
    _context: Box<Context<'p>>,
    _memory: Vec<u8>,
    _ring: Vec<u8>,
    _live: Vec<u8>,
}

struct Context<'p> {
    clock: &'p FakePlatform,
    stack: &'p FakePlatform,
}

impl<'p> CGuest<'p> {
    /// Builds the archive with the command that guests use, loads it and starts its agent.
    pub(crate) fn start(
        clock: &'p FakePlatform,
        stack: &'p FakePlatform,
        code: Range<u64>,
        Extras { ring_bytes, live_bytes, more_vcpus }: Extras,
    ) -> Self {
        let library = match (ring_bytes, live_bytes, more_vcpus) {
            (0, 0, _) => load("c-archive", &[]),
            (_, 0, _) => load("c-archive-ring", &["--ring"]),
            _ => load("c-archive-heap", &["--heap"]),
        };
        let calls = Calls {
            on_tick: library.find(c"unikprof_on_tick"),
            poll: library.find(c"unikprof_poll"),
            open: library.find(c"unikprof_connection_open"),
            input: library.find(c"unikprof_connection_input"),
            output: library.find(c"unikprof_connection_output"),
            close: library.find(c"unikprof_connection_close"),
            event_name: library.find(c"unikprof_event_name"),
            mark: library.find(c"unikprof_mark"),
            span_begin: library.find(c"unikprof_span_begin"),
            span_end: library.find(c"unikprof_span_end"),
            span_enter: library.find(c"unikprof_span_enter"),
            on_alloc: library.find(c"unikprof_on_alloc"),
            on_free: library.find(c"unikprof_on_free"),
        };
        let init: unsafe extern "C" fn(
            *const abi::Config,
            *const abi::Ops,
            *mut c_void,
            usize,
        ) -> i32 = library.find(c"unikprof_init");
        let mut context = Box::new(Context { clock, stack });
        let mut memory = vec![0_u8; 1 << 20];
        let mut ring = vec![0_u8; ring_bytes];
        let mut live = vec![0_u8; live_bytes];
        let start_of = |block: &mut Vec<u8>| match block.len() {
            0 => std::ptr::null_mut(),
            _ => block.as_mut_ptr().cast(),
        };
        // SAFETY: zeros are valid for all three: no option, a null pointer, no function.
        let (mapping, config, ops) = unsafe { std::mem::zeroed() };
        let mapping = abi::Mapping { start: code.start, end: code.end, ..mapping };
        let config = abi::Config {
            version: abi::UNIKPROF_ABI_VERSION,
            vcpus: 1 + more_vcpus,
            access: abi::UNIKPROF_ACCESS_OPEN,
            mapping_count: 1,
            mappings: &raw const mapping,
            platform_name: c"bench".as_ptr(),
            ring: start_of(&mut ring),
            ring_length: ring_bytes,
            live_memory: start_of(&mut live),
            live_memory_length: live_bytes,
            ..config
        };
        let ops = abi::Ops {
            context: (&raw mut *context).cast(),
            now_ns: Some(now_ns),
            vcpu: Some(vcpu),
            running_ns: Some(running_ns),
            stack_bounds: Some(stack_bounds),
            kick: Some(kick),
            ..ops
        };
        // SAFETY: as the header requires, the context and the memory live as long as the agent.
        let code = unsafe {
            init(&raw const config, &raw const ops, memory.as_mut_ptr().cast(), memory.len())
        };
        assert_eq!(code, 0, "unikprof_init");
        Self {
            calls,
            clock,
            _library: library,
            _context: context,
            _memory: memory,
            _ring: ring,
            _live: live,
        }
    }

    pub(crate) fn event_name(&self, text: &CStr) -> i32 {
        // SAFETY: a text that ends with 0.
        unsafe { (self.calls.event_name)(text.as_ptr()) }
    }

    #[inline]
    pub(crate) fn mark(&self, name: i32, value: u64) {
        // SAFETY: numbers.
        unsafe { (self.calls.mark)(name, value) };
    }

    #[inline]
    pub(crate) fn span(&self, name: i32) {
        // SAFETY: numbers.
        unsafe {
            let span = (self.calls.span_begin)(name);
            (self.calls.span_end)(name, span);
        }
    }

    #[inline]
    pub(crate) fn enter(&self, span: u64) {
        // SAFETY: numbers.
        unsafe { (self.calls.span_enter)(span) };
    }

    #[inline]
    pub(crate) fn on_alloc(&self, address: *const u8, size: usize) {
        // SAFETY: any pointer is allowed.
        unsafe { (self.calls.on_alloc)(address.cast(), size) };
    }

    #[inline]
    pub(crate) fn on_free(&self, address: *const u8) {
        // SAFETY: any pointer is allowed.
        unsafe { (self.calls.on_free)(address.cast()) };
    }

    #[inline]
    pub(crate) fn on_tick(&self, registers: &abi::Registers) -> u64 {
        // SAFETY: the registers belong to the stack that the guest returns.
        unsafe { (self.calls.on_tick)(registers) }
    }

    /// A client of it.
    pub(crate) fn connect(&self) -> Stream<'_, 'p> {
        // SAFETY: the agent was started.
        let connection = unsafe { (self.calls.open)() };
        assert!(connection >= 0);
        Stream { guest: self, connection }
    }
}

/// The registers in the C layout.
pub(crate) fn registers(from: &Registers) -> abi::Registers {
    abi::Registers { pc: from.pc, sp: from.sp, fp: from.fp, lr: from.lr }
}

/// A connection as a byte stream.
pub(crate) struct Stream<'g, 'p> {
    guest: &'g CGuest<'p>,
    connection: i32,
}

impl Write for Stream<'_, '_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let input = self.guest.calls.input;
        // SAFETY: so many bytes are there.
        let taken = unsafe { input(self.connection, bytes.as_ptr().cast(), bytes.len()) };
        usize::try_from(taken).map_err(io::Error::other)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Read for Stream<'_, '_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let calls = &self.guest.calls;
        for _ in 0..10_000 {
            // SAFETY: so many bytes are there.
            let given = unsafe {
                (calls.output)(self.connection, buffer.as_mut_ptr().cast(), buffer.len())
            };
            if given != 0 {
                return usize::try_from(given).map_err(io::Error::other);
            }
            // SAFETY: the agent was started.
            unsafe { (calls.poll)(self.guest.clock.now_ns()) };
        }
        Err(io::ErrorKind::TimedOut.into())
    }
}

impl Drop for Stream<'_, '_> {
    fn drop(&mut self) {
        // SAFETY: the agent was started.
        unsafe { (self.guest.calls.close)(self.connection) };
    }
}

/// # Safety
/// `context` must point to the guest's [`Context`], as in all functions below.
unsafe extern "C" fn now_ns(context: *mut c_void) -> u64 {
    // SAFETY: guaranteed by the caller.
    unsafe { (*context.cast::<Context<'_>>()).clock.now_ns() }
}

unsafe extern "C" fn vcpu(_: *mut c_void) -> u32 {
    0
}

unsafe extern "C" fn kick(_: *mut c_void, _: u32) {}

unsafe extern "C" fn running_ns(context: *mut c_void, vcpu: u32) -> u64 {
    // SAFETY: as above.
    unsafe { (*context.cast::<Context<'_>>()).clock.running_ns(vcpu) }
}

unsafe extern "C" fn stack_bounds(context: *mut c_void, sp: u64, to: *mut abi::Range) -> i32 {
    // SAFETY: as above; the library passes a range to fill in.
    unsafe {
        match (*context.cast::<Context<'_>>()).stack.stack_bounds(sp) {
            Some(bounds) => {
                (*to).start = bounds.start;
                (*to).end = bounds.end;
                1
            }
            None => 0,
        }
    }
}

struct Library(*mut c_void);

impl Drop for Library {
    fn drop(&mut self) {
        // SAFETY: the library is open, and its guest, which makes the calls, is gone.
        assert_eq!(unsafe { libc::dlclose(self.0) }, 0);
    }
}

impl Library {
    /// A function of the library. `F` must be its type in the header.
    fn find<F: Copy>(&self, name: &CStr) -> F {
        assert_eq!(size_of::<F>(), size_of::<*mut c_void>());
        // SAFETY: the library is open.
        let address = unsafe { libc::dlsym(self.0, name.as_ptr()) };
        assert!(!address.is_null(), "{name:?}");
        // SAFETY: the address of a function; the caller guarantees its type.
        unsafe { std::mem::transmute_copy(&address) }
    }
}

/// A copy of its own: a library has one agent.
fn load(name: &str, options: &[&str]) -> Library {
    static COPIES: AtomicU32 = AtomicU32::new(0);
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    let copy = COPIES.fetch_add(1, Ordering::Relaxed);
    let shared = folder.join(format!("libunikprof-{copy}.so"));
    let mut build = Command::new(env!("CARGO"));
    build
        .args(["run", "--quiet", "--package", "unikprof-capi", "--bin", "build-archive", "--"])
        .arg(&folder)
        .args(options)
        .current_dir(env!("CARGO_MANIFEST_DIR"));
    assert!(build.status().unwrap().success());
    let mut link = Command::new("gcc");
    link.args(["-shared", "-Wl,--whole-archive"])
        .arg(folder.join("libunikprof.a"))
        .args(["-Wl,--no-whole-archive", "-o"])
        .arg(&shared);
    assert!(link.status().unwrap().success());
    let path = CString::new(shared.into_os_string().into_encoded_bytes()).unwrap();
    // SAFETY: the library runs no code when it is loaded.
    let library = unsafe { libc::dlopen(path.as_ptr(), libc::RTLD_NOW) };
    assert!(!library.is_null());
    Library(library)
}
