//! `connect`: talking to an agent.

use std::fs;

use super::arguments::{
    ConnectArguments, ConnectWord, FetchArguments, OutputArguments, RecordArguments,
    SettingsArguments, StartArguments,
};
use super::describe;
use super::failure::Failure;
use super::json;
use super::names::{self, NameArguments};
use super::outputs::{Plan, ReportOutput, Target};
use super::print;
use super::status;
use crate::caller_table::{self, Prepared};
use crate::connection::Timeouts;
use crate::interrupt::Interrupt;
use crate::progress::ProgressLine;
use crate::record::{
    self, Observer, Outcome, Patience, RecordError, Request, Session, Settings, Unwind,
};
use crate::recording::{Reading, Recording};
use crate::report::{Report, ReportOptions};
use crate::symbols::{SymbolWarning, Symbolizer};

pub(super) fn run(arguments: ConnectArguments) -> Result<(), Failure> {
    let patience = Patience {
        timeouts: Timeouts {
            connect: arguments.timeout,
            answer: arguments.timeout,
        },
        reconnect: arguments.retry,
    };
    // The user's own files first: what is wrong with them needs no guest.
    let symbolizer = arguments.word.names().map(NameArguments::symbolizer);
    let symbolizer = symbolizer.transpose()?.unwrap_or_default();
    let interrupt = match arguments.word {
        ConnectWord::Record(_) => Interrupt::default(),
        _ => Interrupt::quitting_at_once(),
    };
    let access = arguments.access.access()?;
    let session = Session::with_access(arguments.address, access, patience, interrupt.clone())?;
    if session.key().is_none() {
        eprintln!(
            "warning: the agent at {} is open: it asks nobody for a key, and everything travels in the \
             clear; `keygen` makes a key",
            session.address()
        );
    }
    let mut conversation = Conversation {
        session,
        interrupt,
        json: arguments.json,
    };
    match arguments.word {
        ConnectWord::Info => conversation.info(),
        ConnectWord::Check(arguments) => conversation.check(arguments.name.as_deref()),
        ConnectWord::Start(arguments) => conversation.start(&arguments, &symbolizer),
        ConnectWord::Record(arguments) => conversation.record(&arguments, &symbolizer),
        ConnectWord::Stop(arguments) => {
            conversation.fetch(Request::Stop { recording: 0 }, &arguments, &symbolizer)
        }
        ConnectWord::Dump(arguments) => {
            conversation.fetch(Request::Dump { recording: 0 }, &arguments, &symbolizer)
        }
        ConnectWord::Fetch(arguments) => {
            conversation.fetch(Request::Copy { recording: 0 }, &arguments, &symbolizer)
        }
    }
}

impl ConnectWord {
    fn names(&self) -> Option<&NameArguments> {
        match self {
            ConnectWord::Record(arguments) => Some(&arguments.names),
            ConnectWord::Stop(arguments)
            | ConnectWord::Dump(arguments)
            | ConnectWord::Fetch(arguments) => Some(&arguments.names),
            ConnectWord::Start(arguments) => Some(&arguments.names),
            ConnectWord::Info | ConnectWord::Check(_) => None,
        }
    }
}

struct Conversation {
    session: Session,
    interrupt: Interrupt,
    json: bool,
}

impl Conversation {
    fn info(&self) -> Result<(), Failure> {
        print(match self.json {
            true => json::info(&self.session),
            false => describe::info(&self.session),
        })
    }

    fn check(&mut self, name: Option<&str>) -> Result<(), Failure> {
        let mut found = self.session.check(&mut ())?;
        let one = match name {
            None => None,
            Some(name) => Some(found.find(Some(name))?.clone()),
        };
        print(match (self.json, one) {
            (true, None) => json::status(&found, &self.session),
            (true, Some(one)) => {
                found.recordings = vec![one];
                json::status(&found, &self.session)
            }
            (false, None) => status::all(&found, &self.session),
            (false, Some(one)) => status::one(&one, &found, &self.session),
        })
    }

    fn start(
        &mut self,
        arguments: &StartArguments,
        symbolizer: &Symbolizer,
    ) -> Result<(), Failure> {
        let mut settings = arguments.settings.settings(arguments.duration_ns);
        if !arguments.names.is_empty() {
            names::check(symbolizer, self.session.agent())?;
        }
        self.callers(&arguments.settings, symbolizer, &mut settings)?;
        let started = self.session.start(&settings)?;
        print(match self.json {
            true => json::started(&settings, started.recording),
            false => describe::started(&settings, started.recording, self.session.address()),
        })
    }

