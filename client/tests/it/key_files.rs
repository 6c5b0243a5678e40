//! Keys as their users meet them: making one, naming it, and what is wrong with it.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use crate::peer::keyed::{Keyed, OTHER_SECRET, SECRET, key};
use crate::peer::program::has;
use crate::peer::{Peer, Script, program};
use unikprof_link::key::{Key, Role};
use unikprof_proto::code::role;
use unikprof_proto::message::Peers;

/// Runs the program, demands this exit code, and that nothing of a secret is shown; answers stdout
/// and stderr.
#[track_caller]
fn run(code: i32, arguments: &[&str], directory: &Path, variable: Option<&str>) -> [String; 2] {
    let mut command = program::command(arguments, directory);
    if let Some(path) = variable {
        command.env("UNIKPROF_KEY_FILE", path);
    }
    let (stdout, stderr) = program::finished(code, &mut command);
    let texts = [stdout, stderr];
    for secret in [SECRET, OTHER_SECRET] {
        let whole = texts.concat().to_lowercase();
        assert!(!whole.contains(&secret[..16]), "{whole}");
    }
    texts
}

fn write(directory: &Path, name: &str, text: &str, mode: u32) {
    let path = directory.join(name);
    fs::write(&path, text).unwrap();
    fs::set_permissions(&path, Permissions::from_mode(mode)).unwrap();
}

fn line(secret: &str) -> String {
    format!("unikprof-key-1:{secret}\n")
}

fn agent(keyed: Option<Keyed>) -> (Peer, String) {
    let peer = Peer::start(Script {
        keyed,
        waiting: 1,
        peers: Peers { bad_key: 3, displaced: 40, not_allowed: 1, ..Peers::default() },
        ..Script::default()
    });
    let address = peer.address.to_string();
    (peer, address)
}

#[test]
fn keygen_makes_a_file_for_its_owner_alone_and_never_writes_over_one() {
    let here = tempfile::tempdir().unwrap();
    let arguments = ["keygen", "-o", "g.key", "--role", "view"];
    let [stdout, stderr] = run(0, &arguments, here.path(), None);
    assert_eq!(stderr, "");
    let path = here.path().join("g.key");
    let mode = fs::metadata(&path).unwrap().permissions().mode();
    assert_eq!(mode & 0o7777, 0o600);
    let text = fs::read_to_string(&path).unwrap();
    let made = Key::read(&path).unwrap();
    has(&stdout, &[&made.id().to_string(), "g.key", "role view", "--key-file"]);
    assert!(!stdout.contains(text.lines().nth(1).unwrap()), "{stdout}");
    has(&text, &[&format!("# unikprof key {}, role view", made.id())]);

    let [_, stderr] = run(7, &arguments, here.path(), None);
    has(&stderr, &["g.key", "already exists", "not overwritten"]);
    assert_eq!(fs::read_to_string(&path).unwrap(), text);
    // Not through a link either.
    std::os::unix::fs::symlink("elsewhere", here.path().join("link.key")).unwrap();
    run(7, &["keygen", "-o", "link.key"], here.path(), None);
    assert!(!here.path().join("elsewhere").exists());
    run(7, &["keygen", "-o", "no/such.key"], here.path(), None);
}

#[test]
fn keygen_says_what_it_made_to_programs() {
    let here = tempfile::tempdir().unwrap();
    let [stdout, _] = run(0, &["keygen", "-o", "g.key", "--json"], here.path(), None);
    let made = program::json(&stdout);
    let key = Key::read(&here.path().join("g.key")).unwrap();
    assert_eq!(made["id"], key.id().to_string());
    assert_eq!(made["role"], "control");
    assert_eq!(made["file"], "g.key");

    let words = ["keygen", "-o", "t.key", "--role", "trace", "--json"];
    let [stdout, _] = run(0, &words, here.path(), None);
    assert_eq!(program::json(&stdout)["role"], "trace");

    // A pipe is no terminal.
    let [stdout, stderr] = run(0, &["keygen", "-o", "-"], here.path(), None);
    write(here.path(), "piped.key", &stdout, 0o600);
    let piped = Key::read(&here.path().join("piped.key")).unwrap();
    has(&stderr, &[&piped.id().to_string()]);

    let [stdout, stderr] = run(2, &["keygen"], here.path(), None);
    assert_eq!(stdout, "");
    has(&stderr, &["-o FILE", "terminal"]);
    run(2, &["keygen", "-o", "-", "--json"], here.path(), None);
    run(2, &["keygen", "-o", "x", "--role", "root"], here.path(), None);
}

