//! The platform of a guest in C.

use core::ffi::c_void;
use core::ops;

#[cfg(feature = "trace")]
use unikprof_agent::CallStack;
use unikprof_agent::{Continuation, Platform, Registers, Runstate};

use super::clock::SteadyClock;
use crate::abi::{self, Ops, UNIKPROF_FRAME_RECORD, UNIKPROF_NO_VCPU};
use crate::arch;

/// Implements the platform with the functions that C gave. The required ones are not NULL; an
/// optional one that is NULL returns nothing.
pub(super) struct Guest {
    ops: Ops,
    clock: SteadyClock,
}

// SAFETY: by their contract the functions may be called on every vCPU, and `context` is only passed
// to them.
unsafe impl Send for Guest {}
// SAFETY: as above.
unsafe impl Sync for Guest {}

impl Guest {
    /// The platform of the guest with these functions.
    pub(super) fn new(ops: Ops, clock: SteadyClock) -> Self {
        Self { ops, clock }
    }

    /// The guest's functions.
    #[cfg(feature = "heap")]
    pub(super) fn ops(&self) -> &Ops {
        &self.ops
    }

    /// Converts a time of [`now_ns`](Platform::now_ns) to the guest's own clock, which differs if
    /// it was set back.
    #[inline]
    pub(super) fn on_own_clock(&self, monotonic_ns: u64) -> u64 {
        self.clock.to_guest(monotonic_ns)
    }

    #[inline]
    fn context(&self) -> *mut c_void {
        self.ops.context
    }

    #[inline]
    fn range(
        &self,
        ask: Option<unsafe extern "C" fn(*mut c_void, u64, *mut abi::Range) -> i32>,
        address: u64,
    ) -> Option<ops::Range<u64>> {
        let mut range = abi::Range { start: 0, end: 0 };
        // SAFETY: called as its contract requires.
        let known = unsafe { ask?(self.context(), address, &raw mut range) };
        // A range that does not contain the address is wrong.
        let range = range.start..range.end;
        (known != 0 && range.contains(&address)).then_some(range)
    }
}

impl Guest {
    /// Asks for the continuation of a chain. Out of line, since few chains have one.
    #[cold]
    #[inline(never)]
    fn other_stack(&self, sp: u64, fp: u64) -> Option<Continuation> {
        let mut found = abi::Registers { pc: 0, sp: 0, fp: 0, lr: 0 };
        // SAFETY: called as its contract requires.
        let continues = unsafe { self.ops.continuation?(self.context(), sp, fp, &raw mut found) };
        let abi::Registers { pc, sp, fp, lr } = found;
        match continues {
            0 => None,
            UNIKPROF_FRAME_RECORD => Some(Continuation::FrameRecord),
            _ => Some(Continuation::Interrupted(Registers { pc, sp, fp, lr })),
        }
    }
}

// SAFETY: the ranges of `stack_bounds` and `code_bounds` come from C, whose contract requires that
// they are readable while the upcall runs. `range` excludes what does not contain the stack
// pointer, and nothing below it is read.
unsafe impl Platform for Guest {
    /// One copy for all callers, for size.
    #[inline(never)]
    fn now_ns(&self) -> u64 {
        let Some(ask) = self.ops.now_ns else {
            return 0;
        };
        // SAFETY: called as its contract requires.
        self.clock.read(|| self.vcpu(), || unsafe { ask(self.context()) })
    }

    fn wall_clock_ns(&self) -> Option<u64> {
        // SAFETY: as above.
        let now_ns = unsafe { self.ops.wall_clock_ns?(self.context()) };
        (now_ns != 0).then_some(now_ns)
    }

    #[inline]
    fn vcpu(&self) -> Option<u32> {
        // SAFETY: as above.
        let vcpu = unsafe { self.ops.vcpu?(self.context()) };
        (vcpu != UNIKPROF_NO_VCPU).then_some(vcpu)
    }

    #[inline]
    fn running_ns(&self, vcpu: u32) -> u64 {
        // SAFETY: as above.
        self.ops.running_ns.map_or(0, |ask| unsafe { ask(self.context(), vcpu) })
    }

