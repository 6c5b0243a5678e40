//! Guests in Rust that were compiled without the agent.

use std::io::{Read as _, Write as _};
use std::net::{Ipv4Addr, SocketAddrV4, TcpStream};
use std::thread;
use std::time::Duration;

use unikprof_tests::guest_statistics::GuestStatistics;
use unikprof_tests::lab::LabConfig;
use unikprof_tests::profiled::{STATISTICS_PORT, with_keys};

use super::{
    BOOT, assert_keys_are_required, assert_mostly_blocked, guest, keys, record_both, rust_image,
};
use crate::xen_profile::c_kernel::with_keys::assert_dump_tells;
use crate::xen_profile::harness::{Boot, Guest, counters_add_up, on, wait_until};
use crate::xen_profile::hot_spots::assert_shares;

const RUST: &str = "rust-dropin";
const RUST_TWO: &str = "rust-dropin-two-vcpus";
/// Its second vCPU sleeps until the first one sends it an interrupt by the local APIC.
const RUST_SIGNALS: &str = "rust-dropin-signals";
/// Its second vCPU sleeps, and the first one does little. It requires keys.
const RUST_ASLEEP: &str = "rust-dropin-asleep";
/// It panics after twenty seconds.
const RUST_CRASHING: &str = "rust-dropin-crashing";
/// The address of the statistics of the guest that sleeps, on its own device.
const STATISTICS: SocketAddrV4 = SocketAddrV4::new(Ipv4Addr::new(10, 0, 2, 93), STATISTICS_PORT);
/// The address of the echo service of the guest, on its own device.
const ECHO: SocketAddrV4 = SocketAddrV4::new(Ipv4Addr::new(10, 0, 2, 90), 7);
const RUST_GUESTS: Boot = Boot {
    name: "Rust guests with the drop-in",
    config: || {
        let guests = [
            (RUST, 50, 1, "hotspots=80 echo=7"),
            (RUST_TWO, 51, 2, "hotspots=80"),
            (RUST_SIGNALS, 52, 2, "signals=20"),
            (RUST_ASLEEP, 53, 2, "signals=0 stats=7001"),
            (RUST_CRASHING, 54, 1, "hotspots=50 stuck=panic stuck_after=20"),
        ];
        let guests = guests.map(|(name, address, vcpus, work)| {
            let own = address + 40;
            let address = &format!("10.0.2.{address}");
            let settings = [("access", "open"), ("record", "flight")];
            let settings = &settings[..1 + usize::from(name == RUST_CRASHING)];
            let mut guest = guest(name, address, settings);
            guest.kernel = rust_image().into();
            guest.vcpus = vcpus;
            match name {
                RUST => guest.other_ports = vec![ECHO],
                RUST_ASLEEP => {
                    guest.store.retain(|(node, _)| !node.ends_with("access"));
                    guest = with_keys(guest, &keys());
                    guest.other_ports = vec![STATISTICS];
                }
                _ => {}
            }
            guest.command_line = format!("{work} vcpus={vcpus} ip=10.0.2.{own}/24");
            guest
        });
        Ok(LabConfig { guests: guests.into(), ..LabConfig::default() })
    },
};

/// The guest in Rust, compiled without the agent.
#[test]
#[ignore = "full: boots a real Xen"]
fn a_guest_in_rust_that_knows_nothing_of_it_has_its_shares_and_callers() {
    on(&RUST_GUESTS, |lab| {
        assert_shares(&Guest::of(lab, RUST).client().with_image(rust_image()), &[]);
    });
}

/// Its own device, driver and TCP work on beside the profiler's.
#[test]
#[ignore = "full: boots a real Xen"]
fn the_guests_own_device_carries_traffic_during_a_recording() {
    on(&RUST_GUESTS, |lab| {
        let client = Guest::of(lab, RUST).client().with_image(rust_image());
        lab.wait_for_console(RUST, "echo on port 7", BOOT).unwrap();
        let port = lab.forwarded_from(RUST, ECHO).unwrap();
        let mut stream = TcpStream::connect((Ipv4Addr::LOCALHOST, port)).unwrap();
        stream.set_read_timeout(Some(BOOT)).unwrap();
        client.must(&["start", "-F", "499"]);
        let sent: Vec<u8> = (0..8 << 10).map(|number| (number % 251) as u8).collect();
        let is_sampled = || client.status()["counters"]["recorded"].as_u64() >= Some(300);
        let mut rounds = 0;
        while rounds < 20 || !is_sampled() {
            stream.write_all(&sent).unwrap();
            let mut received = vec![0; sent.len()];
            stream.read_exact(&mut received).unwrap();
            assert_eq!(received, sent, "{rounds}");
            rounds += 1;
        }
        client.stop("run.unikprof");
        let report = client.report("run.unikprof", &["--json"]).expect_json();
        counters_add_up(&report);
    });
}

