//! Following a recording: what it came to in the last seconds and all the time it was watched,
//! again and again.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use unikprof_proto::code::state;

use super::picture::{Fold, Picture, Row};
use crate::cli::failure::Failure;
use unikprof_link::interrupt::Interrupt;
use unikprof_link::record::{
    self, Keep, LiveReader, Observer, RecordError, RecordingStatus, Session, Settings,
};
use unikprof_profile::printable::Printable;
use unikprof_profile::recording::Recording;
use unikprof_profile::symbols::{KnownNames, Symbolized, Symbolizer};
use unikprof_profile::timeline::{Timeline, Window};
use unikprof_report::report::running::{RunningTable, Summary};
use unikprof_report::report::shares::Shares;
use unikprof_report::report::text::shared_rows;
use unikprof_report::report::{
    FunctionRow, FunctionTable, Report, ReportOptions, SortBy, TimelineView, warnings,
};

/// How long a recording of `top`'s own runs before the next one takes its place: another client
/// that has fetched of it may not end it.
const OWN_NS: u64 = 3_600_000_000_000;

/// Parts of the time are added up once the rings tell how the vCPUs' time went in them, or once
/// they are so old.
const SETTLED_NS: u64 = 5_000_000_000;

/// What is shown.
#[derive(Debug)]
pub(in crate::cli) enum Target {
    /// A recording that is running, by its id.
    Running(u64),
    /// One that is started with these settings.
    Own(Box<Settings>),
}

/// The settings of a recording that nobody fetches.
pub(super) fn own_settings() -> Settings {
    Settings { duration_ns: OWN_NS, keep: Keep::Newest, is_watched: true, ..Settings::default() }
}

/// Follows one recording.
pub(super) struct Watch<'a> {
    session: &'a mut Session,
    interrupt: &'a Interrupt,
    symbolizer: &'a Symbolizer,
    recording: u64,
    own: Option<Box<Settings>>,
    window_ns: u64,
    reader: LiveReader,
    /// The names of the addresses met so far: a picture looks up only what is new in it.
    names: KnownNames,
    watched: RunningTable,
    /// The time that was added to it.
    added: Option<Window>,
}

