//! Traces functions: sends the probes, follows the rings, and fetches what was counted.

use std::collections::BTreeSet;
use std::path::Path;
use std::time::{Duration, Instant};

use unikprof_proto::code::{refusal, trace_flag, trace_state};
use unikprof_proto::frame::{self, Frame, MAX_BODY, Message};
use unikprof_proto::message::{
    TraceArm, TraceArmed, TraceBegin, TraceCallers, TraceEnd, TraceFetch, TraceFunctions,
    TraceProbes, TraceReady, TraceRefused, TraceState, TraceStop, TraceTotals,
};
use unikprof_proto::trace::{
    Encoder, Function, MAX_FUNCTION_BYTES, MAX_PROBE_BYTES, Probe, decode_callers, decode_totals,
};

use super::rings::{RingsReceived, Wanted};
use super::session::{Attempt, Session};
use super::{Event, Observer, Outcome, RecordError};
use crate::connection::{Connection, ConnectionError, TRACING};
use unikprof_profile::frame_reader;
use unikprof_profile::recording::{
    FileCaller, FileFunction, FileTrace, KnownNodes, RecordingWriter,
};
use unikprof_profile::trace::{Order, TraceError};

const DOING: &str = TRACING;

/// The time between two looks at the rings, and between two requests for the counts.
const BETWEEN_LOOKS: Duration = Duration::from_millis(200);
const BETWEEN_COUNTS: Duration = Duration::from_secs(1);

/// What the head of a message of functions or probes takes: the trace, the index of the first,
/// their number and their length.
const RUN_HEAD: usize = 10 + 5 + 5 + 3;

/// What the agent is asked to trace.
#[derive(Debug, Clone, Default)]
pub struct TraceOrder {
    pub(crate) order: Order,
    pub(crate) functions: Vec<OrderedFunction>,
    /// Functions that cannot be traced, and why.
    pub(crate) refused: Vec<(String, String)>,
    /// How long to trace, in ns; 0: until interrupted.
    pub(crate) duration_ns: u64,
}

/// A function of an order, in the agent's codes.
#[derive(Debug, Clone)]
pub struct OrderedFunction {
    pub(crate) name: String,
    /// See [`function_flag`](unikprof_proto::trace::function_flag).
    pub(crate) flags: u32,
    pub(crate) parts: Vec<(u32, u32)>,
    pub(crate) probes: Vec<OrderedProbe>,
}

/// A probe of an order.
#[derive(Debug, Clone)]
pub struct OrderedProbe {
    pub(crate) kind: u8,
    pub(crate) code: u32,
    pub(crate) displacement: u8,
    pub(crate) instruction: Vec<u8>,
}

/// Traces functions and writes what happened into a recording file. `name_of` gives the name of the
/// function that holds a code.
///
/// Whatever goes wrong once probes may be set, the agent is asked to remove them. If that does not
/// reach it, it removes them itself after [`TraceReady::patience_ns`].
pub fn trace(
    session: &mut Session,
    order: &TraceOrder,
    path: &Path,
    name_of: &dyn Fn(u32) -> Option<String>,
    observer: &mut dyn Observer,
) -> Result<Outcome, RecordError> {
    if !order.order.count_only && !session.agent().keeps_time() {
        return Err(RecordError::NoRing);
    }
    let mut writer = session.create_recording(path)?;
    write_order(&mut writer, order)?;
    let begun = session.set_up_trace(order, observer)?;
    let trace = begun.ready.trace;
    let nodes = KnownNodes::new(session.agent().segment_nodes);
    let mut tracer = Tracer {
        session,
        writer,
        trace,
        whole: Vec::new(),
        counts: None,
        rings: (!order.order.count_only).then(|| RingsOfTrace {
            received: RingsReceived::default(),
            nodes,
            since_ns: begun.armed.started_ns,
        }),
    };
    let followed = tracer.follow(order, &begun, observer);
    tracer.end(name_of, followed, observer)
}

/// The agent's answers to a trace's beginning.
struct Begun {
    ready: TraceReady,
    armed: TraceArmed,
    /// The frames of these and of the functions that it refused, as they came.
    frames: Vec<u8>,
}

struct RingsOfTrace {
    received: RingsReceived,
    nodes: KnownNodes,
    since_ns: u64,
}

