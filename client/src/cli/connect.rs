//! `connect`: talking to an agent.

use std::path::{Path, PathBuf};

use unikprof_proto::code::role;

use super::arguments::{ConnectArguments, ConnectWord, OutputArguments, WindowedArguments};
use super::describe;
use super::events;
use super::failure::Failure;
use super::json;
use super::leaks::{self, ConnectLeaksArguments};
use super::name_pattern::NamedAfter;
use super::names::NameArguments;
use super::outputs::{
    Plan, ReportOutput, Target, can_be_read_back, is_device, no_input_is_replaced,
    nothing_is_replaced, warn,
};
use super::recordings::{
    DownloadArguments, RecordArguments, StartArguments, StopArguments, UnwindArguments,
};
use super::signals::{self, Kept};
use super::top::{self, TopArguments};
use super::{print, print_local, screen, snapshot, status, trace};
use crate::allocator;
use crate::charset::local;
use crate::progress::{ProgressLine, READING_IMAGES};
use unikprof_link::interrupt::Interrupt;
use unikprof_link::record::{
    self, Asked, Event, Observer, Outcome, Patience, RecordError, Request, Session, Settings,
};
use unikprof_profile::caller_table::{self, Note, Prepared, Reserve};
use unikprof_profile::printable::{Printable, word};
use unikprof_profile::profile::Unwind;
use unikprof_profile::recording::{Reading, Recording, holds};
use unikprof_profile::symbols::{SymbolWarning, Symbolizer};
use unikprof_profile::timeline::Timeline;
use unikprof_report::finding::wrapped;
use unikprof_report::report::{
    Format, Report, ReportOptions, TimelineView, warnings, without_sampler,
};

/// How many functions a recording's answer lists.
const SHOWN: usize = 10;

pub(super) fn run(arguments: ConnectArguments) -> Result<(), Failure> {
    let address = arguments.address()?;
    let patience = Patience { timeouts: arguments.access.timeouts(), reconnect: arguments.retry };
    // The user's own files first: what is wrong with them needs no guest.
    let names = arguments.word.names().map(NameArguments::words).unwrap_or_default();
    let symbolizer = arguments.word.names().map(NameArguments::symbolizer);
    let symbolizer = symbolizer.transpose()?.unwrap_or_default();
    let inputs = arguments.word.names().into_iter().flat_map(NameArguments::files).cloned();
    let inputs = inputs.chain(arguments.access.key_file()).collect();
    let interrupt = match arguments.word {
        ConnectWord::Record(_)
        | ConnectWord::Top(_)
        | ConnectWord::Trace(_)
        | ConnectWord::Leaks(_) => Interrupt::default(),
        _ => Interrupt::quitting_at_once(),
    };
    let access = arguments.access.access()?;
    let mut session = Session::with_access(address, access, patience, interrupt.clone())?;
    if let Some(path) = &arguments.access.key_file {
        session.tell_key_file(path);
    }
    let is_record = matches!(arguments.word, ConnectWord::Record(_) | ConnectWord::Start(_));
    if is_record && session.key().is_none() && !session.address().is_loopback() {
        tell!(
            "warning: the agent at {} requires no key; traffic is not encrypted (`keygen` makes a \
             key)",
            session.address()
        );
    }
    let mut conversation = Conversation { session, interrupt, names, inputs, json: arguments.json };
    match arguments.word {
        ConnectWord::Info => conversation.info(),
        ConnectWord::Check(arguments) => conversation.check(arguments.name.as_deref()),
        ConnectWord::Start(arguments) => conversation.start(&arguments, &symbolizer),
        ConnectWord::Record(arguments) => conversation.record(&arguments, &symbolizer),
        ConnectWord::Stop(arguments) if arguments.discard => {
            conversation.discard(arguments.download.which.name.as_deref())
        }
        ConnectWord::Stop(StopArguments { download, .. }) => {
            let request = |recording| Request::Stop { recording };
            conversation.fetch(request, Asked::default(), &download, &symbolizer)
        }
        ConnectWord::Dump(WindowedArguments { download, window }) => {
            let request = |recording| Request::Dump { recording };
            conversation.fetch(request, window.asked(), &download, &symbolizer)
        }
        ConnectWord::Copy(WindowedArguments { download, window }) => {
            let request = |recording| Request::Copy { recording };
            conversation.fetch(request, window.asked(), &download, &symbolizer)
        }
        ConnectWord::Events(arguments) => events::run(
            &mut conversation.session,
            &conversation.interrupt,
            &arguments,
            conversation.json,
        ),
        ConnectWord::Snapshot(arguments) => snapshot::run(
            &mut conversation.session,
            &conversation.interrupt,
            &symbolizer,
            &arguments,
            conversation.json,
        ),
        ConnectWord::Top(arguments) => conversation.top(&arguments, &symbolizer),
        ConnectWord::Trace(arguments) => trace::run(
            &mut conversation.session,
            &conversation.interrupt,
            &symbolizer,
            &conversation.inputs,
            &arguments,
            conversation.json,
        ),
        ConnectWord::Leaks(arguments) => conversation.leaks(&arguments, &symbolizer),
    }
}

