//! `fleet.toml`: the guests, the files and URLs that list more of them, and how they are served.
//!
//! A file with a mistake is rejected as a whole, with the mistake's line.

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
use serde::de::Error as _;
use serde::{Deserialize, Deserializer};
use thiserror::Error;
use toml::Spanned;
use unikprof_client::cli::shared::CommandError;
use unikprof_client::exit_code;
use unikprof_link::connection::Address;
use unikprof_link::record::Mode;
use unikprof_profile::printable::Printable;
use unikprof_profile::units;
use ureq::tls::{PemItem, parse_pem};

use super::targets::{all, regular};

/// The longest name of a guest, in bytes.
const MAX_NAME: usize = 128;

/// The fastest rate that a fleet is recorded at, in samples a second.
const FASTEST_HZ: f64 = 100_000.0;

/// The slowest: what agents accept.
const SLOWEST_HZ: f64 = 0.1;

/// The smallest limit of a folder of recordings, in bytes.
const MIN_FOLDER: u64 = 1 << 20;

/// The parsed `fleet.toml`.
#[derive(Debug)]
pub(crate) struct Config {
    pub(super) serve: ServeConfig,
    pub(super) collect: CollectConfig,
    /// The guests that the file itself lists.
    pub(super) guests: Vec<Guest>,
    /// Other files and URLs that list guests.
    pub(super) targets: Vec<TargetSource>,
    /// Where profiles are delivered.
    pub(super) push: Vec<Push>,
}

/// How the fleet is served.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub(super) struct ServeConfig {
    #[serde(deserialize_with = "read_listen")]
    pub(super) listen: SocketAddr,
    /// The longest profile that a request may ask for.
    #[serde(deserialize_with = "read_seconds")]
    pub(super) longest: Duration,
    /// How often each guest is asked for its state.
    #[serde(deserialize_with = "read_seconds")]
    pub(super) every: Duration,
    /// Permits an address that is not a loopback one.
    pub(super) allow_remote: bool,
    /// The URL of a proxy in front.
    #[serde(deserialize_with = "read_external_url")]
    pub(super) external_url: Option<ExternalUrl>,
}

impl Default for ServeConfig {
    fn default() -> Self {
        ServeConfig {
            listen: SocketAddr::from(([127, 0, 0, 1], 7780)),
            longest: Duration::from_secs(60),
            every: Duration::from_secs(15),
            allow_remote: false,
            external_url: None,
        }
    }
}

/// The URL of a proxy in front of `serve`, without a path.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct ExternalUrl {
    pub(super) scheme: String,
    /// The host, and the port if the URL has one.
    pub(super) host: String,
}

/// How the fleet is collected.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub(super) struct CollectConfig {
    /// The folder of epochs that a target has not accepted yet.
    pub(super) spool: PathBuf,
    /// The spool's limit, in bytes.
    #[serde(deserialize_with = "read_size")]
    pub(super) spool_bytes: u64,
    /// How often each guest is fetched from, at least.
    #[serde(deserialize_with = "read_seconds")]
    pub(super) every: Duration,
}

impl Default for CollectConfig {
    fn default() -> Self {
        CollectConfig {
            spool: "spool".into(),
            spool_bytes: 1 << 30,
            every: Duration::from_secs(15),
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
    #[error("{0}")]
    Mistake(Mistake),
    #[error("{} names no guest", path.display())]
    Empty { path: PathBuf },
}

impl From<ConfigError> for CommandError {
    fn from(error: ConfigError) -> CommandError {
        CommandError::new(error, exit_code::INPUT)
    }
}

/// The tables of the file.
#[derive(Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct Tables {
    serve: ServeConfig,
    collect: CollectConfig,
    defaults: Option<Spanned<Entry>>,
    guests: Vec<Spanned<Entry>>,
    targets: Vec<Spanned<Entry>>,
    push: Vec<Spanned<PushEntry>>,
}

impl Config {
    /// The files that it names for reading: lists of guests, keys, images and symbols.
    pub(crate) fn files(&self) -> Vec<PathBuf> {
        let lists = self.targets.iter().filter_map(|list| match &list.place {
            Place::File(path) => Some(path),
            Place::Url(_) => None,
        });
        let listed = self.targets.iter().map(|list| &list.how);
        let how = self.guests.iter().map(|guest| &guest.how).chain(listed);
        let named = how.flat_map(|how| [&how.key_file, &how.image, &how.symbols]).flatten();
        lists.chain(named).cloned().collect()
    }

