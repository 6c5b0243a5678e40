//! What the start finds in the running guest: Xen, the page that it shares, and the memory that is
//! mapped one to one.
#![allow(unsafe_code, reason = "what the guest has set up is found by address")]

use core::fmt;
use core::mem::offset_of;
use core::ops::Range;
use core::sync::atomic::{AtomicPtr, AtomicU64, Ordering};

use xen_sys_lite::abi::PAGE_SIZE;
use xen_sys_lite::abi::xen::{SharedInfo, VcpuInfo, VcpuTimeInfo};
use xen_sys_lite::clock::{self, TimeSnapshot};
use xen_sys_lite::vcpu::VcpuId;
use xen_sys_lite::{
    Errno, HypercallInstruction, PolledChannel, SharedPage, hvm, memory as xen_memory,
};

use crate::machine;
use crate::machine::paging::{self, FIVE_LEVELS};
use crate::served::PAGES;
use crate::store::{GuestStore, with_ring};

pub(crate) const FIRST: VcpuId = VcpuId(0);
/// CR4: SSE registers can be used and saved.
const SSE: u64 = 1 << 9;
/// CR0: the next use of the FPU is an exception.
const TASK_SWITCHED: u64 = 1 << 3;
/// Times that the shared information page is looked for: Xen may update the clock meanwhile.
const TRIES: u32 = 3;
/// Memory above is left to devices.
const MEMORY_END: u64 = 0xf000_0000;
/// A second copy of the vCPU's clock, by which the first is found.
static TIME: VcpuTimeInfo = VcpuTimeInfo::new();
static SHARED: AtomicPtr<SharedInfo> = AtomicPtr::new(core::ptr::null_mut());
/// The guest's memory that is mapped one to one: start and end.
static MEMORY: [AtomicU64; 2] = [const { AtomicU64::new(0) }; 2];
/// The code: start and end.
static CODE: [AtomicU64; 2] = [const { AtomicU64::new(0) }; 2];

/// The state that every step needs.
#[derive(Clone, Copy)]
pub(crate) struct Found {
    pub(crate) xen: HypercallInstruction,
    pub(crate) shared: &'static SharedInfo,
}

/// Why there is no xenstore.
#[derive(Debug)]
pub(crate) enum NoStore {
    Xen(Errno),
    NotMapped,
}

impl fmt::Display for NoStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Xen(errno) => write!(f, "xenstore: {errno}"),
            Self::NotMapped => f.write_str("the page of xenstore cannot be mapped"),
        }
    }
}

/// The page that Xen shares with the guest.
pub(crate) fn shared() -> Option<&'static SharedInfo> {
    // SAFETY: null, or that page, which the guest has at the same place after a restore.
    unsafe { SHARED.load(Ordering::Acquire).as_ref() }
}

/// The results of the start.
pub(crate) fn found() -> Option<Found> {
    let shared = shared()?;
    let xen = HypercallInstruction::find().ok()?;
    Some(Found { xen, shared })
}

/// Finds Xen and the page that it shares with the guest; the console cannot be used before. The
/// error says what is missing.
pub(crate) fn find() -> Result<Found, &'static str> {
    let cr4 = machine::read_cr4();
    if cr4 & SSE == 0 {
        return Err("not started: the guest has not enabled SSE (CR4.OSFXSR)");
    }
    if machine::read_cr0() & TASK_SWITCHED != 0 {
        return Err("not started: the guest saves the FPU's state when it is used only (CR0.TS)");
    }
    if cr4 & FIVE_LEVELS != 0 {
        return Err("not started: the guest uses five levels of page tables");
    }
    let xen = HypercallInstruction::find().map_err(|_| "not started: this is no guest of Xen")?;
    let size = xen_memory::current_pages(&xen).unwrap_or(0).saturating_mul(PAGE_SIZE as u64);
    let size = size.min(MEMORY_END);
    const ELSEWHERE: &str = "not started: the guest's image is not mapped one to one";
    let address = &raw const PAGES as u64;
    let end = address + size_of_val(&PAGES) as u64;
    if end > size {
        return Err(ELSEWHERE);
    }
    // SAFETY: the image is below the memory's size, and nobody else has such tables.
    let tables = unsafe { paging::current(&xen) }.ok_or(ELSEWHERE)?;
    if tables.identity_end(address, end) != end {
        return Err(ELSEWHERE);
    }
    let starts = [PAGE_SIZE as u64, 1 << 20, 2 << 20, address];
    let start = starts.into_iter().find(|start| tables.identity_end(*start, size) > address);
    let memory = start.map_or(0..0, |start| start..tables.identity_end(start, size));
    set_range(&MEMORY, memory.clone());
    let shared = find_shared_info(&xen, memory).ok_or(
        "not started: no shared information page is mapped: start the profiler after the \
                guest has mapped it",
    )?;
    SHARED.store(core::ptr::from_ref(shared).cast_mut(), Ordering::Release);
    Ok(Found { xen, shared })
}

