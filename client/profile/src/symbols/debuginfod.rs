//! Files from debuginfod servers, with the cache of debuginfod's other clients.
//!
//! Requests `URL/buildid/ID/executable` or `URL/buildid/ID/debuginfo` from a server. The file
//! received is used, and cached, only if it is an ELF file with that build-id.

use std::ffi::OsString;
use std::fs::{self, File};
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use tempfile::NamedTempFile;
use thiserror::Error;

use super::by_build_id::Wanted;
use super::error::{SymbolError, SymbolWarning};
use super::image::{Image, read_regular_file};
use crate::profile::BuildId;
use crate::units::std_duration;

/// The timeout if `DEBUGINFOD_TIMEOUT` is not set, as in debuginfod's own client.
const USUAL_TIMEOUT: Duration = Duration::from_secs(90);

/// A server must send so much within each timeout, in bytes, as in debuginfod's own client.
const LEAST_PROGRESS: u64 = 100 << 10;

/// How long the cache knows that no server has a file, as in debuginfod's own client.
const MISS_HOLDS_FOR: Duration = Duration::from_secs(600);

/// Debuginfod servers and their cache.
#[derive(Debug, Clone)]
pub struct Debuginfod {
    servers: Arc<[Server]>,
    cache: PathBuf,
    limits: DownloadLimits,
    agent: ureq::Agent,
}

/// What a download may take.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DownloadLimits {
    /// A server that sends less than 100 KiB within this time is skipped; `None`: however little it
    /// sends.
    pub timeout: Option<Duration>,
    /// So long may the download of a file take; `None`: however long.
    pub max_time: Option<Duration>,
    /// The largest file, in bytes; never more than 4 GiB.
    pub max_bytes: u64,
}

impl Default for DownloadLimits {
    /// Those of debuginfod's own client: 90 seconds for each 100 KiB.
    fn default() -> Self {
        DownloadLimits { timeout: Some(USUAL_TIMEOUT), max_time: None, max_bytes: Image::MAX_BYTES }
    }
}

#[derive(Debug)]
struct Server {
    url: String,
    /// It could not be reached, and is not asked again.
    has_failed: AtomicBool,
}

/// The environment's settings for debuginfod cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum DebuginfodError {
    #[error("{variable} is a number of {unit}, found {found:?}")]
    NotANumber { variable: &'static str, unit: &'static str, found: String },
    #[error(
        "DEBUGINFOD_URLS is set, but there is no home folder for its cache: set \
         DEBUGINFOD_CACHE_PATH"
    )]
    NoCache,
}

/// Why a server gave no file.
#[derive(Debug, Error)]
enum DownloadError {
    #[error("{}", http_text(.0))]
    Http(#[from] ureq::Error),
    #[error("it answered with status {0}")]
    Status(u16),
    #[error("the download ended early: {0}")]
    Transfer(#[from] io::Error),
    #[error("the file has more than {0} bytes")]
    TooLarge(u64),
    #[error(
        "it sent less than {} KiB within {}; DEBUGINFOD_TIMEOUT sets how long to wait",
        LEAST_PROGRESS >> 10, std_duration(*.0)
    )]
    TooSlow(Duration),
    #[error("the file did not arrive within {}, the DEBUGINFOD_MAXTIME", std_duration(*.0))]
    TooLong(Duration),
    #[error(
        "it sent a file with {}",
        match .0 { Some(id) => format!("build-id {id}"), None => "no build-id".into() }
    )]
    WrongBuild(Option<BuildId>),
    #[error("it sent no usable file: {0}")]
    Unusable(SymbolError),
    #[error("cannot write to the cache {}: {source}", path.display())]
    Cache { path: PathBuf, source: io::Error },
}

impl Debuginfod {
    /// The configuration from the environment: `DEBUGINFOD_URLS`, `DEBUGINFOD_CACHE_PATH`,
    /// `DEBUGINFOD_TIMEOUT`, `DEBUGINFOD_MAXTIME` and `DEBUGINFOD_MAXSIZE`. `None` if no server is
    /// configured.
    pub fn from_environment() -> Result<Option<Debuginfod>, DebuginfodError> {
        Debuginfod::configured(|name| std::env::var_os(name).filter(|value| !value.is_empty()))
    }

