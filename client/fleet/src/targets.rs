//! Lists of guests in the format of Prometheus' `file_sd` and `http_sd`:
//! `[{"targets": ["10.0.0.5:7777"], "labels": {"app": "web"}}]`.
//!
//! A guest is named by its label `instance`, or else by its address.
//! <https://prometheus.io/docs/prometheus/latest/http_sd/>

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, Read};
use std::path::Path;
use std::time::Duration;

use serde::Deserialize;

use super::config::{Guest, Mistake, Place, TargetSource, address, label_name, name};

/// The largest list, in bytes: some hundred thousand guests.
const MAX_BYTES: u64 = 32 << 20;

/// How long a server may take for its list.
const TIMEOUT: Duration = Duration::from_secs(5);

/// One group of the list; whatever else stands in it is left alone.
#[derive(Deserialize)]
struct Group {
    targets: Vec<String>,
    #[serde(default)]
    labels: BTreeMap<String, String>,
}

impl TargetSource {
    /// Reads the list, and makes sure that it is one.
    ///
    /// # Errors
    /// The list cannot be read, or its contents are invalid. The caller then keeps an older list.
    pub(super) fn read(&self) -> Result<Vec<u8>, Mistake> {
        let bytes = match &self.place {
            Place::File(path) => regular(path).and_then(all),
            Place::Url(url) => download(url),
        };
        let bytes =
            bytes.map_err(|error| self.mistake(None, format!("cannot read the list: {error}")))?;
        self.parse(&bytes)?;
        Ok(bytes)
    }

    /// The guests of a list that was read, and what is wrong with the targets that are left out.
    pub(super) fn parse(&self, bytes: &[u8]) -> Result<(Vec<Guest>, Vec<Mistake>), Mistake> {
        let groups: Vec<Group> = serde_json::from_slice(bytes).map_err(|error| {
            let text = format!("expected a JSON array of groups with `targets`: {error}");
            self.mistake(Some(error.line()), text)
        })?;
        let (mut guests, mut mistakes) = (Vec::new(), Vec::new());
        for (at, group) in groups.iter().enumerate() {
            for target in &group.targets {
                match self.guest(target, &group.labels) {
                    Ok(guest) => guests.push(guest),
                    Err(text) => {
                        mistakes.push(self.mistake(None, format!("group {}: {text}", at + 1)));
                    }
                }
            }
        }
        Ok((guests, mistakes))
    }

    fn guest(&self, target: &str, found: &BTreeMap<String, String>) -> Result<Guest, String> {
        let mut labels = self.labels.clone();
        // Prometheus' own are dropped, as it does itself after relabelling.
        let kept = found.iter().filter(|(key, _)| !key.starts_with("__"));
        for (key, value) in kept {
            if key != "instance" {
                labels.insert(label_name(key)?.into(), value.clone());
            }
        }
        let instance = found.get("instance");
        Ok(Guest {
            name: name(instance.map_or(target, String::as_str))?,
            address: address(target)?,
            labels,
            how: self.how.clone(),
        })
    }

    fn mistake(&self, line: Option<usize>, text: String) -> Mistake {
        Mistake { place: self.place.to_string(), line, text }
    }
}

/// Opens a file; a pipe would wait for its other end.
pub(super) fn regular(path: &Path) -> io::Result<File> {
    if !fs::metadata(path)?.is_file() {
        return Err(io::Error::other("it is not a regular file"));
    }
    File::open(path)
}

pub(super) fn all(source: impl Read) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    source.take(MAX_BYTES + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > MAX_BYTES {
        return Err(io::Error::other("it is longer than 32 MiB"));
    }
    Ok(bytes)
}

fn download(url: &str) -> io::Result<Vec<u8>> {
    let config = ureq::Agent::config_builder().timeout_global(Some(TIMEOUT)).build();
    let response = ureq::Agent::new_with_config(config).get(url).call();
    let response = response.map_err(io::Error::other)?;
    all(response.into_body().into_reader())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::super::config::How;
    use super::*;

    fn source() -> TargetSource {
        TargetSource {
            place: Place::File("guests.json".into()),
            labels: [("app".into(), "web".into())].into(),
            how: How::default(),
        }
    }

    #[test]
    fn a_wrong_target_leaves_the_others_alone() {
        let list = br#"[
            {"targets": ["10.0.0.5:7777", "10.0.0.6:x"], "labels": {"app": "db", "__meta_az": "a"}},
            {"targets": ["10.0.0.7"], "labels": {"instance": "seven", "zone": "b"}, "other": 1}
        ]"#;
        let (guests, mistakes) = source().parse(list).unwrap();
        let names: Vec<&str> = guests.iter().map(|guest| &*guest.name).collect();
        assert_eq!(names, ["10.0.0.5:7777", "seven"]);
        assert_eq!(guests[0].labels, [("app".into(), "db".into())].into());
        let of_seven = [("app", "web"), ("zone", "b")].map(|(k, v)| (k.into(), v.into()));
        assert_eq!(guests[1].labels, of_seven.into());
        let texts: Vec<String> = mistakes.iter().map(ToString::to_string).collect();
        assert!(texts[0].starts_with("guests.json: group 1: expected a port"), "{texts:?}");
    }

    #[test]
    fn what_is_no_list_is_told_with_its_line() {
        for list in ["[\n{]", "[{\"targets\": []},\n{\"labels\": {}}]"] {
            assert_eq!(source().parse(list.as_bytes()).unwrap_err().line, Some(2), "{list}");
        }
    }
}
