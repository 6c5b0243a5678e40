//! `record --guests`: several guests at once, and which one differs.

use std::fmt::Write as _;
use std::fs;
use std::net::SocketAddr;

use serde_json::Value;

use crate::harness::{Client, Guest, Keyed, wait_until};

fn entry(name: &str, address: SocketAddr, app: &str, more: &str) -> String {
    let image = Guest::program().display();
    format!(
        "[[guests]]\nname = \"{name}\"\naddress = \"{address}\"\nimage = \"{image}\"\nlabels = {{ \
         app = \"{app}\" }}\n{more}\n"
    )
}

/// Three guests do the same, under keys or not; a fourth does something else, and a fifth is down.
#[test]
#[ignore = "full: records a guest"]
fn the_guest_that_does_something_else_is_named_and_one_that_is_down_stops_nobody() {
    let keyed = Keyed::start("shares");
    let [second, third] = [(); 2].map(|()| Guest::start("shares"));
    let odd = Guest::start("deep");
    let key = format!("key-file = \"{}\"", keyed.control.display());
    let down = SocketAddr::from(([127, 0, 0, 1], 1));
    let mut fleet = String::from("[defaults]\nrate = 997\n");
    for (name, address, app, more) in [
        ("a", keyed.guest.address(), "web", &*key),
        ("b", second.address(), "web", ""),
        ("c", third.address(), "web", ""),
        ("odd", odd.address(), "web", ""),
        ("z", down, "web", ""),
        ("f", down, "db", ""),
    ] {
        let _ = write!(fleet, "{}", entry(name, address, app, more));
    }
    let client = Client::of(second.address());
    fs::write(client.path("fleet.toml"), fleet).unwrap();
    let chosen = ["--guests", "fleet.toml", "--label", "app=web", "--json"];
    let outputs = ["-o", "run/", "-o", "run.txt", "-o", "run.folded"];
    let recording = client.record_fleet(&[&chosen[..], &outputs].concat());
    let clients = [second.address(), third.address(), odd.address()].map(Client::of);
    for client in clients.iter().chain([&keyed.owner()]) {
        // Of so many, guests that are alike are told apart by chance in less than one of 10,000,000
        // runs: six standard deviations of the difference are less than the least that is told.
        client.wait_for_status("four thousand samples", |status| {
            status["counters"]["recorded"].as_u64() >= Some(4_000)
        });
    }
    recording.interrupt();
    let finished = recording.finish().expect_code(8);
    let told: Value = serde_json::from_str(&finished.stdout).unwrap();

    let different = told["different"].as_array().unwrap();
    assert_eq!(different.len(), 1, "{told:#}");
    assert_eq!(different[0]["name"], "odd");
    let function = &different[0]["functions"][0];
    assert!(function["name"].as_str().is_some(), "{told:#}");
    let [own, rest] = ["share", "share_of_rest"].map(|key| function[key].as_f64().unwrap());
    assert!((own - rest).abs() > 0.2, "{function}");
    let guests = told["guests"].as_array().unwrap();
    let names: Vec<&str> = guests.iter().map(|it| it["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["a", "b", "c", "odd", "z"]);
    let error = guests[4]["error"].as_str().unwrap();
    assert!(error.contains("127.0.0.1:1"), "{error}");

    let mut recorded = 0;
    for guest in &guests[..4] {
        let file = guest["file"].as_str().unwrap();
        let counters = client.recording(file).profile.counters();
        assert_eq!(guest["counters"]["ticks"], counters.ticks, "{guest}");
        assert_eq!(counters.check(), Ok(()));
        recorded += counters.sampled();
    }
    // Each guest's own image has named its own samples, wherever its code lay.
    let folded = fs::read_to_string(client.path("run.folded")).unwrap();
    let counts = folded.lines().map(|line| line.rsplit_once(' ').unwrap());
    let sum: u64 = counts.clone().map(|(_, count)| count.parse::<u64>().unwrap()).sum();
    assert_eq!(sum, recorded);
    assert!(counts.clone().any(|(stack, _)| stack.contains("sixty")));
    let unnamed = counts.filter(|(stack, _)| stack.ends_with(";[program]"));
    assert_eq!(unnamed.count(), 0, "{folded}");
    let text = fs::read_to_string(client.path("run.txt")).unwrap();
    assert!(text.contains("4 guests") && text.contains("\n  odd "), "{text}");
    assert_eq!(clients[0].recording_names(), [""; 0], "nothing is left behind");
}

/// The advised command needs the guest's key.
#[test]
#[ignore = "full: records a guest"]
fn a_guest_that_dies_is_told_with_the_option_of_its_key() {
    let mut keyed = Keyed::start("shares");
    let owner = keyed.owner();
    let key = keyed.control.display().to_string();
    let option = format!("key-file = \"{key}\"");
    let fleet = entry("a", keyed.guest.address(), "web", &option);
    fs::write(owner.path("fleet.toml"), fleet).unwrap();
    let recording = owner.record_fleet(&["--guests", "fleet.toml", "--json", "-o", "run/"]);
    let fetched = owner.path("run/a.unikprof");
    wait_until("a first fetch", || fetched.exists().then_some(()));
    keyed.guest.stop();
    recording.interrupt();
    recording.interrupt();
    let finished = recording.finish();
    let advice = format!("--key-file {key} stop --name fleet-");
    assert!(finished.stdout.contains(&advice), "{finished:?}");
}

#[test]
#[ignore = "full: records a guest"]
fn what_cannot_be_recorded_together_is_told_before() {
    let client = Client::of(([127, 0, 0, 1], 1).into());
    let fleet = entry("a", client.address(), "web", "rate = 97")
        + &entry("b", client.address(), "web", "rate = 49");
    fs::write(client.path("fleet.toml"), fleet).unwrap();
    let record = |more: &[&str], code: u8, told: &str| {
        let words = [&["--guests", "fleet.toml", "1s"], more].concat();
        let finished = client.record_fleet(&words).finish().expect_code(code);
        assert!(finished.stderr.contains(told), "{finished:?}");
    };
    record(&[], 2, "`a` and `b`");
    record(&["--label", "app=db"], 2, "the fleet has app=web, guest=a");
    record(&["--label", "app"], 2, "NAME=VALUE");
    record(&["-o", "run.html"], 2, "-o FOLDER/");
    record(&["-o", "a/", "-o", "b/"], 2, "one folder");
    record(&["-F", "99"], 3, "not recorded");
}
