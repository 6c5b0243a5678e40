//! A minimal client: it records, and counts the samples.

use std::collections::HashMap;
use std::error::Error;
use std::io::{self, Read, Write};

use unikprof_agent::{Access, Agent, Platform, Service, SessionId};
use unikprof_proto::frame::Message;
use unikprof_proto::message::{
    Acknowledge, Acknowledged, Check, Counters, Counts, Fetch, Histogram, LiveSamples, Nodes,
    Pending, RecordingStatus, Refusal, Start, Started, Status, Stop, VcpuEnd, VcpuEpoch,
};
use unikprof_proto::{code, counts, live, nodes, preamble, varint};
use unikprof_test_kit::frames::{Frame, encoded, read_once, take_frame};

/// Errors are returned, not handled.
pub(crate) type Result<T> = std::result::Result<T, Box<dyn Error + Send + Sync>>;

/// A conversation on a stream of bytes.
#[derive(Debug)]
pub(crate) struct Conversation<S> {
    stream: S,
    input: Vec<u8>,
    received: u64,
}

/// The first vCPU's part of an epoch.
#[derive(Debug, Default)]
pub(crate) struct Fetched {
    /// Bytes on the wire, including frame headers.
    pub(crate) wire_bytes: u64,
    /// Bytes of the counts only.
    pub(crate) count_bytes: u64,
    /// Stack nodes, counted in this epoch or not.
    pub(crate) nodes: u64,
    /// Distinct stacks that were counted.
    pub(crate) stacks: u64,
    /// The sum of their counts.
    pub(crate) samples: u64,
    /// Frames of these stacks, each stack once.
    pub(crate) frames: u64,
    /// The counters at the epoch's end, since the recording began.
    pub(crate) counters: Counters,
    /// Cycles spent in ticks, since the recording began.
    pub(crate) tick_cycles: u64,
    /// Estimated cycles of a delivery outside its tick.
    pub(crate) delivery_cycles: u64,
    /// Each counted stack's frame codes, leaf first, and its count.
    pub(crate) counts: Vec<(Vec<u32>, u64)>,
    /// Allocations that are still held.
    pub(crate) live: Vec<live::Sample>,
    /// Cycles of a sample, as pairs of bucket and count.
    pub(crate) sample_cycles: Vec<(usize, u64)>,
}

impl<S: Read + Write> Conversation<S> {
    /// Begins a conversation.
    pub(crate) fn new(stream: S) -> Result<Self> {
        let mut conversation = Self { stream, input: Vec::new(), received: 0 };
        conversation.stream.write_all(&preamble::encode(preamble::OPEN))?;
        while conversation.input.len() < preamble::LENGTH {
            conversation.read_more()?;
        }
        conversation.input.drain(..preamble::LENGTH);
        Ok(conversation)
    }

    /// Starts a recording of running time, 128 frames deep, until it is stopped.
    pub(crate) fn start(&mut self, period_ns: u64) -> Result<()> {
        self.start_named("measured", period_ns)
    }

    /// The same with a name, for several recordings.
    pub(crate) fn start_named(&mut self, name: &str, period_ns: u64) -> Result<()> {
        self.start_as(&Start::running_time(name, period_ns))
    }

    /// The same with these settings.
    pub(crate) fn start_as(&mut self, start: &Start<'_>) -> Result<()> {
        self.send(start)?;
        self.answer()?.decode::<Started>()?;
        Ok(())
    }

    /// The counters of the recording so far, and the capacity in stack nodes.
    pub(crate) fn check(&mut self) -> Result<(Counters, u64)> {
        self.send(&Check {})?;
        let nodes_capacity = self.answer()?.decode::<Status>()?.nodes_capacity;
        let answer = self.answer()?;
        let recording: RecordingStatus<'_> = answer.decode()?;
        Ok((recording.counters, nodes_capacity))
    }

    /// Ends the recording, fetches its only epoch and acknowledges it.
    pub(crate) fn stop(&mut self) -> Result<Fetched> {
        self.send(&Stop { recording: 0 })?;
        let epoch = self.answer()?.decode::<Pending>()?.first_epoch;
        let fetched = self.fetch(epoch)?;
        self.send(&Acknowledge { epoch })?;
        self.answer()?.decode::<Acknowledged>()?;
        Ok(fetched)
    }

