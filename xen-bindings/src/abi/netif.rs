//! Messages of the network ring (`io/netif.h`).

use super::{layout, ring};

/// Flags of a transmit request (`NETTXF_*`).
pub mod tx {
    /// The TCP or UDP checksum field holds the sum of the pseudo header only.
    pub const CSUM_BLANK: u16 = 1 << 0;
    /// The data needs no checksum verification.
    pub const DATA_VALIDATED: u16 = 1 << 1;
    /// The packet goes on in the next request.
    pub const MORE_DATA: u16 = 1 << 2;
    /// Extra information follows.
    pub const EXTRA_INFO: u16 = 1 << 3;
}

/// Flags of a receive response (`NETRXF_*`).
pub mod rx {
    /// The data needs no checksum verification.
    pub const DATA_VALIDATED: u16 = 1 << 0;
    /// The TCP or UDP checksum field holds the sum of the pseudo header only.
    pub const CSUM_BLANK: u16 = 1 << 1;
    /// The packet goes on in the next response.
    pub const MORE_DATA: u16 = 1 << 2;
    /// Extra information follows.
    pub const EXTRA_INFO: u16 = 1 << 3;
}

/// `XEN_NETIF_EXTRA_FLAG_MORE`: another extra information follows.
pub const EXTRA_FLAG_MORE: u8 = 1 << 0;

/// `NETIF_RSP_OKAY`.
pub const RSP_OKAY: i16 = 0;
/// `NETIF_RSP_ERROR`.
pub const RSP_ERROR: i16 = -1;
/// `NETIF_RSP_DROPPED`.
pub const RSP_DROPPED: i16 = -2;
/// `NETIF_RSP_NULL`: no answer, the slot belonged to extra information.
pub const RSP_NULL: i16 = 1;

/// `struct netif_tx_request`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TxRequest {
    /// Grant of the page.
    pub grant: u32,
    /// Offset of the frame in the page.
    pub offset: u16,
    /// [`tx`].
    pub flags: u16,
    /// Echoed in the response.
    pub id: u16,
    /// Length of the packet, bytes.
    pub size: u16,
}
layout!(TxRequest, size 12, grant @ 0, offset @ 4, flags @ 6, id @ 8, size @ 10);

/// `struct netif_tx_response`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TxResponse {
    /// The id of the request.
    pub id: u16,
    /// `RSP_*`.
    pub status: i16,
}
layout!(TxResponse, size 4, id @ 0, status @ 2);

/// `struct netif_rx_request`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RxRequest {
    /// Echoed in the response.
    pub id: u16,
    /// Zero.
    pub pad: u16,
    /// Grant of the page to fill.
    pub grant: u32,
}
layout!(RxRequest, size 8, id @ 0, grant @ 4);

/// `struct netif_rx_response`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RxResponse {
    /// The id of the request.
    pub id: u16,
    /// Offset of the packet in the page.
    pub offset: u16,
    /// [`rx`].
    pub flags: u16,
    /// Bytes received, or a negative `RSP_*`.
    pub status: i16,
}
layout!(RxResponse, size 8, id @ 0, offset @ 2, flags @ 4, status @ 6);

/// `struct netif_extra_info`, which overlays a response.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ExtraInfo {
    /// `XEN_NETIF_EXTRA_TYPE_*`.
    pub kind: u8,
    /// [`EXTRA_FLAG_MORE`].
    pub flags: u8,
    /// Depends on the type.
    pub data: [u16; 3],
}
layout!(ExtraInfo, size 8, kind @ 0, flags @ 1, data @ 2);

/// Bytes of a slot of the transmit ring.
pub const TX_ENTRY_SIZE: usize = 12;
/// Bytes of a slot of the receive ring.
pub const RX_ENTRY_SIZE: usize = 8;
/// Slots of the transmit ring.
pub const TX_RING_ENTRIES: u32 = ring::entries(TX_ENTRY_SIZE);
/// Slots of the receive ring.
pub const RX_RING_ENTRIES: u32 = ring::entries(RX_ENTRY_SIZE);
const _: () = assert!(TX_RING_ENTRIES == 256 && RX_RING_ENTRIES == 256);
