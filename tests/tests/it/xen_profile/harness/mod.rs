//! What the cases run on: a lab they share, the client's program, a line that breaks, the fleet's
//! programs, and waiting.

mod guest;
mod shared_lab;

// The client's program, lines and waiting are those of the hosted cases; not all of them are used
// here.
#[allow(dead_code, reason = "shared with the hosted cases")]
#[path = "../../hosted/harness/client.rs"]
mod client;
#[path = "../../hosted/harness/collector.rs"]
mod collector;
#[allow(dead_code, reason = "shared with the hosted cases")]
#[path = "../../hosted/harness/guest.rs"]
mod hosted_guest;
#[allow(dead_code, reason = "shared with the hosted cases")]
#[path = "../../hosted/harness/proxy.rs"]
mod proxy;
#[allow(dead_code, reason = "shared with the hosted cases")]
#[path = "../../hosted/harness/server.rs"]
mod server;
#[allow(dead_code, reason = "shared with the hosted cases")]
#[path = "../../hosted/harness/time.rs"]
pub(crate) mod time;
#[path = "../../hosted/harness/wait.rs"]
mod wait;

pub(crate) use client::Client;
pub(crate) use collector::{
    Collector, bad_answers, expect_at, fetched, is_delivered, seconds, ticks,
};
pub(crate) use guest::Guest;
pub(crate) use hosted_guest::Guest as HostedGuest;
pub(crate) use proxy::{Proxy, Then};
pub(crate) use server::Fleet;
pub(crate) use shared_lab::{Boot, on, without_lab};
pub(crate) use time::counters_add_up;
pub(crate) use wait::{SOON, wait_until};
