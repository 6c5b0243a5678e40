//! `collect`: everything that the fleet's guests count, for ever, for the engines that keep
//! profiles.
//!
//! ```text
//! agent ─► gather ─► spool ─► deliver ─► push (Pyroscope, Parca, OTLP), folder
//!          a thread   on disk   a few threads a target
//!          a guest      │                      └─► rejected
//!                       └─► books ─► audit
//! ```
//!
//! A guest forgets an epoch only when it lies in the spool, and the spool only when every target
//! has accepted it. The books say what became of every tick.

mod audit;
mod books;
mod deliver;
mod gather;
mod rejected;
mod spool;

use std::io;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use thiserror::Error;

pub(crate) use audit::Audit;
use deliver::Receiver;
use spool::{Spool, SpoolError};
use unikprof_client::cli::shared::CommandError;
use unikprof_client::exit_code;
use unikprof_link::interrupt::Interrupt;
use unikprof_profile::units;

use super::config::Config;
use super::folder::FolderError;
use super::member::{Member, log};
use super::roster::Roster;
use super::shard::Shard;

/// How often books are written.
const FLUSH: Duration = Duration::from_secs(1);

/// How often folders are cleaned, and dropped ticks told.
const CLEAN: Duration = Duration::from_secs(60);

/// What a target rejects may take this part of the spool's limit beside the spool.
const REJECTED: u64 = 10;

/// The size of the stack of a guest's thread.
const STACK_BYTES: usize = 512 << 10;

/// A fleet cannot be collected.
#[derive(Debug, Error)]
pub(crate) enum CollectError {
    #[error(
        "{} has no [[push]]: nothing would ever leave the spool; name a `kind` and its `url`, or \
         `folder` and a `path`", .0
    )]
    NoTargets(String),
    #[error(transparent)]
    Spool(#[from] SpoolError),
    #[error(transparent)]
    Folder(#[from] FolderError),
    #[error("cannot start a thread: {0}")]
    Thread(io::Error),
}

impl From<CollectError> for CommandError {
    fn from(error: CollectError) -> CommandError {
        CommandError::new(error, exit_code::OTHER)
    }
}

/// Collects from a shard of the fleet of a configuration until `interrupt`. The recordings go on in
/// the guests.
///
/// # Errors
/// [`CollectError`]: nothing was collected.
pub(crate) fn collect(
    path: &Path,
    config: Config,
    shard: Shard,
    interrupt: &Interrupt,
    ready: impl FnOnce(usize, &Path),
) -> Result<(), CollectError> {
    if config.push.is_empty() {
        return Err(CollectError::NoTargets(path.display().to_string()));
    }
    let settings = config.collect.clone();
    let names = config.push.iter().map(|push| push.name.clone()).collect();
    let spool = Spool::open(&settings.spool, settings.spool_bytes, names)?;
    let receiver = |push| Receiver::new(push, &settings.spool, settings.spool_bytes / REJECTED);
    let receivers: Result<Vec<Receiver>, FolderError> = config.push.iter().map(receiver).collect();
    let receivers = receivers?;
    let spool = Arc::new(spool);
    let gathering = Arc::new(Mutex::new(Vec::new()));
    let (of_guests, threads, every) = (spool.clone(), gathering.clone(), settings.every);
    let start = Box::new(move |member: Arc<Member>| {
        let spool = of_guests.clone();
        let thread = thread::Builder::new()
            .name("gather".into())
            .stack_size(STACK_BYTES)
            .spawn(move || gather::keep(&member, &spool, every))?;
        let mut threads = threads.lock().unwrap_or_else(PoisonError::into_inner);
        threads.retain(|thread: &JoinHandle<()>| !thread.is_finished());
        threads.push(thread);
        Ok(())
    });
    let roster = Roster::new(path.into(), config, shard, start);
    ready(roster.members().len(), &settings.spool);
    let failed = thread::scope(|scope| {
        let mut failed = None;
        for receiver in &receivers {
            for worker in 0..receiver.workers() {
                let spool = &spool;
                let name = thread::Builder::new().name("deliver".into());
                let work = move || receiver.work(worker, spool, interrupt);
                if let Err(error) = name.spawn_scoped(scope, work) {
                    failed = Some(error);
                    interrupt.raise_once();
                }
            }
        }
        let following = thread::Builder::new().name("roster".into());
        if let Err(error) = following.spawn_scoped(scope, || roster.follow(interrupt)) {
            failed = Some(error);
            interrupt.raise_once();
        }
        keep_books(&spool, &receivers, interrupt);
        roster.end();
        failed
    });
    let mut threads = gathering.lock().unwrap_or_else(PoisonError::into_inner);
    for thread in threads.drain(..) {
        // One that panicked has told so.
        let _ = thread.join();
    }
    if let Err(error) = spool.flush() {
        log(&format!("warning: {error}"));
    }
    match failed {
        Some(error) => Err(CollectError::Thread(error)),
        None => Ok(()),
    }
}

/// Writes books and cleans folders until `interrupt`.
fn keep_books(spool: &Spool, receivers: &[Receiver], interrupt: &Interrupt) {
    let mut cleaned: Option<Instant> = None;
    let mut told = String::new();
    while interrupt.sleep_until(Instant::now() + FLUSH, Interrupt::stop) {
        // What was told is not told every second.
        let problem = spool.flush().err().map(|error| error.to_string());
        let problem = problem.unwrap_or_default();
        if !problem.is_empty() && problem != told {
            log(&format!("warning: {problem}"));
        }
        told = problem;
        if cleaned.is_none_or(|then| then.elapsed() >= CLEAN) {
            cleaned = Some(Instant::now());
            receivers.iter().for_each(Receiver::clean);
            let dropped = spool.take_dropped();
            if dropped > 0 {
                log(&format!(
                    "warning: the spool is full: {} ticks were dropped that a target had not \
                     accepted",
                    units::grouped(dropped)
                ));
            }
        }
    }
}
