//! `configure`: writes settings of the drop-in into a linked image.

use std::fmt::Write as _;
use std::fs;
use std::io::Write as _;
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};

use clap::Args;
use memchr::memmem;
use unikprof_proto::image_settings::{CAPACITY, MAGIC, text, value};
use zeroize::Zeroizing;

use super::failure::Failure;
use super::outputs::no_input_is_replaced;
use super::print;
use unikprof_link::key::Key;
use unikprof_profile::output::{AtomicFile, OutputError};
use unikprof_profile::printable::Printable;

/// The arguments of `configure`.
#[derive(Debug, Args)]
#[command(after_help = HELP, arg_required_else_help = true)]
pub(super) struct ConfigureArguments {
    /// The guest's linked image, with libunikprof-dropin.a in it
    #[arg(value_name = "IMAGE")]
    image: PathBuf,
    /// A key of clients that may do everything but trace functions; can be given twice
    #[arg(long, visible_alias = "key", value_name = "FILE")]
    control: Vec<PathBuf>,
    /// A key of clients that may only read; can be given twice
    #[arg(long, value_name = "FILE")]
    view: Vec<PathBuf>,
    /// A key of clients that may also trace functions, for an archive built with --trace; can be
    /// given twice
    #[arg(long, value_name = "FILE")]
    trace: Vec<PathBuf>,
    /// Let everybody in who reaches the port, without a key
    #[arg(long, conflicts_with_all = ["control", "view", "trace"])]
    open: bool,
    /// With --open, let everybody trace functions, too
    #[arg(long, requires = "open")]
    tracing: bool,
    /// Get an address from the network
    #[arg(long, conflicts_with_all = ["address", "gateway"])]
    dhcp: bool,
    /// The address of the profiler's network device, with the length of its prefix
    #[arg(long, value_name = "ADDR/LENGTH", value_parser = address)]
    address: Option<String>,
    /// The router
    #[arg(long, value_name = "ADDR", requires = "address", value_parser = unicast)]
    gateway: Option<Ipv4Addr>,
    /// The TCP port [default: 7777]
    #[arg(long, value_parser = clap::value_parser!(u16).range(1..))]
    port: Option<u16>,
    /// The number of the profiler's network device [default: the last of several]
    #[arg(long, value_name = "NUMBER")]
    vif: Option<u32>,
    /// Begin a recording of this name at boot
    #[arg(long, value_name = "NAME", value_parser = name)]
    record: Option<String>,
    /// The share of a CPU that network work may use, in thousandths [default: 100]
    #[arg(long, value_name = "PERMILLE", value_parser = clap::value_parser!(u16).range(1..=1000))]
    cpu_share: Option<u16>,
    /// Write to this file instead of IMAGE
    #[arg(short = 'o', long = "output", value_name = "FILE")]
    output: Option<PathBuf>,
}

const HELP: &str = "\
For tenants who cannot write to xenstore. The settings replace those in the
image; without any, those in the image are shown. A setting that is also in
xenstore is taken from there.

Examples:
  unikprof-client configure guest.elf --key guest.key --dhcp
  unikprof-client configure guest.elf --key guest.key --address 10.0.0.5/24 --record flight
  unikprof-client configure guest.elf";

fn address(text: &str) -> Result<String, String> {
    let expected =
        "expected a unicast IPv4 address and the length of its prefix, such as 10.0.0.5/24";
    let parts = text.split_once('/').and_then(|(address, length)| {
        let length: u8 = length.parse().ok()?;
        let address = unicast(address).ok()?;
        (length <= 32).then_some(format!("{address}/{length}"))
    });
    parts.ok_or_else(|| expected.into())
}

/// An address that one network device can have; the agent takes no others.
fn unicast(text: &str) -> Result<Ipv4Addr, String> {
    let address = text.parse().ok().filter(|address: &Ipv4Addr| {
        !(address.is_unspecified() || address.is_multicast() || address.is_broadcast())
    });
    address.ok_or_else(|| "expected a unicast IPv4 address, such as 10.0.0.1".into())
}

/// The agent's limits for it, and that it is a line.
fn name(text: &str) -> Result<String, String> {
    let is_name = (1..=64).contains(&text.len()) && text.trim() == text;
    if is_name && !text.contains(char::is_control) {
        return Ok(text.into());
    }
    Err("expected 1 to 64 bytes without control characters or spaces around".into())
}

