//! What a listener believes of its clients: `proxy_protocol`, `trust_forwarded`, `trusted_proxies`.

use super::access;
use super::decode::{At, Section};
use super::settings::listener as s;
use sealane_proxy::snapshot::AddressHeader;
use sealane_proxy::unix_clients::UNIX_CLIENT;
use sealane_route::proxies::{Cidr, TrustedProxies};

/// Whose word about clients is taken, and which.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Trust {
    /// Clients start with a PROXY protocol header.
    pub proxy_protocol: bool,
    /// `Forwarded` and `X-Forwarded-*` are believed.
    pub forwarded: bool,
    /// From whom; empty: from everybody.
    pub proxies: TrustedProxies,
    /// Where proxies say who the client is.
    pub address_header: AddressHeader,
}

/// Reads the settings. `tcp`: what comes is relayed, not read. `only_sockets`: the listener has Unix sockets alone, to which only
/// programs of this machine that may do so can connect.
pub(super) fn read(section: &Section, tcp: bool, only_sockets: bool) -> Trust {
    let sink = section.sink;
    let proxy_protocol = section.optional_at(&s::proxy_protocol);
    let trust_forwarded = section.optional_at(&s::trust_forwarded);
    let list = section.optional_at(&s::trusted_proxies);
    let header = section.optional_at(&s::client_address_header);
    let blocks: Vec<Cidr> = list.iter().flat_map(|l| &l.value).filter_map(|text| cidr(section, text)).collect();
    let on = |setting: &Option<At<bool>>| setting.as_ref().is_some_and(|s| s.value);
    let help = || match only_sockets {
        true => "add trusted_proxies = [\"unix\"]: the programs that connect to the socket".to_owned(),
        false => "add trusted_proxies = [\"10.0.0.0/8\"], with the addresses of your load balancers".to_owned(),
    };
    for (name, setting) in [("proxy_protocol", &proxy_protocol), ("trust_forwarded", &trust_forwarded)] {
        // The permissions of a socket say who may connect; but who sends a header without a proxy is another matter.
        let is_limited = only_sockets && name == "proxy_protocol";
        if let (Some(at), None, false) = (setting.as_ref().filter(|s| s.value), &list, is_limited) {
            let message = format!("\"{name}\" without \"trusted_proxies\": every client can claim any address");
            sink.warn(&at.span, message, Some(help()));
        }
    }
    if let (Some(list), true, false) = (&list, tcp, on(&proxy_protocol)) {
        let help = "add proxy_protocol = true, or remove \"trusted_proxies\": with mode = \"tcp\" only a PROXY header can name the client".to_owned();
        sink.error(&list.span, "\"trusted_proxies\" with mode = \"tcp\" and without \"proxy_protocol\"", Some(help));
    }
    if let (Some(header), None) = (&header, &list) {
        sink.error(&header.span, "\"client_address_header\" has no effect without \"trusted_proxies\"", Some(help()));
    }
    Trust {
        proxy_protocol: on(&proxy_protocol),
        forwarded: trust_forwarded.map_or(list.is_some(), |t| t.value),
        proxies: blocks.into_iter().collect(),
        address_header: header.map_or_else(|| s::client_address_header.default(), |h| h.value),
    }
}

fn cidr(section: &Section, text: &At<String>) -> Option<Cidr> {
    if text.value == "unix" {
        return format!("{}/128", UNIX_CLIENT.ip()).parse().ok();
    }
    let block = access::block(section.sink, text)?;
    if block.is_everything() {
        let message = format!("\"{}\" trusts everybody: every client can claim any address", text.value);
        section.sink.warn(&text.span, message, Some("name the addresses of your load balancers".to_owned()));
    }
    Some(block)
}
