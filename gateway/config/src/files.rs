//! The content of files that settings name, and what is reported where it cannot be read.

use crate::decode::At;
use crate::diagnostics::Sink;
use crate::surroundings::{Content, Unreadable};
use std::fmt::Display;
use std::io;
use std::path::PathBuf;

/// The content of a whole file. `None` also where it is not read, or not yet.
pub(crate) fn read<'s>(sink: &Sink<'s>, what: &str, file: &At<PathBuf>) -> Option<&'s [u8]> {
    bytes_of(sink, what, file, sink.content(&file.value)?)
}

/// The same. `help`: what to do if nothing better is known.
pub(crate) fn read_or<'s>(sink: &Sink<'s>, what: &str, file: &At<PathBuf>, help: &str) -> Option<&'s [u8]> {
    match sink.content(&file.value)? {
        Err(Unreadable { why, help: None }) => {
            let message = format!("cannot read the {what} {}: {why}", file.value.display());
            sink.error(&file.span, message, Some(help.to_owned()));
            None
        }
        content => bytes_of(sink, what, file, content),
    }
}

/// The bytes of a file, or a report why there are none.
pub(crate) fn bytes_of<'s>(
    sink: &Sink,
    what: &str,
    file: &At<PathBuf>,
    content: &'s Result<Content, Unreadable>,
) -> Option<&'s [u8]> {
    match content {
        Ok(content) => Some(&content.bytes),
        Err(Unreadable { why, help }) => {
            let message = format!("cannot read the {what} {}: {why}", file.value.display());
            sink.error(&file.span, message, help.clone());
            None
        }
    }
}

/// An I/O error in plain words, without "(os error 2)".
pub fn plain(e: &io::Error) -> String {
    let s = e.to_string();
    let s = s.split(" (os error").next().unwrap_or(&s);
    let mut chars = s.chars();
    chars.next().map_or_else(String::new, |c| c.to_lowercase().chain(chars).collect())
}

/// A path as one word of a shell command, so that a command in a message can be copied: in single quotes if the shell could read a
/// character in another way.
pub fn shell_word(path: impl Display) -> String {
    let path = path.to_string();
    let is_plain = |c: char| c.is_alphanumeric() || "/._-+,:@%=".contains(c);
    match !path.is_empty() && path.chars().all(is_plain) {
        true => path,
        false => format!("'{}'", path.replace('\'', "'\\''")),
    }
}

/// Warns of a secret that the permissions of its file let every user read. The folder may protect it all the same.
pub(crate) fn warn_if_readable(sink: &Sink, file: &At<PathBuf>, what: &str) {
    if let Some(Ok(Content { mode, .. })) = sink.content(&file.value)
        && mode & 0o004 != 0
    {
        let shown = file.value.display();
        let message = format!("{shown}: the permissions of this {what} let every user read it (mode {mode:04o})");
        let help =
            format!("let only its owner and the gateway's group read it: {}", readable_by_group(&shown.to_string()));
        sink.warn(&file.span, message, Some(help));
    }
}

/// The commands that let only a file's owner and the gateway's group read it: the file may be root's, and the gateway another user.
pub(crate) fn readable_by_group(file: &str) -> String {
    let file = shell_word(file);
    format!(
        "sudo chgrp GROUP {file} && sudo chmod 640 {file} (GROUP: the group of the gateway's user, for example sealane)"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_shell_reads_a_path_as_one_word() {
        for plain in ["/etc/sealane/a-1_b.pem", "../c.key", "caf\u{e9}.pem"] {
            assert_eq!(shell_word(plain), plain);
        }
        for (path, word) in
            [("b c.p12", "'b c.p12'"), ("a;rm", "'a;rm'"), ("it's", "'it'\\''s'"), ("", "''"), ("$x", "'$x'")]
        {
            assert_eq!(shell_word(path), word);
        }
    }
}
