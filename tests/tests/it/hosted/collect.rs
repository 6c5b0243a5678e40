//! `collect`: every tick of every guest is somewhere, whatever is killed, full, or away.

use std::fs;
use std::io::Write as _;
use std::net::SocketAddr;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Instant;

use serde_json::Value;
use tempfile::TempDir;
use unikprof_proto::code::message_type;
use unikprof_test_kit::engines::{Failure, Receiver};

use crate::harness::{
    Client, Collector, Guest, Keyed, Proxy, bad_answers, expect_at, fetched, is_delivered, seconds,
    ticks, wait_until,
};
use crate::hosted::many_guests::ManyGuests;

/// The guest's own count of ticks in its recording.
fn counted(client: &Client) -> u64 {
    let status = client.connect(&["--json", "check"]).expect_json();
    let recordings = status["recordings"].as_array().unwrap();
    let one = recordings.iter().find(|one| one["name"] == "collect");
    one.unwrap()["counters"]["ticks"].as_u64().unwrap()
}

/// The guests' clocks show 2001, which the engine would refuse. `UNIKPROF_COLLECT_SECONDS` makes the
/// faults go on for longer.
#[test]
#[ignore = "full: records a guest"]
fn every_tick_is_somewhere_through_faults() {
    const GUESTS: usize = 3;
    let words = ["--guests", "3", "--round-trip", "4", "--stacks", "100", "--date", "1000000000"];
    let mut many = ManyGuests::start(&words);
    let folder = many.folder.path().to_owned();
    let engine = Receiver::start().unwrap();
    let mut toml = fs::File::options().append(true).open(folder.join("fleet.toml")).unwrap();
    write!(
        toml,
        "[collect]\nevery = \"1s\"\n[[push]]\nkind = \"pyroscope\"\nurl = \"{}\"\n\
         [[push]]\nkind = \"folder\"\npath = \"recordings\"\n",
        engine.url()
    )
    .unwrap();
    drop(toml);
    engine.fail_always(Failure::Status(500, Vec::new()));
    let mut collector = Collector::start(&folder);
    // What one target does not take waits for it, and goes to the other.
    collector.wait_for("ticks in the folder", GUESTS, |guest| {
        ticks(guest, "folder", "accepted") > 100 && ticks(guest, "pyroscope", "spooled") > 100
    });
    let log = collector.log();
    assert!(log.contains("pyroscope does not take profiles now"), "{log}");
    assert!(log.contains("guest-0002: its clock is") && log.contains("are shifted"), "{log}");
    // A person is told who has the recording.
    let refused = many.client(0).connect(&["dump", "--name", "collect", "-o", "mine.unikprof"]);
    assert_eq!(refused.code, Some(12), "{refused:?}");

    engine.fail_next(bad_answers());
    engine.fail_always(None);
    collector.start_again();
    collector.wait_for("ticks at the engine", GUESTS, |guest| {
        ticks(guest, "pyroscope", "accepted") > 100
    });
    let began = Instant::now();
    while began.elapsed() < seconds() {
        many.order("resume guest-0002");
        collector.start_again_among_lost_answers(&engine);
    }
    many.order("resume guest-0002");
    many.order("restart guest-0001");
    let before = fetched(&collector.audit()[1]);
    collector.wait_for("another life", GUESTS, |guest| {
        guest["name"] != "guest-0001"
            || guest["lost"]["times"] == 1 && fetched(guest) > before + 100
    });
    many.order("rest all");
    // Nothing is counted any more, and all that was is delivered.
    collector.wait_for("all ticks", GUESTS, |guest| {
        // What the one that died had counted is not known any more.
        let index = (0..GUESTS).find(|index| guest["name"] == format!("guest-{index:04}"));
        let is_all = index == Some(1) || fetched(guest) == counted(&many.client(index.unwrap()));
        is_all && is_delivered(guest, "pyroscope") && is_delivered(guest, "folder")
    });
    collector.end();

    let guests = collector.audit();
    collector.expect_in_folder(&guests);
    expect_at(&engine, "pyroscope", &guests);
    for guest in &guests {
        assert_eq!(ticks(guest, "pyroscope", "dropped"), 0, "{guest:#}");
    }
    for (guest, lives) in guests.iter().zip(many.end()) {
        let counted: u64 = lives.iter().sum();
        if guest["name"] != "guest-0001" {
            assert_eq!(fetched(guest), counted, "{guest}");
            assert_eq!(guest["lost"]["times"], 0, "{guest}");
        } else {
            // What died with the first life was counted in the time that is told as lost.
            let lost_ns = guest["lost"]["ns"].as_u64().unwrap();
            let most = lost_ns / 1_000_000_000 * 97 * 2 + 97;
            let died = counted.checked_sub(fetched(guest)).unwrap();
            assert!(died <= most, "{died} of {most}: {guest}");
        }
    }
}

