//! The drop-in: the kernel in C, compiled without an agent, is profiled through a second network device.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;
use std::thread;
use std::time::Duration;

use serde_json::Value;
use tempfile::TempDir;
use unikprof_client::exit_code;
use unikprof_client::profile::VcpuStats;
use unikprof_client::recording::Completeness;
use unikprof_tests::c_xen_guest::{Agent, build_c_xen_guest};
use unikprof_tests::lab::{GuestConfig, Lab, LabConfig, LabError, build_xen_guest_with_dropin};
use unikprof_tests::profiled::{PROFILER_PORT, with_keys};
use unikprof_tests::soak::random::Random;
use unikprof_tests::soak::target::{KeyFiles, Keys};

use crate::c_kernel::full::assert_dump_tells;
use crate::harness::{Boot, Client, Guest, counters_add_up, on, wait_until, without_lab};
use crate::hot_spots::assert_shares;

const NAME: &str = "c-dropin";
const KEYED: &str = "c-dropin-keyed";
const CONFIGURED: &str = "c-dropin-configured";
const BOOT: Duration = Duration::from_secs(120);

const KERNELS: Boot = Boot {
    name: "C kernels with the drop-in",
    config: || {
        let keyed = guest(KEYED, "10.0.2.51", &[("record", "flight")]);
        let mut configured = guest(CONFIGURED, "10.0.2.52", &[]);
        configured.kernel = configured_image()?;
        configured.store.clear();
        Ok(LabConfig {
            guests: vec![
                guest(NAME, "10.0.2.50", &[("access", "open")]),
                with_keys(keyed, &keys()),
                configured,
            ],
            ..LabConfig::default()
        })
    },
};

const ASLEEP: &str = "c-dropin-asleep";
const STUCK: &str = "c-dropin-stuck";
/// Its upcall stays pending: it looks for events in its threads.
const LAZY: &str = "c-dropin-lazy";
/// The same at work, with waits.
const LAZY_WAITS: &str = "c-dropin-lazy-waits";
/// It waits by a hypercall.
const BLOCKS: &str = "c-dropin-blocks";
const BLOCKS_ASLEEP: &str = "c-dropin-blocks-asleep";
/// It ends by a page fault, after twenty seconds.
const CRASHING: &str = "c-dropin-crashing";
const OTHERS: Boot = Boot {
    name: "C kernels with the drop-in and other work",
    config: || {
        let guests = [
            (ASLEEP, "work=sleep"),
            (STUCK, "work=stuck"),
            (LAZY, "work=stuck events=lazy"),
            (LAZY_WAITS, "events=lazy"),
            (BLOCKS, "wait=block"),
            (BLOCKS_ASLEEP, "work=sleep wait=block"),
            (CRASHING, "fault=page"),
        ];
        let guests = guests.iter().zip(50..).map(|((name, words), host)| {
            let settings = [("access", "open"), ("record", "flight")];
            let settings = &settings[..1 + usize::from(*name == CRASHING)];
            let mut guest = guest(name, &format!("10.0.2.{host}"), settings);
            guest.command_line = (*words).into();
            guest
        });
        Ok(LabConfig {
            guests: guests.collect(),
            ..LabConfig::default()
        })
    },
};

/// It uses the local APIC's timer itself, some time after the start; or changes its interrupt table.
const EARLY: &str = "c-dropin-early";
const LATER: &str = "c-dropin-later";
const TABLE: &str = "c-dropin-table";
const GATE: &str = "c-dropin-gate";
const MEDDLERS: Boot = Boot {
    name: "C kernels that use what the drop-in uses",
    config: || {
        let guests = [(LATER, "timer"), (TABLE, "table"), (GATE, "gate")];
        let guests = guests.iter().zip(50..).map(|((name, word), host)| {
            let mut guest = guest(name, &format!("10.0.2.{host}"), &[("access", "open")]);
            guest.command_line = format!("meddle={word}");
            guest
        });
        Ok(LabConfig {
            guests: guests.collect(),
            ..LabConfig::default()
        })
    },
};

