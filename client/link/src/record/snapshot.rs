//! Snapshots of vCPUs: the registers and the stack of each at one moment.

use std::ops::Range;
use std::time::{Duration, Instant};

use thiserror::Error;
use unikprof_proto::message::{Snapshot as VcpuNow, TakeSnapshot, VcpuSnapshot as Answer};

use super::session::{Attempt, Session};
use super::{Observer, RecordError};
use crate::connection::ConnectionError;
use crate::deadline;
use unikprof_profile::agent_info::{CodeMap, UnknownCode};
use unikprof_profile::profile::{Frame, TooManyStacks};

/// The time between two requests for a snapshot that is not taken yet.
const BETWEEN: Duration = Duration::from_millis(2);

/// A vCPU's answer to the request for a snapshot.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VcpuSnapshot {
    /// The vCPU.
    pub vcpu: u32,
    /// The snapshot; `None` if the vCPU did not take one in time.
    pub taken: Option<Snapshot>,
    /// How long the vCPU ran from the request to the last answer, in ns.
    pub ran_ns: u64,
}

/// The state of a vCPU at one moment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Snapshot {
    /// The moment, in ns of the guest's monotonic clock.
    pub at_ns: u64,
    /// How old the snapshot was when the agent sent it, in ns.
    pub age_ns: u64,
    /// How long the vCPU had been blocked, in ns; `None` if it was running.
    pub blocked_ns: Option<u64>,
    /// The program counter, the stack pointer, the frame pointer and the link register, which is 0
    /// on architectures without one.
    pub registers: [u64; 4],
    /// The stack, innermost frame first.
    pub frames: Vec<Frame>,
}

