//! The protocol as tests need it: each step separate, so that a test can modify, repeat or omit it.
//!
//! [`frames`] has the frames of both directions, [`noise`] the handshake and the records of both
//! sides, by `snow`, which is independent of the agent's implementation. [`calls`] has the records of
//! traced calls, [`elf`] makes images. [`documents`] finds the commands and the code that the
//! documentation shows, [`golden`] compares with files that are checked in. `engines` takes profiles as the engines that
//! keep them do. Nothing here depends on the agent or the client.

#[cfg(feature = "call-frames")]
pub mod call_frames;
pub mod calls;
pub mod documents;
pub mod elf;
#[cfg(feature = "engines")]
pub mod engines;
pub mod frames;
pub mod golden;
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
