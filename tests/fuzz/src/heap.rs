//! The calls of an allocator in any order, with any addresses and sizes, on any vCPU, interrupted
//! by ticks and by allocations in upcalls: nothing panics, and every sample that a client gets is
//! an allocation that is still held.

use std::collections::HashMap;
use std::mem::MaybeUninit;

use unikprof_agent::{Access, Agent, Service, live_bytes};
use unikprof_proto::code::mode;
use unikprof_proto::message::{
    Acknowledge, Dump, Fetch, LiveSamples, Pending, Start, Started, VcpuEnd, VcpuEpoch,
};
use unikprof_proto::{live, preamble};
use unikprof_test_kit::frames::encoded;

use crate::client::Talk;
use crate::fake::{Fake, FakePlatform, VCPUS, config};
use crate::input::Input;

/// Interprets the bytes as calls; returns how many samples a client got.
pub fn check(bytes: &[u8]) -> u64 {
    let mut input = Input::new(bytes);
    let fake = Fake::new();
    let mut memory = vec![MaybeUninit::uninit(); 200 << 10];
    let mut block = vec![MaybeUninit::uninit(); live_bytes(usize::from(input.byte()).max(1))];
    let Ok(agent) = Agent::new(FakePlatform(&fake), config(3), &mut memory) else {
        return 0;
    };
    let agent = agent.with_live_memory(&mut block);
    fake.on(Some(0), || agent.on_alloc(std::ptr::dangling(), 1));
    let Ok(mut service) = Service::new(&agent, Access::Open) else {
        return 0;
    };
    let Some(session) = service.open() else {
        return 0;
    };
    let mut client = Talk::default();
    let interval = (input.number() % (1 << 41)).max(64);
    let first = Start::heap("held", mode::LIVE, interval.min(1 << 40));
    let second = Start::heap("allocated", mode::ALLOC, 64);
    let requests =
        [&preamble::encode(preamble::OPEN)[..], &encoded(&first), &encoded(&second)].concat();
    client.ask(&mut service, session, &requests);
    let recording = client.last::<Started>().map_or(0, |it| it.recording) - 1;
    fake.set_interrupts(input.byte() / 4);
    // What is held, by address.
    let mut held: HashMap<usize, usize> = HashMap::new();
    while !input.is_empty() {
        fake.pass(1 + u64::from(input.byte()));
        let vcpu = Some(u32::from(input.byte()) % (VCPUS + 1)).filter(|vcpu| *vcpu < VCPUS);
        let address = usize::from(input.byte()) * 16;
        let pointer = std::ptr::without_provenance(address);
        let size = match input.byte() % 4 {
            0 => input.number() as usize,
            _ => usize::from(input.short()),
        };
        let choice = input.byte() % 8;
        fake.on(vcpu, || match choice {
            0..=3 if address != 0 => {
                // An allocator gives no address twice.
                if held.remove(&address).is_some() {
                    agent.on_free(pointer);
                }
                agent.on_alloc_from(pointer, size, || {
                    let registers = fake.registers();
                    registers.unwrap_or(unikprof_agent::Registers::new(0, 0, 0))
                });
                held.insert(address, size);
            }
            4 => {
                agent.on_free(pointer);
                held.remove(&address);
            }
            5 if address != 0 => {
                // To where nothing is.
                let new = address + (1 << 20) + size % 4096 * 16;
                if held.remove(&new).is_some() {
                    agent.on_free(std::ptr::without_provenance(new));
                }
                agent.on_realloc(pointer, std::ptr::without_provenance(new), size);
                held.remove(&address);
                held.insert(new, size);
            }
            6 => {
                agent.on_realloc(pointer, std::ptr::null(), size);
                if size == 0 {
                    held.remove(&address);
                }
            }
            _ => {
                fake.put(address / 16, size as u8, size as u64);
                fake.interrupt_at(Some((size as u64, address / 16 % 64, size % 64)));
            }
        });
        if choice == 7 {
            service.advance();
        }
    }
    fake.set_interrupts(0);
    let mut sizes: HashMap<usize, usize> = HashMap::new();
    held.values().for_each(|size| *sizes.entry(*size).or_default() += 1);
    client.ask(&mut service, session, &encoded(&Dump { recording }));
    let Some(Pending { first_epoch: epoch, epochs: 1, .. }) = client.last() else {
        return 0;
    };
    let mut all = 0;
    for vcpu in 0..VCPUS {
        let fetch = Fetch { epoch, vcpu, known: 0, counted: 0 };
        client.ask(&mut service, session, &encoded(&fetch));
        let mut samples = 0;
        for run in client.all::<LiveSamples<'_>>() {
            let decoded = live::decode(run.base_ns, run.count, run.payload, |sample| {
                samples += 1;
                let left = sizes.get_mut(&(sample.size as usize));
                let left = left.filter(|left| **left > 0);
                *left.expect("a sample of something that is not held") -= 1;
            });
            decoded.expect("a run of samples");
        }
        let end: VcpuEnd = client.last().expect("the end of a vCPU");
        assert_eq!(end.samples, samples);
        all += samples;
        let epochs = client.all::<VcpuEpoch>();
        assert!(epochs.iter().all(|it| it.end.counters.add_up()));
    }
    client.ask(&mut service, session, &encoded(&Acknowledge { epoch }));
    all
}
