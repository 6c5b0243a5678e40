//! `fleet.toml`: the guests, where more of them are listed, and how they are served.
//!
//! A mistake in an entry is reported with its line, and the other entries are used, also if it is
//! no TOML. What is wrong outside of an entry makes the file unusable.

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
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject as _;
use serde::Deserialize;
use thiserror::Error;
use toml::{Spanned, Value};
use unikprof_client::cli::shared::CommandError;
use unikprof_client::connection::Address;
use unikprof_client::exit_code;
use unikprof_client::printable::Printable;
use unikprof_client::record::Mode;
use unikprof_client::units;

use super::targets::{all, regular};

/// The longest name of a guest, in bytes.
const MAX_NAME: usize = 128;

/// The fastest rate that a fleet is recorded at, in samples a second.
const FASTEST_HZ: f64 = 100_000.0;

/// The slowest: what agents accept.
const SLOWEST_HZ: f64 = 0.1;

/// The smallest limit of a folder of recordings, in bytes.
const MIN_FOLDER: u64 = 1 << 20;

/// What the file says.
#[derive(Debug)]
pub(crate) struct Config {
    pub(super) serve: ServeConfig,
    pub(super) collect: CollectConfig,
    /// The guests that the file itself lists.
    pub(super) guests: Vec<Guest>,
    /// Where more are listed.
    pub(super) targets: Vec<TargetSource>,
    /// Where profiles are delivered.
    pub(super) push: Vec<Push>,
    /// The first of these that is left out.
    pub(super) wrong_push: Option<Mistake>,
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

/// How the fleet is collected.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct CollectConfig {
    /// The folder of what was not accepted yet.
    pub(super) spool: PathBuf,
    /// What it may hold, in bytes.
    pub(super) spool_bytes: u64,
    /// How often each guest is fetched from, at least.
    pub(super) every: Duration,
}

impl CollectConfig {
    fn new(folder: &Path) -> CollectConfig {
        CollectConfig {
            spool: folder.join("spool"),
            spool_bytes: 1 << 30,
            every: Duration::from_secs(15),
        }
    }

    fn set(&mut self, folder: &Path, key: &str, value: &Value) -> Result<(), String> {
        match key {
            "spool" => self.spool = path(folder, value)?,
            "spool-bytes" => self.spool_bytes = size(value)?,
            "every" => self.every = seconds(value)?,
            _ => return Err("no such setting; expected spool, spool-bytes or every".into()),
        }
        Ok(())
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

impl Guest {
    /// What tells the guest from others: its name as `guest`, and its own labels.
    pub(super) fn all_labels(&self) -> Vec<(String, String)> {
        let own = self.labels.iter();
        let own = own.map(|(key, value)| (key.clone(), value.clone()));
        [("guest".into(), self.name.clone())].into_iter().chain(own).collect()
    }
}

#[cfg(test)]
impl Guest {
    /// A guest for tests, of which only its name matters.
    pub(super) fn named(name: &str) -> Guest {
        Guest {
            name: name.into(),
            address: Address::new("10.0.0.5", 7777),
            labels: BTreeMap::new(),
            how: How::default(),
        }
    }
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

/// Somewhere profiles are delivered.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Push {
    /// Unique among them.
    pub(super) name: String,
    pub(super) to: PushTo,
}

/// What takes the profiles.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum PushTo {
    Engine(Engine, Remote),
    /// Recording files, one per guest and hour.
    Folder {
        path: PathBuf,
        /// How old a file becomes; `None`: however old.
        keep_for: Option<Duration>,
        /// How much the folder holds; `None`: however much.
        keep_bytes: Option<u64>,
    },
}

/// An engine that keeps profiles.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Engine {
    Pyroscope,
    Parca,
    #[cfg(feature = "otlp")]
    Otlp,
}

/// Where an engine listens, and who asks it.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct Remote {
    /// Without a slash at its end; the engine's own path follows.
    pub(super) url: String,
    /// Sent as `X-Scope-OrgID`.
    pub(super) tenant: Option<String>,
    pub(super) login: Option<Login>,
    /// The certificates, as DER, of those who may vouch for its certificate; none: those that
    /// browsers trust.
    pub(super) authorities: Vec<Vec<u8>>,
}

