//! A download under a key beside one in the clear, over loopback: MB/s of the recording.
//!
//!     cargo bench -p unikprof-client --bench sealed_download
//!
//! The agent is the one of the tests: it has the frames ready, and seals them with the client's own
//! implementation on a thread of its own. Nothing is asserted.
#![allow(clippy::unwrap_used)]

#[path = "../tests/peer/mod.rs"]
mod peer;

use std::path::Path;
use std::time::{Duration, Instant};

use peer::keyed::{Keyed, SECRET, key};
use peer::{Peer, Script};
use unikprof_client::connection::{Access, Address};
use unikprof_client::interrupt::Interrupt;
use unikprof_client::record::{self, Event, Observer, Patience, Request, Session};

/// Stack nodes in the epoch, and frames of each.
const NODES: u32 = 400_000;
const FRAMES: u32 = 12;

/// How often each download is made; the median is told.
const ROUNDS: usize = 15;

struct Bytes(u64);

impl Observer for Bytes {
    fn event(&mut self, event: Event<'_>) {
        if let Event::Fetching { bytes, .. } = event {
            self.0 = bytes;
        }
    }
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let clear = Script {
        vcpus: vec![(0..NODES).map(node).collect()],
        nodes_per_frame: 300,
        waiting: 1,
        ..Script::default()
    };
    let sealed = Script {
        keyed: Some(Keyed::default()),
        ..clear.clone()
    };
    let mut clear = session(clear, Access::Open)?;
    let mut sealed = session(sealed, key(SECRET).into())?;
    // In turns, so that whatever else the machine does meets both.
    let mut rates = [Vec::new(), Vec::new()];
    for round in 0..=ROUNDS {
        for (at, session) in [&mut clear, &mut sealed].into_iter().enumerate() {
            let rate = download(session)?;
            // The first makes the frames.
            if round > 0 {
                rates[at].push(rate);
            }
        }
    }
    let [clear, sealed] = rates.map(|mut rates| {
        rates.sort_by(f64::total_cmp);
        rates[ROUNDS / 2]
    });
    println!("in the clear  {clear:.0} MB/s");
    println!(
        "under a key   {sealed:.0} MB/s, {:.2} of that",
        sealed / clear
    );
    Ok(())
}

fn session(script: Script, access: Access) -> Result<Session, Box<dyn std::error::Error>> {
    let peer = Peer::start(script);
    let address = Address::new(peer.address.ip().to_string(), peer.address.port());
    // The agent makes its frames while it is first asked for them.
    let mut patience = Patience::default();
    patience.timeouts.answer = Duration::from_secs(120);
    Ok(Session::with_access(
        address,
        access,
        patience,
        Interrupt::default(),
    )?)
}

/// Megabytes a second of one download, without a file.
fn download(session: &mut Session) -> Result<f64, Box<dyn std::error::Error>> {
    let mut bytes = Bytes(0);
    let began = Instant::now();
    record::fetch(
        session,
        Request::Copy { recording: 0 },
        Path::new("/dev/null"),
        &mut bytes,
    )?;
    Ok(bytes.0 as f64 / 1e6 / began.elapsed().as_secs_f64())
}

fn node(at: u32) -> peer::StackNode {
    let frames = (0..FRAMES).map(|frame| 0x100 + (at.wrapping_mul(2_654_435_761) >> frame) % 0xe00);
    // Parents come before their children.
    (at / 2, frames.collect(), 1)
}
