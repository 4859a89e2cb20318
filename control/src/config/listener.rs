//! `[[listener]]`.

use super::decode::{self, Section};
use super::diagnostics::Sink;
use super::host::Target;
use super::http3::{self, Http3};
use super::identity::{self, Store};
use super::{Listener, SynTls, tls};
use sealane_proxy::snapshot::Action;
use sealane_route::HostTable;
use sealane_tls::policy::{KeyKind, ListenerTls};
use std::collections::HashMap;
use std::net::SocketAddr;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

/// A listener before its hosts are known.
pub(super) struct Draft {
    /// As in `address`: how hosts name it.
    pub written: String,
    address: SocketAddr,
    tls: Option<ListenerTls>,
    proxy_protocol: bool,
    trust_forwarded: bool,
    allow_connect: bool,
    syn_tls: SynTls,
    h2c: bool,
    /// What comes is relayed, not read.
    pub tcp: bool,
    http3: Option<Http3>,
}

impl Draft {
    pub fn has_tls(&self) -> bool {
        self.tls.is_some()
    }

    pub fn into_listener(self, hosts: HostTable<Arc<Action>>) -> Listener {
        let Self { address, tls, proxy_protocol, trust_forwarded, allow_connect, syn_tls, h2c, http3, tcp, .. } = self;
        Listener { address, tls, proxy_protocol, trust_forwarded, allow_connect, syn_tls, h2c, http3, tcp, hosts }
    }
}

/// Reads every `[[listener]]`. One whose TLS section is wrong is returned without, so that hosts can refer to it.
pub(super) fn read_all(top: &Section, store: &mut Store, base: &Path) -> Vec<Draft> {
    let sections = top.tables("listener", "[[listener]]");
    if sections.is_empty() && top.key_span("tunnel").is_none() {
        let help = "add [[listener]] with address = \":443\"".to_owned();
        top.missing("there is no [[listener]]: nothing would be served".to_owned(), help);
    }
    let mut out: Vec<Draft> = Vec::new();
    let mut taken: HashMap<SocketAddr, Range<usize>> = HashMap::new();
    for section in sections {
        read(section, store, base, &mut out, &mut taken);
    }
    out
}

fn read(
    section: Section,
    store: &mut Store,
    base: &Path,
    out: &mut Vec<Draft>,
    taken: &mut HashMap<SocketAddr, Range<usize>>,
) {
    let sink = section.sink;
    let written = section.required("address", "\":443\"", decode::strings);
    let proxy_protocol = section.or("proxy_protocol", false, decode::boolean);
    let trust_forwarded = section.or("trust_forwarded", false, decode::boolean);
    let allow_connect = section.or("allow_connect", false, decode::boolean);
    let h2c = section.optional_at("h2c", decode::boolean);
    let tcp = section.or("mode", false, decode::choice(&[("http", false), ("tcp", true)]));
    let name = written.as_ref().and_then(|w| w.value.first()).map_or("", |w| w.value.as_str());
    if let (true, Some(span)) = (tcp, section.key_span("tls")) {
        let help = "what is relayed is not decrypted: leave \"mode\" out, or [listener.tls]".to_owned();
        sink.error(&span, "[listener.tls] with mode = \"tcp\"", Some(help));
    }
    // One set of policies for all addresses of a listener: a ticket got over IPv4 is good over IPv6.
    let has_tls = section.key_span("tls").is_some();
    let tls = section.table("tls", "[listener.tls]").and_then(|s| tls::listener(s, store, base, name));
    let syn_tls = syn_tls(&section, tls.as_ref(), has_tls);
    if let Some(h2c) = h2c.as_ref().filter(|h| h.value && tls.is_some()) {
        let help = "remove it: with TLS, clients choose HTTP/2 by ALPN (\"alpn\" in [listener.tls])".to_owned();
        sink.error(&h2c.span, "\"h2c\" is for listeners without TLS", Some(help));
    }
    let http3 = http3::read(&section, tls.as_ref(), proxy_protocol);
    section.finish();
    for text in written.iter().flat_map(|w| &w.value) {
        for address in decode::listen_addresses(sink, &text.value, &text.span).unwrap_or_default() {
            // Port 0 is a new one each time.
            let first = taken.get(&address).filter(|_| address.port() != 0);
            if let Some(first) = first {
                let message = format!("{address} is already listened on ({})", sink.place(first));
                sink.error(&text.span, message, None);
                continue;
            }
            taken.insert(address, text.span.clone());
            let written = text.value.clone();
            out.push(Draft {
                written,
                address,
                tls: tls.as_ref().map(copy),
                proxy_protocol,
                trust_forwarded,
                allow_connect,
                syn_tls,
                h2c: h2c.as_ref().is_some_and(|h| h.value),
                tcp,
                http3: http3.clone(),
            });
        }
    }
}

const SYN_TLS: &[(&str, SynTls)] = &[("off", SynTls::Off), ("cookie", SynTls::Cookie), ("open", SynTls::Open)];

/// `syn_tls`: where it makes sense.
fn syn_tls(section: &Section, tls: Option<&ListenerTls>, has_tls: bool) -> SynTls {
    let Some(written) = section.optional_at("syn_tls", decode::choice(SYN_TLS)) else { return SynTls::default() };
    if !has_tls && written.value != SynTls::Off {
        // What comes in a SYN may come twice; plain requests are never taken from there.
        let help = "add [listener.tls], or remove it: plain requests are never taken from a SYN".to_owned();
        section.sink.error(&written.span, "\"syn_tls\" is for listeners with TLS", Some(help));
    }
    let cheap = |kind| matches!(kind, KeyKind::Ecdsa | KeyKind::Ed25519);
    let dear = tls.is_some_and(|t| !t.policies.iter().any(|p| p.identities.all.iter().any(|i| cheap(i.kind))));
    if written.value == SynTls::Open && dear {
        let help = "add an ECDSA certificate beside it, or set syn_tls = \"cookie\"".to_owned();
        let message =
            "\"open\" signs for clients that have not shown their address, and an RSA signature costs too much";
        section.sink.error(&written.span, message, Some(help));
    }
    written.value
}

/// Another table of the same policies.
pub(super) fn copy(tls: &ListenerTls) -> ListenerTls {
    ListenerTls { policies: tls.policies.clone(), exact: tls.exact.clone(), wildcard: tls.wildcard.clone() }
}

/// Warns of hosts whose clients would get a certificate for another name.
pub(super) fn warn_uncovered(sink: &Sink, listener: &Draft, target: &Target) {
    let Some(policy) = listener.tls.as_ref().and_then(|t| t.policies.first()) else { return };
    for (name, span) in target.taken.iter().filter(|(n, _)| *n != "*" && !n.starts_with('[')) {
        if matches!(target.hosts.find(name).map(|a| &**a), Some(Action::Passthrough { .. })) {
            continue;
        }
        if name.parse::<std::net::IpAddr>().is_ok() || identity::covers(&policy.identities, name) {
            continue;
        }
        let message = format!("no certificate of listener {} is for \"{name}\"", listener.written);
        let help = match policy.identities.default.is_empty() {
            true => "with strict_sni its clients are refused",
            false => "its clients get the default certificate, and will not accept it",
        };
        sink.warn(span, message, Some(help.to_owned()));
    }
}
