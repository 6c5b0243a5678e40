//! The emulated machine: QEMU as a child that never outlives the lab.

use std::fs::{self, File};
use std::io::{ErrorKind, Read, Write};
use std::net::{Ipv4Addr, TcpListener};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::Duration;

use crate::board::{Board, Stream};
use crate::cache::Cache;
use crate::config::Processor;
use crate::error::LabError;

/// QEMU's words for a port that another program took in the meantime.
const PORT_TAKEN: &str = "Could not set up host forwarding rule";
/// The interval at which the keeper looks whether QEMU has ended.
const KEEPER_PERIOD: Duration = Duration::from_millis(50);

pub(crate) struct Hardware {
    pub(crate) processors: u32,
    /// The version of the interrupt controller on aarch64.
    pub(crate) gic: u32,
    pub(crate) memory_mb: u64,
    pub(crate) dom0_memory_mb: u64,
    /// Whether Xen clears free memory at boot.
    pub(crate) scrub_memory: bool,
    /// Ports to forward: (address in the emulated network, port there).
    pub(crate) forwards: Vec<(String, u16)>,
}

/// A running QEMU. Dropping it kills it.
pub(crate) struct Machine {
    stop: Option<Sender<()>>,
    keeper: Option<JoinHandle<()>>,
    ports: Vec<u16>,
    messages: PathBuf,
}

impl Machine {
    /// No machine: nothing runs, no port leads anywhere.
    pub(crate) fn none() -> Self {
        Self { stop: None, keeper: None, ports: Vec::new(), messages: PathBuf::new() }
    }

    /// Starts QEMU in `folder`, which holds `initrd`. The serial line goes to the board and to a
    /// file.
    pub(crate) fn start(
        cache: &Cache,
        hardware: &Hardware,
        folder: &Path,
        board: &Arc<Board>,
    ) -> Result<Self, LabError> {
        let ports = free_ports(hardware.forwards.len())?;
        let messages = folder.join("qemu.log");
        let mut command = command(cache, hardware, &ports);
        let errors =
            File::create(&messages).map_err(|e| LabError::setup("creating qemu.log", e))?;
        let serial = File::create(folder.join("serial.log"))
            .map_err(|e| LabError::setup("creating serial.log", e))?;
        command
            .current_dir(folder)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(errors)
            .process_group(0);

        let (stop, stopped) = channel();
        let (started, start) = channel();
        let board = Arc::clone(board);
        // The kernel kills QEMU when the thread that started it ends, so it must not be a case's.
        let keeper = std::thread::spawn(move || match command.spawn() {
            Ok(child) => {
                let _ = started.send(Ok(()));
                keep(child, serial, &board, &stopped);
            }
            Err(error) => {
                let _ = started.send(Err(error));
            }
        });
        match start.recv() {
            Ok(Ok(())) => Ok(Self { stop: Some(stop), keeper: Some(keeper), ports, messages }),
            Ok(Err(error)) => Err(LabError::setup("starting QEMU", error)),
            Err(_) => Err(LabError::setup("starting QEMU", "its keeper ended")),
        }
    }

    /// The host's port for the forward with this index.
    pub(crate) fn port(&self, index: usize) -> Option<u16> {
        self.ports.get(index).copied()
    }

    pub(crate) fn messages(&self) -> String {
        fs::read_to_string(&self.messages).unwrap_or_default()
    }

    /// QEMU ended because a forwarded port was taken: worth another try.
    pub(crate) fn lost_a_port(&self) -> bool {
        self.messages().contains(PORT_TAKEN)
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(keeper) = self.keeper.take() {
            let _ = keeper.join();
        }
    }
}

fn keep(mut child: Child, mut serial: File, board: &Arc<Board>, stopped: &Receiver<()>) {
    let reader = child.stdout.take().map(|mut line| {
        let board = Arc::clone(board);
        std::thread::spawn(move || {
            let mut domains = DomainLines::default();
            let mut chunk = [0; 4096];
            while let Ok(n) = line.read(&mut chunk) {
                if n == 0 {
                    break;
                }
                // The board has the text; the file is for a person looking later.
                let _ = serial.write_all(&chunk[..n]);
                board.append(Stream::Serial, &chunk[..n]);
                domains.feed(&chunk[..n], |domain, text| {
                    board.append(Stream::Early(domain), text.as_bytes());
                });
            }
            board.close(Stream::Serial);
        })
    });
    let status = loop {
        if stopped.recv_timeout(KEEPER_PERIOD) != Err(RecvTimeoutError::Timeout) {
            let _ = child.kill();
            break child.wait();
        }
        match child.try_wait() {
            Ok(None) => {}
            Ok(Some(status)) => break Ok(status),
            Err(error) => break Err(error),
        }
    };
    if let Some(reader) = reader {
        let _ = reader.join();
    }
    board.machine_ended(status.map_or_else(|e| e.to_string(), |status| status.to_string()));
}

