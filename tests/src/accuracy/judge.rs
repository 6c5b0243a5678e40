//! The judge: captured samples, walked by the agent's own code and by full unwind tables.
//!
//! The stacks that framehop finds by all of an image's call frame information are taken for right.
//! They and the walk's are compared function by function, since a walk may return to another
//! instruction of the same function.

use std::collections::HashMap;
use std::mem::MaybeUninit;

use framehop::aarch64::{CacheAarch64, UnwindRegsAarch64, UnwinderAarch64};
use framehop::x86_64::{CacheX86_64, UnwindRegsX86_64, UnwinderX86_64};
use framehop::{FrameAddress, Unwinder};
use unikprof_agent::path::PathCells;
use unikprof_agent::stack::{ReadCode, ReadStack};
use unikprof_agent::walk::{Guide, walk, walk_aarch64};
use unikprof_agent::{CallerTable, MAX_DEPTH, Registers, caller_table_bytes};
use unikprof_proto::caller_table::Row;

use super::capture::Captured;
use super::images::{FunctionStart, Images};

/// The agent's way of finding callers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Way {
    /// Along frame pointers, and nothing else.
    Naive,
    /// A look at the instructions around the interrupted one, then along frame pointers.
    Bytes,
    /// The interrupted function in the caller table, then along frame pointers: what a recording
    /// does by itself.
    Table,
    /// Every frame in the caller table: `--unwind table`.
    EveryFrame,
}

pub(crate) struct Judge<'a> {
    images: &'a Images,
    tables: Tables,
    callers: &'a [Row],
}

/// The unwind tables of the images, for their processor.
enum Tables {
    X86_64(UnwinderX86_64<Vec<u8>>, CacheX86_64),
    Aarch64(UnwinderAarch64<Vec<u8>>, CacheAarch64),
}

/// The number of walks that agreed with the judge.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Agreement {
    /// Samples for which they did.
    pub(crate) right: u64,
    /// All that were judged.
    pub judged: u64,
    /// Samples that the judge itself could not walk.
    pub(crate) unjudged: u64,
}

/// The part of a stack that is compared.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Extent {
    /// The interrupted function's caller.
    LeafCaller,
    /// All frames from the leaf to the program's outermost; a library's below that is the
    /// platform's.
    Whole,
}

impl Agreement {
    /// The part of the judged samples that were right; 0 where there were none.
    pub fn share(&self) -> f64 {
        self.right as f64 / self.judged.max(1) as f64
    }
}

impl<'a> Judge<'a> {
    /// A judge of programs with these images, and this caller table for their code.
    pub(crate) fn new(images: &'a Images, callers: &'a [Row]) -> Judge<'a> {
        Judge {
            images,
            tables: if images.is_aarch64() {
                Tables::Aarch64(images.unwinder(), CacheAarch64::new())
            } else {
                Tables::X86_64(images.unwinder(), CacheX86_64::new())
            },
            callers,
        }
    }

    /// Compares a way of walking with the judge.
    pub(crate) fn agreement(
        &mut self,
        samples: &[Captured],
        way: Way,
        extent: Extent,
    ) -> Agreement {
        let mut agreement = Agreement::default();
        self.compare(samples, way, |images, full, walked| {
            let Some(full) = full else {
                agreement.unjudged += 1;
                return;
            };
            let compared = match extent {
                Extent::LeafCaller => 2,
                Extent::Whole => {
                    let outermost = full.iter().rposition(|f| images.in_program(f.0));
                    outermost.map_or(full.len(), |last| last + 1)
                }
            };
            agreement.judged += 1;
            agreement.right += u64::from(walked.get(..compared) == full.get(..compared));
        });
        agreement
    }

    /// The leaf's caller that was wrong most often: who called whom, the walk's caller, and the
    /// number of times.
    pub(crate) fn worst(
        &mut self,
        samples: &[Captured],
        way: Way,
    ) -> Option<(String, String, usize)> {
        let mut wrong = HashMap::<_, usize>::new();
        self.compare(samples, way, |_, full, walked| {
            if let Some([leaf, caller, ..]) = full
                && walked.get(1) != Some(caller)
            {
                let said = walked.get(1).copied();
                *wrong.entry((*leaf, *caller, said)).or_default() += 1;
            }
        });
        let ((leaf, right, said), count) = wrong.into_iter().max_by_key(|(_, count)| *count)?;
        let name = |function| self.images.name(function);
        let right = format!("{} called by {}", name(leaf), name(right));
        Some((right, said.map_or_else(String::new, name), count))
    }

    /// Walks all samples, and hands over what the tables and what the walk say of each.
    fn compare(
        &mut self,
        samples: &[Captured],
        way: Way,
        mut visit: impl FnMut(&Images, Option<&[FunctionStart]>, &[FunctionStart]),
    ) {
        let images = self.images;
        let mut block = vec![MaybeUninit::uninit(); caller_table_bytes(self.callers.len())];
        let callers = CallerTable::from_rows(&mut block, images.code(), self.callers);
        for sample in samples {
            let walked = match way {
                Way::Naive => walked(images, sample, &Guide::frame_pointers(images.code())),
                Way::Bytes => walked(images, sample, &guide(images, None, false)),
                Way::Table => walked(images, sample, &guide(images, callers.as_ref(), false)),
                Way::EveryFrame => walked(images, sample, &guide(images, callers.as_ref(), true)),
            };
            let Registers { pc, sp, fp, lr, .. } = sample.registers;
            let full = match &mut self.tables {
                Tables::X86_64(unwinder, cache) => {
                    full(images, sample, unwinder, cache, UnwindRegsX86_64::new(pc, sp, fp))
                }
                Tables::Aarch64(unwinder, cache) => {
                    full(images, sample, unwinder, cache, UnwindRegsAarch64::new(lr, sp, fp))
                }
            };
            visit(images, full.as_deref(), &walked);
        }
    }
}

