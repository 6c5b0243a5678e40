//! What an agent's own words say of the recordings it would make, or makes.

use unikprof_proto::code::{start_flag, state};
use unikprof_proto::live::PLACE_BYTES;

use super::check::{Check, Verdict, part_of};
use super::sampling_checks::{aged, late, lost, masked, overflow, reachable, unknown_steal};
use super::stack_checks::{callers, cut_so_far};
use super::{Answers, heap_checks, image_checks, peer_checks};
use unikprof_profile::printable::Printable;
use unikprof_profile::profile::{Counters, Mode, Unwind};
use unikprof_profile::recorder_status::{RecorderStatus, RecordingStatus};
use unikprof_profile::symbols::SymbolError;
use unikprof_profile::units::{amount_with_unit, duration, grouped, percent, rate_text, size};

/// A guest's clock that is this far from the client's gives recordings of a wrong date, in ns.
const CLOCK_OFF_NS: i128 = 5_000_000_000;

/// A table that is this full is likely to overflow.
const FULL: f64 = 0.8;

pub(super) fn of(answers: &Answers<'_>, wrong_image: Option<Option<&SymbolError>>) -> Vec<Check> {
    let agent = answers.agent;
    let status = answers.status;
    let mut checks = vec![
        version(answers),
        peer_checks::access(answers),
        image(answers, wrong_image),
        clock(answers),
        kinds_of_time(answers),
        reachable(agent),
        caller_table(answers),
        limits(answers),
    ];
    match status.recordings.as_slice() {
        [] => checks.push(idle()),
        recordings => checks.extend(recordings.iter().map(recorder)),
    }
    if !status.recordings.is_empty() {
        checks.push(room(status));
        checks.extend(live_table(status));
    }
    for one in &status.recordings {
        let counters = Counters::from(&one.counters);
        let mut own = vec![lost(&counters, "ticks"), aged(&counters, "ticks")];
        if one.mode().is_heap() {
            let of = match one.mode() {
                Mode::Live => counters.overflow.saturating_add(status.agent.live_used),
                _ => counters.ticks,
            };
            let full = heap_checks::full(counters.overflow, of, one.mode(), one.interval_bytes);
            own.push(full);
        } else {
            own.push(overflow(&counters, None));
            own.extend([masked(&counters), late_so_far(&counters)]);
        }
        own.extend(cut_so_far(&counters, one.depth));
        if counters.sampled() != 0 && !one.mode().is_heap() {
            own.push(callers_so_far(one, &counters));
        }
        if status.recordings.len() > 1 {
            for check in &mut own {
                check.finding = format!("`{}`: {}", Printable(&one.name), check.finding);
            }
        }
        let name = |check: Check| check.of_recording(&one.name);
        checks.extend(own.into_iter().map(name));
    }
    checks.push(peer_checks::server(answers));
    checks.push(peer_checks::peers(&status.agent.peers));
    checks
}

fn version(answers: &Answers<'_>) -> Check {
    let ours = env!("CARGO_PKG_VERSION");
    let agent = answers.agent;
    let took_ns = u64::try_from(answers.took.as_nanos()).unwrap_or(u64::MAX);
    let finding = format!(
        "agent {} ({}, {}), protocol {}, answered in {}",
        Printable(&agent.agent_version),
        Printable(&agent.platform),
        Printable(&agent.architecture),
        answers.protocol,
        duration(took_ns)
    );
    let (verdict, finding) = match agent.agent_version == ours {
        true => (Verdict::Good, finding),
        false => (Verdict::Look, format!("{finding}; this client is {ours}")),
    };
    Check::new("version", verdict, finding)
        .advise(
            "the protocol versions are compatible; features that only one of them has are not used",
        )
        .count("protocol", answers.protocol.into())
        .count("answered_in_ns", took_ns)
}

