//! Cases that need what a machine may lack.

use std::fmt::Display;
use std::io::Write;
use std::thread;

/// The variable that, with the value 1, makes a case fail that would be skipped.
pub(crate) const REQUIRED_VARIABLE: &str = "UNIKPROF_REQUIRE_ALL";

/// Says that the case that calls it is skipped, and why.
pub fn skip(reason: impl Display) {
    let value = std::env::var_os(REQUIRED_VARIABLE);
    skip_unless(value.is_some_and(|value| value == "1"), reason);
}

fn skip_unless(required: bool, reason: impl Display) {
    // Each test has a thread of its own, which has its name.
    let thread = thread::current();
    let case = thread.name().unwrap_or("a case");
    assert!(!required, "{REQUIRED_VARIABLE} is set; {case}: {reason}");
    // Not `eprintln!`: the harness hides what a passing test prints.
    let _ = writeln!(std::io::stderr(), "SKIPPED {case}: {reason}");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[should_panic(expected = "UNIKPROF_REQUIRE_ALL is set; \
                    requirement::tests::what_is_required_is_not_skipped: no tool")]
    fn what_is_required_is_not_skipped() {
        skip_unless(false, "no tool");
        skip_unless(true, "no tool");
    }
}