/// Why an answer is not a snapshot.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum SnapshotError {
    /// The answer is about another vCPU.
    #[error("asked about vCPU {expected}, the answer is about vCPU {found}")]
    OtherVcpu {
        /// The vCPU asked about.
        expected: u32,
        /// The vCPU of the answer.
        found: u32,
    },
    /// It is truncated.
    #[error("expected two times, four registers and frame codes of 8 bytes each, found {0} bytes")]
    Length(usize),
    /// A frame code has more than 32 bits.
    #[error("the frame code {0:#x} has more than 32 bits")]
    Wide(u64),
    /// A frame code is invalid.
    #[error(transparent)]
    Code(#[from] UnknownCode),
    /// The guest claims more vCPUs than stacks can be numbered.
    #[error(transparent)]
    TooManyStacks(#[from] TooManyStacks),
}

impl Session {
    /// Takes a snapshot of each vCPU, all at about the same time: interrupts them, and waits until
    /// all have answered, but not longer than `wait`. No recording is needed, and none is changed.
    ///
    /// # Errors
    /// [`RecordError`].
    pub fn snapshots(
        &mut self,
        vcpus: Range<u32>,
        wait: Duration,
        observer: &mut dyn Observer,
    ) -> Result<Vec<VcpuSnapshot>, RecordError> {
        let end = deadline::after(wait);
        let mut all = Vec::new();
        for vcpu in vcpus {
            let first = self.take_snapshot(vcpu, u64::MAX, observer)?;
            let snapshot = VcpuSnapshot { vcpu, taken: None, ran_ns: 0 };
            all.push((first, snapshot));
        }
        loop {
            for (first, snapshot) in &mut all {
                if snapshot.taken.is_none() {
                    let reply = self.take_snapshot(snapshot.vcpu, first.now_ns, observer)?;
                    snapshot.ran_ns = reply.running_ns.saturating_sub(first.running_ns);
                    snapshot.taken = reply.taken;
                }
            }
            let is_complete = all.iter().all(|(_, snapshot)| snapshot.taken.is_some());
            if is_complete || Instant::now() >= end {
                return Ok(all.into_iter().map(|(_, snapshot)| snapshot).collect());
            }
            if self.sleep(BETWEEN) {
                return Err(ConnectionError::Interrupted.into());
            }
        }
    }

    /// Requests a snapshot that was taken at `since_ns` or later.
    fn take_snapshot(
        &mut self,
        vcpu: u32,
        since_ns: u64,
        observer: &mut dyn Observer,
    ) -> Result<Reply, RecordError> {
        let (now, state) = self.ask_for_snapshot(vcpu, since_ns, observer)?;
        let snapshot = Snapshot::decode(&state, now.at_ns, &self.agent().mappings)?;
        Ok(Reply {
            now_ns: now.at_ns,
            running_ns: now.running_ns,
            taken: snapshot.filter(|snapshot| snapshot.at_ns >= since_ns),
        })
    }

    /// How each vCPU has spent its time since a moment that the platform chose. No vCPU is
    /// interrupted, and no recording is needed. A platform that does not tell the states apart
    /// tells running time alone.
    pub fn times(
        &mut self,
        observer: &mut dyn Observer,
    ) -> Result<Vec<unikprof_profile::profile::Runstate>, RecordError> {
        let vcpus = self.agent().vcpus;
        let time = |vcpu| {
            // Any earlier snapshot will do, so that none is taken.
            let (now, _) = self.ask_for_snapshot(vcpu, 0, observer)?;
            Ok(unikprof_profile::profile::Runstate::told(now.running_ns, now.runstate))
        };
        (0..vcpus).map(time).collect()
    }

    /// A vCPU's clocks now, and its last snapshot, still encoded.
    fn ask_for_snapshot(
        &mut self,
        vcpu: u32,
        since_ns: u64,
        observer: &mut dyn Observer,
    ) -> Result<(VcpuNow, Vec<u8>), RecordError> {
        let request = TakeSnapshot { vcpu, since_ns };
        self.persist(observer, |connection, _| {
            let answer: Answer<'_> =
                connection.ask(&request, "a vCPU's snapshot", "taking a snapshot")?;
            if answer.vcpu != vcpu {
                let error = SnapshotError::OtherVcpu { expected: vcpu, found: answer.vcpu };
                return Err(Attempt::Failed(error.into()));
            }
            Ok((answer.now, answer.state.to_vec()))
        })
    }
}

/// An answer of the agent.
struct Reply {
    now_ns: u64,
    running_ns: u64,
    /// The snapshot if it is new enough.
    taken: Option<Snapshot>,
}

impl Snapshot {
    /// Decodes the state in an answer; `None` if it is empty.
    fn decode(
        state: &[u8],
        now_ns: u64,
        mappings: &CodeMap,
    ) -> Result<Option<Snapshot>, SnapshotError> {
        if state.is_empty() {
            return Ok(None);
        }
        let (values, rest) = state.as_chunks();
        let values: Vec<u64> = values.iter().map(|it| u64::from_le_bytes(*it)).collect();
        let ([at_ns, blocked_since_ns, pc, sp, fp, lr, codes @ ..], []) = (&values[..], rest)
        else {
            return Err(SnapshotError::Length(state.len()));
        };
        let mut frames = Vec::with_capacity(codes.len());
        for &code in codes {
            let code = u32::try_from(code).map_err(|_| SnapshotError::Wide(code))?;
            frames.push(mappings.frame(code, frames.is_empty())?);
        }
        Ok(Some(Snapshot {
            at_ns: *at_ns,
            age_ns: now_ns.saturating_sub(*at_ns),
            blocked_ns: (*blocked_since_ns != 0).then(|| at_ns.saturating_sub(*blocked_since_ns)),
            registers: [*pc, *sp, *fp, *lr],
            frames,
        }))
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use unikprof_profile::profile::SpecialFrame;

    fn decode(values: &[u64]) -> Result<Option<Snapshot>, SnapshotError> {
        let state: Vec<u8> = values.iter().flat_map(|it| it.to_le_bytes()).collect();
        Snapshot::decode(&state, 100, &CodeMap::default())
    }

    #[test]
    fn a_snapshot_has_an_age_registers_and_a_stack() {
        let broken = unikprof_proto::code::frame_code::BROKEN.into();
        let snapshot = decode(&[90, 20, 1, 2, 3, 4, broken]).unwrap().unwrap();
        assert_eq!(
            snapshot,
            Snapshot {
                at_ns: 90,
                age_ns: 10,
                blocked_ns: Some(70),
                registers: [1, 2, 3, 4],
                frames: vec![Frame::Special(SpecialFrame::Broken)],
            }
        );
        let running = decode(&[90, 0, 1, 2, 3, 4]).unwrap().unwrap();
        assert_eq!((running.blocked_ns, running.frames), (None, vec![]));
        assert_eq!(decode(&[]), Ok(None));
    }

    #[test]
    fn malformed_states_are_rejected() {
        for length in (1..48).chain(49..56) {
            let state = vec![1; length];
            let decoded = Snapshot::decode(&state, 100, &CodeMap::default());
            assert_eq!(decoded, Err(SnapshotError::Length(length)));
        }
        let wide = decode(&[90, 0, 1, 2, 3, 4, 1 << 32]);
        assert_eq!(wide, Err(SnapshotError::Wide(1 << 32)));
        let unknown = decode(&[90, 0, 1, 2, 3, 4, 99]);
        assert_eq!(unknown, Err(SnapshotError::Code(UnknownCode(99))));
        // A time in the future has no age.
        assert_eq!(decode(&[101, 0, 1, 2, 3, 4]).unwrap().unwrap().age_ns, 0);
    }
}
