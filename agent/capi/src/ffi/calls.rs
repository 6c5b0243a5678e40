//! The calls of the guest's start, its loop and its end.

use core::ffi::{c_char, c_void};

use unikprof_agent::{
    Access, Agent, LinkedTableError, ServeError, Service, StartError, busy_answer,
};

use super::access;
use super::arena::Arena;
use super::guest::Guest;
use super::one::{self, CONNECTIONS, Claim, Connection, Served, State};
use super::read::{self, Wanted};
use crate::abi::{Config, Ops, UNIKPROF_ABI_VERSION, UNIKPROF_NO_DEADLINE};
use crate::network::{Network, NetworkMemory};
use crate::status::{
    self, Misuse, UNIKPROF_E_BUSY, UNIKPROF_E_CONNECTION, UNIKPROF_E_KEYS, UNIKPROF_E_MAPPINGS,
    UNIKPROF_E_MEMORY, UNIKPROF_E_NO_NETWORK, UNIKPROF_E_NOT_STARTED, UNIKPROF_E_NULL,
    UNIKPROF_E_OTHER_IMAGE, UNIKPROF_E_OVER, UNIKPROF_E_RANDOM, UNIKPROF_E_RECORDINGS,
    UNIKPROF_E_SESSIONS, UNIKPROF_E_STARTED, UNIKPROF_E_TABLE, UNIKPROF_E_TABLE_ROOM,
    UNIKPROF_E_TOO_LATE, UNIKPROF_E_UNSUPPORTED, UNIKPROF_E_VCPUS, UNIKPROF_OK,
};

/// When to come back where another call is under way.
const RETRY_NS: u64 = 1_000_000;

/// The version of the library: that of the header it was built with.
#[unsafe(no_mangle)]
pub extern "C" fn unikprof_abi_version() -> u32 {
    UNIKPROF_ABI_VERSION
}

/// What a code means and what to do about it, in English. Never NULL.
#[unsafe(no_mangle)]
pub extern "C" fn unikprof_error_text(code: i32) -> *const c_char {
    status::text(code).as_ptr()
}

/// What was wrong with the last call that answers a deadline, UNIKPROF_OK where nothing was; it is
/// forgotten by being asked for. Such calls answer a deadline that can be used all the same.
#[unsafe(no_mangle)]
pub extern "C" fn unikprof_take_error() -> i32 {
    one::take_noted()
}

/// The least memory that `unikprof_init` takes for this configuration, in bytes; 0 where it cannot be
/// used. More is better: of what is beyond, a distinct stack takes about 100 bytes.
///
/// # Safety
/// C's: `config` is NULL or leads to a structure of its kind.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn unikprof_memory_bytes(config: *const Config) -> usize {
    // SAFETY: the caller's promise.
    unsafe { Wanted::read(config) }.map_or(0, |wanted| wanted.memory_bytes(own_bytes(&wanted)))
}

/// Starts the agent. It keeps all it ever needs in `memory`, which has `length` bytes, belongs to the
/// agent until `unikprof_stop`, and may be aligned in any way. An image can have one agent.
///
/// Answers UNIKPROF_OK, or a code, and then nothing has changed. Takes up to 40 KiB of stack.
///
/// # Safety
/// C's: `config` and `ops` are NULL or lead to structures of their kinds; `memory` is NULL or leads to
/// `length` bytes that are nobody else's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn unikprof_init(
    config: *const Config,
    ops: *const Ops,
    memory: *mut c_void,
    length: usize,
) -> i32 {
    // SAFETY: the caller's promise.
    code_of(unsafe { start(config, ops, memory, length) })
}

/// Installs a caller table that is linked into the image, as `unikprof-client caller-table` makes it, for
/// recordings that begin before a client has sent one. `caller_memory` must have been given. Call it right
/// behind `unikprof_init`: once clients are served, or a recording has begun at boot, it is too late.
///
/// Answers the rows of the table, or a code. The table is copied. Takes as much stack as `unikprof_init`.
///
/// # Safety
/// C's: `table` is NULL or leads to `length` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn unikprof_install_caller_table(table: *const c_void, length: usize) -> i64 {
    // SAFETY: the caller's promise.
    code_or(unsafe { install(table, length) })
}

