//! The functions of an image that share their name with one that occurs in a profile: labels must
//! not change with what the next recording happens to contain.

use std::collections::{BTreeMap, BTreeSet, HashSet};

use super::identity::stem;
use super::ocaml;
use super::symbolized::Names;
use super::symbolizer::NameSource;

impl NameSource<'_, '_> {
    /// Adds the namesakes of the functions that were met since there were `known`, and finds the
    /// functions around OCaml's anonymous ones.
    pub(super) fn add_namesakes(&self, known: usize, names: &mut Names) {
        let new = names.functions()[known..].iter().filter(|it| it.image == Some(self.image));
        let stems: HashSet<String> =
            new.filter_map(|function| stem(&function.raw_name)).map(str::to_owned).collect();
        if stems.is_empty() {
            return;
        }
        let mut starts: BTreeMap<&str, Vec<u64>> = BTreeMap::new();
        for symbol in self.table.entries() {
            if let Some(stem) = stem(&symbol.name).filter(|stem| stems.contains(*stem)) {
                starts.entry(stem).or_default().push(symbol.start);
            }
        }
        for start in starts.into_values().filter(|starts| starts.len() > 1).flatten() {
            self.function_at(start, names);
        }
        if !names.raw {
            self.enclose(known, names);
        }
    }

    /// Names anonymous OCaml functions across builds: by the last function that begins before them
    /// in their file.
    fn enclose(&self, known: usize, names: &mut Names) {
        let anonymous: Vec<usize> = (known..names.functions().len())
            .filter(|at| {
                let function = &names.functions()[*at];
                let is_ocaml = ocaml::stem(&function.raw_name).is_some();
                is_ocaml && ocaml::module_of_anonymous(&function.name).is_some()
            })
            .collect();
        let modules: BTreeSet<String> = anonymous
            .iter()
            .filter_map(|at| ocaml::module_of_anonymous(&names.functions()[*at].name))
            .map(str::to_owned)
            .collect();
        let mut around: Vec<(String, u32, u32, String)> = Vec::new();
        for symbol in self.table.entries().iter().filter(|_| !modules.is_empty()) {
            let name = ocaml::demangle(&symbol.name, || None).filter(|name| {
                let is_code = ["(entry)", "(code_begin)", "(code_end)"];
                modules.iter().any(|module| name.starts_with(module))
                    && ocaml::module_of_anonymous(name).is_none()
                    && !is_code.iter().any(|it| name.ends_with(it))
            });
            let place = || self.info?.declared_at(symbol.start);
            if let Some(name) = name
                && let Some(place) = place()
            {
                around.push((place.file.clone(), place.line, place.column, name));
            }
        }
        around.sort_unstable();
        for at in anonymous {
            let function = &names.functions()[at];
            let module = ocaml::module_of_anonymous(&function.name).unwrap_or_default();
            let place = function.place.map(|it| (names.path(it.file), it.line, it.column));
            let enclosing = place.and_then(|place| {
                let after = around.partition_point(|(file, line, column, _)| {
                    (file.as_str(), *line, *column) <= place
                });
                around[..after].last().filter(|it| it.0 == place.0)
            });
            let name = format!("{}.(fun)", enclosing.map_or(module, |it| it.3.as_str()));
            names.name_across(at, name);
        }
    }
}
