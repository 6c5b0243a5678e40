//! Facts in the logs of a machine: whether it has booted, which domain a guest is, how it ended.

use crate::board::{Facts, Stream};
use crate::dom0;

/// The end of a guest.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum GuestEnd {
    /// It shut itself down, rebooted or was suspended; with Xen's word.
    InOrder(String),
    /// It crashed or was killed; with Xen's word.
    Crash(String),
}

/// The outcome of the machine's boot.
pub(super) enum BootOutcome {
    Ready,
    Failed(String),
    MachineEnded,
}

pub(super) fn boot_outcome(facts: &Facts) -> Option<BootOutcome> {
    const BAD_SIGNS: [&str; 4] =
        ["Panic on CPU", "Hardware Dom0 crashed", "Kernel panic", dom0::FAILED];
    let serial = facts.text(Stream::Serial);
    if serial.contains(dom0::READY) {
        return Some(BootOutcome::Ready);
    }
    if let Some(line) = BAD_SIGNS.iter().find_map(|sign| line_with(serial, sign)) {
        return Some(BootOutcome::Failed(line));
    }
    facts.machine_ended().map(|_| BootOutcome::MachineEnded)
}

/// The domain's number, from the line with which `xl` begins to watch it.
pub(super) fn domain_id(facts: &Facts, guest: usize) -> Option<u16> {
    let (_, rest) = facts.text(Stream::Fate(guest)).split_once("(domid ")?;
    rest.split_once(')')?.0.parse().ok()
}

/// The guest's end, from `xl`'s line with the reason code of `xen/include/public/sched.h`.
pub(super) fn guest_end(facts: &Facts, guest: usize) -> Option<GuestEnd> {
    let fate = facts.text(Stream::Fate(guest));
    let Some((_, rest)) = fate.split_once("has shut down, reason code ") else {
        let gone = facts.closed(Stream::Fate(guest));
        return gone.then(|| GuestEnd::InOrder("destroyed".to_owned()));
    };
    // A triple fault reaches xl as a reboot.
    let triple_fault = domain_id(facts, guest).is_some_and(|id| {
        let vcpu = format!("d{id}v");
        let tripled = |line: &str| line.contains(&vcpu) && line.contains("Triple fault");
        facts.text(Stream::Serial).lines().any(tripled)
    });
    if triple_fault {
        return Some(GuestEnd::Crash("triple fault".to_owned()));
    }
    let code: String = rest.chars().take_while(char::is_ascii_digit).collect();
    Some(match code.as_str() {
        "0" => GuestEnd::InOrder("power off".to_owned()),
        "1" => GuestEnd::InOrder("reboot".to_owned()),
        "2" => GuestEnd::InOrder("suspend".to_owned()),
        "3" => GuestEnd::Crash("crash".to_owned()),
        "4" => GuestEnd::Crash("watchdog".to_owned()),
        other => GuestEnd::Crash(format!("reason {other}")),
    })
}

pub(super) fn console_text(facts: &Facts, guest: usize) -> String {
    ConsolePosition::default().advance(facts, guest)
}

/// A position in a guest's output, up to which it was read.
#[derive(Debug, Default)]
pub struct ConsolePosition {
    early: usize,
    console: usize,
}

impl ConsolePosition {
    /// Returns the text that came since, early lines first.
    pub(super) fn advance(&mut self, facts: &Facts, guest: usize) -> String {
        let early = domain_id(facts, guest).map_or("", |id| facts.text(Stream::Early(id)));
        let console = facts.text(Stream::Console(guest));
        let mut new = String::new();
        for (seen, text) in [(&mut self.early, early), (&mut self.console, console)] {
            new += text.get(*seen..).unwrap_or_default();
            *seen = text.len();
        }
        new
    }
}

pub(super) fn line_with(text: &str, pattern: &str) -> Option<String> {
    text.lines().find(|line| line.contains(pattern)).map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::board::Board;

    fn facts(serial: &str, fate: &str, closed: bool) -> Arc<Board> {
        let board = Arc::new(Board::default());
        board.append(Stream::Serial, serial.as_bytes());
        board.append(Stream::Fate(0), fate.as_bytes());
        if closed {
            board.close(Stream::Fate(0));
        }
        board
    }

    fn end(serial: &str, fate: &str, closed: bool) -> Option<GuestEnd> {
        facts(serial, fate, closed).look(|facts| guest_end(facts, 0))
    }

    const WAITING: &str = "Waiting for domain g (domid 3) to die [pid 120]\n";

    #[test]
    fn the_end_of_a_guest_is_told_from_its_life() {
        assert_eq!(end("", WAITING, false), None);
        let off = format!("{WAITING}Domain 3 has shut down, reason code 0 0x0\n");
        assert_eq!(end("", &off, false), Some(GuestEnd::InOrder("power off".to_owned())));
        let crash = format!("{WAITING}Domain 3 has shut down, reason code 3 0x3\n");
        assert_eq!(end("", &crash, true), Some(GuestEnd::Crash("crash".to_owned())));
        assert_eq!(end("", WAITING, true), Some(GuestEnd::InOrder("destroyed".to_owned())));
    }

    #[test]
    fn a_triple_fault_is_a_crash_of_its_own_domain_only() {
        let reboot = format!("{WAITING}Domain 3 has shut down, reason code 1 0x1\n");
        let fault =
            |domain| format!("(XEN) d{domain}v0 Triple fault - invoking HVM shutdown action 1\n");
        assert_eq!(end(&fault(3), &reboot, true), Some(GuestEnd::Crash("triple fault".to_owned())));
        assert_eq!(end(&fault(31), &reboot, true), Some(GuestEnd::InOrder("reboot".to_owned())));
    }

    #[test]
    fn a_panic_of_xen_fails_the_boot_and_readiness_wins() {
        let outcome = |serial: &str| facts(serial, "", false).look(boot_outcome);
        assert!(matches!(
            outcome("(XEN) Panic on CPU 0:\n"),
            Some(BootOutcome::Failed(line)) if line.contains("Panic")
        ));
        assert!(matches!(outcome("lab: dom0 ready\n"), Some(BootOutcome::Ready)));
        assert!(outcome("(XEN) Xen version 4.17\n").is_none());
    }
}