/// Does what time has come for: recordings begin and end, silent clients are given up. Call it from the
/// guest's loop, with its time `now_ns`, at the latest when the last answer says, and behind all
/// `unikprof_connection_input` and `unikprof_connection_output`: what these leave to be done later is part
/// of the answer. Frames are given by `unikprof_frame_rx` before it, and taken by `unikprof_frame_tx` behind it.
///
/// Answers when to call it again though nothing comes, on the clock of `now_ns` and not before it;
/// UNIKPROF_NO_DEADLINE: only a client can change anything. Where another call is under way, on another
/// CPU or below this one, it does nothing and answers one millisecond later; `unikprof_take_error` then
/// says so. The work is bounded, and takes up to 16 KiB of stack.
#[unsafe(no_mangle)]
pub extern "C" fn unikprof_poll(now_ns: u64) -> u64 {
    let polled = with_served(|served| {
        served.begun = true;
        Ok(match &mut served.network {
            // Marks its work itself.
            Some(network) => network.poll(&mut served.service),
            None => {
                let work = served.service.begin_work();
                let next_ns = served.service.advance();
                served.service.end_work(work);
                next_ns
            }
        })
    });
    match polled {
        Ok(next_ns) => next_ns.unwrap_or(UNIKPROF_NO_DEADLINE).max(now_ns),
        Err(misuse) => {
            one::note(misuse);
            if misuse == Misuse(UNIKPROF_E_BUSY) {
                now_ns.saturating_add(RETRY_NS)
            } else {
                UNIKPROF_NO_DEADLINE
            }
        }
    }
}

/// A client has connected, over the guest's own TCP stack. Answers the connection's id, 0 or above, or a
/// code; UNIKPROF_E_SESSIONS: send `unikprof_busy_answer` and close. Where all sessions are taken, one whose
/// client has not shown who it is may make room: `unikprof_connection_output` answers UNIKPROF_E_OVER there.
#[unsafe(no_mangle)]
pub extern "C" fn unikprof_connection_open() -> i32 {
    let opened = with_served(|served| {
        served.begun = true;
        let free = served.connections.iter().position(Option::is_none);
        let index = free.ok_or(Misuse(UNIKPROF_E_SESSIONS))?;
        let session = served.service.open().ok_or(Misuse(UNIKPROF_E_SESSIONS))?;
        // An id of the past is not taken for one of today.
        const PLACES: u32 = CONNECTIONS as u32;
        served.opened = (served.opened + 1) & (i32::MAX as u32 / PLACES);
        let id = (served.opened * PLACES) as i32 + index as i32;
        served.connections[index] = Some(Connection { id, session });
        Ok(id)
    });
    opened.unwrap_or_else(|misuse| misuse.0)
}

/// Takes bytes that a client has sent. Answers how many it took, or a code. Leave the rest in the TCP stack,
/// and offer it again in the next turn of the loop; until then no bytes of this client should wake the guest: it
/// does not take its answers, or waits for its part of the CPU share.
///
/// # Safety
/// C's: `bytes` is NULL or leads to `length` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn unikprof_connection_input(
    connection: i32,
    bytes: *const c_void,
    length: usize,
) -> i64 {
    code_or(with_served(|served| {
        let session = served.find(connection)?.session;
        // SAFETY: the caller's promise.
        let bytes = unsafe { read::bytes(bytes, length)? };
        let work = served.service.begin_work();
        let taken = served.service.receive(session, bytes);
        served.service.end_work(work);
        Ok(taken as i64)
    }))
}