    fn fetch(&mut self, epoch: u64) -> Result<Fetched> {
        let before = self.received;
        let mut fetched = Fetched::default();
        // The stack that ends in each node of the vCPU.
        let mut stacks: HashMap<u64, Vec<u32>> = HashMap::new();
        self.send(&Fetch { epoch, vcpu: 0, known: 0, counted: 0 })?;
        loop {
            let answer = self.answer()?;
            match answer.kind {
                VcpuEpoch::TYPE => {
                    let vcpu: VcpuEpoch = answer.decode()?;
                    fetched.counters = vcpu.end.counters;
                    fetched.tick_cycles = vcpu.end.tick_cycles;
                    fetched.delivery_cycles = vcpu.end.delivery_cycles;
                }
                Histogram::TYPE => {
                    let histogram: Histogram<'_> = answer.decode()?;
                    if histogram.kind == code::histogram::SAMPLE_CYCLES {
                        fetched.sample_cycles = pairs(histogram.buckets);
                    }
                }
                Nodes::TYPE => {
                    let run: Nodes<'_> = answer.decode()?;
                    nodes::decode(run.first, run.count, run.payload, |number, node| {
                        let callers = stacks.get(&node.parent).cloned().unwrap_or_default();
                        stacks.insert(number, [node.frames, &callers].concat());
                        fetched.nodes += 1;
                    })?;
                }
                Counts::TYPE => {
                    let run: Counts<'_> = answer.decode()?;
                    fetched.count_bytes += run.payload.len() as u64;
                    counts::decode(run.after, run.count, run.payload, |number, count| {
                        fetched.stacks += 1;
                        fetched.samples += count;
                        let stack = stacks.get(&number).cloned().unwrap_or_default();
                        fetched.frames += stack.len() as u64;
                        fetched.counts.push((stack, count));
                    })?;
                }
                LiveSamples::TYPE => {
                    let run: LiveSamples<'_> = answer.decode()?;
                    live::decode(run.base_ns, run.count, run.payload, |sample| {
                        fetched.live.push(sample);
                    })?;
                }
                VcpuEnd::TYPE => {
                    let end: VcpuEnd = answer.decode()?;
                    if end.samples != fetched.samples + fetched.live.len() as u64 {
                        return Err("the epoch's samples do not add up".into());
                    }
                    fetched.wire_bytes = self.received - before;
                    return Ok(fetched);
                }
                _ => {}
            }
        }
    }

    fn send<'m>(&mut self, message: &impl Message<'m>) -> Result<()> {
        Ok(self.stream.write_all(&encoded(message))?)
    }

    fn answer(&mut self) -> Result<Frame> {
        loop {
            if let Some(answer) = take_frame(&mut self.input)? {
                if let Ok(refused) = answer.decode::<Refusal<'_>>() {
                    return Err(refused.text.into());
                }
                return Ok(answer);
            }
            self.read_more()?;
        }
    }

    fn read_more(&mut self) -> io::Result<()> {
        let mut buffer = [0; 4096];
        let length = read_once(&mut self.stream, &mut buffer)?;
        if length == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        self.received += length as u64;
        self.input.extend_from_slice(&buffer[..length]);
        Ok(())
    }
}

fn pairs(mut buckets: &[u8]) -> Vec<(usize, u64)> {
    let mut pairs = Vec::new();
    while let (Some(bucket), Some(count)) =
        (varint::take_varint(&mut buckets), varint::take_varint(&mut buckets))
    {
        pairs.push((bucket as usize, count));
    }
    pairs
}

/// A conversation within this process, without a network.
#[derive(Debug)]
pub(crate) struct InProcess<'a, 'm, P: Platform> {
    service: Service<'a, 'm, P>,
    session: SessionId,
}

impl<'a, 'm, P: Platform> InProcess<'a, 'm, P> {
    /// Connects to `agent`, which must not have a service yet.
    pub(crate) fn connect(agent: &'a Agent<'m, P>) -> Result<Conversation<Self>> {
        let mut service = Service::new(agent, Access::Open)?;
        let session = service.open().ok_or("no session is free")?;
        Conversation::new(Self { service, session })
    }
}

impl<P: Platform> Write for InProcess<'_, '_, P> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        Ok(self.service.receive(self.session, bytes))
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl<P: Platform> Read for InProcess<'_, '_, P> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        // Steps that take several calls, such as clearing, produce no bytes in between.
        for _ in 0..10_000 {
            let length = self.service.transmit(self.session, buffer);
            if length > 0 || self.service.is_over(self.session) {
                return Ok(length);
            }
            self.service.advance();
        }
        Err(io::ErrorKind::TimedOut.into())
    }
}
