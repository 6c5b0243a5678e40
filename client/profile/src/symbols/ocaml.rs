//! OCaml's names as their programmers wrote them.
//!
//! ocamlopt writes `caml`, the modules, the function and a stamp: `camlLwt__return_1319` up to
//! OCaml 5.0, `camlLwt.return_1319` in 5.1 and 5.2, `camlLwt$return_1319` from 5.3 on
//! (ocaml/ocaml#11430, #13050). Characters that assemblers do not take are `$` or, from 5.3 on,
//! `$$` and two hexadecimal digits. OxCaml writes `_Caml` and the parts of the path, each behind a
//! letter for its kind and its length: `_CamlU3LwtF6return`.

use super::demangle::MAX_NAME;

/// The source form of a name that ocamlopt wrote, or `None` where it is none.
///
/// An anonymous function whose name contains only a stamp gets its `place`, such as `main.ml:12,4`,
/// or if that is not known, its stamp.
pub(super) fn demangle(raw: &str, place: impl FnOnce() -> Option<String>) -> Option<String> {
    if raw.len() > MAX_NAME {
        return None;
    }
    let Some(body) = raw.strip_prefix("caml") else {
        return of_oxcaml(raw);
    };
    // The runtime's own functions are C: caml_alloc, caml_call_gc.
    if !body.starts_with(|c: char| c.is_ascii_uppercase()) {
        return None;
    }
    // An identifier may hold two underscores, too: the modules end before the first part that is
    // not written as one, but for dune's `Dune__exe__Main`.
    let (mut modules, mut rest, mut in_unit) = (Vec::new(), body, true);
    while let Some((part, separator, after)) = split(rest, in_unit) {
        let is_module = part.starts_with(|c: char| c.is_ascii_uppercase());
        if after.is_empty() || !is_module && (modules != ["Dune"] || part != "exe") {
            break;
        }
        // Later compilers write another separator behind the unit, and no `__` but of identifiers.
        in_unit = separator == "__";
        modules.push(part);
        rest = after;
    }
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "_'$.".contains(c);
    if modules.is_empty() || !body.chars().all(is_plain) {
        return None;
    }
    let modules: Option<Vec<String>> = modules.into_iter().map(unescape).collect();
    let modules = modules?.join(".");
    let (identifier, stamped) = without_stamp(rest);
    let name = unescape(identifier)?;
    let name = match name.as_str() {
        "" => return None,
        // A module's own code, which runs when the program starts.
        "entry" | "code_begin" | "code_end" if !stamped => format!("({name})"),
        "fun" | "fn" => match place() {
            Some(place) => format!("(fun {place})"),
            None => format!("(fun{})", stamp_of(rest, identifier)),
        },
        name if anonymous(name).is_some() => format!("(fun {})", anonymous(name)?),
        name if is_operator(name) => format!("({name})"),
        name => name.to_owned(),
    };
    Some(format!("{}.{name}", without_dune(&modules)))
}

/// A path without what dune puts before the modules of a program.
fn without_dune(path: &str) -> &str {
    path.strip_prefix("Dune.exe.").unwrap_or(path)
}

/// Units, modules, classes and functions; names with others in them, which are anonymous or have
/// escaped characters, stay raw.
fn of_oxcaml(raw: &str) -> Option<String> {
    let (mut left, mut path) = (raw.strip_prefix("_Caml")?, Vec::new());
    while let Some(part) = left.strip_prefix(['U', 'M', 'O', 'F']) {
        let digits = part.find(|c: char| !c.is_ascii_digit())?;
        let end = digits.checked_add(part[..digits].parse().ok()?)?;
        let text = part.get(digits..end)?;
        path.push(if path.is_empty() { text.replace("__", ".") } else { text.to_owned() });
        left = &part[end..];
    }
    let is_whole = path.len() > 1 && (left.is_empty() || left.starts_with('_'));
    is_whole.then(|| without_dune(&path.join(".")).to_owned())
}

/// What the raw names of OCaml functions of one name have in common: all but the stamp, and but the
/// place of an anonymous function. `None` if the name is not one of OCaml's.
pub(super) fn stem(raw: &str) -> Option<&str> {
    let is_upper = |c: char| c.is_ascii_uppercase();
    let is_ocaml = raw.strip_prefix("caml").is_some_and(|body| body.starts_with(is_upper));
    if !is_ocaml && !raw.starts_with("_Caml") {
        return None;
    }
    let placed = ["fun$5b", "fun$$5b", "fn$5b", "fn$$5b"].iter().find_map(|place| raw.find(place));
    Some(match placed {
        Some(at) => &raw[..at + raw[at..].find('$').unwrap_or(0)],
        None => without_stamp(raw).0,
    })
}