const RUST: &str = "rust-dropin";
const RUST_TWO: &str = "rust-dropin-two-vcpus";
const RUST_GUESTS: Boot = Boot {
    name: "Rust guests with the drop-in",
    config: || {
        let guests = [(RUST, 50, 1), (RUST_TWO, 51, 2)];
        let guests = guests.map(|(name, address, vcpus)| {
            let own = address + 40;
            let address = &format!("10.0.2.{address}");
            let mut guest = guest(name, address, &[("access", "open")]);
            guest.kernel = rust_image().into();
            guest.vcpus = vcpus;
            guest.command_line = format!("hotspots=80 vcpus={vcpus} ip=10.0.2.{own}/24");
            guest
        });
        Ok(LabConfig {
            guests: guests.into(),
            ..LabConfig::default()
        })
    },
};

const RESTORED: &str = "c-dropin-restored";
const SAVED: Boot = Boot {
    name: "C kernel with the drop-in, to be saved",
    config: || {
        let mut guest = with_keys(guest(RESTORED, "10.0.2.50", &[]), &keys());
        guest.command_line = "tools=follow".into();
        Ok(LabConfig {
            // The image of the guest's memory lies on dom0's RAM disk.
            extra_dom0_memory_mb: 128,
            ..LabConfig::with_guest(guest)
        })
    },
};

const RESTORED_TWO: &str = "rust-dropin-restored";
const SAVED_TWO: Boot = Boot {
    name: "Rust guest with the drop-in and two vCPUs, to be saved",
    config: || {
        let mut guest = guest(RESTORED_TWO, "10.0.2.50", &[("access", "open")]);
        guest.kernel = rust_image().into();
        guest.vcpus = 2;
        guest.command_line = "hotspots=80 vcpus=2 ip=10.0.2.90/24".into();
        Ok(LabConfig {
            extra_dom0_memory_mb: 128,
            ..LabConfig::with_guest(guest)
        })
    },
};

fn image() -> &'static Path {
    static IMAGE: OnceLock<PathBuf> = OnceLock::new();
    IMAGE.get_or_init(|| build_c_xen_guest(Agent::DropIn).unwrap())
}

fn rust_image() -> &'static Path {
    static IMAGE: OnceLock<PathBuf> = OnceLock::new();
    IMAGE.get_or_init(|| build_xen_guest_with_dropin().unwrap())
}

/// The image with what the others have in xenstore.
fn configured_image() -> Result<PathBuf, LabError> {
    let from = image();
    let to = from.with_added_extension("configured");
    let folder = TempDir::with_prefix("unikprof-keys-").unwrap();
    let KeyFiles { control, .. } = KeyFiles::write(&keys(), folder.path()).unwrap();
    let [from, to, control] = [from, &to, &control].map(|path| path.to_str().unwrap());
    let done = Command::new(env!("CARGO_BIN_EXE_hosted-client"))
        .args(["configure", from, "-o", to, "--control", control])
        .args(["--address", "10.0.2.52/24", "--record", "boot"])
        .output()
        .unwrap();
    assert!(done.status.success(), "{done:?}");
    Ok(to.into())
}

fn keys() -> Keys {
    Keys::draw(&mut Random::new(12))
}

/// Those that replace them.
fn later_keys() -> Keys {
    Keys::draw(&mut Random::new(13))
}

/// The guest's own device comes first; the profiler's has the address that the lab forwards to.
fn guest(name: &str, address: &str, settings: &[(&str, &str)]) -> GuestConfig {
    let mut guest = GuestConfig::new(name, image());
    guest.ports = vec![PROFILER_PORT];
    guest.interfaces = vec!["ip=10.0.2.90".into(), format!("ip={address}")];
    let address = format!("{address}/24");
    let settings = [("address", &*address)]
        .into_iter()
        .chain(settings.iter().copied());
    guest.store = settings
        .map(|(node, value)| (format!("data/unikprof/{node}"), value.to_owned()))
        .collect();
    guest
}

