//! Peers that were let in, and misuse it.

use std::time::{Duration, Instant};

use unikprof_proto::code::{message_type, refusal};
use unikprof_proto::message::{Acknowledge, Check, Dump, Ring, Start, Stop, TableBegin};
use unikprof_test_kit::frames::{encoded, framed};

use super::Visit;
use crate::soak::line::End;
use crate::soak::random::Random;
use crate::soak::rightful::{HELLO, check, fetch};
use crate::soak::speaker::{Role, Speaker};

pub(super) fn wrong_checksums(visit: &Visit<'_>, random: &mut Random) -> Result<End, End> {
    let mut speaker = Speaker::open(visit.target, Role::View)?;
    for _ in 0..random.below(4) {
        if speaker.send_message(&Check {}).is_err() {
            break;
        }
    }
    let kind = random.below(16) as u16;
    let length = random.below(1_000) as usize;
    let mut frame = framed(kind, &random.bytes(length));
    let bit = random.below(8 * frame.len() as u64) as usize;
    frame[bit / 8] ^= 1 << (bit % 8);
    let _ = speaker.send(&frame);
    // The length may have become a longer one: enough for it to be there.
    let _ = speaker.send(&random.bytes(17_000));
    Ok(speaker.read_to_end())
}

/// Requests that end or take a recording: who is open to everybody is not asked these.
const GRAVE: [u16; 7] = [
    message_type::START,
    message_type::STOP,
    message_type::DUMP,
    message_type::ACKNOWLEDGE,
    message_type::TABLE_BEGIN,
    message_type::TABLE_ROWS,
    message_type::TABLE_END,
];

pub(super) fn right_checksums(visit: &Visit<'_>, random: &mut Random) -> Result<End, End> {
    let mut speaker = Speaker::open(visit.target, Role::View)?;
    let _ = speaker.line().wait_for(Duration::from_secs(2));
    for _ in 0..1 + random.below(20) {
        let kind = match random.below(4) {
            0 => random.number() as u16,
            _ => random.below(16) as u16,
        };
        if visit.target.keys.is_none() && GRAVE.contains(&kind) {
            continue;
        }
        let bound = random.pick(&[1, 12, 100, 1_000, 1_025, 2_000, 16_384]);
        let length = random.below(bound) as usize;
        let body = random.bytes(length);
        if speaker.send(&framed(kind, &body)).is_err() {
            break;
        }
    }
    let _ = speaker.line().half_close();
    Ok(match speaker.read_to_end() {
        End::Silent => End::Left,
        end => end,
    })
}

/// The most times that a slow reader asks: for a thousand times what any system keeps for it.
const SLOW_READERS_MOST: u32 = 100_000;

/// Asks again and again who the agent is, and leaves the answers where they are: once all buffers
/// are full the agent does not listen either, and in the end it cuts the connection.
pub(super) fn slow_reader(visit: &Visit<'_>) -> Result<End, End> {
    let mut speaker = Speaker::open(visit.target, Role::View)?;
    let _ = speaker.line().keep_little(65_536);
    // The system's buffers between us are full after some MB of answers, however long a busy agent
    // takes to make them, and then the agent waits for 10 s.
    let _ = speaker.line().insist_for(Duration::from_secs(60));
    let hellos = encoded(&HELLO).repeat(32);
    for _ in 0..SLOW_READERS_MOST {
        if !visit.wait(Duration::ZERO) {
            break;
        }
        speaker.send(&hellos)?;
    }
    Ok(End::Left)
}

pub(super) fn fetches_for_ever(visit: &Visit<'_>) -> Result<End, End> {
    let mut speaker = Speaker::open(visit.target, Role::View)?;
    let began = Instant::now();
    let mut last = End::Left;
    while began.elapsed() < Duration::from_secs(4) && visit.wait(Duration::ZERO) {
        let checked = check(&mut speaker)?;
        // What happened when is always there.
        let ring = Ring { vcpu: 0, position: 0, since_ns: 0 };
        speaker.ask_until(&ring, message_type::RING_END)?;
        let waiting = checked.recordings.iter().find(|one| one.epochs > 0);
        let Some(waiting) = waiting else {
            continue;
        };
        match speaker.ask_until(&fetch(waiting.first_epoch), message_type::VCPU_END) {
            // Its owner has it, and so it is gone.
            Err(End::Refused(code)) => last = End::Refused(code),
            fetched => fetched?,
        }
    }
    Ok(last)
}

/// Each request that the view key does not allow; then one that it does.
pub(super) fn view_asks_for_control(visit: &Visit<'_>) -> Result<End, End> {
    let mut speaker = Speaker::open(visit.target, Role::View)?;
    let start = Start {
        interval_bytes: 0,
        name: "mine",
        period_ns: 1_000_000,
        mode: 0,
        depth: 64,
        duration_ns: 0,
        delay_ns: 0,
        flags: 1,
        caller_table: None,
        max_age_ns: 0,
        max_bytes: 0,
    };
    let requests = [
        encoded(&start),
        encoded(&Stop { recording: 0 }),
        encoded(&Dump { recording: 0 }),
        encoded(&Acknowledge { epoch: 1 }),
        encoded(&TableBegin { first: 16, end: 32, rows: 10, checksum: 1 }),
    ];
    for request in requests {
        speaker.send(&request)?;
        match speaker.read_frame()?.refusal() {
            Some(refusal::NOT_ALLOWED) => {}
            Some(other) => return Ok(End::Refused(other)),
            None => return Ok(End::Nonsense),
        }
    }
    match check(&mut speaker) {
        Ok(_) => Ok(End::Refused(refusal::NOT_ALLOWED)),
        Err(_) => Ok(End::Nonsense),
    }
}