pub(super) fn run(arguments: &ConfigureArguments) -> Result<(), Failure> {
    let path = &arguments.image;
    let mut bytes = fs::read(path).map_err(|source| Failure::Image {
        path: path.clone(),
        problem: format!("cannot read it: {source}"),
    })?;
    let block = find(path, &bytes)?;
    let settings = settings(arguments)?;
    if settings.is_empty() {
        return match (text(&bytes[block.clone()]), &arguments.output) {
            (_, Some(_)) => Err(Failure::Usage("name a setting to write".into())),
            (Ok(text), None) => print(shown(text)),
            (Err(_), None) => Err(Failure::Image {
                path: path.clone(),
                problem: "the settings in it are damaged: write them anew".into(),
            }),
        };
    }
    if settings.len() > CAPACITY {
        return Err(Failure::Usage(format!(
            "the settings have {} bytes, and there is room for {CAPACITY}: use shorter ones",
            settings.len()
        )));
    }
    bytes[block.clone()].fill(0);
    bytes[block][..settings.len()].copy_from_slice(settings.as_bytes());
    let output = arguments.output.as_ref().unwrap_or(path);
    let keys = arguments.control.iter().chain(&arguments.view).chain(&arguments.trace);
    no_input_is_replaced(keys, [output.as_path()])?;
    write(output, path, &bytes)?;
    print(format!("wrote        {}\n{}", output.display(), shown(&settings)))
}

/// Where the place for the settings is.
fn find(path: &Path, bytes: &[u8]) -> Result<std::ops::Range<usize>, Failure> {
    let places: Vec<usize> = memmem::find_iter(bytes, &MAGIC)
        .map(|at| at + MAGIC.len())
        .filter(|at| at + CAPACITY <= bytes.len())
        .collect();
    let problem = match places[..] {
        [at] => return Ok(at..at + CAPACITY),
        [] => {
            "it has no place for settings: expected the linked, uncompressed image of a guest with \
             libunikprof-dropin.a"
                .into()
        }
        _ => format!("it has {} places for settings, and one was expected", places.len()),
    };
    Err(Failure::Image { path: path.into(), problem })
}

/// The text that the arguments ask for.
fn settings(arguments: &ConfigureArguments) -> Result<Zeroizing<String>, Failure> {
    // All the room at once: growing would leave keys behind.
    let mut settings = Zeroizing::new(String::with_capacity(4 * CAPACITY));
    let mut set = |name: &str, value: &str| {
        let _ = writeln!(settings, "{name}={value}");
    };
    for (role, files) in
        [("control", &arguments.control), ("view", &arguments.view), ("trace", &arguments.trace)]
    {
        if files.len() > 2 {
            return Err(Failure::Usage(format!(
                "at most two keys for `{role}`, for the time in which one replaces the other"
            )));
        }
        for (number, file) in files.iter().enumerate() {
            let name = if number == 0 { role.into() } else { format!("{role}-2") };
            set(&name, &Key::read(file)?.to_text());
        }
    }
    if arguments.open {
        set("access", "open");
    }
    if arguments.tracing {
        set("tracing", "yes");
    }
    if arguments.dhcp {
        set("address", "dhcp");
    }
    let others = [
        ("address", arguments.address.clone()),
        ("gateway", arguments.gateway.map(|it| it.to_string())),
        ("port", arguments.port.map(|it| it.to_string())),
        ("vif", arguments.vif.map(|it| it.to_string())),
        ("record", arguments.record.clone()),
        ("cpu-share", arguments.cpu_share.map(|it| it.to_string())),
    ];
    for (name, value) in others {
        if let Some(value) = value {
            set(name, &value);
        }
    }
    Ok(settings)
}

/// The settings for people: keys by their ids.
fn shown(settings: &str) -> String {
    let mut out = String::new();
    for (name, text) in settings.lines().filter_map(|line| line.split_once('=')) {
        let key = Key::parse(text.as_bytes());
        let text = match key {
            Ok(key) => format!("key {}", key.id()),
            Err(_) if ["view", "control", "trace"].contains(&name.trim_end_matches("-2")) => {
                "no valid key".into()
            }
            Err(_) => Printable(text).to_string(),
        };
        let name = Printable(name).to_string();
        let _ = writeln!(out, "{name:<12} {text}");
    }
    if out.is_empty() {
        out = "no settings  those in xenstore count\n".into();
    } else if value(settings, "access") != Some("open") && !settings.contains("unikprof-key-") {
        out.push_str("warning: no key: nobody can connect unless xenstore has one\n");
    }
    out
}

/// Writes the image with the permissions of the one that it is made of; until then nobody else can
/// read the keys in it.
fn write(output: &Path, image: &Path, bytes: &[u8]) -> Result<(), Failure> {
    let failed = OutputError::at(output);
    let permissions = fs::metadata(image).map_err(&failed)?.permissions();
    AtomicFile::create_private(output)?.write_whole(|file| file.write_all(bytes))?;
    if fs::metadata(output).is_ok_and(|written| written.is_file()) {
        fs::set_permissions(output, permissions).map_err(failed)?;
    }
    Ok(())
}
