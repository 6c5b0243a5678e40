//! Connections whose other side may answer and close before it has read all of a request.
//!
//! An engine, or a proxy before it, does so with a request that is too large. To write on fails
//! then, but the answer has arrived.

use std::io::ErrorKind;

use ureq::Error;
use ureq::unversioned::transport::{Buffers, ConnectionDetails, Connector, NextTimeout, Transport};

/// Makes connections on which the end of the other side's interest shows in its answer.
#[derive(Debug)]
pub(super) struct DespiteHangup;

impl<In: Transport> Connector<In> for DespiteHangup {
    type Out = Line<In>;

    fn connect(
        &self,
        _: &ConnectionDetails<'_>,
        chained: Option<In>,
    ) -> Result<Option<Line<In>>, Error> {
        Ok(chained.map(|inner| Line { inner, is_closed: false }))
    }
}

#[derive(Debug)]
pub(super) struct Line<In> {
    inner: In,
    /// Whether the other side takes no more.
    is_closed: bool,
}

impl<In: Transport> Transport for Line<In> {
    fn buffers(&mut self) -> &mut dyn Buffers {
        self.inner.buffers()
    }

    fn transmit_output(&mut self, amount: usize, timeout: NextTimeout) -> Result<(), Error> {
        if self.is_closed {
            return Ok(());
        }
        match self.inner.transmit_output(amount, timeout) {
            // Without an answer, it fails again where that is awaited.
            Err(Error::Io(error))
                if matches!(error.kind(), ErrorKind::BrokenPipe | ErrorKind::ConnectionReset) =>
            {
                self.is_closed = true;
                Ok(())
            }
            other => other,
        }
    }

    fn await_input(&mut self, timeout: NextTimeout) -> Result<bool, Error> {
        self.inner.await_input(timeout)
    }

    fn is_open(&mut self) -> bool {
        !self.is_closed && self.inner.is_open()
    }

    fn is_tls(&self) -> bool {
        self.inner.is_tls()
    }
}
