//! A program in C, built with the header and the pkg-config file, over an emulated link.

#[path = "../../connect/tests/library/mod.rs"]
mod library;
#[path = "../../connect/tests/server/mod.rs"]
#[allow(dead_code, reason = "shared with another test")]
mod server;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use library::library;
use sealane_connect::Cookie;
use sealane_lab_emulator::{Link, LinkConfig, LinkError};
use server::{NAME, Server};
use std::net::IpAddr;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

const NO_COOKIE: &str = "1";

fn here(program: &str) -> bool {
    Command::new(program).arg("--version").stdout(Stdio::null()).stderr(Stdio::null()).status().is_ok()
}

/// What pkg-config says of the library in this folder.
fn flags(folder: &Path) -> Vec<String> {
    let capi = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut command = Command::new("pkg-config");
    command.arg(format!("--define-variable=libdir={}", folder.display()));
    command.arg(format!("--define-variable=includedir={}", capi.join("include").display()));
    command.args(["--cflags", "--libs", "sealaneconnect"]).env("PKG_CONFIG_PATH", capi);
    let output = command.output().expect("pkg-config runs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).expect("flags are text").split_whitespace().map(str::to_owned).collect()
}

/// Builds the program, with every warning an error; returns it with the folder of the library.
fn build(folder: &Path) -> PathBuf {
    // The folder that cargo uses has other libraries, too.
    symlink(library("libsealaneconnect"), folder.join("libsealaneconnect.so")).expect("a link in our own folder");
    let program = folder.join("get");
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/get.c");
    let mut command = Command::new("cc");
    command.args(["-std=c11", "-D_POSIX_C_SOURCE=200809L", "-Wall", "-Wextra", "-Werror", "-o"]);
    let output = command.arg(&program).arg(source).args(flags(folder)).output().expect("cc runs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    program
}

fn pem(server: &Server, folder: &Path) -> PathBuf {
    let text = STANDARD.encode(&server.certificate);
    let lines: Vec<&str> = text.as_bytes().chunks(64).map(|line| std::str::from_utf8(line).expect("ASCII")).collect();
    let file = folder.join("ca.pem");
    let body = lines.join("\n");
    let text = format!("-----BEGIN CERTIFICATE-----\n{body}\n-----END CERTIFICATE-----\n");
    std::fs::write(&file, text).expect("a file in our own folder");
    file
}

/// Runs the program on the client's side. Returns what it prints for each connection, or its message.
fn get(link: &Link, folder: &Path, to: (&Path, &Server, &str), flags: &str) -> Result<Vec<(usize, i32)>, String> {
    let (program, server, name) = to;
    let mut command = Command::new(program);
    command.arg(pem(server, folder)).arg(server.address.ip().to_string()).arg(server.address.port().to_string());
    command.args([name, flags, "3"]).env("LD_LIBRARY_PATH", folder).stdout(Stdio::piped()).stderr(Stdio::piped());
    let output = link.client().spawn(&mut command).expect("it starts").wait_with_output().expect("it ends");
    if output.status.code() != Some(0) {
        return Err(format!("{}: {}", output.status, String::from_utf8_lossy(&output.stderr)));
    }
    let row = |line: &str| {
        let (bytes, early) = line.split_once(' ').expect("two numbers");
        (bytes.parse::<usize>().expect("a number"), early.parse::<i32>().expect("a number"))
    };
    Ok(String::from_utf8_lossy(&output.stdout).lines().map(row).collect())
}

#[test]
fn a_program_in_c_sends_its_hello_in_the_syn() {
    if let Some(missing) = ["cc", "pkg-config"].into_iter().find(|program| !here(program)) {
        eprintln!("skipped: no {missing}");
        return;
    }
    let link = match Link::up(&LinkConfig::with_rtt(Duration::from_millis(4))) {
        Ok(link) => link,
        Err(e @ (LinkError::Privileges(_) | LinkError::Device(_))) => {
            eprintln!("skipped: {e}");
            return;
        }
        Err(e) => panic!("{e}"),
    };
    for side in [link.client(), link.server()] {
        side.set_sysctl("net.ipv4.tcp_fastopen", "3").expect("a namespace of our own has its own settings");
    }
    let folder = tempfile::tempdir().expect("a folder");
    let program = build(folder.path());
    let ip = IpAddr::from(link.server().address());

    // With a cookie: the first connection asks for it. Its request, which a ticket would allow in early data, has none yet.
    let server = Server::start(&link, ip, Cookie::Ask);
    let rows = get(&link, folder.path(), (program.as_path(), &server, NAME), "0").expect("three connections");
    assert_eq!((rows.len(), rows[0]), (3, (0, 3)), "{rows:?}");
    assert!(rows[1].0 > 200 && rows[2].0 > 200, "{rows:?}");
    assert_eq!((rows[1].1, rows[2].1), (1, 1), "early data: {rows:?}");
    assert_eq!(server.requests(), 3);

    // Without one.
    let open = Server::start(&link, ip, Cookie::None);
    let rows = get(&link, folder.path(), (program.as_path(), &open, NAME), NO_COOKIE).expect("three connections");
    assert!(rows.iter().all(|(bytes, _)| *bytes > 200), "{rows:?}");

    // Another name than the certificate's.
    let why = get(&link, folder.path(), (program.as_path(), &server, "other.test"), "0").expect_err("another name");
    assert!(why.contains("TLS handshake failed"), "{why}");
}
