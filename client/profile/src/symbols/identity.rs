//! The identity of functions.
//!
//! Within a profile a function is its image, its name and the [`Place`] that declares it: instances
//! of a generic function have one place, static functions of two files have two. [`labelled`] adds
//! the place to the names that are not unique.
//!
//! Across builds, addresses and lines differ. There a function is its name without what compilers
//! add to it and, among functions of one name, its file, and its order in it if the symbol table has
//! all of them; an anonymous function is the one around it and its order (OCaml) or the compiler's
//! number (lambdas, closures). All code of an image that has no name is one, unless all builds are
//! the same. [`Builds`] matches functions by that.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

use super::demangle::is_mangled;
use super::ocaml;
use super::symbolized::{FileId, Function, FunctionId, FunctionKind, ImageId};
use crate::profile::BuildId;

/// Where a function is declared. Only functions whose names may not be unique have one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Place {
    /// An empty path if the file is unknown.
    pub file: FileId,
    /// 0 if it is unknown. If it or the file is unknown, line and column only give an order.
    pub line: u32,
    pub column: u32,
}

/// What a function is called across builds.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct AcrossBuilds {
    /// Without what compilers add, and without what tells namesakes apart.
    pub(super) name: String,
    /// What tells it from the other functions of its image with this name, as in ` (a.c #2)`. Empty
    /// if it is the only one.
    pub(super) namesake: String,
    /// The library that has it, without a version; empty if it is the program's, whose file may have
    /// another name in each build, or not known.
    pub(super) library: String,
    /// The build of code without a name, if known.
    pub(super) build: Option<BuildId>,
    /// Whether it is code without a name of which no table tells that it is one function.
    pub(super) is_lone: bool,
}

/// The name without the suffixes that compilers give to copies and parts of a function:
/// `.constprop.0`, `.llvm.123`, ` [clone .cold]`.
pub(super) fn without_suffixes(name: &str) -> &str {
    const NUMBERED: [&str; 7] =
        [".__uniq", ".cold", ".constprop", ".isra", ".llvm", ".lto_priv", ".part"];
    const ALONE: [&str; 2] = [".cold", ".localalias"];
    let without = |name: &str, suffixes: &[&str]| {
        let bare = suffixes.iter().find_map(|suffix| name.strip_suffix(suffix)).map(str::len);
        bare.filter(|length| *length > 0)
    };
    let mut name = name;
    loop {
        let numbered = name.rsplit_once('.').filter(|(_, number)| {
            !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit())
        });
        let numbered = || without(numbered?.0, &NUMBERED);
        // Other clones, such as the loops of OpenMP, are functions of their own.
        let clone = || {
            let (bare, suffix) = name.strip_suffix(']')?.rsplit_once(" [clone ")?;
            let is_added = without_suffixes(&format!("f{suffix}")) == "f";
            (is_added && !bare.is_empty()).then_some(bare.len())
        };
        match numbered().or_else(|| without(name, &ALONE)).or_else(clone) {
            Some(length) => name = &name[..length],
            None => return name,
        }
    }
}

/// The name of the function that a symbol is a copy or a part of. Unlike [`without_suffixes`] it
/// keeps what tells functions of several files apart that were linked as one: `f.lto_priv.0` of
/// `f.lto_priv.0.cold`, but `f` of `f.part.0.lto_priv.0`.
pub(super) fn without_copies(name: &str) -> &str {
    const OF_FILES: [&str; 3] = [".__uniq.", ".llvm.", ".lto_priv."];
    let mut rest = &name[without_suffixes(name).len()..];
    loop {
        let clone = rest.strip_prefix(" [clone ");
        let suffix = clone.unwrap_or(rest);
        let Some(number) = OF_FILES.iter().find_map(|it| suffix.strip_prefix(it)) else {
            return &name[..name.len() - rest.len()];
        };
        let behind = number.trim_start_matches(|c: char| c.is_ascii_digit());
        rest = clone.map_or(behind, |_| behind.strip_prefix(']').unwrap_or(behind));
    }
}

