//! The main loop of the first vCPU: poll, then sleep until the next deadline or event.

use xen_sys_lite::clock::read_counter;

#[cfg(feature = "accuracy")]
use crate::accuracy::{self, OrderService};
use crate::addressing::Addressing;
#[cfg(feature = "agent")]
use crate::burst::Burst;
#[cfg(feature = "accuracy")]
use crate::capture::CaptureService;
use crate::command_line::CommandLine;
use crate::echo::Echo;
#[cfg(feature = "agent")]
use crate::events;
#[cfg(feature = "agent")]
use crate::failing::Failing;
use crate::faults::Line;
use crate::load::{self, Load};
use crate::network::Network;
use crate::network_device::{self, NetworkDevice};
#[cfg(feature = "agent")]
use crate::profiler::{self, Profiler};
use crate::served::{self, Served};
use crate::statistics_service::StatisticsService;
use crate::store::{self, GuestStore, Identity, Request};
use crate::stuck::Stuck;
use crate::vcpus::FIRST;
use crate::{bare, idle, power, println, random, suspend, timer};

/// The state of the first vCPU's main loop.
pub(crate) struct Guest {
    store: GuestStore,
    /// When to reconnect a broken device, on the guest's clock.
    reconnect_at_ns: u64,
    stuck: Option<Stuck>,
    load: Option<Load>,
    #[cfg(feature = "agent")]
    burst: Option<Burst>,
    #[cfg(feature = "agent")]
    failing: Option<Failing>,
    /// A client's order that was not executed yet.
    #[cfg(feature = "accuracy")]
    order: Option<alloc::string::String>,
}

/// The interval of attempts to reconnect to a missing or faulty backend.
const RECONNECT_PERIOD_NS: u64 = 1_000_000_000;

impl Guest {
    /// Connects to xenstore and starts what the command line asks for.
    pub(crate) fn start(command_line: CommandLine) -> Self {
        let mut store = store::connect().unwrap_or_else(|error| panic!("xenstore: {error}"));
        let identity = store::identity(&mut store);
        match &identity {
            Ok(identity) => println!("xen-guest: {identity}"),
            Err(error) => println!("xen-guest: no identity: {error}"),
        }
        if let Some(network) = Addressing::find(command_line, &mut store)
            .and_then(|addressing| start_network(&mut store, addressing))
        {
            served::publish(start_services(
                command_line,
                &mut store,
                identity.ok().as_ref(),
                network,
            ));
        }
        bare::configure(command_line);
        let guest = Self {
            store,
            reconnect_at_ns: 0,
            stuck: Stuck::from_command_line(command_line),
            load: load::start(command_line),
            #[cfg(feature = "agent")]
            burst: Burst::from_command_line(command_line),
            #[cfg(feature = "agent")]
            failing: Failing::from_command_line(command_line),
            #[cfg(feature = "accuracy")]
            order: None,
        };
        bare::start();
        #[cfg(feature = "agent")]
        events::start(command_line);
        guest
    }

    /// Serves for ever.
    pub(crate) fn run(mut self) -> ! {
        loop {
            let deadline_ns = self.poll();
            idle::wait_for_events(FIRST, deadline_ns);
        }
    }

    /// Does all work that is due; returns when to call it again without an event, on the guest's
    /// clock.
    fn poll(&mut self) -> Option<u64> {
        self.follow_tools();
        let served = served::poll(|served| self.serve(served));
        #[cfg(feature = "accuracy")]
        self.follow_order();
        if let Some(stuck) = self.stuck {
            stuck.when_due();
        }
        let stuck_at_ns = self.stuck.map(|stuck| stuck.at_ns);
        let deadlines = [served, stuck_at_ns, self.work()];
        deadlines.into_iter().flatten().min()
    }

    /// Works for a turn; returns when the next one begins.
    #[cfg(feature = "agent")]
    fn work(&mut self) -> Option<u64> {
        if let Some(failing) = self.failing {
            failing.when_due();
        }
        let burst = self.burst.as_mut().and_then(Burst::turn);
        if self.burst.as_ref().is_some_and(Burst::is_on) {
            return burst;
        }
        let load = self.load.as_mut().map(|load| load.turn(FIRST));
        let failing = self.failing.map(|failing| failing.at_ns);
        [burst, load, failing].into_iter().flatten().min()
    }

