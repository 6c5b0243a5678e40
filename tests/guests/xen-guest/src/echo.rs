//! A TCP service that sends back what it receives.

use alloc::vec;

use smoltcp::iface::{SocketHandle, SocketSet};
use smoltcp::socket::tcp::{Socket, SocketBuffer};

/// The number of connections served at once; the network stack queues none.
const CONNECTIONS: usize = 4;
const BUFFER_SIZE: usize = 16 * 1024;

/// The service on one port.
#[derive(Debug)]
pub(crate) struct Echo {
    port: u16,
    sockets: [SocketHandle; CONNECTIONS],
}

impl Echo {
    pub(crate) fn new(port: u16, sockets: &mut SocketSet<'static>) -> Self {
        let buffer = || SocketBuffer::new(vec![0; BUFFER_SIZE]);
        let add = |_| {
            let mut socket = Socket::new(buffer(), buffer());
            socket.set_nagle_enabled(false);
            socket.set_ack_delay(None);
            sockets.add(socket)
        };
        Self { port, sockets: core::array::from_fn(add) }
    }

    /// Sends back received bytes, closes connections that the other side has closed, and listens
    /// again.
    pub(crate) fn poll(&self, sockets: &mut SocketSet<'static>) {
        for &handle in &self.sockets {
            let socket = sockets.get_mut::<Socket<'_>>(handle);
            if !socket.is_open() {
                // Fails only for port 0, which the command line does not give.
                let _ = socket.listen(self.port);
            }
            echo(socket);
            if socket.may_send() && !socket.may_recv() && !socket.can_recv() {
                socket.close();
            }
        }
    }
}

fn echo(socket: &mut Socket<'_>) {
    while socket.can_recv() && socket.can_send() {
        let mut chunk = [0; 2048];
        let room = (socket.send_capacity() - socket.send_queue()).min(chunk.len());
        let Ok(count) = socket.recv_slice(&mut chunk[..room]) else {
            return;
        };
        // The room was checked above.
        let Ok(_) = socket.send_slice(&chunk[..count]) else {
            return;
        };
    }
}
