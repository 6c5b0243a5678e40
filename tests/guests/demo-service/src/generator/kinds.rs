//! The kinds of requests and how often each comes.

/// What a generated request asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum RequestKind {
    /// One document as JSON.
    Read,
    /// A new document under an id, known or new.
    Replace,
    /// A JSON merge patch of one document.
    Patch,
    /// One document less.
    Delete,
    /// The digests from a document to the root of the tree.
    Prove,
    /// One document as HTML.
    Page,
    /// The value of an expression over one document.
    Evaluate,
    /// Full-text search.
    Search,
    /// Full-text search as an HTML table, compressed.
    Catalogue,
    /// Two expressions over all documents, sorted.
    Query,
    /// Many documents, compressed.
    Export,
    /// Some documents, compressed.
    Import,
    /// What the service counted.
    Statistics,
    /// Damaged or senseless.
    Malformed,
}

impl RequestKind {
    /// All kinds.
    pub const ALL: [Self; 14] = [
        Self::Read,
        Self::Replace,
        Self::Patch,
        Self::Delete,
        Self::Prove,
        Self::Page,
        Self::Evaluate,
        Self::Search,
        Self::Catalogue,
        Self::Query,
        Self::Export,
        Self::Import,
        Self::Statistics,
        Self::Malformed,
    ];

    /// The sum of all weights.
    pub const TOTAL_WEIGHT: u32 = 1000;

    /// How many of [`TOTAL_WEIGHT`](Self::TOTAL_WEIGHT) requests are of this kind, on average.
    pub const fn weight(self) -> u32 {
        match self {
            Self::Read => 240,
            Self::Replace => 170,
            Self::Patch => 130,
            Self::Delete => 30,
            Self::Prove => 40,
            Self::Page => 110,
            Self::Evaluate => 110,
            Self::Search => 70,
            Self::Catalogue => 15,
            Self::Query => 15,
            Self::Export => 10,
            Self::Import => 25,
            Self::Statistics => 10,
            Self::Malformed => 25,
        }
    }

    /// The kind at a place on the line of all weights; beyond the line it is the last.
    pub(super) fn at_weight(place: usize) -> Self {
        let mut end = 0;
        Self::ALL
            .into_iter()
            .find(|kind| {
                end += kind.weight() as usize;
                place < end
            })
            .unwrap_or(Self::Malformed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kind_has_as_many_places_as_its_weight() {
        assert_eq!(
            RequestKind::ALL.iter().map(|k| k.weight()).sum::<u32>(),
            1000
        );
        for kind in RequestKind::ALL {
            let places = (0..1000)
                .filter(|&place| RequestKind::at_weight(place) == kind)
                .count();
            assert_eq!(places, kind.weight() as usize, "{kind:?}");
        }
    }
}
