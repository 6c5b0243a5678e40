//! `serve` with hosted guests. Their profiles and metrics are requested by curl, Go's pprof and
//! Prometheus.

mod page;

use std::fs;
use std::io::Write as _;
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::process::{Child, Command};

use serde_json::{Value, json};
use tempfile::TempDir;
use unikprof_tests::requirement::skip;

use crate::harness::{Client, Fleet, Guest, Keyed, SOON, wait_until};
use crate::hosted::pprof::{go_tool_pprof, has_go, names};

fn folder() -> TempDir {
    TempDir::with_prefix("unikprof-fleet-").unwrap()
}

/// A guest's entry in `fleet.toml`.
fn entry(name: &str, address: SocketAddr) -> String {
    let image = Guest::program().display();
    format!("[[guests]]\nname = \"{name}\"\naddress = \"{address}\"\nimage = \"{image}\"\n")
}

#[test]
fn guests_are_profiled_by_their_names_and_wrong_targets_are_told() {
    let (keyed, open) = (Keyed::start("shares"), Guest::start("service"));
    let folder = folder();
    let list = json!([
        {"targets": [open.address().to_string()], "labels": {"instance": "service", "app": "demo"}},
        {"targets": ["10.0.0.5:no"]},
    ]);
    fs::write(folder.path().join("targets.json"), list.to_string()).unwrap();
    let shares = format!(
        "{}key-file = \"{}\"\nrate = 499\nlabels = {{ app = \"web\" }}\n",
        entry("shares", keyed.guest.address()),
        keyed.control.display(),
    );
    let rest = shares + "[[targets]]\nfile = \"targets.json\"\n";
    let fleet = Fleet::start(folder, "", &rest);
    fleet.wait_for("shares");
    fleet.wait_for("service");
    // Before any profile.
    for state in ["running", "stolen", "blocked"] {
        let line = format!(
            "unikprof_vcpu_seconds_total{{state=\"{state}\",guest=\"service\",app=\"demo\"}}"
        );
        let seconds = fleet.metric(&line).unwrap_or_else(|| panic!("no {line}"));
        assert!(seconds > 0.0 || state != "running", "{line} {seconds}");
    }
    let (_, targets) = fleet.get("/targets", &[]);
    let targets: Value = serde_json::from_str(&targets).unwrap();
    let here = fleet.url.strip_prefix("http://").unwrap();
    assert_eq!(
        targets[1],
        json!({
            "targets": [here],
            "labels": {
                "app": "web", "instance": "shares", "service_name": "web", "__scheme__": "http",
                "__profile_path_prefix__": "/guests/shares",
            },
        })
    );
    let (log, wrong) = (fleet.log(), "targets.json: group 2: expected a port");
    assert!(log.contains(wrong), "no {wrong:?} in:\n{log}");

    let file = fleet.path("profile.pb.gz");
    let profile = |guest: &str, kind: &str| {
        let path = format!("/guests/{guest}/debug/pprof/{kind}");
        let (status, _) = fleet.get(&path, &["--output", &file]);
        assert_eq!(status, 200, "{}", fleet.log());
    };
    profile("shares", "profile?seconds=3");
    let mut profiles = 1.0;
    if has_go() {
        let client = Client::of(open.address());
        // Again if the machine kept the guest from its processor in that time, or the server from
        // ending it.
        wait_until("a profile of three seconds with the hottest function", || {
            fs::copy(&file, client.path("run.pb.gz")).unwrap();
            let table = go_tool_pprof(&client, &["-top"], "run.pb.gz");
            // Thirty is what a request without a time gets.
            let (_, duration) = table.split_once("Duration: ").unwrap();
            let seconds = duration.split('s').next().unwrap().parse::<f64>();
            let is_whole = seconds.is_ok_and(|seconds| (2.5..25.0).contains(&seconds));
            let names = names(&table);
            let is_hot = names.first().is_some_and(|name| name.ends_with("sixty"));
            if is_whole && is_hot {
                return Some(());
            }
            profile("shares", "profile?seconds=3");
            profiles += 1.0;
            None
        });
        let tags = go_tool_pprof(&client, &["-tags"], "run.pb.gz");
        assert!(tags.contains("shares") && tags.contains("web"), "{tags}");
        // Its name is another one each time: a series of its own in every engine.
        assert!(!tags.contains("recording:"), "{tags}");
        profile("service", "offcpu?seconds=1");
        fs::copy(&file, client.path("waits.pb.gz")).unwrap();
        let table = go_tool_pprof(&client, &["-top"], "waits.pb.gz");
        assert!(table.contains("Type: delay"), "{table}");
    }
    let recorded =
        "unikprof_profile_ticks_total{outcome=\"recorded\",guest=\"shares\",app=\"web\"}";
    assert!(fleet.metric(recorded).unwrap() > 0.0);
    let taken = "unikprof_profiles_total{outcome=\"taken\",guest=\"shares\",app=\"web\"}";
    assert_eq!(fleet.metric(taken), Some(profiles));
    wait_until("the guest's own counter", || {
        fleet.metric("unikprof_guest_counter{counter=\"burst\",guest=\"service\",app=\"demo\"}")
    });
    assert_eq!(keyed.owner().recording_names(), [""; 0], "nothing is left behind");
    let key = fs::read_to_string(&keyed.control).unwrap();
    let secret = key.rsplit(':').next().unwrap().trim().to_owned();
    let log = fleet.log();
    assert!(!(fleet.end() + &log).contains(&secret), "a key was shown");
}

