//! Compares one sample with those of other in-process profilers, on the same real stack.
//!
//! ```text
//! cargo bench -p unikprof-agent --bench unwinders
//! ```
//!
//! The stack is that of a recursion compiled with frame pointers, so that all can walk it:
//!
//! - *unikprof*: walk, bounds, find, count.
//! - *backtrace*: `backtrace::trace_unsynchronized`, the unwinder of the C runtime (libgcc's, by
//!   unwind tables). It neither symbolises nor counts.
//! - *framehop*: its iterator over the unwind sections of all loaded images, which it has read
//!   before, with a full rule cache and with an empty one. It does not count. Also with 256 copied
//!   stacks through 2,048 call sites in random order, as in a program of some size.
//! - *pprof*: the signal handler that pprof-rs has installed, called with a real context: its body,
//!   without the delivery. Its unwinder is `backtrace`, the default.
#![allow(unsafe_code, clippy::unwrap_used)]

mod harness;
#[path = "harness/maze.rs"]
mod maze;

use std::cell::RefCell;
use std::ffi::{c_int, c_void};
use std::fs;
use std::hint::black_box;
use std::mem::MaybeUninit;
use std::ops::Range;

use framehop::x86_64::{CacheX86_64, UnwindRegsX86_64, UnwinderX86_64};
use framehop::{ExplicitModuleSectionInfo, Module, Unwinder};
use harness::cycles::{Clock, HEADING, REPETITIONS};
use harness::fake::stacks::Random;
use harness::sampler::Sampler;
use object::{Object, ObjectSection};
use unikprof_agent::stack::{FRAME_RECORD, ReadStack, StackMemory};
use unikprof_agent::walk::Guide;
use unikprof_agent::{CodeMap, Mapping, Registers};

const CALLS: usize = 2000;
/// The frames of the recursion; with the callers below it the agent's walk sees 32.
const RECURSION: u32 = 26;

fn main() {
    if !harness::asked_to_measure() {
        return;
    }
    // A separate thread, because it has few frames below the recursion.
    std::thread::spawn(|| recurse(RECURSION)).join().unwrap();
    std::thread::spawn(many_stacks).join().unwrap();
}

/// The agent and framehop on distinct stacks through many call sites, each written to the same
/// memory before.
fn many_stacks() {
    const STACKS: usize = 256;
    let images = Images::of_this_process();
    let code = CodeMap::new(&images.mappings()).unwrap();
    let end = images.end_of_stack(maze::registers().sp);
    let stacks: Vec<maze::Copied> =
        (0..STACKS as u64).map(|seed| maze::walk_and_copy(seed, RECURSION, end, &code)).collect();
    let live = RefCell::new(maze::Live::new(&stacks));
    let order: Vec<usize> = {
        let mut random = Random::new(7);
        (0..CALLS).map(|_| random.below(1 << 53) as usize % STACKS).collect()
    };
    let sampler = Sampler::of(code);
    let guide = Guide::frame_pointers(&sampler.code);
    let own = |call: usize| {
        let stack = &stacks[order[call]];
        sampler.count(&guide, &stack.registers, &*live.borrow())
    };
    let unwinder = images.unwinder();
    let mut cache = CacheX86_64::<_>::new();
    let mut framehop = |call: usize| {
        let live = live.borrow();
        let of = &stacks[order[call]].registers;
        unwind(&unwinder, of, &mut cache, |address| live.word(address))
    };
    live.borrow_mut().lay(&stacks[order[0]]);
    println!(
        "\n{STACKS} stacks, {} call sites in them; frames seen in the first: unikprof {}, framehop \
         {}",
        maze::distinct_return_addresses(&stacks),
        own(0),
        framehop(0)
    );
    let clock = Clock::calibrate();
    println!("{HEADING}");
    let lay = |call: usize| live.borrow_mut().lay(&stacks[order[call]]);
    let timings = clock.series(
        CALLS,
        lay,
        [&mut |call| drop_frames(own(call)), &mut |call| {
            drop_frames(framehop(call));
        }],
    );
    let ours = timings[0].p50;
    for (name, timing) in
        ["unikprof: walk, find, count", "framehop, its cache in use"].iter().zip(timings)
    {
        println!("{name:<38} {timing}  {:6.1} ×", timing.p50 / ours);
    }
}

#[inline(never)]
fn recurse(depth: u32) -> u32 {
    if depth == 0 {
        measure();
        return 0;
    }
    // Not a tail call: the frame stays.
    black_box(recurse(depth - 1)) + black_box(1)
}

