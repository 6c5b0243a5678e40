//! What the service counts.

/// Counts and sizes since the service was made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Statistics {
    /// Requests answered, failures included.
    pub requests: u64,
    /// Those answered with a status of the 400s.
    pub failures: u64,
    /// Documents in the store.
    pub documents: usize,
    /// What the documents' values take, about, in bytes.
    pub document_bytes: usize,
    /// Different words in the index.
    pub terms: usize,
    /// Documents that had to leave for others.
    pub evictions: u64,
}
