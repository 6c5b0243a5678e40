//! Cases that need a real Xen: as many at once as the machine has room for, and none on machines
//! that cannot have one.

use std::fs::File;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use crate::config::Processor;
use crate::error::{LabError, Unavailable};
use crate::packages::create;
use crate::requirement::skip;

/// The most labs at once. Once booted, one with a guest of one vCPU takes about one processor.
pub const LABS: usize = 2;

/// The time that a lab stays without a case before it makes room for another: the next case that
/// needs it may be about to begin.
const KEPT: Duration = Duration::from_millis(500);

/// Runs a case that needs a lab; skips it on a machine that cannot run one.
///
/// Cases wait for room, also for those of other processes.
pub fn run_or_skip(body: impl FnOnce() -> Result<(), LabError>) {
    match reason_to_skip(take_turn().and_then(|_turn| body())) {
        Ok(None) => {}
        Ok(Some(reason)) => skip(reason),
        Err(error) => panic!("{error}"),
    }
}

/// Labs, or guests in labs, kept from case to case for as long as cases need the same: a boot costs
/// both processors for ten seconds. Cases that need the same one run one after another, others
/// beside them.
///
/// With more test threads than labs at once, such as by `RUST_TEST_THREADS=4`, a case that waits
/// for its lab keeps no other from one. Cases that share a lab are next to each other in the order
/// of their names.
pub struct Shared<K, T> {
    labs: usize,
    kept: Mutex<Vec<Kept<K, T>>>,
    changed: Condvar,
}

/// One of them. A case that boots a machine of its own has no key.
struct Kept<K, T> {
    key: Option<K>,
    use_: Use<T>,
}

enum Use<T> {
    /// By a case, which has it.
    Running,
    /// By none, since then.
    Idle(T, Instant),
}

impl<K: PartialEq + Clone, T> Shared<K, T> {
    /// Nothing yet; `labs` at once, at most [`LABS`]. Where times are compared, 1: two labs take
    /// from each other.
    pub const fn new(labs: usize) -> Self {
        Self { labs, kept: Mutex::new(Vec::new()), changed: Condvar::new() }
    }

    /// Runs a case with what `make` makes of `key`, alone with that; skips it where there can be no
    /// lab.
    pub fn on(
        &self,
        key: K,
        make: impl FnOnce(&K) -> Result<T, LabError>,
        body: impl FnOnce(&mut T),
    ) {
        let mut turn = self.take(Some(key.clone()));
        run_or_skip(|| {
            let made = match turn.made.take() {
                Some(made) => made,
                None => make(&key)?,
            };
            body(turn.made.insert(made));
            Ok(())
        });
    }

    /// Runs a case that boots a machine of its own; skips it where there can be no lab.
    pub fn without(&self, body: impl FnOnce()) {
        let _turn = self.take(None);
        run_or_skip(|| {
            crate::download(Processor::X86_64)?;
            body();
            Ok(())
        });
    }

    /// Waits for what belongs to the key, or for room for it.
    fn take(&self, key: Option<K>) -> Turn<'_, K, T> {
        let turn = |made| Turn { shared: self, key: key.clone(), made };
        let mut kept = self.kept();
        loop {
            let found = kept.iter_mut().find(|one| key.is_some() && one.key == key);
            let mut wait = None;
            if let Some(found) = found {
                if let Use::Idle(made, _) = std::mem::replace(&mut found.use_, Use::Running) {
                    return turn(Some(made));
                }
            } else if kept.len() < self.labs {
                kept.push(Kept { key: key.clone(), use_: Use::Running });
                return turn(None);
            } else if let Some((oldest, since)) = longest_idle(&kept) {
                let left = KEPT.saturating_sub(since.elapsed());
                if left.is_zero() {
                    // It ends before the new one begins.
                    drop(kept.swap_remove(oldest));
                    continue;
                }
                wait = Some(left);
            }
            kept = match wait {
                None => self.changed.wait(kept),
                Some(wait) => match self.changed.wait_timeout(kept, wait) {
                    Ok((kept, _)) => Ok(kept),
                    Err(poisoned) => Ok(poisoned.into_inner().0),
                },
            }
            .unwrap_or_else(PoisonError::into_inner);
        }
    }
}