#[test]
fn requests_that_make_no_sense_or_ask_too_much_are_refused() {
    let guest = Guest::start("shares");
    let rest = entry("shares", guest.address()) + &entry("down", ([127, 0, 0, 1], 1).into());
    let settings = "longest = \"200s\"\nexternal-url = \"https://fleet.example\"";
    let fleet = Fleet::start(folder(), settings, &rest);
    fleet.wait_for("shares");
    let pprof = "/guests/shares/debug/pprof";
    for (path, status, told) in [
        ("/nothing", 404, "expected /, /metrics"),
        ("/guests/other/debug/pprof/profile", 404, "no guest `other`"),
        ("/guests/%1b[2J/debug/pprof/profile", 404, "no guest `\\u{1b}[2J`"),
        (&format!("{pprof}/heap"), 404, "`wall` or `offcpu`"),
        (&format!("{pprof}/profile?seconds=201"), 400, "from 1 to 200"),
        (&format!("{pprof}/profile?seconds=-1"), 400, "found `-1`"),
        ("/guests/down/debug/pprof/profile?seconds=1", 503, "cannot connect"),
    ] {
        let (found, text) = fleet.get(path, &[]);
        assert_eq!((found, text.contains(told)), (status, true), "{path}: {text}");
    }
    // A page of another site, and a name of another site's that leads here.
    for header in
        ["Sec-Fetch-Site: cross-site", "Origin: http://evil.example", "Host: evil.example"]
    {
        assert_eq!(fleet.get("/guests", &["--header", header]).0, 403, "{header}");
    }
    // What a proxy in front passes on.
    let passed = ["--header", "Host: fleet.example", "--header", "Origin: https://fleet.example"];
    let (status, targets) = fleet.get("/targets", &passed);
    let targets: Value = serde_json::from_str(&targets).unwrap();
    assert_eq!((status, &targets[0]["targets"]), (200, &json!(["fleet.example"])));
    assert_eq!(targets[0]["labels"]["__scheme__"], "https");
    wait_until("an answer to HEAD", || {
        let (status, _) = fleet.get(&format!("{pprof}/profile"), &["--head"]);
        (status == 200).then_some(())
    });
    let client = guest.client();
    assert_eq!(client.recording_names(), [""; 0], "HEAD records nothing");

    // Two are taken at once; who goes away ends a recording long before its time.
    let host = fleet.url.strip_prefix("http://").unwrap();
    let ask = |_| {
        let mut stream = TcpStream::connect(host).unwrap();
        let request =
            format!("GET {pprof}/profile?seconds=200 HTTP/1.1\r\nHost: localhost\r\n\r\n");
        stream.write_all(request.as_bytes()).unwrap();
        stream
    };
    let two: Vec<TcpStream> = (0..2).map(ask).collect();
    client.wait_for_status("samples of two recordings", |status| {
        let ticks = |one: &Value| one["counters"]["recorded"].as_u64() > Some(0);
        let recordings = status["recordings"].as_array().unwrap();
        recordings.len() == 2 && recordings.iter().all(ticks)
    });
    assert_eq!(fleet.get(&format!("{pprof}/profile?seconds=1"), &[]).0, 429);
    drop(two);
    wait_until("their end", || client.recording_names().is_empty().then_some(()));
    let ended = "unikprof_profiles_total{outcome=\"failed\",guest=\"shares\"}";
    wait_until("the count of both", || fleet.metric(ended).filter(|count| *count == 2.0));
    let ticks = "unikprof_profile_ticks_total{outcome=\"recorded\",guest=\"shares\"}";
    assert!(fleet.metric(ticks) >= Some(2.0), "they were taken");
    fleet.end();
}