fn client(lab: &Lab, name: &str) -> Client {
    Guest::of(lab, name).client().with_image(image())
}

fn record(client: &Client, mode: &str, enough: impl Fn(&Value) -> bool) -> Value {
    let image = image().to_str().unwrap();
    client.must(&["start", "-F", "499", "--mode", mode, "--image", image]);
    wait_until("the samples", || {
        thread::sleep(Duration::from_millis(300));
        enough(&client.status()["counters"]).then_some(())
    });
    client.stop("run.unikprof");
    let report = client.report("run.unikprof", &["--json", "--no-inlines"]);
    report.expect_json()
}

/// Samples of a function alone.
fn own(report: &Value, name: &str) -> u64 {
    let functions = report["functions"].as_array().unwrap();
    let found = functions.iter().find(|function| function["name"] == name);
    found.map_or(0, |function| function["self"].as_u64().unwrap())
}

/// `grind` works five parts, `knead` three: with whole stacks, down to the start of their threads.
#[test]
fn a_kernel_that_knows_nothing_of_it_is_profiled() {
    on(&KERNELS, |lab| {
        let client = client(lab, NAME);
        let report = record(&client, "cpu", |counters| {
            counters["recorded"].as_u64() >= Some(1_500)
        });
        counters_add_up(&report);
        let ratio = own(&report, "grind") as f64 / own(&report, "knead") as f64;
        assert!((1.2..2.3).contains(&ratio), "{ratio}: {report:#}");
        let stacks = client.folded(&["--no-inlines"]);
        let all: u64 = stacks.iter().map(|(_, count)| count).sum();
        let whole = stacks
            .iter()
            .filter(|(stack, _)| stack.contains("thread_begin;"));
        let whole: u64 = whole.map(|(_, count)| count).sum();
        assert!(whole * 100 >= all * 95, "{whole} of {all}");
        let ground = stacks
            .iter()
            .any(|(stack, _)| stack.ends_with("miller;mill;grind"));
        assert!(ground, "{stacks:#?}");
    });
}

/// The guest in Rust, compiled without the agent.
#[test]
fn a_guest_in_rust_that_knows_nothing_of_it_has_its_shares_and_callers() {
    on(&RUST_GUESTS, |lab| {
        assert_shares(&Guest::of(lab, RUST).client().with_image(rust_image()));
    });
}

/// The second one starts after the profiler. Guards against interrupts of one that the other handles, and against a
/// recording of which the other does not hear.
#[test]
fn of_two_vcpus_both_are_profiled() {
    on(&RUST_GUESTS, |lab| {
        let line = lab.wait_for_console(RUST_TWO, "profiler on port", BOOT);
        assert!(line.unwrap().contains(", 2 vCPUs"));
        let guest = Guest::of(lab, RUST_TWO);
        let client = guest.client().with_image(rust_image());
        record_both(&client);
        let report = client.report("run.unikprof", &["--json"]).expect_json();
        counters_add_up(&report);
        // Each by its own run states.
        for vcpu in report["vcpus"].as_array().unwrap() {
            let ns = |state: &str| vcpu["runstate"][state].as_u64().unwrap();
            let elapsed = vcpu["elapsed_ns"].as_u64().unwrap();
            // Xen tells the one of the other's states a little late.
            let most = elapsed + elapsed / 5;
            assert!((1..most).contains(&ns("running_ns")), "{vcpu:#}");
        }
        for vcpu in [0, 1] {
            let used = || -> f64 {
                let list = guest.dom0("xl vcpu-list $ID");
                let line = list.lines().nth(vcpu + 1).unwrap();
                // Name, id, vCPU, CPU, state, time in seconds.
                let time = line.split_whitespace().nth(5).unwrap();
                time.parse().unwrap_or_else(|_| panic!("{list}"))
            };
            let before = used();
            wait_until("work of each vCPU", || {
                (used() > before + 0.5).then_some(())
            });
        }
    });
}

