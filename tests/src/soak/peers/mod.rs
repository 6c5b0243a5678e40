//! Hostile peers, one visit at a time.

mod admitted;
mod handshakes;
mod records;
mod strangers;

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use super::line::End;
use super::random::Random;
use super::target::Target;

pub use handshakes::Overheard;
pub use records::RecordDamage;

/// The behaviour of a peer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Peer {
    /// Sends bytes that are no preamble.
    ForeignBytes,
    DamagedPreamble,
    /// Connects and says nothing.
    Silent,
    SlowWriter,
    Flood,
    WrongChecksums,
    /// Sends frames of any type with any body; their checksums are right.
    RightChecksums,
    /// Asks for much and reads nothing of it.
    SlowReader,
    FetchesForEver,
    /// Begins a handshake where nobody asked for one.
    KeyForAnOpenAgent,
    /// Claims that there is no key, where there is.
    Downgrade,
    HandshakeLeftHanging,
    /// Names a right key and has another.
    WrongKey,
    /// Has a key that the agent never had.
    UnknownKey,
    /// Changes a bit of a right handshake.
    AlteredHandshake,
    ReplayedHandshake,
    /// Damages what a rightful client sends.
    DamagedRecord(RecordDamage),
    /// Has the view key and asks for what needs the other.
    ViewAsksForControl,
}

/// Peers of agents with and without keys.
const EVERYWHERE: [Peer; 9] = [
    Peer::ForeignBytes,
    Peer::DamagedPreamble,
    Peer::Silent,
    Peer::SlowWriter,
    Peer::Flood,
    Peer::WrongChecksums,
    Peer::RightChecksums,
    Peer::SlowReader,
    Peer::FetchesForEver,
];

const OPEN_ONLY: [Peer; 1] = [Peer::KeyForAnOpenAgent];

const KEYED_ONLY: [Peer; 11] = [
    Peer::Downgrade,
    Peer::HandshakeLeftHanging,
    Peer::WrongKey,
    Peer::UnknownKey,
    Peer::AlteredHandshake,
    Peer::ReplayedHandshake,
    Peer::DamagedRecord(RecordDamage::Altered),
    Peer::DamagedRecord(RecordDamage::Replayed),
    Peer::DamagedRecord(RecordDamage::Reordered),
    Peer::DamagedRecord(RecordDamage::Cut),
    Peer::ViewAsksForControl,
];

/// The context of a visit.
pub struct Visit<'v> {
    pub target: &'v Target,
    /// Messages that rightful clients have sent before, for peers that listened.
    pub overheard: &'v Overheard,
    /// Set when everybody is to leave.
    pub stop: &'v AtomicBool,
}

impl Visit<'_> {
    /// Waits; answers whether the visit goes on.
    fn wait(&self, wait: Duration) -> bool {
        const SLICE: Duration = Duration::from_millis(50);
        let mut left = wait;
        while !left.is_zero() && !self.stop.load(Ordering::Relaxed) {
            let slice = left.min(SLICE);
            thread::sleep(slice);
            left -= slice;
        }
        !self.stop.load(Ordering::Relaxed)
    }
}

/// Tells peers to leave when it is dropped, also where a case fails: they would be waited for.
pub struct Leave<'l>(pub &'l AtomicBool);

impl Drop for Leave<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Does `work` while peers visit the target on so many threads, one after the other on each: those
/// that `choose` picks. `judge` is told how each visit ended.
pub fn among<T>(
    target: &Target,
    threads: u64,
    choose: impl Fn(&mut Random) -> Peer + Sync,
    judge: impl Fn(Peer, &[End]) + Sync,
    work: impl FnOnce() -> T,
) -> T {
    let (stop, overheard) = (&AtomicBool::new(false), &Overheard::default());
    let (choose, judge) = (&choose, &judge);
    thread::scope(|scope| {
        let _leave = Leave(stop);
        for seed in 1..=threads {
            scope.spawn(move || {
                let mut random = Random::new(seed);
                let visit = Visit { target, overheard, stop };
                while !stop.load(Ordering::Relaxed) {
                    let peer = choose(&mut random);
                    judge(peer, &peer.visit(&visit, &mut random));
                }
            });
        }
        work()
    })
}

