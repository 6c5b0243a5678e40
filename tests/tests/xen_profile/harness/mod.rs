//! What the cases run on: a lab they share, the client's program, a line that breaks, and waiting.

mod guest;
mod shared_lab;

// The client's program, lines and waiting are those of the hosted cases; not all of them are used here.
#[allow(dead_code, reason = "shared with the hosted cases")]
#[path = "../../hosted/harness/client.rs"]
mod client;
#[allow(dead_code, reason = "shared with the hosted cases")]
#[path = "../../hosted/harness/proxy.rs"]
mod proxy;
#[allow(dead_code, reason = "shared with the hosted cases")]
#[path = "../../hosted/harness/time.rs"]
pub(crate) mod time;
#[path = "../../hosted/harness/wait.rs"]
mod wait;

pub(crate) use client::Client;
pub(crate) use guest::Guest;
pub(crate) use proxy::{Proxy, Then, Way};
pub(crate) use shared_lab::{Boot, on, without_lab};
pub(crate) use time::counters_add_up;
pub(crate) use wait::{SOON, wait_until};
