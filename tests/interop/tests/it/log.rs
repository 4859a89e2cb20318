//! The log on the standard error: levels, formats, repeats, and what systemd's journal reads.

use crate::operating::{Operated, order};
use rustix::fs::{FileType, Mode, OFlags};
use sealane_control::admin::ask::{Where, ask_with};
use sealane_interop::backend::Backend;
use sealane_interop::site::Site;
use sealane_interop::{WAIT_LIMIT, binary, client, eventually, gateway, ports};
use std::fs::File;
use std::io::{Read, Write};
use std::path::PathBuf;
use std::process::Command;
use std::time::Instant;

/// A gateway whose section `[log]` has these lines.
fn logging(site: &Site, backend: &Backend, command: Command, lines: &str) -> Operated {
    let listen = ports::free();
    let file = |admin: &str| Operated::simple_file(site, &format!("{admin}\n[log]\n{lines}"), listen, &backend.url());
    Operated::start_by(site, command, 1, file, listen)
}

fn sealane() -> Command {
    Command::new(binary::sealane())
}

fn set_level(running: &Operated, level: &str) -> anyhow::Result<String> {
    ask_with(&Where::Socket(running.socket.clone()), "POST", "/v1/log-level", level, WAIT_LIMIT)
}

#[test]
fn the_level_is_changed_at_run_time() {
    let (site, backend) = (Site::new(), Backend::saying("hello"));
    let mut running = logging(&site, &backend, sealane(), "level = \"error\"");
    let socket = running.socket.display().to_string();
    let level = |arguments: &[&str]| {
        let output = gateway::run([&["log-level", "--socket", &socket], arguments].concat());
        (output.status.code(), String::from_utf8_lossy(&output.stdout).into_owned())
    };
    assert_eq!(level(&[]), (Some(0), "error\n".to_owned()));
    order(&running.socket, "reload").expect("the file is good");
    assert_eq!(running.gateway.server.log(), "", "neither the start nor the reload is an error");
    assert_eq!(level(&["info"]), (Some(0), "info\n".to_owned()));
    assert_eq!(running.status()["log_level"], "info");
    assert_eq!(level(&["loud"]).0, Some(2));
    assert!(set_level(&running, "loud").is_err());
    // A reload of the same file leaves it as it was set.
    order(&running.socket, "reload").expect("the file is good");
    assert_eq!(running.status()["log_level"], "info");
    let log = running.gateway.server.log();
    assert_eq!(log.matches(" INFO sealane: reloaded\n").count(), 1, "{log}");
    // A file that says something else changes it.
    running.write(&running.text().replace("level = \"error\"", "level = \"warn\""));
    order(&running.socket, "reload").expect("the file is good");
    assert_eq!(running.status()["log_level"], "warn");
    running.gateway.server.terminate();
    assert_eq!(running.gateway.server.wait().code(), Some(0));
}

#[test]
fn every_json_line_is_an_object() {
    let (site, backend) = (Site::new(), Backend::saying("hello"));
    let mut running = logging(&site, &backend, sealane(), "message_format = \"json\"");
    assert_eq!(running.get("/").text(), "hello");
    let good = running.text();
    // Several lines of text, in one entry.
    running.write(&good.replace("[[host]]", "[[hots]]"));
    assert!(order(&running.socket, "reload").is_err());
    running.write(&good);
    running.gateway.server.terminate();
    assert_eq!(running.gateway.server.wait().code(), Some(0));
    let log = running.gateway.server.log();
    let lines: Vec<serde_json::Value> =
        log.lines().map(|line| serde_json::from_str(line).unwrap_or_else(|e| panic!("{e}: {line}"))).collect();
    for line in &lines {
        let text = |name: &str| line[name].as_str().unwrap_or_else(|| panic!("no {name}: {line}"));
        assert!(text("time").ends_with('Z') && text("time").len() == 24, "{line}");
        assert!(text("target").starts_with("sealane"), "{line}");
        assert!(["error", "warn", "info"].contains(&text("level")), "{line}");
        assert!(!text("message").is_empty(), "{line}");
    }
    let refused = lines.iter().find(|line| line["level"] == "error").unwrap_or_else(|| panic!("no error: {log}"));
    assert!(refused["message"].as_str().is_some_and(|m| m.contains("not reloaded") && m.contains("hots")), "{refused}");
    let said = |text: &str| lines.iter().any(|line| line["message"].as_str().is_some_and(|m| m.starts_with(text)));
    assert!(said("listening on ") && said("finishing open requests"), "{log}");
}

