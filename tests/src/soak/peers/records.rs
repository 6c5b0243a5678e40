//! Attacks on the records of a rightful client by somebody on the way.

use unikprof_proto::message::{Check, Welcome};
use unikprof_proto::secure::RECORD_HEADER;
use unikprof_test_kit::frames::encoded;

use super::Visit;
use crate::soak::keyed;
use crate::soak::line::{End, answer};
use crate::soak::random::Random;
use crate::soak::rightful::HELLO;

/// A kind of damage.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RecordDamage {
    Altered,
    Replayed,
    Reordered,
    /// The end of a record is missing, and another follows.
    Cut,
}

impl RecordDamage {
    pub(crate) fn name(self) -> &'static str {
        match self {
            RecordDamage::Altered => "altered record",
            RecordDamage::Replayed => "replayed record",
            RecordDamage::Reordered => "reordered records",
            RecordDamage::Cut => "cut record",
        }
    }
}

/// One record that is right, so that the conversation is a client's; then those that are not.
pub(super) fn damaged(
    damage: RecordDamage,
    visit: &Visit<'_>,
    random: &mut Random,
) -> Result<End, End> {
    let keys = visit.target.keys.as_ref().ok_or(End::Unreachable)?;
    let mut line = keyed::open(visit.target, &keys.view)?;
    let first = line.seal(&encoded(&HELLO));
    line.send_raw(&first)?;
    let welcome = line.read_frame()?;
    for _ in 0..answer::<Welcome<'_>>(&welcome)?.mappings {
        line.read_frame()?;
    }
    let check = encoded(&Check {});
    let mut one = line.seal(&check);
    let other = line.seal(&check);
    let bytes = match damage {
        RecordDamage::Altered => {
            let bit = random.below(8 * one.len() as u64) as usize;
            one[bit / 8] ^= 1 << (bit % 8);
            // A changed length may ask for more than one record has.
            [one, other, random.bytes(4096)].concat()
        }
        RecordDamage::Replayed => [&first[..], &one].concat(),
        RecordDamage::Reordered => [other, one].concat(),
        RecordDamage::Cut => {
            // So much is missing that what follows cannot happen to be the same.
            let missing = 8 + random.below(one.len() as u64 - 8 - RECORD_HEADER as u64) as usize;
            let left = one.len() - missing;
            [&one[..left], &other, &random.bytes(4096)].concat()
        }
    };
    // The agent may cut the connection in the middle of it.
    let _ = line.send_raw(&bytes);
    match line.read_frame() {
        Ok(_) => Ok(End::Left),
        Err(end) => Ok(end),
    }
}
