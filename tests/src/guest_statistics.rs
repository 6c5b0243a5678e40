//! The counts of a guest of the lab, as it tells them on a port of their own.

use std::collections::BTreeMap;
use std::io::{self, Read as _};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

const PATIENCE: Duration = Duration::from_secs(300);

/// The counts of a guest at one moment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GuestStatistics(BTreeMap<String, u64>);

impl GuestStatistics {
    /// Asks the guest.
    pub fn read(address: SocketAddr) -> io::Result<Self> {
        let mut stream = TcpStream::connect_timeout(&address, PATIENCE)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        let mut text = String::new();
        stream.read_to_string(&mut text)?;
        Self::parse(&text)
    }

    fn parse(text: &str) -> io::Result<Self> {
        let wrong = |line: &str| {
            let text = format!("expected `NAME VALUE`, found {line:?}");
            io::Error::new(io::ErrorKind::InvalidData, text)
        };
        let line = |line: &str| {
            let (name, value) = line.split_once(' ')?;
            Some((name.to_owned(), value.parse().ok()?))
        };
        let counts: BTreeMap<_, _> = text
            .lines()
            .map(|text| line(text).ok_or_else(|| wrong(text)))
            .collect::<Result<_, _>>()?;
        if counts.is_empty() {
            return Err(wrong(""));
        }
        Ok(Self(counts))
    }

    /// The count of this name; `None` where the guest keeps none.
    pub fn get(&self, name: &str) -> Option<u64> {
        self.0.get(name).copied()
    }

    /// The growth of the count since `earlier`; 0 where it is not kept.
    pub fn since(&self, earlier: &Self, name: &str) -> u64 {
        let count = |statistics: &Self| statistics.get(name).unwrap_or_default();
        count(self).saturating_sub(count(earlier))
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn counts_grow_by_their_difference() {
        let earlier = GuestStatistics::parse("now_ns 5\nvcpu0.wakes 7\n").unwrap();
        let later = GuestStatistics::parse("now_ns 9\nvcpu0.wakes 8\n").unwrap();
        assert_eq!(later.since(&earlier, "vcpu0.wakes"), 1);
        assert_eq!(later.get("vcpu1.wakes"), None);
    }

    #[test]
    fn what_is_no_count_is_an_error() {
        for text in ["", "vcpu0.wakes", "vcpu0.wakes many\n"] {
            assert!(GuestStatistics::parse(text).is_err(), "{text:?}");
        }
    }
}
