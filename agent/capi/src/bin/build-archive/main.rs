//! Builds `libunikprof.a` or `libunikprof-dropin.a` and copies it with its headers into a folder.
//!
//! ```text
//! cargo run -p unikprof-capi --bin build-archive -- FOLDER [--arch ARCH] [--smoltcp] [--noise] [--ring] [--heap] [--trace]
//! cargo run -p unikprof-capi --bin build-archive -- FOLDER --dropin [--trace] [--memory MIB]
//! ```
//!
//! `--smoltcp` adds the agent's own TCP server, for guests that hand over frames; `--noise` adds
//! keys; `--ring` adds the flight recorder, `--heap` allocations, `--trace` traces of functions.
//!
//! `--dropin` builds the agent for guests that know nothing of it. It starts when the guest, linked
//! with `-Wl,--wrap=solo5_app_main`, calls that function, writes a crash dump when it calls
//! `solo5_abort` or `solo5_exit` wrapped in the same way, and has `MIB` mebibytes of memory (by
//! default 4). `objcopy --redefine-sym` names other functions (docs/guide/dropin.md).
//!
//! Needs GNU binutils (`as`, `ld`, `objcopy`, `ar`) and a Rust toolchain, for another processor
//! those with its prefix and its target.

mod direct;
mod x86_64;

use std::env;
use std::error::Error;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{self, Command, ExitCode, Stdio};

/// Flags for every crate. Functions keep frame pointers, and use neither the red zone nor SSE
/// registers unless the code asks for them.
///
/// The precompiled core library was not built with these flags. Link-time optimization compiles its
/// intermediate code again, and the forced attributes reach it there.
const RUSTFLAGS: [&str; 18] = [
    "-C",
    "force-frame-pointers=yes",
    "-C",
    "no-redzone=yes",
    "-C",
    "llvm-args=-force-attribute=noredzone",
    "-C",
    "llvm-args=-force-attribute=noimplicitfloat",
    // Fewer inlined copies of functions with several callers, mainly of integer encoders. Functions
    // on the tick's path are marked `#[inline]` and still form one large function, except for the
    // walk and the table.
    "-C",
    "llvm-args=-inline-threshold=28",
    "-C",
    "llvm-args=-inlinehint-threshold=250",
    // Cryptography without vector registers: a kernel may not save them for its loop either.
    "--cfg",
    "chacha20_force_soft",
    "--cfg",
    "poly1305_force_soft",
    "--cfg",
    "curve25519_dalek_backend=\"serial\"",
];

/// More flags for aarch64. Atomics are instructions that every processor has, not calls of libgcc's
/// functions that choose. Addresses are computed relative to the program counter, and not read from
/// a global offset table: a kernel's symbols are its own.
///
/// Structures of up to eight words are copied and cleared in place: in code for size the compiler
/// would call the kernel's `memcpy` for more than four, which upcalls must not do, since it may use
/// vector registers.
const AARCH64_RUSTFLAGS: [&str; 9] = [
    "-C",
    "target-feature=-outline-atomics",
    // The compiler warns of that feature, whose name is not stable.
    "-Awarnings",
    "-C",
    "llvm-args=-max-store-memcpy=8",
    "-C",
    "llvm-args=-max-store-memset=8",
    "-C",
    "relocation-model=static",
];

/// The build profile: one module, so that the attributes reach everything and unused code is
/// removed. A panic is a trap.
///
/// The tick's path is compiled with this package for speed: it is generic over the platform, or
/// marked `#[inline]`. The packages named here contain the code for the guest's loop, which is
/// compiled for size.
const PROFILE: [&str; 9] = [
    "profile.release.panic=\"abort\"",
    "profile.release.lto=\"fat\"",
    "profile.release.codegen-units=1",
    "profile.release.debug=false",
    "profile.release.opt-level=2",
    "profile.release.package.unikprof-agent.opt-level=\"z\"",
    "profile.release.package.unikprof-proto.opt-level=\"z\"",
    "profile.release.package.postcard.opt-level=\"z\"",
    "profile.release.package.serde_core.opt-level=\"z\"",
];

/// The prefix of exported names; all other names are made local.
const PREFIX: &str = "unikprof_";

const USAGE: &str =
    "expected: build-archive FOLDER [--arch ARCH] [--smoltcp] [--noise] [--ring] [--heap] [--trace]
      or: build-archive FOLDER --dropin [--trace] [--memory MIB, 1 to 1024]";

const HELP: &str = "Builds the agent as a static library and copies it with its headers to FOLDER.

