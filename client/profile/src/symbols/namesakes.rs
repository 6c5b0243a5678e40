//! The functions of an image that share their name with one that occurs in a profile: labels must
//! not change with what the next recording happens to contain.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::rc::Rc;

use super::debug_info::{DebugInfo, Declared};
use super::demangle::{demangle, is_mangled};
use super::identity::{Place, has_place, stem, without_numbers, without_suffixes};
use super::image_bytes::ElfFile;
use super::name_table::{Entry, NameTable};
use super::ocaml;
use super::symbolized::{Function, FunctionId, ImageId, Names};
use super::symbolizer::NameSource;

/// What tells the functions that begin at these addresses from others of their names in all builds,
/// as in ` (a.c)`. They must be all functions of their names in the image.
pub fn told_apart(
    file: &ElfFile<'_>,
    debug: Option<&ElfFile<'_>>,
    info: Option<&DebugInfo<'_>>,
    starts: &[u64],
) -> Vec<String> {
    let table = NameTable::from_elf(file, debug);
    let mut names = Names::default();
    let image = names.add_image("", None);
    let source = NameSource { image, info, table: &table };
    let function = |start: &u64| {
        table.find(*start).filter(|raw| has_place(raw))?;
        source.function_at(*start, &mut names)
    };
    let found: Vec<Option<FunctionId>> = starts.iter().map(function).collect();
    let functions = names.labelled().0;
    let text = |id: FunctionId| functions[id.index()].namesake().to_owned();
    found.into_iter().map(|found| found.map_or_else(String::new, text)).collect()
}

/// The names of lambdas and closures without the numbers that compilers tell them apart by.
pub(super) struct Numbered(HashSet<String>);

impl Numbered {
    /// Those of an image among these functions.
    pub(super) fn of(functions: &[Function], image: Option<ImageId>) -> Numbered {
        let of_image = functions.iter().filter(|it| it.image == image);
        let numbered = of_image.map(|it| without_numbers(without_suffixes(&it.name)));
        let numbered = numbered.filter(|(_, numbers)| !numbers.is_empty());
        Numbered(numbered.map(|(name, _)| name.into_owned()).collect())
    }

    /// The symbols of these names, with their numbers. Functions that have no symbol, as they are
    /// inlined, are not told apart: how many there are is not known.
    pub(super) fn find<'t, 'a>(
        &self,
        symbols: &'t [Entry<'a>],
    ) -> impl Iterator<Item = (&'t Entry<'a>, String)> {
        let may_be_numbered = |raw: &str| match is_mangled(raw) {
            true => ["Ul", "Ut", "$_", "NC"].iter().any(|mark| raw.contains(mark)),
            false => raw.contains(['#', '$']),
        };
        let symbols = symbols.iter().filter(|_| !self.0.is_empty());
        symbols.filter(move |symbol| may_be_numbered(&symbol.name)).filter_map(|symbol| {
            let name = demangle(&symbol.name).unwrap_or_else(|| symbol.name.clone().into_owned());
            let (name, numbers) = without_numbers(without_suffixes(&name));
            self.0.contains(&*name).then_some((symbol, numbers))
        })
    }
}

impl NameSource<'_, '_> {
    /// Adds the namesakes of the functions that were met since there were `known`, and names those
    /// across builds that have no name but a number.
    pub(super) fn add_namesakes(&self, known: usize, names: &mut Names) {
        let numbered = Numbered::of(&names.functions()[known..], Some(self.image));
        let new = names.functions()[known..].iter().filter(|it| it.image == Some(self.image));
        let stems: HashSet<String> =
            new.filter_map(|it| stem(&it.raw_name)).map(str::to_owned).collect();
        let mut starts: BTreeMap<&str, Vec<u64>> = BTreeMap::new();
        for symbol in self.table.entries().iter().filter(|_| !stems.is_empty()) {
            if let Some(stem) = stem(&symbol.name).filter(|stem| stems.contains(*stem)) {
                starts.entry(stem).or_default().push(symbol.start);
            }
        }
        // In the order of their addresses, so that each unit is read once.
        let starts = starts.into_values().filter(|starts| starts.len() > 1);
        for start in starts.flatten().collect::<BTreeSet<u64>>() {
            self.function_at(start, names);
        }
        if !names.raw {
            for (symbol, numbers) in numbered.find(self.table.entries()) {
                if let Some(function) = self.function_at(symbol.start, names) {
                    names.across(function.index()).namesake = numbers;
                }
            }
            self.enclose(known, names);
        }
    }

    /// Names anonymous OCaml functions across builds: by the function whose code, or which itself,
    /// is the last in front of them in their file; their module if that is the module's own code.
    fn enclose(&self, known: usize, names: &mut Names) {
        let mut anonymous: HashMap<usize, String> = HashMap::new();
        for (at, function) in names.functions().iter().enumerate().skip(known) {
            let is_ocaml = ocaml::stem(&function.raw_name).is_some();
            let module = ocaml::module_of_anonymous(&function.name).filter(|_| is_ocaml);
            anonymous.extend(module.map(|module| (at, module.to_owned())));
        }
        let modules: BTreeSet<&String> = anonymous.values().collect();
        // Each with the start of its function, if that is not the module itself.
        type Code = (Rc<Declared>, Option<Rc<Declared>>, String);
        let mut code: Vec<Code> = Vec::new();
        for symbol in self.table.entries().iter().filter(|_| !modules.is_empty()) {
            let name = ocaml::demangle(&symbol.name, || None).filter(|name| {
                let is_label = ["(code_begin)", "(code_end)"].iter().any(|it| name.ends_with(it));
                modules.iter().any(|module| name.starts_with(*module))
                    && ocaml::module_of_anonymous(name).is_none()
                    && !is_label
            });
            let (Some(name), Some(info)) = (name, self.info) else { continue };
            let module = name.strip_suffix(".(entry)");
            let start = info.declared_at(symbol.start).filter(|_| module.is_none());
            // What is inlined stands in front of the function.
            let is_own = |place: &Declared| match &start {
                Some(start) => start.file == place.file && *start.as_ref() <= *place,
                None => module.is_some(),
            };
            let places = info.places(self.table.range(symbol.start).unwrap_or_default());
            let own = places.into_iter().filter(|place| is_own(place));
            let name = module.unwrap_or(&name);
            code.extend(own.map(|place| (place, start.clone(), name.to_owned())));
        }
        code.sort_unstable();
        for (at, module) in anonymous {
            let place = names.functions()[at].place;
            let around = place.and_then(|Place { file, line, column }| {
                let place = Declared { file: names.path(file).to_owned(), line, column };
                let after = code.partition_point(|(before, ..)| **before <= place);
                code[..after].last().filter(|it| it.0.file == place.file)
            });
            let name = around.map_or(&module, |(.., name)| name);
            names.across(at).name = format!("{name}.(fun)");
        }
    }
}
