//! The parts of all cases, hosted ones and those on Xen: guests that are processes, the client's
//! programs, a line that breaks, and waiting.

mod client;
mod collector;
mod guest;
mod keyed;
mod proxy;
mod server;
mod terminal;
pub(crate) mod time;
mod wait;

pub(crate) use client::{Client, RunningClient};
pub(crate) use collector::{
    Collector, bad_answers, expect_at, fetched, is_delivered, seconds, ticks,
};
pub(crate) use guest::Guest;
pub(crate) use keyed::Keyed;
pub(crate) use proxy::Proxy;
pub(crate) use server::Fleet;
pub(crate) use terminal::Terminal;
pub(crate) use wait::{SOON, wait_until};
