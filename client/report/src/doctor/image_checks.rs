//! Whether names come from the images that ran.

use std::collections::BTreeSet;

use super::check::{Check, Verdict, part_of};
use crate::report::stack_warnings::of_what;
use unikprof_profile::printable::Printable;
use unikprof_profile::profile::{FrameId, Sample, SpecialFrame};
use unikprof_profile::symbols::{FunctionKind, ImageId, SymbolError, SymbolWarning, Symbolized};
use unikprof_profile::units::percent;

/// A share of samples without names from which on it is worth a look.
const UNNAMED: f64 = 0.05;

/// Whether the images are the recorded ones; `wrong` is one that the user named and that is not.
pub(super) fn identity(symbolized: Option<&Symbolized<'_>>, wrong: Option<&SymbolError>) -> Check {
    let check = |verdict, finding: String| Check::new("build-id", verdict, finding);
    if let Some(wrong) = wrong {
        return check(Verdict::Bad, Printable(&wrong.to_string()).to_string())
            .advise("use the image that the guest ran");
    }
    let warnings = symbolized.map_or(&[][..], Symbolized::warnings);
    let first = |wanted: fn(&SymbolWarning) -> bool| {
        let found = warnings.iter().find(|warning| wanted(warning))?;
        Some(Printable(&found.to_string()).to_string())
    };
    if let Some(forced) = first(|w| matches!(w, SymbolWarning::Forced { .. })) {
        return check(Verdict::Bad, forced).advise("remove --force-image");
    }
    let differs = |w: &SymbolWarning| {
        matches!(w, SymbolWarning::LocalFileDiffers { .. } | SymbolWarning::NotUsed { .. })
    };
    if let Some(differs) = first(differs) {
        return check(Verdict::Look, differs)
            .advise("use --image with the image that the guest ran");
    }
    if let Some(unverified) = first(|w| matches!(w, SymbolWarning::NotVerified { .. })) {
        return check(Verdict::Look, unverified).advise("link the guest with --build-id");
    }
    let named: Vec<Option<ImageId>> = symbolized
        .map_or(&[][..], Symbolized::functions)
        .iter()
        .filter(|f| matches!(f.kind, FunctionKind::Named | FunctionKind::Agent))
        .map(|function| function.image)
        .collect();
    if named.contains(&None) {
        return check(
            Verdict::Look,
            "some names come from a symbol list, which cannot be verified".to_owned(),
        )
        .advise("use --image with the guest's image instead of a symbol list");
    }
    let images: BTreeSet<ImageId> = named.into_iter().flatten().collect();
    let finding = match images.len() {
        0 => "no image is available, so none can be wrong".to_owned(),
        1 => "all names come from the recorded image".to_owned(),
        images => format!("all names come from the {images} recorded images"),
    };
    check(Verdict::Good, finding).count("images", images.len() as u64)
}

/// Whether the code that ran has names.
pub(super) fn names(symbolized: &Symbolized<'_>) -> Check {
    let profile = symbolized.profile();
    let tree = profile.tree();
    let leaf_kind = |sample: &Sample| {
        let frame = tree.item(sample.node)?;
        let symbol = symbolized.frame(FrameId(frame)).first()?;
        Some(symbolized.function(symbol.function).kind)
    };
    let samples_in = |kind: FunctionKind| {
        let samples = profile.samples().iter();
        samples
            .filter(|sample| leaf_kind(sample) == Some(kind))
            .fold(0, |sum: u64, sample| sum.saturating_add(sample.count))
    };
    let unknown = samples_in(FunctionKind::Special(SpecialFrame::UnknownCode));
    let unnamed = samples_in(FunctionKind::Address).saturating_add(unknown);
    let what = of_what(profile.recording().mode);
    let share = part_of(unnamed, profile.sample_count());
    let check = Check::new(
        "names",
        Verdict::of_share(share, UNNAMED, f64::INFINITY),
        match unnamed {
            0 => "all functions have names".to_owned(),
            _ => format!("no function name in {} of {what}", percent(share)),
        },
    );
    let find = |wanted: fn(&SymbolWarning) -> bool| {
        symbolized.warnings().iter().find(|warning| wanted(warning))
    };
    let mendable = |warning: &SymbolWarning| {
        warning.is_image_missing() || matches!(warning, SymbolWarning::Stripped { .. })
    };
    let missing = find(mendable).or(find(|it| matches!(it, SymbolWarning::NoImage { .. })));
    check
        .advise(match missing {
            Some(missing) => Printable(&missing.to_string()).to_string(),
            None if unknown == unnamed => {
                "that code is outside of all mappings: give the agent the mappings of all code \
                 when it starts"
                    .to_owned()
            }
            None => "use --image with the guest's unstripped image".to_owned(),
        })
        .real("unnamed_share", share)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use unikprof_profile::profile::{Frame, Mapping, ProfileBuilder};
    use unikprof_profile::symbols::Symbolizer;

    /// No file holds the code of another kernel than this host's.
    #[test]
    fn no_image_of_kernel_code_is_asked_for() {
        for (path, is_asked_for) in [("linux-vdso.so.1", false), ("guest.elf", true)] {
            let mut builder = ProfileBuilder::new();
            let build_id = "c0ffee01".parse().ok();
            let (end, path) = (0x20_0000, path.to_owned());
            builder.add_mapping(Mapping { start: 0, end, file_offset: 0, build_id, path });
            builder.add_stack(0, 1, &[Frame::leaf(0x10_1000)]).unwrap();
            let profile = builder.finish();
            let advice = names(&Symbolizer::default().resolve(&profile).unwrap()).advice.unwrap();
            assert_eq!(advice.contains("--image"), is_asked_for, "{advice}");
        }
    }
}
