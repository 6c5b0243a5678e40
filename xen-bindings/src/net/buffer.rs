//! A page that is lent to the backend, or not.

use crate::grant::{Access, Grant, GrantRef, GrantTable, NotLentReason};
use crate::page::SharedPage;

#[derive(Debug)]
pub(super) struct Buffer(Option<State>);

#[derive(Debug)]
enum State {
    Ours(SharedPage),
    Lent { grant: Grant, domain: u16 },
}

impl Buffer {
    pub(super) const fn new(page: SharedPage) -> Self {
        Self(Some(State::Ours(page)))
    }

    /// The page; always there between the methods of this type.
    pub(super) const fn page(&self) -> Option<&SharedPage> {
        match &self.0 {
            Some(State::Ours(page)) => Some(page),
            Some(State::Lent { grant, .. }) => Some(grant.page()),
            None => None,
        }
    }

    pub(super) const fn reference(&self) -> Option<GrantRef> {
        match &self.0 {
            Some(State::Lent { grant, .. }) => Some(grant.reference()),
            _ => None,
        }
    }

    /// Lends the page. One that an earlier backend of the same domain keeps is lent to it already.
    pub(super) fn lend<const FRAMES: usize>(
        &mut self,
        grants: &GrantTable<FRAMES>,
        domain: u16,
        access: Access,
    ) -> Result<(), LendError> {
        self.take_back(grants);
        let (state, result) = match self.0.take() {
            Some(State::Ours(page)) => match grants.lend(domain, page, access) {
                Ok(grant) => (State::Lent { grant, domain }, Ok(())),
                Err(refused) => {
                    (State::Ours(refused.page), Err(LendError::NotLent(refused.reason)))
                }
            },
            Some(State::Lent { grant, domain: old }) => {
                let result = if old == domain { Ok(()) } else { Err(LendError::KeptBy(old)) };
                (State::Lent { grant, domain: old }, result)
            }
            None => return Err(LendError::NotLent(NotLentReason::TableFull)),
        };
        self.0 = Some(state);
        result
    }

    /// Takes the page back, unless the backend keeps it mapped.
    pub(super) fn take_back<const FRAMES: usize>(&mut self, grants: &GrantTable<FRAMES>) {
        self.0 = self.0.take().map(|state| match state {
            State::Lent { grant, domain } => match grants.end(grant) {
                Ok(page) => State::Ours(page),
                Err(in_use) => State::Lent { grant: in_use.grant, domain },
            },
            ours => ours,
        });
    }
}

/// Why a page could not be lent.
#[derive(Clone, Copy, Debug)]
pub(super) enum LendError {
    NotLent(NotLentReason),
    /// Another domain keeps it mapped.
    KeptBy(u16),
}