impl Peer {
    /// All peers that make sense for a target.
    pub fn all_for(target: &Target) -> Vec<Peer> {
        let own: &[Peer] = match target.keys {
            None => &OPEN_ONLY,
            Some(_) => &KEYED_ONLY,
        };
        EVERYWHERE.iter().chain(own).copied().collect()
    }

    pub(crate) fn name(self) -> &'static str {
        match self {
            Peer::ForeignBytes => "foreign bytes",
            Peer::DamagedPreamble => "damaged preamble",
            Peer::Silent => "says nothing",
            Peer::SlowWriter => "slow writer",
            Peer::Flood => "flood of connections",
            Peer::WrongChecksums => "fuzzed frames, wrong checksum",
            Peer::RightChecksums => "fuzzed frames, right checksum",
            Peer::SlowReader => "slow reader",
            Peer::FetchesForEver => "fetches for ever",
            Peer::KeyForAnOpenAgent => "key for an open agent",
            Peer::Downgrade => "downgrade",
            Peer::HandshakeLeftHanging => "handshake left hanging",
            Peer::WrongKey => "wrong key",
            Peer::UnknownKey => "unknown key",
            Peer::AlteredHandshake => "altered handshake",
            Peer::ReplayedHandshake => "replayed handshake",
            Peer::DamagedRecord(damage) => damage.name(),
            Peer::ViewAsksForControl => "view key asks for control",
        }
    }

    /// Visits once; answers how it ended for each connection.
    pub fn visit(self, visit: &Visit<'_>, random: &mut Random) -> Vec<End> {
        let end = match self {
            Peer::ForeignBytes => strangers::foreign_bytes(visit, random),
            Peer::DamagedPreamble => strangers::damaged_preamble(visit, random),
            Peer::Silent => strangers::silent(visit),
            Peer::SlowWriter => strangers::slow_writer(visit, random),
            Peer::Flood => return strangers::flood(visit, random),
            Peer::KeyForAnOpenAgent => strangers::key_for_an_open_agent(visit),
            Peer::Downgrade => handshakes::downgrade(visit),
            Peer::HandshakeLeftHanging => handshakes::left_hanging(visit, random),
            Peer::WrongKey => handshakes::wrong_key(visit, random),
            Peer::UnknownKey => handshakes::unknown_key(visit, random),
            Peer::AlteredHandshake => handshakes::altered(visit, random),
            Peer::ReplayedHandshake => handshakes::replayed(visit, random),
            Peer::DamagedRecord(damage) => records::damaged(damage, visit, random),
            Peer::WrongChecksums => admitted::wrong_checksums(visit, random),
            Peer::RightChecksums => admitted::right_checksums(visit, random),
            Peer::SlowReader => admitted::slow_reader(visit),
            Peer::FetchesForEver => admitted::fetches_for_ever(visit),
            Peer::ViewAsksForControl => admitted::view_asks_for_control(visit),
        };
        vec![end.unwrap_or_else(|end| end)]
    }

    /// Whether this peer was given what it must not get.
    pub fn got_in(self, end: End) -> bool {
        match self {
            // They have a key, or need none; what they ask for, they may.
            Peer::SlowReader | Peer::FetchesForEver | Peer::RightChecksums => false,
            // Told so, and the conversation went on: see the visit.
            Peer::ViewAsksForControl
            // A bit of what is reserved changes nothing.
            | Peer::DamagedPreamble
            // Those that leave before they are cut have not been let in.
            | Peer::Flood => end == End::Nonsense,
            _ => matches!(end, End::Left | End::Nonsense),
        }
    }
}
