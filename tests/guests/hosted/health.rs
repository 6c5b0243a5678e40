//! Two guests for `report --analyze`: one in which there is nothing to find, and one that has
//! several things wrong.

use std::error::Error;
use std::hint::black_box;
use std::thread;
use std::time::{Duration, Instant};

use unikprof_agent::hosted::Guest;

use crate::stop::Stop;

/// Serves requests that come at random moments, in four functions of equal work; as many requests
/// wait as come and go.
pub(crate) fn healthy(guest: &Guest, stop: &Stop) -> Result<(), Box<dyn Error>> {
    let vcpu = guest.register_thread()?;
    let agent = guest.agent();
    let (request, queue) = (agent.event_name("request")?, agent.event_name("queue")?);
    let mut random = fastrand::Rng::with_seed(1);
    let mut state = 1;
    while !stop.is_set() {
        let waiting = random.u64(..8);
        agent.counter(queue, waiting as i64);
        for _ in 0..waiting {
            let _span = agent.span(request);
            state = black_box(render(find(parse(read(black_box(state)))))) | 1;
        }
        vcpu.block(|| thread::sleep(Duration::from_micros(random.u64(..20_000))));
    }
    Ok(())
}

/// Everything comes in the first third of each fifth of a second; one request of forty copies
/// memory a hundred times as often as the others, and all that is held stays held.
pub(crate) fn ailing(guest: &Guest, stop: &Stop) -> Result<(), Box<dyn Error>> {
    const PERIOD: Duration = Duration::from_millis(200);
    const BUSY: Duration = Duration::from_millis(66);
    let vcpu = guest.register_thread()?;
    let agent = guest.agent();
    let (request, held) = (agent.event_name("request")?, agent.event_name("held")?);
    let (from, mut to) = (vec![7; 1 << 21], vec![0; 1 << 21]);
    let mut next = Instant::now();
    let mut number = 0;
    while !stop.is_set() {
        while next.elapsed() < BUSY {
            number += 1;
            let _span = agent.span(request);
            match number % 40 {
                0 => compact(&from, &mut to),
                _ => copy(&from, &mut to),
            }
        }
        agent.counter(held, number);
        next += PERIOD;
        vcpu.block(|| thread::sleep(next.saturating_duration_since(Instant::now())));
    }
    Ok(())
}

#[inline(never)]
fn compact(from: &[u8], to: &mut [u8]) {
    for _ in 0..100 {
        copy(from, to);
    }
}

#[inline(never)]
fn copy(from: &[u8], to: &mut [u8]) {
    black_box(to).copy_from_slice(black_box(from));
}

macro_rules! work {
    ($($name:ident $shift:literal)*) => {$(
        #[inline(never)]
        fn $name(mut state: u64) -> u64 {
            for _ in 0..100_000 {
                state ^= black_box(state << $shift);
                state ^= state >> 7;
            }
            state
        }
    )*};
}

work! { read 11 parse 13 find 15 render 17 }