/// By what a function that begins here comes before or after others of its name: if files of which
/// a linker made one had them, behind others, by the numbers that tell the files: they stay where
/// code moves.
pub(super) fn order(name: &str, start: u64) -> u64 {
    let of_files = &without_copies(name)[without_suffixes(name).len()..];
    let numbers = of_files.split(['.', ']']).filter_map(|number| number.parse::<u64>().ok());
    let add = |all: u64, number: u64| all.wrapping_mul(0x1_0000_0001).wrapping_add(number);
    numbers.reduce(add).map_or(start, |number| number | 1 << 63)
}

/// The name without the numbers that compilers give to lambdas and closures, and these: `#2` of
/// `main::{lambda()#2}`, `#3` of `main::$_3`.
pub(super) fn without_numbers(name: &str) -> (Cow<'_, str>, String) {
    let (mut bare, mut numbers, mut rest) = (String::new(), Vec::new(), name);
    while let Some(at) = rest.find(['#', '$']) {
        let is_clang = rest[at..].starts_with("$_")
            && !rest[..at].ends_with(|c: char| c.is_alphanumeric() || c == '_');
        let digits = at + if is_clang { 2 } else { 1 };
        let is_digit = |c: char| c.is_ascii_digit();
        let behind = rest[digits..].trim_start_matches(is_digit);
        let end = rest.len() - behind.len();
        let is_number = end > digits && (is_clang || rest.as_bytes()[at] == b'#');
        if is_number && (is_clang || behind.starts_with('}')) {
            numbers.push(format!("#{}", &rest[digits..end]));
            bare.push_str(&rest[..if is_clang { digits } else { at }]);
        } else {
            bare.push_str(&rest[..end]);
        }
        rest = behind;
    }
    match numbers.is_empty() {
        true => (name.into(), String::new()),
        false => ((bare + rest).into(), format!(" ({})", numbers.join(" "))),
    }
}

/// What raw names of functions that may have one name in common: C's and OCaml's names, and C++'s
/// of functions that other files do not see. `None` for a raw name that means one function, and for
/// Rust's, which differ between instances of a function.
pub(super) fn stem(raw: &str) -> Option<&str> {
    if let Some(stem) = ocaml::stem(raw) {
        return Some(stem);
    }
    let bare = without_suffixes(raw);
    let hash = bare.len().checked_sub("17h0123456789abcdefE".len());
    let is_rust = bare.starts_with("_R")
        || hash.is_some_and(|at| bare.as_bytes()[at..].starts_with(b"17h") && bare.ends_with('E'));
    (!is_mangled(bare) || (!is_rust && is_internal(bare))).then_some(bare)
}

/// Whether functions of this raw name are told apart by the places that declare them. Beside those
/// with a [`stem`], these are Rust's closures, whose names have no number.
pub(super) fn has_place(raw: &str) -> bool {
    stem(raw).is_some() || (raw.starts_with("_ZN") && raw.contains("$closure$"))
}

/// Whether C++'s compilers gave this name to a function that other files do not see.
fn is_internal(raw: &str) -> bool {
    let is_local = |pair: &[u8]| pair[0] == b'L' && pair[1].is_ascii_digit();
    raw.contains("_GLOBAL__N_") || raw.as_bytes().windows(2).any(is_local)
}

