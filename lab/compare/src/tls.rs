//! Handshakes: for each name the certificate and what is negotiated, and for each listener what it accepts.

use crate::client::{Negotiated, verifier};
use crate::draft::{Handshakes, Listener};
use crate::network::{Network, client};
use rustls::ClientConfig;
use rustls::ClientConnection;
use rustls::crypto::aws_lc_rs::default_provider;
use rustls::pki_types::ServerName;
use sealane_lab_probe::hello::{Answer, MAX_ANSWER, Offer, answer, client_hello};
use std::io::{Read, Write};
use std::sync::Arc;
use std::time::Duration;

const LIMIT: Duration = Duration::from_secs(20);

/// Versions: name, number in the hello's old field, whether it is TLS 1.3.
const VERSIONS: [(&str, u16, bool); 5] = [
    ("SSL 3", 0x0300, false),
    ("TLS 1.0", 0x0301, false),
    ("TLS 1.1", 0x0302, false),
    ("TLS 1.2", 0x0303, false),
    ("TLS 1.3", 0x0303, true),
];

/// Suites of TLS 1.3.
const SUITES_13: [(&str, u16); 3] =
    [("TLS_AES_128_GCM_SHA256", 0x1301), ("TLS_AES_256_GCM_SHA384", 0x1302), ("TLS_CHACHA20_POLY1305_SHA256", 0x1303)];

/// Suites of TLS 1.2 with forward secrecy and authenticated encryption.
const SUITES_12: [(&str, u16); 6] = [
    ("ECDHE-ECDSA-AES128-GCM-SHA256", 0xc02b),
    ("ECDHE-ECDSA-AES256-GCM-SHA384", 0xc02c),
    ("ECDHE-RSA-AES128-GCM-SHA256", 0xc02f),
    ("ECDHE-RSA-AES256-GCM-SHA384", 0xc030),
    ("ECDHE-ECDSA-CHACHA20-POLY1305", 0xcca9),
    ("ECDHE-RSA-CHACHA20-POLY1305", 0xcca8),
];

/// Suites of TLS 1.2 that Sealane does not have.
const SUITES_OLD: [(&str, u16); 16] = [
    ("DHE-RSA-AES128-GCM-SHA256", 0x009e),
    ("DHE-RSA-AES256-GCM-SHA384", 0x009f),
    ("DHE-RSA-CHACHA20-POLY1305", 0xccaa),
    ("ECDHE-ECDSA-AES128-SHA", 0xc009),
    ("ECDHE-ECDSA-AES128-SHA256", 0xc023),
    ("ECDHE-RSA-AES128-SHA", 0xc013),
    ("ECDHE-RSA-AES256-SHA", 0xc014),
    ("ECDHE-RSA-AES128-SHA256", 0xc027),
    ("ECDHE-RSA-AES256-SHA384", 0xc028),
    ("AES128-GCM-SHA256", 0x009c),
    ("AES256-GCM-SHA384", 0x009d),
    ("AES128-SHA", 0x002f),
    ("AES256-SHA", 0x0035),
    ("AES128-SHA256", 0x003c),
    ("AES256-SHA256", 0x003d),
    ("DES-CBC3-SHA", 0x000a),
];

const GROUPS: [(&str, u16); 5] = [("X25519", 29), ("P-256", 23), ("P-384", 24), ("P-521", 25), ("X448", 30)];
/// The groups that go with everything else.
const USUAL: [u16; 3] = [29, 23, 24];

