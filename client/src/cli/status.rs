//! What `check` prints for people: the recordings, one below the other, and the agent's own part.

use std::fmt::Write as _;

use unikprof_proto::code::{start_flag, state};
use unikprof_proto::message::Peers;

use super::describe::{access, cost, counted, held_by, timestamp};
use unikprof_link::record::{RecorderStatus, RecordingStatus, RingFill, Session};
use unikprof_profile::agent_info::AgentInfo;
use unikprof_profile::printable::Printable;
use unikprof_profile::profile::{Counters, Mode};
use unikprof_profile::recorder_status::peer_words;
use unikprof_profile::units::{amount_with_unit, duration, grouped, percent};

/// All recordings, a line each, and the agent.
pub(super) fn all(
    status: &RecorderStatus,
    rings: &[RingFill],
    session: &Session,
    columns: Option<usize>,
) -> String {
    let recordings = match status.recordings.is_empty() {
        true => String::new(),
        false => table(&lines(status, session.agent()), columns) + "\n",
    };
    format!("{}\n{recordings}{}", verdict(&status.recordings), agent(status, rings, session))
}

/// Whether the recordings are as they should be, and what to do if not.
fn verdict(recordings: &[RecordingStatus]) -> String {
    // Fewer do not change a profile.
    const NOTABLE: f64 = 0.01;
    let lacks = |one: &&RecordingStatus| {
        let c = &one.counters;
        let dropped =
            [c.aged, c.overflow, c.lost, c.masked].into_iter().fold(0, u64::saturating_add);
        dropped as f64 > c.ticks as f64 * NOTABLE
    };
    let lacking: Vec<&RecordingStatus> = recordings.iter().filter(lacks).collect();
    let mut text = match (recordings.len(), lacking.as_slice()) {
        (0, _) => "no recordings; `start` begins one\n".to_owned(),
        (count, []) => format!("{}, no samples dropped\n", counted(count as u64, "recording")),
        _ => String::new(),
    };
    for one in lacking {
        let name = Printable(&one.name);
        let _ = writeln!(text, "`{name}` lacks samples: {}", dropped(one));
        let c = &one.counters;
        let advice = match c.aged.saturating_add(c.overflow) >= c.lost.saturating_add(c.masked) {
            true => "fetch more often (`dump`), or give the agent more memory",
            false => "`doctor` says what helps",
        };
        let _ = writeln!(text, "-> {advice}");
    }
    text
}

/// One recording in full, and the agent.
pub(super) fn one(
    one: &RecordingStatus,
    status: &RecorderStatus,
    rings: &[RingFill],
    session: &Session,
) -> String {
    let c = &one.counters;
    let interval = match (one.mode(), one.flags & start_flag::FIXED_INTERVAL) {
        (Mode::OffCpu, _) => "",
        (_, 0) => "random intervals, ",
        _ => "fixed intervals, ",
    };
    let lasts = match one.duration_ns {
        0 => "until stopped".into(),
        ns => duration(ns),
    };
    let memory = match one.flags & start_flag::KEEP_NEWEST {
        0 => "keeps all unfetched stacks; when full, new stacks are counted as overflow",
        _ => "keeps the newest stacks; when full, the oldest are dropped and counted as aged",
    };
    let windows = [one.samples_window_ns, one.stacks_window_ns];
    let [samples, stacks] = windows.map(|ns| ns.map_or("an unknown time".to_owned(), duration));
    let blocked = match c.blocks {
        0 => String::new(),
        waits => {
            let amounts = [c.blocked, c.blocked_aged, c.blocked_overflow];
            let [blocked, aged, overflowed] =
                amounts.map(|amount| amount_with_unit(amount, one.mode().unit()));
            format!(
                "blocked      {blocked} in {waits} waits, {aged} aged, {overflowed} overflowed\n"
            )
        }
    };
    let cost = cost(one).map_or(String::new(), |cost| format!("cost         {cost}\n"));
    let to_fetch = match one.epochs {
        0 => "nothing".into(),
        1 => format!("epoch {}", one.first_epoch),
        epochs => format!("{epochs} epochs, from {}", one.first_epoch),
    };
    format!(
        "{}\n\
         state        {}\n\
         recording    {} `{}`\n\
         since        {}\n\
         sampling     {}, {interval}{} frames\n\
         duration     {lasts}\n\
         keeps        {} of the ring per dump\n\
         memory       {memory}\n\
         window       at the current rate, memory is enough for {samples} of samples and {stacks} \
         of new stacks\n\
         client       {}\n\
         ticks        {}\n\
         of recorded  late {}, truncated {}, broken {}\n\
         callers      by table {}, by bytes {}, by frame pointer {}, mixed {}\n\
         {blocked}\
         {cost}\
         early        {} early wake-ups\n\
         to fetch     {to_fetch}\n\n{}",
        verdict(std::slice::from_ref(one)),
        state_text(one),
        one.recording,
        Printable(&one.name),
        since(one, session.agent()),
        one.sampling(),
        one.depth,
        keeps(one),
        held_by(one).unwrap_or("none is fetching".into()),
        Counters::from(c).equation(),
        c.late,
        c.truncated,
        c.broken,
        c.by_table,
        c.by_bytes,
        c.by_frame_pointer,
        c.mixed,
        c.early,
        agent(status, rings, session)
    )
}

