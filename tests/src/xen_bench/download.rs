//! From `stop` to a file on disk, for very many distinct stacks.

use anyhow::{Context as _, Result, bail};
use std::fmt::Write as _;
use std::fs;
use std::io::{self, Read as _, Write as _};
use std::net::{Shutdown, TcpStream};
use std::thread;
use std::time::{Duration, Instant};

use unikprof_profile::recording::{Reading, Recording};

use super::rig::{Rig, fetch};

const STACKS: usize = 10_000;
/// The number of samples of the demo load that have so many stacks.
const SAMPLES: u64 = 45_000;
const RATE_HZ: f64 = 9_973.0;
const REPETITIONS: usize = 5;
const WORK: &str = "load=100 echo=7";
/// The bytes sent through the echo service.
const ECHOED: usize = 4 << 20;

/// The table: a guest that is open and one with a key, one after the other.
pub(super) fn measure() -> Result<String> {
    let mut table = String::from(
        "\n### Download\n\n| | distinct stacks | bytes | from `stop` to the file | MB/s |\n\
         |---|---|---|---|---|\n",
    );
    let open = Rig::start(WORK)?;
    let clear = downloads(&open, "in the clear", &mut table)?;
    let echoed = echo_rate(&open)?;
    drop(open);
    let keyed = Rig::start_with_key(WORK)?;
    let sealed = downloads(&keyed, "under a key", &mut table)?;
    // Writing to a string does not fail.
    let _ = writeln!(
        table,
        "\nUnder a key, by the medians: {:.2} of the rate in the clear. The guest's echo service, \
         over the same \
         network and stack, sends back {echoed:.2} MB/s, and {:.2} in the guest with the key.",
        sealed / clear,
        echo_rate(&keyed)?
    );
    Ok(table)
}

/// Records and downloads some times, a row each; answers the median of the rates.
fn downloads(rig: &Rig, how: &str, table: &mut String) -> Result<f64> {
    let path = rig.recording_path();
    let mut rates = Vec::new();
    for _ in 0..REPETITIONS {
        record_many(rig)?;
        let mut session = rig.session()?;
        let start = Instant::now();
        fetch(&mut session, &path)?;
        let elapsed = start.elapsed().as_secs_f64();
        let bytes = fs::metadata(&path).with_context(|| path.display().to_string())?.len();
        let recording = Recording::open(&path, Reading::Strict)?;
        let stacks = recording.profile.samples().len();
        if stacks < STACKS {
            bail!("only {stacks} stacks");
        }
        let rate = bytes as f64 / 1e6 / elapsed;
        rates.push(rate);
        let _ = writeln!(table, "| {how} | {stacks} | {bytes} | {elapsed:.2} s | {rate:.2} |");
    }
    rates.sort_unstable_by(f64::total_cmp);
    Ok(rates[rates.len() / 2])
}

/// Records until there are enough stacks. The table tells nothing of that: it keeps those of
/// earlier recordings.
fn record_many(rig: &Rig) -> Result<()> {
    const PATIENCE: Duration = Duration::from_secs(180);
    rig.start_recording(RATE_HZ)?;
    let deadline = Instant::now() + PATIENCE;
    let mut session = rig.session()?;
    loop {
        let recordings = session.check(&mut ())?.recordings;
        let samples: u64 = recordings.iter().map(|one| one.counters.recorded).sum();
        if samples >= SAMPLES {
            return Ok(());
        }
        if Instant::now() > deadline {
            bail!("{samples} samples in {PATIENCE:?}");
        }
        thread::sleep(Duration::from_millis(200));
    }
}

/// MB a second that come back, while as many go out.
fn echo_rate(rig: &Rig) -> Result<f64> {
    let address = rig.echo()?;
    let run = || -> io::Result<f64> {
        let mut stream = TcpStream::connect(address)?;
        let mut writer = stream.try_clone()?;
        let start = Instant::now();
        let sending = thread::spawn(move || {
            writer.write_all(&vec![0x5a; ECHOED])?;
            writer.shutdown(Shutdown::Write)
        });
        let mut received = Vec::with_capacity(ECHOED);
        stream.read_to_end(&mut received)?;
        let elapsed = start.elapsed().as_secs_f64();
        sending.join().map_err(|_| io::ErrorKind::Other)??;
        if received.len() != ECHOED {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        Ok(ECHOED as f64 / 1e6 / elapsed)
    };
    run().context("the echo service")
}
