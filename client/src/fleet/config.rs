//! `fleet.toml`: the guests, where more of them are listed, and how they are served.
//!
//! A mistake in an entry is reported with its line, and the other entries are used. What is wrong outside of an
//! entry, or is no TOML, makes the file unusable.

use std::collections::BTreeMap;
use std::fmt;
use std::fs;
use std::io;
use std::net::SocketAddr;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::time::Duration;

use axum::http::Uri;
use clap::ValueEnum as _;
use serde::Deserialize;
use thiserror::Error;
use toml::{Spanned, Value};

use crate::connection::Address;
use crate::printable::Printable;
use crate::record::Mode;
use crate::units;

/// The longest name of a guest, in bytes.
const MAX_NAME: usize = 128;

/// The fastest rate that a fleet is recorded at, in samples a second.
const FASTEST_HZ: f64 = 100_000.0;

/// The slowest: what agents accept.
const SLOWEST_HZ: f64 = 0.1;

/// What the file says.
#[derive(Debug)]
pub(crate) struct Config {
    pub(super) serve: ServeConfig,
    /// The guests that the file itself lists.
    pub(super) guests: Vec<Guest>,
    /// Where more are listed.
    pub(super) targets: Vec<TargetSource>,
    /// The entries that are left out, and the settings that have their defaults.
    pub(super) mistakes: Vec<Mistake>,
}

/// How the fleet is served.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct ServeConfig {
    pub(super) listen: SocketAddr,
    /// The longest profile that a request may ask for.
    pub(super) longest: Duration,
    /// How often each guest is asked for its state.
    pub(super) every: Duration,
    /// The tokens of those who may look.
    pub(super) view_tokens: Option<PathBuf>,
    /// The tokens of those who may record as well.
    pub(super) control_tokens: Option<PathBuf>,
    /// The chain of certificates in PEM; with it, and its key, only TLS is spoken.
    pub(super) certificate: Option<PathBuf>,
    pub(super) private_key: Option<PathBuf>,
}

impl Default for ServeConfig {
    fn default() -> Self {
        ServeConfig {
            listen: SocketAddr::from(([127, 0, 0, 1], 7780)),
            longest: Duration::from_secs(60),
            every: Duration::from_secs(15),
            view_tokens: None,
            control_tokens: None,
            certificate: None,
            private_key: None,
        }
    }
}

/// A guest of the fleet.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Guest {
    /// Unique in the fleet.
    pub(super) name: String,
    pub(super) address: Address,
    pub(super) labels: BTreeMap<String, String>,
    pub(super) how: How,
}

/// How a guest is reached, recorded and named.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct How {
    pub(super) key_file: Option<PathBuf>,
    pub(super) period_ns: u64,
    pub(super) mode: Mode,
    /// Its image.
    pub(super) image: Option<PathBuf>,
    /// A folder with images by build-id, or a symbol list.
    pub(super) symbols: Option<PathBuf>,
}

impl Default for How {
    fn default() -> Self {
        How {
            key_file: None,
            period_ns: 1_000_000_000 / 97,
            mode: Mode::Cpu,
            image: None,
            symbols: None,
        }
    }
}

/// A list of guests in the format of Prometheus' `file_sd` and `http_sd`.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct TargetSource {
    pub(super) place: Place,
    pub(super) labels: BTreeMap<String, String>,
    /// The same for all of its guests.
    pub(super) how: How,
}

/// Where a list of guests is.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Place {
    File(PathBuf),
    Url(String),
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Place::File(path) => write!(f, "{}", path.display()),
            Place::Url(url) => f.write_str(&without_password(url)),
        }
    }
}

/// Something that is wrong with an entry, and where.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Mistake {
    /// The file or URL.
    pub(super) place: String,
    /// Its line, from 1; `None` if lines mean nothing there.
    pub(super) line: Option<usize>,
    pub(super) text: String,
}

impl fmt::Display for Mistake {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:", self.place)?;
        if let Some(line) = self.line {
            write!(f, "{line}:")?;
        }
        write!(f, " {}", Printable(&self.text))
    }
}

