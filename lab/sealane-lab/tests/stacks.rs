//! `sealane-lab stacks`, `sealane-lab locks` and `sealane-lab run tls-stacks` as people call them.

use std::path::{Path, PathBuf};
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
    // One that a signal ended has not ended well.
    let output = lab(&["locks", "--", "sh", "-c", "kill -9 $$"], Some(folder.path()));
    assert_eq!(output.status.code(), Some(128 + 9), "{}", said(&output));
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
    // How fast is not this test's business, so other programs may run.
    args.extend(["--max-foreign", "1000", "--max-wait", "0s"]);
    // A round may still be void on a busy machine; a stack of which every round is void in three runs is a failure.
    let measured = |json: &Value| {
        let figures = json["pages"][0]["parts"][0]["figures"].as_array().into_iter().flatten();
        let mut rates = figures.filter(|f| f["subject"] == "rustls-ring" && f["measure"] == "full");
        rates.any(|f| f["value"].as_f64().is_some_and(|rate| rate > 0.0))
    };
    let run = || -> Value {
        let output = lab(&args, None);
        assert_eq!(output.status.code(), Some(0), "{}", said(&output));
        serde_json::from_slice(&std::fs::read(out.join("report.json")).unwrap()).unwrap()
    };
    let json = (0..3).map(|_| run()).find(|json| measured(json)).expect("every round was void in three runs");
    let page = &json["pages"][0];
    assert_eq!(page["subjects"].as_array().unwrap().len(), 1, "{}", page["subjects"]);
    let parts = page["parts"].as_array().unwrap();
    assert!(parts.len() == 2 && parts.iter().all(|p| p["skipped"].is_null()), "{parts:?}");
    let figures = parts[1]["figures"].as_array().unwrap();
    let can = |what: &str| figures.iter().find(|f| f["measure"] == what).and_then(|f| f["value"].as_f64());
    assert_eq!((can("tls1.3"), can("tls1.0"), can("cipher:1.2:rsa-aes128-cbc")), (Some(1.0), Some(0.0), Some(0.0)));
}

/// The folder of what is built, if this stack is.
fn cache_with(stack: &str) -> Option<PathBuf> {
    let list = said(&lab(&["stacks", "list"], None));
    if !list.lines().any(|l| l.starts_with(&format!("{stack} ")) && l.ends_with("built")) {
        println!("skipped: {stack} is not built");
        return None;
    }
    let at = list.split_once("Built ones are in ").expect("it says where").1;
    Some(PathBuf::from(at.lines().next().expect("a line").trim_end_matches('.')))
}

#[test]
fn the_doctor_looks_at_the_library_of_a_program() {
    if cache_with("openssl-3.0").is_none() {
        return;
    }
    if !Path::new("/usr/bin/openssl").is_file() {
        println!("skipped: no openssl");
        return;
    }
    let output = lab(&["stacks", "doctor", "/usr/bin/openssl", "--seconds", "0.1", "--json"], None);
    assert_eq!(output.status.code(), Some(0), "{}", said(&output));
    let json: Value = serde_json::from_slice(&output.stdout).unwrap();
    let version = json["description"]["version"].as_str().unwrap();
    assert!(json["library"].as_str().unwrap().contains("libssl.so") && version.starts_with("OpenSSL"), "{json}");
    // Full and resumed, on one context that threads share.
    let locks = json["locks"].as_array().unwrap();
    assert!(locks.len() == 2 && locks.iter().all(|l| l["calls"].as_f64().unwrap() > 1.0), "{json}");
    assert!(locks.iter().all(|l| l["threads"].as_u64().unwrap() > 1 && !l["places"].as_array().unwrap().is_empty()));
    let light = json["light"].as_array().unwrap();
    assert!(light.len() == 2 && light.iter().all(|f| f["median"].as_f64().unwrap() > 0.0), "{json}");
    assert_eq!(json["taken"].as_array().unwrap().is_empty(), !cfg!(target_arch = "x86_64"), "{json}");
}

