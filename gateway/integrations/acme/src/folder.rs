//! The folder that certificates, the account and the state of attempts are kept in.
//!
//! ```text
//! STORAGE/lock                     held by the one process that renews
//! STORAGE/account-HASH.json        the account's key, for the directory with this hash
//! STORAGE/certificates/NAME.pem    private key, certificate, intermediate certificates: one file, so that a rename replaces
//!                                  the pair as a whole
//! STORAGE/state/NAME.json          attempts that failed, when the next one may be made, when it is renewed
//! STORAGE/state/NAME.order         an order that the authority has not completed yet: its URL, and the new certificate's key
//! STORAGE/state.json               when the authority wants to be asked again
//! ```
//!
//! Folders have mode 0700, files 0600. A file is written beside its place, synchronised and renamed: a crash or a full disk
//! leaves the old one.

use rustix::fs::{FlockOperation, Mode, OFlags, flock, open};
use rustix::process::geteuid;
use std::fs::{DirBuilder, File};
use std::io::{self, ErrorKind, Read, Write};
use std::net::IpAddr;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;

/// The largest file that is read.
const MAX_FILE: u64 = 1 << 20;
/// How long the file system may take.
const LIMIT: Duration = Duration::from_secs(20);
/// What is written to find out whether an order's result could be kept.
const PROBE: usize = 64 << 10;

/// The file of a name's certificate. No name has a plus sign, which stands for the star of a wildcard.
pub(crate) fn certificate_file(name: &str) -> String {
    format!("certificates/{}.pem", name.replace('*', "+"))
}

/// The file of the state of a name.
pub(crate) fn state_file(name: &str) -> String {
    format!("state/{}.json", name.replace('*', "+"))
}

/// The file of an order of a name that the authority has not completed yet: no state has this ending.
pub(crate) fn pending_file(name: &str) -> String {
    format!("state/{}.order", name.replace('*', "+"))
}

/// Whether a name can be a part of a file's name.
pub(crate) fn is_file_name(name: &str) -> bool {
    if name.parse::<IpAddr>().is_ok() {
        return true;
    }
    let good = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || matches!(b, b'.' | b'-' | b'_');
    let name = name.strip_prefix("*.").unwrap_or(name);
    !name.is_empty() && name.len() <= 240 && !name.starts_with('.') && name.bytes().all(good)
}

/// An open folder.
#[derive(Clone, Debug)]
pub(crate) struct Folder {
    path: Arc<PathBuf>,
}