    #[inline]
    fn blocked_ns(&self, vcpu: u32) -> u64 {
        match self.ops.blocked_ns {
            // SAFETY: as above.
            Some(ask) => unsafe { ask(self.context(), vcpu) },
            None => match self.runstate(vcpu) {
                Some(times) => times.blocked_ns,
                None => self.now_ns().saturating_sub(self.running_ns(vcpu)),
            },
        }
    }

    fn runstate(&self, vcpu: u32) -> Option<Runstate> {
        let mut times =
            abi::Runstate { running_ns: 0, runnable_ns: 0, blocked_ns: 0, offline_ns: 0 };
        // SAFETY: as above.
        let known = unsafe { self.ops.runstate?(self.context(), vcpu, &raw mut times) };
        (known != 0).then_some(Runstate {
            running_ns: times.running_ns,
            runnable_ns: times.runnable_ns,
            blocked_ns: times.blocked_ns,
            offline_ns: times.offline_ns,
        })
    }

    fn kick(&self, vcpu: u32) {
        if let Some(kick) = self.ops.kick {
            // SAFETY: as above.
            unsafe { kick(self.context(), vcpu) };
        }
    }

    #[inline]
    fn stack_bounds(&self, sp: u64) -> Option<ops::Range<u64>> {
        let bounds = self.range(self.ops.stack_bounds, sp)?;
        Some(sp & !7..bounds.end)
    }

    #[inline]
    fn continuation(&self, sp: u64, fp: u64) -> Option<Continuation> {
        self.ops.continuation?;
        self.other_stack(sp, fp)
    }

    #[inline]
    fn code_bounds(&self, pc: u64) -> Option<ops::Range<u64>> {
        self.range(self.ops.code_bounds, pc)
    }

    fn random(&self) -> Option<u64> {
        let mut bits = 0;
        // SAFETY: as above.
        let known = unsafe { self.ops.random?(self.context(), &raw mut bits) };
        (known != 0).then_some(bits)
    }

    fn log(&self, line: &str) {
        let Some(log) = self.ops.log else {
            return;
        };
        let mut text = [0_u8; 300];
        let length = line.floor_char_boundary(text.len() - 1);
        // Without an index, which the compiler might check: a crash dump may reach this.
        for (place, byte) in text.iter_mut().zip(line.bytes().take(length)) {
            *place = byte;
        }
        // SAFETY: as above; the text ends with 0.
        unsafe { log(self.context(), text.as_ptr().cast()) };
    }

    #[inline]
    fn timer_deadline(&self, monotonic_ns: u64) -> u64 {
        let at_ns = self.on_own_clock(monotonic_ns);
        match self.ops.timer_deadline_ns {
            // SAFETY: as above.
            Some(ask) => unsafe { ask(self.context(), at_ns) },
            None => at_ns,
        }
    }

    fn resume(&self) {
        if let Some(resume) = self.ops.resume {
            // SAFETY: as above.
            unsafe { resume(self.context()) };
        }
    }

    #[inline]
    fn cycles(&self) -> u64 {
        arch::cycles()
    }

    #[cfg(feature = "trace")]
    fn write_code(&self, address: u64, bytes: &[u8]) -> bool {
        self.ops.write_code.is_some_and(|write| {
            // SAFETY: as above.
            unsafe { write(self.context(), address, bytes.as_ptr().cast(), bytes.len()) != 0 }
        })
    }

    #[cfg(feature = "trace")]
    #[inline]
    fn call_stack(&self, sp: u64) -> Option<CallStack> {
        let Some(ask) = self.ops.call_stack else {
            let end = self.range(self.ops.stack_bounds, sp)?.end;
            return Some(CallStack { id: end, end });
        };
        let mut found = abi::CallStack { id: 0, end: 0 };
        // SAFETY: as above.
        let known = unsafe { ask(self.context(), sp, &raw mut found) };
        let abi::CallStack { id, end } = found;
        // A stack that ends below the address is wrong.
        (known != 0 && sp < end).then_some(CallStack { id, end })
    }
}
