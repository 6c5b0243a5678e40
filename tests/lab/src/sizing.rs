//! The size of a lab's machine, and the ports that it forwards.

use std::path::Path;

use crate::config::{self, LabConfig, Processor};
use crate::dom0;
use crate::error::LabError;
use crate::machine::{BELOW_AARCH64_INITRD_MB, Hardware};

/// The machine for a configuration, and each guest's first index among the forwards.
pub(super) fn hardware(
    config: &LabConfig,
    initrd: &Path,
) -> Result<(Hardware, Vec<usize>), LabError> {
    let initrd_mb = file_size_mb(initrd)?;
    let mut forwards = vec![(dom0::ADDRESS.to_owned(), dom0::COMMAND_PORT)];
    let mut first_forwards = Vec::new();
    let mut kernels_mb = 0;
    let mut guests_mb = 0;
    for (index, guest) in config.guests.iter().enumerate() {
        first_forwards.push(forwards.len());
        forwards.extend(guest.ports.iter().map(|&port| (config::guest_address(index), port)));
        forwards.extend(guest.other_ports.iter().map(|at| (at.ip().to_string(), at.port())));
        kernels_mb += file_size_mb(&guest.kernel)?;
        // What Xen keeps for a domain beside its memory.
        guests_mb += guest.memory_mb + 24;
    }
    // The initramfs holds each kernel, and xl reads it into memory once more.
    let for_kernels_mb = 3 * kernels_mb + config.extra_dom0_memory_mb;
    let dom0_memory_mb = match config.processor {
        Processor::X86_64 => 256 + for_kernels_mb,
        // Xen looks for one piece of memory for dom0, and may find no smaller ones beside it.
        Processor::Aarch64 => (192 + for_kernels_mb).next_power_of_two(),
    };
    // Xen uses the memory below, too, but finds it in pieces.
    let below_modules_mb = match config.processor {
        Processor::X86_64 => 0,
        Processor::Aarch64 => BELOW_AARCH64_INITRD_MB,
    };
    let hardware = Hardware {
        processors: config.processors(),
        gic: config.gic,
        memory_mb: 216 + dom0_memory_mb + guests_mb + initrd_mb + below_modules_mb,
        dom0_memory_mb,
        scrub_memory: config.scrub_memory,
        forwards,
    };
    Ok((hardware, first_forwards))
}

fn file_size_mb(path: &Path) -> Result<u64, LabError> {
    let size = std::fs::metadata(path)
        .map_err(|e| LabError::setup(format!("reading {}", path.display()), e))?
        .len();
    Ok(size.div_ceil(1 << 20))
}
