//! Profiles of several guests as one. Code is the same if it has the same names across builds, files
//! and lines, so that guests may be of different builds and lie at different addresses.

use std::collections::HashMap;

use super::error::SymbolWarning;
use super::identity::Builds;
use super::symbolized::{Function, FunctionId, Names, Symbol, Symbolized};
use crate::profile::{
    Frame, NodeId, Profile, ProfileBuilder, RecordingInfo, TooManyStacks, VcpuStats,
};

/// Collects the guests' profiles, each named by its own images.
#[derive(Debug, Default)]
pub struct GuestMerger {
    builder: ProfileBuilder,
    names: Names,
    /// The frames of code, each at an address that means nothing.
    code: HashMap<Vec<Symbol>, Frame>,
    symbols: HashMap<Frame, Vec<Symbol>>,
    info: RecordingInfo,
    builds: Builds,
    /// By guest.
    own: Vec<HashMap<FunctionId, u64>>,
}

/// The names of a merged profile.
#[derive(Debug)]
pub struct MergedNames {
    names: Names,
    symbols: HashMap<Frame, Vec<Symbol>>,
}

impl GuestMerger {
    /// Adds a guest's profile. Its samples have the guest's number as their vCPU.
    pub fn add(&mut self, name: &str, guest: &Symbolized<'_>) -> Result<(), TooManyStacks> {
        let profile = guest.profile();
        let number = self.begin(name, profile.recording());
        for warning in guest.warnings() {
            SymbolWarning::add(&mut self.names.warnings, warning.clone());
        }
        self.builds.add(guest.functions());
        let functions: Vec<FunctionId> = guest
            .functions()
            .iter()
            .map(|function| self.names.intern(function.in_any_image()))
            .collect();
        let frames: Vec<Frame> = profile
            .frame_ids()
            .map(|id| {
                let symbols = guest.frame(id).iter().map(|symbol| Symbol {
                    function: functions[symbol.function.index()],
                    file: symbol.file.map(|file| self.names.file(guest.file(file))),
                    ..*symbol
                });
                let symbols: Vec<Symbol> = symbols.collect();
                self.frame(profile.frame(id), symbols)
            })
            .collect();
        let mut nodes = vec![NodeId::ROOT; profile.tree().node_count()];
        for (node, parent, frame) in profile.tree().iter() {
            let frame = frames[frame as usize];
            nodes[node.index()] = self.builder.step(nodes[parent.index()], frame)?;
        }
        let mut own: HashMap<FunctionId, u64> = HashMap::new();
        for sample in profile.samples() {
            self.builder.count(number, nodes[sample.node.index()], sample.count);
            let innermost = profile.stack(sample.node).next();
            if let Some(symbol) = innermost.and_then(|frame| guest.frame(frame).first()) {
                let count = own.entry(functions[symbol.function.index()]).or_default();
                *count = count.saturating_add(sample.count);
            }
        }
        self.builder.compact();
        self.builder.add_vcpu(VcpuStats {
            vcpu: number,
            counters: profile.counters(),
            runstate: profile.runstate(),
            elapsed_ns: profile
                .vcpus()
                .iter()
                .fold(0, |sum: u64, vcpu| sum.saturating_add(vcpu.elapsed_ns)),
            cost: None,
            lateness_ns: None,
            allocated_bytes: 0,
            freed_samples: 0,
        });
        self.own.push(own);
        Ok(())
    }

    /// Takes a guest's settings; answers its number.
    fn begin(&mut self, name: &str, info: &RecordingInfo) -> u32 {
        if self.info.guests.is_empty() {
            self.info = RecordingInfo {
                guest_name: String::new(),
                guest_id: String::new(),
                elapsed_ns: 0,
                server_ns: 0,
                warnings: Vec::new(),
                ..info.clone()
            };
        }
        let all = &mut self.info;
        all.elapsed_ns = all.elapsed_ns.max(info.elapsed_ns);
        all.server_ns = all.server_ns.saturating_add(info.server_ns);
        all.is_incomplete |= info.is_incomplete;
        let starts = [all.started_unix_ns, info.started_unix_ns];
        all.started_unix_ns = starts.into_iter().flatten().min();
        all.guests.push(name.to_owned());
        all.guests.len() as u32 - 1
    }

