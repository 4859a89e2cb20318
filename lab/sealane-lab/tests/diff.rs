//! `sealane-lab diff` as people and CI call it.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use serde_json::{Value, json};

fn diff(a: &Path, b: &Path, more: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_sealane-lab")).arg("diff").args([a, b]).args(more).output().unwrap()
}

/// A report with one figure, whose rounds are about `level`.
fn report(folder: &Path, name: &str, experiment: &str, level: f64, rounds: usize) -> PathBuf {
    let values: Vec<f64> = (0..rounds).map(|i| level + (i % 4) as f64 / 10.0).collect();
    let figure = json!({
        "subject": "sealane", "measure": "CPU per operation", "x": null, "value": level, "low": null, "high": null,
        "n": rounds, "unit": "µs", "source": "measured", "rounds": values,
    });
    let part = json!({
        "id": "keepalive", "title": "", "what": "", "skipped": null, "figures": [figure], "views": [], "voids": [],
        "notes": [],
    });
    let page = json!({
        "name": experiment, "title": "", "question": "", "verdict": "", "obstacle": null, "method": [],
        "subjects": [{ "name": "sealane", "version": [name], "configuration": "" }], "settings": [], "parts": [part],
        "studies": [], "advice": [], "command": "",
    });
    let report = json!({
        "format": 1, "tool": "sealane-lab", "title": "", "verdict": "", "mode": "full",
        "started": "2026-11-30T00:00:00Z", "seconds": 1.0, "machine": { "cpu": "EPYC", "cpus": 2, "facts": [] },
        "command": "", "pages": [page],
    });
    let file = folder.join(format!("{name}.json"));
    std::fs::write(&file, report.to_string()).unwrap();
    file
}

#[test]
fn the_exit_code_says_whether_a_difference_is_shown() {
    let folder = tempfile::tempdir().unwrap();
    let of = |name: &str, level: f64, rounds: usize| report(folder.path(), name, "proxies", level, rounds);
    let (a, same, slower, short) =
        (of("a", 30.0, 12), of("same", 30.0, 9), of("slower", 33.0, 12), of("short", 33.0, 3));
    let code = |b: &Path, more: &[&str]| diff(&a, b, more).status.code();
    assert_eq!(code(&same, &[]), Some(0));
    assert_eq!(code(&slower, &[]), Some(1));
    assert_eq!(code(&slower, &["--tolerance", "0.2"]), Some(0));
    assert_eq!(code(&short, &[]), Some(3), "no figure has an interval");

    let text = String::from_utf8(diff(&a, &slower, &[]).stdout).unwrap();
    assert!(text.contains("version of sealane: a → slower") && text.contains("DIFFERS"), "{text}");
    let json: Value = serde_json::from_slice(&diff(&a, &slower, &["--json"]).stdout).unwrap();
    let figure = &json["pages"][0]["figures"][0];
    assert_eq!(figure["finding"], "differs", "{json}");
    let (ratio, low, high) = (figure["ratio"].as_f64(), figure["low"].as_f64(), figure["high"].as_f64());
    assert!(low <= ratio && ratio <= high && low > Some(1.05) && high < Some(1.15), "{json}");
}

#[test]
fn what_cannot_be_compared_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let a = report(folder.path(), "a", "proxies", 30.0, 9);
    let other = report(folder.path(), "other", "tunnel", 30.0, 9);
    let no_report = folder.path().join("text");
    std::fs::write(&no_report, "{}").unwrap();
    for (b, more, word) in [
        (&other, &[][..], "different experiments"),
        (&no_report, &[], "not a report"),
        (&folder.path().join("none"), &[], "none"),
        (&a, &["--tolerance", "2"], "--tolerance"),
    ] {
        let output = diff(&a, b, more);
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.code() == Some(2) && said.contains(word), "{said}");
    }
}