fn command(cache: &Cache, hardware: &Hardware, ports: &[u16]) -> Command {
    let root = cache.root();
    let mut command = with_parent_death_signal(&cache.qemu());
    command.env("QEMU_MODULE_DIR", root.join("usr/lib/x86_64-linux-gnu/qemu"));
    for folder in ["usr/share/qemu", "usr/share/seabios", "usr/lib/ipxe/qemu"] {
        command.arg("-L").arg(root.join(folder));
    }
    let dom0 = hardware.dom0_memory_mb;
    let scrub = u8::from(hardware.scrub_memory);
    let xen = format!(
        "dom0_mem={dom0}M,max:{dom0}M dom0_max_vcpus=1 dom0_vcpus_pin bootscrub={scrub} \
         loglvl=warning guest_loglvl=all"
    );
    let linux = "console=hvc0 quiet loglevel=3 net.ifnames=0 mitigations=off nokaslr";
    let mut network = "user,id=network,dhcpstart=10.0.2.50".to_owned();
    for ((address, guest_port), host_port) in hardware.forwards.iter().zip(ports) {
        network += &format!(",hostfwd=tcp:127.0.0.1:{host_port}-{address}:{guest_port}");
    }
    let smp = hardware.processors.to_string();
    let memory = hardware.memory_mb.to_string();
    let (machine, processor) = match cache.processor() {
        Processor::X86_64 => ("q35".to_owned(), "qemu64,+svm,+npt,+rdrand"),
        Processor::Aarch64 => {
            let machine = format!("virt,virtualization=on,gic-version={}", hardware.gic);
            (machine, "max,sve=off,lpa2=off,pauth=off")
        }
    };
    command
        .args(["-machine", &machine, "-accel", "tcg,thread=multi"])
        .args(["-cpu", processor])
        .args(["-smp", &smp, "-m", &memory, "-nodefaults", "-no-user-config", "-no-reboot"])
        .args(["-display", "none"])
        .args(["-chardev", "stdio,id=serial,signal=off", "-serial", "chardev:serial"])
        .args(["-netdev", &network])
        .arg("-kernel")
        .arg(cache.xen());
    let kernel = cache.dom0_kernel();
    match cache.processor() {
        Processor::X86_64 => command
            .args(["-vga", "none", "-append"])
            .arg(format!("console=com1 com1=115200,8n1 {xen}"))
            .arg("-initrd")
            .arg(format!("{} {linux} tsc=reliable,initrd", kernel.display()))
            .args(["-device", "e1000,netdev=network,romfile="]),
        Processor::Aarch64 => command
            .arg("-append")
            .arg(format!("console=dtuart dtuart=/pl011@9000000 {xen}"))
            .arg("-device")
            .arg(format!(
                "guest-loader,addr={AARCH64_KERNEL:#x},kernel={},bootargs={linux}",
                kernel.display()
            ))
            .arg("-device")
            .arg(format!("guest-loader,addr={AARCH64_INITRD:#x},initrd=initrd"))
            .args(["-device", "virtio-net-device,netdev=network"]),
    };
    command
}

/// The addresses at which QEMU places dom0's kernel and its initramfs; its memory begins at 1 GiB.
/// Xen needs the memory below.
const AARCH64_KERNEL: u64 = 0x5000_0000;
const AARCH64_INITRD: u64 = 0x5400_0000;
/// The memory of an aarch64 machine below its initramfs, in MiB.
pub(super) const BELOW_AARCH64_INITRD_MB: u64 = (AARCH64_INITRD - 0x4000_0000) >> 20;

/// Wraps the command so that the kernel kills it when this process dies without cleaning up.
fn with_parent_death_signal(inner: &Command) -> Command {
    let setpriv = Path::new("/usr/bin/setpriv");
    let mut command = if setpriv.exists() {
        let mut command = Command::new(setpriv);
        command.args(["--pdeathsig", "KILL"]).arg(inner.get_program());
        command
    } else {
        Command::new(inner.get_program())
    };
    command.args(inner.get_args());
    command
}

/// Ports free at this moment; QEMU takes them a few milliseconds later. None of them is among those
/// that Linux gives to whoever connects meanwhile, which begin at 32,768.
fn free_ports(count: usize) -> Result<Vec<u16>, LabError> {
    const TRIES: usize = 1_000;
    let step = |e| LabError::setup("finding a free port", e);
    let free = |_| {
        let mut tries = (0..TRIES)
            .map(|_| TcpListener::bind((Ipv4Addr::LOCALHOST, fastrand::u16(10_000..32_768))));
        tries
            .find(|bound| !matches!(bound, Err(e) if e.kind() == ErrorKind::AddrInUse))
            .unwrap_or_else(|| Err(ErrorKind::AddrInUse.into()))
    };
    let listeners: Vec<TcpListener> =
        (0..count).map(free).collect::<Result<_, _>>().map_err(step)?;
    listeners
        .iter()
        .map(|l| l.local_addr().map(|a| a.port()))
        .collect::<Result<_, _>>()
        .map_err(step)
}

/// Finds the lines that Xen prints for a domain, `(d1) text`, in the serial line's chunks.
#[derive(Default)]
struct DomainLines {
    rest: String,
}

impl DomainLines {
    fn feed(&mut self, bytes: &[u8], mut line: impl FnMut(u16, &str)) {
        self.rest += &String::from_utf8_lossy(bytes);
        while let Some(end) = self.rest.find('\n') {
            let whole: String = self.rest.drain(..=end).collect();
            if let Some((domain, text)) = parse_domain_line(&whole) {
                line(domain, text);
            }
        }
    }
}

fn parse_domain_line(line: &str) -> Option<(u16, &str)> {
    let (domain, text) = line.strip_prefix("(d")?.split_once(") ")?;
    Some((domain.parse().ok()?, text))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn a_domain_line_split_over_chunks_is_found_once() {
        let mut found = Vec::new();
        let mut lines = DomainLines::default();
        for chunk in ["(XEN) x\r\n(d", "12) hel", "lo\r\n(d1) a\n(dx) no\n"] {
            lines.feed(chunk.as_bytes(), |domain, text| {
                found.push((domain, text.to_owned()));
            });
        }
        assert_eq!(found, [(12, "hello\r\n".to_owned()), (1, "a\n".to_owned())]);
    }

    #[test]
    fn free_ports_differ() {
        let mut ports = free_ports(8).unwrap();
        ports.sort_unstable();
        ports.dedup();
        assert_eq!(ports.len(), 8);
    }
}
