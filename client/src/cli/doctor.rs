//! `doctor`: whether a recording, or an agent, can be trusted.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::arguments::DoctorArguments;
use super::failure::Failure;
use super::{names, print, screen};
use crate::charset;
use unikprof_link::connection::Address;
use unikprof_link::interrupt::Interrupt;
use unikprof_link::record::{Patience, Session, Settings};
use unikprof_profile::recording::{Reading, Recording};
use unikprof_report::doctor::{Answers, Diagnosis, Verdict};

/// What the user means.
#[derive(Debug, PartialEq, Eq)]
enum Target {
    File(PathBuf),
    Agent(Address),
}

pub(super) fn run(arguments: &DoctorArguments) -> Result<(), Failure> {
    let (taken, diagnosis) = match target(&arguments.target)? {
        Target::File(path) => {
            if let Ok(address) = arguments.target.parse::<Address>()
                && !looks_like_a_file(&arguments.target)
            {
                tell!("note: using the file {}; for the agent, write `{address}`", path.display());
            }
            let taken = format!("the file {}", path.display());
            (taken, recording(&path, arguments)?)
        }
        Target::Agent(address) => {
            let taken = format!("the agent at {address}");
            let asked = agent(address, arguments).inspect_err(|_| {
                tell!(
                    "note: there is no file `{}`, so it was taken for an agent's address",
                    arguments.target
                );
            });
            (taken, asked?)
        }
    };
    print(if arguments.json {
        let mut document = diagnosis.json();
        if let Value::Object(fields) = &mut document {
            fields.insert("source".to_owned(), json!(taken));
        }
        format!("{document:#}\n")
    } else {
        let text = diagnosis.text(screen::columns(), arguments.all);
        charset::local(format!("{text}source                {taken}\n"))
    })?;
    match diagnosis.verdict() {
        Verdict::Bad => Err(Failure::Untrustworthy),
        Verdict::Good | Verdict::Look => Ok(()),
    }
}

/// A file that exists, or else an address; what looks like a file is one.
fn target(text: &str) -> Result<Target, Failure> {
    if Path::new(text).exists() || looks_like_a_file(text) {
        return Ok(Target::File(text.into()));
    }
    match text.parse() {
        Ok(address) => Ok(Target::Agent(address)),
        Err(error) => Err(Failure::Usage(format!(
            "{text:?} is neither a file nor an address: there is no such file, and {error}"
        ))),
    }
}

fn looks_like_a_file(text: &str) -> bool {
    text.ends_with(".unikprof") || text.contains('/') && !text.contains("://")
}

fn recording(path: &Path, arguments: &DoctorArguments) -> Result<Diagnosis, Failure> {
    let symbolizer = arguments.names.symbolizer()?;
    let recording = Recording::open(path, Reading::Salvage)?.with_samples(path)?;
    Ok(Diagnosis::of_recording(&recording, &symbolizer))
}

/// Asks who the agent is and what it does: neither changes anything in the guest.
fn agent(address: Address, arguments: &DoctorArguments) -> Result<Diagnosis, Failure> {
    let symbolizer = arguments.names.symbolizer()?;
    let patience = Patience { timeouts: arguments.access.timeouts(), reconnect: Duration::ZERO };
    let access = arguments.access.access()?;
    let interrupt = Interrupt::quitting_at_once();
    let mut session = Session::with_access(address, access, patience, interrupt)?;
    let asked = Instant::now();
    let status = session.check(&mut ())?;
    let took = asked.elapsed();
    let wrong = if arguments.names.is_empty() {
        None
    } else {
        match names::check(&symbolizer, session.agent()) {
            Ok(()) => Some(None),
            Err(Failure::Symbols(wrong)) => Some(Some(wrong)),
            Err(other) => return Err(other),
        }
    };
    let answers = Answers {
        agent: session.agent(),
        protocol: session.protocol(),
        key: session.key(),
        status: &status,
        asked_unix_ns: session.connected().as_nanosecond(),
        took,
        usual_period_ns: Settings::default().period_ns,
    };
    Ok(Diagnosis::of_agent(&answers, wrong.as_ref().map(Option::as_ref)))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn what_looks_like_a_file_is_no_host() {
        let file = |text: &str| Target::File(text.into());
        assert_eq!(target("gone.unikprof").unwrap(), file("gone.unikprof"));
        assert_eq!(target("./gone").unwrap(), file("./gone"));
        assert_eq!(target("/").unwrap(), file("/"));
        assert!(matches!(target("no-such-host").unwrap(), Target::Agent(_)));
        assert!(matches!(target("[::1]:7777").unwrap(), Target::Agent(_)));
        assert_eq!(target("h:0").unwrap_err().exit_code(), 2);
        assert_eq!(target("http://h").unwrap_err().exit_code(), 2);
    }
}
