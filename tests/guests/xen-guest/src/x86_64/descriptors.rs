//! Segments, the task state with its interrupt stacks, and the interrupt table.
//!
//! Every interrupt and exception gets its own stack through the interrupt stack table: the compiled
//! core library keeps data below the stack pointer (the red zone), which an interrupt on the same
//! stack would overwrite.
//!
//! The upcall's stack does not exist: its top is [`UPCALL_STACK_TOP`], with no page below it, so
//! that the processor delivers a page fault instead. The reason is a fault of QEMU 7.2. Its `vmrun`
//! delivers the interrupt that Xen injects, but leaves it marked as pending; if the emulated
//! processor leaves its loop before the guest next exits to Xen, the vector is delivered again,
//! with interrupts off, onto the frame of the first (seen once in about 15,000 ticks). A page fault
//! is delivered correctly and clears the mark. On real processors, too, a page fault replaces an
//! interrupt during whose delivery it occurs, so the guest also works there.
//!
//! With the feature `gate` upcalls have no stack of their own, but run on the interrupted one:
//! there a second delivery overwrites nothing, and can be ignored.

#![allow(unsafe_code, reason = "descriptor tables are loaded here")]

use core::arch::asm;
use core::cell::UnsafeCell;

use crate::boot::{CODE_SELECTOR, DATA_SELECTOR};
use crate::interrupts::{self, STUB_COUNT, UPCALL_VECTOR};

/// The size of each interrupt stack in bytes.
const INTERRUPT_STACK_SIZE: usize = 32 * 1024;
/// The maximum number of vCPUs of this guest.
pub(crate) const MAX_VCPUS: usize = 8;

/// The top of the upcall's stack: the end of the first 2 MiB, which `boot` leaves unmapped.
pub(crate) const UPCALL_STACK_TOP: u64 = 0x20_0000;

const NON_MASKABLE: usize = 2;
const BREAKPOINT: usize = 3;
const DOUBLE_FAULT: usize = 8;
const PAGE_FAULT: usize = 14;

/// The number of a vector's interrupt stack, as in the IDT, counted from 1.
const fn stack_of(vector: usize) -> u64 {
    match vector {
        // Upcalls run here too.
        PAGE_FAULT => 1,
        DOUBLE_FAULT => 3,
        NON_MASKABLE => 4,
        BREAKPOINT => 5,
        vector if vector == UPCALL_VECTOR as usize => match cfg!(feature = "gate") {
            true => 0,
            false => UPCALL_STACK,
        },
        _ => 2,
    }
}
const STACKS: usize = 5;
/// The number of the stack that does not exist.
const UPCALL_STACK: u64 = 6;

/// The 64-bit task state (AMD64 Architecture Programmer's Manual, volume 2, 12.2.5).
#[repr(C, packed(4))]
struct TaskState {
    reserved: u32,
    privilege_stacks: [u64; 3],
    reserved_2: u64,
    interrupt_stacks: [u64; 7],
    reserved_3: u64,
    reserved_4: u16,
    io_map_base: u16,
}
const _: () = assert!(size_of::<TaskState>() == 104);

#[repr(C, align(4096))]
struct InterruptStacks([[u8; INTERRUPT_STACK_SIZE]; STACKS]);

/// One vCPU's descriptors; never freed, and used only by that vCPU.
#[repr(C)]
struct PerVcpu {
    segments: [u64; 5],
    task_state: TaskState,
}

struct Tables {
    interrupts: UnsafeCell<[[u64; 2]; STUB_COUNT]>,
    vcpus: [UnsafeCell<PerVcpu>; MAX_VCPUS],
}

// SAFETY: the interrupt table is written before a second vCPU starts; each vCPU writes its own
// entry only.
unsafe impl Sync for Tables {}

static TABLES: Tables = Tables {
    interrupts: UnsafeCell::new([[0; 2]; STUB_COUNT]),
    vcpus: [const {
        UnsafeCell::new(PerVcpu {
            segments: [0, 0x00af_9b00_0000_ffff, 0x00cf_9300_0000_ffff, 0, 0],
            task_state: TaskState {
                reserved: 0,
                privilege_stacks: [0; 3],
                reserved_2: 0,
                interrupt_stacks: [0; 7],
                reserved_3: 0,
                reserved_4: 0,
                io_map_base: size_of::<TaskState>() as u16,
            },
        })
    }; MAX_VCPUS],
};