/// Records until both of two vCPUs have samples.
fn record_both(client: &Client) {
    // The guest has more work than processors.
    let recordings = ["5s", "30s", "120s"].into_iter();
    let mut recordings = recordings.map(|time| client.record(time, &["-F", "499"]));
    let is_sampled = |vcpu: &VcpuStats| vcpu.counters.recorded >= 100;
    let recording = recordings.find(|it| it.profile.vcpus().iter().all(is_sampled));
    let recording = recording.expect("samples of both vCPUs in two minutes");
    assert_eq!(recording.profile.vcpus().len(), 2);
}

/// Guards against waits that are charged from the first interrupt in them only, or not at all, or twice.
#[test]
fn waits_are_blocked_time() {
    on(&KERNELS, |lab| assert_waits_are_told(lab, NAME));
}

/// With upcalls left pending meanwhile, and by a hypercall.
#[test]
fn other_kinds_of_waits_are_blocked_time() {
    on(&OTHERS, |lab| {
        assert_waits_are_told(lab, LAZY_WAITS);
        assert_waits_are_told(lab, BLOCKS);
    });
}

fn assert_waits_are_told(lab: &Lab, name: &str) {
    let client = client(lab, name);
    let waits = |counters: &Value| counters["blocks"].as_u64() >= Some(100);
    let report = record(&client, "off-cpu", waits);
    let blocked_ns = report["vcpus"][0]["runstate"]["blocked_ns"]
        .as_u64()
        .unwrap();
    let told_ns = report["counters"]["blocked"].as_u64().unwrap();
    // Xen's account begins and ends a little beside the recording's.
    assert!(
        told_ns.abs_diff(blocked_ns) < blocked_ns / 50 + 20_000_000,
        "{told_ns} of {blocked_ns}: {report:#}"
    );
    // The ring tells each wait by its times.
    let by_ring = client.report("run.unikprof", &["--json", "--no-inlines", "--from", "0s"]);
    let by_ring = by_ring.expect_json();
    let ring_ns = by_ring["counters"]["blocked"].as_u64().unwrap();
    assert!(
        ring_ns.abs_diff(told_ns) < told_ns / 5,
        "{ring_ns} of {told_ns}: {by_ring:#}"
    );
}

/// How often the guest was woken in the quietest of some naps of ten seconds, as it tells itself: a busy machine shows the
/// end of a nap late, so that the next one may have had a client.
fn wakes_in_a_nap(lab: &Lab, name: &str) -> u64 {
    const NAPS: usize = 3;
    const ENOUGH: u64 = 20;
    let mut least = u64::MAX;
    for _ in 0..NAPS {
        least = least.min(wakes_in_the_next_nap(lab, name));
        if least < ENOUGH {
            break;
        }
    }
    least
}

/// The same of the next nap; the first that is not over is not the one.
fn wakes_in_the_next_nap(lab: &Lab, name: &str) -> u64 {
    const SOON: Duration = Duration::from_millis(200);
    let line =
        |nap: u64, within| lab.wait_for_console(name, &format!("c-xen: nap 0x{nap:016x},"), within);
    let under_way = (1..).find(|nap| line(*nap, SOON).is_err()).unwrap();
    let line = line(under_way + 1, BOOT).unwrap();
    let (_, wakes) = line.rsplit_once("0x").unwrap();
    u64::from_str_radix(wakes.trim(), 16).unwrap()
}

/// By the guest's own count: neither ticks nor clients wake it, and the network's broadcasts are few.
#[test]
fn a_guest_that_sleeps_is_not_woken() {
    on(&OTHERS, |lab| {
        for name in [ASLEEP, BLOCKS_ASLEEP] {
            assert_not_woken(lab, name);
        }
    });
}

