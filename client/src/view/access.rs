//! Who may ask: the token, the host and the origin of a request.

use std::net::SocketAddr;

/// The hosted front end's origin.
pub(super) const FRONT_END: &str = "https://profiler.firefox.com";

/// What makes a request one that is answered.
pub(super) struct Access {
    /// `127.0.0.1:PORT`.
    host: String,
    token: String,
}

/// Whether a request is answered.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Verdict<'r> {
    Granted {
        /// The path behind the token.
        path: &'r str,
        /// Whether a page of the front end asks.
        is_front_end: bool,
    },
    Refused {
        status: u16,
        reason: &'static str,
    },
}

impl Access {
    /// A new token for the server at an address.
    pub(super) fn new(address: SocketAddr) -> Result<Access, getrandom::Error> {
        let mut token = [0; 16];
        getrandom::fill(&mut token)?;
        Ok(Access {
            host: address.to_string(),
            token: token.iter().map(|byte| format!("{byte:02x}")).collect(),
        })
    }

    /// The address of what is answered at a path; of the server itself for an empty one.
    pub(super) fn address(&self, path: &str) -> String {
        let slash = if path.is_empty() { "" } else { "/" };
        format!("http://{}/{}{slash}{path}", self.host, self.token)
    }

    pub(super) fn judge<'r>(
        &self,
        url: &'r str,
        host: Option<&str>,
        origin: Option<&str>,
    ) -> Verdict<'r> {
        let refused = |status, reason| Verdict::Refused { status, reason };
        // A page elsewhere can make a name of its own lead to 127.0.0.1.
        if host != Some(self.host.as_str()) {
            return refused(403, "expected this server's own address as the host");
        }
        let is_front_end = origin == Some(FRONT_END);
        let is_own = origin.and_then(|origin| origin.strip_prefix("http://")) == Some(&self.host);
        if origin.is_some() && !is_front_end && !is_own {
            return refused(403, "pages of this origin may not ask");
        }
        let path = url.split('?').next().unwrap_or_default();
        let behind = path.strip_prefix('/').and_then(|path| path.split_once('/'));
        match behind {
            Some((token, path)) if token == self.token => Verdict::Granted { path, is_front_end },
            _ => refused(404, "expected the token that `unikprof-client view` printed"),
        }
    }
}

/// A text as a part of an address.
pub(super) fn encoded(text: &str) -> String {
    let mut encoded = String::new();
    for byte in text.bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'.' | b'_' => {
                encoded.push(char::from(byte));
            }
            other => encoded.push_str(&format!("%{other:02X}")),
        }
    }
    encoded
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn access() -> Access {
        Access::new("127.0.0.1:4321".parse().unwrap()).unwrap()
    }

    #[test]
    fn only_the_front_end_and_the_servers_own_pages_are_answered() {
        let access = access();
        let address = access.address("profile.json");
        let url = address.strip_prefix("http://127.0.0.1:4321").unwrap();
        let host = Some("127.0.0.1:4321");
        let granted = |is_front_end| Verdict::Granted { path: "profile.json", is_front_end };
        assert_eq!(access.judge(url, host, None), granted(false));
        assert_eq!(access.judge(url, host, Some(FRONT_END)), granted(true));
        let own = Some("http://127.0.0.1:4321");
        assert_eq!(access.judge(url, host, own), granted(false));
        for origin in [
            "https://example.org",
            "null",
            "http://profiler.firefox.com",
            "https://profiler.firefox.com.example.org",
            "http://127.0.0.1:9",
        ] {
            let verdict = access.judge(url, host, Some(origin));
            assert!(matches!(verdict, Verdict::Refused { status: 403, .. }), "{origin}");
        }
    }

    /// DNS rebinding: the page's own name leads to this server.
    #[test]
    fn other_hosts_are_refused_with_the_token_too() {
        let access = access();
        let url = format!("/{}/page.html", access.token);
        for host in [None, Some("example.org:4321"), Some("127.0.0.1"), Some("localhost:4321")] {
            let verdict = access.judge(&url, host, None);
            assert!(matches!(verdict, Verdict::Refused { status: 403, .. }), "{host:?}");
        }
    }

    #[test]
    fn without_the_whole_token_there_is_nothing() {
        let access = access();
        let half = &access.token[..16];
        for url in ["/", "", "/profile.json", "//profile.json", &format!("/{half}/profile.json")] {
            let verdict = access.judge(url, Some("127.0.0.1:4321"), None);
            assert!(matches!(verdict, Verdict::Refused { status: 404, .. }), "{url}");
        }
        assert_ne!(access.token, self::access().token);
        assert_eq!(access.token.len(), 32);
    }

    #[test]
    fn addresses_are_parts_of_addresses() {
        assert_eq!(encoded("http://a:1/b c?é"), "http%3A%2F%2Fa%3A1%2Fb%20c%3F%C3%A9");
    }
}
