//! Dom0: its initramfs, and commands run in it.

use std::collections::BTreeSet;
use std::fs::File;
use std::io::{self, BufWriter, Read, Write};
use std::net::{Ipv4Addr, TcpStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::board::{Board, Stream};
use crate::cache::Cache;
use crate::config::{LabConfig, Processor};
use crate::cpio::CpioWriter;
use crate::error::LabError;
use crate::flat_image;
use crate::packages::XEN;

/// The line that dom0's init prints when everything is up.
pub(crate) const READY: &str = "lab: dom0 ready";
/// The line that it prints before it gives up.
pub(crate) const FAILED: &str = "lab: dom0 failed";
/// Dom0's address, and the port where it takes commands.
pub(crate) const ADDRESS: &str = "10.0.2.15";
pub(crate) const COMMAND_PORT: u16 = 2222;

const STATUS: &str = "\nlab-status:";

const XEN_PROGRAMS: [&str; 8] = [
    "xl",
    "xenstored",
    "xenconsoled",
    "xenconsole",
    "xen-init-dom0",
    "libxl-save-helper",
    "xenctx",
    "xenstore-control",
];
/// On x86-64 only.
const X86_64_PROGRAMS: [&str; 1] = ["xen-hvmctx"];
const XENSTORE_PROGRAMS: [&str; 5] = ["read", "write", "ls", "rm", "watch"];

const EMPTY_FOLDERS: [&str; 12] = [
    "dev",
    "proc",
    "sys",
    "run",
    "tmp",
    "var/lib/xen",
    "var/lib/xenstored",
    "var/lock",
    "var/log/xen/console",
    "var/run/xen",
    "var/run/xenstored",
    "guest",
];

/// Writes dom0's initramfs, with the guests' kernels in it.
pub(crate) fn write_initramfs(
    cache: &Cache,
    config: &LabConfig,
    path: &Path,
) -> Result<(), LabError> {
    let mut libraries = BTreeSet::new();
    let programs = programs(cache);
    for (_, program) in &programs {
        libraries.extend(cache.libraries(program)?);
    }
    // glibc loads it by name for pthread_cancel; without it xl aborts.
    libraries.insert(cache.dom0_library("libgcc_s.so.1")?);

    let write = || -> io::Result<()> {
        let mut archive = CpioWriter::new(BufWriter::new(File::create(path)?));
        for folder in EMPTY_FOLDERS {
            archive.folder(folder)?;
        }
        archive.file("init", include_bytes!("dom0/init.sh"))?;
        archive.file("bin/lab-command", include_bytes!("dom0/command.sh"))?;
        archive.file("etc/xen/scripts/vif-bridge", include_bytes!("dom0/vif-bridge.sh"))?;
        // Dom0's memory is fixed on Xen's command line.
        archive.file("etc/xen/xl.conf", b"autoballoon=\"off\"\n")?;
        archive.copy("bin/busybox", &cache.dom0_root().join("bin/busybox"))?;
        archive.copy(cache.dom0_loader(), &cache.dom0_root().join(cache.dom0_loader()))?;
        for library in &libraries {
            let name = library.file_name().unwrap_or_default().to_string_lossy();
            archive.copy(&format!("lib64/{name}"), library)?;
        }
        for (name, program) in &programs {
            // xl looks for its helper in the folder it was built for.
            let place = format!("usr/lib/xen-{XEN}/bin/{name}");
            archive.copy(&place, program)?;
            archive.link(&format!("bin/{name}"), &format!("/{place}"))?;
        }
        archive.file("modules/order", cache.modules().join("\n").as_bytes())?;
        for module in cache.modules() {
            archive.copy(&format!("modules/{module}.ko"), &cache.module(module))?;
        }
        for (index, guest) in config.guests.iter().enumerate() {
            let folder = format!("guest/{}", guest.name);
            let kernel = format!("{folder}/kernel");
            match config.processor {
                Processor::X86_64 => archive.copy(&kernel, &guest.kernel)?,
                Processor::Aarch64 => archive.file(&kernel, &flat_image::of(&guest.kernel)?)?,
            }
            let xl = guest.xl_config(index, config.processors());
            archive.file(&format!("{folder}/xl.cfg"), xl.as_bytes())?;
        }
        for (place, from) in &config.dom0_files {
            archive.copy(place.trim_start_matches('/'), from)?;
        }
        archive.finish().map(drop)
    };
    write().map_err(|e| LabError::setup("writing dom0's initramfs", e))
}

fn programs(cache: &Cache) -> Vec<(String, PathBuf)> {
    let root = cache.dom0_root();
    let of_processor: &[&str] = match cache.processor() {
        Processor::X86_64 => &X86_64_PROGRAMS,
        Processor::Aarch64 => &[],
    };
    let xen = XEN_PROGRAMS.iter().chain(of_processor).map(|name| {
        let path = root.join(format!("usr/lib/xen-{XEN}/bin/{name}"));
        ((*name).to_owned(), path)
    });
    let store = XENSTORE_PROGRAMS.map(|name| {
        let name = format!("xenstore-{name}");
        let path = root.join("usr/bin").join(&name);
        (name, path)
    });
    xen.chain(store).collect()
}

/// The result of a command in dom0.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Dom0Output {
    /// The exit status; 0 is success.
    pub status: i32,
    /// Standard output and standard error, in the order they came.
    pub text: String,
}

