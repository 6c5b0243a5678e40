//! Names of 20,000 addresses with inlined functions, beside binutils' `addr2line -i -f -C` on the
//! same file and addresses.
//!
//!     cargo bench -p unikprof-profile --bench symbols_beside_binutils [-- ELF]
//!
//! Without a file it takes itself. The addresses are spread evenly over the code; both sides open
//! and read the file each time. Nothing is asserted.

use std::env;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use object::{Object, ObjectSection, SectionKind};
use unikprof_profile::profile::{Frame, Mapping, Profile, ProfileBuilder};
use unikprof_profile::symbols::{Force, Image, ImageOptions, Images, Symbolizer};

const ADDRESSES: u64 = 20_000;
const ROUNDS: usize = 3;

type AnyError = Box<dyn std::error::Error>;

fn main() -> Result<(), AnyError> {
    let named = env::args().skip(1).find(|argument| !argument.starts_with('-'));
    let path = named.map_or_else(env::current_exe, |path| Ok(PathBuf::from(path)))?;
    let addresses = code_addresses(&path)?;
    let mut ours = Vec::new();
    let mut theirs = Vec::new();
    let mut frames = 0;
    for _ in 0..ROUNDS {
        let (time, count) = resolve(&path, &addresses)?;
        frames = count;
        ours.push(time);
        theirs.push(binutils(&path, &addresses)?);
    }
    ours.sort();
    theirs.sort();
    let (ours, theirs) = (ours[ROUNDS / 2], theirs[ROUNDS / 2]);
    println!(
        "{} addresses, {frames} functions with the inlined: {:.3} s, addr2line -i -f -C {:.3} s, \
         ratio {:.1} (medians of {ROUNDS}); {}",
        addresses.len(),
        ours.as_secs_f64(),
        theirs.as_secs_f64(),
        theirs.as_secs_f64() / ours.as_secs_f64(),
        path.display()
    );
    Ok(())
}

/// Addresses in executable sections, as linked, in a scattered order.
fn code_addresses(path: &Path) -> Result<Vec<u64>, AnyError> {
    let bytes = std::fs::read(path)?;
    let file = object::File::parse(bytes.as_slice())?;
    let text: Vec<(u64, u64)> = file
        .sections()
        .filter(|s| s.kind() == SectionKind::Text)
        .map(|s| (s.address(), s.size()))
        .collect();
    let total: u64 = text.iter().map(|(_, size)| size).sum();
    let mut addresses: Vec<u64> = (0..ADDRESSES)
        .filter_map(|n| {
            let mut at = total * n / ADDRESSES;
            text.iter().find_map(|(start, size)| {
                if at < *size {
                    return Some(start + at);
                }
                at -= size;
                None
            })
        })
        .collect();
    addresses.sort_by_key(|address| address.wrapping_mul(0x9e37_79b9_7f4a_7c15));
    Ok(addresses)
}

fn resolve(path: &Path, addresses: &[u64]) -> Result<(Duration, usize), AnyError> {
    let profile = recorded(path, addresses)?;
    let start = Instant::now();
    let mut images =
        Images::new(ImageOptions { open_recorded_paths: false, ..ImageOptions::default() });
    images.add_image(path, Force::No)?;
    let symbolized = Symbolizer::new(images).resolve(&profile)?;
    let time = start.elapsed();
    Ok((time, profile.frame_ids().map(|frame| symbolized.frame(frame).len()).sum()))
}

/// A recording of the file with these link addresses, loaded where it was linked.
fn recorded(path: &Path, addresses: &[u64]) -> Result<Profile, AnyError> {
    use object::ObjectSegment;
    let bytes = std::fs::read(path)?;
    let file = object::File::parse(bytes.as_slice())?;
    let build_id = Image::open(path)?.build_id().cloned();
    let mut builder = ProfileBuilder::new();
    for segment in file.segments() {
        builder.add_mapping(Mapping {
            start: segment.address(),
            end: segment.address() + segment.size(),
            file_offset: segment.file_range().0,
            build_id: build_id.clone(),
            path: path.display().to_string(),
        });
    }
    for address in addresses {
        builder.add_stack(0, 1, &[Frame::leaf(*address)])?;
    }
    Ok(builder.finish())
}

fn binutils(path: &Path, addresses: &[u64]) -> Result<Duration, AnyError> {
    let input: String = addresses.iter().map(|address| format!("{address:#x}\n")).collect();
    let start = Instant::now();
    let mut child = Command::new("addr2line")
        .args(["-i", "-f", "-C", "-e"])
        .arg(path)
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .spawn()?;
    let mut stdin = child.stdin.take().ok_or("addr2line has no input")?;
    stdin.write_all(input.as_bytes())?;
    drop(stdin);
    child.wait()?;
    Ok(start.elapsed())
}
