/// The code around the Rust of docs/guide/hosted.md, in a process.
use std::error::Error;

fn hosted(wait_for_work: impl FnOnce()) -> Result<(), Box<dyn Error>> {
//= 1
    Ok(())
}
