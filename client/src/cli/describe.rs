//! What `connect` prints for people.

use std::fmt::Write as _;
use std::path::PathBuf;

use super::screen::pasted;
use jiff::Timestamp;
use unikprof_proto::code::role;
use unikprof_proto::message::{Counters, Overhead};

use unikprof_link::record::{self, RecorderStatus, RecordingStatus, Session, Settings};
use unikprof_profile::agent_info::role_name;
use unikprof_profile::printable::word;
use unikprof_profile::printable::{Printable, path_word};
use unikprof_profile::profile::{Cost, Mapping};
use unikprof_profile::units::{duration, grouped, rate_text, size};

/// Who the agent is.
pub(super) fn info(session: &Session, recorder: &RecorderStatus) -> String {
    let (agent, address, protocol) = (session.agent(), session.address(), session.protocol());
    let text = |text: &Option<String>| match text {
        Some(text) => Printable(text).to_string(),
        None => "unknown".into(),
    };
    let (guest, guest_id) = (text(&agent.guest_name), text(&agent.guest_id));
    let version = Printable(&agent.agent_version);
    let (platform, processor) = (Printable(&agent.platform), Printable(&agent.architecture));
    let vcpus = counted(agent.vcpus.into(), "vCPU");
    // The clock of a hosted guest is its machine's.
    let up = match agent.platform.as_str() {
        "hosted" => "machine up",
        _ => "up",
    };
    let up_for = duration(agent.monotonic_ns);
    let clock = agent.wall_clock_ns.and_then(timestamp);
    let clock = clock.map_or(String::new(), |time| format!("clock        {time:.0}\n"));
    let kib = grouped(agent.memory_bytes.div_ceil(1024));
    let (nodes, segments) = (grouped(agent.nodes_per_vcpu()), agent.segments);
    let [slowest, fastest] = [agent.max_period_ns, agent.min_period_ns].map(rate_text);
    let depth = agent.max_depth;
    let rows = grouped(agent.caller_rows);
    let callers = match (agent.caller_rows, agent.caller_table) {
        (0, _) => "no memory for a caller table".into(),
        (_, None) => format!("room for a table of {rows} rows"),
        (_, Some(checksum)) => {
            format!("room for a table of {rows} rows; holds table {checksum:08x}")
        }
    };
    let stolen = yes(agent.tells_runstate(), "measured", "not measured");
    let ring = yes(
        agent.keeps_time(),
        "keeps the newest samples with their times, and the guest's events",
        "none: no memory was given for it, so samples have no times",
    );
    let allocations = match (agent.records_allocations(), agent.follows_live()) {
        (true, true) => "recorded in the modes alloc and live",
        (true, false) => "recorded in mode alloc; no memory was given for mode live",
        (false, _) => "not recorded: the guest's allocator has reported none to the agent",
    };
    let traces = match (agent.allows_traces(), agent.role) {
        (true, role::VIEW | role::CONTROL) => "allowed with a key of the role trace",
        (true, _) => "allowed",
        (false, _) => "not allowed by the guest",
    };
    let busy = yes(
        agent.reachable_when_busy(),
        "answers even while the guest is stuck in a loop",
        "answers only when the guest polls the agent",
    );
    let what = match agent.role {
        role::VIEW => {
            "can be looked at with this key: `top`, `snapshot`, `events`, `copy`".to_owned()
        }
        _ => {
            let also =
                [(agent.records_allocations(), "allocations"), (agent.allows_traces(), "calls")];
            let also = also.into_iter().filter(|(can, _)| *can).map(|(_, what)| what);
            let all: Vec<&str> = ["running time", "waits"].into_iter().chain(also).collect();
            format!("can be recorded: {}", all.join(", "))
        }
    };
    let next = if agent.role == role::VIEW { "top" } else { "record 30s" };
    let mut out = format!(
        "guest `{guest}` {what}\n\
         -> unikprof-client connect {address} {next}\n\n\
         guest        {guest}\n\
         guest id     {guest_id}\n\
         agent        {version} at {address}, protocol version {protocol}\n\
         access       {}\n\
         platform     {platform}, {processor}, {vcpus}\n\
         {up:<12} {up_for}\n\
         {clock}\
         memory       {kib} KiB, {nodes} stack nodes for each vCPU in {segments} segments\n\
         rates        {slowest} to {fastest} Hz\n\
         depth        up to {depth} frames\n\
         callers      {callers}\n\
         stolen time  {stolen}\n\
         ring         {ring}\n\
         allocations  {allocations}\n\
         traces       {traces}\n\
         busy guest   {busy}\n\
         share        the agent's network work may use up to {} % of a CPU\n",
        access(session),
        f64::from(recorder.agent.server_share_permille) / 10.0
    );
    let mut label = "recordings";
    for one in &recorder.recordings {
        let held = held_by(one).map_or(String::new(), |held| format!(", {held}"));
        let cost = cost(one).map_or(String::new(), |cost| format!(", cost {cost}"));
        let (name, state) = (Printable(&one.name), one.state_name());
        let _ = writeln!(out, "{label:<12} `{name}`: {state}{held}{cost}");
        label = "";
    }
    let mut label = "mappings";
    for mapping in agent.mappings.iter() {
        let _ = writeln!(out, "{label:<12} {}", mapping_text(mapping));
        label = "";
    }
    out
}