/// A collector's folder, for the guest at this address, with more settings of the guest; recordings
/// go there.
fn folder_for(address: SocketAddr, more: &str) -> TempDir {
    let folder = TempDir::with_prefix("unikprof-collect-").unwrap();
    let toml = format!(
        "[collect]\nevery = \"1s\"\n[[push]]\nkind = \"folder\"\npath = \"recordings\"\n\
         [[guests]]\nname = \"guest\"\naddress = \"{address}\"\n{more}",
    );
    fs::write(folder.path().join("fleet.toml"), toml).unwrap();
    folder
}

fn with_key(keyed: &Keyed) -> String {
    format!("key-file = \"{}\"\n", keyed.control.display())
}

/// A connection is made anew from the depth of whatever it was needed for.
#[test]
fn a_line_that_breaks_loses_nothing() {
    let keyed = Keyed::start("shares");
    let proxy = Proxy::to(keyed.guest.address());
    let folder = folder_for(proxy.address(), &with_key(&keyed));
    let mut collector = Collector::start(folder.path());
    let mut before = 0;
    for _ in 0..5 {
        let audit = collector.wait_for("more ticks", 1, |guest| fetched(guest) > before);
        before = fetched(&audit[0]);
        proxy.cut();
    }
    collector.wait_for("ticks behind the last cut", 1, |guest| fetched(guest) > before);
    collector.end();
    let audit = collector.audit();
    assert_eq!(audit[0]["lost"]["times"], 0, "{audit:#?}");
}

/// The collector of the guest behind a proxy, recorded so, and its folder. It has an epoch whose
/// acknowledgement did not arrive.
fn killed_before_its_acknowledgement(proxy: &Proxy, how: &str) -> (TempDir, Collector) {
    let folder = folder_for(proxy.address(), how);
    proxy.stall_next_at(message_type::ACKNOWLEDGE);
    let mut collector = Collector::start(folder.path());
    proxy.wait_for_stall();
    collector.kill();
    (folder, collector)
}

/// A collector that is killed before it acknowledges an epoch leaves that leased; the guest does
/// not even see its connection end.
#[test]
#[ignore = "full: records a guest"]
fn the_next_collector_has_the_lease_of_the_one_that_was_killed() {
    let guest = Guest::start("shares");
    let proxy = Proxy::to(guest.address());
    let (_folder, mut collector) = killed_before_its_acknowledgement(&proxy, "");
    let told = guest.client().status();
    assert_eq!(told["epochs"], 1, "{told:#}");
    let before = fetched(&collector.audit()[0]);
    collector.start_again();
    collector.wait_for("more ticks", 1, |guest| fetched(guest) > before);
    let log = collector.log();
    assert!(!log.contains("another client is fetching"), "{log}");
    collector.end();
}

