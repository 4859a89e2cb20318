//! A TCP connection over an emulated link with a round-trip time of 11.6 ms: `cargo run --example link`, as root or with user namespaces.

use sealane_lab_emulator::{Link, LinkConfig, gain_privileges};
use std::net::{TcpListener, TcpStream};
use std::time::Duration;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    gain_privileges()?;
    let link = Link::up(&LinkConfig::with_rtt(Duration::from_micros(11_600)))?;
    let address = (link.server().address(), 7000);
    let listener = link.server().run(|| TcpListener::bind(address))??;
    let server = std::thread::spawn(move || listener.accept().map(drop));
    link.client().run(|| TcpStream::connect(address).map(drop))??;
    server.join().map_err(|_| "the server's thread panicked")??;
    println!("{}", link.finish());
    Ok(())
}
