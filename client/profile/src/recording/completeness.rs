//! Whether anything of a recording is missing.

/// Whether a recording is all there.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Completeness {
    /// It is.
    Complete,
    /// The client that wrote the file could not get everything, for this reason.
    Incomplete(String),
    /// The file is damaged, and this is what was salvaged.
    Salvaged(String),
}

impl Completeness {
    /// A recording's warning that something is missing.
    pub fn warning(&self) -> Option<String> {
        match self {
            Completeness::Complete => None,
            Completeness::Incomplete(reason) | Completeness::Salvaged(reason) => {
                Some(format!("the recording is incomplete: {reason}"))
            }
        }
    }
}