#[test]
fn repeats_are_counted() {
    let (site, backend) = (Site::new(), Backend::saying("hello"));
    let running = logging(&site, &backend, sealane(), "message_format = \"json\"");
    let (changes, began) = (300, Instant::now());
    for _ in 0..changes {
        set_level(&running, "info").expect("it is a level");
    }
    // Twenty for every second that has begun; how long it took is the machine's affair.
    let most = 20 * (began.elapsed().as_secs() + 2);
    let of_log = || {
        let log = running.gateway.server.log();
        let lines = log.lines().map(|line| serde_json::from_str::<serde_json::Value>(line).expect("JSON"));
        let about = lines.filter(|line| line["message"].as_str().is_some_and(|m| m.contains("the log level is now")));
        let (repeats, written): (Vec<_>, Vec<_>) = about.partition(|line| line["repeated"].is_u64());
        let repeated: u64 = repeats.iter().filter_map(|line| line["repeated"].as_u64()).sum();
        (written.len() as u64, repeated, repeats)
    };
    let all_told = || matches!(of_log(), (written, repeated, _) if written + repeated == changes);
    assert!(eventually(all_told), "{:?}", of_log());
    assert!(of_log().0 <= most, "{} lines are more than {most}", of_log().0);
    for line in of_log().2 {
        let times = line["repeated"].as_u64().expect("it is a number");
        let said = line["message"].as_str().expect("it is text");
        assert!(said.starts_with(&format!("repeated {times} times within 1 s: the log level is now info")), "{said}");
    }
}

/// systemd's journal has the time of a line itself, and reads its level from the start.
#[test]
fn the_journal_gets_priorities() {
    let (site, backend) = (Site::new(), Backend::saying("hello"));
    let mut shell = Command::new("sh");
    // The file that the output goes to passes for the journal.
    shell.args(["-c", "JOURNAL_STREAM=$(stat -L -c %d:%i /proc/self/fd/2) exec \"$0\" \"$@\""]).arg(binary::sealane());
    let running = logging(&site, &backend, shell, "");
    let good = running.text();
    running.write(&good.replace("[[host]]", "[[hots]]"));
    assert!(order(&running.socket, "reload").is_err());
    let log = running.gateway.server.log();
    assert!(log.lines().any(|line| line.starts_with("<6>listening on ")), "{log}");
    assert!(log.contains("\n<3>not reloaded; the running configuration stays:\n<3>  "), "{log}");
    assert!(log.lines().all(|line| line.starts_with('<')), "{log}");
    // One that it has inherited while its output goes elsewhere is not believed.
    let mut command = sealane();
    command.env("JOURNAL_STREAM", "1:1");
    let running = logging(&site, &backend, command, "");
    let log = || running.gateway.server.log();
    assert!(eventually(|| log().contains(" INFO sealane: listening on ")), "{}", log());
}

