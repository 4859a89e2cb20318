//! `management` and the settings beside it.

use crate::decode::Section;
use crate::settings::tunnel as s;
use std::path::PathBuf;

/// A Unix socket on which the tunnel speaks OpenVPN's management protocol.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Management {
    /// Its path.
    pub path: PathBuf,
    /// Its permissions.
    pub mode: u32,
    /// The number of its group.
    pub group: Option<u32>,
    /// A program on the socket decides who may come in.
    pub client_auth: bool,
}

/// Reads the settings. What is wrong is reported.
pub(super) fn read(section: &Section) -> Option<Management> {
    let sink = section.sink;
    let path = section.optional(&s::management);
    let mode = section.or(&s::management_mode);
    let group = section.optional_at(&s::management_group);
    let client_auth = section.or(&s::management_client_auth);
    // Answered later, where the machine has not been asked yet.
    let number = group.as_ref().and_then(|group| match sink.group(&group.value)? {
        Some(number) => Some(number),
        None => {
            let help = format!("create it: sudo groupadd --system {}", group.value);
            sink.error(&group.span, format!("there is no group \"{}\" on this machine", group.value), Some(help));
            None
        }
    });
    if let Some(group) = group.filter(|_| mode & 0o070 == 0) {
        let help = "add management_mode = \"0660\"".to_owned();
        sink.error(&group.span, "the group of \"management_group\" has no permission to use the socket", Some(help));
    }
    let Some(path) = path else {
        if client_auth && section.key_span("management").is_none() {
            let help = "add management = \"/run/sealane/management.sock\"".to_owned();
            section.missing("\"management_client_auth\" needs \"management\"".to_owned(), help);
        }
        return None;
    };
    Some(Management { path, mode, group: number, client_auth })
}