libunikprof.a, for kernels that call it (docs/guide/c.md):
  --arch ARCH    the kernel's processor: x86_64 or aarch64 [default: x86_64]
  --smoltcp      its own TCP, for kernels that exchange Ethernet frames
  --noise        keys
  --ring         the flight recorder
  --heap         allocations and what is still held
  --trace        traces of functions, by breakpoints; for x86_64

--dropin: libunikprof-dropin.a, for PVH guests without a change (docs/guide/dropin.md):
  --trace        traces of functions, by breakpoints
  --memory MIB   for stacks, caller table and ring [default: 4]";

/// The kernel's processor.
#[derive(Clone, Copy, PartialEq)]
enum Arch {
    X86_64,
    Aarch64,
}

impl Arch {
    fn parse(word: &str) -> Option<Self> {
        [Self::X86_64, Self::Aarch64].into_iter().find(|arch| arch.name() == word)
    }

    fn name(self) -> &'static str {
        match self {
            Self::X86_64 => "x86_64",
            Self::Aarch64 => "aarch64",
        }
    }

    fn is_host(self) -> bool {
        self.name() == env::consts::ARCH
    }

    /// A program of the GNU binutils.
    fn tool(self, name: &str) -> Command {
        match self.is_host() {
            true => Command::new(name),
            false => Command::new(format!("{}-linux-gnu-{name}", self.name())),
        }
    }

    /// Rust's name of the target if it is not the host.
    fn target(self) -> Option<String> {
        (!self.is_host()).then(|| format!("{}-unknown-linux-gnu", self.name()))
    }
}

/// The archive to build.
struct Archive {
    arch: Arch,
    /// The package, beside this one.
    package: &'static str,
    name: &'static str,
    /// The headers that a guest includes; the first declares the exported functions.
    headers: &'static [&'static str],
    features: Vec<&'static str>,
    /// Assembly code that is linked with the compiled one and hidden like it, with names.
    linked: Vec<(String, String)>,
    /// Assembly code of further members, with their names. The linker takes each only if the guest
    /// refers to it.
    members: Vec<(String, String)>,
}

impl Archive {
    fn library(arch: Arch, features: Vec<&'static str>) -> Self {
        Self {
            arch,
            package: "capi",
            name: "libunikprof.a",
            headers: &["unikprof.h", "unikprof_lwip.h", "unikprof_xen.h"],
            features,
            linked: Vec::new(),
            members: vec![memmove(arch)],
        }
    }

    fn dropin(features: Vec<&'static str>, mebibytes: u32) -> Self {
        let wrap = |name: &str, function: &str| {
            let code = x86_64::call_before(function);
            let code = format!(".globl __wrap_{name}\n__wrap_{name}:\n{code}jmp __real_{name}\n");
            (format!("wrap-{name}"), code)
        };
        let memory = format!(
            ".bss\n.balign 4096\n.globl {PREFIX}dropin_memory\n{PREFIX}dropin_memory:\n\
             .skip {mebibytes} << 20\n.globl {PREFIX}dropin_memory_end\n\
             {PREFIX}dropin_memory_end:\n"
        );
        let functions = x86_64::MEMORY_FUNCTIONS.map(|(name, code)| {
            let head = format!(".text\n.globl {name}\n.type {name}, @function\n{name}:\n");
            (name.to_owned(), head + code)
        });
        let members = vec![
            wrap("solo5_app_main", "unikprof_dropin_start"),
            wrap("solo5_abort", "unikprof_dropin_crash"),
            wrap("solo5_exit", "unikprof_dropin_crash"),
            ("memory".to_owned(), memory),
        ];
        Self {
            arch: Arch::X86_64,
            package: "dropin",
            name: "libunikprof-dropin.a",
            headers: &["unikprof_dropin.h"],
            features,
            // Its own: the guest's may use SSE registers, which are not saved for a tick.
            linked: functions.into_iter().chain([memmove(Arch::X86_64)]).collect(),
            members,
        }
    }
}

fn memmove(arch: Arch) -> (String, String) {
    let code = match arch {
        Arch::X86_64 => x86_64::MEMMOVE,
        Arch::Aarch64 => include_str!("../../aarch64/memmove.s"),
    };
    ("memmove".to_owned(), code.to_owned())
}

const DROPIN_ARCH: &str = "--dropin is for x86_64: on Arm there is no local APIC whose timer the \
                           agent could have for \
    itself, and the interrupt controller (GIC) belongs to the guest";

const TRACE_ARCH: &str =
    "--trace is for x86_64: the agent does not place breakpoints into code for aarch64";

/// Without it, linkers warn, and make the image's stack executable.
const NO_EXECUTABLE_STACK: &str = "\n.section .note.GNU-stack,\"\",@progbits\n";

