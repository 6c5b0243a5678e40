//! The interface between the agent and the system that it runs on.

use core::ops::Range;

pub use unikprof_proto::message::Runstate;

/// The registers of interrupted code.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Registers {
    /// The program counter: `rip`, on aarch64 `ELR_EL1`.
    pub pc: u64,
    /// The stack pointer: `rsp`, on aarch64 `sp`.
    pub sp: u64,
    /// The frame pointer: `rbp`, on aarch64 `x29`.
    pub fp: u64,
    /// The link register: `x30` on aarch64. Never read on x86-64, which has none; 0 there.
    pub lr: u64,
}

impl Registers {
    /// Registers of an architecture without a link register.
    #[inline]
    pub const fn new(pc: u64, sp: u64, fp: u64) -> Self {
        Self { pc, sp, fp, lr: 0 }
    }

    /// Adds a link register.
    #[inline]
    pub const fn with_lr(self, lr: u64) -> Self {
        Self { lr, ..self }
    }

    /// The registers of the calling function, for [`Agent::on_block`](crate::Agent::on_block). The
    /// link register is 0: the calling function has saved its own.
    #[allow(unsafe_code)]
    #[inline(always)]
    pub fn here() -> Self {
        let (pc, sp, fp): (u64, u64, u64);
        // SAFETY: copies three registers.
        unsafe {
            #[cfg(target_arch = "x86_64")]
            core::arch::asm!(
                "lea {}, [rip]", "mov {}, rsp", "mov {}, rbp",
                out(reg) pc, out(reg) sp, out(reg) fp,
                options(nomem, nostack, preserves_flags)
            );
            #[cfg(target_arch = "aarch64")]
            core::arch::asm!(
                "adr {}, .", "mov {}, sp", "mov {}, x29",
                out(reg) pc, out(reg) sp, out(reg) fp,
                options(nomem, nostack, preserves_flags)
            );
        }
        Self::new(pc, sp, fp)
    }
}

/// The clocks of one vCPU, read together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Moment {
    /// [`Platform::now_ns`].
    pub now_ns: u64,
    /// [`Platform::running_ns`] of the vCPU.
    pub running_ns: u64,
    /// [`Platform::cycles`].
    pub cycles: u64,
}

/// The continuation of a walk after a chain of frames has ended: see [`Platform::continuation`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Continuation {
    /// In an interrupted function with these registers.
    Interrupted(Registers),
    /// At the frame record that the frame pointer points to, on another stack. If there is none
    /// with a return address inside the mappings, the stack ends there.
    FrameRecord,
}

/// A stack of the guest: see [`Platform::call_stack`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CallStack {
    /// The stack's id, below 2^63. It is free for another stack when no traced call is
    /// open on this one.
    pub id: u64,
    /// Its end at present.
    pub end: u64,
}

/// The system below the agent: clocks, stacks and the other vCPUs.
///
/// Every method takes `&self`, because the timer upcall may interrupt the guest's loop inside
/// another method. Methods that the upcall calls are marked *upcall*: they must be bounded and must
/// neither allocate, lock, panic nor touch floating point.
///
/// # Safety
///
/// The agent reads the memory that [`stack_bounds`](Self::stack_bounds) and
/// [`code_bounds`](Self::code_bounds) return. An implementation must only return memory that is
/// mapped and readable for as long as the upcall runs.
#[allow(unsafe_code)]
pub unsafe trait Platform {
    /// The monotonic clock in ns. The platform chooses its origin. *Upcall.*
    fn now_ns(&self) -> u64;

    /// A clock of the caller's own running time, in ns since a fixed time. It measures the agent's
    /// network work for its share of the CPU. The default is the running time of the current vCPU,
    /// or the monotonic clock if there is none.
    fn work_ns(&self) -> u64 {
        match self.vcpu() {
            Some(vcpu) => self.running_ns(vcpu),
            None => self.now_ns(),
        }
    }

    /// The time of day in ns since 1970-01-01 UTC; `None` if the guest does not know it.
    fn wall_clock_ns(&self) -> Option<u64>;

    /// The id of the vCPU that this code runs on, counted from 0; `None` if that vCPU is not
    /// sampled. *Upcall.*
    fn vcpu(&self) -> Option<u32>;

    /// The time that `vcpu` has run, in ns since a fixed time. Stolen and blocked time do not
    /// advance it, and it never goes back. The *upcall* reads it for its own vCPU.
    fn running_ns(&self, vcpu: u32) -> u64;

    /// The clocks of `vcpu`, which is the current vCPU, read once for each tick and each traced
    /// entry or exit. A platform that derives them from one counter should override this and read
    /// the counter once. *Upcall.*
    #[inline]
    fn moment(&self, vcpu: u32) -> Moment {
        Moment { cycles: self.cycles(), running_ns: self.running_ns(vcpu), now_ns: self.now_ns() }
    }

    /// The time that `vcpu` has been blocked, in ns since a fixed moment; it never goes back. The
    /// *upcall* reads it for its own vCPU. The default is that of [`runstate`](Self::runstate), or
    /// all time that the vCPU did not run, stolen time included, if the platform does not know it.
    fn blocked_ns(&self, vcpu: u32) -> u64 {
        match self.runstate(vcpu) {
            Some(times) => times.blocked_ns,
            None => self.now_ns().saturating_sub(self.running_ns(vcpu)),
        }
    }

    /// The time that `vcpu` has spent in each state; `None` if the platform does not know it: then
    /// nothing is recorded in mode `wall`, because stolen time cannot be told from blocked time.
    /// *Upcall*, for its own vCPU, unless the platform has a [`blocked_ns`](Self::blocked_ns) of
    /// its own.
    fn runstate(&self, vcpu: u32) -> Option<Runstate>;