/// The file cannot be used.
#[derive(Debug, Error)]
pub(crate) enum ConfigError {
    #[error("cannot read {}: {source}", path.display())]
    Read { path: PathBuf, source: io::Error },
    #[error("{}: {problem}", path.display())]
    Toml { path: PathBuf, problem: String },
    #[error("{0}")]
    Setting(Mistake),
    #[error("{} names no guest that can be used{}", path.display(), first.as_ref().map(|it| format!(": {it}")).unwrap_or_default())]
    Empty {
        path: PathBuf,
        first: Option<String>,
    },
}

/// The tables of the file, each value with its place.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    #[serde(default)]
    serve: Table,
    #[serde(default)]
    defaults: Table,
    #[serde(default)]
    guests: Vec<Spanned<Table>>,
    #[serde(default)]
    targets: Vec<Spanned<Table>>,
}

type Table = BTreeMap<Spanned<String>, Spanned<Value>>;

impl Config {
    /// Reads the file. Its relative paths are below its own folder.
    pub(crate) fn read(path: &Path) -> Result<Config, ConfigError> {
        let text = fs::read_to_string(path).map_err(|source| ConfigError::Read {
            path: path.into(),
            source,
        })?;
        let config = Config::parse(path, &text)?;
        if config.guests.is_empty() && config.targets.is_empty() {
            return Err(ConfigError::Empty {
                path: path.into(),
                first: config.mistakes.first().map(ToString::to_string),
            });
        }
        Ok(config)
    }

    fn parse(path: &Path, text: &str) -> Result<Config, ConfigError> {
        let file: File = toml::from_str(text).map_err(|error| ConfigError::Toml {
            path: path.into(),
            problem: error.to_string(),
        })?;
        let reader = Reader { path, text };
        let (mut serve, mut defaults) = (ServeConfig::default(), Entry::default());
        // Half of what all guests have in common, or of who may ask, is worse than nothing.
        reader.whole(file.serve, |key, value| {
            serve.set(reader.folder(), key, value)
        })?;
        reader.whole(file.defaults, |key, value| match key {
            "name" | "address" | "file" | "url" => Err("it has no default".into()),
            _ => defaults.set(reader.folder(), key, value),
        })?;
        let mut config = Config {
            serve,
            guests: Vec::new(),
            targets: Vec::new(),
            mistakes: Vec::new(),
        };
        for table in file.guests {
            let line = reader.line(table.span());
            match reader.entry(table, &defaults) {
                Err(mistakes) => config.mistakes.extend(mistakes),
                Ok(entry) => match entry.guest().and_then(|guest| config.unlike_others(guest)) {
                    Ok(guest) => config.guests.push(guest),
                    Err(text) => config.mistakes.push(reader.mistake(line, text)),
                },
            }
        }
        for table in file.targets {
            let line = reader.line(table.span());
            match reader.entry(table, &defaults) {
                Err(mistakes) => config.mistakes.extend(mistakes),
                Ok(entry) => match entry.source() {
                    Ok(source) => config.targets.push(source),
                    Err(text) => config.mistakes.push(reader.mistake(line, text)),
                },
            }
        }
        Ok(config)
    }

    fn unlike_others(&self, guest: Guest) -> Result<Guest, String> {
        match self.guests.iter().any(|other| other.name == guest.name) {
            true => Err(format!("a guest above is named `{}` too", guest.name)),
            false => Ok(guest),
        }
    }
}

/// The file, for the places of mistakes.
#[derive(Clone, Copy)]
struct Reader<'a> {
    path: &'a Path,
    text: &'a str,
}

