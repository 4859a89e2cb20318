//! Whether a client can claim an address that has more rights: requests that name another client than the one that sends them.
//!
//! Each place with a rule by address gets them: from an address outside of the rule's network that claims to be inside, and the other way
//! round, in each of the headers that programs read, and in the header of the PROXY protocol where the listener wants one. If the original
//! believes some addresses, these name clients, too.

use crate::draft::{Draft, FORWARDED, ROTATING};
use crate::words::in_and_out;
use std::net::IpAddr;

/// Headers that name a client, with what stands before the address.
const HEADERS: [(&str, &str); 3] = [("X-Forwarded-For", ""), ("X-Real-IP", ""), ("Forwarded", "for=")];

/// A network whose addresses may name a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Trusted {
    /// An address in it.
    pub inside: IpAddr,
    /// An address beside it.
    pub outside: IpAddr,
}

impl Trusted {
    /// Of a network such as `10.0.0.0/8`.
    pub fn of(network: &str) -> Option<Self> {
        in_and_out(network).map(|(inside, outside)| Self { inside, outside })
    }
}

fn naming(draft: &Draft, headers: &[(&str, &str)], address: &str) -> Draft {
    headers.iter().fold(draft.clone(), |draft, (name, before)| draft.with(name, &format!("{before}{address}")))
}

/// Requests like one, with claims of addresses inside and outside of a network that has rules of its own.
pub fn claimed(draft: &Draft, network: &str, trusted: Option<Trusted>) -> Vec<Draft> {
    let Some((inside, outside)) = in_and_out(network).filter(|_| draft.to.is_ipv4()) else { return Vec::new() };
    let hop = draft.hop.or(trusted.map(|t| t.inside)).filter(|_| draft.proxy);
    let draft = Draft { claims: true, hop, ..draft.clone() };
    let mut out = Vec::new();
    for (own, claim) in [(outside, inside), (inside, outside)] {
        let base = Draft { from: Some(own), ..draft.clone() };
        out.extend(HEADERS.iter().map(|header| naming(&base, &[*header], &claim.to_string())));
        if draft.proxy {
            // The header of the PROXY protocol, from an address that may not send it.
            let hop = Some(trusted.map_or(own, |t| t.outside));
            out.push(Draft { from: Some(claim), hop, stranger: trusted.is_some(), ..draft.clone() });
        }
    }
    if let Some(trusted) = trusted.filter(|_| !draft.proxy) {
        let base = Draft { from: Some(trusted.inside), ..draft };
        for claim in [inside, outside] {
            out.extend(HEADERS.iter().map(|header| naming(&base, &[*header], &claim.to_string())));
        }
        // A proxy adds the address of its client behind what the client has sent, and may pass on the other headers.
        out.push(base.clone().with("X-Forwarded-For", &format!("{inside}, {outside}")));
        let honest = base.with("X-Forwarded-For", &outside.to_string());
        out.extend(HEADERS[1..].iter().map(|header| naming(&honest, &[*header], &inside.to_string())));
    }
    out
}

