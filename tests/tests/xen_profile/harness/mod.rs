//! What the cases run on: a lab they share, the client's program, a line that breaks, and waiting.

mod damaging_line;
mod guest;
mod shared_lab;

// The client's program, lines and waiting are those of the hosted cases; not all of them are used here.
#[allow(dead_code, reason = "shared with the hosted cases")]
#[path = "../../hosted/harness/client.rs"]
mod client;
#[allow(dead_code, reason = "shared with the hosted cases")]
#[path = "../../hosted/harness/proxy.rs"]
mod proxy;
#[path = "../../hosted/harness/wait.rs"]
mod wait;

pub(crate) use client::Client;
pub(crate) use damaging_line::damaging_line;
pub(crate) use guest::{Guest, counters_add_up};
pub(crate) use proxy::{Proxy, Then};
pub(crate) use shared_lab::{Boot, on};
pub(crate) use wait::{SOON, wait_until};