/// The agent's own state.
fn agent(status: &RecorderStatus, rings: &[RingFill], session: &Session) -> String {
    let (recordings, it) = (status.recordings.len(), &status.agent);
    let live = match it.live_capacity {
        0 => String::new(),
        room => {
            let (used, room) = (grouped(it.live_used), grouped(room));
            format!("live samples {used} of {room} in use\n")
        }
    };
    let ring = match it.ring_capacity {
        0 => "none: no memory was given for it".into(),
        records => format!("{} records for each vCPU", grouped(records)),
    };
    let fills = rings.iter().map(|ring| format!("{:<12} {}\n", "", fill(ring)));
    format!(
        "recordings   {recordings} of at most {}\n\
         stacks       {} of {} stack nodes in use\n\
         {live}\
         ring         {ring}\n\
         {}\
         agent        {} open, {} of network work, at most {} at once\n\
         share        network work may use up to {} % of a CPU; clients waited {} for it\n\
         rejected     {}\n\
         access       {}\n",
        it.max_recordings,
        grouped(it.nodes_used),
        grouped(it.nodes_capacity),
        fills.collect::<String>(),
        counted(it.sessions.into(), "session"),
        duration(it.server_ns),
        duration(it.server_longest_ns),
        f64::from(it.server_share_permille) / 10.0,
        duration(it.server_deferred_ns),
        peers(&it.peers),
        access(session)
    )
}

const HEAD: [&str; 9] =
    ["NAME", "STATE", "SINCE", "SAMPLING", "KEEPS", "HOLDS", "RECORDED", "DROPPED", "TO FETCH"];

fn lines(status: &RecorderStatus, agent: &AgentInfo) -> Vec<[String; HEAD.len()]> {
    let line = |one: &RecordingStatus| {
        let c = &one.counters;
        let blocked = || amount_with_unit(c.blocked, one.mode().unit()) + " blocked";
        let recorded = match (one.mode(), c.blocked) {
            (Mode::OffCpu, _) => blocked(),
            (_, 0) => grouped(c.recorded),
            _ => format!("{} + {}", grouped(c.recorded), blocked()),
        };
        [
            Printable(&one.name).to_string(),
            state_text(one),
            since(one, agent),
            one.sampling(),
            keeps(one),
            holds(one),
            recorded,
            dropped(one),
            match (one.epochs, held_by(one)) {
                (0, None) => "-".into(),
                (0, Some(held)) => held,
                (epochs, None) => counted(epochs.into(), "epoch"),
                (epochs, Some(held)) => format!("{}, {held}", counted(epochs.into(), "epoch")),
            },
        ]
    };
    status.recordings.iter().map(line).collect()
}

/// How full a ring is.
fn fill(ring: &RingFill) -> String {
    format!(
        "vCPU {} holds {} ({}), {} older ones evicted",
        ring.vcpu,
        grouped(ring.held),
        percent(ring.held as f64 / ring.capacity.max(1) as f64),
        grouped(ring.evicted)
    )
}

/// Dropped ticks by reason.
fn dropped(one: &RecordingStatus) -> String {
    let c = &one.counters;
    let kinds =
        [("aged", c.aged), ("overflow", c.overflow), ("lost", c.lost), ("masked", c.masked)];
    let some: Vec<String> = kinds
        .iter()
        .filter(|(_, count)| *count != 0)
        .map(|(what, count)| format!("{what} {}", grouped(*count)))
        .collect();
    if some.is_empty() { "0".into() } else { some.join(", ") }
}

/// What is left out where the text is narrow, the first one first: KEEPS, SINCE, HOLDS, SAMPLING,
/// TO FETCH, DROPPED, of which the first line tells, RECORDED.
const SPARE: [usize; 7] = [4, 2, 5, 3, 8, 7, 6];

/// Columns below their heads, each as wide as its widest cell.
fn table(lines: &[[String; HEAD.len()]], columns: Option<usize>) -> String {
    let width = |column: usize| {
        let cells = lines.iter().map(|line| line[column].chars().count());
        cells.max().unwrap_or(0).max(HEAD[column].len())
    };
    let mut widths: [usize; HEAD.len()] = std::array::from_fn(width);
    for spare in SPARE {
        let shown = widths.iter().filter(|width| **width != 0);
        let width = shown.map(|width| width + 2).sum::<usize>();
        if columns.is_none_or(|columns| width <= columns + 2) {
            break;
        }
        widths[spare] = 0;
    }
    let mut out = String::new();
    let mut row = |cells: [&str; HEAD.len()]| {
        let cells = cells.iter().zip(widths).filter(|(_, width)| *width != 0);
        let padded: Vec<String> = cells.map(|(cell, width)| format!("{cell:<width$}")).collect();
        let _ = writeln!(out, "{}", padded.join("  ").trim_end());
    };
    row(HEAD);
    for line in lines {
        row(std::array::from_fn(|column| line[column].as_str()));
    }
    out
}

