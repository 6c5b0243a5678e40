//! Listens, and answers until the user has had enough.

use std::io;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use axum::serve::ListenerExt as _;
use thiserror::Error;
use tokio::net::TcpListener;
use tokio::time::sleep;
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

/// How long open requests have at the end.
const FAREWELL: Duration = Duration::from_secs(10);

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
    let (ending, ended) = (service.clone(), interrupt.clone());
    runtime.block_on(async {
        // The end of a long answer does not wait for its beginning's acknowledgement.
        let listener = listener.tap_io(|stream| drop(stream.set_nodelay(true)));
        let serving = axum::serve(listener, http::router(service));
        let serving = serving.with_graceful_shutdown(async move {
            until(&ended).await;
            // Recordings end early and in good order, and their answers are the last.
            ending.roster.end();
        });
        let farewell = async {
            until(interrupt).await;
            sleep(FAREWELL).await;
        };
        tokio::select! {
            _ = serving.into_future() => {}
            () = farewell => {}
        }
    });
    runtime.shutdown_timeout(FAREWELL);
    Ok(())
}

/// Returns at the interrupt.
async fn until(interrupt: &Interrupt) {
    while !interrupt.stop() {
        sleep(LOOK).await;
    }
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