fn assert_not_woken(lab: &Lab, name: &str) {
    let client = client(lab, name);
    let before = wakes_in_a_nap(lab, name);
    client.must(&["start", "-F", "1997", "--mode", "wall"]);
    let recorded = wakes_in_a_nap(lab, name);
    for wakes in [before, recorded] {
        assert!((1..20).contains(&wakes), "{before}, recorded {recorded}");
    }
    // The guest's own events.
    let told = client.must(&["events", "--json"]).stdout;
    assert!(told.contains("\"nap\""), "{told}");
    client.stop("run.unikprof");
    let report = client.report("run.unikprof", &["--json"]).expect_json();
    let blocked = report["vcpus"][0]["runstate"]["blocked_ns"]
        .as_u64()
        .unwrap();
    let elapsed = report["vcpus"][0]["elapsed_ns"].as_u64().unwrap();
    assert!(blocked > elapsed / 2, "{report:#}");
}

#[test]
fn a_guest_that_is_stuck_is_reached_and_recorded() {
    on(&OTHERS, |lab| {
        for name in [STUCK, LAZY] {
            lab.wait_for_console(name, "stuck in a loop", BOOT).unwrap();
            record_stuck(lab, name);
        }
    });
}

fn record_stuck(lab: &Lab, name: &str) {
    let client = client(lab, name);
    let report = record(&client, "cpu", |counters| {
        counters["recorded"].as_u64() >= Some(500)
    });
    counters_add_up(&report);
    let stacks = client.folded(&["--no-inlines"]);
    // The profiler's network work has a tenth of a CPU, of which the guest may have less: of the guest's own time it is more.
    let (agent, stacks): (Vec<_>, Vec<_>) = stacks
        .into_iter()
        .partition(|(stack, _)| stack.starts_with("[unikprof agent]"));
    let agent: u64 = agent.iter().map(|(_, count)| count).sum();
    let ns = |value: &Value| value.as_u64().unwrap();
    let agent_ns = agent * ns(&report["recording"]["period_ns"]);
    let elapsed_ns = ns(&report["vcpus"][0]["elapsed_ns"]);
    assert!(
        agent_ns < elapsed_ns / 5 + 200_000_000,
        "{agent_ns} of {elapsed_ns}"
    );
    let all: u64 = stacks.iter().map(|(_, count)| count).sum();
    let stuck = stacks
        .iter()
        .filter(|(stack, _)| stack.contains("stuck;spin"));
    let stuck: u64 = stuck.map(|(_, count)| count).sum();
    assert!(
        stuck > 100 && stuck * 10 >= all * 9,
        "{name}: {stuck} of {all}: {stacks:#?}"
    );
}

/// Its own ticks continue, and the profiler ends its own.
#[test]
fn a_guest_that_uses_the_timer_itself_keeps_it() {
    on(&MEDDLERS, |lab| {
        lab.wait_for_console(LATER, "unikprof: no more ticks", BOOT)
            .unwrap();
        assert_has_ticks_of_its_own(lab, LATER);
    });
}

fn assert_has_ticks_of_its_own(lab: &Lab, name: &str) {
    wait_until("ticks of the guest's own", || {
        let lines = lab.guest_console(name).unwrap();
        let lines = lines.lines();
        let counts = lines.filter_map(|line| line.split_once("own ticks 0x"));
        let counts = counts.map(|(_, count)| u64::from_str_radix(count.trim(), 16).unwrap());
        (counts.filter(|count| *count > 0).count() >= 3).then_some(())
    });
}

/// It is profiled again when it says so.
#[test]
fn a_guest_that_changes_its_interrupt_table_goes_on() {
    on(&MEDDLERS, |lab| {
        for name in [TABLE, GATE] {
            lab.wait_for_console(name, "c-xen: has meddled", BOOT)
                .unwrap();
            lab.wait_for_console(name, "c-xen: own ticks", BOOT)
                .unwrap();
            lab.wait_for_console(name, "unikprof: connected again", BOOT)
                .unwrap();
            let client = client(lab, name);
            client.must(&["start"]);
            client.wait_for_samples(100);
            client.stop("run.unikprof");
        }
    });
}

/// By its own `panic`, which knows nothing of the profiler.
#[test]
fn a_guest_that_ends_by_its_own_panic_leaves_its_recording() {
    on(&OTHERS, |lab| assert_dump_tells(lab, CRASHING, image()));
}

