//! A download under a key beside one in the clear, end to end: the client's library, loopback, and agents in
//! processes of their own.
//!
//! ```text
//! cargo bench -p unikprof-tests --bench sealed
//! ```
//!
//! Both guests have recorded the demo service, which has ended when their counts are fetched, in turns.

use std::error::Error;
use std::io::{BufRead as _, BufReader, Write as _, stdin};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use unikprof_agent::hosted::{self, Config};
use unikprof_agent::{Access, Key, Keys, Role};
use unikprof_client::connection::{Access as Shown, Address};
use unikprof_client::interrupt::Interrupt;
use unikprof_client::record::{self, Event, Observer, Patience, Request, Session, Settings};
use unikprof_demo_service::{RequestGenerator, Service};

type Failure = Box<dyn Error + Send + Sync>;

const RATE_HZ: u64 = 9_973;
const WORK: Duration = Duration::from_secs(10);
const ROUNDS: usize = 101;
/// Not secret: nothing is behind it.
const KEY: &str = "unikprof-key-1:5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a";

fn main() -> Result<(), Failure> {
    let words: Vec<String> = std::env::args().collect();
    match words.get(1).map(String::as_str) {
        Some("guest-open") => return serve(Access::Open),
        Some("guest-keyed") => {
            let mut keys = Keys::new();
            keys.add(Role::Control, Key::parse(KEY)?)?;
            return serve(Access::Keys(Box::leak(Box::new(keys))));
        }
        _ => {}
    }
    if !words.iter().any(|word| word == "--bench") {
        println!("nothing measured: run it with cargo bench");
        return Ok(());
    }
    let key = unikprof_client::key::Key::parse(KEY.as_bytes())?;
    let mut guests = [
        Guest::start("guest-open", Shown::Open)?,
        Guest::start("guest-keyed", key.into())?,
    ];
    let mut rates = [Vec::new(), Vec::new()];
    let mut sizes = [0, 0];
    for _ in 0..ROUNDS {
        for (at, guest) in guests.iter_mut().enumerate() {
            let start = Instant::now();
            let bytes = guest.download()?;
            rates[at].push(bytes as f64 / 1e6 / start.elapsed().as_secs_f64());
            sizes[at] = bytes;
        }
    }
    let [clear, sealed] = rates.map(|mut rates| {
        rates.sort_unstable_by(f64::total_cmp);
        rates[ROUNDS / 2]
    });
    println!(
        "in the clear  {clear:6.1} MB/s in the median, {} bytes",
        sizes[0]
    );
    println!(
        "under a key   {sealed:6.1} MB/s, {:.2} of that, {} bytes",
        sealed / clear,
        sizes[1]
    );
    Ok(())
}

/// The guest's process: works until a line comes, serves until there is nobody to say more.
fn serve(access: Access<'static>) -> Result<(), Failure> {
    let mut config = Config::new(access);
    config.memory_bytes = 64 << 20;
    let guest = hosted::start(config)?;
    println!("{}", guest.address());
    let done = AtomicBool::new(false);
    thread::scope(|scope| {
        let work = scope.spawn(|| -> Result<(), hosted::Error> {
            let _vcpu = guest.register_thread()?;
            let mut service = Service::new(1, 256);
            let mut response = Vec::new();
            for request in RequestGenerator::new(1, 256) {
                service.handle(&request, &mut response);
                if done.load(Ordering::Acquire) {
                    break;
                }
            }
            Ok(())
        });
        let mut lines = stdin().lines();
        lines.next();
        done.store(true, Ordering::Release);
        work.join().map_err(|_| "the service panicked")??;
        // Until the other end is closed.
        lines.next();
        Ok(())
    })
}

struct Guest {
    child: Child,
    session: Session,
    recording: u64,
}

impl Guest {
    /// A guest that has recorded and rests.
    fn start(word: &str, shown: Shown) -> Result<Self, Failure> {
        let mut child = Command::new(std::env::current_exe()?)
            .arg(word)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        let stdout = child.stdout.take().ok_or("no output")?;
        let mut line = String::new();
        BufReader::new(stdout).read_line(&mut line)?;
        let port = line.trim().rsplit(':').next().ok_or("no address")?;
        let address = Address::new("127.0.0.1", port.parse()?);
        let patience = Patience::default();
        let mut session = Session::with_access(address, shown, patience, Interrupt::default())?;
        let settings = Settings {
            period_ns: 1_000_000_000 / RATE_HZ,
            duration_ns: u64::try_from(WORK.as_nanos())?,
            ..Settings::default()
        };
        let recording = session.start(&settings)?.recording;
        thread::sleep(WORK);
        while session.check(&mut ())?.find(None)?.epochs == 0 {
            thread::sleep(Duration::from_millis(100));
        }
        child.stdin.as_mut().ok_or("no input")?.write_all(b"\n")?;
        Ok(Self {
            child,
            session,
            recording,
        })
    }

    /// Fetches a copy of all that waits; answers its bytes.
    fn download(&mut self) -> Result<u64, Failure> {
        let mut bytes = Bytes(0);
        let to = Path::new("/dev/null");
        let copy = Request::Copy {
            recording: self.recording,
        };
        let outcome = record::fetch(&mut self.session, copy, to, &mut bytes)?;
        match outcome.incomplete {
            None => Ok(bytes.0),
            Some(reason) => Err(reason.into()),
        }
    }
}

impl Drop for Guest {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

struct Bytes(u64);

impl Observer for Bytes {
    fn event(&mut self, event: Event<'_>) {
        if let Event::Fetching { bytes, .. } = event {
            self.0 = bytes;
        }
    }
}