impl ConnectWord {
    fn names(&self) -> Option<&NameArguments> {
        match self {
            ConnectWord::Record(arguments) => Some(&arguments.names),
            ConnectWord::Stop(arguments) => Some(&arguments.download.names),
            ConnectWord::Dump(arguments) | ConnectWord::Copy(arguments) => {
                Some(&arguments.download.names)
            }
            ConnectWord::Start(arguments) => Some(&arguments.names),
            ConnectWord::Snapshot(arguments) => Some(&arguments.names),
            ConnectWord::Top(arguments) => Some(&arguments.names),
            ConnectWord::Trace(arguments) => Some(&arguments.names),
            ConnectWord::Leaks(arguments) => Some(&arguments.names),
            ConnectWord::Info | ConnectWord::Check(_) | ConnectWord::Events(_) => None,
        }
    }
}

/// Lines for people, as wide as the terminal.
fn told(text: &str) -> String {
    local(match screen::known_columns() {
        Some(columns) => wrapped(text, columns),
        None => text.to_owned(),
    })
}

/// Called with the warnings about a recording that was started.
pub(super) struct Warnings<F>(pub(super) F);

impl<F: FnMut(&'static str)> Observer for Warnings<F> {
    fn event(&mut self, event: Event<'_>) {
        if let Event::CallerTableNotTaken { uses_held } = event {
            (self.0)(warnings::caller_table_warning(uses_held));
        }
    }
}

/// Finds the table to look callers up in, as far as it is wanted and can be had. Answers what is
/// missing in it.
pub(super) fn find_callers(
    session: &mut Session,
    arguments: &UnwindArguments,
    symbolizer: &Symbolizer,
    reserve: Reserve,
    settings: &mut Settings,
) -> Result<Vec<Note>, Failure> {
    if arguments.no_caller_table {
        return match arguments.unwind {
            Unwind::FramePointers => Ok(Vec::new()),
            Unwind::Table => Err(Failure::Usage(
                "`--unwind table` needs a caller table and cannot be combined with \
                 `--no-caller-table`"
                    .into(),
            )),
        };
    }
    let agent = session.agent();
    let may_install = agent.role != role::VIEW;
    let Prepared { table, partial, held, mut notes } =
        caller_table::prepare(symbolizer, agent, arguments.unwind)?;
    settings.callers = table;
    settings.held_callers = held;
    // Who may only look is told so of the recording.
    if let Some(mut partial) = partial.filter(|_| may_install) {
        let interrupted = record::first_second(session, settings)?;
        settings.callers = partial.first(&interrupted, reserve);
        let sent = settings.callers.as_ref().map_or(0, |it| it.rows().len());
        notes.push(partial.note(sent, reserve));
        settings.partial = Some(partial);
    }
    Ok(notes)
}

struct Conversation {
    session: Session,
    interrupt: Interrupt,
    /// [`NameArguments::words`].
    names: String,
    /// The files that are read.
    inputs: Vec<PathBuf>,
    json: bool,
}

