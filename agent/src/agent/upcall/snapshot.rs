//! The snapshot of a vCPU for a client: taken by the vCPU's next upcall, or when it blocks.

use crate::agent::Agent;
use crate::count::recording::Lookup;
use crate::count::slot::{Asked, Slot};
use crate::ground::platform::{Platform, Registers};
use crate::stack::path::MAX_DEPTH;

/// The time until the next upcall if this one could not take the snapshot.
const RETRY_NS: u64 = 1_000_000;

impl<'m, P: Platform> Agent<'m, P> {
    /// Takes the requested snapshot. If the vCPU does the agent's own work, for example because it
    /// serves the client, or if the slot is busy, a [later upcall](Self::snapshot_deadline) takes
    /// it.
    #[cold]
    #[inline(never)]
    pub(super) fn take_snapshot(&self, slot: &'m Slot<'m>, registers: Option<&Registers>) {
        let cells = slot.cells;
        let Some(registers) = registers else {
            // Otherwise a guest whose upcalls all come without registers would be interrupted after
            // the client has gone.
            return cells.end_snapshot();
        };
        if cells.in_own_work() {
            return;
        }
        let Some(owned) = slot.take() else {
            return;
        };
        #[cfg(feature = "trace")]
        let registers = &self.original(registers);
        let mut path = owned.path_cells().begin();
        let asked = Asked { depth: MAX_DEPTH as u16, lookup: Lookup::Leaf };
        self.walk(registers, cells, asked, &mut path);
        let (now_ns, blocked_since_ns) = (self.platform.now_ns(), cells.blocked_since_ns());
        owned.snapshot().store(now_ns, blocked_since_ns, registers, &path);
        cells.end_snapshot();
    }

    /// The deadline while nothing is recorded: `None`, unless a client waits for a snapshot. A vCPU
    /// that blocks has none.
    #[cold]
    #[inline(never)]
    pub(super) fn snapshot_deadline(&self, slot: &Slot<'_>) -> Option<u64> {
        if !slot.cells.wants_snapshot() {
            return None;
        }
        let now_ns = self.platform.now_ns();
        self.idle_deadline(slot, now_ns.saturating_add(RETRY_NS), now_ns)
    }
}
