//! Fleets that several collectors have between them.

use std::str::FromStr;

use blake2::{Blake2s256, Digest as _};

/// One of so many parts of a fleet. Each guest is in one part, by a hash of its name: the same for
/// every collector, and about as many in each.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Shard {
    /// From 0.
    index: u32,
    of: u32,
}

impl Shard {
    /// The whole fleet.
    pub(crate) const ALL: Shard = Shard { index: 0, of: 1 };

    pub(super) fn has(self, name: &str) -> bool {
        let hash = Blake2s256::digest(name);
        let number =
            hash.iter().take(4).fold(0, |number: u32, byte| number << 8 | u32::from(*byte));
        number % self.of == self.index
    }
}

/// As on the command line, `1/8` to `8/8`.
impl FromStr for Shard {
    type Err = String;

    fn from_str(text: &str) -> Result<Shard, String> {
        let parts = text.split_once('/');
        let parts = parts.and_then(|(number, of)| Some((number.parse().ok()?, of.parse().ok()?)));
        match parts {
            Some((number @ 1.., of)) if number <= of => Ok(Shard { index: number - 1, of }),
            _ => Err(format!(
                "expected NUMBER/COUNT, as in 1/8 for the first of eight parts, found `{text}`"
            )),
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn every_guest_is_in_one_part_and_the_parts_are_alike() {
        let shards = ["1/4", "2/4", "3/4", "4/4"].map(|text| text.parse::<Shard>().unwrap());
        let mut sizes = [0; 4];
        for guest in 0..1000 {
            let name = format!("guest-{guest}");
            let holders = shards.iter().filter(|shard| shard.has(&name)).count();
            assert_eq!(holders, 1, "{name}");
            for (shard, size) in shards.iter().zip(&mut sizes) {
                *size += usize::from(shard.has(&name));
            }
            assert!(Shard::ALL.has(&name));
        }
        assert!(sizes.iter().all(|size| (200..300).contains(size)), "{sizes:?}");
    }

    /// Collectors of two versions have the same parts.
    #[test]
    fn a_guest_stays_in_its_part() {
        let holder = |name: &str| {
            (1..=8).find(|part| format!("{part}/8").parse::<Shard>().unwrap().has(name))
        };
        assert_eq!(["web-1", "web-2", ""].map(holder), [Some(3), Some(8), Some(1)]);
    }

    #[test]
    fn what_is_no_part_is_told() {
        for text in ["", "1", "0/4", "5/4", "1/0", "-1/4", "1/4/4", "a/b"] {
            let told = text.parse::<Shard>().unwrap_err();
            assert!(told.contains(&format!("found `{text}`")), "{told}");
        }
    }
}