    #[cfg(not(feature = "agent"))]
    fn work(&mut self) -> Option<u64> {
        self.load.as_mut().map(|load| load.turn(FIRST))
    }

    fn serve(&mut self, served: &mut Served) -> Option<u64> {
        if !served.network.device().is_healthy() {
            let now = timer::now_ns(FIRST);
            if now < self.reconnect_at_ns {
                return Some(self.reconnect_at_ns);
            }
            self.reconnect_at_ns = now + RECONNECT_PERIOD_NS;
            reconnect(served.network.device(), &mut self.store);
        }
        let next_ns = served.poll();
        if let Some(address) = served.network.take_news() {
            println!("xen-guest: address {address}");
        }
        #[cfg(feature = "accuracy")]
        {
            self.order = served.orders.as_mut().and_then(OrderService::take);
        }
        next_ns
    }

    /// Executes a client's order, and answers.
    #[cfg(feature = "accuracy")]
    fn follow_order(&mut self) {
        let Some(order) = self.order.take() else {
            return;
        };
        let answer = accuracy::follow(&order);
        served::poll(|served| {
            if let Some(orders) = &served.orders {
                orders.answer(&mut served.network.sockets, &answer);
            }
            served.poll()
        });
    }

    fn suspend(&mut self) {
        let mut done = false;
        served::poll(|served| {
            suspend::suspend(&mut self.store, Some(served));
            done = true;
            Some(timer::now_ns(FIRST))
        });
        if !done {
            // There is no network.
            suspend::suspend(&mut self.store, None);
        }
    }

    fn follow_tools(&mut self) {
        match store::take_request(&mut self.store) {
            Ok(Some(Request::PowerOff)) => power::power_off(),
            Ok(Some(Request::Reboot)) => power::reboot(),
            Ok(Some(Request::Suspend)) => self.suspend(),
            Ok(None) => {}
            Err(error) => panic!("xenstore: {error}"),
        }
    }
}

fn start_services(
    command_line: CommandLine,
    store: &mut GuestStore,
    identity: Option<&Identity>,
    mut network: Network<NetworkDevice>,
) -> Served {
    network.line = Line::from_command_line(command_line);
    if command_line.value("faults").is_some() {
        println!("xen-guest: the line: {:?}", network.line);
    }
    let echo = command_line.parsed("echo").map(|port| {
        println!("xen-guest: echo on port {port}");
        Echo::new(port, &mut network.sockets)
    });
    let statistics = command_line.parsed("stats").map(|port| {
        println!("xen-guest: statistics on port {port}");
        StatisticsService::new(port, &mut network.sockets)
    });
    #[cfg(feature = "accuracy")]
    let orders = command_line.parsed("orders").map(|port| {
        println!("xen-guest: orders on port {port}");
        OrderService::new(port, &mut network.sockets)
    });
    #[cfg(feature = "accuracy")]
    let captures = CaptureService::from_command_line(command_line, &mut network.sockets);
    #[cfg(feature = "agent")]
    let profiler = profiler::Request::find(command_line, store)
        .and_then(|request| Profiler::start(request, identity, &mut network.sockets));
    #[cfg(not(feature = "agent"))]
    let _ = (identity, store);
    Served {
        network,
        echo,
        statistics,
        #[cfg(feature = "accuracy")]
        orders,
        #[cfg(feature = "accuracy")]
        captures,
        #[cfg(feature = "agent")]
        profiler,
    }
}

fn start_network(store: &mut GuestStore, addressing: Addressing) -> Option<Network<NetworkDevice>> {
    let device = network_device::connect(store)?;
    let mac = device.mac()?;
    let seed = random::random().unwrap_or_else(read_counter);
    Some(Network::new(device, mac, addressing, seed, timer::now_ns(FIRST)))
}

fn reconnect(device: &mut NetworkDevice, store: &mut GuestStore) {
    let result = device.reconnect(store).and_then(|()| network_device::wake_on_frames(device));
    if let Err(error) = result {
        println!("xen-guest: the network is gone: {error}");
    }
}
