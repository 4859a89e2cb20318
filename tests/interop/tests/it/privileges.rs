//! What a gateway leaves to others: the modes of the files that it makes. What it keeps of root's rights: `root`.

use crate::operating::Operated;
use rustix::fs::inotify::{self, ReadFlags, WatchFlags};
use sealane_interop::backend::Backend;
use sealane_interop::site::Site;
use sealane_interop::{binary, eventually, ports};
use std::collections::HashMap;
use std::mem::MaybeUninit;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;

/// Whatever the umask is, from the moment that they are there: the kernel tells of each change of a mode.
#[test]
fn files_are_made_with_their_modes() {
    let site = Site::new();
    let backend = Backend::saying("hello");
    let (listen, log) = (ports::free(), site.path().join("access.log"));
    let changes = inotify::init(inotify::CreateFlags::CLOEXEC | inotify::CreateFlags::NONBLOCK).expect("an inotify");
    let wanted = WatchFlags::CREATE | WatchFlags::MOVED_TO | WatchFlags::ATTRIB;
    inotify::add_watch(&changes, site.path(), wanted).expect("our own folder");
    let mut command = Command::new("sh");
    command.args(["-c", "umask 0; exec \"$0\" \"$@\""]).arg(binary::sealane());
    let file = |admin: &str| {
        let text = format!("{admin}\n[log]\naccess = \"{}\"\n", log.display());
        Operated::simple_file(&site, &text, listen, &backend.url())
    };
    let gateway = Operated::start_by(&site, command, 1, file, listen);
    assert_eq!(gateway.get("/").text(), "hello");
    let mode = |path: &Path| std::fs::metadata(path).map(|meta| meta.permissions().mode() & 0o777).ok();
    assert_eq!((mode(&gateway.socket), mode(&log)), (Some(0o600), Some(0o640)));
    // What has become of each file since: its mode is the one that it was made with.
    let mut seen: HashMap<String, Vec<ReadFlags>> = HashMap::new();
    let mut buffer = [MaybeUninit::uninit(); 4096];
    let mut reader = inotify::Reader::new(&changes, &mut buffer);
    while let Ok(event) = reader.next() {
        let name = event.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
        seen.entry(name).or_default().push(event.events());
    }
    let made = |name: &str| seen.get(name).cloned().unwrap_or_default();
    assert_eq!(made("access.log"), [ReadFlags::CREATE], "{seen:?}");
    // It is made under another name, and put in its place.
    assert_eq!(made("admin.sock"), [ReadFlags::MOVED_TO], "{seen:?}");
    let waiting: Vec<&Vec<ReadFlags>> =
        seen.iter().filter(|(name, _)| name.starts_with("admin.sock.")).map(|(_, events)| events).collect();
    assert_eq!(waiting, [&[ReadFlags::CREATE]], "{seen:?}");
    // The next log, too.
    std::fs::rename(&log, site.path().join("access.log.1")).expect("our own folder");
    crate::operating::order(&gateway.socket, "reopen-logs").expect("it may");
    assert!(eventually(|| {
        gateway.get("/");
        mode(&log) == Some(0o640)
    }));
}