/// Guards a key or names that are lost because an output has their name.
#[test]
fn what_is_written_replaces_no_key_and_no_names() {
    let here = tempfile::tempdir().unwrap();
    let (peer, address) = agent(Some(Keyed::default()));
    write(here.path(), "g.txt", &line(SECRET), 0o600);
    let names = "0000000000000100 T main\n";
    write(here.path(), "names.txt", names, 0o600);
    for subcommand in [&["record", "1s"][..], &["leaks", "1h"], &["dump"], &["trace", "main"]] {
        for output in ["g.txt", "./names.txt"] {
            let connect = ["connect", &address, "--key-file", "g.txt"];
            let outputs = ["--symbols", "names.txt", "-o", output];
            let words = [&connect[..], subcommand, &outputs].concat();
            let [_, stderr] = run(2, &words, here.path(), None);
            has(&stderr, &["is read: it would be replaced"]);
        }
    }
    let words = ["connect", &address, "record", "1s", "-o", "g.txt"];
    let [_, stderr] = run(2, &words, here.path(), Some("g.txt"));
    has(&stderr, &["is read: it would be replaced"]);
    assert_eq!(peer.asked("start") + peer.asked("dump"), 0);
}

#[test]
fn a_file_that_others_can_read_is_refused_with_what_to_run() {
    let here = tempfile::tempdir().unwrap();
    let (peer, address) = agent(Some(Keyed::default()));
    for mode in [0o640, 0o604, 0o660, 0o610, 0o601] {
        write(here.path(), "g.key", &line(SECRET), mode);
        let arguments = ["connect", &address, "--key-file", "g.key", "info"];
        let [stdout, stderr] = run(6, &arguments, here.path(), None);
        assert_eq!(stdout, "");
        has(&stderr, &["chmod 600 g.key", &format!("{mode:04o}")]);
    }
    assert!(peer.log().is_empty(), "nothing was sent");
    for mode in [0o600, 0o400] {
        write(here.path(), "owned.key", &line(SECRET), 0o600);
        fs::set_permissions(here.path().join("owned.key"), Permissions::from_mode(mode)).unwrap();
        let arguments = ["connect", &address, "--key-file", "owned.key", "info"];
        run(0, &arguments, here.path(), None);
        fs::remove_file(here.path().join("owned.key")).unwrap();
    }
}

#[test]
fn what_is_no_key_file_is_told_without_showing_it() {
    let here = tempfile::tempdir().unwrap();
    let bare = format!("{SECRET}\n");
    let two = format!("{}{}", line(SECRET), line(OTHER_SECRET));
    let long = format!("{}{}", line(SECRET), "#\n".repeat(4096));
    let short = line(&SECRET[1..]);
    let upper = line(&SECRET.to_uppercase());
    let newer = line(SECRET).replace("key-1", "key-2");
    for (text, words) in [
        (bare.as_str(), &["line 1", "begins with `unikprof-key-1:`"][..]),
        (&two, &["second key in line 2"]),
        (&long, &["longer than 4096 bytes"]),
        (&short, &["64 hexadecimal digits", "found 63"]),
        (&upper, &["lower case"]),
        (&newer, &["another version"]),
        ("# no key\n", &["contains no key", "keygen"]),
        ("", &["contains no key"]),
    ] {
        write(here.path(), "g.key", text, 0o600);
        let arguments = ["connect", "127.0.0.1:9", "--key-file", "g.key", "info"];
        let [_, stderr] = run(6, &arguments, here.path(), None);
        has(&stderr, &["g.key"]);
        has(&stderr, words);
    }
    for (path, word) in
        [("none.key", "none.key"), (".", "not a regular file"), ("/dev/zero", "not a regular file")]
    {
        let arguments = ["doctor", "127.0.0.1:9", "--key-file", path];
        let [_, stderr] = run(6, &arguments, here.path(), None);
        has(&stderr, &["key file", word]);
    }
    // A key is no argument.
    let argument = format!("--key={}", &line("0000")[..10]);
    run(2, &["connect", "h", &argument, "info"], here.path(), None);
}

