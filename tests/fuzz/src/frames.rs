//! Frames and messages: nothing panics, and what is read can be written and read again.

use unikprof_profile::recording::{FileEnd, FileHeader};
use unikprof_proto::frame::{self, Frame, HEADER, MAX_BODY};
use unikprof_proto::message::{
    Acknowledge, Acknowledged, Check, Counts, Dump, Epoch, EventName, EventNames, EventNamesEnd,
    Fetch, Handshake, HandshakeReply, Hello, Histogram, LiveSamples, Mapping, Nodes, Pending,
    RecordingStatus, Refusal, Ring, RingEnd, RingHead, RingRun, Stacks, StacksEnd, Start, Started,
    Status, Stop, TableBegin, TableEnd, TableInstalled, TableReady, TableRows, TakeSnapshot,
    VcpuEnd, VcpuEpoch, VcpuSnapshot, Welcome,
};
use unikprof_proto::preamble;

/// CRC-32C, bit by bit: independent of the implementation under test.
fn crc32c(bytes: impl IntoIterator<Item = u8>) -> u32 {
    let crc = bytes.into_iter().fold(!0_u32, |crc, byte| {
        (0..8).fold(crc ^ u32::from(byte), |crc, _| {
            (crc >> 1) ^ (0x82f6_3b78 & (crc & 1).wrapping_neg())
        })
    });
    !crc
}

/// Reads the bytes as a stream of frames, as one frame's type and body, and as a preamble.
pub fn check(bytes: &[u8]) {
    stream(bytes);
    if let Some((kind, body)) = bytes.split_first_chunk() {
        let body = &body[..body.len().min(MAX_BODY)];
        let kind = u16::from_le_bytes(*kind);
        message(&Frame { kind, body });
    }
    if let Some(head) = bytes.first_chunk()
        && let Ok(said) = preamble::decode(head)
    {
        assert!((1..=head.len()).all(|length| preamble::is_prefix(&head[..length])));
        assert_eq!(preamble::decode(&preamble::encode(said)), Ok(said));
    }
}

fn stream(mut bytes: &[u8]) {
    while let Ok(Some(frame)) = frame::split(bytes) {
        let (this, rest) = bytes.split_at(frame.length());
        let crc = crc32c(this[..6].iter().chain(frame.body).copied());
        assert_eq!(this[6..HEADER], crc.to_le_bytes());
        assert_eq!(frame::split(&this[..this.len() - 1]), Ok(None));
        message(&frame);
        bytes = rest;
    }
}

/// Reads a frame as every message there is; answers whether it is one. What is read must come back
/// when it is written, in no more bytes.
pub(crate) fn message(frame: &Frame<'_>) -> bool {
    let mut buffer = vec![0; HEADER + MAX_BODY];
    let mut is_message = false;
    macro_rules! round_trip {
        ($($message:ident)*) => {$(
            if let Ok(message) = frame::decode::<$message>(frame) {
                is_message = true;
                let length = frame::encode(&message, &mut buffer);
                let length = length.unwrap_or_else(|error| panic!("{message:?}: {error}"));
                let written = frame::split(&buffer[..length]);
                let Ok(Some(written)) = written else {
                    panic!("{message:?} is written as {written:?}");
                };
                assert!(written.length() == length && written.body.len() <= frame.body.len());
                assert_eq!(frame::decode::<$message>(&written), Ok(message));
            }
        )*};
    }
    round_trip! {
        Acknowledge Acknowledged Check Counts Dump Epoch EventName EventNames EventNamesEnd Fetch
        FileEnd FileHeader Handshake HandshakeReply Hello Histogram LiveSamples Mapping Nodes
        Pending RecordingStatus Refusal Ring RingEnd RingHead RingRun Stacks StacksEnd Start Started
        Status Stop TableBegin TableEnd TableInstalled TableReady TableRows TakeSnapshot VcpuEnd
        VcpuEpoch VcpuSnapshot Welcome
    }
    is_message
}
