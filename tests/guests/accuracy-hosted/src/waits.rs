//! A load that waits: for timers, and for the network.

use std::error::Error;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::thread;
use std::time::Duration;

use unikprof_accuracy_loads::bursts::burst;
use unikprof_accuracy_loads::orders::{Order, Truth};
use unikprof_agent::hosted::Vcpu;

use crate::clock::{now_ns, running_ns};

/// `waits count=N timer_ns=NS network_ns=NS`: `count` waits for a timer and for an answer from the
/// network, with a little work in between; answers the blocked ns of each function.
pub(crate) fn run(order: Order<'_>, vcpu: &Vcpu) -> Result<Option<Truth>, Box<dyn Error>> {
    let [Some(count), Some(timer_ns), Some(network_ns)] =
        ["count", "timer_ns", "network_ns"].map(|name| order.number::<u64>(name))
    else {
        return Ok(None);
    };
    let timer = Duration::from_nanos(timer_ns);
    let mut peer = slow_peer(Duration::from_nanos(network_ns))?;
    let mut truth = Truth::begin(running_ns);
    let (mut timer_ns, mut network_ns) = (0, 0);
    for _ in 0..count {
        timer_ns += wait_for_timer(vcpu, timer);
        burst(&mut running_ns, 100_000);
        network_ns += wait_for_network(vcpu, &mut peer)?;
        burst(&mut running_ns, 100_000);
    }
    truth.tell("wait_for_timer", timer_ns);
    truth.tell("wait_for_network", network_ns);
    Ok(Some(truth))
}

#[inline(never)]
fn wait_for_timer(vcpu: &Vcpu, time: Duration) -> u64 {
    blocked_ns(|| vcpu.block(|| thread::sleep(time)))
}

#[inline(never)]
fn wait_for_network(vcpu: &Vcpu, peer: &mut TcpStream) -> Result<u64, Box<dyn Error>> {
    peer.write_all(&[1])?;
    let mut read = Ok(());
    let ns = blocked_ns(|| read = vcpu.block(|| peer.read_exact(&mut [0])));
    read?;
    Ok(ns)
}

/// The time in which `wait` neither ran nor was ready to run, in ns.
fn blocked_ns(wait: impl FnOnce()) -> u64 {
    let (began, ran, waited) = (now_ns(), running_ns(), waited_ns());
    wait();
    let (waited, ran) = (waited_ns() - waited, running_ns() - ran);
    (now_ns() - began).saturating_sub(ran + waited)
}

/// The time in which the calling thread was ready to run while others ran, from the scheduler's
/// statistics; 0 if there are none.
fn waited_ns() -> u64 {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap_or_default();
    let waited = text.split_ascii_whitespace().nth(1);
    waited.and_then(|ns| ns.parse().ok()).unwrap_or(0)
}

/// A connection whose peer answers each byte after `after`. The peer's thread is not profiled, and
/// ends with the connection.
fn slow_peer(after: Duration) -> Result<TcpStream, Box<dyn Error>> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
    let stream = TcpStream::connect(listener.local_addr()?)?;
    stream.set_nodelay(true)?;
    let (mut other, _) = listener.accept()?;
    other.set_nodelay(true)?;
    thread::Builder::new().name("peer".into()).spawn(move || {
        let mut byte = [0];
        while other.read_exact(&mut byte).is_ok() {
            thread::sleep(after);
            if other.write_all(&byte).is_err() {
                return;
            }
        }
    })?;
    Ok(stream)
}
