//! One guest: its lives, each with an agent of its own, and its connections.

use std::future::poll_fn;
use std::mem::MaybeUninit;
use std::net::SocketAddr;
use std::pin::{Pin, pin};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::sync::mpsc::UnboundedReceiver;
use tokio::time::Sleep;
use unikprof_agent::stream_server::{Connection, Progress};
use unikprof_agent::{Access, Agent, Config, Keys, Service};

use super::Failure;
use super::line::Line;
use super::platform::Simulated;
use super::program::{MAPPINGS, Program};

/// The interval between batches of ticks.
const BATCH: Duration = Duration::from_millis(100);

/// The time that a guest is down that restarts.
const BOOT: Duration = Duration::from_secs(1);

/// Connections that are closed and have bytes on their way, at most.
const MOST_CLOSING: usize = 16;

/// The settings that all guests share.
#[derive(Debug)]
pub(super) struct Plan {
    pub(super) program: Program,
    pub(super) keys: Keys,
    pub(super) round_trip: Duration,
    /// The memory for stacks, in bytes.
    pub(super) memory: usize,
    /// The maximum number of simultaneous recordings.
    pub(super) recordings: u32,
    /// The time of their clocks at a boot, in s since 1970; `None`: this machine's time.
    pub(super) date: Option<u64>,
}

/// An order to a guest.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Order {
    /// It ends, and does not answer until it starts.
    Stop,
    Start,
    /// It ends, and starts a second later.
    Restart,
    /// It continues after a save and restore.
    Resume,
    /// It has nothing more to run.
    Rest,
}

#[derive(Debug)]
pub(super) struct Guest {
    pub(super) plan: &'static Plan,
    pub(super) name: String,
    pub(super) address: SocketAddr,
    /// It ends when nobody can send any more.
    pub(super) orders: UnboundedReceiver<Order>,
    pub(super) rests: bool,
    pub(super) lives: Vec<Life>,
}

/// The ticks of an agent's instance.
#[derive(Debug)]
pub(super) struct Life {
    instance: u64,
    ticks: u64,
}

impl Guest {
    /// Runs the guest to its end, which answers its ticks.
    pub(super) async fn run(mut self, listener: std::net::TcpListener) -> Result<Value, Failure> {
        let mut listener =
            TcpListener::from_std(listener).map_err(Failure::listen(self.address))?;
        while let Some(order) = self.live(&listener).await? {
            drop(listener);
            if order == Order::Restart {
                tokio::time::sleep(BOOT).await;
            } else if !self.is_started().await {
                break;
            }
            let bound = TcpListener::bind(self.address).await;
            listener = bound.map_err(Failure::listen(self.address))?;
        }
        let life = |life: &Life| {
            json!({
                "instance": format!("{:016x}", life.instance), "ticks": life.ticks
            })
        };
        Ok(json!({
            "name": self.name,
            "address": self.address.to_string(),
            "lives": self.lives.iter().map(life).collect::<Vec<_>>(),
        }))
    }

    /// Waits while the guest is down; answers whether it starts again.
    async fn is_started(&mut self) -> bool {
        while let Some(order) = self.orders.recv().await {
            match order {
                Order::Start | Order::Restart => return true,
                Order::Rest => self.rests = true,
                Order::Stop | Order::Resume => {}
            }
        }
        false
    }

    /// From a boot until an order ends it; `None` if that was the last.
    async fn live(&mut self, listener: &TcpListener) -> Result<Option<Order>, Failure> {
        let plan = self.plan;
        let mut memory = vec![MaybeUninit::uninit(); plan.memory];
        let name = self.name.clone();
        let config = Config {
            vcpus: 1,
            recordings: plan.recordings,
            mappings: MAPPINGS,
            guest_name: Some(&name),
            guest_id: None,
            platform_name: "simulated",
            reachable_when_busy: true,
        };
        let platform = Simulated::new(plan.date);
        let agent = Agent::new(platform, config, &mut memory).map_err(Failure::Agent)?;
        let service = Service::new(&agent, Access::Keys(&plan.keys)).map_err(Failure::Serve)?;
        self.lives.push(Life { instance: agent.instance(), ticks: 0 });
        let mut running = Running {
            agent: &agent,
            service,
            listener,
            connections: Vec::new(),
            closing: Vec::new(),
            deadline_ns: None,
            guest: self,
        };
        if running.guest.rests {
            running.rest();
        }
        let mut alarm = pin!(tokio::time::sleep(Duration::ZERO));
        Ok(poll_fn(|context| running.poll(context, alarm.as_mut())).await)
    }
}

