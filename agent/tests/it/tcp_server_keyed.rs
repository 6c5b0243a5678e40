//! Encrypted conversations over the agent's own TCP, and over the guest's.

use std::sync::atomic::Ordering;

use crate::client::{Frame, HELLO, encoded, longest_request, read, receive_whole, whole};
use crate::keyed::{self, CONTROL, Client, OTHER, first_message};
use crate::network::{End, Port, Stacks, World, ipv4};
use smoltcp::phy::{Device, Medium};
use unikprof_agent::tcp_server::smoltcp;
use unikprof_proto::code::{refusal, role};
use unikprof_proto::frame::Message;
use unikprof_proto::message::{
    Acknowledge, Acknowledged, Check, HandshakeReply, Pending, Refusal, Start, Started, Status,
    Stop, Welcome,
};
use unikprof_proto::{preamble, secure};
use unikprof_test_kit::frames::take_frame;

const SECOND: u64 = 1_000_000_000;

fn world(medium: Medium) -> World<Port> {
    World::with_access(keyed::access(), medium, ipv4, |port| port)
}

/// A connected client after its handshake.
struct Sealed {
    client: Client<usize>,
    /// Bytes that were decrypted and not taken yet.
    opened: Vec<u8>,
}

impl Sealed {
    fn connect<D: Device>(world: &mut World<D>) -> Self {
        let reply = shake_hands(world, CONTROL);
        let (shaking, reply) = reply.unwrap();
        let reply: HandshakeReply = read(&reply);
        Self { client: shaking.finish(&encoded(&reply)), opened: Vec::new() }
    }

    /// Sends bytes of the stream of frames in records.
    fn send<D: Device>(&mut self, world: &mut World<D>, plaintext: &[u8]) {
        for part in plaintext.chunks(secure::MAX_REQUEST) {
            let record = self.client.seal(part);
            world.peers[self.client.session].send(&record);
        }
    }

    /// The next frame, if it arrives within `limit_ns`.
    fn frame<D: Device>(&mut self, world: &mut World<D>, limit_ns: u64) -> Option<Frame> {
        let mut found = None;
        world.run(limit_ns, |world| {
            let bytes = world.peers[self.client.session].take_bytes();
            self.opened.extend(self.client.open(&bytes));
            found = take_frame(&mut self.opened).unwrap();
            found.is_some()
        });
        found
    }

    fn ask<'a, D: Device>(&mut self, world: &mut World<D>, request: &impl Message<'a>) -> Frame {
        self.send(world, &encoded(request));
        self.frame(world, 10 * SECOND).unwrap()
    }

    fn fetch<D: Device>(&mut self, world: &mut World<D>, epoch: u64) -> Stacks {
        self.send(world, &encoded(&whole(epoch)));
        let frame = || self.frame(world, 10 * SECOND).ok_or("the answer is incomplete");
        receive_whole(frame).unwrap().stacks
    }
}

/// Connects and sends the first message; returns the first frame that comes back.
fn shake_hands<D: Device>(
    world: &mut World<D>,
    key: [u8; 32],
) -> Result<(keyed::Shaking<usize>, Frame), End> {
    let client = world.connect_silent(65_535);
    let sent = preamble::encode(preamble::KEYED);
    let shaking = first_message(client, key, sent);
    world.peers[client].send(&sent);
    world.peers[client].send(&shaking.first);
    Ok((shaking, world.frame(client)?))
}

