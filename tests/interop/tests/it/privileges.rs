//! What a gateway leaves to others: the modes of the files that it makes. What it keeps of root's rights: `root`.

use crate::operating::Operated;
use sealane_interop::backend::Backend;
use sealane_interop::site::Site;
use sealane_interop::{binary, eventually, ports};
use std::os::unix::fs::PermissionsExt;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

/// Whatever the umask is, from the moment that they are there.
#[test]
fn files_are_made_with_their_modes() {
    let site = Site::new();
    let backend = Backend::saying("hello");
    let (listen, log) = (ports::free(), site.path().join("access.log"));
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        // Every mode that a socket in the folder is seen with.
        let watching = scope.spawn(|| {
            let mut seen = std::collections::BTreeSet::new();
            while !stop.load(Relaxed) {
                for entry in std::fs::read_dir(site.path()).expect("our own folder").flatten() {
                    if entry.file_name().to_string_lossy().starts_with("admin.sock")
                        && let Ok(meta) = entry.metadata()
                    {
                        seen.insert(meta.permissions().mode() & 0o777);
                    }
                }
            }
            seen
        });
        let mut command = Command::new("sh");
        command.args(["-c", "umask 0; exec \"$0\" \"$@\""]).arg(binary::sealane());
        let file = |admin: &str| {
            let text = format!("{admin}\n[log]\naccess = \"{}\"\n", log.display());
            Operated::simple_file(&site, &text, listen, &backend.url())
        };
        let gateway = Operated::start_by(&site, command, 1, file, listen);
        assert_eq!(gateway.get("/").text(), "hello");
        stop.store(true, Relaxed);
        assert_eq!(watching.join().expect("it does not panic").into_iter().collect::<Vec<_>>(), [0o600]);
        let mode = || std::fs::metadata(&log).map(|meta| meta.permissions().mode() & 0o777).ok();
        assert_eq!(mode(), Some(0o640));
        // The next one, too.
        std::fs::rename(&log, site.path().join("access.log.1")).expect("our own folder");
        crate::operating::order(&gateway.socket, "reopen-logs").expect("it may");
        assert!(eventually(|| {
            gateway.get("/");
            mode() == Some(0o640)
        }));
    });
}
