//! Records what is held, and asks for it several times: what growth is found from.

use std::path::Path;
use std::time::{Duration, Instant};

use unikprof_proto::code::state;

use super::collect::{Collector, Request};
use super::session::Session;
use super::{CHECK_EVERY, Event, Observer, Outcome, RecordError, SHORTEST_PAUSE, Settings};

/// How often it is asked what is held, besides at the end.
const TIMES: u32 = 8;

/// When it is asked what is held, from the beginning of a recording of this length on. The first
/// time is early: growth is counted from there; the last is its end.
pub fn dump_times(length: Duration) -> Vec<Duration> {
    let within = (0..TIMES).map(|at| length * (2 * at + 1) / (2 * TIMES));
    within.chain([length]).collect()
}

/// Records according to `settings`, which are of mode `live`, for `length` or until it is
/// interrupted, and writes what was held at each of the [times](dump_times) to `path`.
pub fn watch(
    session: &mut Session,
    settings: &Settings,
    length: Duration,
    path: &Path,
    observer: &mut dyn Observer,
) -> Result<Outcome, RecordError> {
    let writer = session.create_recording(path)?;
    let recording = session.start_observed(settings, observer)?.recording;
    let mut collector = Collector::new(session, writer).named(Some(&settings.name));
    let request = Request::Stop { recording };
    let collected = match dump_until_end(&mut collector, recording, length, observer) {
        Ok(true) => Ok(()),
        Ok(false) => collector.collect(request, observer),
        Err(error) => Err(error),
    };
    let guest = collector.session.guest_words();
    let collected = collected.map_err(|error| error.while_running(request, &settings.name, guest));
    collector.finish(collected, request)
}

/// Asks at each time but the last. Returns whether the recording has ended, and all of it is
/// fetched.
fn dump_until_end(
    collector: &mut Collector<'_>,
    recording: u64,
    length: Duration,
    observer: &mut dyn Observer,
) -> Result<bool, RecordError> {
    let began = Instant::now();
    let mut times = dump_times(length);
    let last = times.pop().unwrap_or(length);
    let mut times = times.into_iter().peekable();
    loop {
        let recorder = collector.session.check(observer)?;
        let Some(status) = recorder.by_id(recording) else {
            return Err(RecordError::Gone { recording });
        };
        observer.event(Event::Running { recording: status, recorder: &recorder });
        let passed = began.elapsed();
        if status.state == state::FINISHED || passed >= last {
            return Ok(false);
        }
        let due = times.next_if(|time| *time <= passed).is_some();
        // Stacks that no room is left for are fetched sooner.
        if (due || status.wants_fetch) && collector.drain(recording, observer)? {
            return Ok(true);
        }
        let next = times.peek().copied().unwrap_or(last);
        let wait = next.saturating_sub(passed).clamp(Duration::from_millis(1), CHECK_EVERY);
        let wait = if status.wants_fetch { wait.min(SHORTEST_PAUSE) } else { wait };
        if collector.session.sleep(wait) {
            return Ok(false);
        }
    }
}