impl<'a> Reader<'a> {
    fn folder(self) -> &'a Path {
        self.path.parent().unwrap_or(Path::new(""))
    }

    fn line(self, span: Range<usize>) -> usize {
        let before = self.text.as_bytes().get(..span.start).unwrap_or_default();
        1 + before.iter().filter(|byte| **byte == b'\n').count()
    }

    fn mistake(self, line: usize, text: String) -> Mistake {
        Mistake {
            place: self.path.display().to_string(),
            line: Some(line),
            text,
        }
    }

    /// Sets each value of a table; answers what is wrong with some.
    fn each(
        self,
        table: Table,
        mut set: impl FnMut(&str, &Value) -> Result<(), String>,
    ) -> Vec<Mistake> {
        let wrong = |(key, value): (Spanned<String>, Spanned<Value>)| {
            let problem = set(key.get_ref(), value.get_ref()).err()?;
            let text = format!("`{}`: {problem}", key.get_ref());
            Some(self.mistake(self.line(key.span()), text))
        };
        table.into_iter().filter_map(wrong).collect()
    }

    /// A table that is used whole or not at all.
    fn whole(
        self,
        table: Table,
        set: impl FnMut(&str, &Value) -> Result<(), String>,
    ) -> Result<(), ConfigError> {
        match self.each(table, set).into_iter().next() {
            None => Ok(()),
            Some(mistake) => Err(ConfigError::Setting(mistake)),
        }
    }

    /// An entry on top of the defaults.
    fn entry(self, table: Spanned<Table>, defaults: &Entry) -> Result<Entry, Vec<Mistake>> {
        let mut entry = defaults.clone();
        let set = |key: &str, value: &Value| entry.set(self.folder(), key, value);
        let mistakes = self.each(table.into_inner(), set);
        if mistakes.is_empty() {
            Ok(entry)
        } else {
            Err(mistakes)
        }
    }
}

/// A guest or a list of guests, as far as it is described.
#[derive(Debug, Clone, Default)]
struct Entry {
    name: Option<String>,
    address: Option<Address>,
    place: Option<Place>,
    labels: BTreeMap<String, String>,
    how: How,
}

impl Entry {
    fn set(&mut self, folder: &Path, key: &str, value: &Value) -> Result<(), String> {
        match key {
            "name" => self.name = Some(name(text(value)?)?),
            "address" => self.address = Some(address(text(value)?)?),
            "file" => self.place = Some(Place::File(path(folder, value)?)),
            "url" => self.place = Some(Place::Url(url(text(value)?)?)),
            "labels" => self.labels.extend(labels(value)?),
            "key-file" => self.how.key_file = Some(path(folder, value)?),
            "rate" => self.how.period_ns = period_ns(value)?,
            "mode" => self.how.mode = Mode::from_str(text(value)?, false).map_err(|_| modes(value))?,
            "image" => self.how.image = Some(path(folder, value)?),
            "symbols" => self.how.symbols = Some(path(folder, value)?),
            _ => return Err("no such setting; expected name, address, labels, key-file, rate, mode, image or symbols, or in [[targets]] file or url".into()),
        }
        Ok(())
    }

    fn guest(self) -> Result<Guest, String> {
        if self.place.is_some() {
            return Err("`file` and `url` belong below [[targets]]".into());
        }
        Ok(Guest {
            name: self.name.ok_or("the guest has no `name`")?,
            address: self.address.ok_or("the guest has no `address`")?,
            labels: self.labels,
            how: self.how,
        })
    }

    fn source(self) -> Result<TargetSource, String> {
        if self.name.is_some() || self.address.is_some() {
            return Err("`name` and `address` belong below [[guests]]".into());
        }
        Ok(TargetSource {
            place: self.place.ok_or("the list has neither `file` nor `url`")?,
            labels: self.labels,
            how: self.how,
        })
    }
}

impl ServeConfig {
    fn set(&mut self, folder: &Path, key: &str, value: &Value) -> Result<(), String> {
        match key {
            "listen" => {
                let found = text(value)?;
                let expected = || format!("expected an IP address and a port such as `127.0.0.1:7780`, found `{found}`");
                self.listen = found.parse().map_err(|_| expected())?;
            }
            "longest" => self.longest = seconds(value)?,
            "every" => self.every = seconds(value)?,
            "view-tokens" => self.view_tokens = Some(path(folder, value)?),
            "control-tokens" => self.control_tokens = Some(path(folder, value)?),
            "certificate" => self.certificate = Some(path(folder, value)?),
            "private-key" => self.private_key = Some(path(folder, value)?),
            _ => return Err("no such setting; expected listen, longest, every, view-tokens, control-tokens, certificate or private-key".into()),
        }
        Ok(())
    }
}

