//! Gets a page, with the TLS handshake inside TCP's where the server accepts it: `cargo run --example get ADDRESS:PORT NAME CA.pem`.

use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use sealane_connect::{Connector, Options};
use std::io::{Read, Write, stdout};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [address, name, authority] = &arguments[..] else { return Err("usage: get ADDRESS:PORT NAME CA.pem".into()) };
    let mut roots = rustls::RootCertStore::empty();
    roots.add(CertificateDer::from_pem_file(authority)?)?;
    let connector = Connector::new(Options::with_roots(roots))?;
    // These bytes must be safe to repeat: they may travel as early data (RFC 8446, section 8).
    let request = format!("GET / HTTP/1.1\r\nHost: {name}\r\nConnection: close\r\n\r\n");
    let mut stream = connector.connect_tls(address.as_str(), name, request.as_bytes())?;
    eprintln!("{:?}", stream.outcome());
    let mut response = Vec::new();
    stream.read_to_end(&mut response)?;
    stdout().write_all(&response)?;
    Ok(())
}
