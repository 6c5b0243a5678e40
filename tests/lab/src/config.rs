//! The configuration of a lab.

use std::net::SocketAddrV4;
use std::path::PathBuf;
use std::time::Duration;

use crate::error::LabError;

/// The processor of an emulated machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, clap::ValueEnum)]
pub enum Processor {
    /// 64-bit x86; its guests are PVH or PV.
    #[default]
    #[value(name = "x86_64")]
    X86_64,
    /// 64-bit Arm.
    Aarch64,
}

/// A machine with Xen, a dom0 and its guests.
#[derive(Debug, Clone)]
pub struct LabConfig {
    /// Its processor.
    pub processor: Processor,
    /// The version of its interrupt controller (GIC) on aarch64: 2 or 3.
    pub gic: u32,
    /// The guests, created in this order. Guest `n` has the address 10.0.2.(50+n).
    pub guests: Vec<GuestConfig>,
    /// Processors of the emulated machine; dom0 is pinned to the first, the guests share the
    /// others. `None`: one for dom0 and as many as the largest guest has vCPUs.
    pub processors: Option<u32>,
    /// More memory for dom0 in MiB, such as for the images that `xl save` writes to its RAM disk.
    pub extra_dom0_memory_mb: u64,
    /// Files of the host to lay into dom0: (absolute path in dom0, path on the host).
    pub dom0_files: Vec<(String, PathBuf)>,
    /// Xen clears the machine's free memory at boot, as it does on most hosts. Otherwise a guest
    /// may find what an earlier one or the firmware left where it expects zeroes.
    pub scrub_memory: bool,
    /// The maximum time from QEMU's start until every guest is created.
    pub boot_deadline: Duration,
}

impl Default for LabConfig {
    fn default() -> Self {
        Self {
            processor: Processor::X86_64,
            gic: 3,
            guests: Vec::new(),
            processors: None,
            extra_dom0_memory_mb: 0,
            dom0_files: Vec::new(),
            scrub_memory: false,
            boot_deadline: Duration::from_secs(600),
        }
    }
}

impl LabConfig {
    pub fn with_guest(guest: GuestConfig) -> Self {
        Self { guests: vec![guest], ..Self::default() }
    }

    pub(crate) fn processors(&self) -> u32 {
        let largest = self.guests.iter().map(|guest| guest.vcpus).max().unwrap_or(1);
        self.processors.unwrap_or(1 + largest).max(2)
    }

    pub(crate) fn check(&self) -> Result<(), LabError> {
        let error = |text: String| Err(LabError::Config(text));
        if self.guests.len() > 64 {
            return error(format!("{} guests; at most 64 have an address", self.guests.len()));
        }
        for (i, guest) in self.guests.iter().enumerate() {
            if guest.name.is_empty()
                || !guest.name.chars().all(|c| c.is_ascii_alphanumeric() || c == '-')
            {
                return error(format!(
                    "guest name {:?}: letters, digits and dashes only",
                    guest.name
                ));
            }
            if self.guests[..i].iter().any(|other| other.name == guest.name) {
                return error(format!("two guests are called {}", guest.name));
            }
            if guest.command_line.contains(['"', '\\', '\n']) {
                return error(format!("guest {}: quotes in the command line", guest.name));
            }
            let processors = self.processors();
            if guest.processor.is_some_and(|number| number >= processors) {
                return error(format!(
                    "guest {}: a processor from 0 to {} expected",
                    guest.name,
                    processors - 1
                ));
            }
            if guest.interfaces.iter().any(|own| own.contains(['\'', '"', '\n'])) {
                return error(format!("guest {}: quotes in an interface", guest.name));
            }
            // They become words of dom0's shell.
            let mut store = guest.store.iter().flat_map(|(node, value)| [node, value]);
            if store.any(|text| text.contains(['"', '\\', '$', '`', '\n'])) {
                return error(format!("guest {}: a quote in xenstore's nodes", guest.name));
            }
            if guest.vcpus == 0 {
                return error(format!("guest {} has no vCPU", guest.name));
            }
        }
        Ok(())
    }
}