fn image(answers: &Answers<'_>, wrong: Option<Option<&SymbolError>>) -> Check {
    match wrong {
        Some(Some(wrong)) => return image_checks::identity(None, Some(wrong)),
        Some(None) => {
            return Check::new("build-id", Verdict::Good, "the image given is the one that runs");
        }
        None => {}
    }
    let mappings = &answers.agent.mappings;
    let without: Vec<&str> = mappings
        .iter()
        .filter(|mapping| mapping.build_id.is_none() && !mapping.path.starts_with('['))
        .map(|mapping| mapping.path.as_str())
        .collect();
    let check = match without.first() {
        _ if mappings.is_empty() => Check::new(
            "build-id",
            Verdict::Bad,
            "the guest has no mappings: stacks cannot be walked or symbolized",
        )
        .advise("give the agent the guest's mappings when it starts"),
        None => Check::new(
            "build-id",
            Verdict::Good,
            format!("all mappings have one ({})", mappings.len()),
        ),
        Some(path) => Check::new(
            "build-id",
            Verdict::Look,
            format!(
                "{} of {} mappings have none, for example `{}`: a wrong image would not be \
                 detected",
                without.len(),
                mappings.len(),
                Printable(path)
            ),
        )
        .advise("link the guest with --build-id"),
    };
    check.count("mappings", mappings.len() as u64).count("without_build_id", without.len() as u64)
}

fn clock(answers: &Answers<'_>) -> Check {
    let Some(off_ns) = answers.agent.clock_off_ns(answers.asked_unix_ns) else {
        return Check::new(
            "clock",
            Verdict::Look,
            "the guest has no wall clock: its recordings are dated by the client's",
        )
        .advise("give the agent the guest's wall clock, if there is one");
    };
    let apart = duration(u64::try_from(off_ns.unsigned_abs()).unwrap_or(u64::MAX));
    let check = if off_ns.abs() >= CLOCK_OFF_NS {
        Check::new(
            "clock",
            Verdict::Look,
            format!(
                "the guest's clock is {apart} {} this client's",
                if off_ns < 0 { "behind" } else { "ahead of" }
            ),
        )
    } else {
        Check::new(
            "clock",
            Verdict::Good,
            format!("the guest's clock is within {apart} of this client's"),
        )
    };
    let clamped = off_ns.clamp(i128::from(i64::MIN), i128::from(i64::MAX)) as i64;
    check
        .advise("correct the clock that is wrong; recordings are dated by the guest's clock")
        .signed("off_ns", clamped)
}

fn kinds_of_time(answers: &Answers<'_>) -> Check {
    if !answers.agent.tells_runstate() {
        return unknown_steal();
    }
    Check::new(
        "steal",
        Verdict::Good,
        "running, stolen, blocked and offline time are measured separately",
    )
}

fn caller_table(answers: &Answers<'_>) -> Check {
    let agent = answers.agent;
    let room = format!("the agent has room for {} rows", grouped(agent.caller_rows));
    let (verdict, finding) = match (agent.caller_rows, agent.caller_table) {
        (0, _) => (
            Verdict::Look,
            "the agent has no memory for one: callers of leaf functions may be missing".into(),
        ),
        (_, None) => (Verdict::Good, format!("none is loaded; {room}")),
        (_, Some(checksum)) => (Verdict::Good, format!("{checksum:08x} is loaded; {room}")),
    };
    Check::new("caller table", verdict, finding)
        .advise("give the agent memory for a caller table when it starts")
        .count("rows", agent.caller_rows.into())
}

fn limits(answers: &Answers<'_>) -> Check {
    let agent = answers.agent;
    let usual = answers.usual_period_ns;
    let takes_usual = (agent.min_period_ns..=agent.max_period_ns).contains(&usual);
    let finding = format!(
        "{} to {} Hz, {} frames deep, {}, {} KiB for {} stack nodes per vCPU",
        rate_text(agent.max_period_ns),
        rate_text(agent.min_period_ns),
        agent.max_depth,
        match agent.vcpus {
            1 => "1 vCPU".to_owned(),
            vcpus => format!("{vcpus} vCPUs"),
        },
        grouped(agent.memory_bytes.div_ceil(1024)),
        grouped(agent.nodes_per_vcpu())
    );
    let verdict = if agent.vcpus == 0 || agent.nodes_per_vcpu() == 0 {
        Verdict::Bad
    } else if takes_usual {
        Verdict::Good
    } else {
        Verdict::Look
    };
    Check::new("limits", verdict, finding)
        .advise(match verdict {
            Verdict::Bad => "the agent has no memory for stacks: give it more",
            _ => "the default of 997 Hz is outside of them: choose a rate with -F",
        })
        .count("min_period_ns", agent.min_period_ns)
        .count("max_period_ns", agent.max_period_ns)
        .count("max_depth", agent.max_depth.into())
        .count("vcpus", agent.vcpus.into())
        .count("memory_bytes", agent.memory_bytes)
        .count("nodes_per_vcpu", agent.nodes_per_vcpu())
}