impl<'a> Watch<'a> {
    /// Starts the recording, if it is to be an own one.
    pub(super) fn begin(
        session: &'a mut Session,
        interrupt: &'a Interrupt,
        symbolizer: &'a Symbolizer,
        of: Target,
        window: Duration,
        observer: &mut dyn Observer,
    ) -> Result<Watch<'a>, Failure> {
        let window_ns = u64::try_from(window.as_nanos()).unwrap_or(u64::MAX);
        let reader = LiveReader::new(session, window_ns);
        let (recording, own) = match of {
            Target::Running(recording) => (recording, None),
            Target::Own(settings) => {
                let started = session.start_observed(&settings, observer)?;
                (started.recording, Some(settings))
            }
        };
        Ok(Watch {
            session,
            interrupt,
            symbolizer,
            recording,
            own,
            window_ns,
            reader,
            names: KnownNames::default(),
            watched: RunningTable::default(),
            added: None,
        })
    }

    /// Makes a picture each interval, until `show` answers false, the user interrupts or the
    /// recording has ended. An own recording is then discarded.
    pub(super) fn run(
        mut self,
        every: Duration,
        show: impl FnMut(Picture) -> Result<bool, Failure>,
    ) -> Result<(), Failure> {
        let shown = match self.follow(every, show) {
            Err(Failure::Record(error)) if error.is_interrupt() => Ok(()),
            other => other,
        };
        let ended = match &self.own {
            Some(_) => record::discard_at_the_end(self.session, self.recording),
            None => Ok(()),
        };
        // The first error is the one to tell.
        shown.and(ended.map_err(Failure::from))
    }

    fn follow(
        &mut self,
        every: Duration,
        mut show: impl FnMut(Picture) -> Result<bool, Failure>,
    ) -> Result<(), Failure> {
        // A recording that has just begun has nothing to show.
        if self.own.is_some() && !self.sleep_until(Instant::now() + every) {
            return Ok(());
        }
        loop {
            let began = Instant::now();
            let Some(status) = self.status()? else {
                return Ok(());
            };
            let recording = self.reader.look(self.session, &status, &mut ())?;
            if let Some(picture) = self.picture(&recording, &status)?
                && !show(picture)?
            {
                return Ok(());
            }
            // A guest with much to name must not keep this machine busy: half of the time at most.
            let next = began + every.max(began.elapsed() * 2);
            if !self.sleep_until(next) {
                return Ok(());
            }
        }
    }

    /// Answers whether the user did not interrupt meanwhile.
    fn sleep_until(&self, end: Instant) -> bool {
        self.interrupt.sleep_until(end, Interrupt::stop)
    }

    /// What the recording is at; `None` once it has ended. After an own one the next is started.
    fn status(&mut self) -> Result<Option<RecordingStatus>, RecordError> {
        loop {
            let recorder = self.session.check(&mut ())?;
            match (recorder.by_id(self.recording), &self.own) {
                (Some(status), _) if status.state != state::FINISHED => {
                    return Ok(Some(status.clone()));
                }
                (there, Some(settings)) => {
                    // The guest has discarded that of a `top` that was stopped for a while.
                    if there.is_some() {
                        record::discard(self.session, self.recording, &mut ())?;
                    }
                    self.recording = self.session.start(settings)?.recording;
                }
                (_, None) => return Ok(None),
            }
        }
    }

    fn picture(
        &mut self,
        recording: &Recording,
        status: &RecordingStatus,
    ) -> Result<Option<Picture>, Failure> {
        let whole = &recording.profile;
        let Some((timeline, of)) = recording.timeline.as_ref().zip(recording.span) else {
            return Ok(None);
        };
        let read_ns = timeline.read_until().unwrap_or(status.now_ns);
        let to_ns = settled_ns(timeline, read_ns);
        let window = Window { from_ns: to_ns.saturating_sub(self.window_ns), to_ns };
        let window = timeline.bounded(&of, window);
        let symbolized = self.symbolizer.resolve_new(whole, &mut self.names)?;

        let (part, window) = add(window, &mut self.added);
        let part_profile = timeline.profile(whole, &of, part, None);
        let symbolized = symbolized.of_window(&part_profile);
        if part.length_ns() > 0 {
            let report = Report::new(&symbolized, ReportOptions::default());
            let table = report.functions();
            let names = names(table, &symbolized);
            self.watched.add(table, &names, &part_profile);
        }

        let recent = timeline.profile(whole, &of, window, None);
        let symbolized = symbolized.of_window(&recent);
        let report = Report::new(&symbolized, ReportOptions::default())
            .with_timeline(TimelineView { timeline, of, window, seconds: false, step_ns: None });
        let table = report.functions();
        let mut rows: HashMap<String, Row> = HashMap::new();
        let row = |name: &str| Row { name: name.to_owned(), ..Row::default() };
        for (name, shares) in self.watched.shares() {
            let row = rows.entry(name.to_owned()).or_insert_with(|| row(name));
            row.watched = Some(shares);
        }
        for (name, function) in names(table, &symbolized).into_iter().zip(&table.rows) {
            let row = rows.entry(name.clone()).or_insert_with(|| row(&name));
            row.recent = Some(Shares::of(function));
        }
        let about_the_window = recent.recording().warnings.iter();
        let about_the_window = about_the_window.skip(whole.recording().warnings.len());
        let names_missing = symbolized.warnings().iter().map(ToString::to_string);
        let (shared, _) = table.in_order(SortBy::Total, |_| false);
        let shared: Vec<&str> = shared.iter().map(|row| row.text.as_str()).collect();
        let mut rows: Vec<Row> = rows.into_values().collect();
        fold(&mut rows, &shared);
        let elsewhere = warnings::about_long_run(table, |_| true);
        Ok(Some(Picture {
            guest: recording.agent.guest_name.clone().unwrap_or_default(),
            recording: status.name.clone(),
            is_own: self.own.is_some(),
            mode: status.mode(),
            period_ns: status.period_ns,
            vcpus: recording.agent.vcpus,
            at_ns: read_ns,
            unix_ns: timeline.wall_clock().unix_ns(read_ns),
            recent: Summary::of(&recent),
            watched: self.watched.summary(),
            rows,
            warnings: about_the_window.cloned().chain(names_missing).chain(elsewhere).collect(),
        }))
    }
}

