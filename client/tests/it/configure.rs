//! `configure`: the settings in an image, as a user writes and reads them.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use tempfile::TempDir;
use unikprof_client::exit_code;
use unikprof_link::key::{Key, Role};
use unikprof_proto::image_settings::{CAPACITY, MAGIC, text};

/// Where the place is, in bytes that are no settings.
const AT: usize = 1000;

fn image() -> Vec<u8> {
    let mut image = vec![0x90; AT];
    image.extend(MAGIC);
    image.extend([0; CAPACITY]);
    image.extend([0xcc; 100]);
    image
}

struct Folder(TempDir);

impl Folder {
    fn new(image: &[u8]) -> Self {
        let folder = Self(TempDir::with_prefix("unikprof-configure-").unwrap());
        fs::write(folder.path("guest.elf"), image).unwrap();
        folder
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn run(&self, arguments: &[&str]) -> Output {
        Command::new(env!("CARGO_BIN_EXE_unikprof-client"))
            .current_dir(self.0.path())
            .arg("configure")
            .arg("guest.elf")
            .args(arguments)
            .output()
            .unwrap()
    }

    fn must(&self, arguments: &[&str]) -> String {
        let output = self.run(arguments);
        assert!(output.status.success(), "{output:?}");
        String::from_utf8(output.stdout).unwrap()
    }

    fn fails(&self, arguments: &[&str], code: u8, words: &str) {
        let before = fs::read(self.path("guest.elf")).ok();
        let output = self.run(arguments);
        let error = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(code.into()), "{error}");
        assert!(error.contains(words), "{error}");
        assert_eq!(fs::read(self.path("guest.elf")).ok(), before);
    }
}

fn key(path: &Path, role: Role) -> Key {
    let key = Key::generate().unwrap();
    key.write_new(path, role).unwrap();
    key
}

#[test]
fn settings_replace_those_before_and_nothing_else() {
    let folder = Folder::new(&image());
    let mode = 0o750;
    fs::set_permissions(folder.path("guest.elf"), fs::Permissions::from_mode(mode)).unwrap();
    let guests = key(&folder.path("guest.key"), Role::Control);
    let written = folder.must(&["--key", "guest.key", "--dhcp", "--record", "flight"]);
    assert!(written.contains(&guests.id().to_string()), "{written}");
    let digits = guests.to_text();
    assert!(!written.contains(digits.trim_start_matches("unikprof-key-1:")), "{written}");

    folder.must(&["--open", "--address", "10.0.0.5/24", "--gateway", "10.0.0.1", "--port", "7000"]);
    let bytes = fs::read(folder.path("guest.elf")).unwrap();
    let place = AT + MAGIC.len()..AT + MAGIC.len() + CAPACITY;
    let expected = "access=open\naddress=10.0.0.5/24\ngateway=10.0.0.1\nport=7000\n";
    assert_eq!(text(&bytes[place.clone()]), Ok(expected));
    let mut emptied = bytes;
    emptied[place].fill(0);
    assert_eq!(emptied, image());
    let metadata = fs::metadata(folder.path("guest.elf")).unwrap();
    assert_eq!(metadata.permissions().mode() & 0o777, mode);
}

/// Guards tenants without access to xenstore, who could not allow traces.
#[test]
fn traces_are_allowed_in_the_image() {
    let folder = Folder::new(&image());
    let place = AT + MAGIC.len()..AT + MAGIC.len() + CAPACITY;
    let tracer = key(&folder.path("t.key"), Role::Control);
    let shown = folder.must(&["--trace", "t.key", "--dhcp"]);
    assert!(shown.contains(&format!("trace        key {}", tracer.id())), "{shown}");
    let bytes = fs::read(folder.path("guest.elf")).unwrap();
    let expected = format!("trace={}\naddress=dhcp\n", tracer.to_text().trim());
    assert_eq!(text(&bytes[place.clone()]), Ok(&*expected));
    folder.fails(&["--trace", "t.key", "-o", "t.key"], exit_code::USAGE, "is read");
    folder.must(&["--open", "--tracing"]);
    let bytes = fs::read(folder.path("guest.elf")).unwrap();
    assert_eq!(text(&bytes[place]), Ok("access=open\ntracing=yes\n"));
    folder.fails(&["--tracing"], exit_code::USAGE, "--open");
}

#[test]
fn the_settings_are_shown_without_secrets() {
    let folder = Folder::new(&image());
    assert!(folder.must(&[]).contains("no settings"));
    let view = key(&folder.path("view.key"), Role::View);
    folder.must(&["--view", "view.key", "--dhcp"]);
    let shown = folder.must(&[]);
    assert!(shown.contains(&format!("view         key {}", view.id())), "{shown}");
    assert!(!shown.contains("unikprof-key-1:"), "{shown}");
    folder.must(&["--dhcp"]);
    assert!(folder.must(&[]).contains("nobody can connect"));

    // Another program's bytes stay one line each, without control characters.
    let mut bytes = image();
    bytes[AT + MAGIC.len()..][..15].copy_from_slice(b"record=\x1b[31mred");
    fs::write(folder.path("guest.elf"), &bytes).unwrap();
    assert!(folder.must(&[]).contains("\\u{1b}[31mred"));
}

#[test]
fn what_cannot_be_done_leaves_the_image_alone() {
    let folder = Folder::new(&image());
    for address in ["10.0.0.5", "10.0.0.5/33", "224.0.0.1/24", "0.0.0.0/0"] {
        let expected = "such as 10.0.0.5/24";
        folder.fails(&["--address", address], exit_code::USAGE, expected);
    }
    let broadcast = ["--address", "10.0.0.5/24", "--gateway", "255.255.255.255"];
    folder.fails(&broadcast, exit_code::USAGE, "unicast");
    folder.fails(&["--port", "0"], exit_code::USAGE, "1..=65535");
    folder.fails(&["--record", "two\nlines"], exit_code::USAGE, "control characters");
    folder.fails(&["--key", "none.key"], exit_code::INPUT, "none.key");
    folder.fails(&["-o", "other.elf"], exit_code::USAGE, "name a setting");

    let without = Folder::new(&[0x90; 5000]);
    without.fails(&["--dhcp"], exit_code::INPUT, "libunikprof-dropin.a");
    // A file that ends in the middle of the place.
    let cut = Folder::new(&image()[..AT + 500]);
    cut.fails(&["--dhcp"], exit_code::INPUT, "no place for settings");
    let twice = Folder::new(&[image(), image()].concat());
    twice.fails(&["--dhcp"], exit_code::INPUT, "2 places");
    fs::remove_file(folder.path("guest.elf")).unwrap();
    folder.fails(&["--dhcp"], exit_code::INPUT, "cannot read it");
}
