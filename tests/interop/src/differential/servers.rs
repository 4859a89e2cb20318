//! The servers and proxies, started.

use super::{Proxy, Server, Version};
use crate::gateway::{Gateway, configured};
use crate::peers::{self, find, haproxy, joined, nginx};
use crate::ports;
use crate::process;
use crate::site::Site;
use std::fmt::Write as _;
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::process::Command;

/// All that runs.
pub struct Servers {
    /// The gateway.
    pub gateway: Gateway,
    nginx: [SocketAddr; 2],
    haproxy: [SocketAddr; 2],
    _processes: Vec<process::Server>,
}

/// What is missing to run them, if anything is.
pub fn missing() -> Option<String> {
    let program = ["nginx", "haproxy", "node", "go", "python3"].iter().find(|program| find(program).is_none());
    let program = program.map(|program| format!("`{program}` is not installed (cargo xtask setup)"));
    program.or_else(|| peers::h11().err()).or_else(|| peers::arrivals_go().err())
}

impl Servers {
    /// Starts them; nothing may be missing.
    #[track_caller]
    pub fn start(site: &Site) -> Self {
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("peers/arrivals");
        let [node, h11, go, go_h2] = [(); 4].map(|()| ports::free());
        let port = |address: SocketAddr| address.port().to_string();
        let mut commands = Vec::new();
        let mut command = Command::new(find("node").expect("it was looked for"));
        command.arg(source.join("server.mjs")).arg(port(node));
        commands.push((command, node));
        let mut command = Command::new(peers::h11().expect("it was looked for"));
        command.arg(source.join("server.py")).arg(port(h11));
        commands.push((command, h11));
        let mut command = Command::new(peers::arrivals_go().expect("it was looked for"));
        command.args([port(go), port(go_h2)]).arg(&site.ecdsa.cert).arg(&site.ecdsa.key);
        commands.push((command, go));
        let mut processes = Vec::new();
        for (command, address) in commands {
            let mut server = process::Server::start(command, site.path());
            server.wait_until(|| TcpStream::connect(address).is_ok());
            processes.push(server);
        }
        processes.last_mut().expect("it is Go's").wait_until(|| TcpStream::connect(go_h2).is_ok());
        let address = |server| match server {
            Server::Node => node,
            Server::H11 => h11,
            Server::Go => go,
            Server::GoH2 => go_h2,
        };
        let gateway = configured(site, &gateway_file(site, address));
        let proxied = Server::ALL.into_iter().filter(|server| *server != Server::GoH2);
        let [first, second, third, fourth] = [(); 4].map(|()| ports::free());
        let (cert, key) = (site.ecdsa.cert.display(), site.ecdsa.key.display());
        let mut http = String::from(
            "proxy_http_version 1.1; proxy_buffer_size 64k; proxy_buffers 4 64k; proxy_busy_buffers_size 64k;\n\
             client_body_buffer_size 64k; keepalive_requests 100000;\n",
        );
        for server in proxied.clone() {
            let (host, to) = (server.host(), address(server));
            let _ = writeln!(
                http,
                "server {{ listen {first}; listen {second} ssl http2; server_name {host};\n\
                 ssl_certificate {cert}; ssl_certificate_key {key};\n\
                 location / {{ proxy_pass http://{to}; proxy_set_header Host $http_host; \
                 proxy_set_header Connection \"\"; }} }}"
            );
        }
        processes.push(nginx(site, &find("nginx").expect("it was looked for"), first, &http));
        let mut sections = format!(
            "frontend all\n  bind {third}\n  bind {fourth} ssl crt {} alpn h2\n",
            joined(site, &site.ecdsa).display()
        );
        for server in proxied.clone() {
            let _ =
                writeln!(sections, "  use_backend {server:?} if {{ req.hdr(host),field(1,:) -i {} }}", server.host());
        }
        for server in proxied {
            let _ = writeln!(sections, "backend {server:?}\n  server one {}", address(server));
        }
        processes.push(haproxy(site, &find("haproxy").expect("it was looked for"), third, &sections));
        Self { gateway, nginx: [first, second], haproxy: [third, fourth], _processes: processes }
    }

    /// Where a proxy takes requests of a version.
    pub fn address(&self, proxy: Proxy, version: Version) -> SocketAddr {
        match proxy {
            Proxy::Sealane => self.gateway.address,
            Proxy::Nginx => self.nginx[usize::from(version == Version::H2)],
            Proxy::Haproxy => self.haproxy[usize::from(version == Version::H2)],
        }
    }
}

fn gateway_file(site: &Site, address: impl Fn(Server) -> SocketAddr) -> String {
    let mut text = format!(
        "lanes = 2\n[admin]\nlisten = \"@ADMIN@\"\n[[listener]]\naddress = \"@ADDRESS@\"\nhttp3 = true\n\
         [listener.tls]\ncertificates = {{ cert = {:?}, key = {:?} }}\n",
        site.ecdsa.cert, site.ecdsa.key
    );
    for server in Server::ALL {
        let (host, address) = (server.host(), address(server));
        let _ = write!(
            text,
            "[[host]]\nnames = \"{host}\"\nupstream = \"{server:?}\"\n[[upstream]]\nname = \"{server:?}\"\n"
        );
        let _ = match server {
            Server::GoH2 => write!(
                text,
                "servers = [\"https://{}:{}\"]\nhttp = \"2\"\n[upstream.tls]\nca = {:?}\n",
                crate::site::HOST,
                address.port(),
                site.ca
            ),
            _ => writeln!(text, "servers = [\"http://{address}\"]"),
        };
    }
    text
}