    fn frame(&mut self, frame: Frame, symbols: Vec<Symbol>) -> Frame {
        let frame = match frame {
            Frame::Special(_) => frame,
            Frame::Address { .. } => {
                let next = Frame::leaf(self.code.len() as u64);
                *self.code.entry(symbols.clone()).or_insert(next)
            }
        };
        self.symbols.entry(frame).or_insert(symbols);
        frame
    }

    /// All guests together, the names that [`MergedNames::of`] gives it, and by guest what was
    /// counted in each function itself.
    pub fn finish(mut self) -> (Profile, MergedNames, Vec<HashMap<FunctionId, u64>>) {
        self.info.guest_name = format!("{} guests", self.info.guests.len());
        self.builder.set_recording(self.info);
        // Which functions are one shows when all builds are known.
        let first = self.names.rename(|function| self.builds.name(function));
        for own in &mut self.own {
            for (function, count) in std::mem::take(own) {
                let sum = own.entry(first[function.index()]).or_default();
                *sum = sum.saturating_add(count);
            }
        }
        let names = MergedNames { names: self.names, symbols: self.symbols };
        (self.builder.finish(), names, self.own)
    }
}

impl MergedNames {
    /// A function of the merged profile.
    pub fn function(&self, id: FunctionId) -> &Function {
        self.names.function_of(id)
    }

    /// The profile with these names.
    pub fn of(mut self, profile: &Profile) -> Symbolized<'_> {
        self.names.make_room(profile.frames().len());
        for id in profile.frame_ids() {
            let begin = self.names.begin();
            for symbol in self.symbols.get(&profile.frame(id)).into_iter().flatten() {
                self.names.push(*symbol);
            }
            self.names.assign(id, begin);
        }
        self.names.finish(profile, vec![None; profile.frames().len()])
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::super::{ImageOptions, Images, Symbolizer};
    use super::*;
    use crate::profile::BuildId;
    use crate::symbols::FunctionKind;

