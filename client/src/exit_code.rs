//! The program's exit codes. They are stable: scripts may rely on them.
//!
//! | code | meaning |
//! |---|---|
//! | 0 | done |
//! | 1 | anything else, such as a thread that could not be started, or too little memory |
//! | 2 | the command line is wrong |
//! | 3 | no connection to the agent, or it was lost and nothing could be kept |
//! | 4 | the peer is not an agent, uses other protocol versions or violates the protocol |
//! | 5 | the agent rejected the request, or has nothing to fetch yet |
//! | 6 | an input file is unreadable, damaged or the wrong one: recording, image or symbols |
//! | 7 | an output file could not be written |
//! | 8 | the recording is incomplete; what arrived was kept |
//! | 9 | `doctor` found something bad: the profile is not trustworthy |
//! | 10 | the agent requires a key, rejects the given key, or does not permit the request with it |
//! | 11 | no recording has the given name, or there are several and no name was given |
//! | 12 | another client holds the lease on the recording |
//! | 13 | `diff` found what `--fail-on` names: the new recording is slower |
//! | 130 | interrupted; nothing was kept |

/// Done.
pub const SUCCESS: u8 = 0;
/// Any other error.
pub const OTHER: u8 = 1;
/// The command line is wrong.
pub const USAGE: u8 = 2;
/// No connection to the agent, or it was lost and nothing could be kept.
pub const CONNECTION: u8 = 3;
/// The peer is not an agent, uses other protocol versions or violates the protocol.
pub(crate) const PROTOCOL: u8 = 4;
/// The agent rejected the request, or has nothing to fetch yet.
pub const REFUSED: u8 = 5;
/// An input file is unreadable, damaged or the wrong one: recording, image or symbols.
pub const INPUT: u8 = 6;
/// An output file could not be written.
pub const OUTPUT: u8 = 7;
/// The recording is incomplete; what arrived was kept.
pub const INCOMPLETE: u8 = 8;
/// `doctor` found something bad: the profile is not trustworthy.
pub const UNTRUSTWORTHY: u8 = 9;
/// The agent requires a key, rejects the given key, or does not permit the request with it; or it
/// is not the agent that the key is for.
pub const KEY: u8 = 10;
/// No recording in the guest has the given name, or there are several and no name was given.
pub const NO_SUCH_RECORDING: u8 = 11;
/// Another client holds the lease on the recording.
pub const LEASED: u8 = 12;
/// `diff` found what `--fail-on` names: the new recording is slower.
pub const SLOWER: u8 = 13;
/// Interrupted; nothing was kept.
pub(crate) const INTERRUPTED: u8 = 130;
