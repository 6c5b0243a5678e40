//! The documentation's pictures, made of the recordings in `tests/pictures`.
//!
//! They are of the demo guest: `demo` and `mended`, whose `is_spam` reads its list once, are
//! recordings of time, `spam` is a trace, and a `.session` is what an agent answered to `top` and to
//! `snapshot`. The `.elf` files have the guests' build-ids and the names of the functions that were
//! met, but no code. Where the wire or the file format changes, `tests/pictures/record` makes all
//! of them anew.

use std::fmt::Write as _;
use std::fs::{self, File};
use std::io::{self, Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::unix::fs::symlink;
use std::path::PathBuf;
use std::process::Command;
use std::thread;

use flate2::read::GzDecoder;
use serde_json::json;
use unikprof_proto::preamble;
use unikprof_test_kit::frames::take_frame;

use crate::harness::{Client, Terminal, wait_until};
use crate::hosted::page::drive;

const RECORDINGS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/pictures");

/// What is shown on terminals of so many columns and lines: the picture's name, the words of
/// `unikprof-client`, and what is waited for, if not the program's end.
const SCREENS: [(&str, [usize; 2], &str, Option<&str>); 4] = [
    ("top", [108, 24], "connect top --image wiki.elf", Some("watched     2")),
    ("snapshot", [108, 60], "connect snapshot --image wiki.elf", None),
    ("trace", [108, 40], "report spam.unikprof", None),
    (
        "diff",
        [108, 40],
        "diff demo.unikprof mended.unikprof --image wiki.elf --image mended.elf \
         --per batch --top 12",
        None,
    ),
];

/// With `UNIKPROF_PICTURES=docs/pictures` they are the documentation's.
#[test]
#[ignore = "full: drives a browser"]
fn pictures_are_made_of_the_recordings() {
    let client = Client::of(([127, 0, 0, 1], 0).into());
    for file in fs::read_dir(RECORDINGS).unwrap() {
        let file = file.unwrap().path();
        if file.extension().is_some_and(|extension| extension == "gz") {
            let name = file.file_stem().unwrap().to_str().unwrap();
            let mut unpacked = File::create(client.path(name)).unwrap();
            io::copy(&mut GzDecoder::new(File::open(&file).unwrap()), &mut unpacked).unwrap();
        }
    }
    let folder = std::env::var_os("UNIKPROF_PICTURES").map(PathBuf::from);
    let picture = |name: &str| match &folder {
        Some(folder) => folder.join(name),
        None => client.path(name),
    };
    of_the_page(&client, ["page.png", "flamegraph.png"].map(picture));
    if !Terminal::is_there() {
        return;
    }
    symlink(env!("CARGO_BIN_EXE_hosted-client"), client.path("unikprof-client")).unwrap();
    for (name, size, words, until) in SCREENS {
        let screen = screen(&client, name, size, words, until);
        let shows = if name == "diff" { "what changed" } else { "is_spam" };
        assert!(screen.contains(shows), "{name}: {screen}");
        fs::write(picture(&format!("{name}.svg")), drawn(size[0], words, &screen)).unwrap();
    }
}

/// The page, and the flame graph.
fn of_the_page(client: &Client, [page, graph]: [PathBuf; 2]) {
    let image = client.path("wiki.elf");
    let outputs = ["-o", "demo.html", "-o", "demo.svg"];
    client.report_with("demo.unikprof", &image, &outputs).expect_success();
    let steps = [
        json!({ "open": client.path("demo.html") }),
        json!({ "size": [1200, 900] }),
        json!({ "screenshot": page }),
        json!({ "screenshot": graph, "of": client.path("demo.svg") }),
    ];
    if drive(&steps).is_none() {
        return;
    }
    for picture in [page, graph] {
        // A quarter of the size; without it the picture is as good.
        let mut command = Command::new("pngquant");
        let _ = command.args(["--force", "--nofs", "--ext", ".png", "128"]).arg(&picture).status();
        assert!(fs::metadata(&picture).unwrap().len() > 10_000);
    }
}

/// What the client shows on a terminal, with the sequences for its styles.
fn screen(
    client: &Client,
    name: &str,
    size: [usize; 2],
    words: &str,
    until: Option<&str>,
) -> String {
    let address = match fs::read(client.path(&format!("{name}.session"))) {
        Ok(session) => replay(session).to_string(),
        Err(_) => String::new(),
    };
    let done = client.path("done");
    let _ = fs::remove_file(&done);
    let line = format!(
        "PATH=$PWD:$PATH UNIKPROF_ADDR={address} unikprof-client {words}; touch done; sleep 600"
    );
    let terminal = Terminal::open(done.parent().unwrap(), size, &line);
    match until {
        Some(text) => drop(terminal.wait(text, |screen| screen.contains(text))),
        None => wait_until("the client's end", || done.exists().then_some(())),
    }
    terminal.tmux(&["capture-pane", "-e", "-p"])
}

/// The address of an agent that answers as another one did. A session is a list: the number of
/// requests that were made before, the length, and the bytes that came then.
fn replay(session: Vec<u8>) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    thread::spawn(move || {
        let (client, _) = listener.accept().unwrap();
        // The client leaves when it has seen enough.
        let _ = answer(client, &session);
    });
    address
}