/// The functions of a sample by its unwind tables, leaf first, as far as there are tables; `None`
/// where they do not lead from the leaf to a caller.
fn full<U: Unwinder>(
    images: &Images,
    sample: &Captured,
    unwinder: &U,
    cache: &mut U::Cache,
    registers: U::UnwindRegs,
) -> Option<Vec<FunctionStart>> {
    let mut read_stack = |address| sample.stack.word(address).ok_or(());
    let mut frames = unwinder.iter_frames(sample.registers.pc, registers, cache, &mut read_stack);
    let mut functions = Vec::new();
    while let Ok(Some(frame)) = frames.next() {
        let address = match frame {
            FrameAddress::InstructionPointer(pc) => pc,
            FrameAddress::ReturnAddress(address) => address.get() - 1,
        };
        // Without a table framehop guesses along frame pointers: that is no judge.
        if !images.has_tables(address) {
            break;
        }
        // The boot code, in assembly, is no function.
        let Some(function) = images.function(address) else {
            break;
        };
        functions.push(function);
    }
    (functions.len() > 1).then_some(functions)
}

fn guide<'g>(
    images: &'g Images,
    callers: Option<&'g CallerTable<'g>>,
    every_frame: bool,
) -> Guide<'g, &'g Images> {
    Guide { code: images.code(), callers, every_frame, instructions: images }
}

/// The functions of a sample by the agent's walk, leaf first; it ends at what is no code.
fn walked(
    images: &Images,
    sample: &Captured,
    guide: &Guide<'_, impl ReadCode>,
) -> Vec<FunctionStart> {
    let cells = PathCells::default();
    let stack = Some(&sample.stack);
    let mut path = cells.begin();
    if images.is_aarch64() {
        walk_aarch64(&sample.registers, stack, guide, MAX_DEPTH, &mut path);
    } else {
        walk(&sample.registers, stack, guide, MAX_DEPTH, &mut path);
    }
    path.codes()
        .enumerate()
        .map_while(|(index, code)| {
            let address = images.address(code)?;
            // A return address belongs to the call before it.
            images.function(address - u64::from(index > 0))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::path::Path;
    use std::process::Command;

    use unikprof_profile::caller_table::ImageTable;
    use unikprof_profile::profile::Mapping;
    use unikprof_profile::symbols::Image;

    use super::*;
    use crate::requirement::skip;

    /// GCC's frames on aarch64 begin with their records. Past a function without a table the stack
    /// pointer is unknown, and rules that count from it would take what lies in that function's
    /// frame for return addresses.
    #[test]
    fn callers_behind_a_gcc_function_without_a_table_are_found_by_records() {
        let has = |program| Command::new(program).arg("--version").output().is_ok();
        if !has("aarch64-linux-gnu-gcc") || !has("qemu-aarch64") {
            return skip("install gcc-aarch64-linux-gnu, libc6-dev-arm64-cross and qemu-user");
        }
        let folder = tempfile::tempdir().unwrap();
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/accuracy/untold.c");
        let compile = |words: &[&str]| {
            let mut gcc = Command::new("aarch64-linux-gnu-gcc");
            gcc.current_dir(folder.path()).arg("-O2").args(words).arg(&source);
            assert!(gcc.status().unwrap().success());
        };
        let untold = ["-DUNTOLD", "-fno-asynchronous-unwind-tables", "-c"];
        compile(&[&untold[..], &["-o", "untold.o"]].concat());
        compile(&["-static", "untold.o", "-o", "program"]);
        let program = folder.path().join("program");
        let output = Command::new("qemu-aarch64").arg(&program).output().unwrap();
        let samples = Captured::read_all(&output.stdout).unwrap();

        let image = Image::open(&program).unwrap();
        let mut rows = ImageTable::compile(&image, &[]).unwrap().rows().unwrap();
        // The linker puts the code of a static program at the beginning of its file, and here.
        let mapping = Mapping {
            start: 0x40_0000,
            end: 0x80_0000,
            file_offset: 0,
            build_id: None,
            path: program.display().to_string(),
        };
        let images = Images::of_mappings([&mapping], &program, |_| Some(program.clone())).unwrap();
        let base = images.code().code_base(0).unwrap();
        rows.iter_mut().for_each(|row| row.code += base);
        let mut block = vec![MaybeUninit::uninit(); caller_table_bytes(rows.len())];
        let callers = CallerTable::from_rows(&mut block, images.code(), &rows);
        let found = walked(&images, &samples[0], &guide(&images, callers.as_ref(), true));
        let names: Vec<String> = found.into_iter().map(|it| images.name(it)).collect();
        let names = names.join(" ");
        assert!(names.starts_with("untold inner outer main"), "{names}");
    }
}
