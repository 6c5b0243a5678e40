/// What surrounds the Rust of docs/guide/hosted.md in a process.
use std::error::Error;

use unikprof_agent::hosted::{self, Listen};
use unikprof_agent::{Access, Key, Keys, Role};

fn hosted(wait_for_work: impl FnOnce()) -> Result<(), Box<dyn Error>> {
//= 1
    Ok(())
}
