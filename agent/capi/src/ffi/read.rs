//! Reads the structures, texts and mappings that C passes.

use core::ffi::{c_char, c_void};

use unikprof_agent::{MAX_MAPPINGS, Mapping, Registers, live_bytes, minimum_bytes, ring_bytes};

use super::access;
use super::arena::Arena;
use crate::abi::{
    self, UNIKPROF_ABI_VERSION, UNIKPROF_MAX_RECORDINGS, UNIKPROF_REACHABLE_WHEN_BUSY,
};
use crate::status::{
    Misuse, UNIKPROF_E_FLAGS, UNIKPROF_E_LIVE, UNIKPROF_E_MAPPINGS, UNIKPROF_E_MEMORY,
    UNIKPROF_E_NULL, UNIKPROF_E_OPS, UNIKPROF_E_RECORDINGS, UNIKPROF_E_RING, UNIKPROF_E_TEXT,
    UNIKPROF_E_UNSUPPORTED, UNIKPROF_E_VCPUS, UNIKPROF_E_VERSION,
};

/// The maximum length of a name, without the terminating 0.
pub(super) const NAME: usize = 255;
/// The maximum length of a path, without the terminating 0.
const PATH: usize = 4095;
/// The maximum length of a key's text, without the terminating 0.
#[cfg(feature = "noise")]
pub(super) const KEY: usize = 1023;
/// The maximum length of a build-id.
const BUILD_ID: usize = 64;
/// The maximum number of vCPUs.
const VCPUS: u32 = 4096;

/// Copies a structure of C.
///
/// # Safety
///
/// `from` is NULL or points to a structure of this type, at any alignment, with all fields
/// initialized.
#[inline]
pub(super) unsafe fn structure<T: Copy>(from: *const T) -> Result<T, Misuse> {
    if from.is_null() {
        return Err(Misuse(UNIKPROF_E_NULL));
    }
    // SAFETY: guaranteed by the caller.
    Ok(unsafe { from.read_unaligned() })
}

/// Copies the configuration if its version is the library's. Of any other version nothing after the
/// version is read, since the structure may be shorter.
///
/// # Safety
///
/// `from` is NULL or points to a configuration of the version that it begins with, at any
/// alignment.
unsafe fn config(from: *const abi::Config) -> Result<abi::Config, Misuse> {
    // SAFETY: guaranteed by the caller; a configuration of every version begins with the version.
    let version = unsafe { structure(from.cast::<u32>())? };
    if version != UNIKPROF_ABI_VERSION {
        return Err(Misuse(UNIKPROF_E_VERSION));
    }
    // SAFETY: guaranteed by the caller.
    unsafe { structure(from) }
}

/// Copies the registers; `None` if `from` is NULL.
///
/// # Safety
///
/// See [`structure`].
#[inline]
pub(super) unsafe fn registers(from: *const abi::Registers) -> Option<Registers> {
    // SAFETY: guaranteed by the caller.
    let abi::Registers { pc, sp, fp, lr } = unsafe { structure(from).ok()? };
    Some(Registers { pc, sp, fp, lr })
}

/// Borrows a text; `None` if `from` is NULL.
///
/// # Safety
///
/// `from` is NULL or points to at least `most` + 1 bytes, or to fewer that end with 0. They do not
/// change while the result is in use.
pub(super) unsafe fn text<'a>(from: *const c_char, most: usize) -> Result<Option<&'a str>, Misuse> {
    if from.is_null() {
        return Ok(None);
    }
    let from = from.cast::<u8>();
    // SAFETY: no byte after the first 0 is read.
    let length = (0..=most).find(|&index| unsafe { from.add(index).read() } == 0);
    let length = length.ok_or(Misuse(UNIKPROF_E_TEXT))?;
    // SAFETY: all of these bytes were read above.
    let bytes = unsafe { core::slice::from_raw_parts(from, length) };
    core::str::from_utf8(bytes).map(Some).map_err(|_| Misuse(UNIKPROF_E_TEXT))
}

/// A valid configuration; its texts are still in C's memory.
pub(super) struct Wanted<'c> {
    config: abi::Config,
    guest_name: Option<&'c str>,
    guest_id: Option<&'c str>,
    platform_name: &'c str,
    /// The total length of texts, build-ids and mappings, with padding.
    copied_bytes: usize,
}