/// Guards against a wait that begins anew when its end was due: the profiler's timer fires while
/// the interrupt that ends the wait is handled.
#[test]
#[ignore = "full: boots a real Xen"]
fn a_vcpu_that_another_wakes_by_the_local_apic_does_not_sleep_on() {
    on(&RUST_GUESTS, |lab| {
        let client = Guest::of(lab, RUST_SIGNALS).client().with_image(rust_image());
        client.must(&["start", "-F", "997"]);
        let line = lab.wait_for_console(RUST_SIGNALS, "xen-guest: 20 signals beside upcalls", BOOT);
        line.unwrap();
        // It is found awake.
        client.wait_for_samples(300);
        client.stop("run.unikprof");
        let stacks = client.folded(&["--vcpu", "1", "--no-inlines"]);
        let mut stacks = stacks.iter();
        assert!(stacks.any(|(stack, _)| stack.contains("work_after_signal")));
    });
}

/// By its own count, where nothing is recorded. While it is, a tick ends its wait.
#[test]
#[ignore = "full: boots a real Xen"]
fn of_two_vcpus_one_that_sleeps_is_not_woken_unless_recorded() {
    const ASLEEP: Duration = Duration::from_secs(10);
    on(&RUST_GUESTS, |lab| {
        let [_, client] = assert_keys_are_required(lab, RUST_ASLEEP);
        let port = lab.forwarded_from(RUST_ASLEEP, STATISTICS).unwrap();
        let statistics = || GuestStatistics::read((Ipv4Addr::LOCALHOST, port).into()).unwrap();
        let before = statistics();
        // Not a wait for something to happen: the time in which nothing may.
        thread::sleep(ASLEEP);
        assert_eq!(statistics().since(&before, "vcpu1.wakes"), 0);
        client.must(&["start", "-F", "97"]);
        thread::sleep(ASLEEP);
        client.stop("run.unikprof");
        let report = client.report("run.unikprof", &["--json"]).expect_json();
        counters_add_up(&report);
        assert_mostly_blocked(&report, 1);
    });
}

/// By its panic, which calls the drop-in if it is linked in.
#[test]
#[ignore = "full: boots a real Xen"]
fn a_guest_in_rust_that_panics_leaves_its_recording() {
    on(&RUST_GUESTS, |lab| {
        assert_dump_tells(lab, RUST_CRASHING, rust_image(), &["winter", "december"]);
    });
}

/// The second one starts after the profiler. Guards against interrupts of one that the other
/// handles, and against a recording of which the other does not hear.
#[test]
#[ignore = "full: boots a real Xen"]
fn of_two_vcpus_both_are_profiled() {
    on(&RUST_GUESTS, |lab| {
        let line = lab.wait_for_console(RUST_TWO, "profiler on port", BOOT);
        assert!(line.unwrap().contains(", 2 vCPUs"));
        let guest = Guest::of(lab, RUST_TWO);
        let client = guest.client().with_image(rust_image());
        // Each by its own run states. Xen tells the one of the other's a little late, or later
        // where the machine stood still.
        wait_until("run states of both", || {
            record_both(&client);
            let report = client.report("run.unikprof", &["--json"]).expect_json();
            counters_add_up(&report);
            let mut vcpus = report["vcpus"].as_array().unwrap().iter();
            let is_right = vcpus.all(|vcpu| {
                let ns = |state: &str| vcpu["runstate"][state].as_u64().unwrap();
                let elapsed = vcpu["elapsed_ns"].as_u64().unwrap();
                let most = elapsed + elapsed / 5;
                // It rests now and then.
                (1..most).contains(&ns("running_ns")) && ns("blocked_ns") > 0
            });
            is_right.then_some(())
        });
        for vcpu in [0, 1] {
            let used = || -> f64 {
                let list = guest.dom0("xl vcpu-list $ID");
                let line = list.lines().nth(vcpu + 1).unwrap();
                // Name, id, vCPU, CPU, state, time in seconds.
                let time = line.split_whitespace().nth(5).unwrap();
                time.parse().unwrap_or_else(|_| panic!("{list}"))
            };
            let before = used();
            wait_until("work of each vCPU", || (used() > before + 0.5).then_some(()));
        }
    });
}