fn idle() -> Check {
    Check::new("recorder", Verdict::Good, "no recordings")
}

fn recorder(status: &RecordingStatus) -> Check {
    let name = Printable(&status.name);
    let waits = match status.epochs {
        0 => String::new(),
        1 => "; 1 epoch to fetch".to_owned(),
        epochs => format!("; {epochs} epochs to fetch"),
    };
    match status.state {
        state::DELAYED | state::RECORDING => Check::new(
            "recorder",
            Verdict::Good,
            format!(
                "{} `{name}` for {}, mode {}{waits}",
                status.state_name(),
                duration(u64::try_from(status.elapsed().as_nanos()).unwrap_or(u64::MAX)),
                status.sampling()
            ),
        ),
        state::FINISHED => Check::new(
            "recorder",
            Verdict::Look,
            format!(
                "`{name}` has ended and was not fetched; until then it counts towards the limit of \
                 recordings"
            ),
        ),
        _ => Check::new(
            "recorder",
            Verdict::Look,
            format!("`{name}` is in state {}, which is unknown to this client", status.state),
        ),
    }
    .advise(match status.state {
        state::FINISHED => {
            "fetch it with `connect ADDR stop --name NAME`, or drop it with `--discard`"
        }
        _ => "use a newer client",
    })
    .count("state", status.state.into())
    .count("epochs", status.epochs.into())
    .of_recording(&status.name)
}

/// How much of the memory is used. Full memory is the rule where all recordings keep the newest
/// stacks.
fn room(status: &RecorderStatus) -> Check {
    let share = part_of(status.agent.nodes_used, status.agent.nodes_capacity);
    let keeps_all = |one: &RecordingStatus| one.flags & start_flag::KEEP_NEWEST == 0;
    let verdict = if status.recordings.iter().any(keeps_all) {
        Verdict::of_share(share, FULL, f64::INFINITY)
    } else {
        Verdict::Good
    };
    Check::new(
        "room",
        verdict,
        format!(
            "{} of {} stack nodes are in use ({})",
            grouped(status.agent.nodes_used),
            grouped(status.agent.nodes_capacity),
            percent(share)
        ),
    )
    .advise(
        "when memory is full, a recording that keeps all stacks overflows: fetch more often, use \
         `--keep newest`, \
         or give the agent more memory",
    )
    .count("nodes_used", status.agent.nodes_used)
    .count("nodes_capacity", status.agent.nodes_capacity)
}

/// How much of the table of live samples is used, where a recording follows what is held.
fn live_table(status: &RecorderStatus) -> Option<Check> {
    let (used, capacity) = (status.agent.live_used, status.agent.live_capacity);
    let live = status.recordings.iter();
    let live = live.filter(|one| one.mode() == Mode::Live);
    // The recording that fills it fastest.
    let every = live.map(|one| one.interval_bytes).min()?;
    let share = part_of(used, capacity);
    let check = Check::new(
        "live table",
        Verdict::of_share(share, FULL, f64::INFINITY),
        format!(
            "{} of {} places for live samples are in use ({})",
            grouped(used),
            grouped(capacity),
            percent(share)
        ),
    );
    let check = check.advise(format!(
        "when it is full, new samples are dropped: sample less often (`--every` above {}), or give \
         the agent more memory for \
         it than the {} that hold {} places",
        size(every),
        size(capacity.saturating_mul(PLACE_BYTES)),
        grouped(capacity)
    ));
    Some(check.count("live_used", used).count("live_capacity", capacity))
}

fn late_so_far(counters: &Counters) -> Check {
    let mut check = late(counters, 0, None);
    check.finding = format!(
        "{} of the samples arrived late ({})",
        percent(part_of(counters.late, counters.sampled())),
        grouped(counters.late)
    );
    check
}

fn callers_so_far(status: &RecordingStatus, counters: &Counters) -> Check {
    // The status does not tell of a table, but only one can have answered.
    let has_table = counters.by_table != 0;
    let unwind = match status.flags & start_flag::UNWIND_TABLE {
        0 => Unwind::FramePointers,
        _ => Unwind::Table,
    };
    let mut check = callers(counters, has_table, unwind);
    if counters.blocks != 0 {
        check.finding.push_str(&format!(
            "; {} blocked in {} waits",
            amount_with_unit(counters.blocked, status.mode().unit()),
            grouped(counters.blocks)
        ));
    }
    check
}
