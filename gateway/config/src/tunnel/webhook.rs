//! `event_webhook`.

use crate::decode::At;
use crate::diagnostics::Sink;
use std::net::IpAddr;

/// A URL of plain HTTP, in its parts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Webhook {
    /// The host as written, with its port.
    pub authority: String,
    /// Where to connect: HOST:PORT.
    pub address: String,
    /// The path and the query.
    pub path: String,
}

impl Webhook {
    /// Reads `http://HOST[:PORT][/PATH]`; the error says what is wrong.
    fn parse(url: &str) -> Result<Self, &'static str> {
        let rest = match url.split_once("://") {
            Some(("http", rest)) => rest,
            Some(("https", _)) => return Err("use \"event_command\" with a program such as curl for HTTPS"),
            _ => return Err("write it as in \"http://127.0.0.1:9000/vpn\""),
        };
        if rest.chars().any(|c| !c.is_ascii_graphic()) {
            return Err("write characters outside ASCII as %XX");
        }
        let (authority, path) = rest.find(['/', '?']).map_or((rest, ""), |at| rest.split_at(at));
        if authority.contains('@') {
            return Err("a user and a password in the URL are not supported");
        }
        let bare = authority.rsplit_once(']').map_or(authority, |(_, after)| after);
        let address = match bare.rsplit_once(':') {
            Some((_, port)) if port.parse::<u16>().is_ok_and(|port| port > 0) => authority.to_owned(),
            Some(_) => return Err("the port must be a number from 1 to 65535"),
            None => format!("{authority}:80"),
        };
        if address.starts_with(':') {
            return Err("the URL has no host");
        }
        let path = if path.starts_with('/') { path.to_owned() } else { format!("/{path}") };
        Ok(Self { authority: authority.to_owned(), address, path: path.split('#').next().unwrap_or("/").to_owned() })
    }

    /// Whether its host is this machine.
    fn is_local(&self) -> bool {
        let host = self.address.rsplit_once(':').map_or("", |(host, _)| host).trim_matches(['[', ']']);
        host == "localhost" || host.parse::<IpAddr>().is_ok_and(|ip| ip.to_canonical().is_loopback())
    }
}

pub(super) fn read(sink: &Sink, at: &At<String>) -> Option<Webhook> {
    match Webhook::parse(&at.value) {
        Ok(webhook) => {
            if !webhook.is_local() {
                let help = "use an address of this machine, or \"event_command\" with a program such as curl for HTTPS";
                let message = "the events go to another machine without encryption; they contain names and addresses";
                sink.warn(&at.span, message, Some(help.to_owned()));
            }
            Some(webhook)
        }
        Err(help) => {
            sink.error(&at.span, "\"event_webhook\" is not a URL that can be used", Some(help.to_owned()));
            None
        }
    }
}
