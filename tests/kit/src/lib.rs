//! The protocol as tests need it: each step separate, so that a test can modify, repeat or omit it.
//!
//! [`frames`] has the frames of both directions, [`noise`] the handshake and the records of both
//! sides, by `snow`, which is independent of the agent's implementation. [`documents`] finds the
//! commands and the code that the documentation shows. `engines` takes profiles as the engines that
//! keep them do. Nothing here depends on the agent or the client.

pub mod documents;
#[cfg(feature = "engines")]
pub mod engines;
pub mod frames;
pub mod noise;
#[cfg(feature = "reference")]
pub mod reference;

/// Demands that a value matches a pattern, and shows it if it does not.
#[macro_export]
macro_rules! assert_is {
    ($value:expr, $pattern:pat) => {
        assert!(matches!($value, $pattern), "{:?}", $value)
    };
}