    fn configured(
        variable: impl Fn(&str) -> Option<OsString>,
    ) -> Result<Option<Debuginfod>, DebuginfodError> {
        let text = |name| variable(name).map(|value| value.to_string_lossy().into_owned());
        let Some(urls) = text("DEBUGINFOD_URLS") else {
            return Ok(None);
        };
        // Zero or less means no limit.
        let number = |variable, unit| {
            let Some(found) = text(variable) else {
                return Ok(None);
            };
            match found.trim().parse::<i64>() {
                Ok(number) => Ok(Some(u64::try_from(number).unwrap_or(0))),
                Err(_) => Err(DebuginfodError::NotANumber { variable, unit, found }),
            }
        };
        let time = |seconds| Some(Duration::from_secs(seconds)).filter(|time| !time.is_zero());
        let usual = DownloadLimits::default();
        let limits = DownloadLimits {
            timeout: number("DEBUGINFOD_TIMEOUT", "seconds")?.map_or(usual.timeout, time),
            max_time: number("DEBUGINFOD_MAXTIME", "seconds")?.and_then(time),
            max_bytes: match number("DEBUGINFOD_MAXSIZE", "bytes")? {
                None | Some(0) => usual.max_bytes,
                Some(bytes) => bytes.min(usual.max_bytes),
            },
        };
        let cache = cache_folder(variable).ok_or(DebuginfodError::NoCache)?;
        Ok(Debuginfod::new(&urls, cache, limits))
    }

    /// Servers at these URLs, separated by spaces; `None` if there is none. Files are stored in the
    /// folder `cache`.
    pub fn new(urls: &str, cache: PathBuf, limits: DownloadLimits) -> Option<Debuginfod> {
        // Words such as `ima:enforcing` are settings for the servers behind them.
        let servers: Arc<[Server]> = urls
            .split_whitespace()
            .filter(|word| word.starts_with("http://") || word.starts_with("https://"))
            .map(|url| Server {
                url: url.trim_end_matches('/').to_owned(),
                has_failed: AtomicBool::new(false),
            })
            .collect();
        if servers.is_empty() {
            return None;
        }
        let agent = ureq::Agent::config_builder()
            .user_agent(concat!("unikprof-client/", env!("CARGO_PKG_VERSION")))
            .http_status_as_error(false)
            .timeout_global(limits.max_time)
            .timeout_connect(limits.timeout)
            .timeout_recv_response(limits.timeout)
            .timeout_per_read(limits.timeout)
            .build()
            .into();
        Some(Debuginfod { servers, cache, limits, agent })
    }

    /// The file of this build, from the cache or from the first server that has it.
    pub(super) fn find(
        &self,
        id: &BuildId,
        wanted: Wanted,
        warnings: &mut Vec<SymbolWarning>,
    ) -> Option<Image> {
        let folder = self.cache.join(id.to_string());
        let path = folder.join(wanted.name());
        if is_recent_miss(&path) {
            return None;
        }
        let cached = Image::open(&path).ok();
        if let Some(image) = cached.filter(|image| image.build_id() == Some(id)) {
            return Some(image);
        }
        let mut all_lack_it = true;
        for server in self.servers.iter() {
            if server.has_failed.load(Ordering::Relaxed) {
                all_lack_it = false;
                continue;
            }
            match self.download(&server.url, id, wanted, &folder) {
                Ok(Some(image)) => return Some(image),
                Ok(None) => {}
                Err(error) => {
                    all_lack_it = false;
                    if error.is_of_server() {
                        server.has_failed.store(true, Ordering::Relaxed);
                    }
                    warnings.push(SymbolWarning::ServerFailed {
                        url: server.url.clone(),
                        build_id: id.clone(),
                        problem: error.to_string(),
                    });
                }
            }
        }
        if all_lack_it {
            // An empty file is how the cache remembers that. Without it the servers are asked
            // again.
            let _ = fs::create_dir_all(&folder).and_then(|()| File::create(&path));
        }
        None
    }

