//! `unikprof-fleet serve` in a folder of its own.

use std::fs;
use std::process::{Child, Command};

use serde_json::Value;
use tempfile::TempDir;

use super::{SOON, wait_until};

/// `unikprof-fleet serve`; it is killed when the value is dropped.
pub(crate) struct Fleet {
    pub(crate) folder: TempDir,
    child: Child,
    /// The URL at which it is served.
    pub(crate) url: String,
}

impl Fleet {
    /// Serves a `fleet.toml`; a port that is free is chosen for it.
    pub(crate) fn start(folder: TempDir, settings: &str, rest: &str) -> Fleet {
        let toml = format!("[serve]\nlisten = \"127.0.0.1:0\"\nevery = \"1s\"\n{settings}\n{rest}");
        fs::write(folder.path().join("fleet.toml"), toml).unwrap();
        let file = |name| fs::File::create(folder.path().join(name)).unwrap();
        let child = Command::new(env!("CARGO_BIN_EXE_hosted-fleet"))
            .args(["serve", "--config", "fleet.toml"])
            .current_dir(folder.path())
            .stdout(file("said"))
            .stderr(file("log"))
            .spawn()
            .unwrap();
        let mut fleet = Fleet { folder, child, url: String::new() };
        fleet.url = wait_until("the address", || {
            let ended = fleet.child.try_wait().unwrap();
            assert_eq!(ended, None, "{}", fleet.log());
            let said = fs::read_to_string(fleet.path("said")).unwrap();
            let (line, _) = said.split_once('\n')?;
            Some(line.split_once(" on ")?.1.to_owned())
        });
        fleet
    }

    pub(crate) fn path(&self, name: &str) -> String {
        self.folder.path().join(name).to_str().unwrap().to_owned()
    }

    pub(crate) fn log(&self) -> String {
        fs::read_to_string(self.path("log")).unwrap()
    }

    /// The body that `curl` gets, and the status.
    pub(crate) fn get(&self, path: &str, options: &[&str]) -> (u16, String) {
        let output = Command::new("curl")
            .args([
                "--silent",
                "--show-error",
                "--globoff",
                "--max-time",
                &SOON.as_secs().to_string(),
                "--write-out",
                "\n%{http_code}",
            ])
            .args(options)
            .arg(format!("{}{path}", self.url))
            .output()
            .expect("`curl`, which is needed for this case");
        let text = String::from_utf8_lossy(&output.stdout);
        let (body, status) = text.rsplit_once('\n').unwrap();
        (status.parse().unwrap(), body.to_owned())
    }

    /// A guest's entry in `/guests`.
    pub(crate) fn guest(&self, name: &str) -> Option<Value> {
        let (_, body) = self.get("/guests", &[]);
        let all: Value = serde_json::from_str(&body).unwrap();
        let all = all["guests"].as_array().unwrap();
        all.iter().find(|guest| guest["name"] == name).cloned()
    }

    /// Waits until it has answered.
    pub(crate) fn wait_for(&self, name: &str) {
        wait_until("an answer of the guest", || {
            self.guest(name).filter(|guest| guest["up"] == true)
        });
    }

    /// The value of a metric with these labels, if it is there.
    pub(crate) fn metric(&self, line: &str) -> Option<f64> {
        let (_, text) = self.get("/metrics", &[]);
        let found = text.lines().find_map(|found| found.strip_prefix(line));
        found.map(|value| value.trim().parse().unwrap())
    }

    /// Sends what Ctrl-C sends; answers what it said on the way to its end.
    pub(crate) fn end(mut self) -> String {
        let id = self.child.id().to_string();
        assert!(Command::new("kill").args(["-INT", &id]).status().unwrap().success());
        let ended = wait_until("its end", || self.child.try_wait().unwrap());
        assert!(ended.success(), "{}", self.log());
        fs::read_to_string(self.path("said")).unwrap()
    }
}

impl Drop for Fleet {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
