//! The command line.

use anyhow::{Context, bail};
use clap::{Parser, ValueEnum};
use sealane_kube_translate::objects::{Kind, Name};
use sealane_kube_translate::toml::{Table, Value};
use sealane_kube_translate::{Ports, Settings};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

/// Configures the Sealane gateway of this Pod from Gateway API and Ingress objects.
#[derive(Clone, Debug, Parser)]
#[command(name = "sealane-kube", version)]
pub struct Args {
    /// The gateway's configuration file, in a folder that this program and the gateway can write to
    #[arg(long, default_value = "/etc/sealane/run/sealane.toml")]
    pub config: PathBuf,
    /// The gateway's admin socket
    #[arg(long, default_value = "/run/sealane/admin.sock")]
    pub admin: PathBuf,
    /// A file with the first part of the configuration: `[admin]`, a `[[listener]]`, `[limits]` and so on
    #[arg(long)]
    pub base: PathBuf,
    /// The address of /healthz, /readyz and /metrics
    #[arg(long, default_value = "[::]:9902")]
    pub listen: SocketAddr,
    /// The namespace of this Pod
    #[arg(long, env = "POD_NAMESPACE")]
    pub namespace: String,
    /// The name of this Pod
    #[arg(long, env = "POD_NAME")]
    pub pod: Option<String>,
    /// The name of the Lease by which one of the instances is elected to write statuses
    #[arg(long, default_value = "sealane-kube")]
    pub lease: String,
    /// controllerName of GatewayClasses
    #[arg(long, default_value = "sealane.github.io/gateway")]
    pub gateway_controller: String,
    /// controller of IngressClasses
    #[arg(long, default_value = "sealane.github.io/ingress")]
    pub ingress_controller: String,
    /// How Gateways get ports: each has a Service, or the gateway listens on the ports themselves (host network)
    #[arg(long, value_enum, default_value = "services")]
    pub ports: PortsMode,
    /// The target ports of the Services of Gateways
    #[arg(long, default_value = "20000-20999")]
    pub target_ports: String,
    /// A port that Gateways cannot have, because something else listens on it (repeatable). Ports of Ingresses are reserved, too
    #[arg(long, default_values_t = [8081, 9901, 9902])]
    pub reserved_port: Vec<u16>,
    /// The type of the Services of Gateways
    #[arg(long, value_enum, default_value = "LoadBalancer")]
    pub service_type: ServiceType,
    /// The labels of the gateway's Pods, for the Services of Gateways: app=sealane,tier=edge
    #[arg(long, default_value = "app.kubernetes.io/name=sealane")]
    pub selector: String,
    /// An address at which clients reach Gateways and Ingresses, where no Service has one (repeatable)
    #[arg(long)]
    pub address: Vec<String>,
    /// The port for Ingresses without TLS
    #[arg(long, default_value_t = 8080)]
    pub ingress_http_port: u16,
    /// The port for Ingresses with TLS
    #[arg(long, default_value_t = 8443)]
    pub ingress_https_port: u16,
    /// The port with TLS that clients of Ingresses use
    #[arg(long, default_value_t = 443)]
    pub ingress_public_port: u16,
    /// The Service whose addresses Ingresses get: namespace/name
    #[arg(long)]
    pub ingress_service: Option<String>,
    /// Do not serve Ingresses
    #[arg(long)]
    pub no_ingress: bool,
    /// The zone of this node, for topology-aware routing
    #[arg(long, env = "ZONE")]
    pub zone: Option<String>,
    /// Serve HTTP/3 on listeners with TLS
    #[arg(long)]
    pub http3: bool,
    /// Addresses of load balancers that name the client in X-Forwarded-For (repeatable)
    #[arg(long)]
    pub trusted_proxy: Vec<String>,
    /// Load balancers send the PROXY protocol
    #[arg(long)]
    pub proxy_protocol: bool,
    /// The shortest time between two configurations, in milliseconds
    #[arg(long, default_value_t = 500, value_parser = clap::value_parser!(u64).range(10..=60_000))]
    pub min_interval_ms: u64,
}

/// How Gateways get ports.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum PortsMode {
    /// Each Gateway has a Service.
    Services,
    /// The ports themselves.
    Direct,
}

/// The type of a Service.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
#[value(rename_all = "PascalCase")]
pub enum ServiceType {
    /// For a provider of load balancers.
    LoadBalancer,
    /// A port of each node.
    NodePort,
    /// Inside the cluster.
    #[value(name = "ClusterIP")]
    ClusterIp,
}

impl ServiceType {
    /// The name in the API.
    pub const fn name(self) -> &'static str {
        match self {
            Self::LoadBalancer => "LoadBalancer",
            Self::NodePort => "NodePort",
            Self::ClusterIp => "ClusterIP",
        }
    }
}

