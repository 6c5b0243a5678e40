//! The samples of a function, a line or an instruction, and which share of all samples they are.

use serde::Serialize;

use super::functions::FunctionRow;
use crate::profile::{Interval, Unit};

/// Counts and shares.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(crate) struct Shares {
    pub(crate) own: u64,
    /// Those of stacks through it; each stack counts once.
    pub(crate) total: u64,
    pub(crate) own_share: Interval,
    pub(crate) total_share: Interval,
}

/// The same for programs.
#[derive(Serialize)]
pub(crate) struct JsonShares {
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
    pub(crate) fn of(row: &FunctionRow) -> Shares {
        Shares {
            own: row.own,
            total: row.total,
            own_share: row.own_share,
            total_share: row.total_share,
        }
    }

    pub(crate) fn json(&self, unit: Unit) -> JsonShares {
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
