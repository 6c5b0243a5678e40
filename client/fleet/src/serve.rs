//! Listens, and answers until the user has had enough.

use std::io;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use axum::Router;
use axum::http::{HeaderValue, header};
use axum::middleware::map_response;
use axum::response::Response;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::graceful::{GracefulShutdown, Watcher};
use hyper_util::service::TowerToHyperService;
use thiserror::Error;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{sleep, timeout};
use unikprof_client::cli::shared::CommandError;
use unikprof_client::exit_code;
use unikprof_link::interrupt::Interrupt;

use super::config::Config;
use super::contact;
use super::http::{self, Service};
use super::roster::Roster;
use super::shard::Shard;

/// How often the end is looked for.
const LOOK: Duration = Duration::from_millis(100);

/// How long a connection may take for the head of its next request: longer than scrapers pause.
const IDLE: Duration = Duration::from_secs(75);

/// After so long, an answer is the connection's last.
const LAST: Duration = Duration::from_secs(120);

/// A client that does not read is given up after so much more than the longest profile takes.
const REST: Duration = Duration::from_secs(120);

/// How long open requests have at the end.
const FAREWELL: Duration = Duration::from_secs(10);

/// A further connection waits until one ends.
const MOST_CONNECTIONS: usize = 512;

/// A fleet cannot be served.
#[derive(Debug, Error)]
pub(crate) enum ServeError {
    #[error(
        "whoever reaches {0} could record every guest: expected `listen` to be a loopback address; \
         put a proxy with TLS and authentication in front, or set `allow-remote = true`"
    )]
    Unprotected(SocketAddr),
    #[error("cannot listen on {address}: {source}")]
    Listen { address: SocketAddr, source: io::Error },
    #[error("cannot start: {0}")]
    Start(io::Error),
}

impl From<ServeError> for CommandError {
    fn from(error: ServeError) -> CommandError {
        CommandError::new(error, exit_code::OTHER)
    }
}

/// Serves the fleet of a configuration until `interrupt`; `ready` is told where.
///
/// # Errors
/// [`ServeError`]: nothing was served.
pub(crate) fn serve(
    path: &Path,
    config: Config,
    interrupt: &Interrupt,
    ready: impl FnOnce(&str, usize),
) -> Result<(), ServeError> {
    let settings = config.serve.clone();
    if !settings.allow_remote && !settings.listen.ip().is_loopback() {
        return Err(ServeError::Unprotected(settings.listen));
    }
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_io()
        .enable_time()
        .build()
        .map_err(ServeError::Start)?;
    let listen = |source| ServeError::Listen { address: settings.listen, source };
    let listener = runtime.block_on(TcpListener::bind(settings.listen)).map_err(listen)?;
    let address = listener.local_addr().map_err(listen)?;
    let every = settings.every;
    let start = Box::new(move |member| contact::start(member, every));
    let service = Arc::new(Service {
        roster: Roster::new(path.into(), config, Shard::ALL, start),
        longest: settings.longest,
        every: settings.every,
        external: settings.external_url,
    });
    let (following, ended) = (service.clone(), interrupt.clone());
    thread::Builder::new()
        .name("roster".into())
        .spawn(move || following.roster.follow(&ended))
        .map_err(ServeError::Start)?;
    ready(&format!("http://{address}"), service.roster.members().len());
    let server = Server {
        listener,
        router: http::router(service.clone()),
        age: settings.longest.saturating_add(LAST + IDLE + REST),
        most: MOST_CONNECTIONS,
    };
    runtime.block_on(async {
        let open = server.accept(interrupt).await;
        // Recordings end early and in good order, and their answers are the last.
        service.roster.end();
        let _ = timeout(FAREWELL, open.shutdown()).await;
    });
    runtime.shutdown_timeout(FAREWELL);
    Ok(())
}

struct Server {
    listener: TcpListener,
    router: Router,
    /// How long a connection may live.
    age: Duration,
    /// How many connections are open at a time.
    most: usize,
}

impl Server {
    /// Serves connections until `interrupt`; answers those that are open then.
    async fn accept(&self, interrupt: &Interrupt) -> GracefulShutdown {
        let open = GracefulShutdown::new();
        let places = Arc::new(Semaphore::new(self.most));
        while !interrupt.stop() {
            let stream = match timeout(LOOK, self.listener.accept()).await {
                Err(_) => continue,
                Ok(Ok((stream, _))) => stream,
                Ok(Err(_)) => {
                    // No file is left, for example: others will be closed.
                    sleep(LOOK).await;
                    continue;
                }
            };
            let Some(place) = place(&places, interrupt).await else {
                break;
            };
            // The end of a long answer does not wait for what came before it.
            let _ = stream.set_nodelay(true);
            let (router, watcher, age) = (self.router.clone(), open.watcher(), self.age);
            tokio::spawn(async move {
                let _place = place;
                talk(stream, router, watcher, age).await;
            });
        }
        open
    }
}

/// A place for a connection; `None` at the end.
async fn place(places: &Arc<Semaphore>, interrupt: &Interrupt) -> Option<OwnedSemaphorePermit> {
    while !interrupt.stop() {
        if let Ok(place) = timeout(LOOK, places.clone().acquire_owned()).await {
            return place.ok();
        }
    }
    None
}

async fn talk(stream: TcpStream, router: Router, watcher: Watcher, age: Duration) {
    let began = Instant::now();
    let router = router.layer(map_response(move |mut answer: Response| async move {
        if began.elapsed() > LAST {
            let close = HeaderValue::from_static("close");
            answer.headers_mut().insert(header::CONNECTION, close);
        }
        answer
    }));
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(IDLE)
        .serve_connection(TokioIo::new(stream), TowerToHyperService::new(router));
    let _ = timeout(age, watcher.watch(connection)).await;
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    /// Without a proxy in front, the network could record every guest.
    #[test]
    fn another_address_than_loopback_is_served_only_if_that_is_allowed() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("fleet.toml");
        for (settings, is_served) in [
            ("listen = \"0.0.0.0:0\"", false),
            ("listen = \"[::]:0\"", false),
            ("listen = \"0.0.0.0:0\"\nallow-remote = true", true),
            ("listen = \"127.0.0.1:0\"", true),
        ] {
            let text = format!("[serve]\n{settings}\n[[targets]]\nfile = \"none.json\"\n");
            std::fs::write(&path, text).unwrap();
            let interrupt = Interrupt::default();
            interrupt.raise();
            let served = serve(&path, Config::read(&path).unwrap(), &interrupt, |_, _| ());
            let is_refused = matches!(served, Err(ServeError::Unprotected(_)));
            assert_eq!((served.is_ok(), is_refused), (is_served, !is_served), "{settings}");
        }
    }
}