/// Finds the page that Xen shares with the guest by its copy of the first vCPU's clock. `memory` is
/// mapped one to one.
fn find_shared_info(xen: &HypercallInstruction, memory: Range<u64>) -> Option<&'static SharedInfo> {
    const CLOCK: usize = offset_of!(SharedInfo, vcpu_info) + offset_of!(VcpuInfo, time);
    clock::register_copy(xen, FIRST, Some(&TIME)).ok()?;
    let found = (0..TRIES).find_map(|_| {
        let wanted = TimeSnapshot::try_read(&TIME)?;
        let mut pages = memory.clone().step_by(PAGE_SIZE);
        pages.find_map(|address| {
            let page = core::ptr::with_exposed_provenance::<SharedInfo>(address as usize);
            // SAFETY: a page of the guest's memory; all fields are atomics, of which only the
            // clock's are read.
            let time = unsafe { &*page.byte_add(CLOCK).cast::<VcpuTimeInfo>() };
            let is_own = core::ptr::eq(time, &TIME);
            let is_it = !is_own
                && wanted.tsc_timestamp == time.tsc_timestamp.load(Ordering::Relaxed)
                && TimeSnapshot::try_read(time) == Some(wanted);
            // SAFETY: Xen shares this page with the guest, for as long as the guest lives.
            is_it.then(|| unsafe { &*page })
        })
    });
    // Fails only as the registration would have.
    let _ = clock::register_copy(xen, FIRST, None);
    found
}

/// The guest's memory that is mapped one to one.
pub(crate) fn memory() -> Range<u64> {
    range(&MEMORY)
}

/// The image's code, once it is known.
pub(crate) fn code() -> Range<u64> {
    range(&CODE)
}

pub(crate) fn set_code(code: Range<u64>) {
    set_range(&CODE, code);
}

fn range(words: &[AtomicU64; 2]) -> Range<u64> {
    let [start, end] = words.each_ref().map(|word| word.load(Ordering::Relaxed));
    start..end
}

fn set_range(words: &[AtomicU64; 2], range: Range<u64>) {
    for (word, value) in words.iter().zip([range.start, range.end]) {
        word.store(value, Ordering::Relaxed);
    }
}

impl Found {
    /// The physical address of a virtual one.
    pub(crate) fn translate(&self, address: u64) -> Option<u64> {
        // SAFETY: `find` has done the same; the tables are not used beyond this line.
        unsafe { paging::current(&self.xen) }?.translate(address)
    }

    /// Whether any address leads to the page at a physical one.
    pub(crate) fn is_mapped(&self, physical: u64) -> bool {
        // SAFETY: as above.
        unsafe { paging::current(&self.xen) }.is_none_or(|tables| tables.is_mapped(physical))
    }

    fn is_identity(&self, address: u64) -> bool {
        self.translate(address) == Some(address)
    }

    /// Calls `work` with xenstore.
    pub(crate) fn with_store<T>(
        &self,
        work: impl FnOnce(&mut GuestStore) -> T,
    ) -> Result<T, NoStore> {
        let ring = hvm::store_ring(&self.xen).map_err(NoStore::Xen)?;
        let is_identity = |address| self.is_identity(address);
        // SAFETY: the guest has not begun to use it: the contract of the start. Interrupts are off,
        // and this runs on a stack in the image.
        let result = unsafe {
            with_ring(ring, self.shared, self.xen, is_identity, |page, channel| {
                work(&mut GuestStore::new(page, channel))
            })
        };
        result.ok_or(NoStore::NotMapped)
    }

    /// Calls `work` with the console's page and channel, if there is a console.
    pub(crate) fn with_console(
        &self,
        work: impl FnOnce(SharedPage, PolledChannel<'static, HypercallInstruction>),
    ) {
        if let Ok(ring) = hvm::console_ring(&self.xen) {
            let is_identity = |address| self.is_identity(address);
            // SAFETY: the guest does not write while this runs; it continues where the ring's index
            // is. The rest as above.
            unsafe { with_ring(ring, self.shared, self.xen, is_identity, work) };
        }
    }
}
