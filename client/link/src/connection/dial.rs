//! Finding a host and connecting to it, within a time and until the user gives up.

use std::io;
use std::net::{SocketAddr, TcpStream, ToSocketAddrs as _};
use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::thread;
use std::time::{Duration, Instant};

use super::{Address, ConnectionError};
use crate::deadline;
use crate::interrupt::Interrupt;
use unikprof_profile::units::std_duration;

/// How often the wait looks at the user.
const SLICE: Duration = Duration::from_millis(20);

/// What the thread that connects has to say; nothing more follows a `Found` without addresses, a
/// `Connected` or the `Failed` of the last address.
enum News {
    Found(io::Result<()>),
    Connected(TcpStream),
    Failed(io::Error),
}

/// Tries every address of the host, for `timeout` in all.
///
/// The system's calls for names and connections cannot be ended from outside, so a thread of its
/// own makes them. Where it is given up it ends by itself, at the latest when a resolver does.
pub(super) fn connect(
    address: &Address,
    timeout: Duration,
    interrupt: &Interrupt,
) -> Result<TcpStream, ConnectionError> {
    let connect_error = |source| ConnectionError::Connect { address: address.clone(), source };
    let resolve_error = |source| ConnectionError::Resolve { address: address.clone(), source };
    let no_answer = || {
        let waited = std_duration(timeout);
        io::Error::new(io::ErrorKind::TimedOut, format!("no answer in {waited}"))
    };
    let deadline = deadline::after(timeout);
    let (sender, news) = mpsc::channel();
    let target = address.clone();
    thread::Builder::new()
        .name("connect".into())
        .spawn(move || dial(&target, deadline, &sender))
        .map_err(connect_error)?;
    let mut found = false;
    let mut last = None;
    loop {
        if interrupt.quit() {
            return Err(ConnectionError::Interrupted);
        }
        match news.recv_timeout(SLICE) {
            Ok(News::Found(Ok(()))) => found = true,
            Ok(News::Found(Err(error))) => return Err(resolve_error(error)),
            Ok(News::Connected(stream)) => return Ok(stream),
            Ok(News::Failed(error)) if error.kind() == io::ErrorKind::TimedOut => {
                last = Some(no_answer());
            }
            Ok(News::Failed(error)) => last = Some(error),
            Err(RecvTimeoutError::Timeout) if Instant::now() < deadline + SLICE => {}
            Err(RecvTimeoutError::Timeout) if !found => return Err(resolve_error(no_answer())),
            Err(_) => return Err(connect_error(last.unwrap_or_else(no_answer))),
        }
    }
}

/// Ends early where nobody listens any more.
fn dial(address: &Address, deadline: Instant, news: &Sender<News>) {
    let found: io::Result<Vec<SocketAddr>> =
        (address.host(), address.port()).to_socket_addrs().map(Iterator::collect);
    let candidates = match found {
        Ok(candidates) if candidates.is_empty() => {
            let error = io::Error::new(io::ErrorKind::NotFound, "the name has no addresses");
            let _ = news.send(News::Found(Err(error)));
            return;
        }
        Ok(candidates) => candidates,
        Err(error) => {
            let _ = news.send(News::Found(Err(error)));
            return;
        }
    };
    if news.send(News::Found(Ok(()))).is_err() {
        return;
    }
    for (tried, candidate) in candidates.iter().enumerate() {
        let left = deadline.saturating_duration_since(Instant::now());
        // An equal share of what is left for each, at least a little: zero is not allowed.
        let share = left / (candidates.len() - tried) as u32;
        let ended = match TcpStream::connect_timeout(candidate, share.max(Duration::from_millis(1)))
        {
            Ok(stream) => return drop(news.send(News::Connected(stream))),
            Err(error) => news.send(News::Failed(error)).is_err(),
        };
        if ended {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::net::TcpListener;

    use super::*;

    /// An address where nobody answers: a listener that accepts nothing, its queue full.
    struct BlackHole {
        listener: TcpListener,
        _queue: Vec<TcpStream>,
    }

    impl BlackHole {
        fn new() -> BlackHole {
            let listener = TcpListener::bind("127.0.0.1:0").unwrap();
            let address = listener.local_addr().unwrap();
            let connect = || TcpStream::connect_timeout(&address, Duration::from_millis(200));
            let queue: Vec<TcpStream> =
                std::iter::from_fn(|| connect().ok()).take(10_000).collect();
            assert!(queue.len() < 10_000, "the queue has no end");
            BlackHole { listener, _queue: queue }
        }

        fn address(&self) -> Address {
            Address::new("127.0.0.1", self.listener.local_addr().unwrap().port())
        }
    }

    #[test]
    fn an_address_that_never_answers_is_given_up_in_time() {
        let hole = BlackHole::new();
        let began = Instant::now();
        let error = connect(&hole.address(), Duration::from_millis(300), &Interrupt::default());
        let text = error.unwrap_err().to_string();
        assert!(text.contains("no answer in 300 ms"), "{text}");
        let waited = began.elapsed();
        assert!(waited >= Duration::from_millis(300), "{waited:?}");
        assert!(waited < Duration::from_secs(60), "{waited:?}");
    }

    #[test]
    fn giving_up_ends_the_wait_at_once() {
        let hole = BlackHole::new();
        let interrupt = Interrupt::quitting_at_once();
        let user = interrupt.clone();
        let began = Instant::now();
        let waits = thread::spawn(move || {
            connect(&hole.address(), Duration::from_secs(3600), &interrupt).map(drop)
        });
        user.raise();
        let error = waits.join().unwrap();
        assert!(matches!(error, Err(ConnectionError::Interrupted)), "{error:?}");
        assert!(began.elapsed() < Duration::from_secs(60), "{:?}", began.elapsed());
    }
}