/// One guest of a lab.
#[derive(Debug, Clone)]
pub struct GuestConfig {
    /// The domain's name; also how the lab's methods name it.
    pub name: String,
    /// The kernel: an ELF file with a PVH (or PV) note, or a bzImage. On aarch64 a flat image, or
    /// an ELF file that begins with the header of one; xl gets that.
    pub kernel: PathBuf,
    /// `pvh` or `pv`, as in `xl.cfg`.
    pub domain_type: String,
    pub memory_mb: u64,
    pub vcpus: u32,
    /// The emulated processor that all of its vCPUs run on, to share it with other guests; 0 is
    /// dom0's. `None`: any but dom0's.
    pub processor: Option<u32>,
    /// The kernel's command line. The lab adds `ip=ADDRESS/24 gateway=ADDRESS` unless an `ip=` is
    /// there.
    pub command_line: String,
    /// More lines for the `xl` configuration; a later line wins over the lab's own.
    pub extra_xl_lines: Vec<String>,
    /// Its network interfaces, in the words of `xl`; the lab adds its bridge. None: one with the
    /// guest's address.
    pub interfaces: Vec<String>,
    /// Nodes of xenstore, below the domain's own path, that are there before the guest runs, with
    /// their values.
    pub store: Vec<(String, String)>,
    /// TCP ports of the guest to forward to free ports of the host's loopback; see
    /// `Lab::forwarded`.
    pub ports: Vec<u16>,
    /// TCP ports of other addresses of the guest to forward likewise; see `Lab::forwarded_from`.
    pub other_ports: Vec<SocketAddrV4>,
}

impl GuestConfig {
    /// A PVH guest with 64 MiB, one vCPU and no forwarded port.
    pub fn new(name: &str, kernel: impl Into<PathBuf>) -> Self {
        Self {
            name: name.to_owned(),
            kernel: kernel.into(),
            domain_type: "pvh".to_owned(),
            memory_mb: 64,
            vcpus: 1,
            processor: None,
            command_line: String::new(),
            extra_xl_lines: Vec::new(),
            interfaces: Vec::new(),
            store: Vec::new(),
            ports: Vec::new(),
            other_ports: Vec::new(),
        }
    }

    /// The command that creates the guest, in dom0's shell; it ends when the guest does.
    pub(crate) fn create_command(&self) -> String {
        let words = format!("/guest/{}/xl.cfg", self.name);
        self.start_command("create", &words, &self.store)
    }

    /// The same by a subcommand of xl, with `store` written before the guest runs.
    pub(crate) fn start_command(
        &self,
        subcommand: &str,
        file: &str,
        store: &[(String, String)],
    ) -> String {
        let name = &self.name;
        if store.is_empty() {
            return format!("xl {subcommand} -F {file}");
        }
        // Its interface is the last thing that xl makes of a guest that stays paused.
        let mut script = format!(
            "( until id=$(xl domid {name} 2>/dev/null) && \
             [ \"$(xenstore-read /local/domain/0/backend/vif/$id/0/hotplug-status 2>/dev/null)\" = \
             connected ]; \
             do usleep 200000; done; sleep 1; "
        );
        for (node, value) in store {
            script += &format!("xenstore-write \"/local/domain/$id/{node}\" \"{value}\"; ");
        }
        script + &format!("xl unpause {name} ) & xl {subcommand} -F -p {file}")
    }

