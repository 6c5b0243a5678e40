//! Programs that the host's compilers make, and profiles of them.

use std::fs;
use std::path::PathBuf;
use std::process::Command;

use object::{Object, ObjectSegment, ObjectSymbol};
use tempfile::TempDir;
use unikprof_profile::profile::{BuildId, Frame, Mapping, Profile, ProfileBuilder};
use unikprof_profile::symbols::{Image, ImageOptions};

pub(crate) const C_SOURCE: &str = "
static inline __attribute__((always_inline)) int innermost(volatile int *p)
{
    return *p * 3 + 1;
}
static inline __attribute__((always_inline)) int middle(volatile int *p)
{
    return innermost(p) ^ *p;
}
__attribute__((noinline)) int outer(volatile int *p)
{
    int sum = 0;
    for (int i = 0; i < 10; i++)
        sum += middle(p);
    return sum;
}
int main(int argc, char **argv)
{
    volatile int value = argc;
    return outer(&value);
}
";

pub(crate) fn run(program: &str, arguments: &[&str]) -> String {
    let output = Command::new(program)
        .args(arguments)
        .output()
        .unwrap_or_else(|error| panic!("these tests need `{program}`: {error}"));
    assert!(
        output.status.success(),
        "{program} {arguments:?}: {}",
        String::from_utf8_lossy(&output.stderr)
    );
    String::from_utf8(output.stdout).unwrap()
}

/// A compiled program in a folder of its own.
pub(crate) struct Program {
    pub(crate) dir: TempDir,
    pub(crate) path: PathBuf,
}

impl Program {
    pub(crate) fn build(
        compiler: &str,
        extension: &str,
        source: &str,
        options: &[&str],
    ) -> Program {
        let dir = TempDir::new().unwrap();
        let source_path = dir.path().join("program").with_extension(extension);
        fs::write(&source_path, source).unwrap();
        let path = dir.path().join("program.elf");
        let mut arguments = vec![source_path.to_str().unwrap(), "-o", path.to_str().unwrap()];
        arguments.extend(options);
        run(compiler, &arguments);
        Program { dir, path }
    }

    pub(crate) fn c(options: &[&str]) -> Program {
        let mut all = vec!["-O2", "-Wl,--build-id=sha1"];
        all.extend(options);
        Program::build("cc", "c", C_SOURCE, &all)
    }

    pub(crate) fn image(&self) -> Image {
        Image::open(&self.path).unwrap()
    }

    pub(crate) fn build_id(&self) -> BuildId {
        self.image().build_id().unwrap().clone()
    }

    /// The link addresses of a function, by the start of its raw name.
    pub(crate) fn function(&self, prefix: &str) -> std::ops::Range<u64> {
        self.function_where(|name| name.starts_with(prefix))
    }

    /// The link addresses of the function whose raw name `is_it` knows.
    pub(crate) fn function_where(&self, is_it: impl Fn(&str) -> bool) -> std::ops::Range<u64> {
        let bytes = fs::read(&self.path).unwrap();
        let file = object::File::parse(bytes.as_slice()).unwrap();
        let symbol = file.symbols().find(|s| is_it(s.name().unwrap())).unwrap();
        symbol.address()..symbol.address() + symbol.size()
    }

    /// The program's segments as if they were loaded with `bias` added to their addresses.
    pub(crate) fn mappings(&self, bias: u64) -> Vec<Mapping> {
        let bytes = fs::read(&self.path).unwrap();
        let file = object::File::parse(bytes.as_slice()).unwrap();
        file.segments()
            .map(|segment| {
                let (file_offset, _) = segment.file_range();
                let page = segment.address() % 4096;
                Mapping {
                    start: bias + segment.address() - page,
                    end: bias + segment.address() + segment.size(),
                    file_offset: file_offset - page,
                    build_id: Some(self.build_id()),
                    path: self.path.to_str().unwrap().to_owned(),
                }
            })
            .collect()
    }
}

pub(crate) fn profile(mappings: Vec<Mapping>, frames: impl IntoIterator<Item = Frame>) -> Profile {
    let mut builder = ProfileBuilder::new();
    mappings.into_iter().for_each(|mapping| builder.add_mapping(mapping));
    for frame in frames {
        builder.add_stack(0, 1, &[frame]).unwrap();
    }
    builder.finish()
}

/// Nothing but what is named: no debug files and no programs of this host.
pub(crate) fn nothing_found() -> ImageOptions {
    ImageOptions { debug_dirs: Vec::new(), open_recorded_paths: false, ..ImageOptions::default() }
}

/// Copies of a file with changed bytes in every part of it, and some cut short.
pub(crate) fn damaged_copies(good: &[u8]) -> impl Iterator<Item = Vec<u8>> {
    let mut state = 0x9e37_79b9_u64;
    let mut random = move |below: usize| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state % below as u64) as usize
    };
    (0..200).map(move |_| {
        let mut bad = good.to_vec();
        for _ in 0..1 + random(40) {
            let at = random(bad.len());
            bad[at] = random(256) as u8;
        }
        if random(10) == 0 {
            bad.truncate(random(bad.len()));
        }
        bad
    })
}
