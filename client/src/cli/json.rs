//! What `connect` prints with `--json`, for programs. Names are stable; more may be added.

use std::path::PathBuf;

use serde_json::{Value, json};
use unikprof_proto::code::start_flag;

use unikprof_link::record::{Keep, RecorderStatus, RecordingStatus, RingFill, Session, Settings};
use unikprof_profile::agent_info::role_name;
use unikprof_profile::profile::Profile;
use unikprof_profile::recording::{Completeness, Recording};

/// Who the agent is, for programs.
pub(super) fn info(session: &Session, recorder: &RecorderStatus) -> String {
    let (agent, protocol) = (session.agent(), session.protocol());
    let mappings: Vec<Value> = agent
        .mappings
        .iter()
        .map(|mapping| {
            json!({
                "start": mapping.start,
                "end": mapping.end,
                "file_offset": mapping.file_offset,
                "build_id": mapping.build_id.as_ref().map(ToString::to_string),
                "path": mapping.path,
            })
        })
        .collect();
    pretty(&json!({
        "agent_version": agent.agent_version,
        "protocol": protocol,
        "role": role_name(agent.role),
        "encrypted": session.key().is_some(),
        "key": session.key().map(|key| key.to_string()),
        "architecture": agent.architecture,
        "platform": agent.platform,
        "guest_name": agent.guest_name,
        "guest_id": agent.guest_id,
        // As text: not every reader of JSON keeps 64 bits of a number.
        "instance": format!("{:016x}", agent.instance),
        "vcpus": agent.vcpus,
        "monotonic_ns": agent.monotonic_ns,
        "wall_clock_ns": agent.wall_clock_ns,
        "keeps_time": agent.keeps_time(),
        "tells_runstate": agent.tells_runstate(),
        "records_allocations": agent.records_allocations(),
        "follows_live_allocations": agent.follows_live(),
        "allows_traces": agent.allows_traces(),
        "reachable_when_busy": agent.reachable_when_busy(),
        "server_share_permille": recorder.agent.server_share_permille,
        "min_period_ns": agent.min_period_ns,
        "max_period_ns": agent.max_period_ns,
        "max_depth": agent.max_depth,
        "memory_bytes": agent.memory_bytes,
        "nodes_per_vcpu": agent.nodes_per_vcpu(),
        "segments": agent.segments,
        "recordings": recorder.recordings.iter().map(|one| json!({
            "name": one.name, "state": one.state_name(), "holder": holder(one),
        })).collect::<Vec<_>>(),
        "caller_rows": agent.caller_rows,
        "caller_table": agent.caller_table,
        "mappings": mappings,
    }))
}

/// What the recorder does, for programs: `recordings`, and beside it the agent's own part.
pub(super) fn status(status: &RecorderStatus, rings: &[RingFill], session: &Session) -> String {
    let recordings: Vec<Value> = status.recordings.iter().map(recording).collect();
    pretty(&json!({
        "recordings": recordings,
        "max_recordings": status.agent.max_recordings,
        "now_ns": status.agent.now_ns,
        "nodes_used": status.agent.nodes_used,
        "nodes_capacity": status.agent.nodes_capacity,
        "live_used": status.agent.live_used,
        "live_capacity": status.agent.live_capacity,
        "ring_capacity": status.agent.ring_capacity,
        "rings": rings,
        "role": role_name(session.agent().role),
        "encrypted": session.key().is_some(),
        "key": session.key().map(|key| key.to_string()),
        "sessions": status.agent.sessions,
        "peers": status.agent.peers,
        "server_since_ns": status.agent.server_since_ns,
        "server_ns": status.agent.server_ns,
        "server_longest_ns": status.agent.server_longest_ns,
        "server_share_permille": status.agent.server_share_permille,
        "server_deferred_ns": status.agent.server_deferred_ns,
    }))
}