/// Guards against a port of the old domain that is another's in the new one, clocks that begin anew, and a key that was
/// withdrawn and still opens.
#[test]
fn a_recording_goes_on_after_a_save_and_restore() {
    on(&SAVED, |lab| {
        let guest = Guest::of_recording(lab, RESTORED);
        let folders = [keys(), later_keys()].map(|keys| {
            let folder = TempDir::with_prefix("unikprof-keys-").unwrap();
            let files = KeyFiles::write(&keys, folder.path()).unwrap();
            (folder, files)
        });
        let [former, client] = folders.each_ref().map(|(_, files)| {
            let client = guest.client().with_image(image());
            client.with_key(&files.control)
        });
        former.must(&["start"]);
        let before = former.wait_for_samples(300);
        guest.dom0(&format!("xl save {RESTORED} /tmp/image"));
        let later = with_keys(GuestConfig::new(RESTORED, image()), &later_keys());
        lab.restore(RESTORED, "/tmp/image", &later.store, BOOT)
            .unwrap();
        let line = lab.wait_for_console(RESTORED, "unikprof: connected again", BOOT);
        assert!(line.unwrap().contains("named in xenstore now"));
        assert_no_watches(lab, RESTORED);
        let refused = former.connect(&["check"]);
        refused.expect_code(exit_code::KEY);
        // Samples were taken before the suspend, too.
        let resumed = client.status()["counters"]["recorded"].as_u64().unwrap();
        let after = client.wait_for_samples(resumed + 300);
        assert_eq!(after["recording"], before["recording"]);
        client.stop("run.unikprof");
        let report = client.report("run.unikprof", &["--json"]).expect_json();
        assert!(counters_add_up(&report) >= resumed + 300);
        let told = client.must(&["events", "--json"]);
        let resumed = told.stdout.matches("\"kind\":\"resumed\"").count();
        assert_eq!(resumed, 1, "{}", told.stdout);
        let vcpu = &report["vcpus"][0];
        let elapsed = vcpu["elapsed_ns"].as_u64().unwrap();
        let running = vcpu["runstate"]["running_ns"].as_u64().unwrap();
        assert!((elapsed / 10..=elapsed).contains(&running), "{vcpu:#}");
    });
}

/// Guards against a vCPU that is not prepared in the new domain, and against a second one that connects the network, too:
/// in this guest both ask for it.
#[test]
fn two_vcpus_are_sampled_after_a_save_and_restore() {
    on(&SAVED_TWO, |lab| {
        let guest = Guest::of(lab, RESTORED_TWO);
        let client = guest.client().with_image(rust_image());
        client.must(&["start", "-F", "499"]);
        client.wait_for_samples(300);
        guest.dom0(&format!("xl save {RESTORED_TWO} /tmp/image"));
        let store = self::guest(RESTORED_TWO, "10.0.2.50", &[("access", "open")]).store;
        lab.restore(RESTORED_TWO, "/tmp/image", &store, BOOT)
            .unwrap();
        lab.wait_for_console(RESTORED_TWO, "unikprof: connected again", BOOT)
            .unwrap();
        let resumed = client.status()["counters"]["recorded"].as_u64().unwrap();
        client.wait_for_samples(resumed + 300);
        client.stop("run.unikprof");
        let report = client.report("run.unikprof", &["--json"]).expect_json();
        counters_add_up(&report);
        let told = client.must(&["events", "--json"]);
        let resumed = told.stdout.matches("\"kind\":\"resumed\"").count();
        assert_eq!(resumed, 1, "{}", told.stdout);
        record_both(&client);
    });
}

/// The kernel in C has no watches, so all that its domain has are the profiler's.
fn assert_no_watches(lab: &Lab, name: &str) {
    let id = lab.domain_id(name).unwrap();
    let script = format!("xenstore-control quota {id}");
    let quota = lab.dom0(&script, Duration::from_secs(30)).unwrap().text;
    let watches = quota.lines().find_map(|line| {
        let (what, count) = line.split_once(':')?;
        (what.trim() == "watches").then(|| count.trim().parse::<u32>())
    });
    assert_eq!(watches, Some(Ok(0)), "{quota}");
}