/// What lanes tell, which is also in the access log under the same ids.
#[test]
fn single_connections_and_requests_are_logged_at_level_debug() {
    let site = Site::new();
    let (nobody, listen, access) = (ports::free(), ports::free(), site.path().join("access.log"));
    let lines = format!("access = {access:?}\nformat = \"json\"\nmessage_format = \"json\"\n");
    let file = |admin: &str| {
        Operated::simple_file(&site, &format!("{admin}\n[log]\n{lines}"), listen, &format!("http://{nobody}"))
    };
    let mut running = Operated::start(&site, 2, file, listen);
    let typed_http = |running: &Operated| {
        let mut stream = client::tcp(running.gateway.address);
        stream.write_all(b"GET / HTTP/1.1\r\n\r\n").expect("it was accepted");
        let mut answer = Vec::new();
        let _ = stream.read_to_end(&mut answer);
    };
    let lines = |text: &str| -> Vec<serde_json::Value> {
        text.lines().map(|line| serde_json::from_str(line).unwrap_or_else(|e| panic!("{e}: {line}"))).collect()
    };
    let told = |running: &Operated, text: &str| -> Vec<serde_json::Value> {
        let mut lines = lines(&running.gateway.server.log());
        lines.retain(|line| line["level"] == "debug" && line["message"].as_str().is_some_and(|m| m.contains(text)));
        lines
    };
    assert_eq!(running.get("/before").status(), 502);
    typed_http(&running);
    set_level(&running, "debug").expect("it is a level");
    let mut connection = running.gateway.connect();
    for path in ["/first", "/second"] {
        let request = format!("GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n");
        connection.send(request).expect("it is open");
        assert_eq!(connection.response("GET").expect("it answers").status(), 502);
    }
    typed_http(&running);
    let trace = b"TRACE / HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";
    assert_eq!(running.gateway.exchange(trace).expect("it answers").status(), 405);
    let all = |running: &Operated| {
        told(running, "failed a request: it cannot be reached").len() == 2
            && told(running, "TLS handshake with a client failed: not_tls").len() == 1
            && told(running, "a request got 405 from the gateway").len() == 1
    };
    assert!(eventually(|| all(&running)), "{}", running.gateway.server.log());
    running.gateway.server.terminate();
    assert_eq!(running.gateway.server.wait().code(), Some(0));
    assert!(all(&running), "what was before the level was changed is not told: {}", running.gateway.server.log());
    let access = lines(&std::fs::read_to_string(&access).expect("it was written"));
    let failed = told(&running, "failed a request");
    for (n, path) in ["/first", "/second"].into_iter().enumerate() {
        let entry =
            access.iter().find(|line| line["target"] == path).unwrap_or_else(|| panic!("no {path}: {access:?}"));
        assert_eq!((&entry["connection"], &entry["request"]), (&failed[n]["connection"], &failed[n]["request"]));
        assert_eq!(failed[n]["request"], format!("{}-{}", failed[n]["connection"].as_str().unwrap_or("?"), n + 1));
    }
    let mut ids: Vec<&str> = access.iter().filter_map(|line| line["request"].as_str()).collect();
    ids.sort_unstable();
    ids.dedup();
    assert_eq!(ids.len(), access.len(), "every request has an id of its own: {access:?}");
    let handshake = &told(&running, "TLS handshake with a client failed")[0];
    assert!(handshake["client"].as_str().is_some_and(|c| c.starts_with("127.0.0.1:")), "{handshake}");
    assert!(access.iter().all(|line| line["connection"] != handshake["connection"]), "{handshake}");
}

/// A strangers' flood costs a bounded number of lines, and each of its connections is accounted for.
#[test]
fn a_flood_of_strangers_is_counted() {
    let (site, backend) = (Site::new(), Backend::saying("hello"));
    let running = logging(&site, &backend, sealane(), "level = \"debug\"\nmessage_format = \"json\"");
    let (flood, began) = (600, Instant::now());
    for _ in 0..flood {
        // Not TLS, and with what would end a line and start another.
        let mut stream = client::tcp(running.gateway.address);
        stream.write_all(b"GET /\x1b[2J\n{\"level\":\"error\"} HTTP/1.1\r\n\r\n").expect("it was accepted");
        let _ = stream.read_to_end(&mut Vec::new());
    }
    let most = 20 * (began.elapsed().as_secs() + 2);
    let of_log = || {
        let log = running.gateway.server.log();
        let lines = log.lines().map(|line| serde_json::from_str::<serde_json::Value>(line).expect("JSON"));
        let about =
            lines.filter(|line| line["message"].as_str().is_some_and(|m| m.contains("TLS handshake with a client")));
        let (repeats, written): (Vec<_>, Vec<_>) = about.partition(|line| line["repeated"].is_u64());
        assert!(written.iter().all(|line| line["connection"].is_string() && line["client"].is_string()), "{log}");
        (written.len() as u64, repeats.iter().filter_map(|line| line["repeated"].as_u64()).sum::<u64>())
    };
    let lost = || running.gateway.metric("sealane_log_records_lost_total").unwrap_or(0.0) as u64;
    let all_told = || {
        let (written, repeated) = of_log();
        written + repeated + lost() == flood
    };
    assert!(eventually(all_told), "{:?} and {} lost", of_log(), lost());
    assert!(of_log().0 <= most, "{} lines are more than {most}", of_log().0);
    assert_eq!(running.get("/").text(), "hello");
}