fn longest_idle<K, T>(kept: &[Kept<K, T>]) -> Option<(usize, Instant)> {
    let idle = kept.iter().enumerate();
    let idle = idle.filter_map(|(index, one)| match one.use_ {
        Use::Idle(_, since) => Some((index, since)),
        Use::Running => None,
    });
    idle.min_by_key(|(_, since)| *since)
}

impl<K, T> Shared<K, T> {
    fn kept(&self) -> MutexGuard<'_, Vec<Kept<K, T>>> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A case's use of one of them.
struct Turn<'s, K: PartialEq, T> {
    shared: &'s Shared<K, T>,
    key: Option<K>,
    made: Option<T>,
}

impl<K: PartialEq, T> Drop for Turn<'_, K, T> {
    fn drop(&mut self) {
        if thread::panicking() {
            // Dropped while panicking, a lab keeps its logs.
            self.made = None;
        }
        let mut kept = self.shared.kept();
        let is_this = |one: &Kept<K, T>| one.key == self.key && matches!(one.use_, Use::Running);
        if let Some(index) = kept.iter().position(is_this) {
            match self.made.take() {
                Some(made) => kept[index].use_ = Use::Idle(made, Instant::now()),
                None => drop(kept.swap_remove(index)),
            }
        }
        drop(kept);
        self.shared.changed.notify_all();
    }
}

/// Only that there can be no lab is a reason.
fn reason_to_skip(result: Result<(), LabError>) -> Result<Option<Unavailable>, LabError> {
    match result {
        Ok(()) => Ok(None),
        Err(LabError::Unavailable(reason)) => Ok(Some(reason)),
        Err(error) => Err(error),
    }
}

/// Waits for room; a file's lock ends when it is closed, also by the death of its process.
fn take_turn() -> Result<File, LabError> {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    let folder = crate::target_folder();
    create(&folder)?;
    let broken = |e| LabError::setup("waiting for a turn", e);
    let open = |number: usize| File::create(folder.join(format!("xen-lab.turn.{number}")));
    for number in 0..LABS {
        let turn = open(number).map_err(broken)?;
        if turn.try_lock().is_ok() {
            return Ok(turn);
        }
    }
    let turn = open(NEXT.fetch_add(1, Ordering::Relaxed) % LABS).map_err(broken)?;
    turn.lock().map_err(broken)?;
    Ok(turn)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_an_unavailable_lab_is_a_reason_to_skip() {
        let unavailable = Unavailable::ToolMissing { tool: "apt-get" };
        assert!(matches!(reason_to_skip(Err(unavailable.into())), Ok(Some(_))));
        assert!(reason_to_skip(Err(LabError::setup("a", "b"))).is_err());
        assert!(matches!(reason_to_skip(Ok(())), Ok(None)));
    }

    /// Guards against a lab that is booted again for each of its cases, one that two cases use at
    /// once, one too many, and one that is used after a case failed in it.
    #[test]
    fn labs_are_shared_by_one_case_at_a_time() {
        const CASES: u32 = 12;
        let shared = Shared::<u32, AtomicUsize>::new(LABS);
        let [made, running] = [(); 2].map(|()| AtomicUsize::new(0));
        let run = |key| {
            let mut turn = shared.take(Some(key));
            let cases = turn.made.get_or_insert_with(|| {
                made.fetch_add(1, Ordering::SeqCst);
                AtomicUsize::new(0)
            });
            assert!(running.fetch_add(1, Ordering::SeqCst) < LABS);
            assert_eq!(cases.fetch_add(1, Ordering::SeqCst), 0, "it is alone");
            thread::yield_now();
            cases.fetch_sub(1, Ordering::SeqCst);
            running.fetch_sub(1, Ordering::SeqCst);
        };
        thread::scope(|scope| {
            for case in 0..CASES {
                scope.spawn(move || run(case % LABS as u32));
            }
        });
        let made = || made.load(Ordering::SeqCst);
        assert_eq!(made(), LABS, "each once");

        run(LABS as u32);
        assert_eq!(made(), LABS + 1, "one has made room");
        assert_eq!(shared.kept().len(), LABS);

        let failed = thread::scope(|scope| {
            let case = scope.spawn(|| {
                let _turn = shared.take(Some(LABS as u32));
                panic!("a case that fails");
            });
            case.join()
        });
        assert!(failed.is_err());
        run(LABS as u32);
        assert_eq!(made(), LABS + 2, "it is made anew");
        drop(shared.take(None));
        assert!(shared.kept().iter().all(|one| one.key.is_some()));
    }
}