/// Gives bytes that a client is to be sent, at most `length`. Answers how many there are, 0: none for now,
/// or a code; UNIKPROF_E_OVER: all was sent, or the client was given up, and the connection is to be
/// closed. In each turn of the loop, alternate with `unikprof_connection_input` until neither moves a byte, then
/// call `unikprof_poll`; what was given must be sent.
///
/// # Safety
/// C's: `buffer` is NULL or leads to `length` bytes that are nobody else's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn unikprof_connection_output(
    connection: i32,
    buffer: *mut c_void,
    length: usize,
) -> i64 {
    code_or(with_served(|served| {
        let session = served.find(connection)?.session;
        // SAFETY: the caller's promise.
        let buffer = unsafe { read::room(buffer, length)? };
        if served.service.is_given_up(session) {
            return Err(Misuse(UNIKPROF_E_OVER));
        }
        let work = served.service.begin_work();
        let given = served.service.transmit(session, buffer);
        served.service.end_work(work);
        if given == 0 && served.service.is_over(session) {
            return Err(Misuse(UNIKPROF_E_OVER));
        }
        Ok(given as i64)
    }))
}

/// Ends a conversation whose connection is gone or is to be closed. What the client had started goes on.
/// Answers UNIKPROF_OK or a code.
#[unsafe(no_mangle)]
pub extern "C" fn unikprof_connection_close(connection: i32) -> i32 {
    code_of(with_served(|served| {
        let session = served.find(connection)?.session;
        served.service.close(session);
        let is_it = |other: &Connection| other.id == connection;
        if let Some(place) = served
            .connections
            .iter_mut()
            .find(|it| it.as_ref().is_some_and(is_it))
        {
            *place = None;
        }
        Ok(())
    }))
}

/// What to send on a connection for which there is no session, before it is closed. Answers its length, or
/// a code; 128 bytes are room enough.
///
/// # Safety
/// C's: `buffer` is NULL or leads to `length` bytes that are nobody else's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn unikprof_busy_answer(buffer: *mut c_void, length: usize) -> i64 {
    // SAFETY: the caller's promise.
    code_or(unsafe { read::room(buffer, length) }.and_then(|buffer| {
        match with_served(|served| Ok(served.service.busy_answer(buffer))) {
            // Nobody has keys where there is no agent.
            Err(Misuse(UNIKPROF_E_NOT_STARTED)) => Ok(busy_answer(Access::Open, buffer)),
            answered => answered,
        }
        .map(|length| length as i64)
    }))
}

/// The guest's device has received a frame of Ethernet. It is copied and looked at by the next
/// `unikprof_poll`; 16 wait at the most. From the loop, not from an upcall. Answers UNIKPROF_OK or a code;
/// UNIKPROF_E_FULL: it was dropped, as a network may.
///
/// # Safety
/// C's: `frame` is NULL or leads to `length` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn unikprof_frame_rx(frame: *const c_void, length: usize) -> i32 {
    code_of(with_network(|network| {
        // SAFETY: the caller's promise.
        network.receive(unsafe { read::bytes(frame, length)? })
    }))
}

/// Gives the next frame that the guest's device is to send; `length` is at least UNIKPROF_MAX_FRAME. Answers
/// the frame's length, 0: none for now, or a code. Ask behind each `unikprof_poll` until it answers 0, and
/// poll again where it gave frames: there may be more.
///
/// # Safety
/// C's: `buffer` is NULL or leads to `length` bytes that are nobody else's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn unikprof_frame_tx(buffer: *mut c_void, length: usize) -> i64 {
    code_or(with_network(|network| {
        // SAFETY: the caller's promise.
        network.send(unsafe { read::room(buffer, length)? })
    }))
}

/// Ends the agent; its memory is the guest's again. A recording that was not downloaded is gone, and its
/// clients notice by the end of their connections, which the guest closes. Returns UNIKPROF_OK or a code:
/// UNIKPROF_E_BUSY while another call is under way or an upcall comes, and then nothing has changed; call it
/// again.
#[unsafe(no_mangle)]
pub extern "C" fn unikprof_stop() -> i32 {
    code_of(Claim::take().and_then(|claim| {
        let state = claim.withdraw()?;
        // SAFETY: a whole state, and nobody else's any more.
        unsafe {
            core::ptr::drop_in_place(state);
            erase(state);
        }
        Ok(())
    }))
}

/// What the agent keeps in the memory beside what `Wanted` knows of, aligned in any way.
fn own_bytes(wanted: &Wanted<'_>) -> usize {
    let network = size_of::<NetworkMemory>() + align_of::<NetworkMemory>();
    let has_network = !wanted.config().network.is_null();
    size_of::<State>() + align_of::<State>() + if has_network { network } else { 0 }
}

