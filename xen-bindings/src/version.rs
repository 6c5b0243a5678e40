//! Xen's version and features.

use crate::abi::version::{FeatureInfo, feature};
use crate::errno::Errno;
use crate::hypercall::Hypercall;
use crate::hypercall::operations::{VersionFeatures, VersionNumber, issue};

/// Optional abilities of the hypervisor (`XENFEAT_*`), as bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Features(pub u32);

impl Features {
    /// Are upcalls by a vector offered?
    #[must_use]
    pub const fn callback_vector(self) -> bool {
        self.0 & 1 << feature::HVM_CALLBACK_VECTOR != 0
    }

    /// Is the paravirtual clock safe for HVM guests?
    #[must_use]
    pub const fn safe_pvclock(self) -> bool {
        self.0 & 1 << feature::HVM_SAFE_PVCLOCK != 0
    }

    /// Does Xen translate the guest's frames?
    #[must_use]
    pub const fn auto_translated(self) -> bool {
        self.0 & 1 << feature::AUTO_TRANSLATED_PHYSMAP != 0
    }
}

/// Major and minor version. The cheapest hypercall, good for a first sign of life.
///
/// # Errors
/// None is known; the hypercall's error is passed on.
pub fn xen_version(hypercall: &impl Hypercall) -> Result<(u16, u16), Errno> {
    let version = issue::<VersionNumber>(hypercall, &mut ())?;
    Ok(((version >> 16) as u16, version as u16))
}

/// Optional abilities.
///
/// # Errors
/// None is known; the hypercall's error is passed on.
pub fn features(hypercall: &impl Hypercall) -> Result<Features, Errno> {
    let mut argument = FeatureInfo::default();
    issue::<VersionFeatures>(hypercall, &mut argument)?;
    Ok(Features(argument.submap))
}