#[test]
fn the_variable_names_the_file_and_the_argument_goes_before_it() {
    let here = tempfile::tempdir().unwrap();
    write(here.path(), "right.key", &line(SECRET), 0o600);
    write(here.path(), "wrong.key", &line(OTHER_SECRET), 0o600);
    let (_peer, address) = agent(Some(Keyed::default()));
    let info = ["connect", address.as_str(), "info"];
    run(0, &info, here.path(), Some("right.key"));
    let [_, stderr] = run(10, &info, here.path(), Some("wrong.key"));
    has(&stderr, &["rejected key", &key(OTHER_SECRET).id().to_string()]);
    let named = ["connect", &address, "info", "--key-file", "right.key"];
    run(0, &named, here.path(), Some("wrong.key"));
    // What is advised works without the variable.
    let start = ["connect", &address, "--key-file", "right.key", "start", "--name", "n"];
    let [stdout, _] = run(0, &start, here.path(), None);
    has(&stdout, &[&format!("connect {address} --key-file right.key stop --name n")]);
    // An empty one names none.
    let [_, stderr] = run(10, &info, here.path(), Some(""));
    has(&stderr, &["requires a key", "--key-file", "UNIKPROF_KEY_FILE"]);
}

#[test]
fn an_open_agent_on_loopback_is_no_warning_and_never_spoken_to_with_a_key() {
    let here = tempfile::tempdir().unwrap();
    write(here.path(), "g.key", &line(SECRET), 0o600);
    let (peer, address) = agent(None);
    for word in ["info", "check"] {
        let [stdout, stderr] = run(0, &["connect", &address, word, "--json"], here.path(), None);
        let said = program::json(&stdout);
        assert_eq!(said["role"], "open");
        assert_eq!(said["encrypted"], false);
        assert_eq!(stderr, "");
    }
    let before = peer.log().len();
    let arguments = ["connect", &address, "--key-file", "g.key", "info"];
    let [_, stderr] = run(10, &arguments, here.path(), None);
    has(&stderr, &["requires no key", "omit --key-file"]);
    assert_eq!(peer.log().len(), before);
}

#[test]
fn info_check_and_doctor_tell_the_role_and_what_strangers_tried() {
    let here = tempfile::tempdir().unwrap();
    write(here.path(), "g.key", &line(SECRET), 0o600);
    let (_peer, address) = agent(Some(Keyed { role: role::VIEW, ..Keyed::default() }));
    let id = key(SECRET).id().to_string();
    let connect = |word, more: &[&str]| {
        let arguments = [&["connect", &address, "--key-file", "g.key", word], more].concat();
        run(0, &arguments, here.path(), None)
    };
    let [info, stderr] = connect("info", &[]);
    has(&info, &["role view", &id, "encrypted"]);
    assert_eq!(stderr, "");
    let [info, _] = connect("info", &["--json"]);
    let info = program::json(&info);
    assert_eq!(
        (&info["role"], &info["encrypted"], &info["key"]),
        (&"view".into(), &true.into(), &id.as_str().into())
    );
    let [check, _] = connect("check", &[]);
    has(
        &check,
        &[
            "3 with a wrong key",
            "40 closed before authentication",
            "1 request beyond the key's role",
            "role view",
            "at most 5 ns at once",
        ],
    );
    let [check, _] = connect("check", &["--json"]);
    let check = program::json(&check);
    assert_eq!(check["peers"]["bad_key"], 3);
    assert_eq!(check["server_longest_ns"], 5);
    assert_eq!(check["encrypted"], true);
    let [fetched, _] = connect("copy", &["-o", "r.unikprof"]);
    has(&fetched, &["18 samples", "r.unikprof"]);

    let arguments = ["doctor", &address, "--all", "--key-file", "g.key"];
    let [doctor, stderr] = run(0, &arguments, here.path(), None);
    has(&doctor, &["good  access", "role view", "look  rejected", "3 with a wrong key"]);
    assert_eq!(stderr, "");

    let arguments = ["connect", &address, "--key-file", "g.key", "stop"];
    let [_, stderr] = run(10, &arguments, here.path(), None);
    has(&stderr, &["permission denied for stopping", "`view`", "`control`", &id]);
}

/// The role in a file is a comment: the guest says what a key allows.
#[test]
fn the_role_in_a_file_does_not_matter_to_its_reader() {
    let here = tempfile::tempdir().unwrap();
    let path = here.path().join("v.key");
    key(SECRET).write_new(&path, Role::View).unwrap();
    let (_peer, address) = agent(Some(Keyed::default()));
    let arguments = ["connect", &address, "--key-file", "v.key", "start"];
    run(0, &arguments, here.path(), None);
}
