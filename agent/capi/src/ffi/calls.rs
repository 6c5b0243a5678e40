//! The calls that start the agent, and run it from the guest's loop.

use core::ffi::{c_char, c_void};

use unikprof_agent::{
    Access, Agent, LinkedTableError, ServeError, Service, StartError, busy_answer,
};

use super::access;
use super::arena::Arena;
use super::clock::{Latest, SteadyClock};
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

/// `unikprof_poll` asks to be called again after this time if another call is in progress.
const RETRY_NS: u64 = 1_000_000;

/// Returns the version of the library, which is that of the header it was built with.
#[unsafe(no_mangle)]
pub extern "C" fn unikprof_abi_version() -> u32 {
    UNIKPROF_ABI_VERSION
}

/// Returns what a code means and how to fix it, in English. Never NULL.
#[unsafe(no_mangle)]
pub extern "C" fn unikprof_error_text(code: i32) -> *const c_char {
    status::text(code).as_ptr()
}

/// Returns and clears the error of the last call that returns a deadline; UNIKPROF_OK if there was
/// none. Such calls return a usable deadline even on error. May be called wherever
/// `unikprof_on_tick` may.
#[unsafe(no_mangle)]
pub extern "C" fn unikprof_take_error() -> i32 {
    one::take_noted()
}

/// Returns the minimum length in bytes of `memory` for `unikprof_init` with this configuration, or
/// 0 if the configuration cannot be used. More is better: each distinct stack takes about 100 bytes
/// beyond the minimum.
///
/// # Safety
///
/// For C: `config` is NULL or points to a valid structure.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn unikprof_memory_bytes(config: *const Config) -> usize {
    // SAFETY: guaranteed by the caller.
    unsafe { Wanted::read(config) }.map_or(0, |wanted| wanted.memory_bytes(own_bytes(&wanted)))
}

/// Starts the agent, for as long as the guest runs. It keeps all its state in `memory`, which has
/// `length` bytes, belongs to the agent from then on, and needs no alignment. An image can have one
/// agent.
///
/// Returns UNIKPROF_OK or an error code. On error nothing has changed. Takes up to 40 KiB of stack.
///
/// # Safety
///
/// For C: `config` and `ops` are NULL or point to valid structures; `memory` is NULL or points to
/// `length` bytes that nothing else accesses.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn unikprof_init(
    config: *const Config,
    ops: *const Ops,
    memory: *mut c_void,
    length: usize,
) -> i32 {
    // SAFETY: guaranteed by the caller.
    code_of(unsafe { start(config, ops, memory, length) })
}

/// Installs a caller table that is linked into the image, made by `unikprof-client caller-table`,
/// for recordings that begin before a client has sent one. Requires `caller_memory`. Call it
/// directly after `unikprof_init`: once a client may have connected, or a recording has begun at
/// boot, it returns UNIKPROF_E_TOO_LATE.
///
/// Returns the number of rows in the table, or an error code. The table is copied. Takes as much
/// stack as `unikprof_init`.
///
/// # Safety
///
/// For C: `table` is NULL or points to `length` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn unikprof_install_caller_table(table: *const c_void, length: usize) -> i64 {
    // SAFETY: guaranteed by the caller.
    code_or(unsafe { install(table, length) })
}

