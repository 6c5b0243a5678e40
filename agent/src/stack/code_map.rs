//! The guest's executable mappings, and the encoding of code addresses in 32 bits.
//!
//! A frame code is an address's position in all mappings laid end to end, counted from
//! [`frame_code::FIRST_ADDRESS`]. Codes halve the memory of a stack, and finding the code also
//! checks that an address lies in known code.

use unikprof_proto::code::frame_code;

/// The most mappings of an agent.
pub const MAX_MAPPINGS: usize = 64;

/// One executable mapping of the guest, as the loader or linker placed it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mapping<'a> {
    /// The first address.
    pub start: u64,
    /// The address after the last.
    pub end: u64,
    /// The offset of `start` in the image's file.
    pub file_offset: u64,
    /// The image's build-id; empty if it has none.
    pub build_id: &'a [u8],
    /// The image's path; may be empty.
    pub path: &'a str,
}

/// Why mappings cannot be used.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum MappingsError {
    /// There are none, so no return address could be recognised.
    None,
    /// There are this many, more than [`MAX_MAPPINGS`].
    TooMany(usize),
    /// The mapping at this index is empty or overlaps the one before it. Mappings must be sorted by
    /// start.
    Order(usize),
    /// Together they take more than 3840 MiB, the range of addresses in a code.
    TooLarge,
}

impl core::fmt::Display for MappingsError {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            Self::None => f.write_str("there are no executable mappings"),
            Self::TooMany(count) => {
                write!(f, "{count} executable mappings; {MAX_MAPPINGS} is the most")
            }
            Self::Order(index) => {
                write!(f, "mapping {index} is empty or overlaps the one before it; sort them")
            }
            Self::TooLarge => f.write_str("the mappings take more than 3840 MiB together"),
        }
    }
}

impl core::error::Error for MappingsError {}

/// The mappings, for translating addresses into codes in a tick.
#[derive(Debug)]
pub struct CodeMap {
    ranges: heapless::Vec<CodeRange, MAX_MAPPINGS>,
}

/// A mapping: the addresses `start..start + length` have the codes from `base` on.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CodeRange {
    start: u64,
    length: u64,
    base: u32,
}

impl CodeMap {
    /// Lays out `mappings`, which must be sorted by address.
    ///
    /// # Errors
    /// [`MappingsError`].
    pub fn new(mappings: &[Mapping<'_>]) -> Result<Self, MappingsError> {
        if mappings.is_empty() {
            return Err(MappingsError::None);
        }
        let mut ranges = heapless::Vec::new();
        let mut base = frame_code::FIRST_ADDRESS;
        let mut floor = 0;
        for (index, mapping) in mappings.iter().enumerate() {
            if mapping.start < floor || mapping.end <= mapping.start {
                return Err(MappingsError::Order(index));
            }
            let length = mapping.end - mapping.start;
            let start = mapping.start;
            let range = CodeRange { start, length, base };
            ranges.push(range).map_err(|_| MappingsError::TooMany(mappings.len()))?;
            base = u32::try_from(length)
                .ok()
                .and_then(|length| base.checked_add(length))
                .filter(|end| *end <= frame_code::FIRST_SIZE)
                .ok_or(MappingsError::TooLarge)?;
            floor = mapping.end;
        }
        Ok(Self { ranges })
    }

    /// The code of the first address of mapping `index`, for the wire.
    pub fn code_base(&self, index: usize) -> Option<u32> {
        Some(self.ranges.get(index)?.base)
    }

    /// The code after the last mapping.
    pub fn end(&self) -> u32 {
        let last = self.ranges.last();
        last.map_or(frame_code::FIRST_ADDRESS, |last| last.base.wrapping_add(last.length as u32))
    }

    /// The code of `address`, if it lies in a mapping.
    pub fn code(&self, address: u64) -> Option<u32> {
        self.find(address)?.code(address)
    }

    /// The address of `code`, if so many `bytes` lie in its mapping. The inverse of
    /// [`code`](Self::code).
    #[cfg(feature = "trace")]
    pub(crate) fn range(&self, code: u32, bytes: u32) -> Option<u64> {
        let range = self.ranges.iter().rfind(|it| it.base <= code)?;
        let offset = u64::from(code - range.base);
        let is_inside = offset.checked_add(bytes.into())? <= range.length;
        is_inside.then(|| range.start.wrapping_add(offset))
    }

    /// The mapping that contains `address`. The walk keeps it, because the next address is usually
    /// in the same one.
    #[inline(never)]
    pub(crate) fn find(&self, address: u64) -> Option<&CodeRange> {
        let after = self.ranges.partition_point(|it| it.start <= address);
        let range = self.ranges.get(after.checked_sub(1)?)?;
        range.code(address).map(|_| range)
    }

    /// The first mapping, with which a walk begins.
    #[inline]
    pub(crate) fn first(&self) -> &CodeRange {
        const NONE: &CodeRange = &CodeRange { start: 0, length: 0, base: 0 };
        self.ranges.first().unwrap_or(NONE)
    }
}

impl CodeRange {
    #[inline]
    pub(crate) fn code(&self, address: u64) -> Option<u32> {
        let offset = address.wrapping_sub(self.start);
        // `CodeMap::new` has checked that base + length does not overflow.
        (offset < self.length).then(|| self.base.wrapping_add(offset as u32))
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn mapping(start: u64, end: u64) -> Mapping<'static> {
        Mapping { start, end, file_offset: 0, build_id: &[], path: "" }
    }

    #[test]
    fn codes_are_laid_end_to_end() {
        let map =
            CodeMap::new(&[mapping(0x1000, 0x3000), mapping(0x7f00_0000_0000, 0x7f00_0000_1000)])
                .unwrap();
        assert_eq!(map.code(0x1000), Some(16));
        assert_eq!(map.code(0x2fff), Some(16 + 0x1fff));
        assert_eq!(map.code(0x7f00_0000_0001), Some(16 + 0x2000 + 1));
        assert_eq!(map.code_base(1), Some(16 + 0x2000));
        for outside in [0, 0xfff, 0x3000, 0x7eff_ffff_ffff, 0x7f00_0000_1000, u64::MAX] {
            assert_eq!(map.code(outside), None, "{outside:#x}");
        }
    }

    #[test]
    fn unusable_mappings_are_refused() {
        let refused = |mappings: &[Mapping<'_>]| CodeMap::new(mappings).map(|_| ()).unwrap_err();
        assert_eq!(refused(&[]), MappingsError::None);
        let many: [_; 65] = core::array::from_fn(|index| mapping(index as u64, index as u64 + 1));
        assert_eq!(refused(&many), MappingsError::TooMany(65));
        assert_eq!(refused(&[mapping(8, 8)]), MappingsError::Order(0));
        assert_eq!(refused(&[mapping(0, 16), mapping(8, 24)]), MappingsError::Order(1));
        assert_eq!(refused(&[mapping(0, 1 << 32)]), MappingsError::TooLarge);
        assert_eq!(
            refused(&[mapping(0, 1 << 31), mapping(1 << 31, 1 << 32)]),
            MappingsError::TooLarge
        );
    }
}
