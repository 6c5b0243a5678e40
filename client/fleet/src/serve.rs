//! Listens, and answers until the user has had enough.

use std::collections::VecDeque;
use std::io;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::thread;
use std::time::{Duration, Instant};

use axum::http::{HeaderValue, header};
use axum::middleware::map_response;
use axum::response::Response;
use axum::{Extension, Router};
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::graceful::{GracefulShutdown, Watcher};
use hyper_util::service::TowerToHyperService;
use thiserror::Error;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpListener;
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore};
use tokio::time::{sleep, timeout};
use unikprof_client::cli::shared::CommandError;
use unikprof_client::exit_code;
use unikprof_client::interrupt::Interrupt;

use super::config::Config;
use super::contact;
use super::http::{self, Service};
use super::roster::Roster;
use super::shard::Shard;
use super::tls::{Tls, TlsError};
use super::tokens::{TokenError, TokenFiles};

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

/// A further connection takes the place of one without a [permitted](Connection::permit) request,
/// or waits.
const MOST_CONNECTIONS: usize = 512;

/// A fleet cannot be served.
#[derive(Debug, Error)]
pub(crate) enum ServeError {
    #[error(transparent)]
    Tokens(#[from] TokenError),
    #[error(
        "without tokens, only this machine is served: expected `listen` to be a loopback address, \
         found {0}; name \
         `view-tokens` or `control-tokens`"
    )]
    Unprotected(SocketAddr),
    #[error("cannot listen on {address}: {source}")]
    Listen { address: SocketAddr, source: io::Error },
    #[error(transparent)]
    Tls(#[from] TlsError),
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
    let listen = |source| ServeError::Listen { address: settings.listen, source };
    let listener = runtime.block_on(TcpListener::bind(settings.listen)).map_err(listen)?;
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
        let problems = [tokens.map(|error| error.to_string()), tls.map(|error| error.to_string())];
        let kept = |problem| format!("{problem}; what was read before is kept");
        problems.into_iter().flatten().map(kept).collect()
    };
    thread::Builder::new()
        .name("roster".into())
        .spawn(move || following.roster.follow(&ended, || others(&following)))
        .map_err(ServeError::Start)?;
    ready(&format!("{scheme}://{address}"), service.roster.members().len());
    let server = Server {
        listener,
        tls,
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
    tls: Option<Arc<Tls>>,
    router: Router,
    /// How long a connection may live.
    age: Duration,
    /// How many connections are open at a time.
    most: usize,
}

/// A client's connection.
#[derive(Debug, Default)]
pub(super) struct Connection {
    is_permitted: AtomicBool,
    end: Notify,
}

impl Connection {
    /// A request with the right that it needs has come over it: the connection keeps its place from
    /// now on.
    pub(super) fn permit(&self) {
        self.is_permitted.store(true, Ordering::Relaxed);
    }
}

/// The connections over which no permitted request has come yet, the oldest first. Whoever has no
/// token must not be able to keep others out by opening connections.
#[derive(Debug, Default)]
struct Strangers(Mutex<VecDeque<Weak<Connection>>>);

impl Strangers {
    fn add(&self, connection: &Arc<Connection>) {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        all.retain(|it| it.upgrade().is_some_and(|it| is_stranger(&it)));
        all.push_back(Arc::downgrade(connection));
    }

    /// Ends the oldest of them, if there is one.
    fn end_oldest(&self) {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        while let Some(oldest) = all.pop_front() {
            if let Some(oldest) = oldest.upgrade().filter(is_stranger) {
                oldest.end.notify_one();
                return;
            }
        }
    }
}

fn is_stranger(connection: &Arc<Connection>) -> bool {
    !connection.is_permitted.load(Ordering::Relaxed)
}

impl Server {
    /// Serves connections until `interrupt`; answers those that are open then.
    async fn accept(&self, interrupt: &Interrupt) -> GracefulShutdown {
        let open = GracefulShutdown::new();
        let places = Arc::new(Semaphore::new(self.most));
        let strangers = Strangers::default();
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
            let Some(place) = place(&places, &strangers, interrupt).await else {
                break;
            };
            // The end of a long answer does not wait for what came before it.
            let _ = stream.set_nodelay(true);
            let connection = Arc::new(Connection::default());
            strangers.add(&connection);
            let router = self.router.clone().layer(Extension(connection.clone()));
            let watcher = open.watcher();
            let tls = self.tls.as_ref().map(|tls| tls.acceptor());
            let age = self.age;
            tokio::spawn(async move {
                let _place = place;
                // What a connection does wrong is nobody else's business.
                let conversation = async {
                    match tls {
                        None => talk(stream, router, watcher, age).await,
                        Some(tls) => {
                            if let Ok(Ok(stream)) = timeout(GREETING, tls.accept(stream)).await {
                                talk(stream, router, watcher, age).await;
                            }
                        }
                    }
                };
                tokio::select! {
                    () = conversation => {}
                    () = connection.end.notified() => {}
                }
            });
        }
        open
    }
}

