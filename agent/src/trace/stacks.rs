//! Shadow stacks: the open calls of each stack of the guest.
//!
//! Calls are paired by stack pointer. At an entry and at an exit of a function the stack pointer is
//! the same; calls whose stack pointer was lower have ended, however that happened. Return
//! addresses stay as they are.
//!
//! Handlers run with interrupts off, so one vCPU at a time uses a shadow stack. All its cells are
//! atomics, so that a guest that breaks this rule gets wrong counts and nothing worse.

use core::mem::MaybeUninit;

use unikprof_proto::ring::how;

use crate::ground::block::take;
use crate::ground::sync::{AtomicU32, AtomicU64, Ordering};

/// The largest number of shadow stacks: their numbers are bytes in ring records.
pub(super) const MAX_STACKS: usize = 255;

/// The number of open calls that a shadow stack has room for.
pub(super) const DEPTH: usize = 128;

/// Words for a bit of each function.
const FUNCTION_WORDS: usize = unikprof_proto::trace::MAX_FUNCTIONS.div_ceil(64);

/// The memory of a shadow stack, except its calls.
#[derive(Debug)]
#[cfg_attr(not(loom), derive(bytemuck::Zeroable))]
#[repr(C, align(64))]
struct StackCells {
    /// The id of the guest's stack times two, plus one while it has open calls. 0: never used.
    owner: AtomicU64,
    depth: AtomicU32,
    /// The vCPU of the last event, plus one.
    vcpu: AtomicU32,
    /// The time of the last event.
    last_ns: AtomicU64,
    /// The vCPU's running time then.
    last_running_ns: AtomicU64,
    /// The number of calls up to the open root call and itself, in a slow trace; 0: none is open.
    root: AtomicU32,
    /// The number of the root call's buffer; 0: it has none.
    buffer: AtomicU32,
    /// A bit for each function that has an open call here.
    open: [AtomicU64; FUNCTION_WORDS],
}

/// The memory of an open call.
#[derive(Debug, Default)]
#[cfg_attr(not(loom), derive(bytemuck::Zeroable))]
struct CallCells {
    /// The distance of its stack pointer from the stack's end.
    position: AtomicU64,
    entered_ns: AtomicU64,
    self_ns: AtomicU64,
    waited_ns: AtomicU64,
    /// The function's index in bits 0 to 15, [`OUTERMOST`], and in bits 32 to 63 the code of the
    /// return address.
    function: AtomicU64,
}

/// A bit beside the function's index: no other call of the function is open on this stack.
const OUTERMOST: u64 = 1 << 16;

/// All shadow stacks.
#[derive(Clone, Copy, Debug)]
pub(super) struct Stacks<'m> {
    cells: &'m [StackCells],
    calls: &'m [CallCells],
}

/// The bytes of memory for so many shadow stacks.
pub(super) const fn stack_bytes(stacks: usize) -> usize {
    stacks * (size_of::<StackCells>() + DEPTH * size_of::<CallCells>())
}

/// The clocks of an event.
#[derive(Clone, Copy, Debug)]
pub(super) struct Now {
    pub(super) ns: u64,
    /// The running time of `vcpu`.
    pub(super) running_ns: u64,
    pub(super) vcpu: u32,
}

/// A call that has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Closed {
    pub(super) function: u16,
    /// See [`how`].
    pub(super) how: u8,
    pub(super) is_outermost: bool,
    pub(super) entered_ns: u64,
    pub(super) duration_ns: u64,
    pub(super) self_ns: u64,
    pub(super) waited_ns: u64,
    /// The code of the return address.
    pub(super) caller: u32,
    /// It is the root call of a slow trace, whose buffer this is.
    pub(super) root: Option<u32>,
}

/// The meaning of a function's entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Entry {
    Call,
    /// A jump back to the entry within the call.
    Again,
    /// There is no room for another call.
    TooDeep,
}

/// The meaning of a function's exit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Exit {
    /// The end of the innermost open call.
    Return,
    /// The innermost open call is of another function.
    Mismatched,
    /// The end of a call of this function at another stack pointer: OCaml's `raise_notrace` ends in
    /// a `ret`.
    Elsewhere,
    /// Its call was not seen.
    Orphan,
}

impl<'m> Stacks<'m> {
    pub(super) fn in_block(block: &mut &'m mut [MaybeUninit<u8>], stacks: usize) -> Option<Self> {
        Some(Self { cells: take(block, stacks)?, calls: take(block, stacks.checked_mul(DEPTH)?)? })
    }

    /// Forgets all open calls. No handler may run.
    pub(super) fn clear(&self) {
        for cells in self.cells {
            cells.owner.store(0, Ordering::Relaxed);
            cells.depth.store(0, Ordering::Relaxed);
            cells.root.store(0, Ordering::Relaxed);
            for word in &cells.open {
                word.store(0, Ordering::Relaxed);
            }
        }
    }

