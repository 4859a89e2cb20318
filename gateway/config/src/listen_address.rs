//! Where a listener listens: at an address of the network, or at a Unix socket.

use super::decode::{self, At, Node};
use super::diagnostics::Sink;
use super::surroundings::Kind;
use sealane_sys::unix_socket::{Rights, WAITING_BYTES};
use std::fmt;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use toml::de::DeValue;

/// Where a listener listens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ListenAddress {
    /// TCP.
    Ip(SocketAddr),
    /// A Unix socket.
    Unix(Arc<UnixSocket>),
}

/// A Unix socket that is listened on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnixSocket {
    /// Its path, from the root.
    pub path: PathBuf,
    /// Who may connect.
    pub rights: Rights,
}

impl ListenAddress {
    /// The address of the network, if it is one.
    pub fn ip(&self) -> Option<SocketAddr> {
        match self {
            Self::Ip(address) => Some(*address),
            Self::Unix(_) => None,
        }
    }

    /// The Unix socket, if it is one.
    pub fn unix(&self) -> Option<&Arc<UnixSocket>> {
        match self {
            Self::Ip(_) => None,
            Self::Unix(socket) => Some(socket),
        }
    }

    /// The port; a Unix socket has 0.
    pub fn port(&self) -> u16 {
        self.ip().map_or(0, |address| address.port())
    }
}

impl fmt::Display for ListenAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Ip(address) => write!(f, "{address}"),
            Self::Unix(socket) => write!(f, "{socket}"),
        }
    }
}

impl fmt::Display for UnixSocket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "unix:{}", self.path.display())
    }
}

/// `address` of a listener.
pub(super) fn addresses(sink: &Sink, key: &str, node: &Node) -> Option<Vec<At<String>>> {
    decode::strings_or(sink, key, node, of_number)
}

/// `listen` of the admin interface.
pub(super) fn address(sink: &Sink, key: &str, node: &Node) -> Option<String> {
    decode::text_or(sink, key, node, of_number)
}

/// The addresses that may be meant by a number.
fn of_number(value: &DeValue) -> Option<String> {
    let DeValue::Integer(n) = value else { return None };
    u16::from_str_radix(n.as_str(), n.radix()).ok().map(decode::of_port)
}

/// The longest path of a socket: `sun_path` has 108 bytes, the last of which is zero (unix(7)), and while it is made, the socket
/// has a longer name.
const MAX_PATH: usize = 107 - WAITING_BYTES;

/// The path in `"unix:/run/x.sock"`; `None`: it is another kind of address.
pub(super) fn socket_path(text: &str) -> Option<&str> {
    let path = text.strip_prefix("unix:")?;
    Some(path.strip_prefix("//").filter(|rest| rest.starts_with('/')).unwrap_or(path))
}

/// Reads `"unix:/run/x.sock"`.
pub(super) fn unix_socket(sink: &Sink, written: &At<String>, rights: Rights) -> Option<Arc<UnixSocket>> {
    let path = socket_path(&written.value)?;
    let wrong = |message: String, help: &str| {
        sink.error(&written.span, message, Some(help.to_owned()));
        None
    };
    const EXAMPLE: &str = "write \"unix:/run/sealane/http.sock\"";
    if path.starts_with('@') {
        return wrong(
            "an abstract socket has no permissions: every program of the machine could connect".to_owned(),
            EXAMPLE,
        );
    }
    if path.is_empty() || path.ends_with('/') || path.contains('\0') {
        return wrong(format!("\"{}\" names no socket", written.value), EXAMPLE);
    }
    let path = sink.base.join(path);
    if path.as_os_str().len() > MAX_PATH {
        return wrong(format!("the path of the socket has more than {MAX_PATH} bytes"), EXAMPLE);
    }
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    if sink.kind(folder).is_some_and(|kind| kind != Kind::Folder) {
        let help = created(folder.display());
        return wrong(format!("there is no folder {}", folder.display()), &help);
    }
    Some(Arc::new(UnixSocket { path, rights }))
}

/// How to create the folder of a file or socket that the gateway writes.
pub(super) fn created(folder: std::path::Display<'_>) -> String {
    let folder = crate::files::shell_word(folder);
    format!(
        "create it for the gateway's user: sudo install -d -o USER -g GROUP {folder}. sealane.service can write only to \
         /run/sealane, /var/lib/sealane and /var/log/sealane"
    )
}

/// The mode of a socket's file.
pub(super) fn mode(sink: &Sink, key: &str, node: &Node) -> Option<u32> {
    let text = decode::text(sink, key, node)?;
    let digits = text.strip_prefix('0').filter(|rest| rest.len() == 3).unwrap_or(&text);
    let mode = u32::from_str_radix(digits, 8).ok().filter(|_| digits.len() == 3);
    let message = match mode {
        None => format!("\"{text}\" is not a mode"),
        // The owner could not connect, or the bits mean nothing for a socket.
        Some(mode) if mode & 0o111 != 0 => {
            format!("\"{text}\" has execute permissions, which have no effect on a socket")
        }
        Some(mode) => return Some(mode),
    };
    let help = format!("write {key} = \"0600\" (the owner), \"0660\" (the group, too) or \"0666\" (every user)");
    sink.error(&node.span(), message, Some(help));
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_of_sockets_are_told_from_others() {
        for (text, path) in [
            ("unix:/run/x.sock", Some("/run/x.sock")),
            ("unix:///run/x.sock", Some("/run/x.sock")),
            ("unix:x.sock", Some("x.sock")),
            (":443", None),
            ("127.0.0.1:80", None),
        ] {
            assert_eq!(socket_path(text), path, "{text}");
        }
    }
}
