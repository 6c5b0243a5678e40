//! Several clients that send what they like, and ticks in the middle: the agent's answers are
//! always whole messages, and an honest client is served afterwards as if they had never been.

use std::mem::MaybeUninit;

use unikprof_agent::{Access, Agent, caller_table_bytes, minimum_bytes};
use unikprof_proto::code::{message_type, mode, start_flag};
use unikprof_proto::message::{
    Acknowledge, Check, Counters, Dump, Fetch, Hello, Start, Stop, TableBegin, TableEnd, TableRows,
};
use unikprof_proto::preamble;
use unikprof_test_kit::frames::framed;

use crate::client::{Client, FakeService, Honest, sum};
use crate::fake::{Fake, FakePlatform, VCPUS, config};
use crate::input::Input;

/// The number of ticks of each vCPU in the honest client's recording.
const TICKS: u64 = 20;

/// A time longer than a client that is gone keeps its lease.
const LEASE_NS: u64 = 30_000_000_000;

/// Plays the bytes as what clients, clocks and ticks do.
pub fn check(bytes: &[u8]) {
    play(bytes);
}

/// The same; answers the frames that the honest client was sent at last.
pub(crate) fn play(bytes: &[u8]) -> Vec<u8> {
    let fake = Fake::new();
    // Small, so that it is full after a few stacks.
    let mut memory = vec![MaybeUninit::uninit(); minimum_bytes(VCPUS as usize, 4) + 4096];
    let mut callers = vec![MaybeUninit::uninit(); caller_table_bytes(2)];
    let agent = Agent::new(FakePlatform(&fake), config(4), &mut memory).expect("there is room");
    let agent = agent.with_caller_memory(&mut callers);
    fake.attach(&agent);
    let mut service = FakeService::new(&agent, Access::Open).expect("it is the first");
    let mut world = World { fake: &fake, clients: Vec::new() };
    let mut input = Input::new(bytes);
    while !input.is_empty() {
        world.act(&mut input, &mut service);
    }
    world.leave(&mut service);
    fake.set_interrupts(0);
    serve_honestly(&fake, &mut service)
}

struct World<'f, 'a> {
    fake: &'f Fake<'a>,
    clients: Vec<Client>,
}

impl<'a> World<'_, 'a> {
    /// One thing that happens.
    fn act(&mut self, input: &mut Input<'_>, service: &mut FakeService<'_, 'a>) {
        let fake = self.fake;
        let vcpu = |input: &mut Input<'_>| input.below(VCPUS as usize) as u32;
        match input.below(16) {
            0 => self.clients.extend(Client::connect(service)),
            1 => {
                let length = usize::from(input.byte());
                let bytes = input.bytes(length);
                self.with_client(input, |client, _| client.send(bytes));
            }
            2 => self.with_client(input, |client, _| {
                client.send(&preamble::encode(preamble::OPEN));
            }),
            3 | 4 => self.with_client(input, request),
            5 => self.with_client(input, |client, input| {
                let kind = match input.below(16) {
                    0 => input.short(),
                    known => known as u16,
                };
                let length = input.below(2000);
                client.send(&framed(kind, input.bytes(length)));
            }),
            6 => self.with_client(input, |client, input| {
                client.deliver(service, 1 + input.below(2000));
            }),
            7 => self.with_client(input, |client, input| {
                let most = input.below(6000);
                client.deliver(service, usize::MAX);
                let work = service.begin_work();
                client.read(service, most);
                service.end_work(work);
            }),
            8 => {
                if !self.clients.is_empty() {
                    let client = self.clients.swap_remove(input.below(self.clients.len()));
                    service.close(client.session);
                }
            }
            9 => {
                service.advance();
                self.close_those_over(service);
            }
            10 => fake.pass(input.number() >> 24),
            11 | 12 => {
                let vcpu = vcpu(input);
                let next_ns = fake.tick(vcpu);
                if let Some(next_ns) = next_ns
                    && input.byte() & 1 == 0
                {
                    fake.pass(next_ns.saturating_sub(fake.now_ns()).min(1 << 40));
                    fake.tick(vcpu);
                }
            }
            13 => {
                let vcpu = vcpu(input);
                let agent = service.agent();
                let registers = fake.registers();
                fake.on(Some(vcpu), || match input.below(3) {
                    0 => agent.on_block(registers.as_ref()),
                    1 => drop(agent.on_wake()),
                    _ => drop(agent.deadline()),
                });
            }
            14 => {
                for _ in 0..input.below(8) {
                    fake.put(input.below(64), input.byte(), input.number());
                }
                let at = (input.number(), input.below(66), input.below(66));
                fake.interrupt_at((input.byte() & 7 != 0).then_some(at));
            }
            _ => fake.set_interrupts(input.byte()),
        }
    }

    fn with_client(
        &mut self,
        input: &mut Input<'_>,
        act: impl FnOnce(&mut Client, &mut Input<'_>),
    ) {
        if !self.clients.is_empty() {
            let index = input.below(self.clients.len());
            act(&mut self.clients[index], input);
        }
    }

    fn close_those_over(&mut self, service: &mut FakeService<'_, 'a>) {
        self.clients.retain(|client| {
            let is_over = service.is_over(client.session);
            if is_over {
                service.close(client.session);
            }
            !is_over
        });
    }

    fn leave(self, service: &mut FakeService<'_, 'a>) {
        for client in self.clients {
            service.close(client.session);
        }
    }
}

