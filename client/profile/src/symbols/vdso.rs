//! The code that Linux maps into every process, such as that of `clock_gettime`, which is in no
//! file.

use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::path::Path;

use super::image::Image;

/// How loaders call it.
const NAME: &str = "linux-vdso.so.1";

/// Whether a mapping's path means this code, as loaders and `/proc` name it.
pub(super) fn is_vdso(path: &Path) -> bool {
    path == Path::new(NAME) || path == Path::new("[vdso]")
}

/// This process's own, if the system is Linux: that of each guest which runs on the same kernel.
pub(super) fn of_this_process() -> Option<Image> {
    let maps = std::fs::read_to_string("/proc/self/maps").ok()?;
    let line = maps.lines().find(|line| line.ends_with("[vdso]"))?;
    let (start, end) = line.split(' ').next()?.split_once('-')?;
    let [start, end] = [start, end].map(|text| u64::from_str_radix(text, 16).ok());
    let mut memory = File::open("/proc/self/mem").ok()?;
    memory.seek(SeekFrom::Start(start?)).ok()?;
    let mut bytes = Vec::new();
    memory.take(end?.checked_sub(start?)?).read_to_end(&mut bytes).ok()?;
    Image::parse(Path::new(NAME), bytes).ok()
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::caller_table::ImageTable;
    use crate::profile::{Frame, Mapping, ProfileBuilder};
    use crate::symbols::{ElfFile, Images, SymbolWarning, Symbolizer};
    use object::{Object, ObjectSymbol};

    /// It names the guest's code and tells callers from it, but only if it is the guest's.
    #[test]
    fn that_of_this_process_serves_guests_on_the_same_kernel() {
        let own = of_this_process().unwrap();
        assert!(ImageTable::compile(&own, &[]).unwrap().tally().functions > 0);
        let file = ElfFile::parse(own.bytes()).unwrap();
        let is_clock = |it: &object::Symbol<'_, '_, _>| it.name() == Ok("__vdso_clock_gettime");
        let clock = file.dynamic_symbols().find(is_clock).unwrap().address();
        let start = 0x7ffd_1234_5000;
        let other_id = "0badc0de".parse().ok();
        for (build_id, is_own) in [(own.build_id().cloned(), true), (other_id, false)] {
            let mut builder = ProfileBuilder::new();
            let end = start + own.bytes().length();
            let path = NAME.to_owned();
            builder.add_mapping(Mapping { start, end, file_offset: 0, build_id, path });
            builder.add_stack(0, 1, &[Frame::leaf(start + clock)]).unwrap();
            let profile = builder.finish();
            let symbolized = Symbolizer::new(Images::default()).resolve(&profile).unwrap();
            let symbol = symbolized.frame(profile.frame_ids().next().unwrap())[0];
            let name = &symbolized.function(symbol.function).name;
            assert_eq!(name.ends_with("clock_gettime"), is_own, "{name}");
            match symbolized.warnings() {
                [] => assert!(is_own),
                [warning @ SymbolWarning::NoImage { .. }] => {
                    assert!(!is_own && !warning.is_image_missing(), "{warning}");
                }
                other => panic!("{other:?}"),
            }
        }
    }
}
