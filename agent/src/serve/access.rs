//! Who is served.

#[cfg(feature = "noise")]
use crate::serve::secure::Keys;

/// Who is served. There is no default: that a guest's stacks can be read by others is said in so many
/// words.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub enum Access<'k> {
    /// Everybody who can reach the port, without a key and in plain text: for networks in which only
    /// its owner reaches the guest. Whoever connects may record, and read the names of what runs.
    Open,
    /// Those who hold one of these keys; everything is encrypted. Needs a platform with a source of
    /// [randomness](crate::Platform::random).
    #[cfg(feature = "noise")]
    Keys(&'k Keys),
    /// Never made: what gives the type its lifetime where there are no keys.
    #[cfg(not(feature = "noise"))]
    #[doc(hidden)]
    Nobody(core::convert::Infallible, core::marker::PhantomData<&'k ()>),
}

impl<'k> Access<'k> {
    /// Whether a key is asked for.
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