struct Tracer<'s> {
    session: &'s mut Session,
    writer: RecordingWriter,
    trace: u64,
    /// The lengths of the file behind what is in it of each answer.
    whole: Vec<u64>,
    /// The newest that were fetched.
    counts: Option<Counts>,
    rings: Option<RingsOfTrace>,
}

impl Tracer<'_> {
    /// Fetches records until the trace's time is over or the user wants it to end.
    fn follow(
        &mut self,
        order: &TraceOrder,
        begun: &Begun,
        observer: &mut dyn Observer,
    ) -> Result<(), RecordError> {
        self.writer.append(&begun.frames)?;
        let began = Instant::now();
        let end = match order.duration_ns {
            0 => None,
            ns => Some(crate::deadline::after(Duration::from_nanos(ns))),
        };
        let mut next_count = began;
        loop {
            self.drain(observer)?;
            if Instant::now() >= next_count {
                next_count = Instant::now() + BETWEEN_COUNTS;
                let counts = self.session.fetch_trace(self.trace, observer)?;
                observer.event(Event::Tracing {
                    state: &counts.state,
                    calls: counts.calls,
                    duration_ns: order.duration_ns,
                });
                let is_armed = counts.state.state == trace_state::ARMED;
                self.counts = Some(counts);
                if !is_armed {
                    return Ok(());
                }
            }
            let left = end.map(|end| end.saturating_duration_since(Instant::now()));
            let wait = left.map_or(BETWEEN_LOOKS, |left| left.min(BETWEEN_LOOKS));
            if left.is_some_and(|left| left.is_zero()) {
                return Ok(());
            }
            if self.session.sleep(wait) {
                return Ok(());
            }
        }
    }

    /// Removes the probes, fetches the rest and ends the file.
    fn end(
        mut self,
        name_of: &dyn Fn(u32) -> Option<String>,
        followed: Result<(), RecordError>,
        observer: &mut dyn Observer,
    ) -> Result<Outcome, RecordError> {
        let rest = followed.and_then(|()| {
            self.session.stop_trace(self.trace, observer)?;
            self.drain(observer)?;
            self.counts = Some(self.session.fetch_trace(self.trace, observer)?);
            Ok(())
        });
        if let Err(error) = &rest {
            self.session.abandon_trace(self.trace, observer);
            // Where only the disk is at fault, the guest tells the last counts.
            if matches!(error, RecordError::Output(_))
                && let Ok(newest) = self.session.fetch_trace(self.trace, observer)
            {
                self.counts = Some(newest);
            }
        }
        let mut counts = Vec::new();
        if let Some(newest) = self.counts.take() {
            counts = newest.frames;
            for code in newest.callers {
                if let Some(name) = name_of(code) {
                    let name = cut(&name);
                    counts.extend(encoded(&FileCaller { code, name })?);
                }
            }
        }
        close(self.writer, &self.whole, &counts, rest.err())
    }

    fn drain(&mut self, observer: &mut dyn Observer) -> Result<(), RecordError> {
        let Some(rings) = &mut self.rings else {
            return Ok(());
        };
        let wanted = Wanted { since_ns: rings.since_ns, most_bytes: 0 };
        let writer = &mut self.writer;
        let (received, nodes) = (&mut rings.received, &mut rings.nodes);
        let whole = &mut self.whole;
        self.session.fetch_rings(wanted, received, nodes, observer, &mut |frames| {
            writer.append(frames)?;
            whole.extend(writer.length()?);
            Ok(())
        })
    }
}

/// Ends a trace's file with its counts. If the file cannot be written on, it is cut to the longest
/// of the lengths `whole` that leaves room for these.
fn close(
    mut writer: RecordingWriter,
    whole: &[u64],
    counts: &[u8],
    incomplete: Option<RecordError>,
) -> Result<Outcome, RecordError> {
    let end = |writer: &mut RecordingWriter, incomplete: Option<&RecordError>| {
        let reason = incomplete.map(ToString::to_string);
        writer.append(counts)?;
        writer.end(reason.as_deref())?;
        writer.publish_here_or_beside()
    };
    let outcome = |writer: &RecordingWriter, displaced, incomplete| {
        let path = writer.path().to_owned();
        Ok(Outcome { path, displaced, incomplete, unacknowledged: None })
    };
    let unwritten = match incomplete {
        Some(unwritten @ RecordError::Output(_)) => unwritten,
        other => match end(&mut writer, other.as_ref()) {
            Ok(displaced) => return outcome(&writer, displaced, other),
            Err(error) => error.into(),
        },
    };
    for length in whole.iter().rev() {
        writer = writer.cut_back_to(*length)?;
        if let Ok(displaced) = end(&mut writer, Some(&unwritten)) {
            return outcome(&writer, displaced, Some(unwritten));
        }
    }
    Err(unwritten)
}

