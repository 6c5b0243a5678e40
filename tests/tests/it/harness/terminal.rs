//! A terminal, by tmux.

use std::path::Path;
use std::process::Command;

use tempfile::TempDir;
use unikprof_tests::requirement::skip;

use super::wait_until;

/// A terminal of its own.
pub(crate) struct Terminal {
    /// Holds the socket of its server.
    folder: TempDir,
}

impl Terminal {
    /// Whether there is tmux; a case without it is skipped.
    pub(crate) fn is_there() -> bool {
        let is_there = Command::new("tmux").arg("-V").output().is_ok();
        if !is_there {
            skip("tmux is not installed");
        }
        is_there
    }

    /// Runs a command line in a shell, in this folder, with so many columns and lines.
    pub(crate) fn open(folder: &Path, [columns, lines]: [usize; 2], line: &str) -> Terminal {
        let terminal = Terminal { folder: TempDir::with_prefix("unikprof-tmux-").unwrap() };
        let folder = folder.to_str().unwrap();
        let [columns, lines] = [columns, lines].map(|size| size.to_string());
        let words = ["-u", "-f", "/dev/null", "new-session", "-d", "-x", &columns, "-y", &lines];
        terminal.tmux(&[&words[..], &["-c", folder, line]].concat());
        terminal
    }

    fn command(&self, words: &[&str]) -> Command {
        let mut command = Command::new("tmux");
        command.arg("-S").arg(self.folder.path().join("tmux")).args(words);
        command
    }

    pub(crate) fn tmux(&self, words: &[&str]) -> String {
        let output = self.command(words).output().unwrap();
        let told = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "tmux {words:?}: {told}");
        String::from_utf8(output.stdout).unwrap()
    }

    pub(crate) fn keys(&self, keys: &[&str]) {
        self.tmux(&[&["send-keys"], keys].concat());
    }

    fn shown(&self) -> String {
        self.tmux(&["capture-pane", "-p"])
    }

    /// Waits until the screen is so; answers it.
    pub(crate) fn wait(&self, what: &str, so: impl Fn(&str) -> bool) -> String {
        wait_until(&format!("{what} on the terminal"), || {
            Some(self.shown()).filter(|screen| so(screen))
        })
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        let _ = self.command(&["kill-server"]).output();
    }
}
