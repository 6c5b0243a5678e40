//! Completions, as the shells themselves give them.

use std::path::Path;
use std::process::Command;

use crate::peer::program;

const PROGRAM: &str = env!("CARGO_BIN_EXE_unikprof-client");

/// What a shell's command prints with the program's completions in `$1`; `None` where the shell is
/// not installed, which is told.
fn completed(shell: &str, commands: &str) -> Option<String> {
    let folder = tempfile::tempdir().unwrap();
    let (script, _) = program::run(0, &["completions", shell], folder.path());
    let file = folder.path().join("_unikprof-client");
    std::fs::write(&file, script).unwrap();
    std::fs::write(folder.path().join("run.unikprof"), "").unwrap();
    let path = Path::new(PROGRAM).parent().unwrap().to_str().unwrap();
    let path = format!("{path}:{}", std::env::var("PATH").unwrap_or_default());
    let mut command = Command::new(shell);
    let is_zsh = shell == "zsh";
    let flags: &[&str] = if is_zsh { &["-f", "-c"] } else { &["-c"] };
    let ran = command.args(flags).arg(commands).arg(shell).arg(&file).env("PATH", path);
    let ran = ran.env("HOME", folder.path()).current_dir(folder.path()).output();
    let Ok(output) = ran else {
        assert!(std::env::var_os("CI").is_none(), "{shell} is not installed");
        eprintln!("NOT TESTED: {shell} is not installed");
        return None;
    };
    let printed = String::from_utf8_lossy(&output.stdout).into_owned();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{shell}: {errors}\n{printed}");
    Some(printed)
}

/// Each line typed so far, and a word that completes its end.
const LINES: [(&str, &str); 5] = [
    ("rep", "report"),
    ("connect 10.0.0.5 rec", "record"),
    ("report run.unikprof --acc", "--accounting"),
    ("report run.unikprof --format sp", "speedscope"),
    ("install-docs --pre", "--prefix"),
];

#[test]
fn bash_completes_subcommands_options_and_values() {
    let one = |line: &str| {
        let words = format!("unikprof-client {line}");
        let (before, last) = words.rsplit_once(' ').unwrap();
        let previous = before.rsplit(' ').next().unwrap();
        let count = words.split(' ').count() - 1;
        format!(
            "COMP_WORDS=({words}); COMP_CWORD={count}; \
             $f unikprof-client {last} {previous}; echo \"${{COMPREPLY[*]}}\"\n"
        )
    };
    let calls: String = LINES.iter().map(|(line, _)| one(line)).collect();
    let find = "source \"$1\"; f=$(complete -p unikprof-client | sed 's/.*-F \\([^ ]*\\).*/\\1/')";
    let Some(printed) = completed("bash", &format!("{find}\n{calls}")) else { return };
    for ((line, expected), found) in LINES.iter().zip(printed.lines()) {
        assert!(found.split(' ').any(|word| word == *expected), "{line}: {found}");
    }
}

#[test]
fn fish_completes_subcommands_options_and_values() {
    let one = |line: &str| format!("complete -C 'unikprof-client {line}'; echo --\n");
    let calls: String = LINES.iter().map(|(line, _)| one(line)).collect();
    let Some(printed) = completed("fish", &format!("source $argv[2]\n{calls}")) else { return };
    for ((line, expected), found) in LINES.iter().zip(printed.split("--\n")) {
        let mut words = found.lines().filter_map(|line| line.split('\t').next());
        assert!(words.any(|word| word == *expected), "{line}: {found}");
    }
}

/// zsh completes on a terminal only: a second one inside it, whose Tab is pressed.
#[test]
fn zsh_completes_subcommands_options_and_values() {
    const INNER: &str = r#"
zmodload zsh/zpty
zpty shell zsh -f
zpty -w shell "PS1=; fpath=(${1:h} \$fpath); autoload -Uz compinit; compinit -u -D"
zpty -w shell "echo re''ady"
awaits() {
  local part out= tries=0
  until [[ $out == *$1* ]] || (( tries++ > 300 )); do
    sleep 0.1
    while zpty -rt shell part; do out+=$part; done
  done
  [[ $out == *$1* ]] && echo "found $1"
}
awaits ready
"#;
    let one = |(line, expected): &(&str, &str)| {
        format!(
            "zpty -n -w shell 'unikprof-client {line}'$'\\t'\nawaits {expected}\n\
             zpty -n -w shell $'\\C-u'\n"
        )
    };
    let calls: String = LINES.iter().map(one).collect();
    let Some(printed) = completed("zsh", &format!("{INNER}{calls}")) else { return };
    for (line, expected) in LINES {
        assert!(printed.contains(&format!("found {expected}\n")), "{line}: {printed}");
    }
}
