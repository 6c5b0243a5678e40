//! Checks of who can reach an agent, and who has tried to.

use unikprof_proto::code::role;
use unikprof_proto::message::Peers;

use super::Answers;
use super::check::{Check, Verdict, part_of};
use unikprof_profile::agent_info::role_name;
use unikprof_profile::recorder_status::peer_words;
use unikprof_profile::units::{duration, grouped};

/// Shares of one CPU for the agent's network work that are worth a look, and bad.
const COSTLY: f64 = 0.01;
const TOO_COSTLY: f64 = 0.05;

/// Before an agent has served for so long, one client's work is a large share of the time, in ns.
const SETTLED_NS: u64 = 60_000_000_000;

/// A piece of network work this long is worth a look, in ns: an agent plans for 1 ms at most.
const LONG_NS: u64 = 10_000_000;

/// Whether the conversation is sealed, and what this client may do.
pub(super) fn access(answers: &Answers<'_>) -> Check {
    let found = answers.agent.role;
    let check = match answers.key {
        None => Check::new(
            "access",
            Verdict::Look,
            "open: anyone who can reach the port can use the agent, without a key",
        )
        .advise(
            "give the guest a key (`unikprof-client keygen`), or restrict the port to clients that \
             may see the guest's \
             code and control its recordings",
        ),
        Some(key) if matches!(found, role::VIEW | role::CONTROL | role::TRACE) => Check::new(
            "access",
            Verdict::Good,
            format!("encrypted; key {key} has the role {}", role_name(found)),
        ),
        Some(key) => Check::new(
            "access",
            Verdict::Look,
            format!(
                "encrypted; key {key} has the role `{}`, which this client does not know",
                role_name(found)
            ),
        )
        .advise("use a newer client"),
    };
    check.count("encrypted", answers.key.is_some().into()).count("role", found.into())
}

/// What the agent's network work takes from the guest.
pub(super) fn server(answers: &Answers<'_>) -> Check {
    let status = answers.status;
    let served_ns = status.agent.now_ns.saturating_sub(status.agent.server_since_ns);
    let share = part_of(status.agent.server_ns, served_ns);
    let of_share = if served_ns >= SETTLED_NS {
        Verdict::of_share(share, COSTLY, TOO_COSTLY)
    } else {
        Verdict::Good
    };
    let of_longest =
        if status.agent.server_longest_ns >= LONG_NS { Verdict::Look } else { Verdict::Good };
    Check::new(
        "server",
        of_share.max(of_longest),
        format!(
            "{} of network work in {} ({:.2} %), at most {} at once; {} open",
            duration(status.agent.server_ns),
            duration(served_ns),
            share * 100.0,
            duration(status.agent.server_longest_ns),
            match status.agent.sessions {
                1 => "1 session".to_owned(),
                sessions => format!("{sessions} sessions"),
            },
        ),
    )
    .advise(match of_share {
        Verdict::Good => {
            "the agent stops after 1 ms, so the vCPU was probably preempted: check the stolen time \
             of a recording"
        }
        _ => "find out which clients cause it, and restrict the port",
    })
    .count("served_ns", served_ns)
    .count("server_ns", status.agent.server_ns)
    .count("server_longest_ns", status.agent.server_longest_ns)
    .count("sessions", status.agent.sessions.into())
    .count("rejected", status.agent.peers.connections())
}

/// What became of connections that were refused or cut.
pub(super) fn peers(peers: &Peers) -> Check {
    let found: Vec<String> = peer_words(peers)
        .into_iter()
        .filter(|(count, _)| *count != 0)
        .map(|(count, words)| format!("{} {words}", grouped(count)))
        .collect();
    let requests = match peers.not_allowed {
        0 => None,
        1 => Some("1 request exceeded its client's role".to_owned()),
        count => Some(format!("{} requests exceeded their clients' roles", grouped(count))),
    };
    let connections = match found.as_slice() {
        [] => "no connections were rejected or dropped".to_owned(),
        found => format!("connections rejected or dropped: {}", found.join(", ")),
    };
    let finding = match requests {
        Some(requests) => format!("{connections}; {requests}"),
        None => connections,
    };
    let verdict = match (peers.connections(), peers.not_allowed) {
        (0, 0) => Verdict::Good,
        _ => Verdict::Look,
    };
    Check::new("rejected", verdict, finding)
        .advise(advice(peers))
        .count("malformed", peers.malformed)
        .count("timed_out", peers.timed_out)
        .count("turned_away", peers.turned_away)
        .count("displaced", peers.displaced)
        .count("bad_key", peers.bad_key)
        .count("bad_record", peers.bad_record)
        .count("not_allowed", peers.not_allowed)
}

fn advice(peers: &Peers) -> String {
    let advice = [
        (
            peers.bad_key,
            "wrong keys: a client without a key, or with an outdated or another guest's key file, \
             or an attacker",
        ),
        (peers.bad_record, "modified records: a faulty network, or an attacker on the way"),
        (
            peers.malformed,
            "protocol violations: a port scanner or a health check; restrict the port to clients",
        ),
        (
            peers.timed_out,
            "timeouts: a port scanner, clients on a bad connection, or an attacker that holds \
             connections open",
        ),
        (
            peers.turned_away.max(peers.displaced),
            "sessions in use: too many clients at once, or a flood; restrict the port to clients",
        ),
        (
            peers.not_allowed,
            "exceeded roles: a client with a `view` key tried something that needs the role \
             `control`",
        ),
    ];
    let due = advice.into_iter().filter(|(count, _)| *count != 0);
    due.map(|(_, text)| text).collect::<Vec<_>>().join(". ")
}
