//! What targets will never take, with their answers, for a person to look at.
//!
//! ```text
//! SPOOL-rejected/TARGET/BEGAN-GUEST.unikprof   a parcel, named by its time in ns since 1970
//! SPOOL-rejected/TARGET/BEGAN-GUEST.txt        the target's answer
//! ```

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use unikprof_profile::output::sync_folder;

use super::super::file_name;
use super::books::Parcel;

/// What one target has rejected.
#[derive(Debug)]
pub(super) struct Rejected {
    pub(super) folder: PathBuf,
    most_bytes: u64,
    /// The sizes of the parcels in bytes by name, the oldest first.
    kept: Mutex<BTreeMap<String, u64>>,
}

/// The folder for a target beside a spool.
pub(super) fn folder(spool: &Path, target: &str) -> PathBuf {
    // Without a slash at its end.
    let mut beside = spool.components().collect::<PathBuf>().into_os_string();
    beside.push("-rejected");
    PathBuf::from(beside).join(file_name::of_guest(target))
}

/// The parcels in such a folder.
pub(super) fn parcels(folder: &Path) -> BTreeMap<String, u64> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let parcel = |entry: fs::DirEntry| {
        let name = entry.file_name().into_string().ok()?;
        Some((name.strip_suffix(".unikprof")?.to_owned(), entry.metadata().ok()?.len()))
    };
    entries.filter_map(parcel).collect()
}

impl Rejected {
    pub(super) fn open(spool: &Path, target: &str, most_bytes: u64) -> Rejected {
        let folder = folder(spool, target);
        let kept = Mutex::new(parcels(&folder));
        Rejected { folder, most_bytes, kept }
    }

    /// Keeps a guest's parcel, whose file is at `path` until then, with the answer to it. Deletes
    /// the oldest of the others while all together have too many bytes.
    pub(super) fn keep(
        &self,
        guest: &str,
        parcel: &Parcel,
        path: &Path,
        answer: &str,
    ) -> io::Result<()> {
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        fs::create_dir_all(&self.folder)?;
        let name = format!("{:020}-{}", parcel.span.from_unix_ns, file_name::of_guest(guest));
        let [file, text] = self.files(&name);
        // Of a collector that was killed before it booked the answer.
        let _ = fs::remove_file(&file);
        // The spool may be a file system of its own.
        fs::hard_link(path, &file).or_else(|_| fs::copy(path, &file).map(drop))?;
        fs::write(text, format!("{answer}\n"))?;
        sync_folder(&self.folder)?;
        kept.insert(name.clone(), fs::metadata(file)?.len());
        while kept.values().sum::<u64>() > self.most_bytes
            && let Some(oldest) = kept.keys().find(|other| **other != name).cloned()
        {
            kept.remove(&oldest);
            // One that somebody has deleted is gone too.
            let _ = self.files(&oldest).map(fs::remove_file);
        }
        Ok(())
    }

    fn files(&self, name: &str) -> [PathBuf; 2] {
        ["unikprof", "txt"].map(|extension| self.folder.join(format!("{name}.{extension}")))
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::super::books::{EpochId, Outcomes, Span};
    use super::*;

    /// A target that rejects everything must not fill the disk.
    #[test]
    fn the_oldest_are_deleted_with_their_answers() {
        let place = tempfile::tempdir().unwrap();
        let [spool, parcel] = ["spool/", "parcel"].map(|name| place.path().join(name));
        fs::write(&parcel, [0; 100]).unwrap();
        let keep_within = |most_bytes, from_unix_ns| {
            let parcel_of = Parcel {
                number: 1,
                id: EpochId { instance: 1, epoch: 1, ended_ns: 1 },
                outcomes: Outcomes::default(),
                span: Span { from_unix_ns, to_unix_ns: 9 },
            };
            let rejected = Rejected::open(&spool, "a/b", most_bytes);
            rejected.keep("web", &parcel_of, &parcel, "too old").unwrap();
        };
        // One of them is rejected again by the next collector.
        for from_unix_ns in [1, 3, 3, 2] {
            keep_within(250, from_unix_ns);
        }
        let folder = place.path().join("spool-rejected/a%2Fb");
        let names = ["00000000000000000002-web", "00000000000000000003-web"];
        assert!(parcels(&folder).into_keys().eq(names));
        assert_eq!(fs::read_dir(&folder).unwrap().count(), 4);
        for name in names {
            let answer = fs::read_to_string(folder.join(format!("{name}.txt")));
            assert_eq!(answer.unwrap(), "too old\n");
        }
        // The log says that it is kept, however old or large it is.
        for (most_bytes, from_unix_ns) in [(250, 1), (50, 0)] {
            keep_within(most_bytes, from_unix_ns);
            let name = format!("{from_unix_ns:020}-web");
            assert!(parcels(&folder).contains_key(&name), "{from_unix_ns}");
        }
        assert_eq!(parcels(&folder).len(), 1);
    }
}