impl<'c> Wanted<'c> {
    /// Reads the configuration and checks everything except the order of the mappings.
    ///
    /// # Safety
    ///
    /// `config` is NULL or points to a valid structure. Its pointers are NULL or point to what
    /// their descriptions say. None of it changes while the result is in use.
    pub(super) unsafe fn read(config: *const abi::Config) -> Result<Self, Misuse> {
        // SAFETY: guaranteed by the caller.
        let config = unsafe { self::config(config)? };
        access::check(&config)?;
        if config.flags & !UNIKPROF_REACHABLE_WHEN_BUSY != 0 {
            return Err(Misuse(UNIKPROF_E_FLAGS));
        }
        if config.vcpus == 0 || config.vcpus > VCPUS {
            return Err(Misuse(UNIKPROF_E_VCPUS));
        }
        if config.recordings > UNIKPROF_MAX_RECORDINGS {
            return Err(Misuse(UNIKPROF_E_RECORDINGS));
        }
        ring(&config)?;
        live(&config)?;
        trace(&config)?;
        if config.mapping_count == 0 || config.mapping_count as usize > MAX_MAPPINGS {
            return Err(Misuse(UNIKPROF_E_MAPPINGS));
        }
        // SAFETY: guaranteed by the caller, for all three.
        let [guest_name, guest_id, platform_name] = unsafe {
            [
                text(config.guest_name, NAME)?,
                text(config.guest_id, NAME)?,
                text(config.platform_name, NAME)?,
            ]
        };
        let platform_name = platform_name.unwrap_or("xen");
        let texts = [guest_name.unwrap_or(""), guest_id.unwrap_or(""), platform_name];
        let mut wanted = Self {
            config,
            guest_name,
            guest_id,
            platform_name,
            copied_bytes: texts.map(str::len).iter().sum(),
        };
        for index in 0..wanted.mapping_count() {
            // SAFETY: guaranteed by the caller.
            let mapping = unsafe { wanted.mapping(index)? };
            wanted.copied_bytes += mapping.build_id.len() + mapping.path.len();
        }
        wanted.copied_bytes += wanted.mapping_count() * size_of::<Mapping<'_>>();
        Ok(wanted)
    }

    /// The addresses of the agent's own network, if it has one.
    ///
    /// # Safety
    ///
    /// See [`read`](Self::read).
    pub(super) unsafe fn network(&self) -> Result<Option<abi::Network>, Misuse> {
        if self.config.network.is_null() {
            return Ok(None);
        }
        // SAFETY: guaranteed by the caller.
        unsafe { structure(self.config.network) }.map(Some)
    }

    pub(super) fn config(&self) -> &abi::Config {
        &self.config
    }

    /// The minimum length of a block for this configuration and `more` other bytes, at any
    /// alignment.
    pub(super) fn memory_bytes(&self, more: usize) -> usize {
        let aligned = 2 * align_of::<u128>();
        minimum_bytes(self.config.vcpus as usize, self.recordings() as usize)
            .saturating_add(self.copied_bytes)
            .saturating_add(more)
            .saturating_add(aligned)
    }

    /// Copies the agent's configuration into the arena.
    ///
    /// # Safety
    ///
    /// See [`read`](Self::read).
    pub(super) unsafe fn copy_to(
        &self,
        arena: &mut Arena,
    ) -> Result<unikprof_agent::Config<'static>, Misuse> {
        let short = Misuse(UNIKPROF_E_MEMORY);
        let places = arena.places(self.mapping_count()).ok_or(short)?;
        let first: *const Mapping<'static> = places.as_ptr().cast();
        for (index, place) in places.iter_mut().enumerate() {
            // SAFETY: guaranteed by the caller.
            let mapping = unsafe { self.mapping(index)? };
            place.write(Mapping {
                build_id: arena.copy(mapping.build_id).ok_or(short)?,
                path: arena.copy_text(mapping.path).ok_or(short)?,
                ..mapping
            });
        }
        // SAFETY: all of them were written above, and are not written again.
        let mappings = unsafe { core::slice::from_raw_parts(first, self.mapping_count()) };
        let mut copy = |text: &str| arena.copy_text(text).ok_or(short);
        Ok(unikprof_agent::Config {
            vcpus: self.config.vcpus,
            recordings: self.recordings(),
            mappings,
            guest_name: self.guest_name.map(&mut copy).transpose()?,
            guest_id: self.guest_id.map(&mut copy).transpose()?,
            platform_name: copy(self.platform_name)?,
            reachable_when_busy: self.config.flags & UNIKPROF_REACHABLE_WHEN_BUSY != 0,
        })
    }

    fn recordings(&self) -> u32 {
        self.config.recordings.max(1)
    }

    fn mapping_count(&self) -> usize {
        self.config.mapping_count as usize
    }

    /// # Safety
    ///
    /// See [`read`](Self::read).
    unsafe fn mapping(&self, index: usize) -> Result<Mapping<'c>, Misuse> {
        let first = self.config.mappings;
        if first.is_null() {
            return Err(Misuse(UNIKPROF_E_NULL));
        }
        // SAFETY: the caller guarantees `mapping_count` mappings.
        let found = unsafe { structure(first.add(index))? };
        let build_id = if found.build_id.is_null() {
            &[]
        } else if found.build_id_length <= BUILD_ID {
            // SAFETY: the caller guarantees this length.
            unsafe { core::slice::from_raw_parts(found.build_id, found.build_id_length) }
        } else {
            return Err(Misuse(UNIKPROF_E_MAPPINGS));
        };
        Ok(Mapping {
            start: found.start,
            end: found.end,
            file_offset: found.file_offset,
            build_id,
            // SAFETY: guaranteed by the caller.
            path: unsafe { text(found.path, PATH)? }.unwrap_or(""),
        })
    }
}