/// # Safety
/// As for [`unikprof_init`].
unsafe fn start(
    config: *const Config,
    ops: *const Ops,
    memory: *mut c_void,
    length: usize,
) -> Result<(), Misuse> {
    let claim = Claim::take()?;
    claim.expect_none()?;
    // SAFETY: the caller's promise.
    let wanted = unsafe { Wanted::read(config)? };
    // SAFETY: as above.
    let ops = unsafe { read::ops(ops, wanted.config().vcpus)? };
    if memory.is_null() {
        return Err(Misuse(UNIKPROF_E_NULL));
    }
    // SAFETY: as above.
    let place_in_network = unsafe { wanted.network()? };
    let short = Misuse(UNIKPROF_E_MEMORY);
    if length < wanted.memory_bytes(own_bytes(&wanted)) || isize::try_from(length).is_err() {
        return Err(short);
    }
    // SAFETY: as above.
    let mut arena = unsafe { Arena::new(memory.cast(), length) };
    let place = arena.place::<State>().ok_or(short)?.as_mut_ptr();
    // SAFETY: as above.
    let agent_config = unsafe { wanted.copy_to(&mut arena)? };
    let network_memory = match &place_in_network {
        // SAFETY: nothing of it needs to be there yet.
        Some(_) => Some(unsafe {
            arena
                .place::<NetworkMemory>()
                .ok_or(short)?
                .assume_init_mut()
        }),
        None => None,
    };
    let mut agent = Agent::new(Guest(ops), agent_config, arena.rest()).map_err(|error| {
        Misuse(match error {
            StartError::NoVcpu => UNIKPROF_E_VCPUS,
            StartError::Recordings(_) => UNIKPROF_E_RECORDINGS,
            StartError::Memory(_) => UNIKPROF_E_MEMORY,
            StartError::Mappings(_) => UNIKPROF_E_MAPPINGS,
        })
    })?;
    let config = wanted.config();
    // SAFETY: as above, for the other block.
    let callers = unsafe { Arena::new(config.caller_memory.cast(), config.caller_memory_length) };
    if !config.caller_memory.is_null() {
        agent = agent.with_caller_memory(callers.rest());
    }
    // SAFETY: as above, for the third block.
    let ring = unsafe { Arena::new(config.ring.cast(), config.ring_length) };
    if cfg!(feature = "ring") && !config.ring.is_null() {
        agent = agent.with_ring(ring.rest());
    }
    // SAFETY: room for a state, aligned, and nobody else's.
    unsafe {
        (&raw mut (*place).agent).write(agent);
        (&raw mut (*place).keys).write(None);
        (&raw mut (*place).cpu_share_permille).write(config.cpu_share_permille);
        let served = access::read_keys(wanted.config(), &mut (*place).keys);
        if let Err(misuse) = served.and_then(|()| serve(place)) {
            core::ptr::drop_in_place(&raw mut (*place).keys);
            core::ptr::drop_in_place(&raw mut (*place).agent);
            erase(place);
            return Err(misuse);
        }
        let served = (*place).served.get_mut();
        if let (Some(wanted), Some(memory)) = (place_in_network, network_memory) {
            served.network = match Network::new(&wanted, &served.service, memory) {
                Ok(network) => Some(network),
                Err(misuse) => {
                    core::ptr::drop_in_place(place);
                    erase(place);
                    return Err(misuse);
                }
            };
        }
        claim.publish(place);
    }
    Ok(())
}

