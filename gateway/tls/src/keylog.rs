//! `dangerous_key_log`: TLS secrets appended to a file in NSS format, for debugging with a packet analyser.

use rustls::KeyLog;
use std::fs::{File, OpenOptions};
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::sync::Arc;

#[derive(Debug)]
struct KeyLogFile(File);

pub(crate) fn open(path: &Path) -> std::io::Result<Arc<dyn KeyLog>> {
    Ok(Arc::new(KeyLogFile(OpenOptions::new().append(true).create(true).mode(0o600).open(path)?)))
}

impl KeyLog for KeyLogFile {
    fn log(&self, label: &str, client_random: &[u8], secret: &[u8]) {
        let mut line = String::with_capacity(label.len() + 2 * (client_random.len() + secret.len()) + 3);
        line.push_str(label);
        for part in [client_random, secret] {
            line.push(' ');
            for byte in part {
                line.push_str(&format!("{byte:02x}"));
            }
        }
        line.push('\n');
        // One write per line: lanes append to the same file. A failure must not end the connection.
        let _ = (&self.0).write_all(line.as_bytes());
    }
}
