//! A stripped guest, whose debug information is found by its build-id: in a folder, and on a real
//! debuginfod server.

use std::fs;
use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};

use serde_json::Value;
use tempfile::TempDir;
use unikprof_profile::symbols::Image;
use unikprof_tests::requirement::skip;

use crate::harness::{Client, Guest, wait_until};

/// A debuginfod that serves the files of a folder; it is killed when the value is dropped.
struct Server {
    child: Child,
    address: SocketAddr,
}

impl Server {
    /// Starts it and waits until it has the file of this build; `None` if debuginfod is not
    /// installed.
    fn start(files: &Path, build_id: &str) -> Option<Server> {
        loop {
            let mut server = Server::spawn(files)?;
            if server.wait_for(build_id) {
                return Some(server);
            }
            // Somebody else has taken its port meanwhile.
        }
    }

    /// Starts it on a port that was free.
    fn spawn(files: &Path) -> Option<Server> {
        let free = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = free.local_addr().unwrap();
        drop(free);
        let child = Command::new("debuginfod")
            .args(["--port", &address.port().to_string()])
            .args(["--database", ":memory:", "--scan-file-dir"])
            .arg(files)
            .env_remove("DEBUGINFOD_URLS")
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .ok()?;
        Some(Server { child, address })
    }

    /// Waits until it has the file; `false` if it has ended.
    fn wait_for(&mut self, build_id: &str) -> bool {
        wait_until("debuginfod to have the file", || {
            if self.child.try_wait().unwrap().is_some() {
                return Some(false);
            }
            let mut stream = TcpStream::connect(self.address).ok()?;
            let request = format!("GET /buildid/{build_id}/debuginfo HTTP/1.0\r\n\r\n");
            stream.write_all(request.as_bytes()).ok()?;
            let mut head = [0; 12];
            stream.read_exact(&mut head).ok()?;
            head.ends_with(b" 200").then_some(true)
        })
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The names of the guest's own functions in a report made with these arguments and servers.
fn names(client: &Client, arguments: &[&str], urls: Option<(&str, &Path)>) -> String {
    let mut command = client.command();
    command.args(["report", "run.unikprof", "--json", "--top", "0"]);
    command.args(arguments).stdin(Stdio::null());
    command.env_remove("DEBUGINFOD_URLS");
    if let Some((urls, cache)) = urls {
        command.env("DEBUGINFOD_URLS", urls);
        command.env("DEBUGINFOD_CACHE_PATH", cache);
    }
    let output = command.output().unwrap();
    assert!(output.status.success(), "{output:?}");
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    let functions = report["functions"].as_array().unwrap();
    let names = functions.iter().map(|f| f["name"].as_str().unwrap());
    let own = names.filter(|name| name.starts_with("hosted_guest::"));
    own.collect::<Vec<_>>().join("\n")
}

#[test]
#[ignore = "full: records a guest"]
fn a_stripped_guest_is_named_by_its_build_id() {
    let folder = TempDir::new().unwrap();
    let id = Image::open(Guest::program()).unwrap().build_id().unwrap().to_string();
    let stripped = folder.path().join("guest");
    let files = folder.path().join("files");
    let debug = files.join(format!(".build-id/{}/{}.debug", &id[..2], &id[2..]));
    fs::create_dir_all(debug.parent().unwrap()).unwrap();
    for (option, to) in [("--strip-all", &stripped), ("--only-keep-debug", &debug)] {
        let mut objcopy = Command::new("objcopy");
        let status = objcopy.arg(option).arg(Guest::program()).arg(to).status();
        assert!(status.unwrap().success());
    }
    let guest = Guest::spawn(Command::new(&stripped).args(["burst", "--open"]));
    let client = guest.client();
    client.must(&["start"]);
    client.wait_for_samples(20);
    let folder_alone = ["--symbols", files.to_str().unwrap()];
    let words = [&["stop", "-o", "run.unikprof"], &folder_alone[..]].concat();
    let told = client.must(&words).stdout;
    drop(guest);
    // What is to be done next has the names, too.
    let next = format!("report run.unikprof {}", folder_alone.join(" "));
    assert!(told.contains(&next), "{told}");

    // What each way has to find.
    let image = Guest::program().to_str().unwrap();
    let expected = names(&client, &["--image", image], None);
    assert!(expected.contains("hosted_guest::main"), "{expected}");
    assert_eq!(names(&client, &[], None), "");
    assert_eq!(names(&client, &folder_alone, None), expected);

    let Some(server) = Server::start(&files, &id) else {
        skip("debuginfod is not installed");
        return;
    };
    let cache = folder.path().join("cache");
    let url = format!("http://{}", server.address);
    let asked = Some((url.as_str(), cache.as_path()));
    assert_eq!(names(&client, &[], asked), expected);
    drop(server);
    assert_eq!(names(&client, &[], asked), expected, "from the cache");
    // Without the image the debug file alone names it.
    fs::remove_file(&stripped).unwrap();
    assert_eq!(names(&client, &[], asked), expected, "from the debug file");
}
