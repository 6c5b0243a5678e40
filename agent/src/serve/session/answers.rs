//! A session's answers: the agent's description, the recorder's state, and epochs, frame by frame.

use unikprof_proto::code::{histogram, message_type, mode, refusal, role};
use unikprof_proto::frame::HEADER;
use unikprof_proto::message::{
    Counts, Epoch, Fetch, Histogram, LiveSamples, Nodes, RecordingStatus, Status, TakeSnapshot,
    VcpuEnd, VcpuEpoch, VcpuSnapshot,
};

use super::{Context, OUTPUT, Series, Session};
use crate::agent::AnyAgent;
use crate::count::cells::HistogramCells;
use crate::count::live::LiveTable;
use crate::count::table::{Column, CountRun, Run};
use crate::count::vcpu_snapshot::MOST_BYTES;
use crate::ground::text::Text;
use crate::record::recorder::{Recording, Waiting};
use crate::ring::Rings;

/// The maximum length of a [`Nodes`] frame without its payload.
const NODES_OVERHEAD: usize = HEADER + 40;

/// The maximum number of nodes whose counts one frame examines.
const COUNTS_BUDGET: u32 = 4096;

/// The part of an epoch that is being sent.
#[derive(Clone, Copy, Debug)]
pub(super) struct Share {
    epoch: u64,
    vcpu: u32,
    known: u64,
    counted: u64,
    /// The number of times that the recording's counts had been folded when the answer began.
    folds: u64,
}

/// The next part to be sent.
#[derive(Clone, Copy, Debug)]
pub(super) enum Part {
    Head,
    Vcpu,
    SampleCycles,
    Lateness,
    /// Nodes with numbers above `sent` and up to `last`.
    Nodes {
        sent: u64,
        last: u64,
    },
    /// Counts of nodes with numbers above `sent` and up to `last`.
    Counts {
        sent: u64,
        last: u64,
    },
    /// Live samples of the buckets from `bucket` on, after `samples` others, whose nodes have
    /// numbers up to `last`.
    Live {
        bucket: u32,
        samples: u64,
        last: u64,
    },
}

impl Share {
    pub(super) fn new(fetch: Fetch, recording: &Recording) -> Self {
        Self {
            epoch: fetch.epoch,
            vcpu: fetch.vcpu,
            known: fetch.known,
            counted: fetch.counted,
            folds: recording.folds(),
        }
    }
}

impl Session {
    pub(super) fn welcome(&mut self, context: &Context<'_, '_, '_>) {
        let agent = context.agent;
        self.series = Series::Mapping(0);
        self.send(&agent.welcome(self.role.unwrap_or(role::OPEN), agent.tells_runstate()));
    }

    /// Answers with the vCPU's last snapshot. If that is older than requested, interrupts the vCPU
    /// to take one.
    pub(super) fn snapshot(&mut self, request: &TakeSnapshot, agent: &AnyAgent<'_, '_>) {
        let TakeSnapshot { vcpu, since_ns } = *request;
        let Some(slot) = agent.slot(vcpu) else {
            return self.refuse_vcpu(message_type::TAKE_SNAPSHOT, vcpu, agent);
        };
        let mut state = [0; MOST_BYTES];
        let (mut at_ns, mut length) = (0, 0);
        if let Some(last) = slot.snapshot() {
            (at_ns, length) = (last.at_ns(), last.encode(&mut state));
        }
        self.send(&VcpuSnapshot {
            vcpu,
            now: agent.snapshot(vcpu),
            state: state.get(..length).unwrap_or_default(),
        });
        if at_ns < since_ns {
            slot.cells.request_snapshot();
            agent.platform().kick(vcpu);
        }
    }

    /// Refuses a request for a vCPU that the guest does not have.
    fn refuse_vcpu(&mut self, request: u16, vcpu: u32, agent: &AnyAgent<'_, '_>) {
        let text = Text::format(format_args!(
            "no vCPU {}; the guest has {}",
            u64::from(vcpu),
            u64::from(agent.config().vcpus)
        ));
        self.refuse(refusal::NO_VCPU, request, text.as_str());
    }

