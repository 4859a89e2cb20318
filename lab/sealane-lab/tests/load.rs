//! `sealane-lab load` as people and CI call it: exit codes, what is on which stream, what errors say.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener};
use std::process::{Command, Output};
use std::time::Duration;

/// A plain server that answers every request; its threads end with the process.
fn server() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            std::thread::spawn(move || {
                let mut buffer = [0; 4096];
                while stream.read(&mut buffer).is_ok_and(|n| n > 0) {
                    if stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nhi").is_err() {
                        break;
                    }
                }
            });
        }
    });
    address
}

fn load(args: &[&str]) -> Output {
    let program = env!("CARGO_BIN_EXE_sealane-lab");
    Command::new(program)
        .arg("load")
        .args(args)
        .args(["-w", "0s", "--max-pressure", "101", "--max-lag", "1h"])
        .output()
        .unwrap()
}

fn said(output: &Output) -> (i32, String, String) {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (output.status.code().unwrap(), text(&output.stdout), text(&output.stderr))
}

#[test]
fn done_is_0_and_json_is_one_document() {
    let url = format!("http://{}/", server());
    let (code, out, err) = said(&load(&[&url, "-n", "100", "-c", "2", "--json"]));
    assert_eq!((code, err.as_str()), (0, ""), "{out}");
    let json: serde_json::Value = serde_json::from_str(&out).unwrap();
    assert_eq!(
        (&json["completed"], &json["loop"], &json["void"]),
        (&100.into(), &"closed".into(), &serde_json::json!([]))
    );
    assert!(json["latency"]["percentiles"]["p90"].is_u64());
    // Ten samples beyond are needed, and there is one.
    assert!(json["latency"]["percentiles"]["p99"].is_null());
}

#[test]
fn a_broken_threshold_is_1() {
    let url = format!("http://{}/", server());
    let (code, out, _) = said(&load(&[&url, "-n", "100", "-c", "2", "-q", "--fail-if", "max>1ns"]));
    assert_eq!(code, 1, "{out}");
    assert!(out.contains("FAILED max>1ns"), "{out}");
    let (code, out, _) = said(&load(&[&url, "-n", "100", "-c", "2", "-q", "--fail-if", "errors>0"]));
    assert_eq!(code, 0, "{out}");
}

#[test]
fn wrong_usage_is_2_and_says_what_is_wrong() {
    let url = format!("http://{}/", server());
    for (args, word) in [
        (&["nonsense"][..], "http"),
        (&["http://127.0.0.1:99999/"], "port"),
        (&["https://user@localhost/"], "--header"),
        (&[&url, "--fail-if", "p99"], "neither"),
        (&[&url, "--handshake", "full"], "https"),
        (&[&url, "--rate", "0"], "number"),
        (&[&url, "--header", "nocolon"], "colon"),
        (&[&url, "-c", "0"], "at least 1"),
        (&[&url, "--cpus", "9999"], "CPU"),
        (&[&url, "--server-pid", "4294967290"], "process"),
        (&["https://localhost/", "--groups", "X448", "--connect-to", "127.0.0.1"], ""),
        (&[&url, "--http", "3"], "https"),
        (&[&url, "--no-such-option"], "no-such-option"),
    ] {
        let (code, out, err) = said(&load(args));
        // A group is only looked at once somebody answers: nobody does on 443.
        let expected = if args.contains(&"X448") { [2, 3] } else { [2, 2] };
        assert!(expected.contains(&code) && out.is_empty() && err.contains(word), "{args:?}: {code} {out} {err}");
    }
}

#[test]
fn nobody_there_is_void() {
    let gone = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let (code, out, err) = said(&load(&[&format!("http://{gone}/"), "--json"]));
    assert_eq!(code, 3);
    assert!(err.contains("connection refused"), "{err}");
    let json: serde_json::Value = serde_json::from_str(&out).unwrap();
    assert!(json["void"][0].as_str().unwrap().contains("refused"));
}

#[test]
fn a_server_that_only_hangs_up_is_void() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            let _ = stream.set_read_timeout(Some(Duration::from_secs(1)));
            let _ = stream.read(&mut [0; 1024]);
        }
    });
    let (code, out, _) = said(&load(&[&format!("http://{address}/"), "-d", "300ms", "-c", "1", "-q"]));
    assert_eq!(code, 3, "{out}");
    assert!(out.starts_with("VOID") && out.contains("nothing completed"), "{out}");
}

#[test]
fn too_few_file_descriptors_come_with_the_command() {
    let url = format!("http://{}/", server());
    let program = env!("CARGO_BIN_EXE_sealane-lab");
    let script = format!("ulimit -Sn 64 && ulimit -Hn 64 && exec {program} load {url} -c 1000");
    let (code, out, err) = said(&Command::new("sh").args(["-c", &script]).output().unwrap());
    assert_eq!((code, out.as_str()), (2, ""));
    assert!(err.contains("ulimit -n 1064"), "{err}");
    // Where only the soft limit is in the way, it is raised without asking.
    let script = format!("ulimit -Sn 64 && exec {program} load {url} -c 100 -n 200 -q --max-pressure 101");
    let (code, _, err) = said(&Command::new("sh").args(["-c", &script]).output().unwrap());
    assert_eq!(code, 0, "{err}");
}

#[test]
fn files_are_written_and_the_view_stays_off_standard_output() {
    let url = format!("http://{}/", server());
    let dir = std::env::temp_dir().join(format!("sealane-lab-load-{}", std::process::id()));
    std::fs::create_dir_all(&dir).unwrap();
    let (log, page) = (dir.join("a.hlog"), dir.join("a.html"));
    let (log, page) = (log.to_str().unwrap(), page.to_str().unwrap());
    let args = [&*url, "--rate", "200", "-d", "600ms", "--interval", "200ms", "-c", "2", "--hlog", log, "--html", page];
    let (code, out, err) = said(&load(&args));
    assert_eq!(code, 0, "{out}{err}");
    assert!(err.contains("measuring") && !out.contains("measuring") && out.contains("Open loop"), "{out}{err}");
    assert!(std::fs::read_to_string(log).unwrap().contains("HIST"));
    assert!(std::fs::read_to_string(page).unwrap().contains("<svg"));
    std::fs::remove_dir_all(&dir).unwrap();
}

#[test]
fn the_knee_is_searched_for() {
    let url = format!("http://{}/", server());
    // A bound that breaks by the rate itself, wherever this runs.
    let args = [
        "--knee",
        "--knee-from",
        "50",
        "--knee-to",
        "400",
        "-d",
        "400ms",
        "--knee-precision",
        "0.2",
        "--fail-if",
        "rate>210",
        "--json",
    ];
    let (code, out, _) = said(&load(&[&[&*url][..], &args].concat()));
    let json: serde_json::Value = serde_json::from_str(&out).unwrap();
    assert_eq!(code, 0, "{out}");
    let (held, broke) = (json["held"].as_f64().unwrap(), json["broke"].as_f64().unwrap());
    assert!((150.0..=215.0).contains(&held) && broke > held && broke <= 260.0, "{out}");
}