    /// The shadow stack of the guest's stack `id` if it has open calls.
    #[inline]
    pub(super) fn find(&self, id: u64) -> Option<Stack<'m>> {
        let open = id << 1 | 1;
        for number in self.numbers(id) {
            match self.owner(number) {
                Some(owner) if owner == open => return self.stack(number),
                // Claims take the first free place, so those behind one that was never used are not
                // used either.
                Some(0) | None => return None,
                Some(_) => {}
            }
        }
        None
    }

    /// The shadow stack of the guest's stack `id`, or a free one; `None` if all others have open
    /// calls.
    #[inline]
    pub(super) fn find_or_claim(&self, id: u64) -> Option<Stack<'m>> {
        if let Some(found) = self.find(id) {
            return Some(found);
        }
        let open = id << 1 | 1;
        let number = self.numbers(id).find(|number| {
            let cells = self.cells.get(*number);
            cells.is_some_and(|cells| {
                let owner = cells.owner.load(Ordering::Relaxed);
                owner & 1 == 0
                    && cells
                        .owner
                        .compare_exchange(owner, open, Ordering::Acquire, Ordering::Relaxed)
                        .is_ok()
            })
        });
        self.stack(number?)
    }

    fn owner(&self, number: usize) -> Option<u64> {
        Some(self.cells.get(number)?.owner.load(Ordering::Relaxed))
    }

    fn stack(&self, number: usize) -> Option<Stack<'m>> {
        let first = number.checked_mul(DEPTH)?;
        Some(Stack {
            number: number as u8,
            cells: self.cells.get(number)?,
            calls: self.calls.get(first..first.checked_add(DEPTH)?)?,
        })
    }

    /// All numbers, beginning at a place that depends on the stack's id.
    #[inline]
    fn numbers(&self, id: u64) -> impl Iterator<Item = usize> + use<> {
        const GOLDEN: u64 = 0x9e37_79b9_7f4a_7c15;
        let count = self.cells.len();
        let first = (id.wrapping_mul(GOLDEN) >> 32) as usize;
        let first = first.checked_rem(count).unwrap_or(0);
        (first..count).chain(0..first)
    }
}

/// One shadow stack, which the caller uses exclusively.
#[derive(Clone, Copy, Debug)]
pub(super) struct Stack<'m> {
    number: u8,
    cells: &'m StackCells,
    calls: &'m [CallCells],
}

