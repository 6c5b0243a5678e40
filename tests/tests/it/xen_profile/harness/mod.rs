//! The parts of the cases: a lab they share, and the parts that hosted cases have too.

mod guest;
mod shared_lab;

pub(crate) use guest::{Guest, client_at};
pub(crate) use shared_lab::{Boot, on, without_lab};

pub(crate) use crate::harness::time::{self, counters_add_up};
pub(crate) use crate::harness::{
    Client, Collector, Fleet, Guest as HostedGuest, Proxy, SOON, bad_answers, expect_at, fetched,
    is_delivered, seconds, ticks, wait_until,
};