/// The functions with their labels and their names across builds. Beside them, by function, the
/// first one that is the same: of one name in one image, unless their places tell them apart.
pub(super) fn labelled(
    functions: &[Function],
    files: &[String],
) -> (Vec<Function>, Vec<FunctionId>) {
    let mut all = functions.to_vec();
    let mut first: Vec<FunctionId> = (0..all.len() as u32).map(FunctionId).collect();
    let mut namesakes: HashMap<(Option<ImageId>, Cow<'_, str>), Vec<usize>> = HashMap::new();
    for (at, function) in functions.iter().enumerate() {
        let across = function.across.name.as_str();
        let name = match across {
            "" if ocaml::stem(&function.raw_name).is_some() => function.name.as_str().into(),
            "" => without_numbers(without_suffixes(&function.name)).0,
            across => across.into(),
        };
        namesakes.entry((function.image, name)).or_default().push(at);
    }
    for ((_, name), members) in namesakes {
        let places: BTreeSet<Place> =
            members.iter().filter_map(|at| functions[*at].place).collect();
        // By their whole names, the first one and the places.
        let mut by_name: HashMap<&str, (usize, BTreeSet<Place>)> = HashMap::new();
        for at in members.iter().copied() {
            let (_, places) = by_name.entry(&functions[at].name).or_insert((at, BTreeSet::new()));
            places.extend(functions[at].place);
        }
        // The symbol table has all functions of these kinds; of others only those that occur are
        // known, whose order differs from recording to recording.
        let is_complete = members.iter().all(|at| {
            let function = &functions[*at];
            let is_of_table =
                |place: Place| place.line == 0 || files[place.file.0 as usize].is_empty();
            ocaml::stem(&function.raw_name).is_some() || function.place.is_some_and(is_of_table)
        });
        let told = Told::of(&places, files);
        for at in members.iter().copied() {
            all[at].across.name = name.clone().into_owned();
            let (first_at, places_of_name) = &by_name[functions[at].name.as_str()];
            let place = functions[at].place.filter(|_| places.len() > 1);
            match place {
                None if places.len() > 1 => {}
                None => first[at] = FunctionId(*first_at as u32),
                Some(place) => {
                    // In front of a compiler's number.
                    all[at].across.namesake.insert_str(0, &told.across(place, is_complete));
                    if places_of_name.len() > 1 {
                        all[at].name += &told.label(place);
                    }
                }
            }
        }
    }
    (all, first)
}

/// As much of the ends of paths as tells them apart, the same number of parts of each.
pub(super) fn ends<'p>(paths: &[&'p str]) -> Vec<&'p str> {
    /// More folders than paths that differ have in common at their ends.
    const MOST: usize = 16;
    let of_parts = |parts: usize| -> Vec<&'p str> {
        let start = |path: &str| path.rmatch_indices('/').nth(parts).map_or(0, |(at, _)| at + 1);
        paths.iter().map(|path| &path[start(path)..]).collect()
    };
    let differ = |shown: &Vec<&str>| shown.iter().collect::<BTreeSet<_>>().len() == paths.len();
    (0..MOST).map(of_parts).find(differ).unwrap_or_else(|| of_parts(0))
}

/// What tells the functions of one name in an image apart.
struct Told<'f> {
    /// By file: as much of its path as is needed, and the places in it, in order.
    files: BTreeMap<FileId, (&'f str, Vec<Place>)>,
}

