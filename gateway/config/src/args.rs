//! The commands that need no file: their arguments are put into the words of one and read by the same code, so that
//! they are checked by the same rules and mean the same.

use super::{Document, Origin};
use std::fmt::Write;
use std::path::PathBuf;

/// What `sealane proxy`, `sealane respond` and `sealane demo` are told.
#[derive(Clone, Debug)]
pub struct CommandLine {
    /// Addresses to listen on.
    pub listen: Vec<String>,
    /// Certificate and key (`None`: in the same file); `None` serves plain HTTP.
    pub certificate: Option<(PathBuf, Option<PathBuf>)>,
    /// Where answers come from.
    pub answer: Answer,
    /// Number of lanes; `None`: one per core.
    pub lanes: Option<usize>,
    /// `off`, `stdout` or a path.
    pub access_log: Option<String>,
    /// Address of the admin listener.
    pub admin: Option<String>,
    /// Path of the admin socket.
    pub admin_socket: Option<PathBuf>,
    /// Most bytes of 0-RTT data, or `off`.
    pub early_data: Option<String>,
    /// TLS preset.
    pub preset: Option<String>,
    /// Whether handshakes may begin in the SYN.
    pub syn_tls: Option<String>,
    /// HTTP/3 at the same addresses.
    pub http3: bool,
}

/// Where answers come from.
#[derive(Clone, Debug)]
pub enum Answer {
    /// From these servers in turn; over TLS they are checked by `ca` instead of the system's CAs, if it is given.
    Proxy {
        /// URLs.
        to: Vec<String>,
        /// PEM file.
        ca: Option<PathBuf>,
        /// Idle connections kept per server and lane; 0 opens one for each request.
        keepalive: Option<usize>,
    },
    /// From here.
    Respond {
        /// Status code.
        status: u16,
        /// Body.
        body: String,
        /// `Content-Type`.
        content_type: Option<String>,
    },
}

impl Document {
    /// The document that a command line stands for; relative paths are from the working folder.
    pub fn of_command_line(args: &CommandLine) -> Self {
        let origin = Origin::CommandLine(Box::new(args.clone()));
        Self {
            text: as_toml(args),
            name: String::new(),
            base: PathBuf::new(),
            origin,
            policy: None,
            parts: Vec::new(),
            folders: Vec::new(),
            environment: std::collections::HashMap::new(),
        }
    }
}

fn as_toml(args: &CommandLine) -> String {
    let mut t = String::new();
    if let Some(lanes) = args.lanes {
        setting(&mut t, "lanes", &lanes.to_string());
    }
    if args.admin.is_some() || args.admin_socket.is_some() {
        t.push_str("[admin]\n");
    }
    if let Some(admin) = &args.admin {
        setting(&mut t, "listen", &quoted(admin));
    }
    if let Some(socket) = &args.admin_socket {
        setting(&mut t, "socket", &quoted(&socket.to_string_lossy()));
    }
    if let Some(log) = &args.access_log {
        t.push_str("[log]\n");
        setting(&mut t, "access", &quoted(log));
    }
    t.push_str("[[listener]]\n");
    setting(&mut t, "address", &list(&args.listen));
    if let Some(mode) = &args.syn_tls {
        setting(&mut t, "syn_tls", &quoted(mode));
    }
    if args.http3 {
        setting(&mut t, "http3", "true");
    }
    if let Some((cert, key)) = &args.certificate {
        t.push_str("[listener.tls]\n");
        if let Some(preset) = &args.preset {
            setting(&mut t, "preset", &quoted(preset));
        }
        if let Some(early) = &args.early_data {
            // A plain number is a number of bytes, as in a file.
            let value = if early.bytes().all(|b| b.is_ascii_digit()) { early.clone() } else { quoted(early) };
            setting(&mut t, "early_data", &value);
        }
        t.push_str("[[listener.tls.certificates]]\n");
        setting(&mut t, "cert", &quoted(&cert.to_string_lossy()));
        if let Some(key) = key {
            setting(&mut t, "key", &quoted(&key.to_string_lossy()));
        }
    }
    match &args.answer {
        Answer::Proxy { to, ca, keepalive } => {
            t.push_str("[[upstream]]\nname = \"to\"\n");
            setting(&mut t, "servers", &list(to));
            if let Some(n) = keepalive {
                setting(&mut t, "keepalive", &n.to_string());
            }
            if let Some(ca) = ca {
                t.push_str("[upstream.tls]\n");
                setting(&mut t, "ca", &quoted(&ca.to_string_lossy()));
            }
            t.push_str("[[host]]\nnames = [\"*\"]\nupstream = \"to\"\n");
        }
        Answer::Respond { status, body, content_type } => {
            t.push_str("[[host]]\nnames = [\"*\"]\n[host.respond]\n");
            setting(&mut t, "status", &status.to_string());
            setting(&mut t, "body", &quoted(body));
            if let Some(content_type) = content_type {
                setting(&mut t, "content_type", &quoted(content_type));
            }
        }
    }
    t
}

fn setting(out: &mut String, key: &str, value: &str) {
    // Writing to a string cannot fail.
    let _ = writeln!(out, "{key} = {value}");
}

fn quoted(s: &str) -> String {
    toml::Value::String(s.to_owned()).to_string()
}

fn list(items: &[String]) -> String {
    let items: Vec<String> = items.iter().map(|s| quoted(s)).collect();
    format!("[{}]", items.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn respond(body: &str) -> CommandLine {
        CommandLine {
            listen: vec!["127.0.0.1:0".into()],
            certificate: None,
            answer: Answer::Respond { status: 200, body: body.into(), content_type: None },
            lanes: Some(3),
            access_log: None,
            admin: None,
            admin_socket: None,
            early_data: None,
            preset: None,
            syn_tls: None,
            http3: false,
        }
    }

    #[test]
    fn bodies_arrive_as_they_are() {
        for body in ["", "plain", "\"quotes\"\nand\\lines\t\u{1}ü", "'''"] {
            let (config, warnings) = Document::of_command_line(&respond(body)).read_offline().unwrap();
            assert_eq!((config.lanes, warnings.len()), (3, 0));
            let listener = &config.listeners[0];
            match &listener.actions[listener.sites.host_for(Some("anything")).unwrap()] {
                sealane_proxy::snapshot::Action::Respond { body: b, .. } => assert_eq!(b, body.as_bytes()),
                other => panic!("{other:?}"),
            }
        }
    }

    #[test]
    fn mistakes_are_told_without_line_numbers() {
        let mut args = respond("x");
        args.listen = vec!["127.0.0.1".into()];
        let e = Document::of_command_line(&args).read_offline().unwrap_err();
        assert_eq!(
            e.to_string(),
            "error: \"127.0.0.1\" is not an address to listen on\n  help: add a port: \"127.0.0.1:443\""
        );
    }
}
