//! One recording from start to end: ticks, counts, download.

use core::mem::MaybeUninit;

use unikprof_agent::tcp_server::smoltcp::wire::{EthernetAddress, IpAddress, IpCidr};
use unikprof_agent::tcp_server::{TcpConfig, TcpServer, TcpStorage};
use unikprof_agent::{Access, Agent, Config, Service};
use unikprof_proto::code::mode;
use unikprof_proto::frame;
use unikprof_proto::message::{
    Acknowledge, Acknowledged, Counts, Fetch, Nodes, Pending, Start, Started, Stop, VcpuEnd,
    VcpuEpoch,
};
use unikprof_proto::{counts, nodes};

use crate::Step;
use crate::conversation::{Conversation, Heard};
use crate::device::Silent;
use crate::pipe::Pipe;
use crate::platform::{FRAMES, MAPPINGS, OneVcpu};

const PERIOD_NS: u64 = 1_000_000;
/// The length of the recording in periods, which is about the number of its ticks.
const PERIODS: u64 = 100;

/// Records, fetches and checks the counts.
pub(crate) fn record_once() -> Result<(), Step> {
    let mut memory = [MaybeUninit::uninit(); 64 << 10];
    let config = Config {
        vcpus: 1,
        recordings: 1,
        mappings: &MAPPINGS,
        guest_name: None,
        guest_id: None,
        platform_name: "freestanding",
        reachable_when_busy: false,
    };
    let agent = Agent::new(OneVcpu::new(), config, &mut memory).map_err(|_| Step::Agent)?;
    let mut service = Service::new(&agent, Access::Open).map_err(|_| Step::Service)?;
    serve_nobody(&mut service)?;

    let pipe = Pipe::new();
    let mut conversation = Conversation::open(&mut service, &pipe)?;
    let start = Start {
        interval_bytes: 0,
        name: "freestanding",
        period_ns: PERIOD_NS,
        mode: mode::CPU,
        depth: 16,
        duration_ns: 0,
        delay_ns: 0,
        flags: 0,
        caller_table: None,
        max_age_ns: 0,
        max_bytes: 0,
    };
    conversation.ask(&start, |answer| {
        frame::decode::<Started>(answer).map_err(|_| Step::Answer)?;
        Ok(Heard::All)
    })?;
    let ticks = run_guest(&agent);
    let mut epoch = 0;
    conversation.ask(&Stop { recording: 0 }, |answer| {
        let pending: Pending = frame::decode(answer).map_err(|_| Step::Answer)?;
        epoch = pending.first_epoch;
        let is_whole = pending.complete && pending.epochs == 1;
        is_whole.then_some(Heard::All).ok_or(Step::Answer)
    })?;
    fetch(&mut conversation, epoch, ticks)?;
    conversation.ask(&Acknowledge { epoch }, |answer| {
        frame::decode::<Acknowledged>(answer).map_err(|_| Step::Answer)?;
        Ok(Heard::All)
    })
}

/// Runs the agent's own TCP server without traffic.
fn serve_nobody(service: &mut Service<'_, '_, OneVcpu>) -> Result<(), Step> {
    let config = TcpConfig {
        port: 7777,
        hardware_address: EthernetAddress([0x02, 0, 0, 0, 0, 1]).into(),
        addresses: &[IpCidr::new(IpAddress::v4(10, 0, 0, 5), 24)],
        gateways: &[IpAddress::v4(10, 0, 0, 1)],
    };
    let mut storage: TcpStorage<'_, 1024> = TcpStorage::new();
    let mut server =
        TcpServer::new(&config, &mut Silent, service, &mut storage).map_err(|_| Step::Tcp)?;
    match server.poll(&mut Silent, service) {
        None => Ok(()),
        Some(_) => Err(Step::Tcp),
    }
}

/// Advances the time and delivers every tick when it is due; returns the number of ticks.
fn run_guest(agent: &Agent<'_, OneVcpu>) -> u64 {
    let platform = agent.platform();
    let registers = platform.interrupted();
    let mut ticks = 0;
    let end_ns = PERIODS * PERIOD_NS;
    let mut passed_ns = 0;
    let mut deadline_ns = agent.deadline();
    while let Some(at_ns) = deadline_ns {
        let wait_ns = at_ns.saturating_sub(unikprof_agent::Platform::now_ns(platform));
        passed_ns += wait_ns;
        if passed_ns > end_ns {
            break;
        }
        platform.pass(wait_ns);
        deadline_ns = agent.on_tick(Some(&registers));
        ticks += 1;
    }
    ticks
}

/// Downloads the epoch: all its samples must be one stack's.
fn fetch(
    conversation: &mut Conversation<'_, '_, '_, '_>,
    epoch: u64,
    ticks: u64,
) -> Result<(), Step> {
    let request = Fetch {
        epoch,
        vcpu: 0,
        known: 0,
        counted: 0,
    };
    let (mut recorded, mut counted, mut frames, mut samples) = (0, 0, 0, 0);
    conversation.ask(&request, |answer| {
        if let Ok(share) = frame::decode::<VcpuEpoch>(answer) {
            recorded = share.end.counters.recorded;
        }
        if let Ok(run) = frame::decode::<Nodes<'_>>(answer) {
            nodes::decode(run.first, run.count, run.payload, |_, node| {
                frames += node.frames.len();
            })
            .map_err(|_| Step::Stacks)?;
        }
        if let Ok(run) = frame::decode::<Counts<'_>>(answer) {
            counts::decode(run.after, run.count, run.payload, |_, count| {
                counted += count
            })
            .map_err(|_| Step::Stacks)?;
        }
        Ok(match frame::decode::<VcpuEnd>(answer) {
            Ok(end) => {
                samples = end.samples;
                Heard::All
            }
            Err(_) => Heard::More,
        })
    })?;
    let is_all =
        ticks > PERIODS / 2 && [recorded, counted, samples] == [ticks; 3] && frames == FRAMES;
    is_all.then_some(()).ok_or(Step::Stacks)
}