struct Running<'a, 'm> {
    agent: &'a Agent<'m, Simulated>,
    service: Service<'a, 'm, Simulated>,
    listener: &'a TcpListener,
    connections: Vec<Connection<Line>>,
    /// Closed connections whose last bytes are on their way.
    closing: Vec<Line>,
    deadline_ns: Option<u64>,
    guest: &'a mut Guest,
}

impl Running<'_, '_> {
    fn poll(
        &mut self,
        context: &mut Context<'_>,
        mut alarm: Pin<&mut Sleep>,
    ) -> Poll<Option<Order>> {
        loop {
            while let Poll::Ready(order) = self.guest.orders.poll_recv(context) {
                match order {
                    Some(Order::Resume) => self.resume(),
                    Some(Order::Rest) => self.rest(),
                    Some(Order::Start) => {}
                    None | Some(Order::Stop | Order::Restart) => return Poll::Ready(order),
                }
            }
            self.tick();
            let next = self.serve(context);
            alarm.as_mut().reset(next.into());
            if alarm.as_mut().poll(context).is_pending() {
                return Poll::Pending;
            }
        }
    }

    /// Delivers the ticks that are due by now.
    fn tick(&mut self) {
        let now_ns = self.agent.platform().elapsed_ns();
        while let Some(deadline_ns) = self.deadline_ns
            && deadline_ns <= now_ns
        {
            self.agent.platform().advance_to(deadline_ns);
            if self.deliver()
                && let Some(life) = self.guest.lives.last_mut()
            {
                life.ticks += 1;
            }
        }
        self.agent.platform().advance_to(now_ns);
    }

    /// Delivers a tick; answers whether the agent read the interrupted stack.
    fn deliver(&mut self) -> bool {
        let ticks = self.guest.lives.last().map_or(0, |life| life.ticks);
        let interrupted = self.guest.plan.program.at(ticks);
        let platform = self.agent.platform();
        platform.interrupt(interrupted.bounds.clone(), || {
            self.deadline_ns = self.agent.on_tick(Some(&interrupted.registers));
        })
    }

    /// Talks to the clients; answers when to do it again.
    fn serve(&mut self, context: &mut Context<'_>) -> Instant {
        let now = Instant::now();
        let work = self.service.begin_work();
        self.accept(context, now);
        // No connection starves another.
        if !self.connections.is_empty() {
            self.connections.rotate_left(1);
        }
        let mut index = 0;
        while let Some(connection) = self.connections.get_mut(index) {
            let is_there = connection.stream().pump(context, now).is_ok();
            if is_there && connection.poll(&mut self.service) == Ok(Progress::Open) {
                index += 1;
            } else {
                let connection = self.connections.swap_remove(index);
                let line = connection.close(&mut self.service);
                self.close(line);
            }
        }
        let next_ns = self.service.advance();
        self.service.end_work(work);
        self.closing.retain(|line| line.pump(context, now).is_ok() && !line.is_flushed());

        let platform = self.agent.platform();
        if platform.take_kick() {
            self.deliver();
        }
        self.deadline_ns = self.agent.deadline();
        let door_ns = self.service.place_from_ns();
        let service = [next_ns, door_ns].into_iter().flatten().map(|ns| platform.instant(ns));
        let open = self.connections.iter().map(Connection::stream);
        let lines = open.chain(&self.closing).filter_map(Line::next);
        let batch = now + BATCH;
        service.chain(lines).fold(batch, Instant::min)
    }

    fn accept(&mut self, context: &mut Context<'_>, now: Instant) {
        // Connections wait in the backlog until there is a session for them.
        while self.service.place_from_ns().is_none()
            && let Poll::Ready(Ok((socket, _))) = self.listener.poll_accept(context)
        {
            let Ok(line) = Line::new(socket, self.guest.plan.round_trip, now) else {
                continue;
            };
            match Connection::open(&mut self.service, line) {
                Ok(connection) => self.connections.push(connection),
                Err(line) => {
                    let mut answer = [0; 128];
                    let length = self.service.busy_answer(&mut answer);
                    line.send(&answer[..length]);
                    self.close(line);
                }
            }
        }
    }

    fn close(&mut self, line: Line) {
        if !line.is_flushed() && self.closing.len() < MOST_CLOSING {
            self.closing.push(line);
        }
    }

    /// The guest was saved and restored.
    fn resume(&mut self) {
        self.tick();
        self.agent.resume();
        self.guest.lives.push(Life { instance: self.agent.instance(), ticks: 0 });
    }

    /// The guest blocks for ever.
    fn rest(&mut self) {
        self.tick();
        self.guest.rests = true;
        self.agent.on_block(None);
        self.agent.platform().rest();
        self.deadline_ns = None;
    }
}
