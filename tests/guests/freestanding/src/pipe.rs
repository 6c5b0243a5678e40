//! A byte stream in memory between the client and the agent.

use core::cell::RefCell;
use core::convert::Infallible;

use embedded_io::{ErrorType, Read, ReadReady, Write, WriteReady};

const ROOM: usize = 2048;

/// A connection with one end for the agent and one for the client.
pub(crate) struct Pipe {
    pub(crate) to_agent: RefCell<Bytes>,
    pub(crate) to_client: RefCell<Bytes>,
}

/// Bytes that were not read yet.
pub(crate) struct Bytes {
    bytes: [u8; ROOM],
    length: usize,
}

impl Bytes {
    const EMPTY: Self = Self {
        bytes: [0; ROOM],
        length: 0,
    };

    /// Adds as many bytes as there is room for; returns their number.
    pub(crate) fn put(&mut self, bytes: &[u8]) -> usize {
        let room = &mut self.bytes[self.length..];
        let length = room.len().min(bytes.len());
        room[..length].copy_from_slice(&bytes[..length]);
        self.length += length;
        length
    }

    pub(crate) fn waiting(&self) -> &[u8] {
        &self.bytes[..self.length]
    }

    pub(crate) fn take(&mut self, count: usize) {
        let count = count.min(self.length);
        self.bytes.copy_within(count..self.length, 0);
        self.length -= count;
    }
}

impl Pipe {
    pub(crate) fn new() -> Self {
        Self {
            to_agent: RefCell::new(Bytes::EMPTY),
            to_client: RefCell::new(Bytes::EMPTY),
        }
    }
}

impl ErrorType for &Pipe {
    type Error = Infallible;
}

impl Read for &Pipe {
    fn read(&mut self, buffer: &mut [u8]) -> Result<usize, Infallible> {
        let mut bytes = self.to_agent.borrow_mut();
        let length = bytes.waiting().len().min(buffer.len());
        buffer[..length].copy_from_slice(&bytes.waiting()[..length]);
        bytes.take(length);
        Ok(length)
    }
}

impl ReadReady for &Pipe {
    fn read_ready(&mut self) -> Result<bool, Infallible> {
        Ok(!self.to_agent.borrow().waiting().is_empty())
    }
}

impl Write for &Pipe {
    fn write(&mut self, buffer: &[u8]) -> Result<usize, Infallible> {
        Ok(self.to_client.borrow_mut().put(buffer))
    }

    fn flush(&mut self) -> Result<(), Infallible> {
        Ok(())
    }
}

impl WriteReady for &Pipe {
    fn write_ready(&mut self) -> Result<bool, Infallible> {
        Ok(self.to_client.borrow().waiting().len() < ROOM)
    }
}
