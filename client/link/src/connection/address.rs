//! Where an agent listens.

use std::fmt;
use std::net::{IpAddr, Ipv6Addr};
use std::str::FromStr;

use thiserror::Error;

/// The port an agent listens on if nobody says otherwise.
pub(crate) const DEFAULT_PORT: u16 = 7777;

/// A host and a port, not yet resolved.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Address {
    host: String,
    port: u16,
}

/// Why text is not an address.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum AddressError {
    #[error("expected `HOST`, `HOST:PORT` or `[IPV6]:PORT`; the host is missing")]
    NoHost,
    #[error("expected a port from 1 to 65535, found `{found}`")]
    Port { found: String },
    #[error("expected an IPv6 address in brackets, for example `[::1]:7777`, found `{found}`")]
    Brackets { found: String },
    #[error("expected a host name or an IP address without a scheme, found `{found}`")]
    Host { found: String },
}

impl Address {
    /// An address of its parts.
    pub fn new(host: impl Into<String>, port: u16) -> Address {
        Address { host: host.into(), port }
    }

    /// The host's name or IP address, without brackets.
    pub(crate) fn host(&self) -> &str {
        &self.host
    }

    /// Whether it is this machine, by its name.
    pub fn is_loopback(&self) -> bool {
        let ip = self.host.parse::<IpAddr>();
        self.host == "localhost" || ip.is_ok_and(|ip| ip.is_loopback())
    }

    /// The TCP port.
    pub(crate) fn port(&self) -> u16 {
        self.port
    }
}

impl FromStr for Address {
    type Err = AddressError;

    fn from_str(text: &str) -> Result<Address, AddressError> {
        // More than one colon outside brackets: an IPv6 address alone.
        if text.parse::<Ipv6Addr>().is_ok() {
            return Ok(Address::new(text, DEFAULT_PORT));
        }
        let host_error = || AddressError::Host { found: text.into() };
        if text.contains("://") {
            return Err(host_error());
        }
        let (host, port) = if let Some(inside) = text.strip_prefix('[') {
            let brackets = || AddressError::Brackets { found: text.into() };
            let (host, after) = inside.split_once(']').ok_or_else(brackets)?;
            // A zone may follow the address: `fe80::1%eth0`.
            let address = host.split('%').next().unwrap_or_default();
            address.parse::<Ipv6Addr>().map_err(|_| brackets())?;
            match after.strip_prefix(':') {
                Some(port) => (host, Some(port)),
                None if after.is_empty() => (host, None),
                None => return Err(brackets()),
            }
        } else {
            match text.rsplit_once(':') {
                Some((host, port)) => (host, Some(port)),
                None => (text, None),
            }
        };
        if host.is_empty() {
            return Err(AddressError::NoHost);
        }
        let strange = |c: char| c.is_whitespace() || c.is_control() || c == '/';
        if host.contains(strange) || (host.contains(':') && !text.starts_with('[')) {
            return Err(host_error());
        }
        let port = match port {
            None => DEFAULT_PORT,
            Some(port) => match port.parse() {
                Ok(port) if port != 0 => port,
                _ => return Err(AddressError::Port { found: port.into() }),
            },
        };
        Ok(Address::new(host, port))
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.host.contains(':') {
            write!(f, "[{}]:{}", self.host, self.port)
        } else {
            write!(f, "{}:{}", self.host, self.port)
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn every_way_to_write_an_address() {
        for (text, shown) in [
            ("guest", "guest:7777"),
            ("guest.example:80", "guest.example:80"),
            ("10.0.0.5", "10.0.0.5:7777"),
            ("::1", "[::1]:7777"),
            ("[::1]", "[::1]:7777"),
            ("[fe80::1%eth0]:9", "[fe80::1%eth0]:9"),
        ] {
            assert_eq!(text.parse::<Address>().unwrap().to_string(), shown);
        }
    }

    #[test]
    fn what_is_no_address_says_what_is_wrong() {
        use AddressError::*;
        let parse = |text: &str| text.parse::<Address>().unwrap_err();
        assert_eq!(parse(""), NoHost);
        assert_eq!(parse(":80"), NoHost);
        assert!(matches!(parse("host:0"), Port { .. }));
        assert!(matches!(parse("host:65536"), Port { .. }));
        assert!(matches!(parse("host:"), Port { .. }));
        assert!(matches!(parse("[::1"), Brackets { .. }));
        assert!(matches!(parse("[host]:1"), Brackets { .. }));
        assert!(matches!(parse("[::1]7777"), Brackets { .. }));
        assert!(matches!(parse("http://host:80"), Host { .. }));
        assert!(matches!(parse("http://host"), Host { .. }));
        assert!(matches!(parse("two words"), Host { .. }));
    }
}