/// The lock, until it is dropped.
#[derive(Debug)]
pub(crate) struct Lock(#[expect(dead_code, reason = "holds the lock")] File);

impl Folder {
    pub fn new(path: &Path) -> Self {
        Self { path: Arc::new(path.to_path_buf()) }
    }

    /// Makes the folder if it is not there, and takes its lock. `None`: another process has it.
    pub async fn lock(&self) -> io::Result<Option<Lock>> {
        let path = self.path.clone();
        self.bounded(LIMIT, move || {
            for folder in [path.as_path(), &path.join("certificates"), &path.join("state")] {
                match DirBuilder::new().recursive(true).mode(0o700).create(folder) {
                    Err(e) if e.kind() != ErrorKind::AlreadyExists => return Err(named(&e, folder)),
                    _ => {}
                }
                let metadata = std::fs::metadata(folder).map_err(|e| named(&e, folder))?;
                let (owner, user) = (metadata.uid(), geteuid().as_raw());
                if owner != user && owner != 0 {
                    let why = format!(
                        "{} belongs to another user (uid {owner}), but the gateway runs as uid {user}: sudo chown -R {user} {}",
                        folder.display(),
                        sealane_config::shell_word(path.display())
                    );
                    return Err(io::Error::other(why));
                }
                let mode = metadata.permissions().mode();
                if mode & 0o022 != 0 {
                    let why = format!(
                        "{} can be written by other users (mode {:04o}): sudo chmod 700 {}",
                        folder.display(),
                        mode & 0o7777,
                        sealane_config::shell_word(folder.display())
                    );
                    return Err(io::Error::other(why));
                }
            }
            let place = path.join("lock");
            let file = File::from(create(&place, OFlags::empty()).map_err(|e| named(&e, &place))?);
            match flock(&file, FlockOperation::NonBlockingLockExclusive) {
                Ok(()) => Ok(Some(Lock(file))),
                Err(rustix::io::Errno::WOULDBLOCK) => Ok(None),
                Err(e) => Err(named(&e.into(), &place)),
            }
        })
        .await
    }

    /// The content of a file; `None` if it is not there.
    pub async fn read(&self, name: &str) -> io::Result<Option<Vec<u8>>> {
        let place = self.path.join(name);
        self.bounded(LIMIT, move || {
            let file = match File::open(&place) {
                Err(e) if e.kind() == ErrorKind::NotFound => return Ok(None),
                other => other.map_err(|e| named(&e, &place))?,
            };
            let mut bytes = Vec::new();
            file.take(MAX_FILE + 1).read_to_end(&mut bytes).map_err(|e| named(&e, &place))?;
            if bytes.len() as u64 > MAX_FILE {
                return Err(named(&ErrorKind::FileTooLarge.into(), &place));
            }
            Ok(Some(bytes))
        })
        .await
    }

    /// Puts a file in the place of the one that is there, as a whole or not at all.
    pub async fn write(&self, name: &str, bytes: Vec<u8>) -> io::Result<()> {
        let place = self.path.join(name);
        self.bounded(LIMIT, move || {
            let folder = place.parent().unwrap_or(Path::new("/"));
            let file = place.file_name().unwrap_or_default().to_string_lossy();
            // One name for each place: what a crash leaves is overwritten.
            let beside = folder.join(format!(".{file}.new"));
            let written = write_new(&beside, &bytes).and_then(|()| std::fs::rename(&beside, &place));
            if written.is_err() {
                let _ = std::fs::remove_file(&beside);
            }
            written.map_err(|e| named(&e, &place))?;
            File::open(folder).and_then(|folder| folder.sync_all()).map_err(|e| named(&e, folder))
        })
        .await
    }

    /// Removes a file.
    pub async fn remove(&self, name: &str) -> io::Result<()> {
        let place = self.path.join(name);
        self.bounded(LIMIT, move || match std::fs::remove_file(&place) {
            Err(e) if e.kind() != ErrorKind::NotFound => Err(named(&e, &place)),
            _ => Ok(()),
        })
        .await
    }

    /// Fails where what an order brings could not be kept. Authorities count orders.
    pub async fn has_room(&self) -> io::Result<()> {
        let place = self.path.join(".room");
        self.bounded(LIMIT, move || {
            let written = write_new(&place, &[0; PROBE]);
            let _ = std::fs::remove_file(&place);
            written.map_err(|e| named(&e, &place))
        })
        .await
    }
}

fn create(path: &Path, flags: OFlags) -> io::Result<std::os::fd::OwnedFd> {
    let flags = flags | OFlags::RDWR | OFlags::CREATE | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    Ok(open(path, flags, Mode::RUSR | Mode::WUSR)?)
}

fn write_new(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let mut file = File::from(create(path, OFlags::TRUNC)?);
    file.write_all(bytes)?;
    file.sync_all()
}

fn named(e: &io::Error, path: &Path) -> io::Error {
    io::Error::new(e.kind(), format!("{}: {e}", path.display()))
}

impl Folder {
    /// Runs what may block.
    async fn bounded<T: Send + 'static>(
        &self,
        limit: Duration,
        work: impl FnOnce() -> io::Result<T> + Send + 'static,
    ) -> io::Result<T> {
        match sealane_blocking::call(&self.path, Instant::now() + limit, work).await {
            Ok(done) => done,
            Err(failure) => {
                let why = format!("{}: {failure}", self.path.display());
                Err(io::Error::new(ErrorKind::TimedOut, why))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run<T>(work: impl Future<Output = T>) -> T {
        tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(work)
    }

    #[test]
    fn files_are_private_and_replaced_as_a_whole() {
        run(async {
            let temporary = tempfile::tempdir().unwrap();
            let path = temporary.path().join("acme");
            let folder = Folder::new(&path);
            let _lock = folder.lock().await.unwrap().unwrap();
            assert_eq!(folder.read("certificates/a.example.pem").await.unwrap(), None);
            for content in ["one", "two"] {
                folder.write("certificates/a.example.pem", content.into()).await.unwrap();
                assert_eq!(folder.read("certificates/a.example.pem").await.unwrap(), Some(content.into()));
            }
            folder.has_room().await.unwrap();
            let mode = |p: &Path| std::fs::metadata(p).unwrap().permissions().mode() & 0o777;
            assert_eq!(mode(&path), 0o700);
            assert_eq!(mode(&path.join(certificate_file("a.example"))), 0o600);
            let left: Vec<_> = std::fs::read_dir(path.join("certificates")).unwrap().collect();
            assert_eq!(left.len(), 1, "nothing is left beside it");
        });
    }

    /// A full disk. This test runs itself again where the folder is on a file system of 80 KiB.
    #[test]
    fn a_full_disk_leaves_the_old_file_and_stops_orders() {
        const DISK: &str = "SEALANE_TEST_SMALL_DISK";
        if let Some(disk) = std::env::var_os(DISK) {
            return run(on_a_small_disk(Path::new(&disk)));
        }
        let temporary = tempfile::tempdir().unwrap();
        let mut command = std::process::Command::new("unshare");
        if !geteuid().is_root() {
            command.args(["--user", "--map-root-user"]);
        }
        let script = format!("mount -t tmpfs -o size=80k none \"${DISK}\" && echo mounted && exec \"$@\"");
        command.args(["--mount", "sh", "-c", &script, "sh"]).arg(std::env::current_exe().unwrap());
        command.args(["--exact", "folder::tests::a_full_disk_leaves_the_old_file_and_stops_orders", "--nocapture"]);
        let said = match command.env(DISK, temporary.path()).output() {
            Ok(said) => said,
            Err(e) => return println!("skipped: no file system of a test's own here: unshare: {e}"),
        };
        let text = String::from_utf8_lossy(&said.stdout);
        if !text.starts_with("mounted\n") {
            let why = String::from_utf8_lossy(&said.stderr);
            return println!("skipped: no file system of a test's own here: {}", why.trim());
        }
        assert!(said.status.success() && text.contains("1 passed"), "{text}{}", String::from_utf8_lossy(&said.stderr));
    }

    async fn on_a_small_disk(disk: &Path) {
        let path = disk.join("acme");
        let folder = Folder::new(&path);
        let _lock = folder.lock().await.unwrap().unwrap();
        let (name, filler) = ("certificates/a.example.pem", disk.join("filler"));
        folder.write(name, "one".into()).await.unwrap();
        folder.has_room().await.unwrap();
        // Fills the rest: the last write takes what is left, and fails.
        let mut file = File::create(&filler).unwrap();
        while file.write_all(&[0; 4096]).is_ok() {}
        for e in [folder.write(name, "two".into()).await.unwrap_err(), folder.has_room().await.unwrap_err()] {
            assert_eq!(e.kind(), ErrorKind::StorageFull);
            assert!(e.to_string().starts_with(&path.display().to_string()), "{e}");
        }
        assert_eq!(folder.read(name).await.unwrap(), Some("one".into()));
        let names = |folder: &Path| -> Vec<_> {
            std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().file_name()).collect()
        };
        assert_eq!(names(&path.join("certificates")), ["a.example.pem"], "nothing is left beside it");
        assert!(!names(&path).contains(&".room".into()));
        // Room again: everything goes on.
        drop(file);
        std::fs::remove_file(&filler).unwrap();
        folder.has_room().await.unwrap();
        folder.write(name, "two".into()).await.unwrap();
        assert_eq!(folder.read(name).await.unwrap(), Some("two".into()));
    }

    /// A file system that hangs, which no test can have, is work that does not end.
    #[test]
    fn managers_of_one_folder_that_hangs_wait_for_one_attempt() {
        run(async {
            let folder = Folder::new(Path::new("/far/acme"));
            let (end, ended) = std::sync::mpsc::channel::<()>();
            let first = folder.bounded(Duration::from_millis(20), move || Ok(ended.recv().is_ok())).await;
            assert!(first.unwrap_err().to_string().contains("has not responded in time"));
            for _ in 0..3 {
                let why = Folder::new(Path::new("/far/acme")).lock().await.unwrap_err().to_string();
                assert!(why.contains("an earlier attempt"), "{why}");
            }
            drop(end);
            while sealane_blocking::hangs(Path::new("/far/acme")) {
                tokio::task::yield_now().await;
            }
            assert_eq!(folder.bounded(LIMIT, || Ok(7)).await.unwrap(), 7);
        });
    }

    #[test]
    fn one_process_has_the_lock() {
        run(async {
            let temporary = tempfile::tempdir().unwrap();
            let folder = Folder::new(&temporary.path().join("acme"));
            let first = folder.lock().await.unwrap();
            assert!(first.is_some());
            assert!(folder.lock().await.unwrap().is_none());
            drop(first);
            // A program that another test starts at this moment has a copy of the descriptor until it runs.
            let mut again = None;
            for _ in 0..1000 {
                again = folder.lock().await.unwrap();
                if again.is_some() {
                    break;
                }
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
            assert!(again.is_some());
        });
    }

    #[test]
    fn a_folder_that_others_may_write_is_refused() {
        run(async {
            let temporary = tempfile::tempdir().unwrap();
            let path = temporary.path().join("acme");
            std::fs::create_dir(&path).unwrap();
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o777)).unwrap();
            let e = Folder::new(&path).lock().await.unwrap_err().to_string();
            assert!(e.contains("can be written by other users (mode 0777)"), "{e}");
        });
    }

    #[test]
    fn a_name_is_no_path() {
        for good in
            ["a.example", "xn--bcher-kva.example", "_dmarc.a.example", "a", "*.a.example", "192.0.2.1", "2001:db8::1"]
        {
            assert!(is_file_name(good), "{good}");
        }
        for bad in [
            "",
            ".",
            "..",
            "../a",
            "a/b",
            "A.example",
            "a.*.example",
            "*",
            "*.",
            "*./a",
            "a\0b",
            "[::1]",
            "fe80::1%eth0",
            "*.::1",
        ] {
            assert!(!is_file_name(bad), "{bad}");
        }
    }
}