/// The part of a window that is not added up yet, and the window without what is before that: the
/// rings may come to tell of more of it.
fn add(window: Window, added: &mut Option<Window>) -> (Window, Window) {
    if window.length_ns() == 0 {
        return (window, window);
    }
    let added = added.get_or_insert(Window::new(window.from_ns, window.from_ns));
    let part = Window::new(added.to_ns, window.to_ns.max(added.to_ns));
    added.to_ns = part.to_ns;
    (part, Window { from_ns: window.from_ns.max(added.from_ns), ..window })
}

/// Up to when parts of the time can be added up.
fn settled_ns(timeline: &Timeline, read_ns: u64) -> u64 {
    let told_ns = timeline.times_told_until().unwrap_or(0);
    told_ns.clamp(read_ns.saturating_sub(SETTLED_NS), read_ns)
}

/// Makes one row of those that nearly all samples share, the outermost first.
fn fold(rows: &mut Vec<Row>, shared: &[&str]) {
    let mut folded = None;
    for row in rows.iter_mut().filter(|row| shared.contains(&row.name.as_str())) {
        row.fold = Fold::Part;
        if shared.first() == Some(&row.name.as_str()) {
            let name = shared_rows(shared.len());
            folded = Some(Row { name, fold: Fold::Whole, ..row.clone() });
        }
    }
    rows.extend(folded);
}

/// The names of a table's rows: those of functions of one name in several images have the image's
/// as well.
fn names(table: &FunctionTable, symbolized: &Symbolized<'_>) -> Vec<String> {
    let mut times: HashMap<&str, u32> = HashMap::new();
    for row in &table.rows {
        *times.entry(&row.text).or_default() += 1;
    }
    let name = |row: &FunctionRow| {
        let image = symbolized.function(row.function).image;
        match image.filter(|_| times[row.text.as_str()] > 1) {
            Some(image) => format!("{} [{}]", row.text, Printable(symbolized.image(image))),
            None => row.text.clone(),
        }
    };
    table.rows.iter().map(name).collect()
}

#[cfg(test)]
mod tests {
    use super::super::picture::{Measure, Sort};
    use super::*;

    /// Guards a first screen of functions that only lead to the work.
    #[test]
    fn functions_that_nearly_all_samples_share_are_one_row_of_totals() {
        let row = |name: &str| Row { name: name.into(), ..Row::default() };
        let mut rows = ["start", "main", "serve", "is_spam"].map(row).to_vec();
        fold(&mut rows, &["start", "main"]);
        let picture = Picture { rows, ..Picture::default() };
        let shown = |measure| {
            let rows = picture.sorted(Sort::Recent, measure, None);
            rows.iter().map(|row| row.name.as_str()).collect::<Vec<_>>()
        };
        let whole = "[2 functions that nearly all samples share]";
        assert_eq!(shown(Measure::Total), [whole, "is_spam", "serve"]);
        assert_eq!(shown(Measure::Own), ["is_spam", "main", "serve", "start"]);
    }

    /// Guards `recent 3.91 s` beside `watched 3.06 s`.
    #[test]
    fn recent_time_is_a_part_of_that_since_the_start() {
        let mut added = None;
        let mut sum = 0;
        for (from_ns, to_ns) in [(60, 60), (85, 170), (0, 391), (0, 380), (100, 500)] {
            let (part, window) = add(Window::new(from_ns, to_ns), &mut added);
            sum += part.length_ns();
            assert!(window.length_ns() <= sum, "{window:?}");
        }
        assert_eq!(sum, 415);
    }
}