/// What an engine is shown. Secrets stay in their files until they are sent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Login {
    Basic { username: String, password_file: PathBuf },
    Bearer { token_file: PathBuf },
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
    /// A setting, or something that is not TOML.
    #[error("{0}")]
    Setting(Mistake),
    #[error(
        "{} names no guest that can be used{}",
        path.display(), first.as_ref().map(|it| format!(": {it}")).unwrap_or_default()
    )]
    Empty { path: PathBuf, first: Option<String> },
}

impl From<ConfigError> for CommandError {
    fn from(error: ConfigError) -> CommandError {
        CommandError::new(error, exit_code::INPUT)
    }
}

/// The tables of the file, each value with its place.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    #[serde(default)]
    serve: Table,
    #[serde(default)]
    collect: Table,
    #[serde(default)]
    defaults: Table,
    #[serde(default)]
    guests: Vec<Spanned<Table>>,
    #[serde(default)]
    targets: Vec<Spanned<Table>>,
    #[serde(default)]
    push: Vec<Spanned<Table>>,
}

type Table = BTreeMap<Spanned<String>, Spanned<Value>>;

/// The entries that are not TOML: how their lists' names begin, and what is wrong.
type Broken = Vec<(&'static str, Mistake)>;

impl Config {
    /// The folder of what a collector could not deliver yet.
    pub(crate) fn spool(&self) -> &Path {
        &self.collect.spool
    }

    /// Reads the file. Its relative paths are below its own folder.
    pub(crate) fn read(path: &Path) -> Result<Config, ConfigError> {
        let text = fs::read_to_string(path)
            .map_err(|source| ConfigError::Read { path: path.into(), source })?;
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
        let reader = Reader { path, text };
        let (file, broken) = reader.tables()?;
        let (mut serve, mut defaults) = (ServeConfig::default(), Entry::default());
        // Half of what all guests have in common, or of who may ask, is worse than nothing.
        reader.whole(file.serve, |key, value| serve.set(reader.folder(), key, value))?;
        let mut collect = CollectConfig::new(reader.folder());
        reader.whole(file.collect, |key, value| collect.set(reader.folder(), key, value))?;
        reader.whole(file.defaults, |key, value| match key {
            "name" | "address" | "file" | "url" => Err("it has no default".into()),
            _ => defaults.set(reader.folder(), key, value),
        })?;
        let (mut guests, mut targets, mut push) = (Vec::new(), Vec::new(), Vec::new());
        let mut wrong_push = broken.iter().find(|it| it.0 == "push").map(|it| it.1.clone());
        let mut mistakes: Vec<Mistake> = broken.into_iter().map(|it| it.1).collect();
        mistakes.extend(reader.entries(file.guests, &defaults, |entry| {
            let guest = entry.guest()?;
            unlike("guest", &guest.name, guests.iter().map(|it: &Guest| &it.name))?;
            guests.push(guest);
            Ok(())
        }));
        mistakes.extend(reader.entries(file.targets, &defaults, |entry| {
            targets.push(entry.source()?);
            Ok(())
        }));
        let wrong = reader.entries(file.push, &PushEntry::default(), |entry| {
            let one = entry.push()?;
            unlike("push", &one.name, push.iter().map(|it: &Push| &it.name))?;
            push.push(one);
            Ok(())
        });
        wrong_push = wrong_push.or_else(|| wrong.first().cloned());
        mistakes.extend(wrong);
        Ok(Config { serve, collect, guests, targets, push, wrong_push, mistakes })
    }
}

fn unlike<'a>(
    what: &str,
    name: &str,
    mut others: impl Iterator<Item = &'a String>,
) -> Result<(), String> {
    match others.any(|other| other == name) {
        true => Err(format!("a {what} above is named `{name}` too")),
        false => Ok(()),
    }
}