/// When sampling began, by the guest's clock where it has one.
fn since(one: &RecordingStatus, agent: &AgentInfo) -> String {
    // The two clocks were read together.
    let began = agent.wall_clock_ns.and_then(|wall| {
        let boot = i128::from(wall) - i128::from(agent.monotonic_ns);
        u64::try_from(boot + i128::from(one.started_ns)).ok()
    });
    match began.and_then(timestamp) {
        Some(time) => format!("{time:.0}"),
        None => format!("{} after boot", duration(one.started_ns)),
    }
}

/// How much of the ring a dump has.
fn keeps(one: &RecordingStatus) -> String {
    let age = (one.max_age_ns != 0).then(|| duration(one.max_age_ns));
    let bytes = match one.max_bytes {
        0 => None,
        bytes if bytes % 1024 == 0 => Some(format!("{} KiB", grouped(bytes / 1024))),
        bytes => Some(format!("{} bytes", grouped(bytes))),
    };
    let bounds: Vec<String> = age.into_iter().chain(bytes).collect();
    if bounds.is_empty() { "all".into() } else { bounds.join(", ") }
}

/// For how long the memory holds samples and new stacks at the present rate, while there is one.
fn holds(one: &RecordingStatus) -> String {
    let samples = one.samples_window_ns.map(|ns| format!("samples {}", duration(ns)));
    let stacks = one.stacks_window_ns.map(|ns| format!("stacks {}", duration(ns)));
    let both: Vec<String> = samples.into_iter().chain(stacks).collect();
    if both.is_empty() || one.state == state::FINISHED { "-".into() } else { both.join(", ") }
}

fn state_text(one: &RecordingStatus) -> String {
    let name = one.state_name();
    let elapsed = duration(u64::try_from(one.elapsed().as_nanos()).unwrap_or(u64::MAX));
    match (one.state, one.left()) {
        (state::DELAYED, _) => {
            let left = u64::try_from(one.delay_left().as_nanos()).unwrap_or(u64::MAX);
            format!("{name}: starts in {}", duration(left))
        }
        (state::RECORDING, Some(left)) => {
            let left = duration(u64::try_from(left.as_nanos()).unwrap_or(u64::MAX));
            format!("{name} for {elapsed}, {left} left")
        }
        (state::RECORDING, None) => format!("{name} for {elapsed}, until stopped"),
        (state::FINISHED, _) => format!("{name}: `stop` fetches it"),
        _ => name.into(),
    }
}

/// Connections that were rejected or dropped.
fn peers(peers: &Peers) -> String {
    let mut parts: Vec<String> = peer_words(peers)
        .into_iter()
        .filter(|(count, _)| *count != 0)
        .map(|(count, words)| format!("{count} {words}"))
        .collect();
    if peers.not_allowed != 0 {
        parts.push(counted(peers.not_allowed, "request") + " beyond the key's role");
    }
    if parts.is_empty() {
        "none".into()
    } else {
        format!("since the agent started: {}", parts.join(", "))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Guards rows that go on in a second line below another column.
    #[test]
    fn what_does_not_fit_is_left_out_from_the_rarest_column_on() {
        let cells = [
            "record-0badcafe",
            "recording for 12.50 s, 47.50 s left",
            "2026-11-28T14:33:26Z",
            "cpu at 997 Hz",
            "5 min, 256 KiB",
            "samples 56 min 40 s, stacks 50.82 s",
            "12,345,678",
            "aged 12,345, lost 12",
            "12 epochs, held by collector 1.0",
        ];
        let lines = [cells.map(str::to_owned)];
        assert_eq!(table(&lines, None).split_whitespace().next(), Some("NAME"));
        for (columns, head) in [
            (150, "NAME STATE SAMPLING RECORDED DROPPED TO FETCH"),
            (119, "NAME STATE RECORDED DROPPED"),
            (80, "NAME STATE RECORDED"),
        ] {
            let shown = table(&lines, Some(columns));
            let words: Vec<&str> = shown.lines().next().unwrap_or_default().split("  ").collect();
            let words: Vec<&str> = words.into_iter().filter(|word| !word.is_empty()).collect();
            assert_eq!(words.iter().map(|word| word.trim()).collect::<Vec<_>>().join(" "), head);
            assert!(shown.lines().all(|line| line.chars().count() <= columns), "{shown}");
        }
    }
}