impl Conversation {
    fn info(&mut self) -> Result<(), Failure> {
        let recorder = self.session.check(&mut ())?;
        print(if self.json {
            json::info(&self.session, &recorder)
        } else {
            told(&describe::info(&self.session, &recorder))
        })
    }

    fn check(&mut self, name: Option<&str>) -> Result<(), Failure> {
        let mut found = self.session.check(&mut ())?;
        let rings = self.session.ring_fill(&mut ())?;
        let one = match name {
            None => None,
            Some(name) => Some(found.find(Some(name)).map_err(RecordError::from)?.clone()),
        };
        print(match (self.json, one) {
            (true, None) => json::status(&found, &rings, &self.session),
            (true, Some(one)) => {
                found.recordings = vec![one];
                json::status(&found, &rings, &self.session)
            }
            (false, None) => {
                told(&status::all(&found, &rings, &self.session, screen::known_columns()))
            }
            (false, Some(one)) => told(&status::one(&one, &found, &rings, &self.session)),
        })
    }

    fn start(
        &mut self,
        arguments: &StartArguments,
        symbolizer: &Symbolizer,
    ) -> Result<(), Failure> {
        let mut settings = arguments.settings()?;
        settings.check(self.session.agent())?;
        arguments.names.check(symbolizer, self.session.agent())?;
        let unwinding = &arguments.sampling.unwinding;
        self.callers(unwinding, symbolizer, Reserve::Nothing, &mut settings)?;
        // From here on, what is left in the guest is told.
        signals::listen(&self.interrupt).map_err(Failure::Signals)?;
        let started =
            self.session.start_observed(&settings, &mut Warnings(|it| warn([it], false)))?;
        let guest = self.session.guest_words();
        let told = print(if self.json {
            json::started(&settings, started.recording)
        } else {
            local(describe::started(&settings, started.recording, guest))
        });
        told.inspect_err(|_| {
            let name = word(&settings.name);
            tell!(
                "warning: the recording runs: `unikprof-client connect {guest} stop --name {name}` \
                 ends it and fetches it"
            );
        })
    }

    fn record(
        &mut self,
        arguments: &RecordArguments,
        symbolizer: &Symbolizer,
    ) -> Result<(), Failure> {
        let mut settings = arguments.settings()?;
        settings.check(self.session.agent())?;
        let unwinding = &arguments.sampling.unwinding;
        self.callers(unwinding, symbolizer, Reserve::ForLater, &mut settings)?;
        self.download(
            (&settings.name, None),
            &arguments.outputs,
            &arguments.names,
            symbolizer,
            |session, path, observer| record::record(session, &settings, path, observer),
        )
    }

    fn top(&mut self, arguments: &TopArguments, symbolizer: &Symbolizer) -> Result<(), Failure> {
        let target = top::choose(&mut self.session, arguments)?;
        let (session, interrupt) = (&mut self.session, &self.interrupt);
        top::run(session, interrupt, symbolizer, arguments, target, self.json)
    }

    fn leaks(
        &mut self,
        arguments: &ConnectLeaksArguments,
        symbolizer: &Symbolizer,
    ) -> Result<(), Failure> {
        no_input_is_replaced(&self.inputs, arguments.output.as_deref())?;
        arguments.output.as_deref().map_or(Ok(()), can_be_read_back)?;
        let mut settings = arguments.settings()?;
        settings.check(self.session.agent())?;
        arguments.names.check(symbolizer, self.session.agent())?;
        let unwinding = &arguments.unwinding;
        self.callers(unwinding, symbolizer, Reserve::Nothing, &mut settings)?;
        let (session, interrupt) = (&mut self.session, &self.interrupt);
        leaks::connect(session, interrupt, arguments, &settings, symbolizer, self.json)
    }

    /// [`find_callers`], which prints what is missing.
    fn callers(
        &mut self,
        arguments: &UnwindArguments,
        symbolizer: &Symbolizer,
        reserve: Reserve,
        settings: &mut Settings,
    ) -> Result<(), Failure> {
        let notes = ProgressLine::during(READING_IMAGES, || {
            find_callers(&mut self.session, arguments, symbolizer, reserve, settings)
        })?;
        warn(&notes, self.json);
        Ok(())
    }

