//! The phases of a soak.

use std::sync::atomic::{AtomicU8, Ordering};

/// A part of the soak's cycle.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Phase {
    Quiet,
    /// Hostile peers visit another guest of the same machine, with an agent of its own: what that
    /// costs this guest is the machine's doing.
    Elsewhere,
    Attack,
}

/// The phases in the order of a cycle.
pub(crate) const PHASES: [Phase; 3] = [Phase::Quiet, Phase::Elsewhere, Phase::Attack];

/// The current phase, for all threads.
#[derive(Debug, Default)]
pub(crate) struct Phases(AtomicU8);

impl Phase {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Phase::Quiet => "no attack",
            Phase::Elsewhere => "attack on another guest",
            Phase::Attack => "attack",
        }
    }
}

impl Phases {
    pub(crate) fn current(&self) -> Phase {
        PHASES[usize::from(self.0.load(Ordering::Relaxed)) % PHASES.len()]
    }

    pub(crate) fn set(&self, phase: Phase) {
        let index = PHASES.iter().position(|of| *of == phase);
        self.0.store(index.unwrap_or(0) as u8, Ordering::Relaxed);
    }
}