/// Does the work that is due: begins and ends recordings, ends the sessions of silent clients, and
/// processes frames if the agent has its own TCP. Call it from the guest's loop with the time
/// `now_ns`, no later than the last call returned, and after all `unikprof_connection_input` and
/// `unikprof_connection_output`: the returned time includes work that these have deferred. Pass
/// frames to `unikprof_frame_rx` before it, and take them from `unikprof_frame_tx` after it.
///
/// Returns when to call it again even if nothing arrives, on the clock of `now_ns` and not earlier
/// than `now_ns`, or UNIKPROF_NO_DEADLINE if there is nothing to do until a client sends something.
/// If another call is in progress, on another CPU or further up the same stack, it does nothing,
/// returns a time one millisecond later, and `unikprof_take_error` returns UNIKPROF_E_BUSY. The
/// work is bounded, and takes up to 16 KiB of stack.
#[unsafe(no_mangle)]
pub extern "C" fn unikprof_poll(now_ns: u64) -> u64 {
    let polled = with_served(|served| {
        served.begun = true;
        let next_ns = match &mut served.network {
            // The network server reports its own work to the CPU budget.
            Some(network) => network.poll(&mut served.service),
            None => {
                let work = served.service.begin_work();
                let next_ns = served.service.advance();
                served.service.end_work(work);
                next_ns
            }
        };
        let platform = served.service.agent().platform();
        Ok(next_ns.map(|at_ns| platform.on_own_clock(at_ns)))
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

/// A client has connected over the guest's own TCP stack. Returns the connection's id, 0 or above,
/// or an error code. On UNIKPROF_E_SESSIONS, send `unikprof_busy_answer` and close the connection.
/// If all sessions are in use, a new connection may replace one whose client has not proved that it
/// holds a key: for that one, `unikprof_connection_output` returns UNIKPROF_E_OVER.
#[unsafe(no_mangle)]
pub extern "C" fn unikprof_connection_open() -> i32 {
    let opened = with_served(|served| {
        served.begun = true;
        let free = served.connections.iter().position(Option::is_none);
        let index = free.ok_or(Misuse(UNIKPROF_E_SESSIONS))?;
        let session = served.service.open().ok_or(Misuse(UNIKPROF_E_SESSIONS))?;
        // An id differs from those of earlier connections in the same place.
        const PLACES: u32 = CONNECTIONS as u32;
        served.opened = (served.opened + 1) & (i32::MAX as u32 / PLACES);
        let id = (served.opened * PLACES) as i32 + index as i32;
        served.connections[index] = Some(Connection { id, session });
        Ok(id)
    });
    opened.unwrap_or_else(|misuse| misuse.0)
}

/// Passes in bytes that a client has sent. Returns how many were accepted, or an error code. Keep
/// the others in the TCP stack, and offer them again in the next turn of the loop. Until then,
/// bytes of this client should not wake the guest: the client does not read its answers, or waits
/// for its part of the CPU share.
///
/// # Safety
///
/// For C: `bytes` is NULL or points to `length` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn unikprof_connection_input(
    connection: i32,
    bytes: *const c_void,
    length: usize,
) -> i64 {
    code_or(with_served(|served| {
        let session = served.find(connection)?.session;
        // SAFETY: guaranteed by the caller.
        let bytes = unsafe { read::bytes(bytes, length)? };
        let work = served.service.begin_work();
        let taken = served.service.receive(session, bytes);
        served.service.end_work(work);
        Ok(taken as i64)
    }))
}

/// Copies out bytes to be sent to a client, at most `length`. Returns the number of bytes, 0 if
/// there are none now, or an error code; UNIKPROF_E_OVER: everything was sent, or the session was
/// ended; close the connection. In each turn of the loop, alternate with
/// `unikprof_connection_input` until neither moves a byte, then call `unikprof_poll`. All bytes
/// that it returns must be sent.
///
/// # Safety
///
/// For C: `buffer` is NULL or points to `length` bytes that nothing else accesses.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn unikprof_connection_output(
    connection: i32,
    buffer: *mut c_void,
    length: usize,
) -> i64 {
    code_or(with_served(|served| {
        let session = served.find(connection)?.session;
        // SAFETY: guaranteed by the caller.
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

/// Ends a conversation whose connection is closed or about to be closed. Recordings that the client
/// has started continue. Returns UNIKPROF_OK or an error code.
#[unsafe(no_mangle)]
pub extern "C" fn unikprof_connection_close(connection: i32) -> i32 {
    code_of(with_served(|served| {
        let session = served.find(connection)?.session;
        served.service.close(session);
        let is_it = |other: &Connection| other.id == connection;
        if let Some(place) = served.connections.iter_mut().find(|it| it.as_ref().is_some_and(is_it))
        {
            *place = None;
        }
        Ok(())
    }))
}

/// Writes the message to send to a client for which there is no session, before its connection is
/// closed. Returns its length, or an error code. A buffer of 128 bytes is always large enough.
///
/// # Safety
///
/// For C: `buffer` is NULL or points to `length` bytes that nothing else accesses.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn unikprof_busy_answer(buffer: *mut c_void, length: usize) -> i64 {
    // SAFETY: guaranteed by the caller.
    code_or(unsafe { read::room(buffer, length) }.and_then(|buffer| {
        match with_served(|served| Ok(served.service.busy_answer(buffer))) {
            // Without an agent there are no keys.
            Err(Misuse(UNIKPROF_E_NOT_STARTED)) => Ok(busy_answer(Access::Open, buffer)),
            answered => answered,
        }
        .map(|length| length as i64)
    }))
}

/// The guest's device has received an Ethernet frame. The frame is copied, and the next
/// `unikprof_poll` processes it; up to 16 frames are queued. Call it from the loop, not from an
/// upcall. Returns UNIKPROF_OK or an error code; UNIKPROF_E_FULL: the frame was dropped, and TCP
/// will send it again.
///
/// # Safety
///
/// For C: `frame` is NULL or points to `length` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn unikprof_frame_rx(frame: *const c_void, length: usize) -> i32 {
    code_of(with_network(|network| {
        // SAFETY: guaranteed by the caller.
        network.receive(unsafe { read::bytes(frame, length)? })
    }))
}

/// Copies out the next frame for the guest's device to send; `length` must be at least
/// UNIKPROF_MAX_FRAME. Returns the frame's length, 0 if there is none now, or an error code. Call
/// it after each `unikprof_poll` until it returns 0. If it returned frames, poll again: there may
/// be more.
///
/// # Safety
///
/// For C: `buffer` is NULL or points to `length` bytes that nothing else accesses.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn unikprof_frame_tx(buffer: *mut c_void, length: usize) -> i64 {
    code_or(with_network(|network| {
        // SAFETY: guaranteed by the caller.
        network.send(unsafe { read::room(buffer, length)? })
    }))
}

const LATEST_BYTES: usize = size_of::<Latest>();

/// Bytes that the agent keeps in the memory in addition to those that `Wanted` counts, for any
/// alignment.
fn own_bytes(wanted: &Wanted<'_>) -> usize {
    let network = size_of::<NetworkMemory>() + align_of::<NetworkMemory>();
    let has_network = !wanted.config().network.is_null();
    let latest = (wanted.config().vcpus as usize).saturating_add(2).saturating_mul(LATEST_BYTES);
    let own = size_of::<State>() + align_of::<State>() + if has_network { network } else { 0 };
    own.saturating_add(latest)
}

/// # Safety
///
/// See [`unikprof_init`].
unsafe fn start(
    config: *const Config,
    ops: *const Ops,
    memory: *mut c_void,
    length: usize,
) -> Result<(), Misuse> {
    let claim = Claim::take()?;
    claim.expect_none()?;
    // SAFETY: guaranteed by the caller.
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
        // SAFETY: all fields are `MaybeUninit`.
        Some(_) => Some(unsafe { arena.place::<NetworkMemory>().ok_or(short)?.assume_init_mut() }),
        None => None,
    };
    let latest = arena.places::<Latest>(agent_config.vcpus as usize + 1).ok_or(short)?;
    // SAFETY: the bytes are those of `latest`, which holds atomic integers: 0 is valid.
    let latest = unsafe {
        latest.as_mut_ptr().write_bytes(0, latest.len());
        latest.assume_init_ref()
    };
    let clock = SteadyClock::new(latest);
    let guest = Guest::new(ops, clock);
    let mut agent = Agent::new(guest, agent_config, arena.rest()).map_err(|error| {
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
    #[cfg(feature = "heap")]
    {
        // SAFETY: as above, for the fourth block.
        let live = unsafe { Arena::new(config.live_memory.cast(), config.live_memory_length) };
        if !config.live_memory.is_null() {
            agent = agent.with_live_memory(live.rest());
        }
    }
    #[cfg(feature = "trace")]
    if !config.trace_memory.is_null() {
        // SAFETY: as above, for the fifth block.
        let block = unsafe { Arena::new(config.trace_memory.cast(), config.trace_memory_length) };
        agent = agent.with_trace(block.rest(), read::trace_stacks(config));
        if !agent.can_trace() {
            return Err(Misuse(crate::status::UNIKPROF_E_TRACE));
        }
    }
    // SAFETY: room for one state, aligned and exclusive.
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
        #[cfg(feature = "heap")]
        super::heap::hooks::begin(&(*place).agent);
        claim.publish(place);
    }
    Ok(())
}

/// Writes `served` of a state.
///
/// # Safety
///
/// `place` points to a state to which nobody else has access; its agent and keys are initialized
/// and will not move. `served` is uninitialized.
unsafe fn serve(place: *mut State) -> Result<(), Misuse> {
    // SAFETY: guaranteed by the caller.
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
    // SAFETY: as above. The service is written directly into its field: building the surrounding
    // structure first would need its size on the stack a second time.
    unsafe {
        let served = (&raw mut (*place).served).cast::<Served>();
        match Service::new(agent, access::access(keys)) {
            Ok(service) => (&raw mut (*served).service).write(service),
            Err(error) => return Err(refused(error)),
        }
        if (*place).cpu_share_permille != 0 {
            // Set in place: changing the service before it is written would put it on the stack
            // twice.
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

/// Overwrites a state that was dropped. Padding and unused room of its values may hold bytes of the
/// stack from which they were copied, and keys were read on that stack.
///
/// # Safety
///
/// `state` points to memory for a state, and no part of it is in use.
unsafe fn erase(state: *mut State) {
    // SAFETY: guaranteed by the caller.
    unsafe { state.write_bytes(0, 1) };
}

/// # Safety
///
/// See [`unikprof_install_caller_table`].
unsafe fn install(table: *const c_void, length: usize) -> Result<i64, Misuse> {
    let mut claim = Claim::take()?;
    let served = claim.served()?;
    if served.begun || served.records {
        return Err(Misuse(UNIKPROF_E_TOO_LATE));
    }
    // SAFETY: guaranteed by the caller.
    let table = unsafe { read::bytes(table, length)? };
    let installed = served.service.agent().install_caller_table(table);
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
    // A recording that begins in the call begins with the next allocation.
    settle_allocations(false);
    let result = work(claim.served()?);
    settle_allocations(true);
    result
}

#[inline(never)]
fn settle_allocations(goes_on: bool) {
    #[cfg(feature = "heap")]
    let _ = one::upcall(|agent| super::heap::hooks::settle(agent, goes_on));
    let _ = goes_on;
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