/// A complete conversation; every tick is fetched exactly once, and none of it is on the wire
/// unencrypted.
fn converse<D: Device>(mut world: World<D>) {
    let mut client = Sealed::connect(&mut world);
    let welcome = client.ask(&mut world, &HELLO);
    assert_eq!(read::<Welcome<'_>>(&welcome).role, role::CONTROL);
    let mapping = client.frame(&mut world, SECOND);
    assert!(mapping.is_some(), "as in the clear");
    let start = Start::running_time("test", 100_000);
    read::<Started>(&client.ask(&mut world, &start));
    let truth = world.sample(5_000, 2_000);
    let pending = client.ask(&mut world, &Stop { recording: 0 });
    let epoch = read::<Pending>(&pending).first_epoch;
    assert_eq!(client.fetch(&mut world, epoch), truth);
    assert_eq!(client.fetch(&mut world, epoch), truth, "as often as wanted");
    read::<Acknowledged>(&client.ask(&mut world, &Acknowledge { epoch }));
}

#[test]
fn a_key_serves_as_well_as_none() {
    converse(world(Medium::Ethernet));
    converse(world(Medium::Ip));
}

#[test]
fn the_guests_own_stack_serves_as_well() {
    converse(world(Medium::Ethernet).with_the_guests_stack());
}

/// A client with an unknown key is refused unencrypted and disconnected at once; a client with a
/// key finds the socket free.
fn strangers<D: Device>(mut world: World<D>) {
    for round in 0..20 {
        let (shaking, answer) = shake_hands(&mut world, OTHER).unwrap();
        let refused: Refusal<'_> = read(&answer);
        assert_eq!(refused.code, refusal::BAD_KEY, "round {round}");
        let client = shaking.session;
        assert_eq!(world.frame(client), Err(End::Closed), "round {round}");
        world.peers[client].close();
    }
    let mut client = Sealed::connect(&mut world);
    let status = client.ask(&mut world, &Check {});
    assert_eq!(read::<Status>(&status).peers.bad_key, 20);

    // An altered record gets no answer, not even an orderly close.
    let mut altered = client.client.seal(&encoded(&Check {}));
    altered[5] ^= 0x40;
    let peer = client.client.session;
    world.peers[peer].send(&altered);
    assert!(world.run(SECOND, |world| world.peers[peer].is_over()));
    assert_eq!(world.peers[peer].received(), 0);
    let mut next = Sealed::connect(&mut world);
    let status = next.ask(&mut world, &Check {});
    assert_eq!(read::<Status>(&status).peers.bad_record, 1);
}

#[test]
fn strangers_are_refused_and_leave_their_sockets_free() {
    strangers(world(Medium::Ethernet));
    strangers(world(Medium::Ethernet).with_the_guests_stack());
}

/// After a suspension the connection must be reset, so that the bytes in the sockets' buffers are
/// not sent.
#[test]
fn a_suspension_resets_sealed_connections() {
    let mut world = world(Medium::Ethernet);
    let mut client = Sealed::connect(&mut world);
    let start = Start::running_time("test", 100_000);
    read::<Started>(&client.ask(&mut world, &start));
    world.sample(5_000, 2_000);
    let pending = client.ask(&mut world, &Stop { recording: 0 });
    let epoch = read::<Pending>(&pending).first_epoch;
    let fetch = whole(epoch);
    client.send(&mut world, &encoded(&fetch));
    let peer = client.client.session;
    let received = |world: &mut World<Port>| world.peers[peer].received() > 0;
    assert!(world.run(SECOND, received));
    // Bytes sent before arrive, and their acknowledgements request more.
    for _ in 0..4 {
        world.agent.platform().idle(100_000);
        let now = world.now();
        world.peers[peer].poll(now);
    }
    world.peers[peer].take_bytes();
    world.agent.resume();
    let over = |world: &mut World<Port>| world.peers[peer].is_over();
    assert!(world.run(SECOND, over), "it is reset");
    assert_eq!(world.peers[peer].received(), 0);
    // The socket is free, and the epoch is still there.
    let mut next = Sealed::connect(&mut world);
    assert_eq!(next.fetch(&mut world, epoch).values().sum::<u64>(), 5_000);
}

/// When a poll's time is over, a partly consumed record may be in a session while the rest waits in
/// the socket: only the time returned by the server wakes the guest for them, since the client
/// waits for its answer.
fn leave_work(mut world: World<Port>, step_ns: u64) {
    // The clock's steps are not work: the CPU budget must not delay anything here.
    world.service.set_cpu_share(1000);
    let mut client = Sealed::connect(&mut world);
    let mut plaintext = longest_request().repeat(40);
    plaintext.extend(encoded(&Check {}));
    client.send(&mut world, &plaintext);
    // Each read of the clock takes this long, so that a poll's time ends everywhere in turn.
    let platform = world.agent.platform();
    platform.step_ns.store(step_ns, Ordering::Relaxed);
    // A keep-alive would wake it as well, after 5 s.
    let answer = client.frame(&mut world, 4 * SECOND);
    platform.step_ns.store(0, Ordering::Relaxed);
    let kind = answer.map(|frame| frame.kind);
    assert_eq!(kind, Some(Status::TYPE), "steps of {step_ns} ns");
}

#[test]
fn what_a_poll_has_left_is_done_without_another_packet() {
    for step_ns in (1..24).map(|steps| steps * 5_500) {
        leave_work(world(Medium::Ethernet), step_ns);
        leave_work(world(Medium::Ethernet).with_the_guests_stack(), step_ns);
    }
}
