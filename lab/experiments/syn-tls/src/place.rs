//! Where it is measured: a link, a gateway at its far end, certificates.

use crate::distances::OverLink;
use anyhow::Context;
use rcgen::{CertificateParams, KeyPair, PKCS_ECDSA_P256_SHA256, PKCS_RSA_SHA256, RsaKeySize};
use rustls::pki_types::CertificateDer;
use sealane_lab_emulator::{Link, LinkConfig};
use sealane_lab_harness::Bench;
use sealane_lab_harness::process::{Launch, Running};
use sealane_lab_harness::workspace::Workspace;
use sealane_lab_report::Figure;
use std::net::SocketAddr;
use std::time::Duration;

/// The name that is asked for.
pub const NAME: &str = "server.test";
/// The kinds of certificates, in charts.
pub const KEYS: [&str; 2] = ["ECDSA P-256", "RSA 4096"];

const FIRST_PORT: u16 = 8443;
const BODY: usize = 400;
const WAIT_LIMIT: Duration = Duration::from_secs(15);

/// One certificate of each kind, with files for the gateway.
pub struct Certificates {
    workspace: Workspace,
    pub der: [CertificateDer<'static>; 2],
}

impl Certificates {
    pub fn new() -> anyhow::Result<Self> {
        let workspace = Workspace::new()?;
        let make = |name: &str, key: KeyPair| -> anyhow::Result<CertificateDer<'static>> {
            let certificate = CertificateParams::new(vec![NAME.to_owned()])?.self_signed(&key)?;
            std::fs::write(workspace.path().join(format!("{name}.pem")), certificate.pem() + &key.serialize_pem())?;
            Ok(certificate.der().clone())
        };
        let ecdsa = make("syn-0", KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256)?)?;
        let rsa = make("syn-1", KeyPair::generate_rsa_for(&PKCS_RSA_SHA256, RsaKeySize::_4096)?)?;
        Ok(Self { workspace, der: [ecdsa, rsa] })
    }
}

/// A link with a gateway for each kind of certificate at its far end.
pub struct Place {
    pub link: Link,
    pub gateways: Vec<(SocketAddr, Running)>,
}

impl Place {
    /// Gateways in their default mode, with cookies.
    pub fn new(bench: &mut Bench<'_>, certificates: &Certificates, config: &LinkConfig) -> anyhow::Result<Self> {
        Self::with(bench, certificates, config, "cookie", &KEYS)
    }

    /// A gateway that takes data in the SYN of clients that it does not know. It needs an ECDSA certificate for that.
    pub fn open(bench: &mut Bench<'_>, certificates: &Certificates, config: &LinkConfig) -> anyhow::Result<Self> {
        Self::with(bench, certificates, config, "open", &KEYS[..1])
    }

    /// What was measured, what the link says of itself, and why it is void if it is.
    pub fn finish(self, figures: Vec<Figure>) -> OverLink {
        let report = self.link.finish();
        (figures, report.to_string().lines().next().unwrap_or_default().to_owned(), report.void_for_medians())
    }

    fn with(
        bench: &mut Bench<'_>,
        certificates: &Certificates,
        config: &LinkConfig,
        mode: &str,
        keys: &[&str],
    ) -> anyhow::Result<Self> {
        let program =
            bench.programs.first().context("there is no sealane: build it, or name it with --subject sealane=PATH")?;
        let (name, path) = (program.name.clone(), program.path.clone());
        let link = Link::up(config)?;
        for side in [link.client(), link.server()] {
            side.set_sysctl("net.ipv4.tcp_fastopen", "3")?;
        }
        let mut gateways = Vec::new();
        for (i, key) in keys.iter().enumerate() {
            let address = SocketAddr::new(link.server().address().into(), FIRST_PORT + i as u16);
            let pem = certificates.workspace.path().join(format!("syn-{i}.pem"));
            let body = "x".repeat(BODY);
            let text = [
                "respond",
                "--http3",
                "--listen",
                &address.to_string(),
                "--early-data",
                "16KiB",
                "--lanes",
                "1",
                "--syn-tls",
                mode,
                "--body",
                &body,
            ]
            .map(std::ffi::OsString::from);
            let mut args = text.to_vec();
            args.extend(["--cert".into(), pem.into_os_string()]);
            let launch = Launch {
                name: name.clone(),
                program: path.clone(),
                args,
                env: Vec::new(),
                cpus: bench.cores.server.clone(),
                ports: Vec::new(),
                output: certificates.workspace.path().join(format!("syn-{i}.log")),
                // The thread of the namespace that starts it ends at once.
                tied: false,
            };
            let running = link.server().run(|| Running::start(&launch))?.with_context(|| (*key).to_owned())?;
            link.server().wait_for_port(address, WAIT_LIMIT).with_context(|| {
                let said = std::fs::read_to_string(&launch.output).unwrap_or_default();
                format!("sealane does not listen: {said}")
            })?;
            gateways.push((address, running));
        }
        Ok(Self { link, gateways })
    }
}
