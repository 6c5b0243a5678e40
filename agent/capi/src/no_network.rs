//! Replaces `network` in an archive without `smoltcp`: a network is never created.

use unikprof_agent::{Platform, Service};

use crate::abi;
use crate::status::{Misuse, UNIKPROF_E_UNSUPPORTED};

/// Takes no memory.
pub(crate) struct NetworkMemory;

/// Has no value.
pub(crate) enum Network {}

impl Network {
    pub(crate) fn new<P: Platform>(
        _: &abi::Network,
        _: &Service<'_, '_, P>,
        _: &'static mut NetworkMemory,
    ) -> Result<Self, Misuse> {
        Err(Misuse(UNIKPROF_E_UNSUPPORTED))
    }

    pub(crate) fn poll<P: Platform>(&mut self, _: &mut Service<'_, '_, P>) -> Option<u64> {
        match *self {}
    }

    pub(crate) fn receive(&mut self, _: &[u8]) -> Result<(), Misuse> {
        match *self {}
    }

    pub(crate) fn send(&mut self, _: &mut [u8]) -> Result<i64, Misuse> {
        match *self {}
    }
}