/// A guest's name, which stands in addresses, labels and logs.
pub(super) fn name(found: &str) -> Result<String, String> {
    let is_plain = |c: char| !c.is_control() && !c.is_whitespace() && c != '/';
    let is_name = (1..=MAX_NAME).contains(&found.len())
        && found.chars().all(is_plain)
        && !matches!(found, "." | "..");
    if is_name {
        Ok(found.into())
    } else {
        Err(format!(
            "expected a name of 1 to {MAX_NAME} bytes without spaces and `/`, found `{found}`"
        ))
    }
}

pub(super) fn address(found: &str) -> Result<Address, String> {
    found.parse().map_err(|error| format!("{error}"))
}

/// Labels, as Prometheus allows their names.
fn labels(value: &Value) -> Result<BTreeMap<String, String>, String> {
    let table = value
        .as_table()
        .ok_or_else(|| format!("expected a table such as `{{ app = \"web\" }}`, found {value}"))?;
    let label = |(key, value): (&String, &Value)| {
        Ok((label_name(key)?.to_owned(), text(value)?.to_owned()))
    };
    table.iter().map(label).collect()
}

/// The name of a label: what both Prometheus and Pyroscope take.
pub(super) fn label_name(found: &str) -> Result<&str, String> {
    let mut characters = found.chars();
    let is_first = |c: char| c.is_ascii_alphabetic() || c == '_';
    let is_name = characters.next().is_some_and(is_first)
        && characters.all(|c| is_first(c) || c.is_ascii_digit());
    match found {
        "guest" | "instance" => Err(format!("the label `{found}` is the guest's name")),
        // Those that profiles and metrics have themselves.
        "counter" | "outcome" | "reason" | "recording" | "span" | "state" | "vcpu" => {
            Err(format!("the label `{found}` is the program's own"))
        }
        _ if found.starts_with("__") => {
            Err(format!("labels with `__` are Prometheus' own: `{found}`"))
        }
        _ if is_name => Ok(found),
        _ => Err(format!(
            "expected a label's name of letters, digits and `_`, found `{found}`"
        )),
    }
}

fn text(value: &Value) -> Result<&str, String> {
    value
        .as_str()
        .ok_or_else(|| format!("expected text in quotes, found {value}"))
}

fn path(folder: &Path, value: &Value) -> Result<PathBuf, String> {
    match text(value)? {
        "" => Err("expected a path, found nothing".into()),
        found => Ok(folder.join(found)),
    }
}

fn url(found: &str) -> Result<String, String> {
    let is_one = |uri: Uri| {
        matches!(uri.scheme_str(), Some("http" | "https"))
            && uri.host().is_some_and(|host| !host.is_empty())
    };
    if found.parse().is_ok_and(is_one) {
        Ok(found.into())
    } else {
        let found = without_password(found);
        Err(format!(
            "expected http:// or https:// and a host, found `{found}`"
        ))
    }
}

/// A URL without what may be secret in it: the name and password before the host, and the query.
fn without_password(url: &str) -> String {
    let (url, query) = match url.split_once('?') {
        Some((url, _)) => (url, "?..."),
        None => (url, ""),
    };
    let (scheme, rest) = url.split_once("://").unwrap_or(("", url));
    let from_host = rest.rsplit_once('@').map_or(rest, |(_, after)| after);
    let after_scheme = if scheme.is_empty() { "" } else { "://" };
    format!("{scheme}{after_scheme}{from_host}{query}")
}

fn period_ns(value: &Value) -> Result<u64, String> {
    let rate = value
        .as_float()
        .or(value.as_integer().map(|rate| rate as f64));
    match rate {
        Some(rate) if (SLOWEST_HZ..=FASTEST_HZ).contains(&rate) => Ok((1e9 / rate).round() as u64),
        _ => Err(format!(
            "expected a rate in samples per second, from {SLOWEST_HZ} to {FASTEST_HZ}, found {value}"
        )),
    }
}