    /// Reads the file. Its relative paths are below its own folder.
    pub(crate) fn read(path: &Path) -> Result<Config, ConfigError> {
        let text = fs::read_to_string(path)
            .map_err(|source| ConfigError::Read { path: path.into(), source })?;
        let config = Config::parse(path, &text).map_err(ConfigError::Mistake)?;
        if config.guests.is_empty() && config.targets.is_empty() {
            return Err(ConfigError::Empty { path: path.into() });
        }
        Ok(config)
    }

    fn parse(path: &Path, text: &str) -> Result<Config, Mistake> {
        let folder = path.parent().unwrap_or(Path::new(""));
        let mistake = |span: Range<usize>, problem: String| {
            let before = text.as_bytes().get(..span.start).unwrap_or_default();
            let line = 1 + before.iter().filter(|byte| **byte == b'\n').count();
            Mistake { place: path.display().to_string(), line: Some(line), text: problem }
        };
        let tables: Tables = toml::from_str(text).map_err(|error| {
            // Without the line itself, which may have a password.
            mistake(error.span().unwrap_or_default(), error.message().to_owned())
        })?;
        let mut config = Config {
            serve: tables.serve,
            collect: tables.collect,
            guests: Vec::new(),
            targets: Vec::new(),
            push: Vec::new(),
        };
        config.collect.spool = folder.join(&config.collect.spool);
        let mut defaults = Entry::default();
        if let Some(found) = tables.defaults {
            let span = found.span();
            defaults = found.into_inner();
            if defaults.has_place() {
                let text = "`name`, `address`, `file` and `url` have no default";
                return Err(mistake(span, text.into()));
            }
        }
        for entry in tables.guests {
            let span = entry.span();
            let guest = entry.into_inner().guest(&defaults, folder);
            let guest = guest.and_then(|it| unlike("guest", it, &config.guests, |it| &it.name));
            config.guests.push(guest.map_err(|text| mistake(span, text))?);
        }
        for entry in tables.targets {
            let span = entry.span();
            let source = entry.into_inner().source(&defaults, folder);
            config.targets.push(source.map_err(|text| mistake(span, text))?);
        }
        for entry in tables.push {
            let span = entry.span();
            let push = entry.into_inner().push(folder);
            let push = push.and_then(|it| unlike("push", it, &config.push, |it| &it.name));
            config.push.push(push.map_err(|text| mistake(span, text))?);
        }
        Ok(config)
    }
}

/// The item, if no other has its name.
fn unlike<T>(what: &str, item: T, others: &[T], name: impl Fn(&T) -> &String) -> Result<T, String> {
    match others.iter().any(|other| name(other) == name(&item)) {
        true => Err(format!("a {what} above is named `{}` too", name(&item))),
        false => Ok(item),
    }
}

fn below(folder: &Path, path: Option<PathBuf>) -> Option<PathBuf> {
    path.map(|path| folder.join(path))
}

/// A guest or a list of guests, as far as it is described.
#[derive(Default, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
struct Entry {
    #[serde(deserialize_with = "read_name")]
    name: Option<String>,
    #[serde(deserialize_with = "read_address")]
    address: Option<Address>,
    file: Option<PathBuf>,
    #[serde(deserialize_with = "read_url")]
    url: Option<String>,
    #[serde(deserialize_with = "read_labels")]
    labels: BTreeMap<String, String>,
    key_file: Option<PathBuf>,
    #[serde(deserialize_with = "read_rate")]
    rate: Option<u64>,
    #[serde(deserialize_with = "read_mode")]
    mode: Option<Mode>,
    image: Option<PathBuf>,
    symbols: Option<PathBuf>,
}

impl Entry {
    fn has_place(&self) -> bool {
        self.name.is_some() || self.address.is_some() || self.file.is_some() || self.url.is_some()
    }

    fn guest(self, defaults: &Entry, folder: &Path) -> Result<Guest, String> {
        if self.file.is_some() || self.url.is_some() {
            return Err("`file` and `url` belong below [[targets]]".into());
        }
        let (labels, how) = self.rest(defaults, folder);
        Ok(Guest {
            name: self.name.ok_or("the guest has no `name`")?,
            address: self.address.ok_or("the guest has no `address`")?,
            labels,
            how,
        })
    }

