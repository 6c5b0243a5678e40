//! A generated recording: a random program with a call graph, sampled until so many different
//! stacks were seen.

use std::collections::HashSet;
use std::io::Write;

use tempfile::NamedTempFile;
use unikprof_profile::profile::{
    Counters, Frame, Mapping, Profile, ProfileBuilder, RecordingInfo, TooManyStacks, VcpuStats,
};

const TEXT: u64 = 0x10_0000;
/// Addresses of one function: its call sites and the places where it is interrupted.
const PER_FUNCTION: u64 = 8;
const FUNCTION_BYTES: u64 = 0x100;

/// Exactly so many distinct stacks, 8 to 48 frames deep, over at most so many addresses.
pub(crate) fn profile(stacks: usize, addresses: u64) -> Result<Profile, TooManyStacks> {
    let functions = addresses / PER_FUNCTION;
    let mut random = Random(0x2545_f491_4f6c_dd1d);
    let mut builder = ProfileBuilder::new();
    let mut seen = HashSet::new();
    let mut recorded = 0;
    let mut path = Vec::new();
    while seen.len() < stacks {
        path.clear();
        let depth = 8 + random.below(41);
        let mut function = 0;
        for at in 0..depth {
            // The first calls of a function are by far the most frequent.
            let site = random.below(PER_FUNCTION).min(random.below(PER_FUNCTION));
            let address = TEXT + function * FUNCTION_BYTES + 8 + site * 16;
            path.push(if at + 1 == depth { Frame::leaf(address) } else { Frame::caller(address) });
            function = callee(function, site, functions);
        }
        path.reverse();
        if seen.insert(hash(&path)) {
            let count = 1 + random.below(3);
            recorded += count;
            builder.add_stack((recorded % 4) as u32, count, &path)?;
        }
    }
    builder.add_mapping(Mapping {
        start: TEXT,
        end: TEXT + functions * FUNCTION_BYTES,
        file_offset: 0x1000,
        build_id: None,
        path: "service.elf".into(),
    });
    builder.add_vcpu(VcpuStats {
        counters: Counters {
            ticks: recorded,
            recorded,
            by_frame_pointer: recorded,
            ..Counters::default()
        },
        ..VcpuStats::default()
    });
    builder.set_recording(RecordingInfo {
        name: "generated".into(),
        guest_name: "bench".into(),
        period_ns: 1_003_009,
        depth: 64,
        elapsed_ns: recorded.saturating_mul(1_003_009) / 4,
        ..RecordingInfo::default()
    });
    Ok(builder.finish())
}

/// A symbol list for the program.
pub(crate) fn names(addresses: u64) -> std::io::Result<NamedTempFile> {
    let mut file = NamedTempFile::new()?;
    for function in 0..addresses / PER_FUNCTION {
        let (start, module) = (TEXT + function * FUNCTION_BYTES, function % 23);
        writeln!(
            file,
            "{start:016x} {FUNCTION_BYTES:016x} T module_{module}::worker::step_{function}"
        )?;
    }
    Ok(file)
}

/// Which function a call site calls: fixed, and spread over the program.
fn callee(function: u64, site: u64, functions: u64) -> u64 {
    let mixed = (function * PER_FUNCTION + site + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (mixed >> 33) % functions
}

fn hash(path: &[Frame]) -> u64 {
    use std::hash::{DefaultHasher, Hash, Hasher};
    let mut hasher = DefaultHasher::new();
    path.hash(&mut hasher);
    hasher.finish()
}

/// A xorshift generator: the same recording each time.
struct Random(u64);

impl Random {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) % limit
    }
}