#[test]
#[ignore = "full: records a guest"]
fn a_list_that_changes_is_followed() {
    let guests = [Guest::start("idle"), Guest::start("idle")];
    let folder = folder();
    let list = |path: &Path, guests: &[&Guest]| {
        let targets: Vec<String> = guests.iter().map(|guest| guest.address().to_string()).collect();
        fs::write(path, json!([{ "targets": targets }]).to_string()).unwrap();
    };
    let path = folder.path().join("targets.json");
    list(&path, &[&guests[0]]);
    let fleet = Fleet::start(folder, "", "[[targets]]\nfile = \"targets.json\"\n");
    let [first, second] = [&guests[0], &guests[1]].map(|guest| guest.address().to_string());
    fleet.wait_for(&first);
    list(&path, &[&guests[1]]);
    fleet.wait_for(&second);
    assert!(fleet.guest(&first).is_none());
    // What cannot be read changes nothing.
    fs::write(&path, "[").unwrap();
    wait_until("a warning", || fleet.log().contains("expected a JSON array").then_some(()));
    assert!(fleet.guest(&second).is_some());
    fleet.end();
}

#[test]
#[ignore = "full: records a guest"]
fn prometheus_answers_about_the_fleet() {
    if Command::new("prometheus").arg("--version").output().is_err() {
        return skip("there is no `prometheus` on this machine");
    }
    let guest = Guest::start("service");
    let fleet = Fleet::start(folder(), "", &entry("service", guest.address()));
    let target = fleet.url.strip_prefix("http://").unwrap();
    let config = json!({
        "global": { "scrape_interval": "1s" },
        "scrape_configs": [{ "job_name": "unikprof", "static_configs": [{ "targets": [target] }] }],
    });
    // JSON is YAML.
    fs::write(fleet.path("prometheus.yml"), config.to_string()).unwrap();
    let prometheus = Command::new("prometheus")
        .args(["--config.file", &fleet.path("prometheus.yml")])
        .args(["--storage.tsdb.path", &fleet.path("data")])
        .args(["--web.listen-address", "127.0.0.1:0"])
        .stderr(fs::File::create(fleet.path("prometheus.log")).unwrap())
        .spawn();
    let _prometheus = Ended(prometheus.unwrap());
    let address = wait_until("Prometheus' address", || {
        let log = fs::read_to_string(fleet.path("prometheus.log")).unwrap();
        let (_, after) = log.split_once("msg=\"Listening on\" address=")?;
        let (address, _) = after.split_once('\n')?;
        Some(address.to_owned())
    });
    let answer = |query: &str| -> Option<Value> {
        let output = Command::new("curl")
            .args(["--silent", "--max-time", &SOON.as_secs().to_string()])
            .args(["--get", "--data-urlencode"])
            .arg(format!("query={query}"))
            .arg(format!("http://{address}/api/v1/query"))
            .output()
            .unwrap();
        serde_json::from_slice(&output.stdout).ok()
    };
    let ask = |query: &str| -> Option<f64> {
        let value = &answer(query)?["data"]["result"][0]["value"][1];
        value.as_str()?.parse().ok()
    };
    wait_until("the guest is up", || ask("unikprof_up{guest=\"service\"}").filter(|up| *up == 1.0));
    wait_until("the guest's counter", || ask("unikprof_guest_counter{counter=\"burst\"}"));
    let profile = "/guests/service/debug/pprof/profile?seconds=1";
    // Again if the guest had no processor in that second.
    wait_until("a profile", || {
        let (status, _) = fleet.get(profile, &["--output", "/dev/null"]);
        assert_eq!(status, 200, "{}", fleet.log());
        ask("sum(unikprof_profile_ticks_total{outcome=\"recorded\"})").filter(|ticks| *ticks > 0.0)
    });
    // What the documentation has for Grafana, and the rules.
    let docs = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/guide/fleet");
    let dashboard = fs::read(docs.join("dashboard.json")).unwrap();
    let dashboard: Value = serde_json::from_slice(&dashboard).unwrap();
    for panel in dashboard["panels"].as_array().unwrap() {
        let query = panel["targets"][0]["expr"].as_str().unwrap();
        let answer = wait_until("an answer", || answer(query));
        assert_eq!(answer["status"], "success", "{query}: {answer}");
    }
    let checked = Command::new("promtool")
        .args(["check", "config"])
        .arg(docs.join("prometheus.yaml"))
        .output()
        .unwrap();
    assert!(checked.status.success(), "{}", String::from_utf8_lossy(&checked.stderr));
    fleet.end();
}

/// A process that is killed when the value is dropped.
struct Ended(Child);

impl Drop for Ended {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
