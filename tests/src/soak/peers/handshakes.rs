//! Peers that know the protocol and have no right key.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use unikprof_proto::message::{Handshake, HandshakeReply};
use unikprof_proto::preamble::{self, OPEN};
use unikprof_test_kit::frames::encoded;

use super::Visit;
use crate::soak::keyed;
use crate::soak::line::{End, Line, answer};
use crate::soak::random::Random;
use crate::soak::target::{Keys, TestKey};

/// A time longer than an agent keeps a stranger.
const STRANGER: Duration = Duration::from_secs(30);

/// Handshakes of rightful clients, as anybody on the way can keep them.
#[derive(Debug, Default)]
pub struct Overheard(Mutex<Vec<Handshake>>);

impl Overheard {
    /// Keeps one; the last few are enough.
    pub(crate) fn keep(&self, handshake: Handshake) {
        let mut kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        kept.truncate(15);
        kept.insert(0, handshake);
    }

    fn pick(&self, random: &mut Random) -> Option<Handshake> {
        let kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        (!kept.is_empty()).then(|| random.pick(&kept))
    }
}

pub(super) fn downgrade(visit: &Visit<'_>) -> Result<End, End> {
    let mut line = Line::connect(visit.target.address).map_err(|_| End::Unreachable)?;
    let _ = line.send(&preamble::encode(OPEN));
    line.read_preamble()?;
    Ok(line.read_to_end())
}

pub(super) fn left_hanging(visit: &Visit<'_>, random: &mut Random) -> Result<End, End> {
    let keys = keys(visit)?;
    let (mut line, _) = keyed::greet(visit.target)?;
    let _ = line.wait_for(STRANGER);
    let begun = keyed::begin(&keys.view, keys.view.id());
    let message = encoded(&begun.message);
    // A part of it, all of it, or nothing: the agent's reply is never answered.
    let sent = random.below(message.len() as u64 + 1) as usize;
    let _ = line.send(&message[..sent]);
    if random.below(2) == 0 {
        let _ = line.send(&message[sent..]);
    }
    Ok(line.read_to_end())
}

pub(super) fn wrong_key(visit: &Visit<'_>, random: &mut Random) -> Result<End, End> {
    let keys = keys(visit)?;
    let id = random.pick(&[keys.view, keys.control]).id();
    with_key(visit, &TestKey(random.key()), id)
}

pub(super) fn unknown_key(visit: &Visit<'_>, random: &mut Random) -> Result<End, End> {
    let key = TestKey(random.key());
    with_key(visit, &key, key.id())
}

pub(super) fn altered(visit: &Visit<'_>, random: &mut Random) -> Result<End, End> {
    let keys = keys(visit)?;
    let (mut line, _) = keyed::greet(visit.target)?;
    let mut begun = keyed::begin(&keys.view, keys.view.id());
    let message = &mut begun.message;
    let part: &mut [u8] = match random.below(3) {
        0 => &mut message.key,
        1 => &mut message.ephemeral,
        _ => &mut message.tag,
    };
    let bit = random.below(8 * part.len() as u64) as usize;
    part[bit / 8] ^= 1 << (bit % 8);
    let _ = line.send_message(&begun.message);
    Ok(line.read_to_end())
}

/// The agent cannot tell a replayed handshake; but nobody can go on after it.
pub(super) fn replayed(visit: &Visit<'_>, random: &mut Random) -> Result<End, End> {
    let message = match visit.overheard.pick(random) {
        Some(message) => message,
        None => {
            // Nobody was overheard yet: listen to a client first.
            let keys = keys(visit)?;
            let (mut line, theirs) = keyed::greet(visit.target)?;
            let begun = keyed::begin(&keys.control, keys.control.id());
            let message = begun.message;
            let _ = line.send_message(&message);
            keyed::finish(begun, line, &theirs)?;
            visit.overheard.keep(message);
            message
        }
    };
    let (mut line, _) = keyed::greet(visit.target)?;
    let _ = line.send_message(&message);
    answer::<HandshakeReply>(&line.read_frame()?)?;
    let length = 17 + random.below(200) as usize;
    let mut record = (length as u16).to_le_bytes().to_vec();
    record.extend(random.bytes(length));
    let _ = line.send(&record);
    match line.read_exact(1) {
        // Whatever is said to somebody without a key is too much.
        Ok(_) => Ok(End::Left),
        Err(end) => Ok(end),
    }
}

fn with_key(visit: &Visit<'_>, key: &TestKey, id: [u8; 8]) -> Result<End, End> {
    let (mut line, theirs) = keyed::greet(visit.target)?;
    let begun = keyed::begin(key, id);
    line.send_message(&begun.message)?;
    match keyed::finish(begun, line, &theirs) {
        Ok(_) => Ok(End::Left),
        Err(end) => Ok(end),
    }
}

fn keys<'v>(visit: &Visit<'v>) -> Result<&'v Keys, End> {
    visit.target.keys.as_ref().ok_or(End::Unreachable)
}