    pub(super) fn status(&mut self, context: &Context<'_, '_, '_>) {
        let Context { agent, recorder, now_ns, sessions, peers, server, budget, .. } = context;
        let nodes_used = agent.slots().map(|(_, slot)| u64::from(slot.table.used())).sum();
        let bits = recorder.recordings().fold(0, |bits, one| bits | 1 << one.index());
        self.recordings_after(bits);
        self.send(&Status {
            recordings: bits.count_ones(),
            max_recordings: agent.config().recordings,
            now_ns: *now_ns,
            nodes_used,
            nodes_capacity: agent.nodes_per_vcpu() as u64 * u64::from(agent.config().vcpus),
            ring_capacity: agent.rings().map_or(0, Rings::capacity),
            sessions: *sessions,
            peers: **peers,
            server_since_ns: server.since_ns,
            server_ns: server.total_ns,
            server_longest_ns: server.longest_ns,
            server_share_permille: budget.share_permille,
            server_deferred_ns: budget.waited_ns,
            live_used: agent.live().map_or(0, LiveTable::used),
            live_capacity: agent.live().map_or(0, LiveTable::capacity),
        });
    }

    fn recordings_after(&mut self, bits: u32) {
        self.series = match bits {
            0 => Series::None,
            _ => Series::Recordings(bits),
        };
    }

    /// Sends the status of the recording with the lowest bit, even if it was removed since the
    /// request.
    fn recording(&mut self, bits: u32, context: &Context<'_, '_, '_>) {
        self.recordings_after(bits & bits.wrapping_sub(1));
        let Some(one) = context.recorder.recording(bits.trailing_zeros() as usize) else {
            return;
        };
        let Waiting { first_epoch, epochs, .. } = one.waiting(true);
        let settings = *one.settings();
        self.send(&RecordingStatus {
            recording: one.id(),
            ring_bit: one.index() as u32,
            name: settings.name.as_str(),
            state: one.state(),
            mode: settings.mode,
            period_ns: settings.period_ns,
            interval_bytes: settings.interval_bytes,
            depth: settings.depth,
            flags: settings.flags,
            started_ns: settings.started_ns,
            duration_ns: settings.duration_ns,
            max_age_ns: settings.max_age_ns,
            max_bytes: settings.max_bytes,
            counters: one.counters(context.agent),
            overhead: one.overhead(context.agent),
            samples_window_ns: context.agent.samples_window_ns(context.now_ns),
            stacks_window_ns: context.agent.stacks_window_ns(context.now_ns),
            wants_fetch: one.wants_fetch(context.agent),
            holder: one.lease().map(|lease| lease.client.name.as_str()),
            held_since_ns: one.lease().map_or(0, |lease| lease.since_ns),
            first_epoch,
            epochs,
        });
    }

    pub(super) fn continue_series(&mut self, context: &mut Context<'_, '_, '_>) {
        match self.series {
            Series::None => {}
            #[cfg(feature = "trace")]
            Series::Trace(part) => self.continue_trace(part, context),
            Series::Mapping(index) => self.mapping(index, context.agent),
            Series::Recordings(bits) => self.recording(bits, context),
            Series::Share(share, part) => match context.recorder.holding(share.epoch) {
                Some(recording) if recording.folds() == share.folds => {
                    self.continue_share(share, part, recording, context);
                }
                Some(_) => {
                    self.series = Series::None;
                    let text = "the epoch's oldest stacks were discarded while it was sent; fetch \
                                it again";
                    self.refuse(refusal::EPOCH_CHANGED, message_type::FETCH, text);
                }
                None => {
                    // The epoch was acknowledged while this answer was being sent.
                    self.series = Series::None;
                    self.refuse_with(message_type::FETCH, &context.recorder.no_epoch(share.epoch));
                }
            },
        }
    }