/// The module of an anonymous function's [demangled](demangle) name.
pub(super) fn module_of_anonymous(name: &str) -> Option<&str> {
    name.ends_with(')').then(|| name.split_once(".(fun").map(|(module, _)| module)).flatten()
}

/// A part, its separator and what follows; `None` for the last part.
fn split(text: &str, in_unit: bool) -> Option<(&str, &str, &str)> {
    let bytes = text.as_bytes();
    for at in 0..bytes.len() {
        let length = match bytes[at] {
            b'.' => 1,
            // An identifier may begin with underscores, and the first two are the separator: more
            // functions begin with one than units end with one.
            b'_' if in_unit && bytes.get(at + 1) == Some(&b'_') => 2,
            b'$' if escape(&text[at..]).is_none() => 1,
            _ => continue,
        };
        return Some((&text[..at], &text[at..at + length], &text[at + length..]));
    }
    None
}

/// The character that an escape at the start of `text` stands for, and the escape's length.
///
/// No identifier begins with a digit, and every character that is escaped has a code that does: `$`
/// in front of anything else is a separator.
fn escape(text: &str) -> Option<(char, usize)> {
    let prefix = if text.starts_with("$$") { 2 } else { 1 };
    let digits = text.get(prefix..prefix + 2)?;
    let is_code = digits.starts_with(|c: char| ('2'..='7').contains(&c));
    let code = u8::from_str_radix(digits, 16).ok().filter(|_| is_code)?;
    (text.starts_with('$') && code != 0x7f).then_some((char::from(code), prefix + 2))
}

/// The text with its escapes read; `None` where a `$` is none.
fn unescape(text: &str) -> Option<String> {
    let (mut plain, mut rest) = (String::new(), text);
    while let Some(at) = rest.find('$') {
        plain.push_str(&rest[..at]);
        let (character, length) = escape(&rest[at..])?;
        plain.push(character);
        rest = &rest[at + length..];
    }
    plain.push_str(rest);
    Some(plain)
}

/// An identifier without its stamp (flambda2 writes two and `_code`), and whether there was one.
fn without_stamp(identifier: &str) -> (&str, bool) {
    if let Some(body) = identifier.strip_suffix("_code") {
        let (once, stamped) = without_number(body);
        if stamped {
            return (without_number(once).0, true);
        }
    }
    without_number(identifier)
}

fn without_number(text: &str) -> (&str, bool) {
    match text.rsplit_once('_') {
        Some((body, number))
            if !body.is_empty()
                && !number.is_empty()
                && number.bytes().all(|byte| byte.is_ascii_digit()) =>
        {
            (body, true)
        }
        _ => (text, false),
    }
}

/// What tells anonymous functions of one module apart: ` 385` of `fun_385`.
fn stamp_of(rest: &str, identifier: &str) -> String {
    let stamp = rest[identifier.len()..].trim_matches('_');
    if stamp.is_empty() { String::new() } else { format!(" {}", stamp.trim_end_matches("_code")) }
}

/// Where an anonymous function of OCaml 5 stands: `main.ml:12,4--20` of `fun[main.ml:12,4--20]`.
fn anonymous(name: &str) -> Option<&str> {
    let place = name.strip_prefix("fun").or(name.strip_prefix("fn"))?;
    place.strip_prefix('[')?.strip_suffix(']')
}

