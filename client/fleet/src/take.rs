//! A profile of one guest for so many seconds: a recording of its own, named, and written as pprof
//! or as a page; or the last minutes of a recording that the guest has.

use std::path::Path;
use std::sync::MutexGuard;
use std::time::{Duration, SystemTime};

use unikprof_link::interrupt::Interrupt;
use unikprof_link::record::{
    self, Asked, Event, Mode, Observer, Outcome, RecordingStatus, Request, Session, Settings,
    own_name,
};
use unikprof_profile::caller_table;
use unikprof_profile::profile::{Profile, Unwind};
use unikprof_profile::recording::{Completeness, Reading, Recording};
use unikprof_profile::symbols::{Force, ImageOptions, Images, Symbolizer};
use unikprof_profile::timeline::Moment;
use unikprof_report::report::{Format, Report, ReportOptions, TimelineView};

use super::config::How;
use super::member::{GuestError, Hottest, Member, Profiles, Running, advised, always_on, log};

/// How the names of the recordings begin.
const PREFIX: &str = "serve";

/// How long a recording that nobody fetched is left alone after its end, in ns, besides the time
/// for which whoever asked for it tries to [reconnect](Member::session): its own duration.
const LEFT_BEHIND_NS: u64 = 120_000_000_000;

/// How much of a function's name is kept.
const MOST_CHARACTERS: usize = 300;

/// Whether a recording is one of those made here.
pub(super) fn is_own(recording: &RecordingStatus) -> bool {
    record::is_own_name(PREFIX, &recording.name) && recording.duration_ns != 0
}

/// Records for so long, or until the profile is interrupted, and answers it in a format.
pub(super) fn profile(
    running: &Running,
    mode: Mode,
    length: Duration,
    format: Format,
) -> Result<Vec<u8>, GuestError> {
    let member = &running.member;
    let taken = take(member, mode, length, format, &running.interrupt);
    let mut known = member.known();
    let Profiles { taken: good, failed, .. } = &mut known.profiles;
    let count = if taken.is_ok() { good } else { failed };
    *count = count.saturating_add(1);
    taken
}

fn take(
    member: &Member,
    mode: Mode,
    length: Duration,
    format: Format,
    interrupt: &Interrupt,
) -> Result<Vec<u8>, GuestError> {
    let symbolizer = symbolizer(&member.guest.how)?;
    let mut starting = Starting(Some(member.start()));
    if interrupt.stop() {
        return Err(GuestError::Ended);
    }
    let mut session = member.session(interrupt.clone(), length)?;
    discard_left_behind(&mut session)?;
    let settings = Settings {
        name: own_name(PREFIX),
        period_ns: member.guest.how.period_ns,
        mode,
        duration_ns: u64::try_from(length.as_nanos()).unwrap_or(u64::MAX),
        ..Settings::default()
    };
    let folder = tempfile::tempdir().map_err(GuestError::Temporary)?;
    let path = folder.path().join("recording.unikprof");
    let outcome = record_to(&mut session, &symbolizer, settings, &path, &mut starting)?;
    let recording = Recording::open(&outcome.path, Reading::Strict)?;
    // Also of a profile that is given up: the guest was interrupted for it.
    count(member, &recording.profile);
    if interrupt.stop() {
        return Err(GuestError::Ended);
    }
    expect_complete(&outcome, &recording)?;
    let wanted = Wanted { format, is_hottest: mode == member.guest.how.mode, copied_from: None };
    write(member, &symbolizer, &recording, wanted)
}