    /// Asks one server; `None` if it has no such file.
    fn download(
        &self,
        url: &str,
        id: &BuildId,
        wanted: Wanted,
        folder: &Path,
    ) -> Result<Option<Image>, DownloadError> {
        let name = wanted.name();
        let began = Instant::now();
        let response = self
            .agent
            .get(format!("{url}/buildid/{id}/{name}"))
            .call()
            .map_err(|source| self.failed(began, source))?;
        match response.status().as_u16() {
            200 => {}
            404 => return Ok(None),
            status => return Err(DownloadError::Status(status)),
        }
        let cache = |source| DownloadError::Cache { path: folder.to_owned(), source };
        let told = response.body().content_length();
        let most = self.limits.max_bytes;
        if told.is_some_and(|length| length > most) {
            return Err(DownloadError::TooLarge(most));
        }
        fs::create_dir_all(folder).map_err(cache)?;
        let mut file = NamedTempFile::new_in(folder).map_err(cache)?;
        let body = response.into_body().into_with_config();
        let body = Progressing::new(body.limit(most + 1).reader(), self.limits.timeout);
        let copied = io::copy(&mut body.take(most + 1), &mut file);
        if copied.map_err(|source| self.failed(began, source))? > most {
            return Err(DownloadError::TooLarge(most));
        }
        let path = folder.join(name);
        let image = read_regular_file(file.path(), Image::MAX_BYTES)
            .and_then(|bytes| Image::parse(&path, bytes))
            .map_err(DownloadError::Unusable)?;
        if image.build_id() != Some(id) {
            return Err(DownloadError::WrongBuild(image.build_id().cloned()));
        }
        file.persist(&path).map_err(|error| cache(error.error))?;
        Ok(Some(image))
    }

    /// Why a download that began then has failed.
    fn failed(&self, began: Instant, source: impl Into<DownloadError>) -> DownloadError {
        let source = source.into();
        let is_timeout = match &source {
            DownloadError::Http(error) => is_timeout(error),
            DownloadError::Transfer(error) => {
                let inner = error.get_ref().and_then(|inner| inner.downcast_ref());
                error.kind() == io::ErrorKind::TimedOut || inner.is_some_and(is_timeout)
            }
            _ => false,
        };
        let over = self.limits.max_time.filter(|most| began.elapsed() >= *most);
        match (is_timeout, over, self.limits.timeout) {
            (true, Some(most), _) => DownloadError::TooLong(most),
            (true, None, Some(timeout)) => DownloadError::TooSlow(timeout),
            _ => source,
        }
    }
}

/// Without the word `io` that the library puts before the system's own text.
fn http_text(error: &ureq::Error) -> String {
    match error {
        ureq::Error::Io(error) => error.to_string(),
        error => error.to_string(),
    }
}

fn is_timeout(error: &ureq::Error) -> bool {
    matches!(error, ureq::Error::Timeout(_))
}

impl DownloadError {
    /// Whether the next file would meet it as well.
    fn is_of_server(&self) -> bool {
        matches!(
            self,
            DownloadError::Http(_) | DownloadError::Transfer(_) | DownloadError::TooSlow(_)
        )
    }
}

/// Gives up on a server that sends less than it should.
struct Progressing<R> {
    body: R,
    timeout: Option<Duration>,
    since: Instant,
    /// What is still to come within the timeout, in bytes.
    left: u64,
}

impl<R: io::Read> Progressing<R> {
    fn new(body: R, timeout: Option<Duration>) -> Progressing<R> {
        Progressing { body, timeout, since: Instant::now(), left: LEAST_PROGRESS }
    }
}

impl<R: io::Read> io::Read for Progressing<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let count = self.body.read(buffer)?;
        self.left = self.left.saturating_sub(count as u64);
        if self.left == 0 {
            (self.since, self.left) = (Instant::now(), LEAST_PROGRESS);
        } else if count != 0 && self.timeout.is_some_and(|time| self.since.elapsed() > time) {
            return Err(io::ErrorKind::TimedOut.into());
        }
        Ok(count)
    }
}