/// A table of settings.
trait Settings: Clone {
    fn set(&mut self, folder: &Path, key: &str, value: &Value) -> Result<(), String>;
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
        Mistake { place: self.path.display().to_string(), line: Some(line), text }
    }

    /// The tables. If the text is not TOML, the entries that are not are left out and answered,
    /// each with its list: without a guest the others work, but not without a setting that all have
    /// in common.
    fn tables(self) -> Result<(File, Broken), ConfigError> {
        let (mut rest, mut broken) = (String::new(), Broken::new());
        if let Ok(file) = self.read() {
            return Ok((file, broken));
        }
        for (list, text) in pieces(self.text) {
            let line = rest.matches('\n').count();
            let piece = Reader { text, ..self };
            match (list, piece.read().err()) {
                (Some(list), Some(mut mistake)) => {
                    mistake.line = mistake.line.map(|within| line + within);
                    broken.push((list, mistake));
                    rest.extend(text.matches('\n'));
                }
                _ => rest += text,
            }
        }
        let rest = Reader { text: &rest, ..self };
        let file = rest.read().map_err(ConfigError::Setting)?;
        Ok((file, broken))
    }

    fn read(self) -> Result<File, Mistake> {
        toml::from_str(self.text).map_err(|error| {
            let line = self.line(error.span().unwrap_or_default());
            // Without the line itself, which may have a password.
            self.mistake(line, error.message().to_owned())
        })
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

    /// Takes the entries, each on top of the defaults; answers what is wrong with those that are
    /// left out.
    fn entries<E: Settings>(
        self,
        tables: Vec<Spanned<Table>>,
        defaults: &E,
        mut take: impl FnMut(E) -> Result<(), String>,
    ) -> Vec<Mistake> {
        let mut all = Vec::new();
        for table in tables {
            let line = self.line(table.span());
            let mut entry = defaults.clone();
            let set = |key: &str, value: &Value| entry.set(self.folder(), key, value);
            let mut mistakes = self.each(table.into_inner(), set);
            if mistakes.is_empty() {
                let problem = take(entry).err();
                mistakes.extend(problem.map(|text| self.mistake(line, text)));
            }
            all.extend(mistakes);
        }
        all
    }
}

/// The text in pieces, each from the head of a table to the next one's; with the beginning of its
/// list's name if it looks like an entry of one.
fn pieces(text: &str) -> Vec<(Option<&'static str>, &str)> {
    let mut pieces = Vec::new();
    let (mut list, mut from, mut at) = (None, 0, 0);
    for line in text.split_inclusive('\n') {
        let head = line.trim_start();
        let name = head.trim_start_matches('[').trim_start();
        // As `[guests.labels]` is a part of the entry before.
        let is_part = !head.starts_with("[[") && name.contains('.');
        if head.starts_with('[') && !is_part {
            pieces.push((list, &text[from..at]));
            let mut lists = ["guest", "target", "push"].into_iter();
            (list, from) = (lists.find(|list| name.starts_with(list)), at);
        }
        at += line.len();
    }
    pieces.push((list, &text[from..]));
    pieces
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

impl Settings for Entry {
    fn set(&mut self, folder: &Path, key: &str, value: &Value) -> Result<(), String> {
        match key {
            "name" => self.name = Some(name(text(value)?)?),
            "address" => self.address = Some(address(text(value)?)?),
            "file" => self.place = Some(Place::File(path(folder, value)?)),
            "url" => self.place = Some(Place::Url(url(text(value)?)?)),
            "labels" => self.labels.extend(labels(value)?),
            "key-file" => self.how.key_file = Some(path(folder, value)?),
            "rate" => self.how.period_ns = period_ns(value)?,
            "mode" => {
                let mode = Mode::from_str(text(value)?, false).ok();
                self.how.mode = mode.filter(|mode| !mode.is_heap()).ok_or_else(|| modes(value))?;
            }
            "image" => self.how.image = Some(path(folder, value)?),
            "symbols" => self.how.symbols = Some(path(folder, value)?),
            _ => {
                return Err("no such setting; expected name, address, labels, key-file, rate, \
                             mode, image or symbols, or in [[targets]] file or url"
                    .into());
            }
        }
        Ok(())
    }
}

impl Entry {
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
                let expected = || {
                    format!(
                        "expected an IP address and a port such as `127.0.0.1:7780`, \
                         found `{found}`"
                    )
                };
                self.listen = found.parse().map_err(|_| expected())?;
            }
            "longest" => self.longest = seconds(value)?,
            "every" => self.every = seconds(value)?,
            "view-tokens" => self.view_tokens = Some(path(folder, value)?),
            "control-tokens" => self.control_tokens = Some(path(folder, value)?),
            "certificate" => self.certificate = Some(path(folder, value)?),
            "private-key" => self.private_key = Some(path(folder, value)?),
            _ => {
                return Err("no such setting; expected listen, longest, every, view-tokens, \
                             control-tokens, certificate or private-key"
                    .into());
            }
        }
        Ok(())
    }
}

