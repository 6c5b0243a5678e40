//! The clients that are served.

#[cfg(feature = "noise")]
use crate::serve::secure::Keys;

/// The clients that are served. There is no default, so that making a guest's stacks readable for
/// others is an explicit choice.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub enum Access<'k> {
    /// Serve everybody who can reach the port, without a key and unencrypted: for networks in which
    /// only the guest's owner can reach it. Any client can then start recordings and read the names
    /// of what runs.
    Open,
    /// Serve only clients that hold one of these keys, and encrypt everything. Needs a platform
    /// with a source of [randomness](crate::Platform::random).
    #[cfg(feature = "noise")]
    Keys(&'k Keys),
    /// Never constructed: uses the type's lifetime if there are no keys.
    #[cfg(not(feature = "noise"))]
    #[doc(hidden)]
    Nobody(core::convert::Infallible, core::marker::PhantomData<&'k ()>),
}

impl<'k> Access<'k> {
    /// Whether a key is required.
    pub(crate) fn is_keyed(&self) -> bool {
        !matches!(self, Self::Open)
    }

    #[cfg(feature = "noise")]
    pub(crate) fn keys(&self) -> Option<&'k Keys> {
        match self {
            Self::Open => None,
            Self::Keys(keys) => Some(keys),
        }
    }
}