/// Copies the last minutes of the recording that always runs, without changing anything in the
/// guest, and answers their page.
pub(super) fn recent(running: &Running, length: Duration) -> Result<Vec<u8>, GuestError> {
    let (member, interrupt) = (&running.member, &running.interrupt);
    let symbolizer = symbolizer(&member.guest.how)?;
    let mut session = member.session(interrupt.quitting_at_first(), Duration::ZERO)?;
    let recorder = session.check(&mut ())?;
    let always_on = always_on(session.agent(), &recorder).ok_or(GuestError::NothingRecent)?;
    let before_ns = u64::try_from(length.as_nanos()).unwrap_or(u64::MAX);
    let asked = Asked { from: Some(Moment::BeforeEnd(before_ns)), to: None };
    let request = Request::Copy { recording: always_on.recording };
    let folder = tempfile::tempdir().map_err(GuestError::Temporary)?;
    let path = folder.path().join("recording.unikprof");
    let name = Some(&*always_on.name);
    let outcome = record::fetch_part(&mut session, request, asked, &path, name, &mut ())?;
    let recording = Recording::open(&outcome.path, Reading::Strict)?;
    expect_complete(&outcome, &recording)?;
    let wanted = Wanted {
        format: Format::Page,
        is_hottest: true,
        copied_from: Some(always_on.name.clone()),
    };
    write(member, &symbolizer, &recording, wanted)
}

fn expect_complete(outcome: &Outcome, recording: &Recording) -> Result<(), GuestError> {
    if let Some(reason) = &outcome.incomplete {
        return Err(GuestError::Incomplete(advised(reason)));
    }
    match &recording.completeness {
        Completeness::Incomplete(reason) => Err(GuestError::Incomplete(reason.clone())),
        _ => Ok(()),
    }
}

/// What is made of a recording.
struct Wanted {
    format: Format,
    /// Whether its hottest function is the guest's.
    is_hottest: bool,
    /// The recording that it is a copy of.
    copied_from: Option<String>,
}

/// Writes the recording, or the window of time that it was made for.
fn write(
    member: &Member,
    symbolizer: &Symbolizer,
    recording: &Recording,
    wanted: Wanted,
) -> Result<Vec<u8>, GuestError> {
    let view = TimelineView::of(recording);
    let part = view.zip(recording.asked).map(|(view, window)| {
        let timeline = view.timeline;
        timeline.profile(&recording.profile, &view.of, window, None)
    });
    let profile = part.as_ref().unwrap_or(&recording.profile);
    let symbolized = symbolizer.resolve(profile)?;
    let options =
        ReportOptions { guest_labels: Some(member.guest.all_labels()), ..ReportOptions::default() };
    let mut report = Report::new(&symbolized, options);
    if wanted.format == Format::Page {
        report = report.with_timeline(view).with_callers(symbolizer);
    }
    if wanted.is_hottest {
        let found = hottest(&report, profile, wanted.copied_from);
        let mut known = member.known();
        // One without samples leaves the one before, which grows old.
        known.hottest = found.or(known.hottest.take());
    }
    let mut bytes = Vec::new();
    report.write(wanted.format, &mut bytes)?;
    Ok(bytes)
}

/// Makes a recording with the caller table of the guest's images.
pub(super) fn record_to(
    session: &mut Session,
    symbolizer: &Symbolizer,
    settings: Settings,
    path: &Path,
    observer: &mut dyn Observer,
) -> Result<Outcome, GuestError> {
    let callers = caller_table::prepare(symbolizer, session.agent(), Unwind::FramePointers)?;
    let settings = Settings { callers: callers.table, held_callers: callers.held, ..settings };
    Ok(record::record(session, &settings, path, observer)?)
}

/// The function with the most samples of its own; `None` if there are no samples.
fn hottest(report: &Report<'_>, profile: &Profile, copied_from: Option<String>) -> Option<Hottest> {
    let functions = report.functions();
    let row = functions.rows.first().filter(|row| row.own != 0)?;
    let info = profile.recording();
    let window_ns = info.ring.as_ref().map(|ring| ring.to_ns.saturating_sub(ring.from_ns));
    Some(Hottest {
        function: row.text.chars().take(MOST_CHARACTERS).collect(),
        share: row.own as f64 / functions.recorded as f64,
        mode: info.mode.to_string(),
        seconds: window_ns.unwrap_or(info.elapsed_ns) as f64 / 1e9,
        at: SystemTime::now(),
        recording: copied_from,
    })
}