/// A guest that migrates before an epoch is acknowledged has another instance, and sends that epoch
/// again.
#[test]
#[ignore = "full: records a guest"]
fn an_epoch_of_a_guest_that_migrates_meanwhile_is_fetched_once() {
    // It is suspended and resumed every second.
    let guest = Guest::start("events");
    let proxy = Proxy::to(guest.address());
    let how = "mode = \"wall\"\nrate = 970\n";
    let (folder, mut collector) = killed_before_its_acknowledgement(&proxy, how);
    let client = guest.client();
    let instance = || client.connect(&["--json", "info"]).expect_json()["instance"].clone();
    let before = instance();
    wait_until("a migration", || (instance() != before).then_some(()));
    collector.start_again();
    collector.wait_for("further epochs", 1, |guest| {
        guest["targets"][0]["accepted"]["parcels"].as_u64() > Some(3)
    });
    collector.end();
    let audit = &collector.audit()[0];
    assert_eq!(audit["lost"]["times"], 0, "{audit:#}");
    let books = fs::read(folder.path().join("spool/guest/books.json")).unwrap();
    let books: Value = serde_json::from_slice(&books).unwrap();
    // The numbers of a recording's epochs count from 1 in their lower half.
    let last = books["books"]["last"]["epoch"].as_u64().unwrap();
    // The last may be on its way when the collector ends.
    let parcels =
        ["accepted", "spooled"].map(|place| audit["targets"][0][place]["parcels"].as_u64());
    let parcels: u64 = parcels.into_iter().flatten().sum();
    assert_eq!(parcels, last & u64::from(u32::MAX), "{audit:#}");
}

/// Makes a certificate and its key, as an administrator does.
fn certify(folder: &Path) {
    let words = "req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=localhost -addext \
                 subjectAltName=IP:127.0.0.1 -addext basicConstraints=critical,CA:FALSE -keyout \
                 key.pem -out chain.pem";
    let made = Command::new("openssl").args(words.split(' ')).current_dir(folder).output();
    let made = made.expect("`openssl`, which is needed for this case");
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
}

/// A company's own store has a certificate that nobody else vouches for.
#[test]
#[ignore = "full: records a guest"]
fn an_engines_certificate_may_be_a_companys_own() {
    let guest = Guest::start("shares");
    let entry = format!("[[guests]]\nname = \"guest\"\naddress = \"{}\"\n", guest.address());
    let folder = TempDir::with_prefix("unikprof-fleet-").unwrap();
    certify(folder.path());
    // It is no engine, but it speaks TLS, and prints what it gets.
    let said = folder.path().join("said");
    let mut server = Command::new("openssl")
        .args(["s_server", "-accept", "127.0.0.1:0", "-cert", "chain.pem", "-key", "key.pem"])
        .current_dir(folder.path())
        .stdin(Stdio::piped())
        .stdout(fs::File::create(&said).unwrap())
        .spawn()
        .unwrap();
    let port = wait_until("its port", || {
        let text = fs::read_to_string(&said).unwrap();
        let (line, _) = text.split_once("ACCEPT 127.0.0.1:")?.1.split_once('\n')?;
        Some(line.to_owned())
    });
    let own = format!("authorities-file = \"{}\"\n", folder.path().join("chain.pem").display());
    for (authorities, is_believed) in [("", false), (&own, true)] {
        let folder = TempDir::with_prefix("unikprof-collect-").unwrap();
        let toml = format!(
            "[collect]\nevery = \"1s\"\n[[push]]\nkind = \"pyroscope\"\n\
             url = \"https://127.0.0.1:{port}\"\n{authorities}{entry}"
        );
        fs::write(folder.path().join("fleet.toml"), toml).unwrap();
        let mut collector = Collector::start(folder.path());
        let is_pushed = || fs::read_to_string(&said).unwrap().contains("POST /push.v1.");
        wait_until("a push, or its failure", || {
            let is_done =
                if is_believed { is_pushed() } else { collector.log().contains("UnknownIssuer") };
            is_done.then_some(())
        });
        assert_eq!(is_pushed(), is_believed);
        collector.end();
    }
    server.kill().unwrap();
    server.wait().unwrap();
}

/// Two collectors of one guest, by mistake: the second one waits, and says for what.
#[test]
#[ignore = "full: records a guest"]
fn a_recording_that_another_one_fetches_is_waited_for_and_told() {
    let keyed = Keyed::start("shares");
    let folders = [(); 2].map(|()| folder_for(keyed.guest.address(), &with_key(&keyed)));
    let mut first = Collector::start(folders[0].path());
    first.wait_for("ticks", 1, |guest| fetched(guest) > 0);
    let mut second = Collector::start(folders[1].path());
    let reason = "is being fetched by another client";
    wait_until("the reason", || second.log().contains(reason).then_some(()));
    first.end();
    second.wait_for("ticks of its own", 1, |guest| fetched(guest) > 0);
    second.end();
    assert_eq!(second.log().matches(reason).count(), 1, "{}", second.log());
}