fn answer(mut client: TcpStream, mut session: &[u8]) -> io::Result<()> {
    let mut received = vec![0; preamble::LENGTH];
    client.read_exact(&mut received)?;
    received.clear();
    let mut requests = 0;
    loop {
        while let Some((head, rest)) = session.split_first_chunk::<8>() {
            let number = |at: usize| u32::from_le_bytes(head[at..at + 4].try_into().unwrap());
            if number(0) > requests {
                break;
            }
            let (bytes, rest) = rest.split_at(number(4) as usize);
            client.write_all(bytes)?;
            session = rest;
        }
        let mut buffer = [0; 1024];
        let length = client.read(&mut buffer)?;
        if length == 0 {
            return Ok(());
        }
        received.extend_from_slice(&buffer[..length]);
        while take_frame(&mut received).unwrap().is_some() {
            requests += 1;
        }
    }
}

/// A terminal as SVG, under the command line. The only style is that of turned colours.
fn drawn(columns: usize, words: &str, screen: &str) -> String {
    const COLUMN: f64 = 8.4;
    const LINE: usize = 18;
    const INK: &str = "#e6e3dc";
    const PAPER: &str = "#1e2024";
    let escaped = |text: &str| text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;");
    let screen = screen.trim_end();
    let lines = screen.lines().count() + 1;
    let (width, height) = ((columns as f64 * COLUMN) as usize + 24, lines * LINE + 20);
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {height}\" \
         width=\"{width}\" height=\"{height}\" font-family=\"DejaVu Sans Mono, Menlo, Consolas, \
         monospace\" font-size=\"14\">\n\
         <rect width=\"{width}\" height=\"{height}\" rx=\"6\" fill=\"{PAPER}\"/>\n"
    );
    let prompt = format!("$ unikprof-client {words}");
    for (at, line) in [prompt.as_str()].into_iter().chain(screen.lines()).enumerate() {
        let y = at * LINE + 24;
        let mut column = 0;
        let mut is_turned = false;
        for (part, run) in line.split("\x1b[").enumerate() {
            let text = match run.split_once('m') {
                Some((style, text)) if part > 0 => {
                    is_turned = style == "7";
                    text
                }
                _ => run,
            };
            let length = text.chars().count();
            let (x, wide) = (12.0 + column as f64 * COLUMN, length as f64 * COLUMN);
            column += length;
            if is_turned {
                let top = y - 14;
                let _ = writeln!(
                    svg,
                    "<rect x=\"{x:.1}\" y=\"{top}\" width=\"{wide:.1}\" height=\"{LINE}\" \
                     fill=\"{INK}\"/>"
                );
            }
            if !text.trim().is_empty() {
                let colour = if is_turned { PAPER } else { INK };
                let _ = writeln!(
                    svg,
                    "<text x=\"{x:.1}\" y=\"{y}\" fill=\"{colour}\" textLength=\"{wide:.1}\" \
                     xml:space=\"preserve\">{}</text>",
                    escaped(text)
                );
            }
        }
    }
    svg + "</svg>\n"
}