/// An entry of `[[push]]`, as far as it is described.
#[derive(Debug, Clone, Default)]
struct PushEntry {
    name: Option<String>,
    kind: Option<Kind>,
    url: Option<String>,
    tenant: Option<String>,
    username: Option<String>,
    password_file: Option<PathBuf>,
    bearer_token_file: Option<PathBuf>,
    authorities: Vec<Vec<u8>>,
    path: Option<PathBuf>,
    keep_for: Option<Duration>,
    keep_bytes: Option<u64>,
}

#[derive(Debug, Clone, Copy)]
enum Kind {
    Engine(&'static str, Engine),
    Folder,
}

impl Settings for PushEntry {
    fn set(&mut self, folder: &Path, key: &str, value: &Value) -> Result<(), String> {
        match key {
            "name" => self.name = Some(name(text(value)?)?),
            "kind" => self.kind = Some(kind(text(value)?)?),
            "url" => self.url = Some(engine_url(text(value)?)?),
            "tenant" => self.tenant = Some(header_text(text(value)?)?),
            "username" => self.username = Some(username(text(value)?)?),
            "password-file" => self.password_file = Some(path(folder, value)?),
            "bearer-token-file" => self.bearer_token_file = Some(path(folder, value)?),
            "authorities-file" => self.authorities = authorities(&path(folder, value)?)?,
            "path" => self.path = Some(path(folder, value)?),
            "keep-for" => self.keep_for = Some(age(value)?),
            "keep-bytes" => self.keep_bytes = Some(size(value)?),
            _ => {
                return Err("no such setting; expected name, kind, url, tenant, username, \
                             password-file, bearer-token-file or authorities-file, or for a folder \
                             path, keep-for or keep-bytes"
                    .into());
            }
        }
        Ok(())
    }
}

impl PushEntry {
    fn push(self) -> Result<Push, String> {
        let kind =
            self.kind.ok_or_else(|| format!("the push has no `kind`: expected {}", kinds()))?;
        let is_for_engine = self.url.is_some()
            || self.tenant.is_some()
            || self.username.is_some()
            || self.password_file.is_some()
            || self.bearer_token_file.is_some()
            || !self.authorities.is_empty();
        let is_for_folder =
            self.path.is_some() || self.keep_for.is_some() || self.keep_bytes.is_some();
        let (usual_name, to) = match kind {
            Kind::Folder if is_for_engine => {
                return Err("a folder has only `path`, `keep-for` and `keep-bytes`".into());
            }
            Kind::Folder => {
                let to = PushTo::Folder {
                    path: self.path.ok_or("the folder has no `path`")?,
                    keep_for: self.keep_for,
                    keep_bytes: self.keep_bytes,
                };
                ("folder", to)
            }
            Kind::Engine(..) if is_for_folder => {
                return Err("`path`, `keep-for` and `keep-bytes` are for kind = \"folder\"".into());
            }
            Kind::Engine(name, engine) => {
                let login = match (self.username, self.password_file, self.bearer_token_file) {
                    (None, None, None) => None,
                    (Some(username), Some(password_file), None) => {
                        Some(Login::Basic { username, password_file })
                    }
                    (None, None, Some(token_file)) => Some(Login::Bearer { token_file }),
                    _ => return Err(
                        "expected `username` with `password-file`, or `bearer-token-file` alone"
                            .into(),
                    ),
                };
                let remote = Remote {
                    url: self.url.ok_or("the push has no `url`")?,
                    tenant: self.tenant,
                    login,
                    authorities: self.authorities,
                };
                (name, PushTo::Engine(engine, remote))
            }
        };
        Ok(Push { name: self.name.unwrap_or_else(|| usual_name.into()), to })
    }
}

const ENGINES: &[(&str, Engine)] = &[
    ("pyroscope", Engine::Pyroscope),
    ("parca", Engine::Parca),
    #[cfg(feature = "otlp")]
    ("otlp", Engine::Otlp),
];

fn kind(found: &str) -> Result<Kind, String> {
    let engine = ENGINES.iter().find(|(name, _)| *name == found);
    match (found, engine) {
        ("folder", _) => Ok(Kind::Folder),
        (_, Some((name, engine))) => Ok(Kind::Engine(name, *engine)),
        // OpenTelemetry's profiles are in development.
        ("otlp", None) => {
            Err("this client was built without otlp: build it with `--features otlp`".into())
        }
        _ => Err(format!("expected {}, found `{found}`", kinds())),
    }
}

fn kinds() -> String {
    let engines = ENGINES.iter().map(|(name, _)| format!("\"{name}\", "));
    engines.chain(["\"folder\"".into()]).collect()
}

/// Where an engine listens. Its own path follows, so that nothing else can.
fn engine_url(found: &str) -> Result<String, String> {
    let found = url(found)?;
    let host = found.split('/').nth(2).unwrap_or_default();
    if host.contains('@') {
        return Err("a URL has no user: expected `username` and `password-file`".into());
    }
    if found.contains(['?', '#']) {
        let found = without_password(&found);
        return Err(format!("expected a URL without `?` and `#`, found `{found}`"));
    }
    Ok(found.trim_end_matches('/').into())
}

/// The certificates of a PEM file.
fn authorities(path: &Path) -> Result<Vec<Vec<u8>>, String> {
    let wrong = |problem: &dyn fmt::Display| format!("{}: {problem}", path.display());
    let pem = regular(path).and_then(all).map_err(|error| wrong(&error))?;
    let found = CertificateDer::pem_slice_iter(&pem).map(|it| it.map(|der| der.to_vec()));
    let found: Vec<_> = found.collect::<Result<_, _>>().map_err(|error| wrong(&error))?;
    match found.is_empty() {
        true => Err(wrong(&"expected certificates in PEM, found none")),
        false => Ok(found),
    }
}

/// What can stand in an HTTP header.
fn header_text(found: &str) -> Result<String, String> {
    if !found.is_empty() && found.bytes().all(|byte| byte.is_ascii_graphic()) {
        Ok(found.into())
    } else {
        Err(format!("expected printable ASCII characters without spaces, found `{found}`"))
    }
}

/// A name for HTTP's basic authentication, where a colon ends it.
fn username(found: &str) -> Result<String, String> {
    if found.is_empty() || found.contains(|c: char| c == ':' || c.is_control()) {
        return Err(format!("expected a name without `:`, found `{found}`"));
    }
    Ok(found.into())
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
        _ => Err(format!("expected a label's name of letters, digits and `_`, found `{found}`")),
    }
}

