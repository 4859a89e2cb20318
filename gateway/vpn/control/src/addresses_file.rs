//! The file of names and addresses (`ifconfig-pool-persist` of OpenVPN): `name,10.8.0.2,fd00:8::1002` in each line.

use super::output_file;
use super::pool::{Addresses, Pool};
use sealane_log as log;
use std::path::Path;
use std::time::{Duration, Instant};

/// How often it is written at most.
const EVERY: Duration = Duration::from_secs(10);

/// When it was written, and what.
#[derive(Debug, Default)]
pub(super) struct AddressesFile {
    written: Option<(Instant, String)>,
    /// Said once, not every ten seconds.
    failed: bool,
}

/// Reads a file into a pool. A line that is not understood is left out; a file that is not there is empty.
pub(super) fn read(path: &Path, pool: &mut Pool) {
    let text = match std::fs::read_to_string(path) {
        Ok(text) => text,
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => return,
        Err(e) => return log::warn!("tunnel: cannot read the addresses of clients from {}: {e}", path.display()),
    };
    let mut wrong = 0_usize;
    for line in text.lines().filter(|line| !line.trim().is_empty()) {
        match parse(line) {
            Some((name, addresses)) => pool.remember(name, addresses),
            None => wrong += 1,
        }
    }
    if wrong > 0 {
        log::warn!(
            "tunnel: {wrong} lines of {} do not have the form NAME,ADDRESS,ADDRESS6; the gateway ignores them",
            path.display()
        );
    }
}

fn parse(line: &str) -> Option<(&str, Addresses)> {
    let mut fields = line.trim_end().split(',');
    let name = fields.next().filter(|name| !name.is_empty())?;
    let mut addresses = Addresses::default();
    // OpenVPN leaves out what there is not, or leaves it empty.
    for field in fields.filter(|field| !field.is_empty()) {
        match field.parse().ok()? {
            std::net::IpAddr::V4(a) => addresses.four = Some(a),
            std::net::IpAddr::V6(a) => addresses.six = Some(a),
        }
    }
    (addresses != Addresses::default()).then_some((name, addresses))
}

fn text(pool: &Pool) -> String {
    // A name that cannot stand in a line is forgotten at the end.
    let plain = |name: &str| !name.contains(',') && !name.chars().any(char::is_control);
    let lines = pool.remembered().into_iter().filter(|(name, _)| plain(name)).map(|(name, Addresses { four, six })| {
        let four = four.map_or_else(String::new, |a| a.to_string());
        let six = six.map_or_else(String::new, |a| a.to_string());
        format!("{name},{four},{six}\n")
    });
    lines.collect()
}

impl AddressesFile {
    /// Writes it where something is new and some time has passed. `is_end`: time does not matter.
    pub fn write(&mut self, path: &Path, pool: &Pool, now: Instant, is_end: bool) {
        if !is_end && self.written.as_ref().is_some_and(|(at, _)| now.duration_since(*at) < EVERY) {
            return;
        }
        let text = text(pool);
        let is_new = self.written.as_ref().is_none_or(|(_, before)| *before != text);
        // Names and addresses are nobody else's business.
        let result = if is_new { output_file::replace(path, &text, 0o640) } else { Ok(()) };
        match result {
            Ok(()) => (self.written, self.failed) = (Some((now, text)), false),
            Err(e) => {
                // Tried again after the same time.
                let before = self.written.take().map_or_else(|| "\n".to_owned(), |(_, before)| before);
                self.written = Some((now, before));
                if !std::mem::replace(&mut self.failed, true) {
                    log::warn!("tunnel: cannot write the addresses of clients to {}: {e}", path.display());
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pool() -> Pool {
        Pool::new(Some(([10, 8, 0, 1].into(), 29)), None, std::iter::empty(), &[])
    }

    #[test]
    fn names_find_their_addresses_again() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("addresses.txt");
        let mut before = pool();
        let [a, b] = ["a", "b"].map(|name| before.take(name, Addresses::default(), None).expect("free"));
        before.take("c,\nd", Addresses::default(), None).expect("free");
        let (mut file, now) = (AddressesFile::default(), Instant::now());
        file.write(&path, &before, now, false);
        let text = std::fs::read_to_string(&path).expect("written");
        assert_eq!(text, "a,10.8.0.2,\nb,10.8.0.3,\n");
        // Nothing is new, and it is too early.
        std::fs::remove_file(&path).expect("it is there");
        file.write(&path, &before, now + EVERY, false);
        before.take("e", Addresses::default(), None).expect("free");
        file.write(&path, &before, now + EVERY, false);
        assert!(!path.exists());
        file.write(&path, &before, now + EVERY, true);
        // As OpenVPN writes it, and what is no line of it.
        let text = std::fs::read_to_string(&path).expect("written") + "f,10.8.0.6\n,10.8.0.5\ng\nh,nowhere\n\n";
        std::fs::write(&path, text).expect("written");
        let mut after = pool();
        read(&path, &mut after);
        assert_eq!(after.remembered().into_keys().collect::<Vec<_>>(), ["a", "b", "e", "f"]);
        assert_eq!(after.take("b", Addresses::default(), None), Ok(b));
        assert_eq!(after.take("a", Addresses::default(), None), Ok(a));
        read(&folder.path().join("missing"), &mut after);
        file.write(Path::new("/nonexistent/x"), &after, now + 3 * EVERY, true);
        assert!(file.failed);
    }
}
