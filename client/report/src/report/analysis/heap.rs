//! Live allocations that are not followed to their end: a full table, and frees that are not
//! reported.

use super::super::heap::{MANY, judged_against};
use super::{FEW, Finding, Found, Rule, Subject, score};
use unikprof_profile::profile::Mode;
use unikprof_profile::units::{grouped, size};

pub(super) const RULES: [(&str, Rule); 2] = [(FULL_RULE, full), (FREES_RULE, frees)];

pub(super) const FULL_RULE: &str = "live table full";
pub(super) const FREES_RULE: &str = "frees not reported";

/// Parts that were dropped of the samples that may be held.
const NOTABLE: f64 = 0.01;
const SEVERE: f64 = 0.1;

const NOT_LIVE: &str =
    "mode alloc does not follow what becomes of allocations; record with --mode live";

/// Sampled allocations that no place was left for.
fn full(subject: &Subject<'_>) -> Found {
    is_live(subject)?;
    let c = &subject.counters;
    let of = judged_against(c.overflow, subject.profile);
    let part = c.overflow as f64 / of.max(1) as f64;
    if part < NOTABLE {
        return Ok(Vec::new());
    }
    let finding = format!(
        "{} sampled allocations are not followed, beside {} that are held",
        grouped(c.overflow),
        grouped(of - c.overflow)
    );
    Ok(vec![
        Finding::new(
            FULL_RULE,
            score(part, NOTABLE, SEVERE),
            finding,
            format!(
                "give the agent more memory for live samples, or sample less often (--every above \
                 {})",
                size(subject.info().interval_bytes)
            ),
        )
        .because(
            "more may be held than the report shows, and the newest is missing: also new \
                  leaks",
        )
        .count("overflow", c.overflow)
        .count("held", of - c.overflow),
    ])
}

/// A guest whose allocator reports allocations alone.
fn frees(subject: &Subject<'_>) -> Found {
    is_live(subject)?;
    let c = &subject.counters;
    if c.recorded < MANY {
        return Err(FEW);
    }
    let vcpus = subject.profile.vcpus().iter();
    let freed: u64 = vcpus.fold(0, |sum, vcpu| sum.saturating_add(vcpu.freed_samples));
    if freed != 0 {
        return Ok(Vec::new());
    }
    Ok(vec![
        Finding::new(
            FREES_RULE,
            75,
            format!(
                "none of {} sampled allocations was freed: frees seem not to be reported",
                grouped(c.recorded)
            ),
            "call on_free (in C unikprof_on_free) wherever the allocator frees; realloc counts as \
             a free too",
        )
        .because("so everything that is allocated seems to be held")
        .count("samples", c.recorded),
    ])
}

fn is_live(subject: &Subject<'_>) -> Result<(), &'static str> {
    match subject.info().mode {
        Mode::Live => Ok(()),
        _ => Err(NOT_LIVE),
    }
}