/// Two rows of a caller table: all of the code is said to be at an entry, then to have frame
/// records.
const ROWS: [u8; 6] = [16, 0x82, 0x02, 100, 0x8b, 0x04];
const ROWS_CHECKSUM: u32 = 0xc8a6_7054;

/// A request that a client might make, sound but for its numbers.
fn request(client: &mut Client, input: &mut Input<'_>) {
    // A recording's id, and which of its epochs.
    let byte = u64::from(input.byte());
    let epoch = byte >> 4 << 32 | byte & 15;
    match input.below(11) as u16 {
        message_type::HELLO => client.send_message(&Hello { client: "", client_id: epoch % 3 }),
        message_type::START => client.send_message(&Start {
            interval_bytes: 0,
            name: ["a", "", "\n", "recording"][input.below(4)],
            period_ns: 10_000 + u64::from(input.short()),
            mode: mode::CPU + u32::from(input.byte()) % 4,
            depth: u32::from(input.byte()) % 140,
            duration_ns: input.number(),
            delay_ns: input.number(),
            flags: u32::from(input.byte())
                & (start_flag::REPLACE
                    | start_flag::FIXED_INTERVAL
                    | start_flag::UNWIND_TABLE
                    | start_flag::KEEP_NEWEST),
            caller_table: (input.byte() & 1 == 1).then_some(ROWS_CHECKSUM),
            max_age_ns: 0,
            max_bytes: 0,
        }),
        message_type::TABLE_BEGIN => client.send_message(&TableBegin {
            first: [0, 16, u32::MAX][input.below(3)],
            end: [u32::MAX, 64, 0][input.below(3)],
            rows: [2, 0, 1, 3, u32::MAX][input.below(5)],
            checksum: [ROWS_CHECKSUM, 0][input.below(2)],
        }),
        message_type::TABLE_ROWS => client.send_message(&TableRows {
            upload: u64::from(input.byte() % 8),
            first: 0,
            count: 2,
            payload: &ROWS[..ROWS.len() - usize::from(input.byte() > 250)],
        }),
        message_type::TABLE_END => {
            client.send_message(&TableEnd { upload: u64::from(input.byte() % 8) })
        }
        message_type::STOP => client.send_message(&Stop { recording: 0 }),
        message_type::DUMP => client.send_message(&Dump { recording: 0 }),
        message_type::FETCH => client.send_message(&Fetch {
            epoch,
            vcpu: input.below(5) as u32,
            known: input.number(),
            counted: input.number(),
        }),
        message_type::ACKNOWLEDGE => client.send_message(&Acknowledge { epoch }),
        _ => client.send_message(&Check {}),
    }
}

/// Somebody comes who wants a profile. Whatever went on before is ended; a new recording has each
/// of its ticks accounted for.
fn serve_honestly<'a>(fake: &Fake<'a>, service: &mut FakeService<'_, 'a>) -> Vec<u8> {
    let agent = service.agent();
    for vcpu in 0..VCPUS {
        fake.on(Some(vcpu), || agent.on_wake());
    }
    // All others are gone: their leases end.
    service.advance();
    fake.pass(LEASE_NS);
    service.advance();
    let mut honest = Honest::connect(service);
    honest.hello();
    honest.end_all();
    assert_eq!(honest.check(), Vec::<u64>::new());
    honest.forget();

    honest.hello();
    honest.start(&Start { depth: 16, ..Start::running_time("honest", 1_000_000) });
    fake.interrupt_at(Some((0x10, 2, 2)));
    let mut fetched = Counters::default();
    for is_last in [false, true] {
        for vcpu in 0..VCPUS {
            for _ in 0..TICKS {
                let deadline = fake.on(Some(vcpu), || agent.deadline());
                let deadline = deadline.expect("a recording runs");
                fake.pass(deadline - fake.now_ns());
                assert!(fake.tick(vcpu).is_some());
            }
        }
        fetched = sum(&fetched, &honest.collect(is_last));
    }
    let ticks = 2 * TICKS * u64::from(VCPUS);
    let found = (fetched.ticks, fetched.recorded, fetched.overflow);
    assert_eq!(found, (ticks, ticks, 0));
    assert_eq!(honest.check(), Vec::<u64>::new());
    honest.leave()
}
