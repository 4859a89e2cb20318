//! `sealane-lab stacks`, `sealane-lab locks` and `sealane-lab run tls-stacks` as people call them.

use std::path::Path;
use std::process::{Command, Output};

use serde_json::Value;

fn lab(args: &[&str], cache: Option<&Path>) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_sealane-lab"));
    if let Some(cache) = cache {
        command.env("SEALANE_STACKS_DIR", cache);
    }
    command.args(args).output().unwrap()
}

fn said(output: &Output) -> String {
    format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
}

#[test]
fn stacks_are_listed_with_licence_support_and_state() {
    let folder = tempfile::tempdir().unwrap();
    let text = said(&lab(&["stacks", "list"][..], Some(folder.path())));
    let row =
        |name: &str| text.lines().find(|l| l.starts_with(&format!("{name} "))).unwrap_or_else(|| panic!("{text}"));
    let old = row("openssl-1.1.1");
    assert!(old.contains("ended 2023-09-11") && old.contains("default") && old.ends_with('-'), "{old}");
    assert!(row("wolfssl").contains("GPL-3.0-or-later"));
    let json: Value =
        serde_json::from_slice(&lab(&["stacks", "list", "--json"][..], Some(folder.path())).stdout).unwrap();
    assert!(json.as_array().unwrap().len() >= 20);
}

#[test]
fn what_nobody_knows_is_refused_and_what_is_known_is_named() {
    let folder = tempfile::tempdir().unwrap();
    for (args, says) in [
        (&["stacks", "build", "gopenssl"][..], "boringssl"),
        (&["stacks", "run", "gopenssl"][..], "boringssl"),
        (&["stacks", "run"][..], "no stack is built yet"),
        (&["stacks", "advise", "--need", "speed"][..], "quic"),
        (&["stacks", "doctor", "no-such-program-here"][..], "no such program"),
        (&["stacks", "doctor", "openssl-3.0"][..], "stacks build openssl-3.0"),
        (&["stacks", "build", "other-1.tar.gz"][..], "LibreSSL"),
    ] {
        let output = lab(args, Some(folder.path()));
        let text = said(&output);
        assert!(output.status.code() == Some(2) && text.contains(says), "{args:?}: {text}");
    }
    // A program without any TLS library: nothing to look at.
    let output = lab(&["stacks", "doctor", "/bin/sh"][..], Some(folder.path()));
    assert!(output.status.code() == Some(3) && said(&output).contains("no TLS library"), "{}", said(&output));
}

#[test]
fn locks_of_any_program_are_counted_and_its_status_is_passed_on() {
    let folder = tempfile::tempdir().unwrap();
    let (source, program) = (folder.path().join("p.c"), folder.path().join("p"));
    let text = "#include <pthread.h>\nstatic pthread_mutex_t m = PTHREAD_MUTEX_INITIALIZER;\n\
                int main(void) { for (int i = 0; i < 500; i++) { pthread_mutex_lock(&m); pthread_mutex_unlock(&m); } return 7; }\n";
    std::fs::write(&source, text).unwrap();
    if !Command::new("cc").arg("-o").arg(&program).arg(&source).arg("-lpthread").status().is_ok_and(|s| s.success()) {
        println!("skipped: no C compiler");
        return;
    }
    let program = program.to_str().unwrap();
    let output = lab(&["locks", "--json", "--operations", "500", "--", program], Some(folder.path()));
    assert_eq!(output.status.code(), Some(7), "{}", said(&output));
    let json: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!((json["total"]["calls"].as_u64(), json["kinds"]["mutex"].as_u64()), (Some(500), Some(500)), "{json}");
    let output = lab(&["locks", "--light", "--no-count", "--", program], Some(folder.path()));
    assert!(output.status.code() == Some(7) && output.stdout.is_empty(), "{}", said(&output));
}

#[test]
fn the_experiment_runs_a_stack_that_is_built() {
    let list = said(&lab(&["stacks", "list"][..], None));
    if !list.lines().any(|l| l.starts_with("rustls-ring ") && l.ends_with("built")) {
        println!("skipped: rustls-ring is not built");
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("report");
    let sizes = ["stacks=rustls-ring", "rounds=1", "seconds=0.05", "threads=1", "extrapolate=64"];
    let mut args = vec!["run", "tls-stacks", "--quick", "--quiet", "--only", "scaling,features"];
    args.extend(["--out", out.to_str().unwrap()]);
    args.extend(sizes.iter().flat_map(|size| ["--set", size]));
    let output = lab(&args, None);
    assert_eq!(output.status.code(), Some(0), "{}", said(&output));
    let json: Value = serde_json::from_slice(&std::fs::read(out.join("report.json")).unwrap()).unwrap();
    let page = &json["pages"][0];
    assert_eq!(page["subjects"].as_array().unwrap().len(), 1, "{}", page["subjects"]);
    let parts = page["parts"].as_array().unwrap();
    assert!(parts.len() == 2 && parts.iter().all(|p| p["skipped"].is_null()), "{parts:?}");
    // How fast is not this test's business, and on a busy machine a round may be void; what it can do stays the same.
    let figures = parts[1]["figures"].as_array().unwrap();
    let can = |what: &str| figures.iter().find(|f| f["measure"] == what).and_then(|f| f["value"].as_f64());
    assert_eq!((can("tls1.3"), can("tls1.0"), can("cipher:1.2:rsa-aes128-cbc")), (Some(1.0), Some(0.0), Some(0.0)));
}
