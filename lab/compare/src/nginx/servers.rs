//! The servers of NGINX, and where they listen.

use super::listen;
use super::runnable::Abilities;
use crate::draft::{Listener, Plan};
use crate::tree::{Node, Place};
use crate::words::in_and_out;
use std::net::IpAddr;

/// A server and where it listens.
pub(super) struct Server<'n> {
    pub node: &'n Node,
    pub names: Vec<String>,
    pub listeners: Vec<Listener>,
    pub is_default: Vec<bool>,
}

/// The servers of `http`.
pub(super) fn servers<'n>(nodes: &[&'n Node], abilities: &Abilities, plan: &mut Plan) -> Vec<Server<'n>> {
    let mut out = Vec::new();
    for node in nodes.iter().filter(|n| n.name() == "server") {
        let mut listeners = Vec::new();
        let mut is_default = Vec::new();
        let ssl_on = node.all("ssl").any(|n| n.word(1) == "on");
        let own = node.all("http2").last().map(|n| n.word(1) == "on");
        let around = || nodes.iter().any(|n| n.name() == "http2" && n.word(1) == "on");
        let http2_on = own.unwrap_or_else(around);
        let mut listens: Vec<(&Place, Vec<&str>)> =
            node.all("listen").map(|n| (&n.place, n.arguments().iter().map(String::as_str).collect())).collect();
        if listens.is_empty() {
            listens.push((&node.place, vec!["80"]));
        }
        for (place, words) in listens {
            let has = |word: &str| words.contains(&word);
            let Some(l) = words.first().and_then(|w| listen(w)) else {
                plan.unasked(place, "the import translates no listeners at Unix sockets");
                continue;
            };
            let quic = has("quic");
            let tls = has("ssl") || ssl_on || quic;
            listeners.push(Listener {
                address: l.address,
                bound: l.bound,
                tls,
                quic,
                http2: !quic && (has("http2") || (http2_on && tls)),
                proxy: has("proxy_protocol"),
                hop: nodes
                    .iter()
                    .copied()
                    .chain(node.inner())
                    .filter(|n| n.name() == "set_real_ip_from")
                    .find_map(trusted),
                place: place.clone(),
            });
            is_default.push(has("default_server") || has("default"));
        }
        let names = node.all("server_name").flat_map(|n| n.arguments().iter().cloned()).collect();
        out.push(Server { node, names, listeners, is_default });
    }
    // What one server says of an address holds for all servers at it.
    let all: Vec<Listener> = out.iter().flat_map(|s: &Server<'_>| s.listeners.clone()).collect();
    for l in out.iter_mut().flat_map(|s| &mut s.listeners) {
        let same = || all.iter().filter(|o| o.address == l.address && o.quic == l.quic);
        (l.tls, l.proxy) = (same().any(|o| o.tls), same().any(|o| o.proxy));
        l.http2 = same().any(|o| o.http2);
        // Without the header, all clients would be this proxy, and a limit would count their requests together.
        l.hop = l.hop.filter(|_| l.proxy);
    }
    for server in &mut out {
        only_beside_tcp(server, &all, abilities, plan);
    }
    out
}

/// Takes out listeners for QUIC without TCP at their address. Where the original has no HTTP/3, it is asked there.
fn only_beside_tcp(server: &mut Server<'_>, all: &[Listener], abilities: &Abilities, plan: &mut Plan) {
    let mut kept = Vec::new();
    for (l, is_default) in std::mem::take(&mut server.listeners).into_iter().zip(std::mem::take(&mut server.is_default))
    {
        let beside = all.iter().any(|o| o.address == l.address && o.tls && !o.quic);
        match (l.quic, beside) {
            (true, false) => plan.unasked(&l.place, "HTTP/3: no listener serves TLS over TCP at this address"),
            (true, true) if !abilities.http3 => {
                plan.skip(
                    &l.place,
                    "HTTP/3 of this NGINX, which does not support it; the requests that Sealane gets over HTTP/3 are sent to NGINX over \
                     TCP with TLS, and the responses are compared",
                );
                kept.push((l, is_default));
            }
            _ => kept.push((l, is_default)),
        }
    }
    (server.listeners, server.is_default) = kept.into_iter().unzip();
}

/// An address that may say who the client is.
fn trusted(node: &Node) -> Option<IpAddr> {
    in_and_out(node.word(1)).map(|(inside, _)| inside)
}
