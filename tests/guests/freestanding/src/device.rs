//! A network device without traffic.

use unikprof_agent::tcp_server::smoltcp::phy::{
    Device, DeviceCapabilities, Medium, RxToken, TxToken,
};
use unikprof_agent::tcp_server::smoltcp::time::Instant;

pub(crate) struct Silent;

/// Never constructed: there are no packets.
pub(crate) enum NoPacket {}

impl Device for Silent {
    type RxToken<'a> = NoPacket;
    type TxToken<'a> = NoPacket;

    fn receive(&mut self, _: Instant) -> Option<(NoPacket, NoPacket)> {
        None
    }

    fn transmit(&mut self, _: Instant) -> Option<NoPacket> {
        None
    }

    fn capabilities(&self) -> DeviceCapabilities {
        let mut capabilities = DeviceCapabilities::default();
        capabilities.medium = Medium::Ethernet;
        capabilities.max_transmission_unit = 1514;
        capabilities
    }
}

impl RxToken for NoPacket {
    fn consume<R, F: FnOnce(&[u8]) -> R>(self, _: F) -> R {
        match self {}
    }
}

impl TxToken for NoPacket {
    fn consume<R, F: FnOnce(&mut [u8]) -> R>(self, _: usize, _: F) -> R {
        match self {}
    }
}