/// Many requests at once like those that test a limit, each with the claim of another address: a limit for each client must count them
/// together, unless the original believes the one that sends them.
pub fn rotating(draft: &Draft, trusted: Option<Trusted>) -> Vec<Draft> {
    if draft.to.is_ipv6() {
        return Vec::new();
    }
    let draft = Draft { claims: true, ..draft.clone() };
    let mut out = vec![naming(&draft, &HEADERS, ROTATING)];
    if let Some(trusted) = trusted.filter(|_| !draft.proxy) {
        let base = Draft { from: Some(trusted.inside), ..draft };
        out.push(naming(&base, &HEADERS[..1], ROTATING));
        out.push(naming(&base.with("X-Forwarded-For", FORWARDED), &HEADERS[1..], ROTATING));
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::draft::cases::draft;
    use crate::draft::{Times, is_sendable};

    fn header<'d>(draft: &'d Draft, name: &str) -> &'d str {
        draft.headers.iter().find(|(n, _)| n == name).map_or("", |(_, v)| v.as_str())
    }

    fn from(draft: &Draft) -> String {
        draft.from.map(|f| f.to_string()).unwrap_or_default()
    }

    #[test]
    fn each_header_claims_addresses_inside_and_outside() {
        let all = claimed(&draft(), "10.0.0.0/8", None);
        assert!(all.iter().all(|d| d.claims && !d.stranger && is_sendable(d)));
        let has = |own: &str, name: &str, value: &str| all.iter().any(|d| from(d) == own && header(d, name) == value);
        for (name, before) in HEADERS {
            assert!(has("11.254.254.254", name, &format!("{before}10.254.254.254")), "{name}");
            assert!(has("10.254.254.254", name, &format!("{before}11.254.254.254")), "{name}");
        }
        assert_eq!(all.len(), 6);
        assert!(claimed(&draft(), "all", None).is_empty() && claimed(&draft(), "2001:db8::/32", None).is_empty());
    }

    #[test]
    fn a_trusted_proxy_names_clients_and_passes_on_what_they_claim() {
        let trusted = Trusted::of("10.20.0.10");
        let all = claimed(&draft(), "192.0.2.0/24", trusted);
        let by: Vec<&Draft> = all.iter().filter(|d| from(d) == "10.20.0.10").collect();
        let (inside, outside) = ("192.0.2.254", "192.0.3.254");
        let has = |forwarded: &str, name: &str, value: &str| {
            by.iter().any(|d| header(d, "X-Forwarded-For") == forwarded && header(d, name) == value)
        };
        assert!(has(inside, "Forwarded", "") && has(outside, "X-Real-IP", "") && has("", "X-Real-IP", inside));
        assert!(has(outside, "Forwarded", &format!("for={inside}")) && has(outside, "X-Real-IP", inside));
        assert!(has(&format!("{inside}, {outside}"), "Forwarded", ""));
        assert_eq!(all.len() - by.len(), 6, "others claim the same");
    }

    #[test]
    fn the_proxy_protocol_comes_from_addresses_that_may_not_send_it() {
        let listens = Draft { proxy: true, ..draft() };
        let hops = |trusted: Option<Trusted>| -> Vec<(String, String, bool)> {
            let all = claimed(&listens, "192.0.2.0/24", trusted);
            let own = all.into_iter().filter(|d| d.headers.is_empty());
            own.map(|d| (d.hop.map(|h| h.to_string()).unwrap_or_default(), from(&d), d.stranger)).collect()
        };
        let text = |hop: &str, from: &str, stranger| (hop.to_owned(), from.to_owned(), stranger);
        let (inside, outside) = ("192.0.2.254", "192.0.3.254");
        assert_eq!(hops(None), [text(outside, inside, false), text(inside, outside, false)]);
        let stranger = "10.20.0.8";
        assert_eq!(hops(Trusted::of("10.20.0.9")), [text(stranger, inside, true), text(stranger, outside, true)]);
        let all = claimed(&listens, "192.0.2.0/24", Trusted::of("10.20.0.9"));
        let named = |d: &&Draft| !d.headers.is_empty();
        assert!(all.iter().filter(named).all(|d| d.hop.is_some_and(|h| h.to_string() == "10.20.0.9")));
    }

    #[test]
    fn a_limit_is_tried_with_another_claim_in_each_request() {
        let many = Draft { times: Times::AtOnce(10), ..draft() };
        assert_eq!(rotating(&many, None).len(), 1);
        let all = rotating(&many, Trusted::of("10.20.0.10"));
        assert_eq!(all.len(), 3);
        let of = |at: u32| all[0].clone().of_client(7, at);
        assert_eq!(header(&of(0), "Forwarded"), "for=10.107.0.1");
        assert_eq!(header(&of(300), "X-Real-IP"), "10.107.1.51");
        assert_eq!(from(&all[2]), "10.20.0.10");
        assert_eq!((header(&all[2], "X-Forwarded-For"), header(&all[2], "X-Real-IP")), (FORWARDED, ROTATING));
    }
}
