//! What the agent asks of the system it is linked into.

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
    /// The link register: on aarch64 `x30`. x86-64 has none: 0 there, and never read.
    pub lr: u64,
}

impl Registers {
    /// Registers of an architecture without a link register.
    #[inline]
    pub const fn new(pc: u64, sp: u64, fp: u64) -> Self {
        Self { pc, sp, fp, lr: 0 }
    }

    /// The same with a link register.
    #[inline]
    pub const fn with_lr(self, lr: u64) -> Self {
        Self { lr, ..self }
    }

    /// The registers of the calling function, for [`Agent::on_block`](crate::Agent::on_block). The link
    /// register is left 0: the calling function has saved its own.
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

/// The system below the agent: clocks, stacks and the other vCPUs.
///
/// Every method takes `&self`, because the timer upcall calls them while the guest's loop may be
/// inside another. Methods that the upcall calls are marked *upcall*: they must be bounded and must
/// neither allocate, lock, panic nor touch floating point.
///
/// # Safety
///
/// The agent reads the memory that [`stack_bounds`](Self::stack_bounds) and
/// [`code_bounds`](Self::code_bounds) name. An implementation must name only memory that is mapped and
/// readable for as long as the upcall runs.
#[allow(unsafe_code)]
pub unsafe trait Platform {
    /// The monotonic clock in ns, its origin the platform's own. *Upcall.*
    fn now_ns(&self) -> u64;

    /// The time of day in ns since 1970-01-01 UTC, where the guest knows it.
    fn wall_clock_ns(&self) -> Option<u64>;

    /// The vCPU this code runs on, or `None` where it is not one that is sampled. Ids count up from
    /// 0. *Upcall.*
    fn vcpu(&self) -> Option<u32>;

    /// How long `vcpu` has run, in ns since a fixed moment: neither stolen nor blocked time
    /// advances it, and it never goes back. *Upcall*, there for the vCPU it is on.
    fn running_ns(&self, vcpu: u32) -> u64;

    /// The clocks of `vcpu`, which is the vCPU that this code runs on, read once for each tick. A platform
    /// that derives them from one counter overrides this, and reads the counter once. *Upcall.*
    #[inline]
    fn moment(&self, vcpu: u32) -> Moment {
        Moment {
            cycles: self.cycles(),
            running_ns: self.running_ns(vcpu),
            now_ns: self.now_ns(),
        }
    }

    /// How long `vcpu` has been blocked, in ns since a fixed moment; it never goes back. *Upcall*,
    /// there for the vCPU it is on. Unless a platform knows better: all the time that it did not run,
    /// what others took included.
    fn blocked_ns(&self, vcpu: u32) -> u64 {
        self.now_ns().saturating_sub(self.running_ns(vcpu))
    }

    /// How `vcpu` has spent its time, where the platform can tell.
    fn runstate(&self, vcpu: u32) -> Option<Runstate>;

    /// Makes [`Agent::on_tick`](crate::Agent::on_tick) be called soon on `vcpu`, so that it arms its
    /// own timer: a Xen vCPU cannot arm another's.
    fn kick(&self, vcpu: u32);

    /// The stack that `sp` lies on, or `None` where it lies on none that is known. *Upcall.*
    ///
    /// A chain of frame pointers has reached its root where the saved frame pointer is 0, or in a
    /// frame that ends where the stack does: a platform whose outermost function saves something
    /// else ends the stack with that function's frame.
    fn stack_bounds(&self, sp: u64) -> Option<Range<u64>>;

    /// The code around `pc` whose bytes can be read, or `None` where nothing is known of it: the
    /// interrupted function's caller is then found without a look at its instructions. *Upcall.*
    fn code_bounds(&self, pc: u64) -> Option<Range<u64>> {
        let _ = pc;
        None
    }

    /// 64 random bits, where the platform has a source of them. Sequence numbers are drawn from it, and
    /// the secrets of encrypted conversations: without it an agent with keys serves nobody.
    fn random(&self) -> Option<u64>;

    /// A line for the guest's log, without an end of line: what its owner should know, and nobody else
    /// would tell. Never from an upcall, and never a secret. As it is here it goes nowhere.
    fn log(&self, line: &str) {
        let _ = line;
    }

    /// A moment of the monotonic clock as the guest programs its timer with it. The two differ where
    /// the clock below has jumped, as Xen's does with a migration. *Upcall.*
    fn timer_deadline(&self, monotonic_ns: u64) -> u64 {
        monotonic_ns
    }

    /// The guest was restored from a save or has migrated: the clocks below may have another
    /// origin. From here on the platform's own clocks go on where they stood.
    fn resume(&self) {}

    /// The cycle counter, or 0 where there is none. *Upcall.*
    fn cycles(&self) -> u64 {
        0
    }
}

#[cfg(test)]
mod tests {
    /// The client leaves out `Registers::here` where it was inlined into the code that blocks, and knows it
    /// by this path (`is_here` in client/src/symbols/symbolized.rs).
    #[test]
    fn registers_keep_the_path_that_the_client_knows() {
        let path = core::any::type_name::<super::Registers>();
        assert_eq!(path, "unikprof_agent::ground::platform::Registers");
    }
}