fn modes(found: &Value) -> String {
    format!("expected \"cpu\", \"wall\" or \"off-cpu\", found {found}")
}

/// From a second to an hour.
fn seconds(value: &Value) -> Result<Duration, String> {
    let found = value.as_str().and_then(units::parse_duration);
    match found {
        Some(time) if (1..=3600).contains(&time.as_secs()) => Ok(time),
        _ => Err(format!(
            "expected a time from \"1s\" to \"1h\", found {value}"
        )),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn parse(text: &str) -> Result<Config, ConfigError> {
        Config::parse(Path::new("etc/fleet.toml"), text)
    }

    fn guest(settings: &str) -> String {
        format!("[[guests]]\nname = \"web\"\naddress = \"10.0.0.5\"\n{settings}\n")
    }

    #[test]
    fn defaults_are_every_guests_and_paths_are_beside_the_file() {
        let text = "[defaults]\nkey-file = \"key\"\nrate = 49\nlabels = { zone = \"a\" }\n";
        let config =
            parse(&(text.to_owned() + &guest("mode = \"wall\"\nlabels = { app = \"b\" }")))
                .unwrap();
        let guest = &config.guests[0];
        assert_eq!(guest.how.key_file, Some("etc/key".into()));
        assert_eq!(
            (guest.how.period_ns, guest.how.mode),
            (20_408_163, Mode::Wall)
        );
        let labels = [("app", "b"), ("zone", "a")].map(|(k, v)| (k.into(), v.into()));
        assert_eq!(guest.labels, labels.into());
    }

    /// A guest whose key is misspelt is not asked without one.
    #[test]
    fn an_entry_with_a_mistake_is_left_out_and_told_with_its_line() {
        for (settings, told) in [
            ("keyfile = \"key\"", "`keyfile`: no such setting"),
            ("rate = 1e-300", "`rate`: expected a rate"),
            ("mode = \"cpus\"", "`mode`: expected"),
            ("labels = { vcpu = \"1\" }", "`labels`: the label `vcpu`"),
            ("file = \"x\"", "belong below [[targets]]"),
        ] {
            let config = parse(&guest(settings)).unwrap();
            assert!(config.guests.is_empty(), "{settings}");
            let mistake = config.mistakes[0].to_string();
            let line = if told.starts_with("belong") { 1 } else { 4 };
            let place = format!("etc/fleet.toml:{line}: ");
            assert!(
                mistake.starts_with(&place) && mistake.contains(told),
                "{mistake}"
            );
        }
        let two = parse(&(guest("") + &guest(""))).unwrap();
        assert_eq!((two.guests.len(), two.mistakes.len()), (1, 1));
    }

    #[test]
    fn passwords_in_urls_are_not_shown() {
        let entry = |url: &str| parse(&format!("[[targets]]\nurl = \"{url}\"\n")).unwrap();
        let place = &entry("https://me:secret@sd.example:8443/a?token=secret").targets[0].place;
        assert_eq!(place.to_string(), "https://sd.example:8443/a?...");
        for url in [
            "ftp://me:secret@sd.example",
            "me:secret@sd.example",
            "http://me:secret@",
        ] {
            let config = entry(url);
            let mistake = config.mistakes[0].to_string();
            assert!(mistake.contains("and a host, found"), "{mistake}");
            assert!(!mistake.contains("secret"), "{mistake}");
        }
    }

    #[test]
    fn half_of_what_all_have_in_common_is_an_error() {
        for text in [
            "[defaults]\nrate = 0\n",
            "[serve]\nlisten = \"all\"\n",
            "[serve]\nevery = \"0s\"\n",
        ] {
            let error = parse(&(text.to_owned() + &guest(""))).unwrap_err();
            assert!(
                error.to_string().starts_with("etc/fleet.toml:2: "),
                "{error}"
            );
        }
    }
}