#[inline(never)]
fn measure() {
    let images = Images::of_this_process();
    let code = CodeMap::new(&images.mappings()).unwrap();
    let registers = maze::registers();
    let bounds = chain_bounds(&registers, &code);
    let sampler = Sampler::of(code);
    let guide = Guide::frame_pointers(&sampler.code);

    let own = || {
        // SAFETY: the frames from here to the thread's first one, which are live.
        let stack = unsafe { StackMemory::new(bounds.clone()) };
        sampler.count(&guide, &registers, &stack)
    };
    let backtrace = || {
        let mut frames = 0;
        // SAFETY: no other thread of this program walks or symbolises meanwhile.
        unsafe {
            backtrace::trace_unsynchronized(|frame| {
                black_box(frame.ip());
                frames += 1;
                true
            });
        }
        frames
    };
    let unwinder = images.unwinder();
    let whole_stack = registers.sp..images.end_of_stack(registers.sp);
    let mut warm = CacheX86_64::<_>::new();
    let framehop = |cache: &mut CacheX86_64| {
        unwind(&unwinder, &registers, cache, |address| {
            let word = std::ptr::with_exposed_provenance::<u64>(address as usize);
            let inside = address.is_multiple_of(8) && whole_stack.contains(&address);
            // SAFETY: inside the thread's stack and aligned.
            inside.then(|| unsafe { word.read_volatile() })
        })
    };
    let pprof = PprofHandler::install();

    println!(
        "frames seen: unikprof {}, backtrace {}, framehop {}; pprof-rs those of backtrace and its \
         own",
        own(),
        backtrace(),
        framehop(&mut warm)
    );
    let clock = Clock::calibrate();
    println!("{}", clock.describe());
    println!("{HEADING}");
    let timings = clock.series(
        CALLS,
        |_| (),
        [
            &mut |_| drop_frames(own()),
            &mut |_| drop_frames(backtrace()),
            &mut |_| drop_frames(framehop(&mut warm)),
            &mut |_| pprof.call(),
        ],
    );
    let ours = timings[0].p50;
    for (name, timing) in
        ["unikprof: walk, find, count", "backtrace", "framehop, warm", "pprof-rs, handler body"]
            .iter()
            .zip(timings)
    {
        println!("{name:<38} {timing}  {:6.1} ×", timing.p50 / ours);
    }
    pprof.check();

    // The cost of framehop if the stack's rules are not in its cache.
    let cold = RefCell::new(CacheX86_64::<_>::new());
    let [timing] = clock.series(
        CALLS,
        |_| drop(cold.replace(CacheX86_64::new())),
        [&mut |_| drop_frames(framehop(&mut cold.borrow_mut()))],
    );
    let ratio = timing.p50 / ours;
    println!("{:<38} {timing}  {ratio:6.1} ×", "framehop, empty cache");
}

fn drop_frames(frames: usize) {
    black_box(frames);
}

/// Lets framehop unwind a stack; returns the number of its frames.
fn unwind(
    unwinder: &UnwinderX86_64<Vec<u8>>,
    of: &Registers,
    cache: &mut CacheX86_64,
    word: impl Fn(u64) -> Option<u64>,
) -> usize {
    let registers = UnwindRegsX86_64::new(of.pc, of.sp, of.fp);
    let mut read_stack = |address| word(address).ok_or(());
    let mut frames = unwinder.iter_frames(of.pc, registers, cache, &mut read_stack);
    let mut count = 0;
    while let Ok(Some(frame)) = frames.next() {
        black_box(frame);
        count += 1;
    }
    count
}

/// The stack from the stack pointer to the end of the outermost frame with a frame pointer. The
/// frames beyond it belong to the C library, which has no frame pointers.
fn chain_bounds(registers: &Registers, code: &CodeMap) -> Range<u64> {
    // SAFETY: the frames from here to the thread's first one are live and all have frame pointers;
    // reading stops at the first that has none.
    let memory = unsafe { StackMemory::new(registers.sp..registers.sp + (1 << 16)) };
    let (mut fp, mut end) = (registers.fp, registers.sp);
    while let Some([caller_fp, return_address]) = memory.frame_record(fp) {
        if code.code(return_address).is_none() {
            break;
        }
        end = fp + FRAME_RECORD;
        if caller_fp <= fp {
            break;
        }
        fp = caller_fp;
    }
    registers.sp..end
}

/// The files mapped into this process.
struct Images {
    maps: Vec<Map>,
}