    fn record(
        &mut self,
        arguments: &RecordArguments,
        symbolizer: &Symbolizer,
    ) -> Result<(), Failure> {
        let mut settings = arguments.settings.settings(arguments.duration_ns);
        self.callers(&arguments.settings, symbolizer, &mut settings)?;
        self.download(
            &arguments.outputs,
            &arguments.names,
            symbolizer,
            |session, plan, observer| record::record(session, &settings, &plan.recording, observer),
        )
    }

    /// Finds the table to look callers up in, as far as it is wanted and can be had.
    fn callers(
        &self,
        arguments: &SettingsArguments,
        symbolizer: &Symbolizer,
        settings: &mut Settings,
    ) -> Result<(), Failure> {
        if arguments.no_caller_table {
            return match arguments.unwind {
                Unwind::Fp => Ok(()),
                Unwind::Table => Err(Failure::Usage(
                    "`--unwind table` needs the caller table that `--no-caller-table` leaves out"
                        .into(),
                )),
            };
        }
        let agent = self.session.agent();
        let Prepared { table, held, notes } =
            caller_table::prepare(symbolizer, agent, arguments.unwind)?;
        for note in notes.iter().filter(|_| !self.json) {
            eprintln!("warning: {note}");
        }
        settings.callers = table;
        settings.held_callers = held;
        Ok(())
    }

    fn fetch(
        &mut self,
        request: Request,
        arguments: &FetchArguments,
        symbolizer: &Symbolizer,
    ) -> Result<(), Failure> {
        self.download(
            &arguments.outputs,
            &arguments.names,
            symbolizer,
            |session, plan, observer| record::fetch(session, request, &plan.recording, observer),
        )
    }

    /// Brings a recording home with `get`, writes what was asked for and tells about it.
    fn download(
        &mut self,
        outputs: &OutputArguments,
        names: &NameArguments,
        symbolizer: &Symbolizer,
        get: impl FnOnce(&mut Session, &Plan, &mut dyn Observer) -> Result<Outcome, RecordError>,
    ) -> Result<(), Failure> {
        let agent = self.session.agent();
        let plan = Plan::new(
            &outputs.output,
            outputs.format,
            agent.guest_name.as_deref(),
            self.session.connected(),
        )?;
        if !names.is_empty() {
            names::check(symbolizer, agent)?;
        }
        // Until here Ctrl-C may end the program as it ends any other: there is nothing to clean up.
        self.interrupt.listen().map_err(Failure::Signals)?;
        let mut progress = ProgressLine::on_stderr();
        let outcome = get(&mut self.session, &plan, &mut progress);
        progress.finish();
        let outcome = outcome?;
        if let Some(epoch) = outcome.unacknowledged {
            eprintln!(
                "warning: the guest could not be told that the recording is safe here; it keeps \
                 epoch {epoch} until `start --discard` or `record --discard`"
            );
        }
        let shown = self.show(&plan, symbolizer, &outcome);
        match (shown, outcome.incomplete) {
            (Ok(()), None) => {
                if !plan.keeps_recording {
                    // Its reports are written, and nobody asked for more.
                    let _ = fs::remove_file(&outcome.path);
                }
                Ok(())
            }
            (Ok(()), Some(reason)) => Err(Failure::Incomplete {
                path: outcome.path,
                reason: reason.to_string(),
            }),
            (Err(source), _) => Err(Failure::AfterRecording {
                recording: outcome.path,
                source: Box::new(source),
            }),
        }
    }

    /// Writes the reports and a summary.
    fn show(&self, plan: &Plan, symbolizer: &Symbolizer, outcome: &Outcome) -> Result<(), Failure> {
        let is_readable = fs::metadata(&outcome.path).is_ok_and(|found| found.is_file());
        if !is_readable {
            // A device, such as /dev/null: there is nothing to read back.
            return Ok(());
        }
        let recording = Recording::open(&outcome.path, Reading::Strict)?;
        let symbolized = symbolizer.resolve(&recording.profile)?;
        let to_stdout = plan.reports.iter().any(|o| o.target == Target::Stdout);
        let report = Report::new(
            &symbolized,
            ReportOptions {
                columns: Some(ReportOutput::columns(&plan.reports)),
                ..ReportOptions::default()
            },
        );
        let mut files = Vec::new();
        if plan.keeps_recording {
            files.push(outcome.path.clone());
        }
        for output in &plan.reports {
            output.write(&report)?;
            if let Target::File(path) = &output.target {
                files.push(path.clone());
            }
        }
        let has_names = !symbolized
            .warnings()
            .iter()
            .any(|warning| matches!(warning, SymbolWarning::NoImage { .. }));
        for warning in recording
            .profile
            .recording()
            .warnings
            .iter()
            .filter(|_| !to_stdout)
        {
            eprintln!("warning: {warning}");
        }
        if to_stdout {
            return Ok(());
        }
        print(match self.json {
            true => json::recorded(&recording, &files),
            false => describe::recorded(&recording, &files, has_names),
        })
    }
}
