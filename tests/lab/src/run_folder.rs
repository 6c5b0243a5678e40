//! The folder of one lab: its logs, and the images that it boots.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use crate::LabError;
use crate::packages;

/// A new folder for one lab, named after this process.
pub(super) fn create(cache: &Path) -> Result<PathBuf, LabError> {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    remove_old(&cache.join("run"));
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    let folder = cache.join(format!("run/{}-{number}", std::process::id()));
    if folder.exists() {
        // Left by a process with the same number, which has ended.
        std::fs::remove_dir_all(&folder)
            .map_err(|e| LabError::setup(format!("removing {}", folder.display()), e))?;
    }
    packages::create(&folder)?;
    Ok(folder)
}

/// Removes the folders of failed or killed labs that nobody has looked at for a day.
fn remove_old(runs: &Path) {
    const KEPT: Duration = Duration::from_secs(24 * 60 * 60);
    let Ok(entries) = std::fs::read_dir(runs) else {
        return;
    };
    for entry in entries.flatten() {
        let age = entry.metadata().and_then(|data| data.modified()).map(|at| at.elapsed());
        if matches!(age, Ok(Ok(age)) if age > KEPT) {
            // Another lab may be at it too.
            let _ = std::fs::remove_dir_all(entry.path());
        }
    }
}
