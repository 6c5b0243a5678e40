//! Orders to the guests on standard input.

use std::collections::BTreeMap;
use std::io::stdin;
use std::ops::ControlFlow;
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::thread;
use std::time::Duration;

use tokio::sync::mpsc::UnboundedSender;

use super::guest::Order;

pub(super) const HELP: &str = "\
Lines on standard input:
  restart NAME   the guest is down for a second, and has a new agent
  stop NAME      it does not answer until `start NAME`
  resume NAME    it was saved and restored: the agent's instance is new
  rest NAME      it runs nothing more
  quit           the end for all
NAME may be `all`.";

/// The lines as they come.
pub(super) struct Orders(Receiver<String>);

impl Orders {
    pub(super) fn read() -> Orders {
        let (sender, lines) = channel();
        thread::spawn(move || {
            for line in stdin().lines() {
                if line.map(|line| sender.send(line)).is_err() {
                    return;
                }
            }
        });
        Orders(lines)
    }

    /// Passes on an order, if there is one within this time. Breaks at the end.
    pub(super) fn pass_on(
        &self,
        guests: &BTreeMap<String, UnboundedSender<Order>>,
        within: Duration,
    ) -> ControlFlow<()> {
        let line = match self.0.recv_timeout(within) {
            Ok(line) => line,
            Err(RecvTimeoutError::Timeout) => return ControlFlow::Continue(()),
            Err(RecvTimeoutError::Disconnected) => {
                thread::sleep(within);
                return ControlFlow::Continue(());
            }
        };
        let words: Vec<&str> = line.split_whitespace().collect();
        let order = match words.as_slice() {
            ["quit"] => return ControlFlow::Break(()),
            [order, name] => order_of(order).filter(|order| send(guests, name, *order)),
            _ => None,
        };
        if order.is_none() {
            eprintln!("warning: no such order or guest: {line:?}");
        }
        ControlFlow::Continue(())
    }
}

fn order_of(word: &str) -> Option<Order> {
    Some(match word {
        "restart" => Order::Restart,
        "stop" => Order::Stop,
        "start" => Order::Start,
        "resume" => Order::Resume,
        "rest" => Order::Rest,
        _ => return None,
    })
}

/// Sends an order to a guest, or to all; answers whether there is one.
pub(super) fn send(
    guests: &BTreeMap<String, UnboundedSender<Order>>,
    name: &str,
    order: Order,
) -> bool {
    let mut sent = false;
    for (own, sender) in guests {
        if name == "all" || name == own {
            // A guest that has failed tells it at the end.
            let _ = sender.send(order);
            sent = true;
        }
    }
    sent
}
