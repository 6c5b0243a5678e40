//! Names as their programmers wrote them.

use std::fmt::{self, Write};

use super::ocaml;

/// The longest name taken or given, in bytes: a mangled name can stand for one that is
/// exponentially longer.
pub(super) const MAX_NAME: usize = 16 * 1024;

/// The source form of a mangled Rust, C++ or OCaml name; `None` if it is not one of them, or too
/// long.
///
/// Rust names lose their hash, OCaml names their stamp. Names that are not mangled, such as C's,
/// give `None`.
///
/// ```
/// use unikprof_profile::symbols::demangle;
///
/// assert_eq!(demangle("_ZN4core3fmt9Formatter3pad17h1234567890abcdefE").as_deref(),
///            Some("core::fmt::Formatter::pad"));
/// assert_eq!(demangle("_ZN6Server4pollEi").as_deref(), Some("Server::poll(int)"));
/// assert_eq!(demangle("camlLwt__return_1319").as_deref(), Some("Lwt.return"));
/// assert_eq!(demangle("main"), None);
/// ```
pub fn demangle(raw: &str) -> Option<String> {
    demangle_at(raw, || None)
}

/// Like [`demangle`], with the place of an anonymous OCaml function, such as `main.ml:12,4`.
pub fn demangle_at(raw: &str, place: impl FnOnce() -> Option<String>) -> Option<String> {
    if raw.len() > MAX_NAME {
        return None;
    }
    // An entry of a linkage table is called by what it jumps to.
    if let Some(target) = raw.strip_suffix("@plt") {
        return Some(demangle_at(target, place)? + "@plt");
    }
    // Behind a `$` is what a linker or another tool added.
    let added = raw.find('$').filter(|_| raw.starts_with("_R")).unwrap_or(raw.len());
    if let Ok(rust) = rustc_demangle::try_demangle(&raw[..added]) {
        return bounded(|out| write!(out, "{rust:#}{}", &raw[added..]));
    }
    if let Some(name) = ocaml::demangle(raw, place) {
        return Some(name);
    }
    if !raw.starts_with("_Z") && !raw.starts_with("__Z") {
        return None;
    }
    if let Some((kind, target)) = thunk(raw) {
        // A thunk calls no other thunk.
        let target = format!("_Z{target}");
        let name = thunk(&target).is_none().then(|| demangle(&target)).flatten()?;
        return Some(format!("{kind} thunk to {name}"));
    }
    let symbol = cpp_demangle::Symbol::new(raw).ok()?;
    bounded(|out| symbol.structured_demangle(out, &cpp_demangle::DemangleOptions::default()))
}

/// The kind of a C++ thunk that corrects a pointer by one or two offsets, and the mangled name of
/// the function that it calls.
fn thunk(raw: &str) -> Option<(&'static str, &str)> {
    let (kind, offsets) = match raw.get(..4)? {
        "_ZTh" => ("non-virtual", 1),
        "_ZTv" => ("virtual", 2),
        _ => return None,
    };
    Some((kind, raw.splitn(offsets + 2, '_').nth(offsets + 1)?))
}

/// Whether a name looks as Rust's and C++'s compilers write it; it may still be no such name.
pub(super) fn is_mangled(raw: &str) -> bool {
    raw.starts_with("_Z") || raw.starts_with("_R") || raw.starts_with("__Z")
}

/// A bare Rust name from DWARF without its generic arguments: `push<u8>` is `push`.
///
/// All instances of a function are one, as they are by their mangled names.
pub(super) fn without_generics(bare: &str) -> &str {
    match bare.find('<') {
        Some(at) if at != 0 => &bare[..at],
        _ => bare,
    }
}

fn bounded(write: impl FnOnce(&mut Bounded) -> fmt::Result) -> Option<String> {
    let mut out = Bounded(String::new());
    write(&mut out).ok().map(|()| out.0)
}

struct Bounded(String);

impl Write for Bounded {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        if self.0.len() + text.len() > MAX_NAME {
            return Err(fmt::Error);
        }
        self.0.push_str(text);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn instances_of_a_bare_name_are_one() {
        for (bare, name) in [
            ("keys<alloc::sync::Arc<str>, u32>", "keys"),
            ("{closure#0}<u64>", "{closure#0}"),
            ("main", "main"),
            ("<impl>", "<impl>"),
        ] {
            assert_eq!(without_generics(bare), name);
        }
    }

    #[test]
    fn entries_of_linkage_tables_are_named_as_their_targets() {
        let name = demangle("_ZNSt6thread4joinEv@plt");
        assert_eq!(name.as_deref(), Some("std::thread::join()@plt"));
        assert_eq!(demangle("memcpy@plt"), None);
    }

    /// As c++filt names them.
    #[test]
    fn thunks_are_named_by_the_functions_that_they_call() {
        for (raw, name) in [
            ("_ZThn16_N3app6Server4pollEv", "non-virtual thunk to app::Server::poll()"),
            ("_ZTv0_n24_N3app6Server4pollEv", "virtual thunk to app::Server::poll()"),
        ] {
            assert_eq!(demangle(raw).as_deref(), Some(name));
        }
        for raw in ["_ZTh", "_ZThn16_", "_ZTv0_n24", "_ZThn16_é"] {
            assert_eq!(demangle(raw), None, "{raw}");
        }
    }

    #[test]
    fn what_tools_add_to_rust_names_stays_behind_them() {
        let name = demangle("_RNvNvCs7qp2U7fqm6G_3web7COUNTER5___KEY$tlv$init");
        assert_eq!(name.as_deref(), Some("web::COUNTER::__KEY$tlv$init"));
        assert_eq!(demangle("_RNvC6_123foo3bar$").as_deref(), Some("123foo::bar$"));
    }

    /// Newer than the parsers of names that are used.
    #[test]
    fn names_that_no_parser_knows_stay_raw() {
        for raw in [
            "_ZN3app4Item4makeIcQeqstT_Li1EEEvPKS1_m",
            "_ZN3appL3hotIiQ8integralIT_EEES1_S1_",
            "_ZZ3runvENKUlTyT_E_clIiEEDaS_",
            "_ZN3appW4core6launchEv",
        ] {
            assert_eq!(demangle(raw), None, "{raw}");
        }
    }

    #[test]
    fn clones_of_c_plus_plus_functions_say_so() {
        let name = demangle("_Z3foov.cold");
        assert_eq!(name.as_deref(), Some("foo() [clone .cold]"));
    }

    #[test]
    fn other_names_stay_raw() {
        for raw in ["main", "caml_alloc", "", "_Z", "_ZN", "_R", "é"] {
            assert_eq!(demangle(raw), None, "{raw}");
        }
    }

    /// Substitutions double the text at each step: 40 of them are 2^40 bytes.
    #[test]
    fn a_name_that_grows_without_end_stays_raw() {
        let mut raw = String::from("_Z1fSt4pairIiiE");
        for last in "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ".chars() {
            raw.push_str(&format!("St4pairIS{last}_S{last}_E"));
        }
        assert!(demangle(&raw).is_none_or(|name| name.len() <= MAX_NAME));
        assert_eq!(demangle(&format!("_Z{}", "P".repeat(MAX_NAME))), None);
    }
}
