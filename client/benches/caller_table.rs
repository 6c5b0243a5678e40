//! Compiling a caller table: that of this program, which is a real one of some size.
#![allow(missing_docs, clippy::unwrap_used)]

use criterion::{Criterion, criterion_group, criterion_main};
use unikprof_client::caller_table::ImageTable;
use unikprof_client::symbols::Image;

fn compile(criterion: &mut Criterion) {
    let image = Image::open(&std::env::current_exe().unwrap()).unwrap();
    let table = ImageTable::compile(&image, &[]).unwrap();
    let (rows, functions) = (table.rows().unwrap().len(), table.tally().functions);
    criterion.bench_function(&format!("compile {functions} functions"), |bencher| {
        bencher.iter(|| ImageTable::compile(&image, &[]).unwrap());
    });
    criterion.bench_function(&format!("write {rows} rows"), |bencher| {
        bencher.iter(|| table.to_file().unwrap());
    });
}

criterion_group!(benches, compile);
criterion_main!(benches);
