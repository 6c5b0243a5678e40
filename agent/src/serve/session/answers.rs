//! What a session answers: who the agent is, what the recorder does, and epochs, frame by frame.

use unikprof_proto::code::{histogram, message_type, role};
use unikprof_proto::frame::HEADER;
use unikprof_proto::message::{
    Epoch, EpochEnd, Histogram, Nodes, RecordingStatus, Status, VcpuEpoch,
};

use super::{Context, OUTPUT, Series, Session};
use crate::agent::Agent;
use crate::count::cells::HistogramCells;
use crate::count::table::Column;
use crate::ground::platform::Platform;
use crate::record::recorder::{Recording, Waiting};
use crate::ring::Rings;

/// What a [`Nodes`] frame needs beside its payload.
const NODES_OVERHEAD: usize = HEADER + 40;

impl Session {
    pub(super) fn welcome<P: Platform>(&mut self, context: &Context<'_, '_, P>) {
        let agent = context.agent;
        let mut vcpus = 0..agent.config().vcpus;
        let runstate = vcpus.any(|vcpu| agent.platform().runstate(vcpu).is_some());
        self.series = Series::Mapping(0);
        self.send(&agent.welcome(self.role.unwrap_or(role::OPEN), runstate));
    }

    pub(super) fn status<P: Platform>(&mut self, context: &Context<'_, '_, P>) {
        let Context {
            agent,
            recorder,
            now_ns,
            sessions,
            peers,
            server,
            ..
        } = context;
        let nodes_used = agent
            .slots()
            .map(|(_, slot)| u64::from(slot.table.used()))
            .sum();
        let lanes = recorder
            .recordings()
            .fold(0, |lanes, one| lanes | 1 << one.lane());
        self.recordings_after(lanes);
        self.send(&Status {
            recordings: lanes.count_ones(),
            max_recordings: agent.config().recordings,
            now_ns: *now_ns,
            nodes_used,
            nodes_capacity: agent.nodes_per_vcpu() as u64 * u64::from(agent.config().vcpus),
            ring_capacity: agent.rings().map_or(0, Rings::capacity),
            sessions: *sessions,
            peers: **peers,
            server_ns: server.total_ns,
            server_longest_ns: server.longest_ns,
        });
    }

    fn recordings_after(&mut self, lanes: u32) {
        self.series = match lanes {
            0 => Series::None,
            _ => Series::Recordings(lanes),
        };
    }

    /// Tells of the recording in the first of the lanes, also where it is gone since the status.
    fn recording<P: Platform>(&mut self, lanes: u32, context: &Context<'_, '_, P>) {
        self.recordings_after(lanes & lanes.wrapping_sub(1));
        let Some(one) = context.recorder.recording(lanes.trailing_zeros() as usize) else {
            return;
        };
        let Waiting {
            first_epoch,
            epochs,
            ..
        } = one.waiting(true);
        let settings = *one.settings();
        self.send(&RecordingStatus {
            recording: one.id(),
            lane: one.lane() as u32,
            name: settings.name.as_str(),
            state: one.state(),
            mode: settings.mode,
            period_ns: settings.period_ns,
            depth: settings.depth,
            flags: settings.flags,
            started_ns: settings.started_ns,
            duration_ns: settings.duration_ns,
            max_age_ns: settings.max_age_ns,
            max_bytes: settings.max_bytes,
            counters: one.counters(context.agent),
            first_epoch,
            epochs,
        });
    }

    pub(super) fn continue_series<P: Platform>(&mut self, context: &Context<'_, '_, P>) {
        match self.series {
            Series::None => {}
            Series::Mapping(index) => self.mapping(index, context.agent),
            Series::Recordings(lanes) => self.recording(lanes, context),
            Series::Head(epoch, ..)
            | Series::Vcpu(epoch, ..)
            | Series::Histogram(epoch, ..)
            | Series::Nodes(epoch, ..) => match context.recorder.holding(epoch) {
                Some(recording) => self.continue_epoch(recording, context),
                None => {
                    // Somebody else acknowledged it in the middle of this download.
                    self.series = Series::None;
                    self.refuse_with(message_type::FETCH, &context.recorder.no_epoch(epoch));
                }
            },
        }
    }

    fn continue_epoch<P: Platform>(&mut self, recording: &Recording, context: &Context<'_, '_, P>) {
        let (lane, agent) = (recording.lane(), context.agent);
        match self.series {
            Series::Head(epoch, vcpu, node) => {
                self.series = Series::Vcpu(epoch, vcpu, node);
                self.head(epoch, recording, context);
            }
            Series::Vcpu(epoch, vcpu, node) => self.vcpu(epoch, vcpu, node, lane, agent),
            Series::Histogram(epoch, vcpu, kind) => self.histogram(epoch, vcpu, kind, lane, agent),
            Series::Nodes(epoch, vcpu, first) => self.nodes(epoch, vcpu, first, lane, agent),
            Series::None | Series::Mapping(_) | Series::Recordings(_) => {}
        }
    }

