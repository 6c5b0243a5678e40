//! Cases that need what a machine may lack.

use std::fmt::Display;
use std::io::Write;

/// With the value 1, a case that would be skipped fails instead.
pub(crate) const REQUIRED_VARIABLE: &str = "UNIKPROF_REQUIRE_ALL";

/// Says that a case is skipped, and why.
pub fn skip(case: &str, reason: impl Display) {
    let value = std::env::var_os(REQUIRED_VARIABLE);
    skip_unless(value.is_some_and(|value| value == "1"), case, reason);
}

fn skip_unless(required: bool, case: &str, reason: impl Display) {
    assert!(!required, "{REQUIRED_VARIABLE} is set; {case}: {reason}");
    // Not `eprintln!`: the harness hides what a passing test prints.
    let _ = writeln!(std::io::stderr(), "SKIPPED {case}: {reason}");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[should_panic(expected = "UNIKPROF_REQUIRE_ALL is set; a case: no tool")]
    fn what_is_required_is_not_skipped() {
        skip_unless(false, "a case", "no tool");
        skip_unless(true, "a case", "no tool");
    }
}
