//! A TCP service that sends each client the vCPUs' statistics, a line `NAME VALUE` for each count,
//! and closes.

use alloc::vec;
use core::fmt::{self, Write};

use smoltcp::iface::{SocketHandle, SocketSet};
use smoltcp::socket::tcp::{Socket, SocketBuffer};
use xen_sys_lite::net::Statistics as DeviceStatistics;
use xen_sys_lite::vcpu::VcpuId;

#[cfg(feature = "trace")]
use crate::arch::probed;
use crate::vcpus::{self, FIRST};
use crate::{statistics, timer};

const CONNECTIONS: usize = 2;
/// Room for the whole text: about a kilobyte per vCPU.
const BUFFER_SIZE: usize = 16 * 1024;

/// The service on one port.
#[derive(Debug)]
pub(crate) struct StatisticsService {
    port: u16,
    sockets: [SocketHandle; CONNECTIONS],
}

impl StatisticsService {
    pub(crate) fn new(port: u16, sockets: &mut SocketSet<'static>) -> Self {
        let buffer = |size| SocketBuffer::new(vec![0; size]);
        let add = |_| sockets.add(Socket::new(buffer(64), buffer(BUFFER_SIZE)));
        Self { port, sockets: core::array::from_fn(add) }
    }

    /// Sends the statistics to each connected client, and listens again.
    pub(crate) fn poll(
        &self,
        sockets: &mut SocketSet<'static>,
        device: DeviceStatistics,
        rescues: u64,
    ) {
        for &handle in &self.sockets {
            let socket = sockets.get_mut::<Socket<'_>>(handle);
            if !socket.is_open() {
                // Fails only for port 0, which the command line does not give.
                let _ = socket.listen(self.port);
            }
            if socket.may_send() {
                // Fails only if the text is too long; then its end is missing.
                let _ = write(&mut Sending(socket), device, rescues);
                socket.close();
            }
        }
    }
}

fn write(to: &mut impl Write, device: DeviceStatistics, rescues: u64) -> fmt::Result {
    writeln!(to, "now_ns {}", timer::now_ns(FIRST))?;
    writeln!(to, "vcpus {}", vcpus::running())?;
    writeln!(to, "rescues {rescues}")?;
    #[cfg(feature = "trace")]
    writeln!(to, "text.changed {}", probed::changed_bytes())?;
    writeln!(to, "network.sent {}", device.sent)?;
    writeln!(to, "network.received {}", device.received)?;
    writeln!(to, "network.blank {}", device.blank)?;
    for vcpu in (0..vcpus::running()).map(VcpuId) {
        if let Some(area) = vcpus::runstate(vcpu) {
            let state = area.read();
            let running_ns = state.running_at(timer::system_ns(FIRST));
            writeln!(to, "vcpu{}.running_ns {running_ns}", vcpu.0)?;
            writeln!(to, "vcpu{}.stolen_ns {}", vcpu.0, state.stolen_ns)?;
            writeln!(to, "vcpu{}.blocked_ns {}", vcpu.0, state.blocked_ns)?;
        }
        statistics::of(vcpu).write(vcpu, to)?;
    }
    Ok(())
}

struct Sending<'a, 's>(&'a mut Socket<'s>);

impl Write for Sending<'_, '_> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        match self.0.send_slice(text.as_bytes()) {
            Ok(sent) if sent == text.len() => Ok(()),
            _ => Err(fmt::Error),
        }
    }
}