    /// Ends a recording, and keeps nothing of it.
    fn discard(&mut self, name: Option<&str>) -> Result<(), Failure> {
        let (recording, name) = self.find(name)?;
        record::discard(&mut self.session, recording, &mut ())?;
        print(if self.json {
            json::discarded(&name, recording)
        } else {
            describe::discarded(&name, recording)
        })
    }

    fn fetch(
        &mut self,
        request: impl FnOnce(u64) -> Request,
        asked: Asked,
        arguments: &DownloadArguments,
        symbolizer: &Symbolizer,
    ) -> Result<(), Failure> {
        // Before a place for it is made: where it is not clear which one is meant there is none to
        // make.
        let (recording, name) = self.find(arguments.which.name.as_deref())?;
        let request = request(recording);
        let taken = (!matches!(request, Request::Copy { .. })).then_some(recording);
        self.download(
            (&name, taken),
            &arguments.outputs,
            &arguments.names,
            symbolizer,
            |session, path, observer| {
                let guest = session.guest_words().to_owned();
                let advised = |error: RecordError| match request {
                    Request::Copy { .. } => error.while_copying(),
                    _ => error.while_running(request, &name, &guest),
                };
                match record::fetch_part(session, request, asked, path, Some(&name), observer) {
                    Ok(outcome) => {
                        let incomplete = outcome.incomplete.map(advised);
                        Ok(Outcome { incomplete, ..outcome })
                    }
                    Err(error) if error.is_broken_off() => Err(advised(error)),
                    Err(error) => Err(error),
                }
            },
        )
    }

    /// The id and the name of a recording, or of the only one.
    fn find(&mut self, name: Option<&str>) -> Result<(u64, String), Failure> {
        let status = self.session.check(&mut ())?;
        let found = status.find(name).map_err(RecordError::from)?;
        Ok((found.recording, found.name.clone()))
    }

    /// Brings a recording home with `get`, writes what was asked for and tells about it. `taken` is
    /// the recording that goes from the guest into the file: what was taken before is in no other
    /// place, and is not replaced.
    fn download(
        &mut self,
        (recording, taken): (&str, Option<u64>),
        outputs: &OutputArguments,
        names: &NameArguments,
        symbolizer: &Symbolizer,
        get: impl FnOnce(&mut Session, &Path, &mut dyn Observer) -> Result<Outcome, RecordError>,
    ) -> Result<(), Failure> {
        let agent = self.session.agent();
        let plan = Plan::new(
            &outputs.output,
            outputs.format,
            &NamedAfter {
                guest: agent.guest_name.as_deref(),
                recording,
                time: self.session.connected(),
            },
        )?;
        no_input_is_replaced(&self.inputs, plan.files())?;
        if let Some(taken) = taken {
            nothing_is_replaced(plan.report_files())?;
            let path = plan.recording.path();
            if holds(path, agent, taken) {
                return Err(Failure::Replaces { path: path.into() });
            }
        }
        allocator::tell_where(plan.recording.path());
        names.check(symbolizer, agent)?;
        // Until here Ctrl-C may end the program as it ends any other: there is nothing to clean up.
        let mut progress = ProgressLine::on_stderr();
        let stopping = progress.stopping("samples");
        let kept = Kept::default();
        kept.listen(&self.interrupt, stopping).map_err(Failure::Signals)?;
        let outcome = get(&mut self.session, plan.recording.path(), &mut progress);
        progress.finish();
        let outcome = outcome?;
        kept.is_in(&outcome.path);
        match &outcome.unacknowledged {
            None => {}
            Some((_, RecordError::Leased { text, .. })) => tell!(
                "warning: these samples stay in the guest for another client too: {}; if that one \
                 is gone, `unikprof-client connect {} stop --name {}` removes them once its lease \
                 has ended",
                Printable(text),
                self.session.guest_words(),
                word(recording)
            ),
            Some((epoch, _)) => tell!(
                "warning: the guest may not have learned that epoch {epoch} is saved: if so, \
                 `unikprof-client connect {} dump --name {}` brings it again, and reports of both \
                 files count it once",
                self.session.guest_words(),
                word(recording)
            ),
        }
        let is_interrupt = outcome.incomplete.as_ref().is_some_and(RecordError::is_interrupt);
        let shown = match is_interrupt {
            true => Ok(()),
            false => self.show(&plan, symbolizer, &outcome),
        };
        let Outcome { path, displaced, incomplete, .. } = outcome;
        let is_only = taken.is_some() && plan.is_for_stdout();
        let ended = Failure::of_recording(path, displaced, shown, is_only, incomplete);
        ended.inspect_err(|failure| {
            if failure.text().is_some() {
                plan.recording.keep();
            }
        })
    }

