//! Reports of a recording of 100,000 distinct stacks, format by format.
//!
//!     cargo bench -p unikprof-client --bench report

mod million;

use std::io;

use criterion::{Criterion, criterion_group, criterion_main};
use unikprof_client::profile::Profile;
use unikprof_client::report::{Format, Report, ReportOptions};
use unikprof_client::symbols::{ImageOptions, Images, Symbolized, Symbolizer};

const STACKS: usize = 100_000;
const ADDRESSES: u64 = 20_000;

fn formats(criterion: &mut Criterion) {
    let profile = million::profile(STACKS, ADDRESSES).expect("a hundred thousand stacks fit");
    let symbolized = named(&profile);
    let report = Report::new(&symbolized, ReportOptions::default());
    let mut group = criterion.benchmark_group("report of 100,000 stacks");
    group.sample_size(10);
    for format in Format::all() {
        group.bench_function(format.name(), |bencher| {
            bencher.iter(|| {
                report
                    .write(format, &mut io::sink())
                    .expect("nothing can fail");
            });
        });
    }
    group.bench_function("filter", |bencher| {
        let options = ReportOptions {
            focus: "module_7".parse().ok(),
            ..ReportOptions::default()
        };
        bencher.iter(|| Report::new(&symbolized, options.clone()));
    });
    group.finish();
}

fn named(profile: &Profile) -> Symbolized<'_> {
    let names = million::names(ADDRESSES).expect("a temporary file");
    let mut images = Images::new(ImageOptions::default());
    images
        .add_symbols(names.path())
        .expect("the list was just written");
    Symbolizer::new(images)
        .resolve(profile)
        .expect("no image is named")
}

criterion_group!(benches, formats);
criterion_main!(benches);