    /// A guest whose functions lie where its symbol list says, sampled in some of them.
    fn guest(list: &str, stacks: &[(&[u64], u64)]) -> (Profile, Symbolizer) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("symbols");
        std::fs::write(&path, list).unwrap();
        let mut images = Images::new(ImageOptions::default());
        images.add_symbols(&path).unwrap();
        let mut builder = ProfileBuilder::new();
        for (addresses, count) in stacks {
            let frames: Vec<Frame> = addresses.iter().map(|at| Frame::leaf(*at)).collect();
            builder.add_stack(0, *count, &frames).unwrap();
        }
        (builder.finish(), Symbolizer::new(images))
    }

    /// The names of the functions that ran in each of several guests of a list.
    fn names_across(list: &str, ran: &[&[u64]]) -> Vec<Vec<String>> {
        let mut merger = GuestMerger::default();
        for ran in ran {
            let stacks: Vec<([u64; 1], u64)> = ran.iter().map(|at| ([*at], 1)).collect();
            let stacks: Vec<(&[u64], u64)> = stacks.iter().map(|(at, n)| (&at[..], *n)).collect();
            let (profile, symbolizer) = guest(list, &stacks);
            merger.add("web", &symbolizer.resolve(&profile).unwrap()).unwrap();
        }
        by_guest(merger)
    }

    /// The names of the functions that ran in each guest.
    fn by_guest(merger: GuestMerger) -> Vec<Vec<String>> {
        let (_, names, own) = merger.finish();
        let named = own.iter().map(|own| {
            let mut named: Vec<_> = own.keys().map(|id| names.function(*id).name.clone()).collect();
            named.sort_unstable();
            named
        });
        named.collect()
    }

    /// One build's address is another function in the other, and its compiler made a copy.
    #[test]
    fn builds_meet_by_names_and_not_by_addresses() {
        let (old, of_old) =
            guest("1000 10 T work.constprop.0\n2000 10 T main\n", &[(&[0x1000, 0x2000], 3)]);
        let (new, of_new) =
            guest("1000 10 T main\n2000 10 T work\n", &[(&[0x2008, 0x1000], 4), (&[0x1000], 1)]);
        let mut merger = GuestMerger::default();
        for (name, profile, symbolizer) in [("a", &old, of_old), ("b", &new, of_new)] {
            let symbolized = symbolizer.resolve(profile).unwrap();
            merger.add(name, &symbolized).unwrap();
        }
        let (profile, names, _) = merger.finish();
        let symbolized = names.of(&profile);
        let stacks: Vec<(u32, Vec<&str>, u64)> = profile
            .samples()
            .iter()
            .map(|sample| {
                let frames = profile.stack(sample.node);
                let names = frames.flat_map(|frame| symbolized.frame(frame));
                let names = names.map(|symbol| &*symbolized.function(symbol.function).name);
                (sample.vcpu, names.collect(), sample.count)
            })
            .collect();
        assert_eq!(
            stacks,
            [(1, vec!["main"], 1), (0, vec!["work", "main"], 3), (1, vec!["work", "main"], 4)]
        );
        assert_eq!(profile.recording().guests, ["a", "b"]);
    }

    /// One build, in one guest of which a cold part ran. Of a function that is the only one of its
    /// name, it is a part; of several, it is not known which.
    #[test]
    fn parts_of_functions_in_a_list_count_whether_they_ran_or_not() {
        let list = "1000 10 t helper\n1010 10 t helper\n1020 10 t helper.cold\n\
                    1030 10 t work\n1040 10 t work.cold\n";
        let named = names_across(list, &[&[0x1000, 0x1010, 0x1030], &[0x1000, 0x1020, 0x1040]]);
        let expected =
            [["helper (#1)", "helper (#2)", "work"], ["helper (#1)", "helper (#3)", "work"]];
        assert_eq!(named, expected);
    }

    /// Statics of several files that were linked as one, of one of which a cold part ran.
    #[test]
    fn statics_that_the_linker_made_one_file_of_are_told_apart() {
        for promoted in ["lto_priv.0", "llvm.117", "__uniq.32.llvm.117"] {
            let list = format!(
                "1000 10 t helper\n1010 10 t helper.{promoted}\n1020 10 t helper.{promoted}.cold\n\
                 1030 10 t work.{promoted}\n1040 10 t work.{promoted}.part.0\n"
            );
            let named = names_across(&list, &[&[0x1000, 0x1030], &[0x1010, 0x1020, 0x1040]]);
            assert_eq!(named, [["helper (#1)", "work"], ["helper (#2)", "work"]], "{promoted}");
        }
        // The copy of a function, and not the function, was made one of several files.
        let list = "1000 10 T helper\n1010 10 t helper.part.0.lto_priv.0\n";
        assert_eq!(names_across(list, &[&[0x1000, 0x1010]]), [["helper"]]);
    }

    /// Of a list that has mangled names, and of one that has not.
    #[test]
    fn lambdas_of_a_list_are_told_apart_whichever_ran() {
        for (names, expected) in [
            (
                ["_ZZ4mainENKUlvE_clEv", "_ZZ4mainENKUlvE0_clEv"],
                "main::{lambda()}::operator()() const",
            ),
            (
                [
                    "main::{lambda()#1}::operator()() const",
                    "main::{lambda()#2}::operator()() const",
                ],
                "main::{lambda()}::operator()() const",
            ),
        ] {
            let list = format!("1000 10 t {}\n1010 10 t {}\n", names[0], names[1]);
            let expected = [1, 2].map(|number| [format!("{expected} (#{number})")]);
            assert_eq!(names_across(&list, &[&[0x1000], &[0x1010]]), expected);
        }
    }

    /// A name of the program and of a library, of which one guest ran both and the next one. The
    /// files have other names in each build.
    #[test]
    fn functions_of_one_name_in_two_images_are_told_apart() {
        let mut merger = GuestMerger::default();
        for (build, ran) in [(2, &[0, 1][..]), (3, &[1])] {
            let mut builder = ProfileBuilder::new();
            for at in ran {
                builder.add_stack(0, 1, &[Frame::leaf(*at)]).unwrap();
            }
            let profile = builder.finish();
            let mut names = Names::new(profile.frames().len(), 0);
            let files = ["elf", "debug"].map(|kind| format!("{build}.{kind}"));
            let images = files.map(|file| names.add_image(&file, None));
            names.set_program(images[0]);
            names.set_library(images[1], &format!("/lib/libfoo.so.1.{build}"));
            for frame in profile.frame_ids() {
                let image = images[profile.frame(frame).lookup_address().unwrap() as usize];
                let function = names.function(Some(image), "helper");
                names.assign_function(frame, function);
            }
            let named = names.finish(&profile, vec![None; profile.frames().len()]);
            merger.add("web", &named).unwrap();
        }
        let expected = [vec!["helper", "helper (libfoo.so)"], vec!["helper (libfoo.so)"]];
        assert_eq!(by_guest(merger), expected);
    }

    /// One build has one more function of a name: which is which is not known, in no guest.
    #[test]
    fn guests_are_compared_by_the_names_of_all_builds() {
        let mut merger = GuestMerger::default();
        for functions in [2, 3] {
            let mut builder = ProfileBuilder::new();
            for at in 0..functions {
                builder.add_stack(0, at + 1, &[Frame::leaf(at)]).unwrap();
            }
            let profile = builder.finish();
            let mut names = Names::new(profile.frames().len(), 0);
            for (at, frame) in profile.frame_ids().enumerate() {
                let place = Some(names.place_at(at as u64));
                let raw = format!("camlWeb__f_{at}");
                let function = names.function_in(None, Some("Web.f"), &raw, place);
                names.assign_function(frame, function);
            }
            let named = names.finish(&profile, vec![None; profile.frames().len()]);
            merger.add("web", &named).unwrap();
        }
        let (_, names, own) = merger.finish();
        let named = own.iter().map(|own| {
            let named = own.iter().map(|(id, count)| (&*names.function(*id).name, *count));
            named.collect::<Vec<_>>()
        });
        assert_eq!(named.collect::<Vec<_>>(), [[("Web.f", 3)], [("Web.f", 6)]]);
    }

    /// Guests of one build, and one of another.
    #[test]
    fn unnamed_code_of_one_build_is_told_apart_by_its_offset() {
        for (builds, expected) in
            [([1, 1], &["web.elf+0x10", "web.elf+0x20"][..]), ([1, 2], &["[program]"])]
        {
            let mut merger = GuestMerger::default();
            for build in builds {
                let mut builder = ProfileBuilder::new();
                for at in [0x10, 0x20] {
                    builder.add_stack(0, 1, &[Frame::leaf(at)]).unwrap();
                }
                let profile = builder.finish();
                let mut names = Names::new(profile.frames().len(), 0);
                let image = names.add_image("web.elf", None);
                for frame in profile.frame_ids() {
                    let offset = profile.frame(frame).lookup_address().unwrap();
                    let build = BuildId::of_file(&[build; 20]).unwrap();
                    let name = format!("web.elf+{offset:#x}");
                    let mut function = Function::new(name, Some(image), FunctionKind::Address);
                    function.across.name = "[program]".to_owned();
                    function.across.build = build;
                    let function = names.intern(function);
                    names.assign_function(frame, function);
                }
                let named = names.finish(&profile, vec![None; profile.frames().len()]);
                merger.add("web", &named).unwrap();
            }
            let (profile, names, own) = merger.finish();
            let named = names.of(&profile);
            let of_guest: Vec<u64> = own.iter().map(|own| own.values().sum()).collect();
            assert_eq!((of_guest, own[0].len()), (vec![2, 2], expected.len()));
            let found = profile.frame_ids().map(|frame| named.frame(frame)[0].function);
            let mut found: Vec<&str> = found.map(|id| &*named.function(id).name).collect();
            found.sort_unstable();
            found.dedup();
            assert_eq!(found, expected);
        }
    }
}
