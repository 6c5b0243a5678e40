//! The lab and the guest on a real Xen. Skipped by name where a machine cannot run one.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream};
use std::time::Duration;

use unikprof_demo_service::{RequestGenerator, Service};
use unikprof_tests::lab::{
    GuestConfig, GuestEnd, Lab, LabConfig, LabError, build_xen_guest, run_or_skip,
};
use unikprof_tests::profiled::FEATURES;

/// For a machine that is busy with other things, and stands still now and then.
const SOON: Duration = Duration::from_secs(600);

fn guest(name: &str, command_line: &str) -> Result<GuestConfig, LabError> {
    let mut guest = GuestConfig::new(name, build_xen_guest(FEATURES)?);
    guest.command_line = command_line.to_owned();
    Ok(guest)
}

/// One boot serves all that needs no guest of its own: a boot costs both processors for seconds.
#[test]
#[ignore = "full: boots a real Xen"]
fn the_ways_a_guest_ends_are_told_apart() {
    run_or_skip(|| {
        let lab = Lab::start(LabConfig {
            guests: vec![
                guest("panics", "misbehave=panic")?,
                guest("faults", "misbehave=null")?,
                guest("triples", "misbehave=triple-fault")?,
                guest("leaves", "misbehave=power-off")?,
                guest("lives", "")?,
            ],
            ..LabConfig::default()
        })?;
        let never = |guest: &str, within| lab.wait_for_console(guest, "no such line", within);

        let error = never("panics", SOON).unwrap_err();
        assert!(matches!(&error, LabError::GuestCrashed { how, .. } if how == "crash"), "{error}");
        assert!(error.to_string().contains("asked to panic"), "{error}");

        let error = never("faults", SOON).unwrap_err();
        assert!(matches!(error, LabError::GuestCrashed { .. }), "{error}");
        // Page fault, read of an absent page, at the address that was read.
        assert!(error.to_string().contains("exception 14 error 0x0 at 0x2"), "{error}");
        assert!(error.to_string().contains("address 0x8,"), "{error}");

        let error = never("triples", SOON).unwrap_err();
        assert!(
            matches!(&error, LabError::GuestCrashed { how, .. } if how == "triple fault"),
            "{error}"
        );

        let error = never("leaves", SOON).unwrap_err();
        assert!(
            matches!(&error, LabError::GuestEnded { reason, .. } if reason == "power off"),
            "{error}"
        );
        assert_eq!(lab.wait_for_end("leaves", SOON)?, GuestEnd::InOrder("power off".to_owned()));

        let line = lab.wait_for_console("lives", "up on Xen", SOON)?;
        assert_eq!(line, "xen-guest: up on Xen 4.17");
        let error = never("lives", Duration::from_millis(300)).unwrap_err();
        assert!(matches!(error, LabError::TimedOut { .. }), "{error}");

        let list = lab.dom0("xl list", SOON)?;
        assert_eq!(list.status, 0, "{}", list.text);
        assert!(list.text.contains("Domain-0") && list.text.contains("lives"), "{}", list.text);
        assert_eq!(lab.dom0("echo one\necho two >&2; exit 3", SOON)?.text, "one\ntwo\n");
        assert_eq!(lab.dom0("exit 3", SOON)?.status, 3);
        let error = lab.dom0("sleep 60", Duration::from_millis(300)).unwrap_err();
        assert!(matches!(error, LabError::TimedOut { .. }), "{error}");
        assert_eq!(lab.dom0("xl shutdown lives", SOON)?.status, 0);
        assert_eq!(lab.wait_for_end("lives", SOON)?, GuestEnd::InOrder("power off".to_owned()));
        Ok(())
    });
}

/// Guards against an upcall that changes what it interrupts: registers, SSE state, the red zone.
#[test]
#[ignore = "full: boots a real Xen"]
fn interrupted_work_computes_what_it_computes_undisturbed() {
    run_or_skip(|| {
        let mut guest = guest("works", "load=100 bare=200 vcpus=2")?;
        guest.vcpus = 2;
        let lab = Lab::start(LabConfig::with_guest(guest))?;
        for vcpu in 0..2 {
            let line = lab.wait_for_console("works", &format!("load {vcpu}: "), 2 * SOON)?;
            let [requests, ..] = numbers(&line)[1..] else { panic!("{line}") };
            let expected = format!("checksum {:#x},", checksum_of(requests, 1 + vcpu));
            assert!(line.contains(&expected), "{line}, not {expected}");
            assert!(!line.contains(" 0 ticks"), "nothing interrupted it: {line}");
        }
        Ok(())
    });
}

fn checksum_of(requests: u64, seed: u64) -> u64 {
    let mut service = Service::new(seed, 128);
    let mut response = Vec::new();
    for request in RequestGenerator::new(seed, 128).take(requests as usize) {
        service.handle(&request, &mut response);
    }
    service.checksum()
}

#[test]
#[ignore = "full: boots a real Xen"]
fn a_guest_serves_tcp_with_a_static_address_and_with_one_from_dhcp() {
    run_or_skip(|| {
        let mut by_dhcp = guest("by-dhcp", "ip=dhcp echo=7")?;
        by_dhcp.ports = vec![7];
        let mut fixed = guest("fixed", "echo=7")?;
        fixed.ports = vec![7];
        let lab = Lab::start(LabConfig { guests: vec![by_dhcp, fixed], ..LabConfig::default() })?;
        lab.wait_for_console("by-dhcp", "address 10.0.2.50/24", SOON)?;
        lab.wait_for_console("fixed", "address 10.0.2.51/24", SOON)?;
        for guest in ["by-dhcp", "fixed"] {
            lab.wait_for_console(guest, "echo on port 7", SOON)?;
            let port = lab.forwarded(guest, 7).unwrap();
            // More than any buffer on the way holds, so both directions flow at once.
            let sent: Vec<u8> = (0..200_000_u32).flat_map(u32::to_le_bytes).collect();
            // One after the other more connections than the guest has sockets: each is used again.
            for _ in 0..2 {
                assert_eq!(echo(port, &sent[..40]).unwrap(), &sent[..40], "{guest}");
            }
            let received = echo(port, &sent).unwrap();
            assert!(received == sent, "{guest}: {} of {} bytes", received.len(), sent.len());
            for _ in 0..4 {
                assert_eq!(echo(port, b"again").unwrap(), b"again", "{guest}");
            }
        }
        assert_eq!(lab.forwarded("fixed", 8), None);
        Ok(())
    });
}

/// Sends `data`, closes, and returns what came back before the other side closed.
fn echo(port: u16, data: &[u8]) -> std::io::Result<Vec<u8>> {
    let mut stream = TcpStream::connect(("127.0.0.1", port))?;
    stream.set_read_timeout(Some(SOON))?;
    stream.set_write_timeout(Some(SOON))?;
    let mut writer = stream.try_clone()?;
    let mut received = Vec::new();
    std::thread::scope(|scope| {
        let sending = scope.spawn(move || {
            writer.write_all(data)?;
            writer.shutdown(Shutdown::Write)
        });
        stream.read_to_end(&mut received)?;
        sending.join().unwrap()
    })?;
    Ok(received)
}

/// The numbers among the words of a line.
fn numbers(line: &str) -> Vec<u64> {
    line.split(|c: char| !c.is_ascii_digit()).filter_map(|word| word.parse().ok()).collect()
}