/// Why a command has no output.
#[derive(Debug)]
pub(crate) enum CommandFailure {
    /// The deadline passed; with what had come by then.
    Late(String),
    /// The connection broke; with what had come by then.
    Broken(String),
}

/// Runs a command in dom0 and waits for its end.
pub(crate) fn run(
    port: u16,
    script: &str,
    deadline: Instant,
) -> Result<Dom0Output, CommandFailure> {
    let bytes = run_for_bytes(port, script, deadline)?;
    let text = String::from_utf8_lossy(&bytes).replace('\r', "");
    parse_output(&text).ok_or(CommandFailure::Broken(text))
}

/// The same, with what it printed as it came: bytes, and the status behind them.
pub(crate) fn run_for_bytes(
    port: u16,
    script: &str,
    deadline: Instant,
) -> Result<Vec<u8>, CommandFailure> {
    let mut text = Vec::new();
    let failure = |error: &io::Error, text: &[u8]| {
        let so_far = String::from_utf8_lossy(text).into_owned();
        match error.kind() {
            io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => CommandFailure::Late(so_far),
            _ => CommandFailure::Broken(format!("{so_far}{error}")),
        }
    };
    let mut connection = send(port, script).map_err(|e| failure(&e, &text))?;
    let mut chunk = [0; 4096];
    loop {
        let left =
            deadline
                .checked_duration_since(Instant::now())
                .filter(|left| !left.is_zero())
                .ok_or_else(|| CommandFailure::Late(String::from_utf8_lossy(&text).into_owned()))?;
        connection.set_read_timeout(Some(left)).map_err(|e| failure(&e, &text))?;
        match connection.read(&mut chunk) {
            Ok(0) => break,
            Ok(n) => text.extend_from_slice(&chunk[..n]),
            // A process that is stopped and continued finds even a read with a deadline
            // interrupted (signal(7)).
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(e) => return Err(failure(&e, &text)),
        }
    }
    Ok(text)
}

/// The bytes in front of a status that says success.
pub(crate) fn bytes_of_success(mut bytes: Vec<u8>) -> Result<Vec<u8>, CommandFailure> {
    let end = format!("{STATUS}0\n");
    if !bytes.ends_with(end.as_bytes()) {
        return Err(CommandFailure::Broken(String::from_utf8_lossy(&bytes).into_owned()));
    }
    bytes.truncate(bytes.len() - end.len());
    Ok(bytes)
}

/// Runs a command in dom0 and copies its output to the board until it ends.
pub(crate) fn follow(
    port: u16,
    script: &str,
    board: &Arc<Board>,
    stream: Stream,
) -> io::Result<()> {
    let mut connection = send(port, script)?;
    let board = Arc::clone(board);
    std::thread::spawn(move || {
        let mut chunk = [0; 4096];
        while let Ok(n) = connection.read(&mut chunk) {
            if n == 0 {
                break;
            }
            board.append(stream, &chunk[..n]);
        }
        board.close(stream);
    });
    Ok(())
}

fn send(port: u16, script: &str) -> io::Result<TcpStream> {
    let mut connection = TcpStream::connect((Ipv4Addr::LOCALHOST, port))?;
    connection.set_nodelay(true)?;
    connection.set_write_timeout(Some(Duration::from_secs(10)))?;
    connection.write_all(format!("{}\n{script}", script.len()).as_bytes())?;
    Ok(connection)
}

fn parse_output(text: &str) -> Option<Dom0Output> {
    let (text, status) = text.rsplit_once(STATUS)?;
    Some(Dom0Output { status: status.trim().parse().ok()?, text: text.to_owned() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_status_line_is_told_from_the_output() {
        let output = |status, text: &str| Some(Dom0Output { status, text: text.to_owned() });
        assert_eq!(parse_output("a\nb\n\nlab-status:0\n"), output(0, "a\nb\n"));
        assert_eq!(parse_output("\nlab-status:127\n"), output(127, ""));
        assert_eq!(parse_output("lost in the mid"), None, "an output cut short is no success");
    }
}
