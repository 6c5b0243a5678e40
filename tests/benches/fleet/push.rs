//! A profile on its way to Pyroscope: `collect` fetches, keeps, names, encodes and sends it;
//! Pyroscope's own agent does that in the process that it profiles.

use std::error::Error;
use std::io::{self, BufRead as _, BufReader, Read as _, Write as _};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use unikprof_profile::recording::{Reading, Recording};
use unikprof_profile::symbols::{ImageOptions, Images, Symbolizer};
use unikprof_report::report::{Format, Report, ReportOptions};

use super::collect::audit;
use super::processes::Guests;
use super::{Done, pyroscope_agent};

const GUESTS: usize = 100;
const LASTS: Duration = Duration::from_secs(60);
const ENCODED: u32 = 50;

pub(super) fn measure() -> Done {
    let sink = Sink::start()?;
    let guests = Guests::start(GUESTS)?;
    let settings = format!("[[push]]\nkind = \"pyroscope\"\nurl = \"{}\"\n", sink.url);
    let (collector, _) = guests.run("collect", &settings)?;
    // Its start is not part of it.
    thread::sleep(Duration::from_secs(20));
    let before = (accepted(&guests)?, collector.cpu_seconds());
    thread::sleep(LASTS);
    let profiles = accepted(&guests)? - before.0;
    let cpu = collector.cpu_seconds() - before.1;
    println!(
        "push: `collect`, {GUESTS} guests: {profiles} profiles, {:.2} ms of CPU each",
        1000.0 * cpu / profiles as f64
    );
    drop(collector);
    encode(&guests)?;
    drop(guests);

    let before = sink.requests.load(Ordering::Relaxed);
    let output = Command::new(std::env::current_exe()?)
        .args([pyroscope_agent::ARGUMENT, &sink.url])
        .output()?;
    io::stderr().write_all(&output.stderr)?;
    let cpu: f64 = String::from_utf8(output.stdout)?.trim().parse()?;
    let profiles = sink.requests.load(Ordering::Relaxed) - before;
    println!(
        "push: pyroscope 2.1 with pprof-rs, one process: {profiles} profiles, {:.2} ms of CPU \
         each, its samples not counted",
        1000.0 * cpu / profiles as f64
    );
    Ok(())
}

/// The number of profiles that the target has accepted.
fn accepted(guests: &Guests) -> Result<u64, Box<dyn Error + Send + Sync>> {
    let audit = audit(guests)?;
    let guests = audit["guests"].as_array().ok_or("no guests")?;
    let accepted = guests.iter().map(|guest| &guest["targets"][0]["accepted"]["parcels"]);
    Ok(accepted.filter_map(serde_json::Value::as_u64).sum())
}

/// Records ten seconds of one guest, and makes pprof of them.
fn encode(guests: &Guests) -> Done {
    let folder = guests.folder.path();
    let status = Command::new(env!("CARGO_BIN_EXE_hosted-client"))
        .args(["connect", "127.77.0.1:7777", "--key-file", "key"])
        .args(["record", "10s", "-F", "97", "-o", "one.unikprof"])
        .current_dir(folder)
        .stdout(io::stderr())
        .status()?;
    if !status.success() {
        return Err("nothing was recorded".into());
    }
    let recording = Recording::open(&folder.join("one.unikprof"), Reading::Strict)?;
    let mut images = Images::new(ImageOptions::default());
    images.add_symbols(&folder.join("symbols"))?;
    let named = Symbolizer::new(images);
    let named = named.resolve(&recording.profile)?;
    let mut bytes = Vec::new();
    let start = Instant::now();
    for _ in 0..ENCODED {
        bytes.clear();
        Report::new(&named, ReportOptions::default()).write(Format::Pprof, &mut bytes)?;
    }
    println!(
        "pprof of one such profile, {} samples, names there: {:.2} ms, {:.0} KB",
        recording.profile.sample_count(),
        1000.0 * start.elapsed().as_secs_f64() / f64::from(ENCODED),
        bytes.len() as f64 / 1000.0
    );
    Ok(())
}

/// A server that takes everything, until the process ends.
struct Sink {
    url: String,
    requests: Arc<AtomicU64>,
}

impl Sink {
    fn start() -> io::Result<Sink> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
        let requests = Arc::<AtomicU64>::default();
        let sink =
            Sink { url: format!("http://{}", listener.local_addr()?), requests: requests.clone() };
        thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let requests = requests.clone();
                // A connection that ends is no mistake.
                thread::spawn(move || take(&stream, &requests).ok());
            }
        });
        Ok(sink)
    }
}

/// Takes the requests of a connection.
fn take(stream: &TcpStream, requests: &AtomicU64) -> io::Result<()> {
    let mut reader = BufReader::new(stream);
    let mut writer = stream;
    loop {
        let mut length = 0;
        loop {
            let mut line = String::new();
            if reader.read_line(&mut line)? == 0 {
                return Ok(());
            }
            let line = line.trim_end().to_ascii_lowercase();
            if line.is_empty() {
                break;
            }
            if let Some(value) = line.strip_prefix("content-length:") {
                length = value.trim().parse().map_err(io::Error::other)?;
            }
        }
        io::copy(&mut reader.by_ref().take(length), &mut io::sink())?;
        requests.fetch_add(1, Ordering::Relaxed);
        writer.write_all(
            b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 2\r\n\r\n{}",
        )?;
    }
}