impl Stack<'_> {
    /// Its number in ring records.
    pub(super) fn number(&self) -> u8 {
        self.number
    }

    /// Makes the innermost call the root call of a slow trace, with this buffer.
    pub(super) fn set_root(&self, buffer: u32) {
        let depth = self.cells.depth.load(Ordering::Relaxed);
        self.cells.root.store(depth, Ordering::Relaxed);
        self.cells.buffer.store(buffer, Ordering::Relaxed);
    }

    /// The buffer of the open root call.
    pub(super) fn root(&self) -> Option<u32> {
        let is_open = self.cells.root.load(Ordering::Relaxed) != 0;
        is_open.then(|| self.cells.buffer.load(Ordering::Relaxed))
    }

    fn depth(&self) -> usize {
        self.cells.depth.load(Ordering::Relaxed) as usize
    }

    fn top(&self) -> Option<&CallCells> {
        self.calls.get(self.depth().checked_sub(1)?)
    }

    /// Adds the time since the last event to the innermost open call. Call it first at each event.
    #[inline]
    pub(super) fn advance(&self, now: Now) {
        let last_ns = self.cells.last_ns.swap(now.ns, Ordering::Relaxed);
        let last_running_ns = self.cells.last_running_ns.swap(now.running_ns, Ordering::Relaxed);
        let vcpu = self.cells.vcpu.swap(now.vcpu + 1, Ordering::Relaxed);
        if let Some(top) = self.top() {
            let passed_ns = now.ns.saturating_sub(last_ns);
            top.self_ns.store(
                top.self_ns.load(Ordering::Relaxed).saturating_add(passed_ns),
                Ordering::Relaxed,
            );
            // The running times of two vCPUs cannot be compared.
            if vcpu == now.vcpu + 1
                && let Some(ran_ns) = now.running_ns.checked_sub(last_running_ns)
            {
                let waited_ns = passed_ns.saturating_sub(ran_ns);
                top.waited_ns.store(
                    top.waited_ns.load(Ordering::Relaxed).saturating_add(waited_ns),
                    Ordering::Relaxed,
                );
            }
        }
    }

    /// Enters a function; `close` is called for each call that has ended before.
    #[inline]
    pub(super) fn enter(
        &self,
        function: u16,
        caller: u32,
        loops: bool,
        position: u64,
        now: Now,
        mut close: impl FnMut(Closed),
    ) -> Entry {
        self.unwind(function, position, now, &mut close);
        if let Some((at, called)) = self.innermost()
            && at == position
        {
            let how = match called == function {
                true if loops => return Entry::Again,
                // It ended by an exception, and its caller has called it again.
                true => how::UNWOUND,
                false => how::REPLACED,
            };
            self.close(how, now, &mut close);
        }
        let depth = self.depth();
        let Some(call) = self.calls.get(depth) else {
            return Entry::TooDeep;
        };
        let mut word = u64::from(function) | u64::from(caller) << 32;
        if let Some((open, bit)) = self.open(function)
            && open.load(Ordering::Relaxed) & bit == 0
        {
            open.fetch_or(bit, Ordering::Relaxed);
            word |= OUTERMOST;
        }
        call.position.store(position, Ordering::Relaxed);
        call.entered_ns.store(now.ns, Ordering::Relaxed);
        call.self_ns.store(0, Ordering::Relaxed);
        call.waited_ns.store(0, Ordering::Relaxed);
        call.function.store(word, Ordering::Relaxed);
        self.cells.depth.store(depth as u32 + 1, Ordering::Relaxed);
        Entry::Call
    }

    /// Leaves a function; `close` is called for each call that has ended.
    #[inline]
    pub(super) fn leave(
        &self,
        function: u16,
        position: u64,
        now: Now,
        mut close: impl FnMut(Closed),
    ) -> Exit {
        let has_ended = self.unwind(function, position, now, &mut close);
        match self.innermost() {
            Some((at, called)) if at == position => {
                let (exit, how) = if called == function {
                    (Exit::Return, how::RETURNED)
                } else {
                    (Exit::Mismatched, how::REPLACED)
                };
                self.close(how, now, &mut close);
                exit
            }
            _ if has_ended => Exit::Elsewhere,
            _ => Exit::Orphan,
        }
    }

    /// Gives the shadow stack back if it has no open call. Call it last at each event.
    #[inline]
    pub(super) fn release(&self) {
        if self.depth() == 0 {
            let owner = self.cells.owner.load(Ordering::Relaxed);
            self.cells.owner.store(owner & !1, Ordering::Release);
        }
    }

    /// Closes the calls whose stack pointers lie below `position`; returns whether one of
    /// `function` was among them.
    #[inline]
    fn unwind(
        &self,
        function: u16,
        position: u64,
        now: Now,
        close: &mut impl FnMut(Closed),
    ) -> bool {
        let mut has_ended = false;
        while let Some((at, called)) = self.innermost()
            && at > position
        {
            has_ended |= called == function;
            self.close(how::UNWOUND, now, close);
        }
        has_ended
    }

    /// The position and the function of the innermost open call.
    fn innermost(&self) -> Option<(u64, u16)> {
        let top = self.top()?;
        let function = top.function.load(Ordering::Relaxed);
        Some((top.position.load(Ordering::Relaxed), function as u16))
    }

    /// The word and the bit of a function among those with an open call.
    fn open(&self, function: u16) -> Option<(&AtomicU64, u64)> {
        let word = self.cells.open.get(usize::from(function) / 64)?;
        Some((word, 1 << (function % 64)))
    }

    fn close(&self, how: u8, now: Now, close: &mut impl FnMut(Closed)) {
        let Some(top) = self.top() else {
            return;
        };
        let word = top.function.load(Ordering::Relaxed);
        let function = word as u16;
        let is_outermost = word & OUTERMOST != 0;
        if is_outermost && let Some((open, bit)) = self.open(function) {
            open.fetch_and(!bit, Ordering::Relaxed);
        }
        let entered_ns = top.entered_ns.load(Ordering::Relaxed);
        let depth = self.cells.depth.load(Ordering::Relaxed);
        let is_root = self.cells.root.load(Ordering::Relaxed) == depth;
        if is_root {
            self.cells.root.store(0, Ordering::Relaxed);
        }
        let closed = Closed {
            function,
            how,
            is_outermost,
            entered_ns,
            caller: (word >> 32) as u32,
            root: is_root.then(|| self.cells.buffer.load(Ordering::Relaxed)),
            duration_ns: now.ns.saturating_sub(entered_ns),
            self_ns: top.self_ns.load(Ordering::Relaxed),
            waited_ns: top.waited_ns.load(Ordering::Relaxed),
        };
        let depth = depth.saturating_sub(1);
        self.cells.depth.store(depth, Ordering::Relaxed);
        close(closed);
    }
}
