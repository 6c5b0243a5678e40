//! The settings: nodes below `data/unikprof` in the domain's part of xenstore, and lines of a text
//! in the image.
#![allow(unsafe_code, reason = "the image's text is found by address")]

use core::arch::global_asm;
use core::fmt;

use unikprof_agent::tcp_server::smoltcp::wire::{Ipv4Address, Ipv4Cidr};
use unikprof_agent::{Access, Key, Keys, Role};
use unikprof_proto::image_settings::{self, CAPACITY};
use xen_sys_lite::Errno;
use xen_sys_lite::xenstore::{Path, StoreError, Tree};

use crate::machine::address_of;

const FOLDER: &str = "data/unikprof";
const NAMES: [&str; 14] = [
    "vif",
    "address",
    "gateway",
    "port",
    "access",
    "view",
    "view-2",
    "control",
    "control-2",
    "trace",
    "trace-2",
    "tracing",
    "record",
    "cpu-share",
];
/// The longest name of a recording.
const MAX_NAME: usize = 64;

/// The source of the device's address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Address {
    Dhcp,
    Static(Ipv4Cidr),
}

/// The settings, with their defaults: the last of several network devices, DHCP, port 7777, no
/// access without a key.
#[derive(Debug)]
pub(crate) struct Configuration {
    pub(crate) vif: Option<u32>,
    pub(crate) address: Address,
    pub(crate) gateway: Option<Ipv4Address>,
    pub(crate) port: u16,
    /// Whether xenstore says who may connect.
    pub(crate) is_told: bool,
    pub(crate) is_open: bool,
    pub(crate) keys: Keys,
    /// Whether somebody may trace functions, if the archive was built for that.
    pub(crate) may_trace: bool,
    /// The name of a recording that begins at the start.
    pub(crate) record: Option<heapless::String<MAX_NAME>>,
    /// Thousandths of a CPU.
    pub(crate) cpu_share: Option<u32>,
}

/// The settings that say who may connect.
const ACCESS: [&str; 7] = ["access", "view", "view-2", "control", "control-2", "trace", "trace-2"];

/// The origin of a setting.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Source {
    Xenstore,
    Image,
}

/// A setting that cannot be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Invalid {
    source: Source,
    name: &'static str,
    expected: &'static str,
}

impl fmt::Display for Invalid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { name, expected, .. } = self;
        match self.source {
            Source::Xenstore => write!(f, "{FOLDER}/{name}")?,
            Source::Image => write!(f, "the image's setting {name}")?,
        }
        write!(f, " is not usable: expected {expected}")
    }
}

impl Configuration {
    const DEFAULT: Self = Self {
        vif: None,
        address: Address::Dhcp,
        gateway: None,
        port: 7777,
        is_told: false,
        is_open: false,
        keys: Keys::new(),
        may_trace: false,
        record: None,
        cpu_share: None,
    };

    /// Reads the settings: each from xenstore, or if the node is missing from `image`, the text in
    /// the image.
    pub(crate) fn read(store: &mut impl Tree, image: &str) -> Result<Self, Invalid> {
        let mut settings = Self::DEFAULT;
        for name in NAMES {
            let mut buffer = [0; 256];
            match store.read_text(Path::join(FOLDER, name), &mut buffer) {
                Ok(text) => {
                    settings.set(Source::Xenstore, name, text.trim())?;
                    settings.is_told |= ACCESS.contains(&name);
                }
                Err(StoreError::Refused(Errno::ENOENT)) => {
                    if let Some(text) = image_settings::value(image, name) {
                        settings.set(Source::Image, name, text)?;
                    }
                }
                Err(error) => {
                    let expected = match error {
                        StoreError::BufferTooSmall { .. } => "at most 256 bytes",
                        StoreError::BadValue => "text in UTF-8",
                        StoreError::Refused(Errno::EACCES) => "a node that the guest may read",
                        _ => "an answer of xenstore",
                    };
                    return Err(Invalid { source: Source::Xenstore, name, expected });
                }
            }
        }
        Ok(settings)
    }

    /// Whether anybody may connect.
    pub(crate) fn names_anybody(&self) -> bool {
        self.is_open || !self.keys.is_empty()
    }

