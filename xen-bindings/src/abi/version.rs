//! Version and features (`version.h`, `features.h`).

use super::layout;

/// `XENVER_version`: major in bits 31..16, minor in bits 15..0.
pub const VERSION: u32 = 0;
/// `XENVER_get_features`.
pub const GET_FEATURES: u32 = 6;

/// Feature bits (`XENFEAT_*`) of the first and only submap.
pub mod feature {
    /// The guest's frames are translated by Xen.
    pub const AUTO_TRANSLATED_PHYSMAP: u32 = 2;
    /// Upcalls by a vector.
    pub const HVM_CALLBACK_VECTOR: u32 = 8;
    /// The paravirtual clock may be used by HVM guests.
    pub const HVM_SAFE_PVCLOCK: u32 = 9;
}

/// `struct xen_feature_info`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct FeatureInfo {
    /// In: which 32 features.
    pub submap_index: u32,
    /// Out: their bits.
    pub submap: u32,
}
layout!(FeatureInfo, size 8, submap_index @ 0, submap @ 4);