impl<'f> Told<'f> {
    fn of(places: &BTreeSet<Place>, paths: &'f [String]) -> Told<'f> {
        let mut files: BTreeMap<FileId, (&str, Vec<Place>)> = BTreeMap::new();
        for place in places {
            files.entry(place.file).or_default().1.push(*place);
        }
        let whole: Vec<&str> = files.keys().map(|file| &*paths[file.0 as usize]).collect();
        for ((shown, _), end) in files.values_mut().zip(ends(&whole)) {
            *shown = end;
        }
        Told { files }
    }

    /// The file, and the line if it has several of the functions: ` (a.c)`, ` (a.c:12)`.
    fn label(&self, place: Place) -> String {
        match &self.files[&place.file] {
            (file, places) if places.len() == 1 && !file.is_empty() => format!(" ({file})"),
            (file, _) if file.is_empty() || place.line == 0 => self.across(place, true),
            (file, places) => {
                let of_line = places.iter().filter(|it| it.line == place.line).count();
                let column = if of_line > 1 { format!(",{}", place.column) } else { String::new() };
                format!(" ({file}:{}{column})", place.line)
            }
        }
    }

    /// The file, if there are several, and the order in it if that is known: ` (a.c)`, ` (#2)`,
    /// ` (a.c #2)`.
    fn across(&self, place: Place, is_complete: bool) -> String {
        let (file, places) = &self.files[&place.file];
        let order = places.binary_search(&place).map_or(0, |at| at + 1);
        match (self.files.len() > 1 && !file.is_empty(), is_complete && places.len() > 1) {
            (true, true) => format!(" ({file} #{order})"),
            (true, false) => format!(" ({file})"),
            (false, true) => format!(" (#{order})"),
            (false, false) => String::new(),
        }
    }
}

/// The name of a library's file without its version: `libc.so` of `libc.so.6` and `libc-2.36.so`.
pub(super) fn without_version(library: &str) -> Cow<'_, str> {
    let end = library.find(".so.").map_or(library.len(), |at| at + ".so".len());
    let library = &library[..end];
    let versioned = library.strip_suffix(".so").and_then(|name| name.rsplit_once('-'));
    let is_version = |text: &str| text.bytes().all(|byte| byte == b'.' || byte.is_ascii_digit());
    match versioned {
        Some((name, version)) if is_version(version) => format!("{name}.so").into(),
        _ => library.into(),
    }
}

/// What libraries are called across builds, by the paths of their files in the guest: without
/// versions, and with their folders if others have the same name.
pub(super) fn libraries<'p>(paths: impl Iterator<Item = &'p str>) -> HashMap<&'p str, String> {
    let mut called: BTreeMap<String, BTreeSet<&str>> = BTreeMap::new();
    for path in paths {
        called.entry(without_version(ends(&[path])[0]).into_owned()).or_default().insert(path);
    }
    let told = |(name, paths): (String, BTreeSet<&'p str>)| {
        let folder = |path: &str| path.rsplit_once('/').map_or("", |(folder, _)| folder).to_owned();
        let whole: Vec<String> = paths.iter().map(|path| folder(path) + "/" + &name).collect();
        let shown = ends(&whole.iter().map(String::as_str).collect::<Vec<_>>());
        let shown: Vec<String> = shown.into_iter().map(str::to_owned).collect();
        paths.into_iter().zip(shown)
    };
    called.into_iter().flat_map(told).collect()
}

/// Matches the functions of builds. Functions of one name in an image are told apart only if all
/// builds that have some have the same; those of several images, if one build has some in several.
#[derive(Debug, Default)]
pub struct Builds {
    /// By name and library, what tells its functions apart; `None` if builds differ in that.
    namesakes: HashMap<String, BTreeMap<String, Option<BTreeSet<String>>>>,
    /// The names of which one build has functions in several images.
    in_several: HashSet<String>,
    /// The build of an image whose code has no name; `None` if builds differ or are not known.
    unnamed: HashMap<String, Option<BuildId>>,
}

impl Builds {
    /// Adds the functions of a build.
    pub fn add(&mut self, functions: &[Function]) {
        let mut added: HashMap<&str, BTreeMap<&str, BTreeSet<String>>> = HashMap::new();
        for Function { kind, across, .. } in functions {
            let of_name = added.entry(&across.name).or_default();
            of_name.entry(&across.library).or_default().insert(across.namesake.clone());
            if *kind == FunctionKind::Address {
                let known = self.unnamed.entry(across.name.clone());
                let known = known.or_insert_with(|| across.build.clone());
                *known = known.take().filter(|known| Some(known) == across.build.as_ref());
            }
        }
        for (name, libraries) in added {
            if libraries.len() > 1 {
                self.in_several.insert(name.to_owned());
            }
            let known = self.namesakes.entry(name.to_owned()).or_default();
            for (library, mut namesakes) in libraries {
                // One of an unknown place, which may not have run in other builds.
                if namesakes.len() > 1 {
                    namesakes.remove("");
                }
                let same = |known: &mut Option<BTreeSet<String>>| {
                    *known = known.take().filter(|known| *known == namesakes);
                };
                known.entry(library.to_owned()).and_modify(same).or_insert(Some(namesakes));
            }
        }
    }

