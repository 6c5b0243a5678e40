//! Tells whether a bench should measure.

/// `cargo bench` passes `--bench`; `cargo test --benches` does not, and only checks that the bench starts.
pub(crate) fn asked_to_measure() -> bool {
    let asked = std::env::args().any(|argument| argument == "--bench");
    if !asked {
        println!("nothing measured: run it with cargo bench");
    }
    asked
}
