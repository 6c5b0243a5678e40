//! The samples of a function, a line or an instruction, and which share of all samples they are.

use serde::Serialize;

use super::functions::FunctionRow;
use unikprof_profile::profile::{Interval, Unit};

/// Counts and shares.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Shares {
    /// Samples of its own.
    pub own: u64,
    /// Those of stacks through it; each stack counts once.
    pub total: u64,
    /// Of its own samples among all.
    pub own_share: Interval,
    /// Of the samples with it anywhere in the stack.
    pub total_share: Interval,
}

/// The same for programs.
#[derive(Serialize)]
pub struct JsonShares {
    #[serde(rename = "self")]
    own: u64,
    total: u64,
    self_share: f64,
    self_interval: Option<[f64; 2]>,
    total_share: f64,
    total_interval: Option<[f64; 2]>,
}

impl Shares {
    /// Of a table's row.
    pub fn of(row: &FunctionRow) -> Shares {
        Shares {
            own: row.own,
            total: row.total,
            own_share: row.own_share,
            total_share: row.total_share,
        }
    }

    /// As JSON has it.
    pub fn json(&self, unit: Unit) -> JsonShares {
        JsonShares {
            own: self.own,
            total: self.total,
            self_share: self.own_share.share,
            self_interval: self.own_share.ends(unit),
            total_share: self.total_share.share,
            total_interval: self.total_share.ends(unit),
        }
    }
}