#[test]
fn an_installed_library_is_run_by_its_path() {
    if cache_with("openssl-3.0").is_none() {
        return;
    }
    let folders = ["/usr/lib/x86_64-linux-gnu", "/usr/lib/aarch64-linux-gnu", "/usr/lib64"];
    let Some(path) = folders.map(|f| Path::new(f).join("libssl.so.3")).into_iter().find(|p| p.is_file()) else {
        println!("skipped: no libssl.so.3 is installed");
        return;
    };
    let few = ["--no-counts", "--rounds", "3", "--seconds", "0.02", "--threads", "2", "--json"];
    // Any machine's conditions will do: this is about working.
    let limits = ["--max-queued", "1000", "--max-pressure", "1000"];
    let output = lab(&[&["stacks", "run", path.to_str().unwrap()][..], &few[..], &limits[..]].concat(), None);
    assert_eq!(output.status.code(), Some(0), "{}", said(&output));
    let json: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert!(json["subjects"][0]["version"].as_str().unwrap().starts_with("OpenSSL"), "{json}");
    let series = json["series"].as_array().unwrap();
    // Both sides: full with two kinds of key, and resumed.
    assert!(series.len() == 6 && series.iter().all(|s| s["samples"].as_array().unwrap().len() == 3), "{json}");
    let features = json["subjects"][0]["features"].as_array().unwrap();
    assert!(features.iter().any(|f| f["name"] == "tls1.3" && f["state"] == "yes"), "{json}");
}

#[test]
fn a_profile_is_a_table_and_a_graph() {
    if cache_with("rustls-ring").is_none() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let graphs = folder.path().join("graphs");
    let output = lab(&["stacks", "profile", "rustls-ring", "--seconds", "1", "--out", graphs.to_str().unwrap()], None);
    let text = said(&output);
    if output.status.code() == Some(3) {
        let why = text.lines().find(|line| line.contains("perf") || line.contains("too few"));
        println!("skipped: {}", why.unwrap_or_else(|| panic!("it must say what it lacks: {text}")));
        return;
    }
    assert!(output.status.success() && text.contains("asymmetric crypto"), "{text}");
    assert!(std::fs::read_to_string(graphs.join("rustls-ring.svg")).unwrap().contains("<svg"), "{text}");
}

#[test]
fn advice_is_of_what_was_tried() {
    let Some(cache) = cache_with("openssl-3.0") else { return };
    // Of what is built one library with the workers, so that it does not take longer where all are.
    let folder = tempfile::tempdir().unwrap();
    std::fs::create_dir(folder.path().join("built")).unwrap();
    for name in ["bin", "certs-2"].iter().filter(|name| cache.join(name).is_dir()) {
        std::os::unix::fs::symlink(cache.join(name), folder.path().join(name)).unwrap();
    }
    for entry in std::fs::read_dir(cache.join("built")).unwrap().flatten() {
        if entry.file_name().to_string_lossy().starts_with("openssl-3.0-") {
            std::os::unix::fs::symlink(entry.path(), folder.path().join("built").join(entry.file_name())).unwrap();
        }
    }
    let output = lab(&["stacks", "advise", "--need", "quic,tls1.3"], Some(folder.path()));
    let text = said(&output);
    let line = |sign: &str, name: &str| {
        let found = text.lines().find(|l| l.starts_with(&format!("{sign} {name} ")));
        found.unwrap_or_else(|| panic!("no {sign} {name} in {text}")).to_owned()
    };
    assert!(line("-", "openssl-3.0").contains("without an interface for QUIC"), "{text}");
    assert!(line("-", "boringssl").contains("stacks build boringssl"), "{text}");
    if cache_with("rustls-ring").is_some() {
        assert!(output.status.success() && line("+", "rustls-ring").contains("lock calls per resumed"), "{text}");
    }
}