/// The cache folder of debuginfod's clients: as configured, otherwise in the user's cache folder.
fn cache_folder(variable: impl Fn(&str) -> Option<OsString>) -> Option<PathBuf> {
    let path = |name| variable(name).map(PathBuf::from);
    path("DEBUGINFOD_CACHE_PATH").or_else(|| {
        let caches = path("XDG_CACHE_HOME").or_else(|| Some(path("HOME")?.join(".cache")))?;
        Some(caches.join("debuginfod_client"))
    })
}

/// Whether the cache says that no server has the file: an empty file that is not old.
fn is_recent_miss(path: &Path) -> bool {
    let age = |found: fs::Metadata| found.modified().ok()?.elapsed().ok();
    fs::metadata(path)
        .is_ok_and(|found| found.len() == 0 && age(found).is_none_or(|age| age < MISS_HOLDS_FOR))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn configured(set: &[(&str, &str)]) -> Result<Option<Debuginfod>, DebuginfodError> {
        Debuginfod::configured(|name| {
            let found = set.iter().find(|(set, _)| *set == name)?;
            Some(found.1.into())
        })
    }

    #[test]
    fn nothing_is_asked_unless_a_server_is_named() {
        for urls in ["", "  ", "ima:enforcing", "file:///srv"] {
            let set = [("DEBUGINFOD_URLS", urls), ("HOME", "/home/a")];
            assert!(configured(&set).unwrap().is_none(), "{urls}");
        }
        assert!(configured(&[("HOME", "/home/a")]).unwrap().is_none());
    }

    #[test]
    fn the_variables_mean_what_they_mean_to_other_clients() {
        let urls = ("DEBUGINFOD_URLS", "http://a/ ima:permissive https://b:8002");
        let home = ("HOME", "/home/a");
        let found = configured(&[urls, home]).unwrap().unwrap();
        let servers: Vec<_> = found.servers.iter().map(|s| s.url.as_str()).collect();
        assert_eq!(servers, ["http://a", "https://b:8002"]);
        assert_eq!(found.cache, Path::new("/home/a/.cache/debuginfod_client"));
        let xdg = ("XDG_CACHE_HOME", "/var/cache/a");
        let found = configured(&[urls, home, xdg]).unwrap().unwrap();
        assert_eq!(found.cache, Path::new("/var/cache/a/debuginfod_client"));
        let told = ("DEBUGINFOD_CACHE_PATH", "/tmp/d");
        let found = configured(&[urls, home, xdg, told]).unwrap().unwrap();
        assert_eq!(found.cache, Path::new("/tmp/d"));
        let error = configured(&[urls]).unwrap_err();
        assert_eq!(error, DebuginfodError::NoCache);
        assert_eq!(found.limits, DownloadLimits::default());
        let limits =
            [("DEBUGINFOD_TIMEOUT", "7"), ("DEBUGINFOD_MAXTIME", "8"), ("DEBUGINFOD_MAXSIZE", "9")];
        let found = configured(&[&[urls, home][..], &limits].concat()).unwrap().unwrap();
        let expected = DownloadLimits {
            timeout: Some(Duration::from_secs(7)),
            max_time: Some(Duration::from_secs(8)),
            max_bytes: 9,
        };
        assert_eq!(found.limits, expected);
        for none in ["0", "-1"] {
            let limits = limits.map(|(name, _)| (name, none));
            let found = configured(&[&[urls, home][..], &limits].concat()).unwrap().unwrap();
            let expected = DownloadLimits { timeout: None, ..DownloadLimits::default() };
            assert_eq!(found.limits, expected, "no limit");
        }
        let wrong = ("DEBUGINFOD_TIMEOUT", "soon");
        let error = configured(&[urls, home, wrong]).unwrap_err();
        assert!(error.to_string().contains("\"soon\""), "{error}");
    }
}