    pub(crate) fn access(&self) -> Access<'_> {
        if self.is_open { Access::Open } else { Access::Keys(&self.keys) }
    }

    fn set(&mut self, source: Source, name: &'static str, text: &str) -> Result<(), Invalid> {
        let expected = match name {
            "vif" => "the number of a network device, such as 1",
            "address" => "`dhcp`, or an address with its prefix length, such as 10.0.2.50/24",
            "gateway" => "an address, such as 10.0.2.1",
            "port" => "a TCP port, 1 to 65535",
            "access" => "`keys` or `open`",
            "tracing" => "`yes` or `no`",
            "record" => "the name of a recording, at most 64 bytes",
            "cpu-share" => "thousandths of a CPU, 1 to 1000",
            _ => "a key as `unikprof-client keygen` makes it, given once",
        };
        self.try_set(name, text).ok_or(Invalid { source, name, expected })
    }

    fn try_set(&mut self, name: &str, text: &str) -> Option<()> {
        match name {
            "vif" => self.vif = Some(text.parse().ok()?),
            "address" if text == "dhcp" => self.address = Address::Dhcp,
            "address" => self.address = Address::Static(text.parse().ok()?),
            "gateway" => self.gateway = Some(text.parse().ok()?),
            "port" => self.port = text.parse().ok().filter(|&port| port != 0)?,
            "access" if text == "open" => self.is_open = true,
            "access" if text == "keys" => self.is_open = false,
            "record" => self.record = Some(heapless::String::try_from(text).ok()?),
            "cpu-share" => {
                let share = text.parse().ok()?;
                self.cpu_share = Some(share).filter(|share| (1..=1000).contains(share));
                self.cpu_share?;
            }
            "view" | "view-2" => self.keys.add(Role::View, Key::parse(text).ok()?).ok()?,
            "control" | "control-2" => self.keys.add(Role::Control, Key::parse(text).ok()?).ok()?,
            "trace" | "trace-2" => {
                self.keys.add(Role::Trace, Key::parse(text).ok()?).ok()?;
                self.may_trace = true;
            }
            "tracing" if text == "yes" => self.may_trace = true,
            "tracing" if text == "no" => {}
            _ => return None,
        }
        Some(())
    }
}

// The place for the image's settings, as `unikprof_proto::image_settings` has it.
global_asm!(
    ".pushsection .rodata.unikprof_dropin_settings, \"a\", @progbits",
    ".balign 16",
    ".ascii \"\\377unikprof image\\377\"",
    "unikprof_dropin_settings:",
    ".skip {capacity}",
    ".popsection",
    capacity = const CAPACITY,
);

/// The text of the image's settings.
pub(crate) fn in_image() -> Result<&'static str, Invalid> {
    let block = address_of!("unikprof_dropin_settings") as usize;
    let block = core::ptr::with_exposed_provenance::<u8>(block);
    // SAFETY: the bytes above, which are never written.
    let block = unsafe { core::slice::from_raw_parts(block, CAPACITY) };
    image_settings::text(block).map_err(|_| Invalid {
        source: Source::Image,
        name: "text",
        expected: "lines of NAME=VALUE, as `unikprof-client configure` writes them",
    })
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use std::string::ToString as _;

    fn set(name: &'static str, text: &str) -> Result<Configuration, std::string::String> {
        let mut settings = Configuration::DEFAULT;
        settings.set(Source::Xenstore, name, text).map_err(|error| error.to_string())?;
        Ok(settings)
    }

    #[test]
    fn a_setting_of_each_kind_is_taken() {
        let cidr = Ipv4Cidr::new(Ipv4Address::new(10, 0, 2, 50), 24);
        assert_eq!(set("vif", "3").unwrap().vif, Some(3));
        assert_eq!(set("address", "10.0.2.50/24").unwrap().address, Address::Static(cidr));
        assert_eq!(set("address", "dhcp").unwrap().address, Address::Dhcp);
        assert_eq!(set("port", "1").unwrap().port, 1);
        assert!(set("access", "open").unwrap().is_open);
        assert_eq!(set("record", "flight").unwrap().record.as_deref(), Some("flight"));
        assert_eq!(set("cpu-share", "1000").unwrap().cpu_share, Some(1000));
    }

    /// Guards against a guest that nobody can reach, or everybody, because of a typing error.
    #[test]
    fn a_wrong_setting_says_what_was_expected() {
        for (name, text) in [
            ("vif", "-1"),
            ("vif", ""),
            ("address", "10.0.2.50"),
            ("address", "10.0.2.50/33"),
            ("gateway", "here"),
            ("port", "0"),
            ("port", "65536"),
            ("access", "everybody"),
            ("view", "a key"),
            ("cpu-share", "0"),
            ("cpu-share", "1001"),
        ] {
            let error = set(name, text).unwrap_err();
            assert!(
                error.starts_with(&std::format!("data/unikprof/{name} is not usable: expected ")),
                "{error}"
            );
        }
        let long = "x".repeat(65);
        assert!(set("record", &long).is_err());
    }
}