/// Separate from the tables, because zeroed memory takes no space in the image.
static STACK_MEMORY: StackMemory = StackMemory(UnsafeCell::new(
    [const { InterruptStacks([[0; INTERRUPT_STACK_SIZE]; STACKS]) }; MAX_VCPUS],
));

struct StackMemory(UnsafeCell<[InterruptStacks; MAX_VCPUS]>);

// SAFETY: only the processor uses the stacks, and each vCPU has its own.
unsafe impl Sync for StackMemory {}

const TASK_SELECTOR: u16 = 0x18;

/// Fills the interrupt table. Called once, on the first vCPU, before [`load`].
pub(crate) fn fill_interrupt_table() {
    // SAFETY: only the first vCPU runs, with interrupts off; nothing else refers to the table yet.
    let table = unsafe { &mut *TABLES.interrupts.get() };
    for (vector, gate) in table.iter_mut().enumerate() {
        let handler = match vector {
            #[cfg(feature = "trace")]
            BREAKPOINT => crate::breakpoints::entry(),
            _ => interrupts::stub(vector),
        };
        let present_interrupt_gate = 0x8e << 40;
        *gate = [
            (handler & 0xffff)
                | u64::from(CODE_SELECTOR) << 16
                | stack_of(vector) << 32
                | present_interrupt_gate
                | (handler >> 16 & 0xffff) << 48,
            handler >> 32,
        ];
    }
}

/// Loads this vCPU's segments, task state and the interrupt table. Interrupts stay off.
pub(crate) fn load(vcpu: usize) {
    #[repr(C, packed)]
    struct Pointer {
        limit: u16,
        base: u64,
    }
    // SAFETY: each vCPU comes here once with its own number, before anything uses its tables.
    let tables = unsafe { &mut *TABLES.vcpus[vcpu].get() };
    let stacks = STACK_MEMORY.0.get().cast::<InterruptStacks>() as u64;
    let stacks = stacks + (vcpu * size_of::<InterruptStacks>()) as u64;
    let mut interrupt_stacks = [0; 7];
    for (number, top) in (1..=STACKS as u64).zip(&mut interrupt_stacks) {
        *top = stacks + number * INTERRUPT_STACK_SIZE as u64;
    }
    interrupt_stacks[UPCALL_STACK as usize - 1] = UPCALL_STACK_TOP;
    tables.task_state.interrupt_stacks = interrupt_stacks;

    let base = &raw const tables.task_state as u64;
    let limit = size_of::<TaskState>() as u64 - 1;
    let present_task_state = 0x89 << 40;
    tables.segments[3] =
        limit | (base & 0xff_ffff) << 16 | present_task_state | (base >> 24 & 0xff) << 56;
    tables.segments[4] = base >> 32;

    let segments = Pointer {
        limit: size_of_val(&tables.segments) as u16 - 1,
        base: tables.segments.as_ptr() as u64,
    };
    let interrupts =
        Pointer { limit: (STUB_COUNT * 16) as u16 - 1, base: TABLES.interrupts.get() as u64 };
    // SAFETY: the tables are complete and never freed, and the new segments cover all memory like
    // the current ones. The code segment is reloaded because Xen starts a second vCPU with a null
    // selector, to which no interrupt could return.
    unsafe {
        asm!(
            "lgdt [{segments}]",
            "lidt [{interrupts}]",
            "ltr {task:x}",
            "mov ss, {data:x}",
            "push {code}",
            "lea {scratch}, [rip + 2f]",
            "push {scratch}",
            "retfq",
            "2:",
            segments = in(reg) &raw const segments,
            interrupts = in(reg) &raw const interrupts,
            task = in(reg) TASK_SELECTOR,
            data = in(reg) DATA_SELECTOR,
            code = const CODE_SELECTOR,
            scratch = out(reg) _,
            options(preserves_flags),
        );
    }
}