/// What was counted so far.
struct Counts {
    state: TraceState,
    /// The calls of all functions.
    calls: u64,
    /// The codes of all callers.
    callers: BTreeSet<u32>,
    /// The frames of the answer, as they came.
    frames: Vec<u8>,
}

impl Session {
    /// Sends the functions and their probes, and sets these. The first request to stop ends this,
    /// and removes the probes that are set.
    fn set_up_trace(
        &mut self,
        order: &TraceOrder,
        observer: &mut dyn Observer,
    ) -> Result<Begun, RecordError> {
        let mut trace = None;
        let begun =
            self.quitting_at_first(|session| session.begin_trace(order, &mut trace, observer));
        if begun.is_err()
            && let Some(trace) = trace
        {
            self.abandon_trace(trace, observer);
        }
        begun
    }

    /// All of it is repeated on a new connection: the agent ends what this client has begun.
    /// `begun` is the trace's id, as soon as it is known.
    fn begin_trace(
        &mut self,
        order: &TraceOrder,
        begun: &mut Option<u64>,
        observer: &mut dyn Observer,
    ) -> Result<Begun, RecordError> {
        let max_request = self.agent().max_request;
        let probes: usize = order.functions.iter().map(|it| it.probes.len()).sum();
        let begin = TraceBegin {
            functions: order.functions.len() as u32,
            probes: u32::try_from(probes).unwrap_or(u32::MAX),
            flags: if order.order.count_only { trace_flag::COUNT } else { 0 },
            max_cost_permille: order.order.max_cost_permille,
            slow_ns: order.order.slow_ns,
        };
        let setting_up = Event::SettingUp { functions: order.functions.len(), probes };
        observer.event(setting_up);
        self.persist(observer, |connection, _| {
            let ready: TraceReady = connection.ask(&begin, "permission to send a trace", DOING)?;
            *begun = Some(ready.trace);
            let mut frames = connection.received().to_vec();
            let messages = messages(order, ready.trace, max_request).map_err(Attempt::Failed)?;
            for message in messages {
                let sent = connection.send_frames(&message, DOING);
                sent.map_err(Attempt::while_pipelined)?;
            }
            let arm = TraceArm { trace: ready.trace };
            let armed: TraceArmed = connection.ask(&arm, "the start of a trace", DOING)?;
            check_trace(ready.trace, armed.trace)?;
            frames.extend_from_slice(connection.received());
            let functions = order.functions.len();
            for _ in 0..armed.refused.min(functions as u32) {
                let refused: TraceRefused =
                    connection.answer("a function that is not traced", DOING)?;
                if refused.function as usize >= functions {
                    return Err(failed(TraceError::Function {
                        found: refused.function,
                        functions,
                    }));
                }
                frames.extend_from_slice(connection.received());
            }
            Ok(Begun { ready, armed, frames })
        })
    }

    /// Asks the agent over a new connection to remove a trace's probes: answers to earlier requests
    /// may be on their way in the old one, and the user may have given up.
    fn abandon_trace(&mut self, trace: u64, observer: &mut dyn Observer) {
        self.renew();
        // The first error is the one to tell.
        let is_restored = match self.stop_trace(trace, &mut ()) {
            Ok(_) => true,
            // The agent has ended it by itself.
            Err(error) => error.is_refused(refusal::NO_TRACE),
        };
        observer.event(Event::Abandoned { is_restored });
    }

    /// Removes a trace's probes.
    fn stop_trace(
        &mut self,
        trace: u64,
        observer: &mut dyn Observer,
    ) -> Result<TraceState, RecordError> {
        self.persist(observer, |connection, _| {
            let request = TraceStop { trace };
            let state: TraceState = connection.ask(&request, "the state of a trace", DOING)?;
            check_trace(trace, state.trace)?;
            Ok(state)
        })
    }