fn text(value: &Value) -> Result<&str, String> {
    value.as_str().ok_or_else(|| format!("expected text in quotes, found {value}"))
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
        Err(format!("expected http:// or https:// and a host, found `{found}`"))
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
    let rate = value.as_float().or(value.as_integer().map(|rate| rate as f64));
    match rate {
        Some(rate) if (SLOWEST_HZ..=FASTEST_HZ).contains(&rate) => Ok((1e9 / rate).round() as u64),
        _ => Err(format!(
            "expected a rate in samples per second, from {SLOWEST_HZ} to {FASTEST_HZ}, found \
             {value}"
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
        _ => Err(format!("expected a time from \"1s\" to \"1h\", found {value}")),
    }
}

/// At least a minute: files are of an hour each.
fn age(value: &Value) -> Result<Duration, String> {
    let found = value.as_str().and_then(units::parse_duration);
    found.filter(|age| age.as_secs() >= 60).ok_or_else(|| {
        format!("expected a time of at least \"1m\" such as \"168h\", found {value}")
    })
}

fn size(value: &Value) -> Result<u64, String> {
    let bytes = value.as_integer().and_then(|bytes| u64::try_from(bytes).ok());
    bytes
        .filter(|bytes| *bytes >= MIN_FOLDER)
        .ok_or_else(|| format!("expected a number of bytes, at least {MIN_FOLDER}, found {value}"))
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
        assert_eq!((guest.how.period_ns, guest.how.mode), (20_408_163, Mode::Wall));
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
            assert!(mistake.starts_with(&place) && mistake.contains(told), "{mistake}");
        }
        let two = parse(&(guest("") + &guest(""))).unwrap();
        assert_eq!((two.guests.len(), two.mistakes.len()), (1, 1));
    }

    /// A quotation mark that is forgotten takes one guest out of the fleet, and not all.
    #[test]
    fn an_entry_that_is_no_toml_is_left_out_and_told_with_its_line() {
        let good = guest("labels = { app = \"a\" }");
        let at = good.matches('\n').count();
        for (broken, line) in [
            ("[[guests]]\nname = \"db\naddress = \"10.0.0.6\"\n", 2),
            ("[[guests]]\nname = \"db\"\naddress 10.0.0.6\n", 3),
            ("[[guests]\nname = \"db\"\naddress = \"10.0.0.6\"\n", 1),
            ("[[guest]]\nname = \"db\"\n", 1),
            ("[[push]]\nkind = parca\n", 2),
            ("[[targets]]\n[targets.labels\nzone = \"a\"\n", 2),
        ] {
            let other = "[[guests]]\nname = \"cache\"\naddress = \"10.0.0.7\"\n";
            let config = parse(&[&good, broken, other].concat()).unwrap();
            let names: Vec<&str> = config.guests.iter().map(|it| &*it.name).collect();
            assert_eq!(names, ["web", "cache"], "{broken}");
            let lines: Vec<_> = config.mistakes.iter().map(|it| it.line).collect();
            assert_eq!(lines, [Some(at + line)], "{broken}{:?}", config.mistakes);
            let is_push = broken.starts_with("[[push");
            assert_eq!(config.wrong_push.is_some(), is_push, "{broken}");
        }
        // What is asked without its key would be another fleet.
        for wrong in ["[defaults\nkey-file = \"key\"\n", "[serve]\nlisten = \"\n", "[[other]]\n"] {
            let error = parse(&(good.clone() + wrong)).unwrap_err().to_string();
            assert!(error.starts_with("etc/fleet.toml:"), "{error}");
        }
    }

    #[test]
    fn passwords_in_urls_are_not_shown() {
        let entry = |url: &str| parse(&format!("[[targets]]\nurl = \"{url}\"\n")).unwrap();
        let place = &entry("https://me:secret@sd.example:8443/a?token=secret").targets[0].place;
        assert_eq!(place.to_string(), "https://sd.example:8443/a?...");
        for url in ["ftp://me:secret@sd.example", "me:secret@sd.example", "http://me:secret@"] {
            let config = entry(url);
            let mistake = config.mistakes[0].to_string();
            assert!(mistake.contains("and a host, found"), "{mistake}");
            assert!(!mistake.contains("secret"), "{mistake}");
        }
        let text = "[[targets]]\nurl = \"http://me:secret@sd.example\n";
        let mistake = parse(text).unwrap().mistakes[0].to_string();
        assert!(mistake.starts_with("etc/fleet.toml:2: "), "{mistake}");
        assert!(!mistake.contains("secret"), "{mistake}");
    }

    #[test]
    fn half_of_what_all_have_in_common_is_an_error() {
        for text in
            ["[defaults]\nrate = 0\n", "[serve]\nlisten = \"all\"\n", "[serve]\nevery = \"0s\"\n"]
        {
            let error = parse(&(text.to_owned() + &guest(""))).unwrap_err();
            assert!(error.to_string().starts_with("etc/fleet.toml:2: "), "{error}");
        }
    }

    #[test]
    fn each_push_has_its_engine_and_what_it_is_shown() {
        let text = "[[push]]\nkind = \"pyroscope\"\nurl = \"http://a:4040/\"\ntenant = \"t\"\n\
                    username = \"u\"\npassword-file = \"p\"\n\
            [[push]]\nkind = \"pyroscope\"\nname = \"second\"\nurl = \"https://b/under\"\n\
            bearer-token-file = \"/t\"\n\
            [[push]]\nkind = \"folder\"\npath = \"kept\"\nkeep-for = \"7 days\"\nkeep-bytes = \
            1_000_000_000\n";
        let config = parse(text).unwrap();
        assert_eq!(config.mistakes, []);
        let remote = |url: &str, tenant: Option<&str>, login| {
            let (url, tenant) = (url.into(), tenant.map(Into::into));
            let login = Some(login);
            let authorities = Vec::new();
            PushTo::Engine(Engine::Pyroscope, Remote { url, tenant, login, authorities })
        };
        let basic = Login::Basic { username: "u".into(), password_file: "etc/p".into() };
        let bearer = Login::Bearer { token_file: "/t".into() };
        let folder = PushTo::Folder {
            path: "etc/kept".into(),
            keep_for: Some(Duration::from_secs(7 * 86_400)),
            keep_bytes: Some(1_000_000_000),
        };
        let expected = [
            ("pyroscope", remote("http://a:4040", Some("t"), basic)),
            ("second", remote("https://b/under", None, bearer)),
            ("folder", folder),
        ];
        let found = config.push.into_iter().map(|push| (push.name, push.to));
        assert!(found.eq(expected.map(|(name, to)| (name.to_owned(), to))));
    }

    /// What a push was told wrong is not half used: a profile would go elsewhere, or without a
    /// name.
    #[test]
    fn a_push_with_a_mistake_is_left_out_and_told_with_its_line() {
        let url = "url = \"http://a\"";
        for (line, settings, told) in [
            (
                1,
                "url = \"http://a\"",
                "the push has no `kind`: expected \"pyroscope\", \"parca\", ",
            ),
            (1, "kind = \"parca\"", "the push has no `url`"),
            (2, "kind = \"loki\"", "`kind`: expected \"pyroscope\", \"parca\", "),
            (2, "url = \"a:4040\"\nkind = \"parca\"", "`url`: expected http://"),
            (2, "url = \"http://a?b\"\nkind = \"parca\"", "`url`: expected a URL without"),
            (2, "url = \"http:///b\"\nkind = \"parca\"", "`url`: expected http://"),
            (2, "tenant = \"a b\"\nkind = \"parca\"", "`tenant`: expected printable"),
            (2, "username = \"a:b\"\nkind = \"parca\"", "`username`: expected a name"),
            (1, &format!("kind = \"parca\"\n{url}\nusername = \"a\""), "with `password-file`"),
            (
                1,
                &format!(
                    "kind = \"parca\"\n{url}\nbearer-token-file = \"a\"\npassword-file = \"b\""
                ),
                "alone",
            ),
            (1, &format!("kind = \"parca\"\n{url}\npath = \"a\""), "are for kind"),
            (1, &format!("kind = \"folder\"\n{url}"), "a folder has only"),
            (2, "authorities-file = \"none\"\nkind = \"parca\"", "`authorities-file`: etc/none: "),
            (1, "kind = \"folder\"", "no `path`"),
            (3, "kind = \"folder\"\nkeep-for = \"1s\"", "`keep-for`: expected a time"),
            (3, "kind = \"folder\"\nkeep-bytes = -1", "`keep-bytes`: expected a number of bytes"),
            (3, "kind = \"folder\"\nkeep = 1", "`keep`: no such setting"),
        ] {
            let config = parse(&format!("[[push]]\n{settings}\n")).unwrap();
            assert_eq!(config.push, [], "{settings}");
            let mistake = config.mistakes[0].to_string();
            let place = format!("etc/fleet.toml:{line}: ");
            assert!(mistake.starts_with(&place) && mistake.contains(told), "{mistake}");
        }
        let one = "[[push]]\nkind = \"parca\"\nurl = \"http://a\"\n";
        let two = parse(&one.repeat(2)).unwrap();
        assert_eq!((two.push.len(), two.mistakes.len()), (1, 1));
        let told = two.mistakes[0].to_string();
        assert!(told.contains("a push above is named `parca` too"), "{told}");
    }

    #[test]
    fn a_password_in_a_url_is_not_told() {
        let text = "[[push]]\nkind = \"parca\"\nurl = \"http://me:secret@a\"\n";
        let told = parse(text).unwrap().mistakes[0].to_string();
        assert!(told.contains("a URL has no user") && !told.contains("secret"), "{told}");
    }
}
