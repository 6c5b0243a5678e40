//! States of a split driver's end (`io/xenbus.h`, `enum xenbus_state`).

/// The device is being set up.
pub const INITIALISING: u32 = 1;
/// Waiting for the peer's details.
pub const INIT_WAIT: u32 = 2;
/// Details are published, waiting for the peer to connect.
pub const INITIALISED: u32 = 3;
/// Connected.
pub const CONNECTED: u32 = 4;
/// Closing, by an error or an unplug.
pub const CLOSING: u32 = 5;
/// Closed.
pub const CLOSED: u32 = 6;
/// Being reconfigured.
pub const RECONFIGURING: u32 = 7;
/// Was reconfigured.
pub const RECONFIGURED: u32 = 8;
