/// What surrounds the Rust of docs/guide/hosted.md in a process.
use std::error::Error;

use unikprof_agent::Access;
use unikprof_agent::hosted::{self, Listen};

fn hosted(access: Access<'static>, wait_for_work: impl FnOnce()) -> Result<(), Box<dyn Error>> {
//= 1
    Ok(())
}