/// Writes what serves the agent of a state.
///
/// # Safety
/// `place` leads to a state that is nobody else's, and whose agent and keys are there and move no more.
/// `served` is not, or was dropped.
unsafe fn serve(place: *mut State) -> Result<(), Misuse> {
    // SAFETY: the caller's promise.
    let agent: &'static Agent<'static, Guest> = unsafe { &(*place).agent };
    // SAFETY: as above.
    let keys = unsafe { (*place).keys.as_ref() };
    let refused = |error| {
        Misuse(match error {
            ServeError::Served => UNIKPROF_E_STARTED,
            ServeError::NoKeys => UNIKPROF_E_KEYS,
            ServeError::NoRandomness => UNIKPROF_E_RANDOM,
        })
    };
    // SAFETY: as above. The service is written by itself: a structure around it would lie on the stack once more.
    unsafe {
        let served = (&raw mut (*place).served).cast::<Served>();
        match Service::new(agent, access::access(keys)) {
            Ok(service) => (&raw mut (*served).service).write(service),
            Err(error) => return Err(refused(error)),
        }
        if (*place).cpu_share_permille != 0 {
            // In its place: a service that is changed before it is written lies on the stack twice.
            (*served).service.set_cpu_share((*place).cpu_share_permille);
        }
        (&raw mut (*served).network).write(None);
        (&raw mut (*served).connections).write([None; CONNECTIONS]);
        (&raw mut (*served).opened).write(0);
        (&raw mut (*served).begun).write(false);
        (&raw mut (*served).records).write(false);
    }
    Ok(())
}

/// Overwrites a state that was dropped. What the compiler copies into it brings along bytes of the stack where
/// a value has padding or unused room, and keys were read on that stack.
///
/// # Safety
/// `state` leads to memory for a state, none of which is used any more.
unsafe fn erase(state: *mut State) {
    // SAFETY: the caller's promise.
    unsafe { state.write_bytes(0, 1) };
}

/// # Safety
/// As for [`unikprof_install_caller_table`].
unsafe fn install(table: *const c_void, length: usize) -> Result<i64, Misuse> {
    let mut claim = Claim::take()?;
    let served = claim.served()?;
    if served.begun || served.records {
        return Err(Misuse(UNIKPROF_E_TOO_LATE));
    }
    // SAFETY: the caller's promise.
    let table = unsafe { read::bytes(table, length)? };
    let state = claim.withdraw()?;
    // SAFETY: a whole state and nobody else's. What serves it refers to the agent, and makes room while
    // that changes.
    let installed = unsafe {
        let network = (*state).served.get_mut().network.take();
        core::ptr::drop_in_place(&raw mut (*state).served);
        let installed = (*state).agent.install_caller_table(table);
        if let Err(misuse) = serve(state) {
            // It was served a moment ago; the random numbers are gone. There is no agent any more.
            core::ptr::drop_in_place(&raw mut (*state).keys);
            core::ptr::drop_in_place(&raw mut (*state).agent);
            erase(state);
            return Err(misuse);
        }
        (*state).served.get_mut().network = network;
        claim.publish(state);
        installed
    };
    installed.map(i64::from).map_err(|error| {
        Misuse(match error {
            LinkedTableError::File(_) => UNIKPROF_E_TABLE,
            LinkedTableError::OtherArchitecture(_) | LinkedTableError::OtherImage => {
                UNIKPROF_E_OTHER_IMAGE
            }
            LinkedTableError::TooLarge { .. } => UNIKPROF_E_TABLE_ROOM,
        })
    })
}

pub(super) fn with_served<R>(
    work: impl FnOnce(&mut Served) -> Result<R, Misuse>,
) -> Result<R, Misuse> {
    let mut claim = Claim::take()?;
    work(claim.served()?)
}

fn with_network<R>(work: impl FnOnce(&mut Network) -> Result<R, Misuse>) -> Result<R, Misuse> {
    with_served(|served| {
        served.begun = true;
        let none = Misuse(if cfg!(feature = "smoltcp") {
            UNIKPROF_E_NO_NETWORK
        } else {
            UNIKPROF_E_UNSUPPORTED
        });
        work(served.network.as_mut().ok_or(none)?)
    })
}

impl Served {
    fn find(&self, id: i32) -> Result<Connection, Misuse> {
        let mut connections = self.connections.iter().flatten();
        let found = connections.find(|connection| connection.id == id);
        found.copied().ok_or(Misuse(UNIKPROF_E_CONNECTION))
    }
}

pub(super) fn code_of(done: Result<(), Misuse>) -> i32 {
    done.map_or_else(|misuse| misuse.0, |()| UNIKPROF_OK)
}

pub(super) fn code_or(done: Result<i64, Misuse>) -> i64 {
    done.unwrap_or_else(|misuse| misuse.0.into())
}