    /// Fetches what was counted so far.
    fn fetch_trace(
        &mut self,
        trace: u64,
        observer: &mut dyn Observer,
    ) -> Result<Counts, RecordError> {
        self.persist(observer, |connection, _| {
            let request = TraceFetch { trace };
            let state: TraceState = connection.ask(&request, "the state of a trace", DOING)?;
            check_trace(trace, state.trace)?;
            let mut counts = Counts {
                state,
                calls: 0,
                callers: BTreeSet::new(),
                frames: connection.received().to_vec(),
            };
            let (mut functions, mut callers) = (0_u32, 0_u32);
            while !counts.receive(connection, trace, &mut functions, &mut callers)? {}
            Ok(counts)
        })
    }
}

impl Counts {
    /// Receives the next frame of the answer; returns whether it is the last.
    fn receive(
        &mut self,
        connection: &mut Connection,
        trace: u64,
        functions: &mut u32,
        callers: &mut u32,
    ) -> Result<bool, Attempt> {
        let frame: Frame<'_> = connection.receive(DOING).map_err(Attempt::while_pipelined)?;
        let is_last = frame.kind == TraceEnd::TYPE;
        match frame.kind {
            TraceTotals::TYPE => {
                let run: TraceTotals<'_> = decoded(&frame)?;
                check_trace(trace, run.trace)?;
                let calls = &mut self.calls;
                decode_totals(run.count, run.payload, |totals, _| {
                    *calls = calls.saturating_add(totals.calls);
                })
                .map_err(|error| failed(error.into()))?;
                *functions = functions.saturating_add(run.count);
            }
            TraceCallers::TYPE => {
                let run: TraceCallers<'_> = decoded(&frame)?;
                check_trace(trace, run.trace)?;
                let codes = &mut self.callers;
                decode_callers(run.count, run.payload, |caller| {
                    codes.insert(caller.code);
                })
                .map_err(|error| failed(error.into()))?;
                *callers = callers.saturating_add(run.count);
            }
            TraceEnd::TYPE => {
                let end: TraceEnd = decoded(&frame)?;
                check_trace(trace, end.trace)?;
                for (what, expected, found) in
                    [("functions", end.functions, *functions), ("callers", end.callers, *callers)]
                {
                    if expected != found {
                        return Err(failed(TraceError::Count { what, expected, found }));
                    }
                }
            }
            found if unikprof_profile::messages::is_known(found) => {
                return Err(ConnectionError::Unexpected {
                    doing: DOING,
                    expected: "the counts of a trace",
                    found,
                }
                .into());
            }
            _ => return Ok(false),
        }
        if self.frames.len() > MOST_BYTES {
            return Err(Attempt::Failed(RecordError::Endless {
                what: "a trace",
                most: MOST_BYTES,
            }));
        }
        self.frames.extend_from_slice(connection.received());
        Ok(is_last)
    }
}

/// The most that an answer about a trace's counts may have: a thousand functions and their callers
/// need far less.
const MOST_BYTES: usize = 16 << 20;

fn failed(error: TraceError) -> Attempt {
    Attempt::Failed(error.into())
}

fn decoded<'a, M: Message<'a>>(frame: &Frame<'a>) -> Result<M, Attempt> {
    let decoded = frame::decode(frame);
    Ok(decoded.map_err(ConnectionError::in_frame(DOING))?)
}

fn check_trace(expected: u64, found: u64) -> Result<(), Attempt> {
    if expected == found {
        return Ok(());
    }
    Err(failed(TraceError::Other { expected, found }))
}

/// The messages with the functions and the probes, each a frame.
fn messages(order: &TraceOrder, trace: u64, max_request: u32) -> Result<Vec<Vec<u8>>, RecordError> {
    let limit = (max_request as usize).min(MAX_BODY);
    let needed = RUN_HEAD + MAX_FUNCTION_BYTES.max(MAX_PROBE_BYTES);
    if limit < needed {
        return Err(RecordError::ShortRequests {
            what: "one function of a trace",
            limit: max_request,
            needed,
        });
    }
    let room = limit - RUN_HEAD;
    let functions = order.functions.iter();
    let mut messages = runs(
        functions,
        room,
        MAX_FUNCTION_BYTES,
        |encoder, function| {
            encoder.function(&Function { flags: function.flags, parts: &function.parts });
        },
        |first, count, payload| encoded(&TraceFunctions { trace, first, count, payload }),
    )?;
    let probes = order.functions.iter().enumerate();
    let probes = probes.flat_map(|(at, function)| function.probes.iter().map(move |it| (at, it)));
    messages.extend(runs(
        probes,
        room,
        MAX_PROBE_BYTES,
        |encoder, (function, probe)| {
            encoder.probe(&Probe {
                function: function as u32,
                kind: probe.kind,
                code: probe.code,
                displacement: probe.displacement,
                instruction: &probe.instruction,
            });
        },
        |first, count, payload| encoded(&TraceProbes { trace, first, count, payload }),
    )?);
    Ok(messages)
}