/// Holds others back until the recording runs.
struct Starting<'a>(Option<MutexGuard<'a, ()>>);

impl Observer for Starting<'_> {
    fn event(&mut self, event: Event<'_>) {
        if let Event::Running { .. } = event {
            self.0 = None;
        }
    }
}

/// The guest's images, read anew: they change with its builds.
pub(super) fn symbolizer(how: &How) -> Result<Symbolizer, GuestError> {
    let mut images = Images::new(ImageOptions::default());
    if let Some(path) = &how.image {
        images.add_image(path, Force::No)?;
    }
    if let Some(path) = &how.symbols {
        images.add_symbols(path)?;
    }
    Ok(Symbolizer::new(images))
}

/// Discards recordings of a program that did not live to fetch them: each takes a place in the
/// agent.
fn discard_left_behind(session: &mut Session) -> Result<(), GuestError> {
    let recorder = session.check(&mut ())?;
    let is_left = |one: &&RecordingStatus| is_left_behind(one);
    for left in recorder.recordings.iter().filter(is_left) {
        // Another one may have been faster.
        if record::discard(session, left.recording, &mut ()).is_ok() {
            log(&format!(
                "discarded recording {} of {}, which nobody fetched",
                left.name,
                session.address()
            ));
        }
    }
    Ok(())
}

fn is_left_behind(one: &RecordingStatus) -> bool {
    let ended_ns = one.started_ns.saturating_add(one.duration_ns);
    let patience_ns = one.duration_ns.saturating_add(LEFT_BEHIND_NS);
    is_own(one) && one.is_unclaimed() && one.now_ns.saturating_sub(ended_ns) > patience_ns
}

/// Adds a profile to what is known of the guest.
fn count(member: &Member, profile: &Profile) {
    let mut known = member.known();
    let profiles = &mut known.profiles;
    let counters = profile.counters();
    profiles.missing = counters.missing;
    profiles.counters = profiles.counters.plus(&counters);
    let cost_ns = profile.cost().map_or(0, |(cost, _)| cost.total_ns());
    profiles.cost_ns = profiles.cost_ns.saturating_add(cost_ns);
}

#[cfg(test)]
mod tests {
    use super::super::config::Guest;
    use unikprof_profile::profile::{Cost, ProfileBuilder, Runstate, VcpuStats};
    use unikprof_proto::code::state;

    use super::*;

    /// Guards against a vCPU without an estimate, whose deliveries would cost nothing.
    #[test]
    fn the_cost_is_the_profiles() {
        let mut builder = ProfileBuilder::new();
        for (vcpu, (deliveries, delivery_ns)) in [(0, (10, Some(1_000))), (1, (20, None))] {
            let cost = Cost { sampling_ns: 5, deliveries, delivery_ns, ..Cost::default() };
            let runstate = Runstate { running_ns: Some(1_000_000), ..Runstate::default() };
            let stats = VcpuStats { vcpu, cost: Some(cost), runstate, ..VcpuStats::default() };
            builder.add_vcpu(stats);
        }
        let member = Member::new(Guest::named("web"));
        count(&member, &builder.finish());
        assert_eq!(member.known().profiles.cost_ns, 10 + 3_000);
    }

    /// A recording of three minutes whose client reconnects for as long must still be there then.
    #[test]
    fn a_recording_is_left_alone_while_its_client_may_reconnect() {
        const SECOND_NS: u64 = 1_000_000_000;
        let after = |seconds: u64| {
            is_left_behind(&RecordingStatus {
                name: "serve-0badcafe".into(),
                state: state::FINISHED,
                started_ns: SECOND_NS,
                duration_ns: 180 * SECOND_NS,
                now_ns: (1 + 180 + seconds) * SECOND_NS,
                ..RecordingStatus::default()
            })
        };
        assert!(!after(180));
        assert!(after(301));
    }
}
