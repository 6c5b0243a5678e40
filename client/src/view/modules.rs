//! The images of a profile as the front end names them: name and debug id, and addresses as offsets
//! in the file.

use std::collections::HashMap;

use unikprof_profile::profile::{Mapping, Profile};
use unikprof_report::report::firefox_library;

/// The mappings by name and debug id.
pub(super) struct Modules(HashMap<(String, String), Vec<Mapping>>);

impl Modules {
    pub(super) fn of(profile: &Profile) -> Modules {
        let mut modules: HashMap<_, Vec<Mapping>> = HashMap::new();
        for mapping in profile.mappings() {
            let key = firefox_library(mapping);
            modules.entry(key).or_default().push(mapping.clone());
        }
        Modules(modules)
    }

    /// Whether the profile has this image.
    pub(super) fn has(&self, name: &str, id: &str) -> bool {
        self.0.contains_key(&(name.to_owned(), id.to_owned()))
    }

    /// The address in the guest of an offset in an image.
    pub(super) fn address(&self, name: &str, id: &str, offset: u64) -> Option<u64> {
        let mappings = self.0.get(&(name.to_owned(), id.to_owned()))?;
        mappings.iter().find_map(|mapping| {
            let address = mapping.start.checked_add(offset.checked_sub(mapping.file_offset)?)?;
            mapping.contains(address).then_some(address)
        })
    }
}