struct Map {
    start: u64,
    end: u64,
    offset: u64,
    executable: bool,
    path: String,
}

impl Images {
    fn of_this_process() -> Self {
        let text = fs::read_to_string("/proc/self/maps").unwrap();
        let maps = text.lines().filter_map(|line| {
            let mut words = line.split_ascii_whitespace();
            let (start, end) = words.next()?.split_once('-')?;
            let mode = words.next()?;
            let number = |text| u64::from_str_radix(text, 16).ok();
            Some(Map {
                start: number(start)?,
                end: number(end)?,
                offset: number(words.next()?)?,
                executable: mode.contains('x'),
                path: words.nth(2).unwrap_or_default().to_owned(),
            })
        });
        Self { maps: maps.collect() }
    }

    fn mappings(&self) -> Vec<Mapping<'_>> {
        let code = self.maps.iter().filter(|map| map.executable);
        code.map(|map| Mapping {
            start: map.start,
            end: map.end,
            file_offset: map.offset,
            build_id: &[],
            path: &map.path,
        })
        .collect()
    }

    fn end_of_stack(&self, sp: u64) -> u64 {
        let stack = self.maps.iter().find(|map| (map.start..map.end).contains(&sp));
        stack.map_or(sp, |map| map.end)
    }

    /// An unwinder that knows the unwind sections of every file with code.
    fn unwinder(&self) -> UnwinderX86_64<Vec<u8>> {
        let mut unwinder = UnwinderX86_64::new();
        for code in self.maps.iter().filter(|map| map.executable) {
            let Ok(bytes) = fs::read(&code.path) else {
                continue;
            };
            let file = object::File::parse(&*bytes).unwrap();
            let section = |name| file.section_by_name(name);
            let range = |name| section(name).map(|s| s.address()..s.address() + s.size());
            let data = |name| section(name).and_then(|s| Some(s.data().ok()?.to_vec()));
            let base = self.maps.iter().find(|map| map.path == code.path);
            unwinder.add_module(Module::new(
                code.path.clone(),
                code.start..code.end,
                base.map_or(code.start, |map| map.start),
                ExplicitModuleSectionInfo {
                    base_svma: 0,
                    text_svma: range(".text"),
                    text: data(".text"),
                    got_svma: range(".got"),
                    eh_frame_svma: range(".eh_frame"),
                    eh_frame: data(".eh_frame"),
                    eh_frame_hdr_svma: range(".eh_frame_hdr"),
                    eh_frame_hdr: data(".eh_frame_hdr"),
                    ..Default::default()
                },
            ));
        }
        unwinder
    }
}

/// The signal handler that pprof-rs installs, and the profiler it feeds.
struct PprofHandler {
    profiler: pprof::ProfilerGuard<'static>,
    handler: extern "C" fn(c_int, *mut libc::siginfo_t, *mut c_void),
    context: Box<libc::ucontext_t>,
}

impl PprofHandler {
    fn install() -> Self {
        // Its own signals are so rare that they do not matter.
        let profiler = pprof::ProfilerGuardBuilder::default().frequency(1).build().unwrap();
        let mut action = MaybeUninit::<libc::sigaction>::zeroed();
        // SAFETY: reads the handler of a signal into a structure of the required type.
        let action = unsafe {
            libc::sigaction(libc::SIGPROF, std::ptr::null(), action.as_mut_ptr());
            action.assume_init()
        };
        assert_ne!(action.sa_flags & libc::SA_SIGINFO, 0);
        // SAFETY: a handler that was installed with SA_SIGINFO has this type.
        let handler =
            unsafe { std::mem::transmute::<usize, extern "C" fn(_, _, _)>(action.sa_sigaction) };
        let mut context = Box::new(MaybeUninit::<libc::ucontext_t>::zeroed());
        // SAFETY: fills a structure of the required type with this thread's registers.
        let context = unsafe {
            libc::getcontext(context.as_mut_ptr());
            context.assume_init()
        };
        Self { profiler, handler, context }
    }

    /// Calls the handler as if its signal had arrived here.
    fn call(&self) {
        let context = (&raw const *self.context).cast_mut().cast::<c_void>();
        (self.handler)(libc::SIGPROF, std::ptr::null_mut(), context);
    }

    /// Checks that the handler has counted the calls; otherwise its figure would mean nothing.
    fn check(&self) {
        let report = self.profiler.report().build_unresolved().unwrap();
        let samples: isize = report.data.values().sum();
        assert!(samples as usize >= CALLS * REPETITIONS);
    }
}
