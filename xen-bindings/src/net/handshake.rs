//! Agreeing with the backend through xenstore.
//!
//! The order is that of `io/netif.h` and `io/xenbus.h`: the frontend initialises, the backend
//! waits; the frontend publishes rings and port and is connected; the backend connects. Closing
//! goes the same way back.

use core::fmt::{self, Write};

use super::{NetError, Netfront};
use crate::channel::Channel;
use crate::events::Port;
use crate::hypercall::Hypercall;
use crate::xenbus::{self, XenbusState};
use crate::xenstore::{Path, Store, Tree, WatchId};

/// The time to wait for each step of the backend.
const TIMEOUT_NS: u64 = 10_000_000_000;
/// The watch used while waiting.
const WATCH: WatchId = WatchId::new(63).unwrap();

/// The settings that both ends agreed on.
#[derive(Clone, Copy, Debug)]
pub(super) struct Connection {
    pub(super) port: Port,
    pub(super) mac: [u8; 6],
}

impl<H: Hypercall, const FRAMES: usize, const TX: usize, const RX: usize>
    Netfront<'_, H, FRAMES, TX, RX>
{
    pub(super) fn connect_new<C: Channel>(&mut self, store: &mut Store<C>) -> Result<(), NetError> {
        let frontend = FixedText::<32>::format(format_args!("device/vif/{}", self.vif))?;
        let frontend = frontend.as_str();
        let mut buffer = [0; 128];
        let backend = store.read_text(Path::join(frontend, "backend"), &mut buffer)?;
        let domain = store.read_number(Path::join(frontend, "backend-id"))?;
        let domain = u16::try_from(domain).map_err(|_| NetError::Configuration("backend-id"))?;
        let mac = read_mac(store, frontend)?;

        // A connection of an earlier life of the guest (another boot loader, a crash) is closed
        // first.
        let before = xenbus::state(store, backend)?;
        if matches!(before, XenbusState::Connected | XenbusState::Closing) {
            self.announce_close(store)?;
        }
        xenbus::set_state(store, frontend, XenbusState::Initialising)?;
        self.expect_backend(store, backend, &[XenbusState::InitWait])?;
        if store.read_number_or(Path::join(backend, "feature-rx-copy"), 0)? == 0 {
            return Err(NetError::NoReceiveCopy);
        }

        let tx_ring = self.transmitter.start(self.grants, domain)?;
        let rx_ring = self.receiver.start(self.grants, domain)?;
        let port = self.events.alloc_unbound(domain).map_err(NetError::Hypercall)?;
        self.connection = Some(Connection { port, mac });
        store.in_transaction(|tree| {
            for (node, value) in [
                ("tx-ring-ref", u64::from(tx_ring.0)),
                ("rx-ring-ref", u64::from(rx_ring.0)),
                ("event-channel", u64::from(port.0)),
                ("request-rx-copy", 1),
                ("feature-rx-notify", 1),
                ("feature-sg", 0),
                // Nor for IPv6, without a node of its own.
                ("feature-no-csum-offload", 1),
            ] {
                tree.write_number(Path::join(frontend, node), value)?;
            }
            Ok(())
        })?;
        xenbus::set_state(store, frontend, XenbusState::Connected)?;
        self.expect_backend(store, backend, &[XenbusState::Connected])?;
        // The backend may have connected before it could be notified of the buffers posted.
        self.events.send(port).map_err(NetError::Hypercall)
    }

    /// Announces the close to the backend step by step; the backend confirms each step.
    pub(super) fn announce_close<C: Channel>(
        &mut self,
        store: &mut Store<C>,
    ) -> Result<(), NetError> {
        let frontend = FixedText::<32>::format(format_args!("device/vif/{}", self.vif))?;
        let frontend = frontend.as_str();
        let mut buffer = [0; 128];
        let backend = store.read_text(Path::join(frontend, "backend"), &mut buffer)?;
        let gone = [XenbusState::Closed, XenbusState::Absent];
        xenbus::set_state(store, frontend, XenbusState::Closing)?;
        let closing = [XenbusState::Closing, XenbusState::Closed, XenbusState::Absent];
        // A backend that was never connected may not confirm this step: the next one decides.
        match self.expect_backend(store, backend, &closing) {
            Ok(()) | Err(NetError::Backend { .. }) => {}
            Err(error) => return Err(error),
        }
        xenbus::set_state(store, frontend, XenbusState::Closed)?;
        self.expect_backend(store, backend, &gone)
    }

    fn expect_backend<C: Channel>(
        &self,
        store: &mut Store<C>,
        backend: &str,
        expected: &[XenbusState],
    ) -> Result<(), NetError> {
        let deadline = store.channel().now_ns().saturating_add(TIMEOUT_NS);
        let found =
            xenbus::wait_state(store, backend, WATCH, deadline, |state| expected.contains(&state))?;
        match expected {
            _ if expected.contains(&found) => Ok(()),
            [first, ..] => Err(NetError::Backend { expected: *first, found }),
            [] => Ok(()),
        }
    }
}

fn read_mac<C: Channel>(store: &mut Store<C>, frontend: &str) -> Result<[u8; 6], NetError> {
    let mut buffer = [0; 32];
    let text = store.read_text(Path::join(frontend, "mac"), &mut buffer)?;
    parse_mac(text).ok_or(NetError::Configuration("mac"))
}

fn parse_mac(text: &str) -> Option<[u8; 6]> {
    let mut mac = [0; 6];
    let mut parts = text.split(':');
    for byte in &mut mac {
        let part = parts.next().filter(|part| part.len() == 2)?;
        *byte = u8::from_str_radix(part, 16).ok()?;
    }
    parts.next().is_none().then_some(mac)
}

/// A short text without allocation.
struct FixedText<const N: usize> {
    bytes: [u8; N],
    len: usize,
}

impl<const N: usize> FixedText<N> {
    fn format(arguments: fmt::Arguments<'_>) -> Result<Self, NetError> {
        let mut text = Self { bytes: [0; N], len: 0 };
        text.write_fmt(arguments).map_err(|_| NetError::Configuration("device/vif"))?;
        Ok(text)
    }

    fn as_str(&self) -> &str {
        core::str::from_utf8(&self.bytes[..self.len]).unwrap_or_default()
    }
}

impl<const N: usize> Write for FixedText<N> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        let end = self.len + text.len();
        self.bytes.get_mut(self.len..end).ok_or(fmt::Error)?.copy_from_slice(text.as_bytes());
        self.len = end;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hardware_addresses_are_read_strictly() {
        assert_eq!(parse_mac("00:16:3e:0a:FF:7f"), Some([0, 0x16, 0x3e, 0x0a, 0xff, 0x7f]));
        for wrong in
            ["", "00:16:3e:0a:ff", "00:16:3e:0a:ff:7f:00", "0:16:3e:0a:ff:7f", "zz:16:3e:0a:ff:7f"]
        {
            assert_eq!(parse_mac(wrong), None, "{wrong}");
        }
    }
}