    /// Makes the platform call [`Agent::on_tick`](crate::Agent::on_tick) soon on `vcpu`, so that
    /// the vCPU arms its own timer, as a Xen vCPU cannot arm another's, or for a client's snapshot
    /// of the vCPU.
    fn kick(&self, vcpu: u32);

    /// The bounds of the stack that contains `sp`; `None` if no known stack does. *Upcall.*
    ///
    /// A chain of frame pointers ends at a saved frame pointer of 0, or at a frame that ends at the
    /// stack's end. If the outermost function saves another value, the platform must place the
    /// stack's end at the end of that function's frame.
    fn stack_bounds(&self, sp: u64) -> Option<Range<u64>>;

    /// The place where the walk continues at the end of a chain of frames; `None` if the stack ends
    /// there. *Upcall.*
    ///
    /// - [`Interrupted`](Continuation::Interrupted): the frames of interrupted code are on a
    ///   different stack if the interrupt or exception handler has a stack of its own. Without this
    ///   method, a sample inside the handler lacks them. The guest takes the interrupted registers
    ///   from the frame that the processor and the entry code have saved; the walk continues at
    ///   their `pc`, on the stack that [`stack_bounds`](Self::stack_bounds) returns for their `sp`.
    /// - [`FrameRecord`](Continuation::FrameRecord): the callers of coroutines and fibers are on
    ///   the stack that resumed them, and `fp` leads there if the first frame on the coroutine's
    ///   stack saves the resumer's frame pointer. The same holds for a C function on a stack of its
    ///   own that OCaml 5 calls. The walk continues on the stack that `stack_bounds` returns for
    ///   `fp`, which may lie below. Do not return it for a handler's stack: its frame pointers lead
    ///   to the caller of the interrupted function.
    ///
    /// `sp` identifies the stack: everything below it has been walked. `fp` is the frame pointer
    /// that could not be followed: 0 if the entry code clears it, otherwise usually that of the
    /// interrupted code. Entry code that stays on the interrupted stack must clear the frame
    /// pointer before it calls the handler; otherwise the chain skips the interrupted function.
    ///
    /// It is called at the end of every chain, except at the depth limit. A walk continues at most
    /// [`MAX_HOPS`](crate::walk::MAX_HOPS) times.
    fn continuation(&self, sp: u64, fp: u64) -> Option<Continuation> {
        let _ = (sp, fp);
        None
    }

    /// The readable code that contains `pc`; `None` if it is not known. The agent then finds the
    /// interrupted function's caller without reading its instructions. *Upcall.*
    fn code_bounds(&self, pc: u64) -> Option<Range<u64>> {
        let _ = pc;
        None
    }

    /// 64 random bits; `None` if the platform has no random source. The agent derives TCP sequence
    /// numbers and the secrets of encrypted connections from it: without it an agent with keys
    /// serves no client.
    fn random(&self) -> Option<u64>;

    /// Writes a line, given without a newline, to the guest's log, for the guest's operator. Never
    /// called from an upcall, and never with a secret. The default discards the line.
    fn log(&self, line: &str) {
        let _ = line;
    }

    /// Converts a time of the monotonic clock to the clock that the guest programs its timer with.
    /// The two differ after the underlying clock has jumped, as Xen's does in a migration.
    /// *Upcall.*
    fn timer_deadline(&self, monotonic_ns: u64) -> u64 {
        monotonic_ns
    }

    /// Called after the guest was restored from a save or has migrated: the underlying clocks may
    /// have a new origin. The platform's own clocks must continue from their last values.
    fn resume(&self) {}

    /// The cycle counter, or 0 if there is none. *Upcall.*
    fn cycles(&self) -> u64 {
        0
    }

    /// Writes `bytes` to the guest's code at `address`, for tracing: one byte at a probe, which
    /// other vCPUs may execute meanwhile, or a part of the agent's own text that is not used yet.
    /// Returns whether it was written; the default does not write, and there is no tracing. Called
    /// by the service, [`on_breakpoint`](crate::Agent::on_breakpoint) and
    /// [`crash_dump`](crate::Agent::crash_dump).
    ///
    /// If the text is mapped read-only, clear `CR0.WP` with interrupts off, write, and set it
    /// again. A PV guest on Xen cannot do that: it does not write, or maps the text writable.
    fn write_code(&self, address: u64, bytes: &[u8]) -> bool {
        let _ = (address, bytes);
        false
    }

    /// The stack that contains `sp`, for tracing, which pairs entries and exits of functions by
    /// their stack pointers; `None` if no known stack does. The default is
    /// [`stack_bounds`](Self::stack_bounds), with the end as the id. A platform whose stacks are
    /// moved, as OCaml's fibres are, returns an id that stays the same. *Breakpoint*: called by
    /// [`on_breakpoint`](crate::Agent::on_breakpoint), as `vcpu`, `moment`, `now_ns`, `cycles` and
    /// `write_code` are, and bounded as an *upcall*'s methods are.
    #[cfg_attr(not(feature = "trace"), doc(hidden))]
    #[inline]
    fn call_stack(&self, sp: u64) -> Option<CallStack> {
        self.stack_bounds(sp).map(|bounds| CallStack { id: bounds.end, end: bounds.end })
    }
}

#[cfg(test)]
mod tests {
    /// The client recognizes `Registers::here` by this path, to omit it where it was inlined into
    /// blocking code (`is_here` in client/profile/src/symbols/symbolized.rs).
    #[test]
    fn registers_keep_the_path_that_the_client_knows() {
        let path = core::any::type_name::<super::Registers>();
        assert_eq!(path, "unikprof_agent::ground::platform::Registers");
    }
}