/// Sections that describe how the object was made, and unwind tables: nothing unwinds through the
/// agent, which keeps its frame pointers.
const LEFT_OUT: [&str; 4] = [".llvmbc", ".llvmcmd", ".comment", ".eh_frame"];

fn main() -> ExitCode {
    if env::args().any(|word| word == "--help" || word == "-h") {
        println!("{USAGE}\n\n{HELP}");
        return ExitCode::SUCCESS;
    }
    let (folder, archive) = match parse(env::args().skip(1)) {
        Some(Ok(parsed)) => parsed,
        refused => {
            eprintln!("{}", refused.and_then(Result::err).unwrap_or(USAGE));
            return ExitCode::from(2);
        }
    };
    match build(Path::new(&folder), &archive) {
        Ok(()) => {
            println!("wrote {}", Path::new(&folder).join(archive.name).display());
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

/// The folder and the archive that the words ask for, or why there is no such archive; `None` if
/// the words are not understood.
fn parse(
    mut words: impl Iterator<Item = String>,
) -> Option<Result<(String, Archive), &'static str>> {
    let mut arch = Arch::X86_64;
    let folder = words.next().filter(|folder| !folder.starts_with('-'))?;
    let mut features = Vec::new();
    let (mut is_dropin, mut memory) = (false, None);
    while let Some(option) = words.next() {
        match &*option {
            "--arch" => arch = Arch::parse(&words.next()?)?,
            "--smoltcp" => features.push("smoltcp"),
            "--noise" => features.push("noise"),
            "--ring" => features.push("ring"),
            "--heap" => features.push("heap"),
            "--trace" => features.push("trace"),
            "--dropin" => is_dropin = true,
            "--memory" => {
                let mebibytes = words.next()?.parse().ok()?;
                memory = Some(mebibytes).filter(|mebibytes| (1..=1024).contains(mebibytes));
                memory?;
            }
            _ => return None,
        }
    }
    if arch == Arch::Aarch64 && is_dropin {
        return Some(Err(DROPIN_ARCH));
    }
    if arch == Arch::Aarch64 && features.contains(&"trace") {
        return Some(Err(TRACE_ARCH));
    }
    let archive = match is_dropin {
        true if features.iter().all(|feature| *feature == "trace") => {
            Archive::dropin(features, memory.unwrap_or(4))
        }
        false if memory.is_none() => Archive::library(arch, features),
        _ => return None,
    };
    Some(Ok((folder, archive)))
}

fn build(folder: &Path, archive: &Archive) -> Result<(), Box<dyn Error>> {
    let package = Path::new(env!("CARGO_MANIFEST_DIR"));
    // One for each set of flags: cargo would compile everything again for another.
    let target = target_folder()?.join(archive.package).join(archive.arch.name());
    fs::create_dir_all(&target)?;
    // Archives with other features share the dependencies, and cargo writes them to the same file:
    // compiling and linking are one step. The lock ends with the process.
    let lock = File::create(target.join("lock"))?;
    lock.lock()?;
    let work = target.join("work");
    if work.exists() {
        fs::remove_dir_all(&work)?;
    }
    fs::create_dir(&work)?;
    let compiled = compile(&package.with_file_name(archive.package), &target, archive)?;
    let from = link(package, &compiled, &work, archive)?;
    place(package, &from, folder, archive)
}

/// A folder beside cargo's own output, so that the flags above do not rebuild that.
fn target_folder() -> Result<PathBuf, Box<dyn Error>> {
    let program = env::current_exe()?;
    let target = program.ancestors().nth(2).ok_or("no target folder")?;
    Ok(target.join("c-archive"))
}

/// Compiles the package and its dependencies into one static library; returns its path.
fn compile(package: &Path, target: &Path, archive: &Archive) -> Result<PathBuf, Box<dyn Error>> {
    let cargo = env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut command = Command::new(cargo);
    command
        .current_dir(package)
        .args(["rustc", "--quiet", "--release", "--lib", "--crate-type", "staticlib"])
        .args(["--features", &archive.features.join(","), "--target-dir"])
        .arg(target);
    let triple = archive.arch.target();
    if let Some(triple) = &triple {
        command.args(["--target", triple]);
    }
    for setting in PROFILE {
        command.args(["--config", setting]);
    }
    command.args(["--", "--cfg", "unikprof_archive"]);
    let mut flags: Vec<String> = RUSTFLAGS.map(str::to_owned).into();
    if archive.arch == Arch::Aarch64 {
        flags.extend(AARCH64_RUSTFLAGS.map(str::to_owned));
    }
    if archive.package == "dropin" {
        flags.extend(["--cfg", "unikprof_dropin"].map(str::to_owned));
    }
    // Panic locations must not contain paths of the building machine.
    let workspace = package.ancestors().nth(2).unwrap_or(package);
    flags.push(format!("--remap-path-prefix={}=unikprof", workspace.display()));
    if let Some(home) = env::var_os("CARGO_HOME").map(PathBuf::from).or_else(default_cargo_home) {
        flags.push(format!("--remap-path-prefix={}=cargo", home.display()));
    }
    command.env("CARGO_ENCODED_RUSTFLAGS", flags.join("\x1f"));
    // These are set for this program, and not meant for the build that it runs.
    command.env_remove("RUSTFLAGS").env_remove("CARGO_TARGET_DIR");
    run(&mut command)?;
    Ok(target
        .join(triple.unwrap_or_default())
        .join(format!("release/libunikprof_{}.a", archive.package)))
}

fn default_cargo_home() -> Option<PathBuf> {
    Some(env::home_dir()?.join(".cargo"))
}

/// Links everything that the exported functions reach into one object, and hides all else; returns
/// the archive's path.
fn link(
    package: &Path,
    compiled: &Path,
    work: &Path,
    archive: &Archive,
) -> Result<PathBuf, Box<dyn Error>> {
    let (reached, object, placed) =
        (work.join("reached.o"), work.join("unikprof.o"), work.join(archive.name));
    let mut ld = archive.arch.tool("ld");
    ld.args(["-r", "--gc-sections", "-T"]).arg(package.join("src/archive.ld"));
    for name in exported(package, archive)? {
        ld.args(["--require-defined", &name]);
    }
    ld.arg("-o").arg(&reached).arg(compiled);
    run(ld.args(assemble(archive.arch, work, &archive.linked)?))?;

    let mut objcopy = archive.arch.tool("objcopy");
    objcopy.args(["--strip-debug", "--wildcard", "--keep-global-symbol", &format!("{PREFIX}*")]);
    for section in LEFT_OUT {
        objcopy.args(["--remove-section", section]);
    }
    run(objcopy.arg(&reached).arg(&object))?;
    if archive.arch == Arch::X86_64 {
        let mut bytes = fs::read(&object)?;
        direct::rewrite(&mut bytes)?;
        fs::write(&object, bytes)?;
    }

    let members = assemble(archive.arch, work, &archive.members)?;
    let mut ar = archive.arch.tool("ar");
    run(ar.arg("rcsD").arg(&placed).arg(&object).args(members))?;
    Ok(placed)
}

/// Makes an object of each code; returns their paths.
fn assemble(
    arch: Arch,
    work: &Path,
    codes: &[(String, String)],
) -> Result<Vec<PathBuf>, Box<dyn Error>> {
    let mut objects = Vec::new();
    for (name, code) in codes {
        let (source, object) = (work.join(format!("{name}.s")), work.join(format!("{name}.o")));
        fs::write(&source, format!("{code}{NO_EXECUTABLE_STACK}"))?;
        run(arch.tool("as").arg("-o").arg(&object).arg(&source))?;
        objects.push(object);
    }
    Ok(objects)
}

/// The functions that the header declares.
fn exported(package: &Path, archive: &Archive) -> Result<Vec<String>, Box<dyn Error>> {
    let header = package.join("include").join(archive.headers[0]);
    let header = fs::read_to_string(header)?;
    let names = header.lines().filter_map(|line| {
        let begin = line.find(PREFIX)?;
        let is_code = !line.trim_start().starts_with(['*', '/', '#']);
        let name = line[begin..].split_once('(')?.0;
        let is_name = name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_');
        (is_code && is_name).then(|| name.to_owned())
    });
    Ok(names.collect())
}

fn place(
    package: &Path,
    from: &Path,
    folder: &Path,
    archive: &Archive,
) -> Result<(), Box<dyn Error>> {
    fs::create_dir_all(folder)?;
    for header in archive.headers {
        fs::copy(package.join("include").join(header), folder.join(header))?;
    }
    // Renamed into place, so that nobody links an incomplete file.
    let beside = folder.join(format!(".{}.{}", archive.name, process::id()));
    fs::copy(from, &beside)?;
    fs::rename(&beside, folder.join(archive.name))?;
    Ok(())
}

fn run(command: &mut Command) -> Result<(), Box<dyn Error>> {
    let program = command.get_program().to_owned();
    let status = command
        .stdin(Stdio::null())
        .status()
        .map_err(|error| format!("cannot run {}: {error}", program.display()))?;
    if status.success() {
        Ok(())
    } else {
        Err(format!("{} failed: {status}", program.display()).into())
    }
}
