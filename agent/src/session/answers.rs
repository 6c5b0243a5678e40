//! What a session answers: who the agent is, what the recorder does, and epochs, frame by frame.

use unikprof_proto::code::{capability, histogram, message_type, role};
use unikprof_proto::frame::HEADER;
use unikprof_proto::message::{
    Epoch, EpochEnd, Histogram, MAX_BUILD_ID, MAX_PATH, Mapping, Nodes, RecordingStatus, Status,
    VcpuEpoch, Welcome,
};

use super::{Context, MAX_REQUEST, OUTPUT, Series, Session};
use crate::agent::Agent;
use crate::caller_table::CallerTable;
use crate::cells::HistogramCells;
use crate::path::MAX_DEPTH;
use crate::platform::Platform;
use crate::recorder::{MAX_PERIOD_NS, MIN_PERIOD_NS, Recording, Waiting};
use crate::sampler::late_threshold_ns;
use crate::table::Column;
use crate::text::tail;

/// What a [`Nodes`] frame needs beside its payload.
const NODES_OVERHEAD: usize = HEADER + 40;

impl Session {
    pub(super) fn welcome<P: Platform>(&mut self, context: &Context<'_, '_, P>) {
        let agent = context.agent;
        let config = agent.config();
        let platform = agent.platform();
        let runstate = (0..config.vcpus).any(|vcpu| platform.runstate(vcpu).is_some());
        let capabilities = if runstate { capability::RUNSTATE } else { 0 }
            | if config.reachable_when_busy {
                capability::REACHABLE_WHEN_BUSY
            } else {
                0
            };
        self.series = Series::Mapping(0);
        self.send(&Welcome {
            agent_version: env!("CARGO_PKG_VERSION"),
            architecture: ARCHITECTURE,
            platform: tail(config.platform_name, MAX_PATH),
            guest_name: config.guest_name.map(|name| tail(name, MAX_PATH)),
            guest_id: config.guest_id.map(|id| tail(id, MAX_PATH)),
            vcpus: config.vcpus,
            mappings: config.mappings.len() as u32,
            monotonic_ns: context.now_ns,
            wall_clock_ns: platform.wall_clock_ns(),
            capabilities,
            min_period_ns: MIN_PERIOD_NS,
            max_period_ns: MAX_PERIOD_NS,
            max_depth: MAX_DEPTH as u32,
            max_request: MAX_REQUEST as u32,
            memory_bytes: agent.memory_bytes(),
            nodes_per_vcpu: agent.nodes_per_vcpu() as u32,
            caller_rows: agent.callers().map_or(0, CallerTable::room),
            caller_table: agent.callers().and_then(CallerTable::checksum),
            role: self.role.unwrap_or(role::OPEN),
        });
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
            ring_capacity: 0,
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
        if let (Some(mapping), Some(code_base)) =
            (mappings.get(index), agent.code().code_base(index))
        {
            let build_id = mapping.build_id;
            self.send(&Mapping {
                start: mapping.start,
                end: mapping.end,
                file_offset: mapping.file_offset,
                code_base,
                build_id: &build_id[..build_id.len().min(MAX_BUILD_ID)],
                path: tail(mapping.path, MAX_PATH),
            });
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
            recording: recording.id(),
            lane: recording.lane() as u32,
            name: settings.name.as_str(),
            mode: settings.mode,
            flags: settings.flags,
            period_ns: settings.period_ns,
            depth: settings.depth,
            late_threshold_ns: late_threshold_ns(settings.period_ns),
            recording_started_ns: settings.started_ns,
            started_ns: start.at_ns,
            ended_ns: end.at_ns,
            ended_wall_clock_ns: end.wall_clock_ns,
            gaps: end.gaps,
            server_ns: end.server_ns.saturating_sub(start.server_ns),
            vcpus: context.agent.config().vcpus,
            caller_table: settings.caller_table,
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

#[cfg(target_arch = "x86_64")]
const ARCHITECTURE: &str = "x86_64";
#[cfg(target_arch = "aarch64")]
const ARCHITECTURE: &str = "aarch64";
#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
compile_error!("the agent walks stacks of x86_64 and aarch64");