/// Checks the block for the flight recorder, if there is one.
fn ring(config: &abi::Config) -> Result<(), Misuse> {
    if config.ring.is_null() {
        Ok(())
    } else if !cfg!(feature = "ring") {
        Err(Misuse(UNIKPROF_E_UNSUPPORTED))
    } else if config.ring_length < ring_bytes(config.vcpus as usize, 0)
        || isize::try_from(config.ring_length).is_err()
    {
        Err(Misuse(UNIKPROF_E_RING))
    } else {
        Ok(())
    }
}

/// Checks the block for live samples, if there is one.
fn live(config: &abi::Config) -> Result<(), Misuse> {
    if config.live_memory.is_null() {
        Ok(())
    } else if !cfg!(feature = "heap") {
        Err(Misuse(UNIKPROF_E_UNSUPPORTED))
    } else if config.live_memory_length < live_bytes(1)
        || isize::try_from(config.live_memory_length).is_err()
    {
        Err(Misuse(UNIKPROF_E_LIVE))
    } else {
        Ok(())
    }
}

/// Checks the block for traces, if there is one.
fn trace(config: &abi::Config) -> Result<(), Misuse> {
    if config.trace_memory.is_null() {
        return Ok(());
    }
    #[cfg(not(feature = "trace"))]
    return Err(Misuse(UNIKPROF_E_UNSUPPORTED));
    #[cfg(feature = "trace")]
    if config.trace_memory_length < unikprof_agent::trace_bytes(1, trace_stacks(config))
        || isize::try_from(config.trace_memory_length).is_err()
    {
        Err(Misuse(crate::status::UNIKPROF_E_TRACE))
    } else {
        Ok(())
    }
}

/// The number of stacks for traces.
#[cfg(feature = "trace")]
pub(super) fn trace_stacks(config: &abi::Config) -> usize {
    match config.trace_stacks {
        0 => 16,
        stacks => stacks as usize,
    }
}

/// Copies the functions and checks that the required ones are there.
///
/// # Safety
///
/// `ops` is NULL or points to a valid structure.
pub(super) unsafe fn ops(ops: *const abi::Ops, vcpus: u32) -> Result<abi::Ops, Misuse> {
    // SAFETY: guaranteed by the caller.
    let ops = unsafe { structure(ops)? };
    let has_required = ops.now_ns.is_some()
        && ops.vcpu.is_some()
        && ops.running_ns.is_some()
        && ops.stack_bounds.is_some();
    if !has_required {
        return Err(Misuse(UNIKPROF_E_OPS));
    }
    if vcpus > 1 && ops.kick.is_none() {
        return Err(Misuse(UNIKPROF_E_VCPUS));
    }
    Ok(ops)
}

/// Borrows `length` bytes of C for reading.
///
/// # Safety
///
/// `from` is NULL or points to `length` bytes that nothing writes while the result is in use.
pub(super) unsafe fn bytes<'a>(from: *const c_void, length: usize) -> Result<&'a [u8], Misuse> {
    if length == 0 {
        return Ok(&[]);
    }
    if from.is_null() || isize::try_from(length).is_err() {
        return Err(Misuse(UNIKPROF_E_NULL));
    }
    // SAFETY: guaranteed by the caller.
    Ok(unsafe { core::slice::from_raw_parts(from.cast(), length) })
}

/// Borrows `length` bytes of C for writing.
///
/// # Safety
///
/// `to` is NULL or points to `length` bytes that nothing else accesses while the result is in use.
pub(super) unsafe fn room<'a>(to: *mut c_void, length: usize) -> Result<&'a mut [u8], Misuse> {
    if length == 0 {
        return Ok(&mut []);
    }
    if to.is_null() || isize::try_from(length).is_err() {
        return Err(Misuse(UNIKPROF_E_NULL));
    }
    // SAFETY: guaranteed by the caller. Bytes that C has not written yet count as initialized,
    // since this code's compiler cannot see where they come from.
    Ok(unsafe { core::slice::from_raw_parts_mut(to.cast(), length) })
}