/// A pipe that is full: its name, and both ends.
fn full_pipe(site: &Site) -> (PathBuf, File) {
    let path = site.path().join("stderr");
    rustix::fs::mknodat(rustix::fs::CWD, &path, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).expect("our own folder");
    let both = rustix::fs::open(&path, OFlags::RDWR | OFlags::NONBLOCK | OFlags::CLOEXEC, Mode::empty());
    let mut both = File::from(both.expect("it was made"));
    while both.write(&[b'\n'; 4096]).is_ok() {}
    (path, both)
}

fn with_stderr_at(path: &std::path::Path) -> Command {
    let mut shell = Command::new("sh");
    shell.args(["-c", "exec \"$0\" \"$@\" 2>>\"$STDERR\""]).arg(binary::sealane()).env("STDERR", path);
    shell
}

#[test]
fn nobody_reads_the_log() {
    let (site, backend) = (Site::new(), Backend::saying("hello"));
    let (path, mut pipe) = full_pipe(&site);
    let mut running = logging(&site, &backend, with_stderr_at(&path), "");
    // Control goes on, and counts what it could not say.
    for _ in 0..3 {
        order(&running.socket, "reload").expect("the file is good");
        assert_eq!(running.get("/").text(), "hello");
    }
    assert!(
        running.gateway.metric("sealane_log_lines_lost_total").is_some_and(|lost| lost >= 4.0),
        "start and reloads"
    );
    // Somebody reads again: it is told how many lines are missing, and what is new.
    let mut log = String::new();
    let mut read = || {
        let mut bytes = [0; 4096];
        while let Ok(count @ 1..) = pipe.read(&mut bytes) {
            log.push_str(&String::from_utf8_lossy(&bytes[..count]));
        }
        log.clone()
    };
    read();
    order(&running.socket, "reload").expect("the file is good");
    assert!(eventually(|| read().contains(" INFO sealane: reloaded\n")), "{}", read());
    let told = read();
    let lines: Vec<&str> = told.lines().filter(|line| !line.is_empty()).collect();
    assert!(lines[0].contains(" WARN sealane: ") && lines[0].contains(" lines of the log were lost"), "{told}");
    running.gateway.server.terminate();
    assert_eq!(running.gateway.server.wait().code(), Some(0));
}

/// Its reader has gone away, or it was closed from the start.
#[test]
fn the_standard_error_is_closed() {
    let backend = Backend::saying("hello");
    let goes_on = |mut running: Operated| {
        order(&running.socket, "reload").expect("the file is good");
        assert_eq!(running.get("/").text(), "hello");
        running.gateway.server.terminate();
        assert_eq!(running.gateway.server.wait().code(), Some(0));
    };
    let site = Site::new();
    let (path, pipe) = full_pipe(&site);
    let running = logging(&site, &backend, with_stderr_at(&path), "");
    drop(pipe);
    goes_on(running);
    let mut shell = Command::new("sh");
    shell.args(["-c", "exec \"$0\" \"$@\" 2>&-"]).arg(binary::sealane());
    goes_on(logging(&site, &backend, shell, ""));
}
