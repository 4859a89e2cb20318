//! What a configuration asks of the machine that it is for, and the answers, as plain data.
//!
//! Reading a configuration opens nothing. Where the text names a file, a folder or a user, the reader looks for the answer in
//! [`Answers`]; if it is not there, the reader notes the [`Question`] and goes on. The resolve stage of control answers the
//! questions, with time limits, and has the text read again.

use crate::certificates::token::TokenKey;
use rustls::pki_types::CertificateDer;
use sealane_sys::privileges::User;
use sealane_tls::remote::RemoteKey;
use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::Arc;
use zeroize::Zeroizing;

/// The largest file that is read: certificates, keys, lists, and the configuration itself. Ten thousand certificates with long
/// paths make a configuration of 2 MB.
pub const MAX_FILE: u64 = 64 << 20;

/// One thing that only the machine knows.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Question {
    /// The content of a file.
    Content(PathBuf),
    /// A private key in a token, which must belong to its certificate.
    TokenKey(Box<TokenKey>),
    /// What is at a path.
    Kind(PathBuf),
    /// A user, by name.
    User(String),
    /// A group, by name.
    Group(String),
    /// The certificates that the system trusts.
    TrustedRoots,
    /// Whether the system has IPv6.
    Ipv6,
}

/// The answers so far.
#[derive(Debug, Default)]
pub struct Answers {
    /// The content of files, or why it cannot be had.
    pub contents: HashMap<PathBuf, Result<Content, Unreadable>>,
    /// Private keys in tokens, or why they cannot be used.
    pub token_keys: HashMap<TokenKey, Result<Arc<dyn RemoteKey>, Unreadable>>,
    /// What is at a path.
    pub kinds: HashMap<PathBuf, Kind>,
    /// Users; `None`: there is no user of this name.
    pub users: HashMap<String, Option<User>>,
    /// The numbers of groups.
    pub groups: HashMap<String, Option<u32>>,
    /// The certificates that the system trusts.
    pub trusted_roots: Option<Vec<CertificateDer<'static>>>,
    /// Whether the system has IPv6.
    pub ipv6: Option<bool>,
}

impl Answers {
    /// How the files were that these answers are from. A file that was found missing is one without a print.
    pub fn prints(&self) -> HashMap<PathBuf, Print> {
        let missing =
            self.kinds.iter().filter(|(_, kind)| **kind == Kind::Missing).map(|(path, _)| (path.clone(), None));
        // Files that could not be read have no entry, and pipes, which reading changes, have none either.
        let print = |content: &Result<Content, Unreadable>| content.as_ref().ok().and_then(|content| content.print);
        let read = self.contents.iter().filter_map(|(path, content)| Some((path.clone(), Some(print(content)?))));
        missing.chain(read).collect()
    }
}

/// What is different once a file has been written to or replaced: device, inode, size, change time. `None`: there is no such file.
pub type Print = Option<(u64, u64, u64, i64, i64)>;

/// A file as it was when it was read. Zeroed when dropped: it may hold a private key.
#[derive(Debug)]
pub struct Content {
    /// All of it.
    pub bytes: Zeroizing<Vec<u8>>,
    /// Permission bits, as in `chmod`.
    pub mode: u32,
    /// Which state of the file this is. `None`: it is no regular file.
    pub print: Print,
}

/// Why a file could not be read.
#[derive(Clone, Debug)]
pub struct Unreadable {
    /// What went wrong, to stand behind "cannot read …: ".
    pub why: String,
    /// How to repair it.
    pub help: Option<String>,
}

/// What is at a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Nothing, or nothing that can be reached.
    Missing,
    /// A regular file.
    File,
    /// A folder.
    Folder,
    /// Something else.
    Other,
}