impl Args {
    /// Which kinds of objects are read.
    pub fn kinds(&self) -> Vec<Kind> {
        let is_wanted = |kind: &Kind| !self.no_ingress || !matches!(kind, Kind::Ingress | Kind::IngressClass);
        Kind::ALL.into_iter().filter(is_wanted).collect()
    }

    /// The name of this instance in the Lease.
    pub fn identity(&self) -> anyhow::Result<String> {
        let name = match &self.pod {
            Some(pod) => pod.clone(),
            None => std::fs::read_to_string("/proc/sys/kernel/hostname")?.trim().to_owned(),
        };
        // A container that is started again in the same Pod is another instance.
        Ok(format!("{name}_{}", std::process::id() ^ u32::from_ne_bytes(seed())))
    }

    /// The labels in `--selector`.
    pub fn selector(&self) -> anyhow::Result<Vec<(String, String)>> {
        let pair = |text: &str| {
            let (key, value) =
                text.split_once('=').with_context(|| format!("--selector: {text:?} is not KEY=VALUE"))?;
            Ok((key.trim().to_owned(), value.trim().to_owned()))
        };
        self.selector.split(',').map(pair).collect()
    }

    /// The shortest time between two configurations.
    pub fn min_interval(&self) -> Duration {
        Duration::from_millis(self.min_interval_ms)
    }

    /// What the translation needs.
    pub fn settings(&self) -> anyhow::Result<Settings> {
        let base = std::fs::read_to_string(&self.base).with_context(|| format!("--base {}", self.base.display()))?;
        let ports = match self.ports {
            PortsMode::Direct => Ports::Direct,
            PortsMode::Services => {
                let range =
                    self.target_ports.split_once('-').and_then(|(a, b)| Some((a.parse().ok()?, b.parse().ok()?)));
                match range {
                    Some((first, last)) if 0 < first && first <= last => Ports::Services { first, last },
                    _ => bail!("--target-ports: {:?} is not a range such as 20000-20999", self.target_ports),
                }
            }
        };
        let ingress_service = match &self.ingress_service {
            None => None,
            Some(text) => {
                let (namespace, name) = text
                    .split_once('/')
                    .with_context(|| format!("--ingress-service: {text:?} is not NAMESPACE/NAME"))?;
                Some(Name::new(namespace, name))
            }
        };
        let others = [self.ingress_http_port, self.ingress_https_port];
        let taken = self.reserved_port.iter().chain(&others).copied();
        if let Ports::Services { first, last } = ports
            && let Some(port) = taken.clone().find(|port| (first..=last).contains(port))
        {
            bail!("--target-ports: port {port} is used for another purpose");
        }
        let mut listener = Table::default();
        if !self.trusted_proxy.is_empty() {
            listener.set("trusted_proxies", self.trusted_proxy.clone());
        }
        if self.proxy_protocol {
            listener.set("proxy_protocol", Value::Flag(true));
        }
        if self.http3 && self.proxy_protocol {
            bail!("--http3 and --proxy-protocol exclude each other");
        }
        Ok(Settings {
            gateway_controller: self.gateway_controller.clone(),
            ingress_controller: self.ingress_controller.clone(),
            ports,
            reserved: self.reserved_port.iter().copied().collect(),
            namespace: self.namespace.clone(),
            addresses: self.address.clone(),
            ingress_ports: (self.ingress_http_port, self.ingress_https_port),
            ingress_public_port: self.ingress_public_port,
            ingress_service,
            zone: self.zone.clone().filter(|zone| !zone.is_empty()),
            http3: self.http3,
            listener,
            base,
        })
    }
}

/// Four bytes that differ from process to process.
fn seed() -> [u8; 4] {
    let mut bytes = [0; 4];
    let time = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    bytes.copy_from_slice(&time.subsec_nanos().to_ne_bytes());
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    fn args(more: &[&str]) -> Args {
        let base = ["sealane-kube", "--base", "/dev/null", "--namespace", "n"];
        Args::parse_from(base.iter().chain(more))
    }

    #[test]
    fn the_command_line() {
        let args = args(&["--service-type", "ClusterIP", "--selector", "a=b, c=d", "--no-ingress"]);
        assert_eq!(args.service_type.name(), "ClusterIP");
        assert_eq!(args.selector().unwrap(), [("a".to_owned(), "b".to_owned()), ("c".to_owned(), "d".to_owned())]);
        assert!(!args.kinds().contains(&Kind::Ingress) && args.kinds().contains(&Kind::Gateway));
        assert_eq!(args.settings().unwrap().ports, Ports::Services { first: 20000, last: 20999 });
    }

    #[test]
    fn mistakes() {
        for bad in [
            ["--target-ports", "5-1"],
            ["--target-ports", "x"],
            ["--target-ports", "8000-8100"],
            ["--ingress-service", "x"],
        ] {
            assert!(args(&bad).settings().is_err(), "{bad:?}");
        }
        assert!(args(&["--selector", "a"]).selector().is_err());
    }
}