fn is_operator(name: &str) -> bool {
    const OPERATORS: &str = "!$%&*+-./:<=>?@^|~#";
    name.chars().all(|c| OPERATORS.contains(c))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    /// Names as compilers wrote them: 4.13's from programs compiled with it, the later ones from
    /// OCaml's own descriptions of its schemes.
    const NAMES: &[(&str, &str)] = &[
        // 4.13
        ("camlLwt__return_1319", "Lwt.return"),
        ("camlStdlib__List__map_487", "Stdlib.List.map"),
        ("camlDune__exe__Main__serve_203", "Main.serve"),
        ("camlDune__exe__Main__Inner__serve_203", "Main.Inner.serve"),
        ("camlUnd___start_81", "Und._start"),
        ("camlUnd____priv_170", "Und.__priv"),
        ("camlDune__exe__Main___start_81", "Main._start"),
        ("camlA_thing__$3e$3e$3d_84", "A_thing.(>>=)"),
        ("camlA_thing__$7c$2b$7c_88", "A_thing.(|+|)"),
        ("camlStdlib__$40_197", "Stdlib.(@)"),
        ("camlStdlib__$5e$5e_444", "Stdlib.(^^)"),
        ("camlA_thing__prime$27_187", "A_thing.prime'"),
        ("camlCamlinternalFormat__k$27_3451", "CamlinternalFormat.k'"),
        ("camlA_thing__b__c_184", "A_thing.b__c"),
        ("camlA_thing__of__Json__x_190", "A_thing.of__Json__x"),
        ("camlA_thing__return_12_190", "A_thing.return_12"),
        ("camlA_thing__F_180", "A_thing.F"),
        ("camlA_thing__counter_init_365", "A_thing.counter_init"),
        ("camlA_thing__fun_385", "A_thing.(fun 385)"),
        ("camlA_thing__entry", "A_thing.(entry)"),
        ("camlA_thing__entry_12", "A_thing.entry"),
        ("camlA_thing__code_begin", "A_thing.(code_begin)"),
        ("camlCamlinternalFormatBasics__erase_rel_142", "CamlinternalFormatBasics.erase_rel"),
        // flambda2
        ("camlA_thing__walk_0_3_code", "A_thing.walk"),
        // 5.1, 5.2
        ("camlStdlib__List.map_487", "Stdlib.List.map"),
        ("camlModule.Submodule.identifier_12", "Module.Submodule.identifier"),
        ("camlUnd.T.__priv_12", "Und.T.__priv"),
        ("camlUnd.of__Json__x_12", "Und.of__Json__x"),
        ("camlInner_._start_12", "Inner_._start"),
        ("camlDune__exe__Main.serve_203", "Main.serve"),
        ("camlMain.fun$5bmain.ml$3a12$2c4$2d$2d20$5d_567", "Main.(fun main.ml:12,4--20)"),
        // 5.3
        ("camlModule$Submodule$identifier_12", "Module.Submodule.identifier"),
        ("camlStdlib__List$map_487", "Stdlib.List.map"),
        ("camlA_thing$$$3e$$3e$$3d_84", "A_thing.(>>=)"),
        ("camlA_thing$be_12", "A_thing.be"),
        ("camlUnd$T$__priv_12", "Und.T.__priv"),
        ("camlUnd$of__Json__x_12", "Und.of__Json__x"),
        ("camlUnd$Of__Json_12", "Und.Of__Json"),
        ("camlDune__exe__Main$serve_203", "Main.serve"),
        ("camlA_thing$fun_385", "A_thing.(fun 385)"),
        // OxCaml
        ("_CamlU3WebM6ServerF4poll", "Web.Server.poll"),
        ("_CamlU10Stdlib__IoF4poll_12_34_code", "Stdlib.Io.poll"),
        ("_CamlU15Dune__exe__MainF6__init", "Main.__init"),
    ];

    #[test]
    fn names_are_those_of_the_source() {
        for (raw, name) in NAMES {
            assert_eq!(demangle(raw, || None).as_deref(), Some(*name), "{raw}");
        }
    }

    #[test]
    fn only_functions_without_a_name_have_a_place() {
        for (raw, name) in NAMES {
            let placed = demangle(raw, || Some("main.ml:12,4".into())).unwrap();
            match name.strip_suffix("(fun 385)") {
                Some(module) => assert_eq!(placed, format!("{module}(fun main.ml:12,4)")),
                None => assert_eq!(placed, *name),
            }
        }
    }

    #[test]
    fn other_names_stay_raw() {
        for raw in [
            "caml_alloc_small",
            "caml_main",
            "caml",
            "camlLwt",
            "camlLwt__",
            "camellia_encrypt",
            "main",
            "camlA$",
            "camlA$$",
            "camlA__$",
            "camlA__$2",
            "camlA b__c_1",
            "camlÄ__b_1",
            "_CamlU3Web",
            "_CamlU3WebF99poll",
            "_CamlU3WebF99999999999999999999poll",
            "_CamlU3WebFu8A3e3e3d_",
            "_CamlU3WebF1é",
        ] {
            assert_eq!(demangle(raw, || None), None, "{raw}");
        }
    }
}