    fn source(self, defaults: &Entry, folder: &Path) -> Result<TargetSource, String> {
        if self.name.is_some() || self.address.is_some() {
            return Err("`name` and `address` belong below [[guests]]".into());
        }
        let (labels, how) = self.rest(defaults, folder);
        let place = match (self.file, self.url) {
            (Some(file), None) => Place::File(folder.join(file)),
            (None, Some(url)) => Place::Url(url),
            _ => return Err("expected either `file` or `url`".into()),
        };
        Ok(TargetSource { place, labels, how })
    }

    /// The labels and settings, on top of the defaults.
    fn rest(&self, defaults: &Entry, folder: &Path) -> (BTreeMap<String, String>, How) {
        let mut labels = defaults.labels.clone();
        labels.extend(self.labels.clone());
        let usual = How::default();
        let path = |own: &Option<PathBuf>, default: &Option<PathBuf>| {
            below(folder, own.clone().or(default.clone()))
        };
        let how = How {
            key_file: path(&self.key_file, &defaults.key_file),
            period_ns: self.rate.or(defaults.rate).unwrap_or(usual.period_ns),
            mode: self.mode.or(defaults.mode).unwrap_or(usual.mode),
            image: path(&self.image, &defaults.image),
            symbols: path(&self.symbols, &defaults.symbols),
        };
        (labels, how)
    }
}

/// An entry of `[[push]]`, as far as it is described.
#[derive(Default, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
struct PushEntry {
    #[serde(deserialize_with = "read_name")]
    name: Option<String>,
    #[serde(deserialize_with = "read_kind")]
    kind: Option<Kind>,
    #[serde(deserialize_with = "read_engine_url")]
    url: Option<String>,
    #[serde(deserialize_with = "read_header_text")]
    tenant: Option<String>,
    #[serde(deserialize_with = "read_username")]
    username: Option<String>,
    password_file: Option<PathBuf>,
    bearer_token_file: Option<PathBuf>,
    authorities_file: Option<PathBuf>,
    path: Option<PathBuf>,
    #[serde(deserialize_with = "read_age")]
    keep_for: Option<Duration>,
    #[serde(deserialize_with = "read_size")]
    keep_bytes: Option<u64>,
}

#[derive(Clone, Copy)]
enum Kind {
    Engine(&'static str, Engine),
    Folder,
}

impl PushEntry {
    fn push(self, folder: &Path) -> Result<Push, String> {
        let kind =
            self.kind.ok_or_else(|| format!("the push has no `kind`: expected {}", kinds()))?;
        let is_for_engine = self.url.is_some()
            || self.tenant.is_some()
            || self.username.is_some()
            || self.password_file.is_some()
            || self.bearer_token_file.is_some()
            || self.authorities_file.is_some();
        let is_for_folder =
            self.path.is_some() || self.keep_for.is_some() || self.keep_bytes.is_some();
        let (usual_name, to) = match kind {
            Kind::Folder if is_for_engine => {
                return Err("a folder has only `path`, `keep-for` and `keep-bytes`".into());
            }
            Kind::Folder => {
                let to = PushTo::Folder {
                    path: below(folder, self.path).ok_or("the folder has no `path`")?,
                    keep_for: self.keep_for,
                    keep_bytes: self.keep_bytes,
                };
                ("folder", to)
            }
            Kind::Engine(..) if is_for_folder => {
                return Err("`path`, `keep-for` and `keep-bytes` are for kind = \"folder\"".into());
            }
            Kind::Engine(name, engine) => {
                let password = below(folder, self.password_file);
                let token = below(folder, self.bearer_token_file);
                let login = match (self.username, password, token) {
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
                let authorities = match self.authorities_file {
                    Some(path) => authorities(&folder.join(path))?,
                    None => Vec::new(),
                };
                let remote = Remote {
                    url: self.url.ok_or("the push has no `url`")?,
                    tenant: self.tenant,
                    login,
                    authorities,
                };
                (name, PushTo::Engine(engine, remote))
            }
        };
        Ok(Push { name: self.name.unwrap_or_else(|| usual_name.into()), to })
    }
}

/// Functions for `deserialize_with`: texts that are checked. An error has the value's line.
macro_rules! texts {
    ($($function:ident: $to:ty = $check:ident),* $(,)?) => {
        $(
            fn $function<'de, D: Deserializer<'de>, T: From<$to>>(
                value: D,
            ) -> Result<T, D::Error> {
                $check(&String::deserialize(value)?).map(T::from).map_err(D::Error::custom)
            }
        )*
    };
}

texts!(
    read_address: Address = address,
    read_age: Duration = age,
    read_engine_url: String = engine_url,
    read_external_url: ExternalUrl = external_url,
    read_header_text: String = header_text,
    read_kind: Kind = kind,
    read_listen: SocketAddr = listen,
    read_mode: Mode = mode,
    read_name: String = name,
    read_seconds: Duration = seconds,
    read_url: String = url,
    read_username: String = username,
);

fn read_rate<'de, D: Deserializer<'de>>(value: D) -> Result<Option<u64>, D::Error> {
    let rate = f64::deserialize(value)?;
    if (SLOWEST_HZ..=FASTEST_HZ).contains(&rate) {
        Ok(Some((1e9 / rate).round() as u64))
    } else {
        Err(D::Error::custom(format!(
            "expected a rate in samples per second, from {SLOWEST_HZ} to {FASTEST_HZ}, found {rate}"
        )))
    }
}

fn read_size<'de, D: Deserializer<'de>, T: From<u64>>(value: D) -> Result<T, D::Error> {
    let found = i64::deserialize(value)?;
    let bytes = u64::try_from(found).ok().filter(|bytes| *bytes >= MIN_FOLDER);
    bytes.map(T::from).ok_or_else(|| {
        D::Error::custom(format!("expected at least {MIN_FOLDER} bytes, found {found}"))
    })
}

/// Labels, as Prometheus allows their names.
fn read_labels<'de, D: Deserializer<'de>>(value: D) -> Result<BTreeMap<String, String>, D::Error> {
    let found = BTreeMap::<String, String>::deserialize(value)?;
    found.keys().try_for_each(|key| label_name(key).map(|_| ())).map_err(D::Error::custom)?;
    Ok(found)
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

fn external_url(found: &str) -> Result<ExternalUrl, String> {
    let found = engine_url(found)?;
    match found.split_once("://") {
        Some((scheme, host)) if !host.contains('/') => {
            Ok(ExternalUrl { scheme: scheme.into(), host: host.into() })
        }
        _ => Err(format!("expected a URL without a path, found `{found}`")),
    }
}

/// The certificates of a PEM file.
fn authorities(path: &Path) -> Result<Vec<Vec<u8>>, String> {
    let wrong = |problem: &dyn fmt::Display| format!("{}: {problem}", path.display());
    let pem = regular(path).and_then(all).map_err(|error| wrong(&error))?;
    let found = parse_pem(&pem).filter_map(|item| match item {
        Ok(PemItem::Certificate(found)) => Some(Ok(found.der().to_vec())),
        Ok(_) => None,
        Err(error) => Some(Err(error)),
    });
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

fn mode(found: &str) -> Result<Mode, String> {
    let mode = Mode::from_str(found, false).ok().filter(|mode| !mode.is_heap());
    mode.ok_or_else(|| format!("expected `cpu`, `wall` or `off-cpu`, found `{found}`"))
}

fn listen(found: &str) -> Result<SocketAddr, String> {
    found.parse().map_err(|_| {
        format!("expected an IP address and a port such as `127.0.0.1:7780`, found `{found}`")
    })
}

/// From a second to an hour.
fn seconds(found: &str) -> Result<Duration, String> {
    match units::parse_duration(found) {
        Some(time) if (1..=3600).contains(&time.as_secs()) => Ok(time),
        _ => Err(format!("expected a time from `1s` to `1h`, found `{found}`")),
    }
}

/// At least a minute: files are of an hour each.
fn age(found: &str) -> Result<Duration, String> {
    let age = units::parse_duration(found).filter(|age| age.as_secs() >= 60);
    age.ok_or_else(|| format!("expected a time of at least `1m` such as `168h`, found `{found}`"))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn parse(text: &str) -> Result<Config, Mistake> {
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
        assert_eq!(config.collect.spool, Path::new("etc/spool"));
    }

    /// A guest whose key is misspelt is not asked without one, and a profile does not go elsewhere.
    #[test]
    fn a_mistake_is_told_with_its_line() {
        let url = "url = \"http://a\"";
        let push = |settings: &str| format!("[[push]]\n{settings}\n");
        for (line, text, told) in [
            (4, guest("keyfile = \"key\""), "unknown field `keyfile`, expected one of `name`"),
            (4, guest("rate = 1e-300"), "expected a rate"),
            (4, guest("mode = \"cpus\""), "expected `cpu`"),
            (4, guest("labels = { vcpu = \"1\" }"), "the label `vcpu`"),
            (1, guest("file = \"x\""), "belong below [[targets]]"),
            (5, guest("") + &guest(""), "a guest above is named `web` too"),
            (2, "[[guests]]\nname = \"db\naddress = \"10.0.0.6\"\n".into(), "invalid basic string"),
            (1, "[[guest]]\nname = \"db\"\n".into(), "unknown field `guest`"),
            (1, "[defaults]\nname = \"db\"\n".into(), "have no default"),
            (2, "[defaults]\nrate = 0\n".into(), "expected a rate"),
            (2, "[serve]\nlisten = \"all\"\n".into(), "expected an IP address and a port"),
            (2, "[serve]\nevery = \"0s\"\n".into(), "expected a time from"),
            (2, "[serve]\nexternal-url = \"https://a/b\"\n".into(), "a URL without a path"),
            (2, "[collect]\nspool-bytes = 1\n".into(), "expected at least 1048576 bytes"),
            (1, "[[targets]]\nfile = \"a\"\nurl = \"http://a\"\n".into(), "either `file` or"),
            (1, push(url), "the push has no `kind`: expected \"pyroscope\", \"parca\", "),
            (1, push("kind = \"parca\""), "the push has no `url`"),
            (2, push("kind = \"loki\""), "expected \"pyroscope\", \"parca\", "),
            (2, push("url = \"a:4040\"\nkind = \"parca\""), "expected http://"),
            (2, push("url = \"http://a?b\"\nkind = \"parca\""), "expected a URL without"),
            (2, push("url = \"http:///b\"\nkind = \"parca\""), "expected http://"),
            (2, push("tenant = \"a b\"\nkind = \"parca\""), "expected printable"),
            (2, push("username = \"a:b\"\nkind = \"parca\""), "expected a name"),
            (1, push(&format!("kind = \"parca\"\n{url}\nusername = \"a\"")), "password-file"),
            (
                1,
                push(&format!(
                    "kind = \"parca\"\n{url}\nbearer-token-file = \"a\"\npassword-file = \"b\""
                )),
                "alone",
            ),
            (1, push(&format!("kind = \"parca\"\n{url}\npath = \"a\"")), "are for kind"),
            (1, push(&format!("kind = \"folder\"\n{url}")), "a folder has only"),
            (
                1,
                push(&format!("kind = \"parca\"\n{url}\nauthorities-file = \"none\"")),
                "etc/none: ",
            ),
            (1, push("kind = \"folder\""), "no `path`"),
            (3, push("kind = \"folder\"\nkeep-for = \"1s\""), "expected a time of at least"),
            (3, push("kind = \"folder\"\nkeep-bytes = -1"), "expected at least"),
            (3, push("kind = \"folder\"\nkeep = 1"), "unknown field `keep`"),
            (
                4,
                push(&format!("kind = \"parca\"\n{url}")).repeat(2),
                "a push above is named `parca` too",
            ),
        ] {
            let mistake = parse(&text).unwrap_err().to_string();
            let place = format!("etc/fleet.toml:{line}: ");
            assert!(mistake.starts_with(&place) && mistake.contains(told), "{text}{mistake}");
        }
    }

    #[test]
    fn passwords_in_urls_are_not_shown() {
        let entry = |url: &str| parse(&format!("[[targets]]\nurl = \"{url}\"\n"));
        let config = entry("https://me:secret@sd.example:8443/a?token=secret").unwrap();
        assert_eq!(config.targets[0].place.to_string(), "https://sd.example:8443/a?...");
        let push = "[[push]]\nkind = \"parca\"\nurl = \"http://me:secret@a\"\n";
        for (found, told) in [
            (entry("ftp://me:secret@sd.example"), "and a host, found"),
            (entry("me:secret@sd.example"), "and a host, found"),
            (entry("http://me:secret@"), "and a host, found"),
            (parse("[[targets]]\nurl = \"http://me:secret@sd.example\n"), "etc/fleet.toml:2: "),
            (parse(push), "a URL has no user"),
        ] {
            let mistake = found.unwrap_err().to_string();
            assert!(mistake.contains(told) && !mistake.contains("secret"), "{mistake}");
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
}