    fn mapping<P: Platform>(&mut self, index: usize, agent: &Agent<'_, P>) {
        let mappings = agent.config().mappings;
        self.series = if index + 1 < mappings.len() {
            Series::Mapping(index + 1)
        } else {
            Series::None
        };
        if let Some(mapping) = agent.mapping(index) {
            self.send(&mapping);
        }
    }

    fn head<P: Platform>(
        &mut self,
        epoch: u64,
        recording: &Recording,
        context: &Context<'_, '_, P>,
    ) {
        let settings = *recording.settings();
        let (start, end) = (recording.mark(epoch), recording.mark(epoch + 1));
        self.send(&Epoch {
            epoch,
            started_ns: start.at_ns,
            ended_ns: end.at_ns,
            ended_wall_clock_ns: end.wall_clock_ns,
            gaps: end.gaps,
            server_ns: end.server_ns.saturating_sub(start.server_ns),
            vcpus: context.agent.config().vcpus,
            ..settings.head(recording.id(), recording.lane())
        });
    }

    fn vcpu<P: Platform>(
        &mut self,
        epoch: u64,
        vcpu: u32,
        node: u32,
        lane: usize,
        agent: &Agent<'_, P>,
    ) {
        let Some(cells) = agent.slot(vcpu).and_then(|slot| slot.lane(lane)) else {
            return self.end(epoch, lane, agent);
        };
        self.series = Series::Nodes(epoch, vcpu, node);
        if node == 1 {
            self.series = Series::Histogram(epoch, vcpu, histogram::SAMPLE_CYCLES);
        }
        self.send(&VcpuEpoch {
            epoch,
            vcpu,
            start: cells.boundary(epoch),
            end: cells.boundary(epoch + 1),
            nodes: cells.boundary_nodes(epoch + 1),
        });
    }

    fn histogram<P: Platform>(
        &mut self,
        epoch: u64,
        vcpu: u32,
        kind: u32,
        lane: usize,
        agent: &Agent<'_, P>,
    ) {
        let Some(cells) = agent.slot(vcpu).and_then(|slot| slot.lane(lane)) else {
            return self.end(epoch, lane, agent);
        };
        let (histogram, next) = if kind == histogram::SAMPLE_CYCLES {
            let next = Series::Histogram(epoch, vcpu, histogram::LATENESS_NS);
            (&cells.sample_cycles, next)
        } else {
            (&cells.lateness_ns, Series::Nodes(epoch, vcpu, 1))
        };
        self.series = next;
        let mut buckets = [0; HistogramCells::ENCODED];
        let length = histogram.encode(&mut buckets);
        self.send(&Histogram {
            epoch,
            vcpu,
            kind,
            max: histogram.max(),
            buckets: &buckets[..length],
        });
    }

    fn nodes<P: Platform>(
        &mut self,
        epoch: u64,
        vcpu: u32,
        first: u32,
        lane: usize,
        agent: &Agent<'_, P>,
    ) {
        let cells = agent.slot(vcpu).and_then(|slot| slot.lane(lane));
        let last = cells.map_or(0, |cells| cells.boundary_nodes(epoch + 1));
        let Some(slot) = agent.slot(vcpu).filter(|_| first <= last) else {
            return self.vcpu(epoch, vcpu.saturating_add(1), 1, lane, agent);
        };
        let mut payload = [0; OUTPUT - NODES_OVERHEAD];
        let (count, length) =
            slot.table
                .encode(Some(Column::of(lane, epoch)), first, last, &mut payload);
        self.series = Series::Nodes(epoch, vcpu, first.saturating_add(count));
        self.send(&Nodes {
            epoch,
            vcpu,
            first,
            count,
            payload: &payload[..length],
        });
    }

    fn end<P: Platform>(&mut self, epoch: u64, lane: usize, agent: &Agent<'_, P>) {
        self.series = Series::None;
        let lanes = agent.slots().filter_map(|(_, slot)| slot.lane(lane));
        let samples = lanes.fold(0, |sum: u64, cells| {
            let counted = |epoch| {
                let counters = cells.boundary(epoch).counters;
                counters.recorded.wrapping_add(counters.blocked)
            };
            sum.wrapping_add(counted(epoch + 1))
                .wrapping_sub(counted(epoch))
        });
        self.send(&EpochEnd { epoch, samples });
    }
}