    /// Writes the reports and a summary.
    fn show(&self, plan: &Plan, symbolizer: &Symbolizer, outcome: &Outcome) -> Result<(), Failure> {
        if is_device(&outcome.path) {
            return Ok(());
        }
        let recording = Recording::open(&outcome.path, Reading::Strict)?;
        let rings = recording.timeline.iter().flat_map(Timeline::rings);
        let evicted = rings.map(|ring| ring.overwritten).fold(0, u64::saturating_add);
        if evicted > 0 {
            let evicted = format!(
                "{evicted} records of the rings were evicted before a fetch: timelines have gaps; \
                 give the guest larger rings"
            );
            warn([evicted], false);
        }
        // What a dump asked for is what its reports show.
        let cut = recording.part_asked();
        let mut symbolized = ProgressLine::during(READING_IMAGES, || {
            symbolizer.resolve(cut.as_ref().unwrap_or(&recording.profile))
        })?;
        let trimmed = without_sampler(&symbolized);
        if let Some(trimmed) = &trimmed {
            symbolized = symbolized.of_window(trimmed);
        }
        let to_stdout = plan.reports.iter().any(|o| o.target == Target::Stdout);
        let columns = Some(ReportOutput::columns(&plan.reports));
        let top = if to_stdout { ReportOptions::default().top } else { SHOWN };
        let mut report =
            Report::new(&symbolized, ReportOptions { columns, top, ..ReportOptions::default() })
                .with_timeline(TimelineView::of(&recording));
        let is_page = |output: &ReportOutput| output.format == Format::Page;
        if plan.reports.iter().any(is_page) {
            report = report.with_callers(symbolizer);
        }
        let mut files = Vec::new();
        if plan.recording.is_wanted() {
            files.push(outcome.path.clone());
        }
        files.extend(plan.reports.iter().filter_map(|output| match &output.target {
            Target::File(path) => Some(path.clone()),
            Target::Stdout => None,
        }));
        let mut warnings = symbolized.warnings().iter();
        let names = match &*self.names {
            "" if warnings.any(SymbolWarning::is_image_missing) => " --image GUEST.ELF",
            named => named,
        };
        let printable = |text: &String| Printable(text).to_string();
        let mut warnings = match plan.reports.is_empty() && !self.json {
            // The others are about the symbols and the figures of reports.
            true => recording.profile.recording().warnings.iter().map(printable).collect(),
            false => report.warnings(),
        };
        // This is told as the error.
        let told = recording.completeness.warning().filter(|_| outcome.incomplete.is_some());
        let told = told.as_ref().map(printable);
        warnings.retain(|warning| Some(warning) != told.as_ref());
        let is_shown = !to_stdout;
        let written = ReportOutput::write_telling(&warnings, &plan.reports, &report, is_shown);
        if to_stdout {
            return written;
        }
        if self.json {
            return written
                .and_then(|()| print(json::recorded(&recording, cut.as_ref(), &files, &warnings)));
        }
        let mut text = Vec::new();
        let shown = report.without_warning(told).in_columns(screen::columns());
        let shown = shown.write(Format::Text, &mut text);
        shown.map_err(|source| Failure::Report { path: "-".into(), source })?;
        if written.is_ok() {
            text.extend(describe::written(&files, names).into_bytes());
        }
        written.and(print_local(true, text))
    }
}