fn recording(one: &RecordingStatus) -> Value {
    let c = &one.counters;
    json!({
        "recording": one.recording,
        "name": one.name,
        "state": one.state_name(),
        "mode": one.mode,
        "mode_name": one.mode().to_string(),
        "period_ns": one.period_ns,
        "depth": one.depth,
        "fixed_interval": one.flags & start_flag::FIXED_INTERVAL != 0,
        "keeps_newest": one.flags & start_flag::KEEP_NEWEST != 0,
        "started_ns": one.started_ns,
        "duration_ns": one.duration_ns,
        "max_age_ns": one.max_age_ns,
        "max_bytes": one.max_bytes,
        "samples_window_ns": one.samples_window_ns,
        "stacks_window_ns": one.stacks_window_ns,
        "wants_fetch": one.wants_fetch,
        "holder": holder(one),
        "dropped": one.dropped(),
        "counters": {
            "ticks": c.ticks, "recorded": c.recorded, "aged": c.aged, "overflow": c.overflow,
            "lost": c.lost,
            "masked": c.masked, "idle": c.idle, "early": c.early, "late": c.late,
            "truncated": c.truncated, "broken": c.broken, "by_table": c.by_table,
            "by_bytes": c.by_bytes, "by_frame_pointer": c.by_frame_pointer, "mixed": c.mixed,
            "blocks": c.blocks, "blocked": c.blocked, "blocked_overflow": c.blocked_overflow,
            "blocked_aged": c.blocked_aged,
        },
        "overhead": {
            "running_ns": one.overhead.running_ns,
            "sampling_ns": one.overhead.sampling_ns,
            "delivery_ns": match one.overhead.deliveries_measured {
                0 => None,
                _ => Some(one.overhead.delivery_ns),
            },
            "deliveries_measured": one.overhead.deliveries_measured,
        },
        "first_epoch": one.first_epoch,
        "epochs": one.epochs,
    })
}

/// Which client holds the lease on a recording, and for how long it has held it.
fn holder(one: &RecordingStatus) -> Option<Value> {
    let client = one.holder.as_ref()?;
    Some(json!({ "client": client, "held_ns": one.held().as_nanos() as u64 }))
}

/// That a recording was started, for programs.
pub(super) fn started(settings: &Settings, recording: u64) -> String {
    pretty(&json!({
        "recording": recording,
        "name": settings.name,
        "period_ns": settings.period_ns,
        "duration_ns": settings.duration_ns,
        "delay_ns": settings.delay_ns,
        "max_age_ns": settings.max_age_ns,
        "max_bytes": settings.max_bytes,
        "keeps_newest": settings.keep == Keep::Newest,
    }))
}

/// That a recording was discarded, for programs.
pub(super) fn discarded(name: &str, recording: u64) -> String {
    pretty(&json!({ "recording": recording, "name": name, "discarded": true }))
}

/// What was recorded and where it is, for programs. `cut` is the window that was asked for;
/// `warnings` are those of a report.
pub(super) fn recorded(
    recording: &Recording,
    cut: Option<&Profile>,
    files: &[PathBuf],
    warnings: &[String],
) -> String {
    let info = recording.profile.recording();
    let incomplete = match &recording.completeness {
        Completeness::Complete => None,
        Completeness::Incomplete(reason) | Completeness::Salvaged(reason) => Some(reason),
    };
    pretty(&json!({
        "name": info.name,
        "mode": info.mode.to_string(),
        "unit": info.unit().to_string(),
        "guest_name": recording.agent.guest_name,
        "period_ns": info.period_ns,
        "elapsed_ns": info.elapsed_ns,
        "samples": recording.profile.sample_count(),
        "counters": recording.profile.counters(),
        "window": cut.map(|cut| json!({
            "from_ns": cut.recording().ring.as_ref().map(|ring| ring.from_ns),
            "to_ns": cut.recording().ring.as_ref().map(|ring| ring.to_ns),
            "samples": cut.sample_count(),
            "warnings": cut.recording().warnings,
        })),
        "cost_share": recording.profile.cost_share(),
        "complete": incomplete.is_none(),
        "incomplete": incomplete,
        "warnings": warnings,
        "files": files.iter().map(|path| path.to_string_lossy()).collect::<Vec<_>>(),
    }))
}

fn pretty(value: &Value) -> String {
    format!("{value:#}\n")
}
