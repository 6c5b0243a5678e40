//! The cost of `collect` and `serve` for a fleet, and for one profile beside Pyroscope's own agent.
//!
//! ```text
//! ulimit -n 8192
//! cargo bench -p unikprof-tests --features pyroscope --bench fleet -- [collect | push | serve]...
//! ```
//!
//! The guests are those of `many-guests`: real agents with keys and simulated vCPUs, each with
//! 2,000 stacks that come in turns, so that nearly every sample of an epoch has a stack of its own.
//! They run on the same machine, and take some of it.

mod collect;
mod processes;
mod push;
mod pyroscope_agent;
mod serve;

use std::error::Error;

type Done = Result<(), Box<dyn Error + Send + Sync>>;
type Section = (&'static str, fn() -> Done);

fn main() -> Done {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if let [first, url, ..] = &arguments[..]
        && first == pyroscope_agent::ARGUMENT
    {
        return pyroscope_agent::run(url);
    }
    if !arguments.iter().any(|argument| argument == "--bench") {
        println!("nothing measured: run it with cargo bench");
        return Ok(());
    }
    let sections: [Section; 3] =
        [("collect", collect::measure), ("push", push::measure), ("serve", serve::measure)];
    let is_named = |name: &str| arguments.iter().any(|argument| argument == name);
    let all = !sections.iter().any(|(name, _)| is_named(name));
    for (name, measure) in sections {
        if all || is_named(name) {
            measure()?;
        }
    }
    Ok(())
}
