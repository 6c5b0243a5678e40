//! The words of generated texts.

use crate::random::Random;

const WORDS: [&str; 160] = [
    "amber", "anchor", "apple", "arrow", "autumn", "bamboo", "barrel", "basket", "beacon", "birch",
    "blanket", "blossom", "bottle", "bramble", "branch", "breeze", "bridge", "brook", "bucket",
    "butter", "cabin", "camel", "candle", "canvas", "canyon", "carpet", "castle", "cedar",
    "chapel", "cherry", "chimney", "cinder", "circle", "clover", "cobalt", "copper", "coral",
    "cotton", "cradle", "crystal", "curtain", "cypress", "dagger", "daisy", "desert", "diamond",
    "dragon", "drift", "eagle", "ember", "engine", "fabric", "falcon", "feather", "fern", "field",
    "flint", "forest", "fossil", "fountain", "galaxy", "garden", "garnet", "ginger", "glacier",
    "granite", "harbor", "harvest", "hazel", "heather", "helmet", "heron", "hollow", "honey",
    "horizon", "island", "ivory", "jasmine", "jungle", "kernel", "kettle", "ladder", "lagoon",
    "lantern", "laurel", "lavender", "leather", "lemon", "linen", "lotus", "magnet", "mantle",
    "maple", "marble", "meadow", "mirror", "mosaic", "mountain", "needle", "nickel", "oasis",
    "ocean", "olive", "onyx", "orchard", "orchid", "otter", "paddle", "palace", "paper", "pebble",
    "pepper", "pillar", "pine", "planet", "plume", "pocket", "pollen", "prairie", "prism",
    "quarry", "quartz", "quill", "rabbit", "raven", "reef", "ribbon", "river", "rocket", "saddle",
    "saffron", "sapphire", "satin", "shadow", "shell", "silver", "socket", "spark", "spiral",
    "spruce", "stone", "storm", "summit", "sunset", "thistle", "thunder", "timber", "tunnel",
    "turtle", "valley", "velvet", "violet", "walnut", "water", "willow", "window", "winter",
    "wool", "yarrow", "zephyr",
];

/// A word; the first of the list come oftener, as in any language.
pub(super) fn word(random: &mut Random) -> &'static str {
    let bound = random.between(1, WORDS.len());
    WORDS[random.below(bound)]
}