/// What a question is about.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum About {
    /// What is negotiated for a name; `None`: no name.
    Name(Option<String>),
    /// Whether a version is accepted.
    Version(&'static str),
    /// Whether a suite is accepted, and whether it is one that Sealane has. With a name: for a server with suites of its own.
    Suite(&'static str, bool, Option<String>),
    /// Whether a group is accepted.
    Group(&'static str),
}

/// The answer to one question.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Shake {
    /// The question.
    pub about: About,
    /// What was negotiated, or why nothing was.
    pub negotiated: Result<Negotiated, String>,
}

/// Asks everything.
pub fn shake(network: &Network, handshakes: &Handshakes, first: usize) -> anyhow::Result<Vec<Shake>> {
    let listener = &handshakes.listener;
    let mut number = first;
    let mut out = Vec::new();
    for name in &handshakes.names {
        number += 1;
        out.push(Shake {
            about: About::Name(name.clone()),
            negotiated: negotiate(network, listener, name.as_deref(), number)?,
        });
    }
    let first = handshakes.names.iter().flatten().next().cloned();
    let mut ask = |about: About, version: u16, tls13: bool, suites: &[u16], groups: &[u16]| {
        number += 1;
        let named = if let About::Suite(_, _, Some(name)) = &about { Some(name.clone()) } else { first.clone() };
        // An address sends no name.
        let host = named.as_deref().unwrap_or("192.0.2.1");
        let offer = Offer { legacy_version: version, tls13, suites, groups, host };
        let accepted = exchange(network, listener, &client_hello(&offer, [7; 32]), number);
        out.push(Shake { about, negotiated: judge(&offer, accepted) });
    };
    let all_13: Vec<u16> = SUITES_13.iter().map(|s| s.1).collect();
    let all_12: Vec<u16> = SUITES_12.iter().chain(&SUITES_OLD).map(|s| s.1).collect();
    for (name, version, tls13) in VERSIONS {
        ask(About::Version(name), version, tls13, if tls13 { &all_13 } else { &all_12 }, &USUAL);
    }
    for (name, suite) in SUITES_13 {
        ask(About::Suite(name, true, None), 0x0303, true, &[suite], &USUAL);
    }
    for server in std::iter::once(None).chain(handshakes.with_suites.iter().cloned().map(Some)) {
        for (known, suites) in [(true, &SUITES_12[..]), (false, &SUITES_OLD[..])] {
            for (name, suite) in suites {
                ask(About::Suite(name, known, server.clone()), 0x0303, false, &[*suite], &USUAL);
            }
        }
    }
    if handshakes.chosen.groups {
        for (name, group) in GROUPS {
            ask(About::Group(name), 0x0303, true, &all_13, &[group]);
        }
    }
    Ok(out)
}

fn negotiate(
    network: &Network,
    listener: &Listener,
    name: Option<&str>,
    number: usize,
) -> anyhow::Result<Result<Negotiated, String>> {
    let verifier = verifier()?;
    let mut config = ClientConfig::builder_with_provider(Arc::new(default_provider()))
        .with_safe_default_protocol_versions()?
        .dangerous()
        .with_custom_certificate_verifier(verifier.clone())
        .with_no_client_auth();
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    config.enable_sni = name.is_some();
    let server = name.and_then(|n| ServerName::try_from(n.to_owned()).ok());
    let server = server.unwrap_or(ServerName::IpAddress(listener.address.ip().into()));
    let mut session = ClientConnection::new(Arc::new(config), server)?;
    let refused = |e: std::io::Error| e.to_string();
    let done = open(network, listener, number).and_then(|mut socket| session.complete_io(&mut socket).map_err(refused));
    Ok(done.map(|_| Negotiated {
        version: session.protocol_version().map_or_else(String::new, |v| format!("{v:?}")),
        suite: session.negotiated_cipher_suite().map_or_else(String::new, |s| format!("{:?}", s.suite())),
        alpn: session.alpn_protocol().map(|a| String::from_utf8_lossy(a).into_owned()),
        chain: verifier.last().map(|s| s.chain).unwrap_or_default(),
    }))
}

fn open(network: &Network, listener: &Listener, number: usize) -> Result<std::net::TcpStream, String> {
    let from = client(number);
    let open = || -> std::io::Result<std::net::TcpStream> {
        let mut socket = network.connect(listener.address, Some(listener.hop.unwrap_or(from)), LIMIT)?;
        socket.set_read_timeout(Some(LIMIT))?;
        socket.set_write_timeout(Some(LIMIT))?;
        if listener.proxy {
            let to = listener.address;
            let line = match to.is_ipv4() {
                true => format!("PROXY TCP4 {from} {} 40000 {}\r\n", to.ip(), to.port()),
                false => "PROXY UNKNOWN\r\n".to_owned(),
            };
            socket.write_all(line.as_bytes())?;
        }
        Ok(socket)
    };
    open().map_err(|e| format!("no connection: {}", e.kind()))
}

fn exchange(network: &Network, listener: &Listener, hello: &[u8], number: usize) -> Result<Answer, String> {
    let mut socket = open(network, listener, number)?;
    let (mut bytes, mut buffer) = (Vec::new(), [0; 4096]);
    if socket.write_all(hello).is_err() {
        return Err("closed".to_owned());
    }
    loop {
        match socket.read(&mut buffer) {
            Ok(0) | Err(_) => return Err("closed".to_owned()),
            Ok(n) => bytes.extend(&buffer[..n]),
        }
        if let Some(answer) = answer(&bytes) {
            return Ok(answer);
        }
        if bytes.len() > MAX_ANSWER {
            return Ok(Answer::Nonsense);
        }
    }
}

/// How a refusal is said differs from library to library; that it is one counts.
fn judge(offer: &Offer<'_>, answer: Result<Answer, String>) -> Result<Negotiated, String> {
    let Ok(Answer::Hello { version, suite, retry_group }) = answer else { return Err("refused".to_owned()) };
    let version_is = if offer.tls13 { version == 0x0304 } else { version == offer.legacy_version };
    let group_is = retry_group.is_none_or(|g| offer.groups.contains(&g));
    match version_is && group_is && offer.suites.contains(&suite) {
        true => Ok(Negotiated { version: "accepted".to_owned(), ..Negotiated::default() }),
        false => Err("refused".to_owned()),
    }
}