    /// What a function of one of the builds is called in all of them.
    pub fn name(&self, function: &Function) -> String {
        let AcrossBuilds { name, namesake, library, .. } = &function.across;
        if matches!(self.unnamed.get(name), Some(Some(_))) {
            return function.name.clone();
        }
        let is_in_several = self.in_several.contains(name);
        let mut known = self.namesakes.get(name).into_iter().flatten();
        let are_same = match is_in_several {
            true => known.any(|(of, namesakes)| of == library && namesakes.is_some()),
            false => known.next().is_some_and(|(_, first)| {
                first.is_some() && known.all(|(_, namesakes)| namesakes == first)
            }),
        };
        let namesake = if are_same { namesake } else { "" };
        match is_in_several && !library.is_empty() {
            true => format!("{name}{namesake} ({library})"),
            false => format!("{name}{namesake}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_compilers_add_is_no_part_of_a_name() {
        for (name, bare) in [
            ("poll.constprop.0.isra.1", "poll"),
            ("poll.part.0.cold", "poll"),
            ("poll.lto_priv.12.lto_priv.0", "poll"),
            ("poll.__uniq.32489073.llvm.117", "poll"),
            ("foo() [clone .isra.0] [clone .cold]", "foo()"),
            ("foo() [clone ._omp_fn.0]", "foo() [clone ._omp_fn.0]"),
            ("shop::buy.llvm.44", "shop::buy"),
            ("shop.part", "shop.part"),
            (".cold", ".cold"),
            ("poll.12", "poll.12"),
            ("[u8]", "[u8]"),
        ] {
            assert_eq!(without_suffixes(name), bare);
        }
    }

    #[test]
    fn statics_of_several_files_are_told_from_copies() {
        for (name, own) in [
            ("poll.constprop.0.isra.1", "poll"),
            ("poll.lto_priv.12.lto_priv.0.part.0.cold", "poll.lto_priv.12.lto_priv.0"),
            ("poll.__uniq.3248.llvm.117", "poll.__uniq.3248.llvm.117"),
            ("poll.part.0.lto_priv.1", "poll"),
            ("poll", "poll"),
            ("f() [clone .lto_priv.1] [clone .cold]", "f() [clone .lto_priv.1]"),
        ] {
            assert_eq!(without_copies(name), own);
        }
        // Whatever the order of their addresses, which partitions turn around.
        assert!(order("poll.lto_priv.0", 0x2000) < order("poll.lto_priv.1.cold", 0x1000));
        assert_eq!(order("poll.constprop.0", 0x1000), 0x1000);
    }

    #[test]
    fn libraries_are_called_the_same_in_all_builds() {
        let old = ["/opt/libfoo.so.1.2", "/lib/libc-2.36.so", "/a/x/libz.so", "/b/x/libz.so.1"];
        let new = ["/opt/libfoo.so.1.3", "/usr/lib/libc.so.6", "/a/x/libz.so.2", "/b/x/libz.so"];
        let expected = ["libfoo.so", "libc.so", "a/x/libz.so", "b/x/libz.so"];
        for paths in [old, new] {
            let called = libraries(paths.into_iter());
            assert_eq!(paths.map(|path| called[path].as_str()), expected);
        }
        assert_eq!(without_version("guest-agent.so"), "guest-agent.so");
    }

    fn function(name: &str, place: Option<(u32, u32)>) -> Function {
        let mut function = Function::new(name.to_owned(), None, FunctionKind::Named);
        function.place = place.map(|(file, line)| Place { file: FileId(file), line, column: 0 });
        function
    }

    #[test]
    fn numbers_of_lambdas_and_closures_are_told_from_names() {
        for (name, bare, numbers) in [
            (
                "f()::{lambda(int)#2}::operator()(int) const",
                "f()::{lambda(int)}::operator()(int) const",
                " (#2)",
            ),
            ("f::{closure#0}::{closure#12}", "f::{closure}::{closure}", " (#0 #12)"),
            ("void call<f()::$_3>(f()::$_3)", "void call<f()::$_>(f()::$_)", " (#3 #3)"),
            ("shop$_3", "shop$_3", ""),
            ("f#3 $ #", "f#3 $ #", ""),
        ] {
            assert_eq!(without_numbers(name), (bare.into(), numbers.to_owned()));
        }
    }

    #[test]
    fn as_much_of_a_path_is_shown_as_tells_files_apart() {
        let files = ["/x/a/h.c", "/x/b/h.c"].map(str::to_owned);
        let helpers = [(0, 1), (1, 2), (1, 9)].map(|place| function("helper", Some(place)));
        let (helpers, first) = labelled(&helpers, &files);
        let names: Vec<&str> = helpers.iter().map(|it| it.name.as_str()).collect();
        assert_eq!(names, ["helper (a/h.c)", "helper (b/h.c:2)", "helper (b/h.c:9)"]);
        assert_eq!(helpers[0].bare_name(), "helper");
        assert_eq!(first, [0, 1, 2].map(FunctionId));

        let mut builds = Builds::default();
        builds.add(&helpers);
        let across = [0, 1, 2].map(|at| builds.name(&helpers[at]));
        // Which of the two in one file it is differs from recording to recording.
        assert_eq!(across, ["helper (a/h.c)", "helper (b/h.c)", "helper (b/h.c)"]);
        builds.add(&helpers[1..]);
        assert_eq!(builds.name(&helpers[0]), "helper", "builds have not the same files");
    }

    /// A function of a library occurs if it ran; those of the program have its name, too.
    #[test]
    fn a_function_of_another_image_does_not_change_names() {
        let files = ["a.c", "b.c"].map(str::to_owned);
        let program = [0, 1].map(|file| function("helper", Some((file, 1))));
        let mut library = function("helper", None);
        library.image = Some(ImageId(0));
        let mut builds = Builds::default();
        builds.add(&labelled(&program, &files).0);
        let all = labelled(&[&program[..], &[library]].concat(), &files).0;
        builds.add(&all);
        let names: Vec<String> = all.iter().map(|it| builds.name(it)).collect();
        assert_eq!(names, ["helper (a.c)", "helper (b.c)", "helper"]);
    }

    /// An instance that a library brings has no debug information.
    #[test]
    fn an_instance_whose_place_is_unknown_is_the_same_function() {
        let functions = [function("push", None), function("push", Some((0, 7)))];
        let (functions, first) = labelled(&functions, &["vec.rs".to_owned()]);
        assert_eq!(functions[1].name, "push");
        assert_eq!(first, [0, 0].map(FunctionId));
    }

    #[test]
    fn raw_names_tell_which_functions_may_have_namesakes() {
        for (raw, expected) in [
            ("helper.part.0", Some("helper")),
            ("_ZL6helperi.constprop.0", Some("_ZL6helperi")),
            ("_ZN12_GLOBAL__N_16helperEi", Some("_ZN12_GLOBAL__N_16helperEi")),
            ("_ZN6Server4pollEi", None),
            ("_ZN4core3fmt9Formatter3pad17h1234567890abcdefE", None),
            ("camlWeb__loop_84", Some("camlWeb__loop")),
            ("camlWeb.fun$5bweb.ml$3a12$2c4$2d$2d20$5d_567", Some("camlWeb.fun")),
        ] {
            assert_eq!(stem(raw), expected, "{raw}");
        }
    }
}
