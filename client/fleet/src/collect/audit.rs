//! `collect --audit`: where every tick of every guest is.

use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};

use serde::Serialize;
use unikprof_profile::printable::Printable;
use unikprof_profile::units;

use super::books::{Amount, Lost, Outcomes, Parcel, Span, TargetBooks};
use super::rejected;
use super::spool::{self, Audited, SpoolError};

/// The books of a spool.
#[derive(Debug, Serialize)]
pub(crate) struct Audit {
    guests: Vec<GuestAudit>,
    rejected: Vec<RejectedAudit>,
}

/// What a target has rejected of all guests, for good or in part.
#[derive(Debug, Serialize)]
struct RejectedAudit {
    target: String,
    parcels: u64,
    folder: PathBuf,
    /// How many of them lie in the folder. The older ones are deleted.
    kept: usize,
}

#[derive(Debug, Serialize)]
struct GuestAudit {
    name: String,
    /// All that was fetched, by what the guest had made of it.
    ticks: u64,
    outcomes: Outcomes,
    /// The end of what was fetched last.
    last_unix_ns: u64,
    lost: Lost,
    targets: Vec<TargetAudit>,
}

/// `ticks` of the guest = `before` + `accepted` + `rejected` + `in_part` + `dropped` + `spooled` +
/// `missing`; of a target that is gone, those up to then.
#[derive(Debug, Serialize)]
struct TargetAudit {
    name: String,
    #[serde(flatten)]
    books: TargetBooks,
    spooled: Amount,
    /// What is nowhere: 0, or this program has a mistake or somebody has deleted files.
    missing: i128,
}

impl Audit {
    /// Reads a spool; a collector may be at work in it.
    pub(crate) fn read(spool: &Path) -> Result<Audit, SpoolError> {
        let guests = spool::audit(spool)?.into_iter().map(GuestAudit::new);
        let guests: Vec<GuestAudit> = guests.collect();
        let mut parcels = BTreeMap::new();
        for target in guests.iter().flat_map(|guest| &guest.targets) {
            let sum: &mut u64 = parcels.entry(target.name.clone()).or_default();
            *sum += target.books.rejected.parcels + target.books.in_part.parcels;
        }
        let rejected = parcels.into_iter().filter(|(_, parcels)| *parcels > 0);
        let rejected = rejected.map(|(target, parcels)| {
            let folder = rejected::folder(spool, &target);
            let kept = rejected::parcels(&folder).len();
            RejectedAudit { target, parcels, folder, kept }
        });
        Ok(Audit { rejected: rejected.collect(), guests })
    }

    /// As JSON, with a line's end.
    pub(crate) fn json(&self) -> String {
        // Numbers and text only: there is nothing that JSON cannot say.
        let text = serde_json::to_string_pretty(self).unwrap_or_default();
        text + "\n"
    }

    /// Whether every tick is somewhere.
    pub(crate) fn adds_up(&self) -> bool {
        let mut targets = self.guests.iter().flat_map(|guest| &guest.targets);
        targets.all(|target| target.missing == 0)
    }
}

impl GuestAudit {
    fn new(audited: Audited) -> GuestAudit {
        let Audited { saved, waiting } = audited;
        let mut books = saved.books;
        books.catch_up(&waiting);
        let ticks = books.outcomes.ticks();
        let target = |(name, it): (String, TargetBooks)| {
            let mut spooled = Amount::default();
            let waits = |parcel: &&Parcel| !it.is_gone && parcel.number >= it.next;
            waiting.iter().filter(waits).for_each(|parcel| spooled.add(parcel));
            let parts = [it.accepted, it.rejected, it.in_part, it.dropped, spooled];
            let found: i128 = parts.iter().map(|amount| i128::from(amount.ticks)).sum();
            let missing = match it.is_gone {
                true => 0,
                false => i128::from(ticks) - i128::from(it.before) - found,
            };
            TargetAudit { name, books: it, spooled, missing }
        };
        GuestAudit {
            name: saved.name,
            ticks,
            outcomes: books.outcomes,
            last_unix_ns: books.last_unix_ns,
            lost: books.lost,
            targets: books.targets.into_iter().map(target).collect(),
        }
    }
}

impl fmt::Display for Audit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for guest in &self.guests {
            let o = &guest.outcomes;
            write!(
                f,
                "{}: {} ticks: {} recorded, {} aged, {} overflow, {} lost, {} masked, {} idle",
                Printable(&guest.name),
                units::grouped(guest.ticks),
                units::grouped(o.recorded),
                units::grouped(o.aged),
                units::grouped(o.overflow),
                units::grouped(o.lost),
                units::grouped(o.masked),
                units::grouped(o.idle),
            )?;
            if guest.last_unix_ns == 0 {
                write!(f, "; nothing was fetched yet")?;
            } else if let Some(date) = units::date(guest.last_unix_ns) {
                write!(f, "; up to {date}")?;
            }
            writeln!(f)?;
            if guest.lost.times > 0 {
                writeln!(
                    f,
                    "  {} of its time were not fetched, in {} gaps",
                    units::duration(guest.lost.ns),
                    guest.lost.times
                )?;
                write_span(f, "the last one", guest.lost.latest.last())?;
            }
            for target in &guest.targets {
                let books = &target.books;
                write!(
                    f,
                    "  {}: {} accepted, {} in the spool, {} rejected, {} dropped",
                    Printable(&target.name),
                    units::grouped(books.accepted.ticks),
                    units::grouped(target.spooled.ticks),
                    units::grouped(books.rejected.ticks),
                    units::grouped(books.dropped.ticks),
                )?;
                if books.in_part.ticks > 0 {
                    let in_part = units::grouped(books.in_part.ticks);
                    write!(f, ", {in_part} of which it has some pieces")?;
                }
                if books.before > 0 {
                    write!(f, ", {} before it was named", units::grouped(books.before))?;
                }
                if target.missing != 0 {
                    write!(f, ", {} MISSING", units::grouped(target.missing))?;
                }
                if let Some(reason) = &books.reason {
                    write!(f, " (last: {})", Printable(reason))?;
                }
                writeln!(f)?;
                for (what, amount) in [
                    ("rejected", books.rejected),
                    ("in part", books.in_part),
                    ("dropped", books.dropped),
                ] {
                    write_span(f, what, amount.span.as_ref())?;
                }
            }
        }
        for RejectedAudit { target, parcels, folder, kept } in &self.rejected {
            writeln!(
                f,
                "{}: {kept} of {parcels} rejected profiles are kept in {}",
                Printable(target),
                folder.display()
            )?;
        }
        Ok(())
    }
}

/// Writes a line about a span of time, if there is one.
fn write_span(f: &mut fmt::Formatter<'_>, what: &str, span: Option<&Span>) -> fmt::Result {
    let dates = span.map(|span| [span.from_unix_ns, span.to_unix_ns].map(units::date));
    match dates {
        Some([Some(from), Some(to)]) => writeln!(f, "    {what}: from {from} to {to}"),
        _ => Ok(()),
    }
}
