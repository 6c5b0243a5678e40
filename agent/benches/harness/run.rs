//! Whether a bench was asked to measure.

/// `cargo bench` says `--bench`; `cargo test --benches` does not, and only wants to see it start.
pub(crate) fn asked_to_measure() -> bool {
    let asked = std::env::args().any(|argument| argument == "--bench");
    if !asked {
        println!("nothing measured: run it with cargo bench");
    }
    asked
}
