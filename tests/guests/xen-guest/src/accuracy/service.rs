//! A TCP service that receives an order, a line, and answers when it was executed.

use alloc::string::String;
use alloc::vec;

use smoltcp::iface::{SocketHandle, SocketSet};
use smoltcp::socket::tcp::{Socket, SocketBuffer};

const LONGEST: usize = 128;
const SEND_BUFFER: usize = 1024;

/// The service on one port, one client at a time.
#[derive(Debug)]
pub(crate) struct OrderService {
    port: u16,
    socket: SocketHandle,
    line: [u8; LONGEST],
    length: usize,
    is_whole: bool,
}

impl OrderService {
    pub(crate) fn new(port: u16, sockets: &mut SocketSet<'static>) -> Self {
        let buffer = |size| SocketBuffer::new(vec![0; size]);
        Self {
            port,
            socket: sockets.add(Socket::new(buffer(LONGEST), buffer(SEND_BUFFER))),
            line: [0; LONGEST],
            length: 0,
            is_whole: false,
        }
    }

    /// Reads an order. Does not allocate.
    pub(crate) fn poll(&mut self, sockets: &mut SocketSet<'static>) {
        let socket = sockets.get_mut::<Socket<'_>>(self.socket);
        if !socket.is_open() {
            // Fails only for port 0, which the command line does not give.
            let _ = socket.listen(self.port);
            self.length = 0;
            self.is_whole = false;
        }
        while !self.is_whole && socket.can_recv() {
            let mut byte = [0];
            if socket.recv_slice(&mut byte) != Ok(1) {
                break;
            }
            match self.line.get_mut(self.length) {
                Some(place) if byte != *b"\n" => {
                    *place = byte[0];
                    self.length += 1;
                }
                // The end of the line, or a line that is too long for an order.
                _ => self.is_whole = true,
            }
        }
        if !self.is_whole && socket.may_send() && !socket.may_recv() {
            socket.close();
        }
    }

    /// Returns a received order once, for the main loop, which executes it.
    pub(crate) fn take(&mut self) -> Option<String> {
        if !core::mem::replace(&mut self.is_whole, false) {
            return None;
        }
        let line = &self.line[..core::mem::take(&mut self.length)];
        Some(String::from_utf8_lossy(line).into_owned())
    }

    pub(crate) fn answer(&self, sockets: &mut SocketSet<'static>, answer: &str) {
        let socket = sockets.get_mut::<Socket<'_>>(self.socket);
        // There is room, unless the client has disconnected.
        let _ = socket.send_slice(answer.as_bytes());
        let _ = socket.send_slice(b"\n");
        socket.close();
    }
}