    pub(crate) fn xl_config(&self, index: usize, processors: u32) -> String {
        let Self { name, domain_type, memory_mb, vcpus, .. } = self;
        let address = guest_address(index);
        let command_line = self.full_command_line(index);
        let usual = [format!("mac=00:16:3e:00:00:{:02x},ip={address}", 0x50 + index)];
        let interfaces = match self.interfaces.as_slice() {
            [] => &usual,
            own => own,
        };
        let interfaces: Vec<String> = interfaces
            .iter()
            .map(|own| format!("'bridge=xenbr0,{own},script=vif-bridge'"))
            .collect();
        let interfaces = interfaces.join(", ");
        let cpus = match self.processor {
            Some(processor) => processor.to_string(),
            None => format!("1-{}", processors - 1),
        };
        let mut text = format!(
            "name=\"{name}\"\ntype=\"{domain_type}\"\nkernel=\"/guest/{name}/kernel\"\n\
             extra=\"{command_line}\"\nmemory={memory_mb}\nvcpus={vcpus}\ncpus=\"{cpus}\"\n\
             vif=[{interfaces}]\n"
        );
        // By default Xen traps every rdtsc, which costs a PVH guest a thousandfold.
        text += "tsc_mode=\"native\"\n";
        // A dead guest stays, so that its console and registers can still be read.
        for event in ["on_poweroff", "on_reboot", "on_crash", "on_watchdog"] {
            text += &format!("{event}=\"preserve\"\n");
        }
        for line in &self.extra_xl_lines {
            text += line;
            text.push('\n');
        }
        text
    }

    fn full_command_line(&self, index: usize) -> String {
        if self.command_line.split_whitespace().any(|word| word.starts_with("ip=")) {
            return self.command_line.clone();
        }
        let address = guest_address(index);
        format!("{} ip={address}/24 gateway={GATEWAY}", self.command_line).trim().to_owned()
    }
}

pub(crate) const GATEWAY: &str = "10.0.2.2";

pub(crate) fn guest_address(index: usize) -> String {
    format!("10.0.2.{}", 50 + index)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_lab_gives_an_address_unless_the_case_does() {
        let mut guest = GuestConfig::new("g", "k");
        assert_eq!(guest.full_command_line(1), "ip=10.0.2.51/24 gateway=10.0.2.2");
        guest.command_line = "work=1 ip=dhcp".to_owned();
        assert_eq!(guest.full_command_line(1), "work=1 ip=dhcp");
    }

    #[test]
    fn extra_lines_come_last_so_they_win() {
        let mut guest = GuestConfig::new("g", "k");
        guest.extra_xl_lines.push("tsc_mode=\"default\"".to_owned());
        let text = guest.xl_config(0, 2);
        assert!(text.ends_with("tsc_mode=\"default\"\n"), "{text}");
        assert!(text.contains("cpus=\"1-1\""), "{text}");
    }

    #[test]
    fn a_guest_has_the_interfaces_that_are_named() {
        let mut guest = GuestConfig::new("g", "k");
        let one = "vif=['bridge=xenbr0,mac=00:16:3e:00:00:51,ip=10.0.2.51,script=vif-bridge']\n";
        assert!(guest.xl_config(1, 2).contains(one));
        guest.interfaces = vec!["ip=10.0.2.60".into(), "mac=00:16:3e:01:02:03".into()];
        let two = "vif=['bridge=xenbr0,ip=10.0.2.60,script=vif-bridge', \
                   'bridge=xenbr0,mac=00:16:3e:01:02:03,script=vif-bridge']\n";
        assert!(guest.xl_config(1, 2).contains(two));
    }

    #[test]
    fn a_guest_runs_where_it_is_put() {
        let mut guest = GuestConfig::new("g", "k");
        assert!(guest.xl_config(0, 4).contains("cpus=\"1-3\""));
        guest.processor = Some(2);
        assert!(guest.xl_config(0, 4).contains("cpus=\"2\""));
    }

    #[test]
    fn what_would_break_the_xl_file_is_refused() {
        let refused = |change: fn(&mut LabConfig)| {
            let mut config = LabConfig::with_guest(GuestConfig::new("g", "k"));
            assert!(config.check().is_ok());
            change(&mut config);
            assert!(matches!(config.check(), Err(LabError::Config(_))));
        };
        refused(|c| c.guests[0].name = "a b".to_owned());
        refused(|c| c.guests[0].command_line = "a\"".to_owned());
        refused(|c| c.guests[0].vcpus = 0);
        refused(|c| c.guests[0].store = vec![("data/a".to_owned(), "$(b)".to_owned())]);
        refused(|c| c.guests[0].interfaces.push("ip=1'".to_owned()));
        refused(|c| c.guests[0].processor = Some(2));
        refused(|c| c.guests.push(c.guests[0].clone()));
    }
}
