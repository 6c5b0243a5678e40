//! Peers that know nothing of the protocol, or no more than its first bytes.

use std::time::Duration;

use unikprof_proto::preamble::{self, KEYED, OPEN};

use super::Visit;
use crate::soak::line::{End, Line};
use crate::soak::random::Random;

/// A time longer than an agent keeps a stranger.
const STRANGER: Duration = Duration::from_secs(30);

pub(super) fn foreign_bytes(visit: &Visit<'_>, random: &mut Random) -> Result<End, End> {
    let mut line = connect(visit)?;
    let length = 1 + random.below(3_000) as usize;
    let mut bytes = random.bytes(length);
    // Half of a right magic is foreign too.
    let kept = random.below(8) as usize;
    let kept = kept.min(length);
    bytes[..kept].copy_from_slice(&preamble::MAGIC[..kept]);
    // The agent may close in the middle.
    let _ = line.send(&bytes);
    Ok(ended(&mut line))
}

pub(super) fn damaged_preamble(visit: &Visit<'_>, random: &mut Random) -> Result<End, End> {
    let mut line = connect(visit)?;
    let mut bytes = preamble::encode(own_preamble(visit));
    let bit = random.below(8 * bytes.len() as u64) as usize;
    bytes[bit / 8] ^= 1 << (bit % 8);
    let _ = line.send(&bytes);
    let length = random.below(200) as usize;
    let _ = line.send(&random.bytes(length));
    let _ = line.half_close();
    Ok(ended(&mut line))
}

pub(super) fn silent(visit: &Visit<'_>) -> Result<End, End> {
    let mut line = connect(visit)?;
    Ok(ended(&mut line))
}

pub(super) fn slow_writer(visit: &Visit<'_>, random: &mut Random) -> Result<End, End> {
    let mut line = connect(visit)?;
    let _ = line.wait_for(Duration::from_millis(1));
    let mut bytes = preamble::encode(own_preamble(visit)).to_vec();
    bytes.extend(random.bytes(64));
    for byte in bytes {
        if line.send(&[byte]).is_err() || !visit.wait(Duration::from_millis(150)) {
            break;
        }
    }
    let _ = line.wait_for(STRANGER);
    Ok(ended(&mut line))
}

pub(super) const FLOOD: usize = 48;

pub(super) fn flood(visit: &Visit<'_>, random: &mut Random) -> Vec<End> {
    let mut lines: Vec<Line> = (0..FLOOD).filter_map(|_| connect(visit).ok()).collect();
    let unreachable = FLOOD - lines.len();
    for line in &mut lines {
        match random.below(3) {
            0 => {}
            1 => drop(line.send(&preamble::encode(own_preamble(visit)))),
            _ => drop(line.send(&random.bytes(16))),
        }
    }
    let mut ends = vec![End::Unreachable; unreachable];
    visit.wait(Duration::from_millis(random.below(1_000)));
    for mut line in lines {
        let _ = line.wait_for(Duration::from_millis(1));
        let end = match ended(&mut line) {
            // It would have gone on.
            End::Silent => End::Left,
            end => end,
        };
        if random.below(2) == 0 {
            line.reset();
        }
        ends.push(end);
    }
    ends
}

pub(super) fn key_for_an_open_agent(visit: &Visit<'_>) -> Result<End, End> {
    let mut line = connect(visit)?;
    let _ = line.send(&preamble::encode(KEYED));
    Ok(ended(&mut line))
}

fn own_preamble(visit: &Visit<'_>) -> preamble::Preamble {
    match visit.target.keys {
        None => OPEN,
        Some(_) => KEYED,
    }
}

fn connect(visit: &Visit<'_>) -> Result<Line, End> {
    let line = Line::connect(visit.target.address).map_err(|_| End::Unreachable)?;
    line.wait_for(STRANGER)?;
    Ok(line)
}

/// Reads the agent's preamble and whatever follows.
fn ended(line: &mut Line) -> End {
    match line.read_preamble() {
        Ok(_) => line.read_to_end(),
        Err(end) => end,
    }
}
