//! Caller tables: whatever an image and its call frame information say, compiling them ends with an
//! error in words or a table in order, in memory that the image's length bounds.

use std::path::Path;

use unikprof_profile::caller_table::ImageTable;
use unikprof_profile::symbols::Image;
use unikprof_proto::caller_table::TableFile;

use crate::input::Input;
use crate::recording::bounded;
use unikprof_test_kit::elf::TestElf;

/// The longest code of made images, in bytes.
const MOST_CODE: usize = 4096;

/// Takes the bytes as an image, or as sections and segments of one.
pub fn check(bytes: &[u8]) {
    let input = &mut Input::new(bytes);
    match input.byte() {
        0 => compile(input.bytes(usize::MAX).to_vec()),
        choices => compile(image_of(choices, input)),
    }
}

/// An image with code, segments, and the rest of the bytes as the sections that `choices` name.
fn image_of(choices: u8, input: &mut Input<'_>) -> Vec<u8> {
    let code = vec![input.byte(); input.below(MOST_CODE)];
    let mut elf = TestElf::new(&code, &[]);
    elf.kind = 2 + u16::from(choices >> 2 & 1);
    for _ in 0..input.below(4) {
        let flags = 4 + u32::from(input.byte() & 1);
        let segment = (flags, input.number(), input.number(), input.number());
        elf.segments.push(segment);
    }
    let address = input.number();
    let eh_frame = match choices & 3 {
        3 => usize::from(input.short()),
        1 => 0,
        _ => usize::MAX,
    };
    for (name, length) in [(".eh_frame", eh_frame), (".debug_frame", usize::MAX)] {
        elf.sections.push((name, address, input.bytes(length)));
    }
    elf.bytes()
}

fn compile(file: Vec<u8>) {
    let length = file.len();
    let Ok(image) = Image::parse(Path::new("fuzz.elf"), file) else {
        return;
    };
    let compiled = bounded(length, || {
        let table = ImageTable::compile(&image, &[])?;
        let rows = table.rows()?;
        Ok::<_, unikprof_profile::caller_table::CompileError>((table, rows))
    });
    let (table, rows) = match compiled {
        Ok(compiled) => compiled,
        Err(error) => return assert!(!error.to_string().is_empty()),
    };
    assert!(rows.is_sorted_by(|before, row| before.code < row.code));
    assert!(rows.windows(2).all(|pair| pair[0].rule != pair[1].rule));
    // What is written is what others read.
    if let Ok(file) = table.to_file() {
        let file = TableFile::parse(&file).expect("it was just made");
        assert!(file.rows().eq(rows));
    }
}
