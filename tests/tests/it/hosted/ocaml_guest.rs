//! The whole way with a guest in OCaml and C, compiled by the system's `ocamlopt`, which keeps no
//! frame pointers.

use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::harness::Guest;
use crate::hosted::c_guest::{archive, run};

/// The callers of all work: C that called OCaml.
const TURN: &str = "main;caml_callback;caml_start_program;Work.turn";

/// The callers of each kind of work, from `turn` on.
const KINDS: [(&str, &str); 5] = [
    ("OCaml", "Work.spin"),
    ("C called from OCaml", "Work.calls_c;guest_in_c;work_in_c"),
    (
        "OCaml called from C",
        "Work.calls_c_that_calls_back;guest_call_back;caml_callback;\
         caml_start_program;Work.called_back;Work.spin",
    ),
    ("garbage collection", "Work.collects;Work.grow;caml_call_gc;caml_alloc_small_dispatch;"),
    ("exceptions", "Work.raises;Work.descends;Work.descends;"),
];

fn compile() -> PathBuf {
    let guests = Path::new(env!("CARGO_MANIFEST_DIR")).join("guests");
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("ocaml-hosted");
    fs::create_dir_all(&folder).unwrap();
    // `ocamlopt` writes beside the source.
    fs::copy(guests.join("ocaml-hosted/work.ml"), folder.join("work.ml")).unwrap();
    let mut ocamlopt = Command::new("ocamlopt");
    ocamlopt.current_dir(&folder);
    run(ocamlopt.args(["-g", "-output-complete-obj", "-o", "complete.o", "work.ml"]));
    let headers = Command::new("ocamlopt").arg("-where").output().unwrap();
    let headers = String::from_utf8(headers.stdout).unwrap();
    let program = folder.join("guest");
    let sources =
        ["ocaml-hosted/main.c", "c-hosted/coroutine.c", "c-hosted/profiler.c", "c-hosted/server.c"];
    let mut gcc = Command::new("gcc");
    gcc.args(["-std=gnu99", "-O2", "-g", "-fomit-frame-pointer", "-Wall", "-Wextra", "-Werror"])
        .args(["-Wl,--build-id", "-isystem", headers.trim(), "-I"])
        .arg(archive())
        .args(sources.map(|source| guests.join(source)))
        .arg(folder.join("complete.o"))
        .arg(archive().join("libunikprof.a"))
        .args(["-lm", "-ldl", "-o"])
        .arg(&program);
    run(&mut gcc);
    program
}

/// By the table, each frame has its caller: through calls in both directions, collections and
/// frames that an exception leaves.
#[test]
#[ignore = "full: records an OCaml guest"]
fn ocaml_without_frame_pointers_has_its_callers_by_the_table() {
    if Command::new("ocamlopt").arg("-version").output().is_err() {
        const REQUIRE: &str = "UNIKPROF_REQUIRE_ALL";
        let is_required = std::env::var_os(REQUIRE).is_some_and(|value| value == "1");
        assert!(!is_required, "{REQUIRE} is set, but there is no `ocamlopt`");
        let line = "SKIPPED ocaml_without_frame_pointers_has_its_callers_by_the_table: there is no \
                    `ocamlopt`";
        writeln!(std::io::stderr(), "{line}").unwrap();
        return;
    }
    let program = compile();
    let mut guest = Guest::spawn(&mut Command::new(&program));
    let client = guest.client().with_image(&program);
    client.record_samples(3_000, &["--unwind", "table"]);
    // Where it is not inlined, `caml_callback` calls this.
    let folded = client.folded(&[]).into_iter();
    let folded = folded.map(|(stack, count)| (stack.replace("caml_callback_exn;", ""), count));
    let folded: Vec<_> = folded.collect();
    for (kind, callers) in KINDS {
        let whole = format!("{TURN};{callers}");
        let found = folded.iter().any(|(stack, _)| stack.contains(&whole));
        assert!(found, "{kind}: {folded:#?}");
    }
    for (stack, _) in &folded {
        // For two instructions each, unwind information does not lead to the caller:
        // `caml_raise_exn` has left the stack of its caller, `caml_c_call` has popped its return
        // address.
        let leads_nowhere = stack.ends_with("caml_raise_exn") || stack.ends_with("caml_c_call");
        let begins = match stack.contains("Work.") {
            true => TURN,
            false => "main;caml_callback",
        };
        let is_whole =
            stack.contains(begins) || !stack.contains("Work.") && !stack.contains("caml_");
        assert!(is_whole || leads_nowhere, "{stack}");
    }
    assert!(guest.stop().success());
}
