//! What a configuration names is read with care: whatever is at a path, the answer is an error with its place, in bounded time.

use super::files::{Folder, one_listener};
use sealane_control::config::{Document, example};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

/// `sealane check --offline` needs nothing but the text: every path of the example is missing, and so is its folder.
#[test]
fn offline_nothing_is_opened() {
    let missing = Path::new("/no/such/folder/sealane.toml");
    let document = Document::of_file(missing, example().as_bytes()).unwrap();
    let (config, warnings) = document.read_offline().unwrap_or_else(|e| panic!("{e}"));
    assert!(warnings.is_empty(), "{warnings:?}");
    assert!(config.listeners.iter().any(|l| l.tls.is_some()));
    let tunnel = "user = \"nobody-at-all\"\n[tunnel]\nlisten = [\":1194\"]\nnetwork = \"10.8.0.0/24\"\nca = \"none/ca.crt\"\n\
                  cert = \"none/server.crt\"\nkey = \"none/server.key\"\ncrl = \"none/crl.pem\"\n\
                  tls_crypt_v2 = \"none/v2.key\"\nusers = \"none/users\"\nauth_command = [\"/none/program\"]\n\
                  [admin]\nsocket = \"none/admin.sock\"\n[log]\naccess = \"none/access.log\"\n";
    let document = Document::of_file(missing, tunnel.as_bytes()).unwrap();
    if let Err(e) = document.read_offline() {
        panic!("{e}");
    }
}

/// Everything that may be at a certificate's path, all at once.
#[test]
fn whatever_is_at_a_path_is_an_error_with_its_place() {
    let folder = Folder::new();
    folder.certificate("a", &["a.example"]);
    std::fs::create_dir(folder.path("certs/folder")).unwrap();
    std::fs::File::create(folder.path("certs/large")).unwrap().set_len(10 << 30).unwrap();
    rustix::fs::mknodat(rustix::fs::CWD, folder.path("certs/pipe"), rustix::fs::FileType::Fifo, 0o600.into(), 0)
        .unwrap();
    let _socket = std::os::unix::net::UnixListener::bind(folder.path("certs/socket")).unwrap();
    std::fs::write(folder.path("certs/secret"), "").unwrap();
    std::fs::set_permissions(folder.path("certs/secret"), std::fs::Permissions::from_mode(0o000)).unwrap();
    std::os::unix::fs::symlink("loop", folder.path("certs/loop")).unwrap();
    for (name, wanted) in [
        ("folder", "is a directory"),
        ("large", "file too large"),
        ("pipe", "the file is a pipe, and its writer does not close it"),
        ("socket", "no such device or address"),
        ("loop", "too many levels of symbolic links"),
        ("a.pem/below", "not a directory"),
        ("none", "no such file or directory"),
    ] {
        let report = folder.report(&one_listener(&format!("certs/{name}"), "certs/a.key"));
        let start = format!("sealane.toml:3:30: error: cannot read the certificate certs/{name}: ");
        assert!(report.starts_with(&start), "{report}");
        assert!(report.to_lowercase().contains(wanted), "wanted: {wanted}\n{report}");
        assert!(report.contains("\n3 | tls.certificates = "), "{report}");
    }
    if !rustix::process::geteuid().is_root() {
        let report = folder.report(&one_listener("certs/secret", "certs/a.key"));
        assert!(report.contains("the file has mode 0000"), "{report}");
    }
}

/// One pipe holds what two settings name: it is read once.
#[test]
fn a_certificate_and_its_key_come_through_a_pipe() {
    let folder = Folder::new();
    folder.certificate("a", &["a.example"]);
    let both = ["certs/a.pem", "certs/a.key"].map(|name| std::fs::read_to_string(folder.path(name)).unwrap()).concat();
    let (reader, mut writer) = std::io::pipe().unwrap();
    std::io::Write::write_all(&mut writer, both.as_bytes()).unwrap();
    drop(writer);
    let path = format!("/dev/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&reader));
    let text = one_listener(&path, &path);
    assert_eq!(folder.report(&text), "");
}

/// A file that is replaced all the time, by renaming and by writing into it: what is read is one state of it, or an error.
#[test]
fn a_certificate_that_is_replaced_meanwhile() {
    let folder = Folder::new();
    folder.certificate("a", &["a.example"]);
    let (path, next) = (folder.path("certs/a.pem"), folder.path("certs/next"));
    let good = std::fs::read(&path).unwrap();
    let stop = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !stop.load(std::sync::atomic::Ordering::Relaxed) {
                std::fs::write(&next, &good).unwrap();
                std::fs::rename(&next, &path).unwrap();
            }
        });
        for _ in 0..50 {
            assert_eq!(folder.report(&one_listener("certs/a.pem", "certs/a.key")), "");
        }
        stop.store(true, std::sync::atomic::Ordering::Relaxed);
    });
}