/// A place for a connection; `None` at the end.
async fn place(
    places: &Arc<Semaphore>,
    strangers: &Strangers,
    interrupt: &Interrupt,
) -> Option<OwnedSemaphorePermit> {
    if places.available_permits() == 0 {
        strangers.end_oldest();
    }
    while !interrupt.stop() {
        if let Ok(place) = timeout(LOOK, places.clone().acquire_owned()).await {
            return place.ok();
        }
    }
    None
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

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::io::{Read as _, Write as _};
    use std::net::TcpStream;

    use super::*;

    const TOKEN: &str = "0123456789abcdef";

    /// Shorter than a connection without a request is kept, so that no test passes because it has
    /// ended by itself.
    const DEADLINE: Duration = Duration::from_secs(60);

    /// Runs a server of four places without guests, and what a test does with its address.
    fn with_server(test: impl FnOnce(SocketAddr)) {
        let folder = tempfile::tempdir().unwrap();
        let (path, token) = (folder.path().join("fleet.toml"), folder.path().join("token"));
        std::fs::write(&path, "[[targets]]\nfile = \"none.json\"\n").unwrap();
        std::fs::write(&token, TOKEN).unwrap();
        let config = Config::read(&path).unwrap();
        let service = Arc::new(Service {
            roster: Roster::new(path, config, Shard::ALL, Box::new(|_| Ok(()))),
            tokens: TokenFiles::read(Some(token), None).unwrap(),
            longest: DEADLINE,
            every: DEADLINE,
            scheme: "http",
        });
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
            .unwrap();
        let listener = runtime.block_on(TcpListener::bind("127.0.0.1:0")).unwrap();
        let address = listener.local_addr().unwrap();
        let server = Server {
            listener,
            tls: None,
            router: http::router(service),
            age: Duration::from_secs(3600),
            most: 4,
        };
        let interrupt = Interrupt::default();
        let ended = interrupt.clone();
        let serving = runtime.spawn(async move { drop(server.accept(&ended).await) });
        test(address);
        interrupt.raise();
        runtime.block_on(serving).unwrap();
    }

    fn connect(address: SocketAddr) -> TcpStream {
        let stream = TcpStream::connect(address).unwrap();
        stream.set_read_timeout(Some(DEADLINE)).unwrap();
        stream
    }

    /// Asks for the metrics over a connection that stays open.
    fn ask(mut stream: &TcpStream) -> String {
        let request =
            format!("GET /metrics HTTP/1.1\r\nHost: here\r\nAuthorization: Bearer {TOKEN}\r\n\r\n");
        stream.write_all(request.as_bytes()).unwrap();
        let mut answer = Vec::new();
        while !answer.ends_with(b"# EOF\n") {
            let mut bytes = [0; 4096];
            let count = stream.read(&mut bytes).unwrap();
            assert_ne!(count, 0, "closed after {answer:?}");
            answer.extend_from_slice(&bytes[..count]);
        }
        String::from_utf8(answer).unwrap()
    }

    /// Whether the server ends a connection before the deadline. What it has not read by then makes
    /// the end a reset.
    fn is_ended(mut stream: &TcpStream) -> bool {
        match stream.read(&mut [0]) {
            Ok(count) => count == 0,
            Err(error) => error.kind() == io::ErrorKind::ConnectionReset,
        }
    }

    /// Whoever has no token opens as many connections as there are places, and says little over
    /// them.
    #[test]
    fn connections_without_a_token_keep_nobody_out() {
        with_server(|address| {
            let slow: Vec<TcpStream> = (0..4).map(|_| connect(address)).collect();
            for mut one in &slow {
                one.write_all(b"GET /metr").unwrap();
            }
            let known = connect(address);
            assert!(ask(&known).starts_with("HTTP/1.1 200"));
            // The oldest has made room.
            assert!(is_ended(&slow[0]));
            // One that has shown a token stays.
            let more: Vec<TcpStream> = (0..8).map(|_| connect(address)).collect();
            for one in slow[1..].iter().chain(&more[..4]) {
                assert!(is_ended(one));
            }
            assert!(ask(&known).starts_with("HTTP/1.1 200"));
        });
    }
}
