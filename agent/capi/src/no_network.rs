//! In the place of `network`, in an archive without it: there never is one.

use unikprof_agent::{Platform, Service};

use crate::abi;
use crate::status::{Misuse, UNIKPROF_E_UNSUPPORTED};

/// Nothing.
pub(crate) struct NetworkMemory;

/// There is no value of it.
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