    fn continue_share(
        &mut self,
        share: Share,
        part: Part,
        recording: &Recording,
        context: &Context<'_, '_, '_>,
    ) {
        let Share { epoch, vcpu, .. } = share;
        self.series = Series::None;
        let slot = context.agent.slot(vcpu);
        let Some((slot, cells)) =
            slot.and_then(|slot| Some((slot, slot.recording(recording.index())?)))
        else {
            return self.refuse_vcpu(message_type::FETCH, vcpu, context.agent);
        };
        let live = context.agent.live();
        let live = live.filter(|_| recording.settings().mode == mode::LIVE);
        let mut payload = [0; OUTPUT - NODES_OVERHEAD];
        let payload = self.run(&mut payload);
        // The next part, or after the last one the newest node that the client has, and the sum of
        // counts or live samples.
        let next = match part {
            Part::Head => {
                self.head(epoch, recording, context);
                Ok(Part::Vcpu)
            }
            Part::Vcpu => {
                self.send(&VcpuEpoch {
                    epoch,
                    vcpu,
                    start: cells.boundary(epoch),
                    end: cells.boundary(epoch + 1),
                });
                Ok(Part::SampleCycles)
            }
            Part::SampleCycles => {
                self.histogram(share, histogram::SAMPLE_CYCLES, cells.sample_cycles_of(epoch));
                Ok(Part::Lateness)
            }
            Part::Lateness => {
                self.histogram(share, histogram::LATENESS_NS, cells.lateness_ns_of(epoch));
                Ok(Part::Nodes { sent: share.known, last: slot.table.newest() })
            }
            Part::Nodes { sent, last } => Ok(match slot.table.encode(sent, last, payload) {
                Some(Run { first, count, bytes }) => {
                    self.send(&Nodes {
                        vcpu,
                        first,
                        count,
                        payload: payload.get(..bytes).unwrap_or_default(),
                    });
                    Part::Nodes { sent: first + u64::from(count) - 1, last }
                }
                None => Part::Counts { sent: share.counted, last: last.max(share.known) },
            }),
            Part::Counts { sent, last } => {
                let column = Column::of(recording.index(), epoch);
                let segments = cells.segments.of(epoch);
                let range = (sent, last);
                let run = slot.table.encode_counts(column, segments, range, COUNTS_BUDGET, payload);
                match run {
                    Some(CountRun { count, bytes, until }) => {
                        if count > 0 {
                            self.send(&Counts {
                                epoch,
                                vcpu,
                                after: sent,
                                count,
                                payload: payload.get(..bytes).unwrap_or_default(),
                            });
                        }
                        Ok(Part::Counts { sent: until, last })
                    }
                    None if live.is_some() => Ok(Part::Live { bucket: 0, samples: 0, last }),
                    None => {
                        let counted = |epoch| {
                            let counters = cells.boundary(epoch).counters;
                            counters.recorded.wrapping_add(counters.blocked)
                        };
                        Err((last, counted(epoch + 1).wrapping_sub(counted(epoch))))
                    }
                }
            }
            Part::Live { bucket, samples, last } => {
                let run = live.and_then(|live| {
                    recording.encode_live(live, vcpu, (&slot.table, last), bucket, payload)
                });
                match run {
                    Some(CountRun { count, bytes, until }) => {
                        if count > 0 {
                            self.send(&LiveSamples {
                                epoch,
                                vcpu,
                                base_ns: recording.settings().started_ns,
                                count,
                                payload: payload.get(..bytes).unwrap_or_default(),
                            });
                        }
                        Ok(Part::Live {
                            bucket: until as u32,
                            samples: samples + u64::from(count),
                            last,
                        })
                    }
                    None => Err((last, samples)),
                }
            }
        };
        match next {
            Ok(next) => self.series = Series::Share(share, next),
            Err((known, samples)) => self.send(&VcpuEnd { epoch, vcpu, known, samples }),
        }
    }

    fn mapping(&mut self, index: usize, agent: &AnyAgent<'_, '_>) {
        let mappings = agent.config().mappings;
        self.series =
            if index + 1 < mappings.len() { Series::Mapping(index + 1) } else { Series::None };
        if let Some(mapping) = agent.mapping(index) {
            self.send(&mapping);
        }
    }

    fn head(&mut self, epoch: u64, recording: &Recording, context: &Context<'_, '_, '_>) {
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
            ..settings.head(recording.id(), recording.index())
        });
    }

    fn histogram(&mut self, share: Share, kind: u32, histogram: &HistogramCells) {
        let mut buckets = [0; HistogramCells::ENCODED];
        let length = histogram.encode(&mut buckets);
        self.send(&Histogram {
            epoch: share.epoch,
            vcpu: share.vcpu,
            kind,
            max: histogram.max(),
            buckets: &buckets[..length],
        });
    }
}
