//! Writes the inputs that fuzzing begins with: `seeds FOLDER` makes a folder for each target in it.

use std::path::Path;
use std::{env, fs, io};

fn main() -> io::Result<()> {
    let folder = env::args_os().nth(1).unwrap_or_else(|| "corpus".into());
    for (target, seeds) in unikprof_fuzz::seeds::all() {
        let folder = Path::new(&folder).join(target);
        fs::create_dir_all(&folder)?;
        for (number, seed) in seeds.iter().enumerate() {
            fs::write(folder.join(format!("seed-{number}")), seed)?;
        }
    }
    Ok(())
}
