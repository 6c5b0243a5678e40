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
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpListener;
use tokio::sync::Semaphore;
use tokio::time::{sleep, timeout};

use super::config::Config;
use super::contact;
use super::http::{self, Service};
use super::roster::Roster;
use super::shard::Shard;
use super::tls::{Tls, TlsError};
use super::tokens::{TokenError, TokenFiles};
use crate::interrupt::Interrupt;

/// How often the end is looked for.
const LOOK: Duration = Duration::from_millis(100);

/// How long a connection may take for its handshake.
const GREETING: Duration = Duration::from_secs(10);

/// How long a connection may take for the head of its next request: longer than scrapers pause.
const IDLE: Duration = Duration::from_secs(75);

/// After so long, an answer is the connection's last.
const LAST: Duration = Duration::from_secs(120);

/// A client that does not read is given up after so much more than the longest profile takes.
const REST: Duration = Duration::from_secs(120);

/// How long open requests have at the end.
const FAREWELL: Duration = Duration::from_secs(10);

/// Further connections wait.
const MOST_CONNECTIONS: usize = 512;

/// A fleet cannot be served.
#[derive(Debug, Error)]
pub(crate) enum ServeError {
    #[error(transparent)]
    Tokens(#[from] TokenError),
    #[error(
        "without tokens, only this machine is served: expected `listen` to be a loopback address, found {0}; name \
         `view-tokens` or `control-tokens`"
    )]
    Unprotected(SocketAddr),
    #[error("cannot listen on {address}: {source}")]
    Listen {
        address: SocketAddr,
        source: io::Error,
    },
    #[error(transparent)]
    Tls(#[from] TlsError),
    #[error("cannot start: {0}")]
    Start(io::Error),
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
    let tls = Tls::read(&settings)?;
    let tokens = TokenFiles::read(settings.view_tokens, settings.control_tokens)?;
    if tokens.now().is_empty() && !settings.listen.ip().is_loopback() {
        return Err(ServeError::Unprotected(settings.listen));
    }
    let tls = tls.map(Arc::new);
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_io()
        .enable_time()
        .build()
        .map_err(ServeError::Start)?;
    let listen = |source| ServeError::Listen {
        address: settings.listen,
        source,
    };
    let listener = runtime
        .block_on(TcpListener::bind(settings.listen))
        .map_err(listen)?;
    let address = listener.local_addr().map_err(listen)?;
    let scheme = if tls.is_some() { "https" } else { "http" };
    let every = settings.every;
    let start = Box::new(move |member| contact::start(member, every));
    let service = Arc::new(Service {
        roster: Roster::new(path.into(), config, Shard::ALL, start),
        tokens,
        longest: settings.longest,
        every: settings.every,
        scheme,
    });
    let (following, certificate, ended) = (service.clone(), tls.clone(), interrupt.clone());
    let others = move |service: &Service| {
        let tokens = service.tokens.refresh().err();
        let tls = certificate.as_ref().and_then(|tls| tls.refresh().err());
        let problems = [
            tokens.map(|error| error.to_string()),
            tls.map(|error| error.to_string()),
        ];
        let kept = |problem| format!("{problem}; what was read before is kept");
        problems.into_iter().flatten().map(kept).collect()
    };
    thread::Builder::new()
        .name("roster".into())
        .spawn(move || following.roster.follow(&ended, || others(&following)))
        .map_err(ServeError::Start)?;
    ready(
        &format!("{scheme}://{address}"),
        service.roster.members().len(),
    );
    let server = Server {
        listener,
        tls,
        router: http::router(service.clone()),
        age: settings.longest.saturating_add(LAST + IDLE + REST),
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
    tls: Option<Arc<Tls>>,
    router: Router,
    /// How long a connection may live.
    age: Duration,
}

impl Server {
    /// Serves connections until `interrupt`; answers those that are open then.
    async fn accept(&self, interrupt: &Interrupt) -> GracefulShutdown {
        let open = GracefulShutdown::new();
        let places = Arc::new(Semaphore::new(MOST_CONNECTIONS));
        while !interrupt.stop() {
            let Ok(Ok(place)) = timeout(LOOK, places.clone().acquire_owned()).await else {
                continue;
            };
            let stream = match timeout(LOOK, self.listener.accept()).await {
                Err(_) => continue,
                Ok(Ok((stream, _))) => stream,
                Ok(Err(_)) => {
                    // No file is left, for example: others will be closed.
                    sleep(LOOK).await;
                    continue;
                }
            };
            // The end of a long answer does not wait for what came before it.
            let _ = stream.set_nodelay(true);
            let (router, watcher) = (self.router.clone(), open.watcher());
            let tls = self.tls.as_ref().map(|tls| tls.acceptor());
            let age = self.age;
            tokio::spawn(async move {
                let _place = place;
                // What a connection does wrong is nobody else's business.
                match tls {
                    None => talk(stream, router, watcher, age).await,
                    Some(tls) => {
                        if let Ok(Ok(stream)) = timeout(GREETING, tls.accept(stream)).await {
                            talk(stream, router, watcher, age).await;
                        }
                    }
                }
            });
        }
        open
    }
}

async fn talk(
    stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    router: Router,
    watcher: Watcher,
    age: Duration,
) {
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
