//! A stream in memory between an agent and a client.
#![allow(dead_code, unreachable_pub)]

use std::cell::RefCell;
use std::convert::Infallible;
use std::rc::Rc;

use embedded_io::{ErrorType, Read, ReadReady, Write, WriteReady};

/// Its clones are the same stream.
#[derive(Clone, Debug, Default)]
pub struct Pipe(Rc<RefCell<Ends>>);

#[derive(Debug, Default)]
struct Ends {
    to_agent: Vec<u8>,
    to_client: Vec<u8>,
    room: usize,
}

impl Pipe {
    /// Sends bytes to the agent.
    pub fn send(&self, bytes: &[u8]) {
        self.0.borrow_mut().to_agent.extend_from_slice(bytes);
    }

    /// Sets how many bytes the stream takes from the agent.
    pub fn make_room(&self, bytes: usize) {
        self.0.borrow_mut().room = bytes;
    }

    /// Whether the agent has read all bytes.
    pub fn is_read(&self) -> bool {
        self.0.borrow().to_agent.is_empty()
    }

    /// The bytes that the agent has written.
    pub fn take(&self) -> Vec<u8> {
        std::mem::take(&mut self.0.borrow_mut().to_client)
    }
}

impl ErrorType for Pipe {
    type Error = Infallible;
}

impl Read for Pipe {
    fn read(&mut self, buffer: &mut [u8]) -> Result<usize, Infallible> {
        let bytes = &mut self.0.borrow_mut().to_agent;
        let length = buffer.len().min(bytes.len());
        buffer[..length].copy_from_slice(&bytes[..length]);
        bytes.drain(..length);
        Ok(length)
    }
}

impl ReadReady for Pipe {
    fn read_ready(&mut self) -> Result<bool, Infallible> {
        Ok(!self.0.borrow().to_agent.is_empty())
    }
}

impl Write for Pipe {
    fn write(&mut self, bytes: &[u8]) -> Result<usize, Infallible> {
        let ends = &mut *self.0.borrow_mut();
        let length = bytes.len().min(ends.room);
        ends.room -= length;
        ends.to_client.extend_from_slice(&bytes[..length]);
        Ok(length)
    }

    fn flush(&mut self) -> Result<(), Infallible> {
        Ok(())
    }
}

impl WriteReady for Pipe {
    fn write_ready(&mut self) -> Result<bool, Infallible> {
        Ok(self.0.borrow().room > 0)
    }
}
