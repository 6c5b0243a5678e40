//! A ring and the buffers of its requests, which are lent to the backend together.

use super::NetError;
use super::buffer::Buffer;
use crate::grant::{Access, GrantRef, GrantTable};
use crate::page::SharedPage;
use crate::ring::{FrontRing, Protocol};

#[derive(Debug)]
pub(super) struct LentRing<P, const N: usize> {
    page: Buffer,
    ring: Option<FrontRing<P>>,
    buffers: [Buffer; N],
}

impl<P: Protocol, const N: usize> LentRing<P, N> {
    pub(super) fn new(page: &mut impl FnMut() -> SharedPage) -> Self {
        let mut buffer = || Buffer::new(page());
        Self { page: buffer(), ring: None, buffers: core::array::from_fn(|_| buffer()) }
    }

    /// Lends everything to `domain`, the buffers with this `access`, and creates an empty ring.
    pub(super) fn start<const FRAMES: usize>(
        &mut self,
        grants: &GrantTable<FRAMES>,
        domain: u16,
        access: Access,
    ) -> Result<(), NetError> {
        self.page.lend(grants, domain, Access::ReadWrite)?;
        for buffer in &mut self.buffers {
            buffer.lend(grants, domain, access)?;
        }
        self.ring = self.page.page().map(FrontRing::init);
        Ok(())
    }

    /// The grant of the ring's page.
    pub(super) fn reference(&self) -> Result<GrantRef, NetError> {
        self.page.reference().ok_or(NetError::NotConnected)
    }

    /// The ring and its page.
    pub(super) fn ring(&mut self) -> Result<(&mut FrontRing<P>, &SharedPage), NetError> {
        let ring = self.ring.as_mut().zip(self.page.page());
        ring.ok_or(NetError::NotConnected)
    }

    /// The page and the grant of a buffer.
    pub(super) fn buffer(&self, id: u16) -> Result<(&SharedPage, GrantRef), NetError> {
        let buffer = self.buffers.get(usize::from(id));
        let lent = buffer.and_then(|buffer| buffer.page().zip(buffer.reference()));
        lent.ok_or(NetError::NotConnected)
    }

    pub(super) fn has_response(&self) -> bool {
        let ring = self.ring.as_ref().zip(self.page.page());
        ring.is_some_and(|(ring, page)| ring.has_response(page))
    }

    pub(super) fn is_broken(&self) -> bool {
        self.ring.as_ref().is_none_or(FrontRing::is_broken)
    }

    /// Removes the ring and takes back all pages that the backend does not keep mapped.
    pub(super) fn take_back<const FRAMES: usize>(&mut self, grants: &GrantTable<FRAMES>) {
        self.ring = None;
        self.page.take_back(grants);
        for buffer in &mut self.buffers {
            buffer.take_back(grants);
        }
    }
}