/// Encodes items into as few messages as they fit into.
fn runs<T>(
    items: impl Iterator<Item = T>,
    room: usize,
    longest: usize,
    encode: impl Fn(&mut Encoder<'_>, T),
    message: impl Fn(u32, u32, &[u8]) -> Result<Vec<u8>, RecordError>,
) -> Result<Vec<Vec<u8>>, RecordError> {
    let mut messages = Vec::new();
    let mut items = items.peekable();
    let (mut first, mut buffer) = (0_u32, vec![0; room]);
    while items.peek().is_some() {
        let mut encoder = Encoder::new(&mut buffer);
        let mut count = 0_u32;
        while encoder.has_room(longest)
            && let Some(item) = items.next()
        {
            encode(&mut encoder, item);
            count += 1;
        }
        let length = encoder.finish();
        messages.push(message(first, count, &buffer[..length])?);
        first += count;
    }
    Ok(messages)
}

fn encoded<'m>(message: &impl Message<'m>) -> Result<Vec<u8>, RecordError> {
    Ok(frame_reader::encoded(message).map_err(ConnectionError::in_frame(DOING))?)
}

fn append<'m, M: Message<'m>>(
    writer: &mut RecordingWriter,
    message: &M,
) -> Result<(), RecordError> {
    let frame = encoded(message)?;
    Ok(writer.append(&frame)?)
}

fn write_order(writer: &mut RecordingWriter, order: &TraceOrder) -> Result<(), RecordError> {
    let asked = &order.order;
    append(
        writer,
        &FileTrace {
            patterns: cut(&asked.patterns),
            inside: cut(&asked.inside),
            flags: if asked.count_only { trace_flag::COUNT } else { 0 },
            slow_ns: asked.slow_ns,
            max_cost_permille: asked.max_cost_permille,
        },
    )?;
    for function in &order.functions {
        let head = FileFunction { name: cut(&function.name), flags: function.flags, refused: "" };
        append(writer, &head)?;
    }
    for (name, refused) in &order.refused {
        let head = FileFunction { name: cut(name), flags: 0, refused: cut(refused) };
        append(writer, &head)?;
    }
    Ok(())
}

/// A text that fits into a frame with others.
fn cut(text: &str) -> &str {
    const MOST: usize = 2048;
    let mut length = text.len().min(MOST);
    while !text.is_char_boundary(length) {
        length -= 1;
    }
    &text[..length]
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use jiff::Timestamp;

    use super::*;

    /// A file of a trace that takes so many bytes more, as on a disk that is almost full.
    fn begun(path: &Path, room: u64) -> RecordingWriter {
        let mut writer = RecordingWriter::create(path, 1, Timestamp::UNIX_EPOCH, &[]).unwrap();
        write_order(&mut writer, &TraceOrder::default()).unwrap();
        writer.limit(room);
        writer
    }

    #[test]
    fn a_full_disk_keeps_what_was_traced() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("t.unikprof");
        let mut writer = begun(&path, 500);
        let whole = [writer.length().unwrap().unwrap()];
        writer.append(&[0; 100]).unwrap();
        let full = writer.append(&[0; 1000]).unwrap_err();
        let outcome = close(writer, &whole, &[], Some(full.into())).unwrap();
        assert!(matches!(outcome.incomplete, Some(RecordError::Output(_))), "{outcome:?}");
        let kept = std::fs::read(&path).unwrap();
        assert!(kept.len() as u64 > whole[0], "it has an end");
        assert!(!kept.windows(100).any(|bytes| bytes == [0; 100]), "no part of an answer");
    }

    #[test]
    fn where_nothing_was_traced_nothing_is_kept() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("t.unikprof");
        close(begun(&path, 500), &[], &[0; 1000], None).unwrap_err();
        assert!(!path.exists());
    }
}