/// The guest's handler does not run for the profiler's events, and its own device stays as it was. Guards against watches
/// that the start leaves behind, whose events would be in the guest's ring.
#[test]
fn the_guests_own_device_is_left_alone() {
    on(&KERNELS, |lab| {
        client(lab, NAME).must(&["info"]);
        let id = lab.domain_id(NAME).unwrap();
        let script = format!(
            "xenstore-ls /local/domain/{id}/device/vif; xenstore-ls /local/domain/{id}/data"
        );
        let nodes = lab.dom0(&script, Duration::from_secs(30)).unwrap().text;
        let values = |name: &str| -> Vec<u32> {
            let lines = nodes.lines().filter(|line| line.contains(name));
            let values = lines.filter_map(|line| line.split('"').nth(1)?.parse().ok());
            values.collect()
        };
        // Both are connected, each by its own event channel.
        assert_eq!(values("state ="), [4, 4], "{nodes}");
        let channels = values("event-channel ");
        assert!(channels.len() == 2 && channels[0] != channels[1], "{nodes}");
        // The guest's first frame of the grant table, and the last one of the domain.
        let [guests, ours] = values("tx-ring-ref")[..] else {
            panic!("{nodes}");
        };
        assert!(guests < 512 && ours >= 512, "{nodes}");
        assert_no_watches(lab, NAME);
    });
}

#[test]
fn keys_and_a_recording_from_boot_come_from_xenstore() {
    on(&KERNELS, |lab| {
        let guest = Guest::of_recording(lab, KEYED);
        guest
            .client()
            .connect(&["info"])
            .expect_code(exit_code::KEY);
        let folder = TempDir::with_prefix("unikprof-keys-").unwrap();
        let KeyFiles { view, control, .. } = KeyFiles::write(&keys(), folder.path()).unwrap();
        let [view, control] = [view, control].map(|key| guest.client().with_key(&key));
        assert_eq!(view.recording_names(), ["flight"]);
        view.connect(&["start"]).expect_code(exit_code::KEY);
        let recording = control.record("2s", &["--name", "second"]);
        assert_eq!(recording.completeness, Completeness::Complete);
    });
}

/// For tenants who cannot write to xenstore.
#[test]
fn keys_and_an_address_come_from_the_image() {
    on(&KERNELS, |lab| {
        let guest = Guest::of_recording(lab, CONFIGURED);
        let folder = TempDir::with_prefix("unikprof-keys-").unwrap();
        let KeyFiles { view, control, .. } = KeyFiles::write(&keys(), folder.path()).unwrap();
        // The other key is in xenstore of another guest only.
        guest
            .client()
            .with_key(&view)
            .connect(&["info"])
            .expect_code(exit_code::KEY);
        assert_eq!(
            guest.client().with_key(&control).recording_names(),
            ["boot"]
        );
    });
}

/// Without a key, and without `open`, nobody may connect; and a timer that the guest uses cannot be had. The console says
/// so, and the guest runs.
#[test]
fn without_access_or_timer_it_says_so_and_the_guest_runs() {
    without_lab(|| {
        let mut early = guest(EARLY, "10.0.2.51", &[("access", "open")]);
        early.command_line = "meddle=early".into();
        let lab = Lab::start(LabConfig {
            guests: vec![guest(NAME, "10.0.2.50", &[]), early],
            ..LabConfig::default()
        });
        let lab = lab.unwrap();
        for (name, reason) in [
            (NAME, "no client may connect"),
            (EARLY, "the guest uses the local APIC's timer itself"),
        ] {
            let line = format!("unikprof: not started: {reason}");
            for text in [&line, "c-xen: at work"] {
                lab.wait_for_console(name, text, BOOT).unwrap();
            }
        }
        assert_has_ticks_of_its_own(&lab, EARLY);
    });
}