/// Which client holds the lease on a recording, and for how long it has held it.
pub(super) fn held_by(one: &RecordingStatus) -> Option<String> {
    let client = one.holder.as_ref()?;
    let held_ns = u64::try_from(one.held().as_nanos()).unwrap_or(u64::MAX);
    let held = duration(held_ns);
    Some(format!("{} has been fetching for {held}", Printable(client)))
}

/// What this client may do, and who can read along.
pub(super) fn access(session: &Session) -> String {
    match session.key() {
        Some(key) => format!("role {} with key {key}; encrypted", role_name(session.agent().role)),
        None => "open: no key required, traffic is not encrypted".into(),
    }
}

/// That a recording was started, and what to do next.
pub(super) fn started(settings: &Settings, recording: u64, guest: &str) -> String {
    let ends = match settings.duration_ns {
        0 => "it continues until stopped".into(),
        ns => format!("it ends after {}", duration(ns)),
    };
    let begins = match settings.delay_ns {
        0 => String::new(),
        ns => format!("starts in {}, ", duration(ns)),
    };
    let sampling = match settings.mode {
        record::Mode::Cpu => format!("running time at {} Hz", rate_text(settings.period_ns)),
        record::Mode::Wall => {
            format!("running and blocked time at {} Hz", rate_text(settings.period_ns))
        }
        record::Mode::OffCpu => "blocked time, measured".to_owned(),
        record::Mode::Alloc => {
            format!("allocations, a sample every {}", size(settings.interval_bytes))
        }
        record::Mode::Live => format!(
            "allocations that are still held, a sample every {}",
            size(settings.interval_bytes)
        ),
    };
    let name = word(&settings.name);
    format!(
        "started recording {recording} `{}`: {sampling}; {begins}{ends}\n\
         status:   unikprof-client connect {guest} check\n\
         download: unikprof-client connect {guest} dump --name {name}\n\
         end:      unikprof-client connect {guest} stop --name {name}\n",
        Printable(&settings.name)
    )
}

pub(super) fn discarded(name: &str, recording: u64) -> String {
    format!("recording {recording} `{}` has ended; its data was dropped\n", Printable(name))
}

/// Where a recording is, and what to do next; `names` are the options by which a report finds names.
pub(super) fn written(files: &[PathBuf], names: &str) -> String {
    let mut rows = Rows::default();
    for path in files {
        rows.add("wrote", path.display().to_string());
    }
    if let [only] = files
        && only.extension().is_some_and(|ending| ending == "unikprof")
    {
        let words = format!("{}{names} --open", path_word(only));
        rows.add("next", pasted(INDENT, "unikprof-client report", &words));
    }
    rows.0
}

/// What a recording under way costs; `None` if that is not known.
pub(super) fn cost(one: &RecordingStatus) -> Option<String> {
    let Overhead { running_ns, sampling_ns, delivery_ns, deliveries_measured } = one.overhead;
    let Counters { ticks, early, .. } = one.counters;
    let cost = Cost {
        sampling_ns,
        deliveries: if one.mode().is_heap() { 0 } else { ticks.saturating_add(early) },
        delivery_ns: (deliveries_measured != 0).then_some(delivery_ns),
        deliveries_measured,
        ..Cost::default()
    };
    let shown = || format!("{} (this epoch)", cost_of_running(&cost, running_ns));
    (running_ns != 0).then(shown)
}

/// What sampling cost in all, and its parts.
fn cost_of_running(cost: &Cost, running_ns: u64) -> String {
    let share = cost.total_ns() as f64 / running_ns as f64;
    format!("{:.2} % of running time: {}", share * 100.0, cost.text())
}

/// `1 session`, `2 sessions`.
pub(super) fn counted(count: u64, what: &str) -> String {
    match count {
        1 => format!("1 {what}"),
        _ => format!("{count} {what}s"),
    }
}

fn mapping_text(mapping: &Mapping) -> String {
    let build_id = match &mapping.build_id {
        Some(id) => format!("build-id {id}"),
        None => "no build-id".into(),
    };
    format!(
        "{:#x}-{:#x} {} ({build_id})",
        mapping.start,
        mapping.end,
        match mapping.path.as_str() {
            "" => "(no path)".into(),
            path => Printable(path).to_string(),
        }
    )
}

/// The column at which values begin.
pub(super) const INDENT: usize = 13;

/// Labels and values, one below the other.
#[derive(Default)]
pub(super) struct Rows(pub(super) String);

impl Rows {
    pub(super) fn add(&mut self, label: &str, value: impl AsRef<str>) {
        let _ = writeln!(self.0, "{label:<width$} {}", value.as_ref(), width = INDENT - 1);
    }
}

fn yes(is: bool, yes: &'static str, no: &'static str) -> &'static str {
    if is { yes } else { no }
}

pub(super) fn timestamp(unix_ns: u64) -> Option<Timestamp> {
    Timestamp::from_nanosecond(i128::from(unix_ns)).ok()
}
