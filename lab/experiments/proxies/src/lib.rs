//! The experiment `proxies`: the study "HAProxy vs NGINX" and the gateway half of "The State of SSL Stacks", on this
//! machine, with Sealane among them. `experiment.toml` beside this folder has question and method; each module here
//! measures one kind of part.

mod bulk;
mod certificates;
mod chain;
mod knee;
mod lanes;
mod load;
mod memory;
mod overload;
mod saturated;
mod slow_readers;
mod storm;
mod threads;
mod together;
mod verdict;

use anyhow::Context;
use sealane_lab_harness::web::{Http, Site};
use sealane_lab_harness::workspace::{Backend, Key, Workspace};
use sealane_lab_harness::{Bench, Experiment, Options, Program, Spec, client, programs, web};
use sealane_lab_load::plan::Plan;
use sealane_lab_load::tls::{TlsOptions, TlsVersions};
use sealane_lab_report::{Fact, Finding, Page};

/// The experiment.
#[derive(Debug)]
pub struct Proxies {
    spec: Spec,
}

impl Proxies {
    /// Reads its file.
    pub fn new() -> anyhow::Result<Self> {
        Ok(Self { spec: Spec::parse(include_str!("../experiment.toml"))? })
    }
}

impl Experiment for Proxies {
    fn spec(&self) -> &Spec {
        &self.spec
    }

    fn together(&self) -> &[&str] {
        TOGETHER
    }

    fn obstacle(&self, _: &Options) -> Option<String> {
        programs::look_up("nginx").is_none().then(|| {
            "the backend behind all proxies is NGINX, and there is none (Debian: apt install nginx-light)".into()
        })
    }

    fn run(&self, bench: &mut Bench<'_>) -> anyhow::Result<()> {
        let workspace = Workspace::new()?;
        for program in &mut bench.programs {
            program.path = workspace.copy_of(&program.name, &program.path)?;
        }
        let mut backend = Backend::start(&workspace, &bench.cores.backend)?;
        let answers: String = bench.size("backend")?;
        match answers.as_str() {
            "nginx" => {}
            "haproxy" => backend.use_haproxy(&workspace, &bench.cores.backend)?,
            other => anyhow::bail!("--set backend={other}: the backend of requests is nginx or haproxy"),
        }
        bench.page.settings.push(Fact::new("Backend of requests", answers));
        let setup = Setup { workspace, backend };
        measure(bench, &setup)
    }

    fn conclude(&self, page: &mut Page) {
        verdict::conclude(page);
    }

    fn finding(&self, page: &Page) -> Option<Finding> {
        Some(verdict::finding(page))
    }
}

/// The parts that can be measured with `--method together`: CPU time per operation under a closed loop.
const TOGETHER: &[&str] = &["keepalive", "full-ecdsa", "full-rsa", "resumed", "http2", "http3", "quic-handshake"];

fn measure(bench: &mut Bench<'_>, setup: &Setup) -> anyhow::Result<()> {
    bench.part("keepalive", |b, p| saturated::keepalive(b, p, setup))?;
    bench.part("knee-1.3", |b, p| knee::measure(b, p, setup, Tls::V13))?;
    bench.part("knee-1.2", |b, p| knee::measure(b, p, setup, Tls::V12))?;
    bench.part("full-ecdsa", |b, p| saturated::full(b, p, setup, Key::Ecdsa))?;
    bench.part("full-rsa", |b, p| saturated::full(b, p, setup, Key::Rsa))?;
    bench.part("resumed", |b, p| saturated::resumed(b, p, setup))?;
    bench.part("threads", |b, p| threads::measure(b, p, setup, Key::Ecdsa))?;
    bench.part("threads-rsa", |b, p| threads::measure(b, p, setup, Key::Rsa))?;
    bench.part("chain", |b, p| chain::measure(b, p, setup))?;
    bench.part("storm", |b, p| storm::measure(b, p, setup))?;
    bench.part("bulk", |b, p| bulk::measure(b, p, setup, Http::One))?;
    bench.part("memory", |b, p| memory::measure(b, p, setup))?;
    bench.part("http2", |b, p| saturated::multiplexed(b, p, setup, Http::Two))?;
    bench.part("http3", |b, p| saturated::multiplexed(b, p, setup, Http::Three))?;
    bench.part("quic-handshake", |b, p| saturated::quic_handshakes(b, p, setup))?;
    bench.part("http3-bulk", |b, p| bulk::measure(b, p, setup, Http::Three))?;
    bench.part("overload", |b, p| overload::measure(b, p, setup))?;
    bench.part("slow-readers", |b, p| slow_readers::measure(b, p, setup))?;
    bench.part("lanes", |b, p| lanes::measure(b, p, setup))?;
    bench.part("certificates", |b, p| certificates::measure(b, p, setup))
}

/// What all parts share.
pub(crate) struct Setup {
    /// Certificates and files.
    pub workspace: Workspace,
    /// The server behind the proxies.
    pub backend: Backend,
}

/// The TLS version of a part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Tls {
    /// 1.3.
    V13,
    /// 1.2.
    V12,
}

impl Tls {
    /// What the load offers: one version, one suite, one group.
    pub fn options(self, key: Key) -> TlsOptions {
        let (versions, suite) = match (self, key) {
            (Self::V13, _) => (TlsVersions::Tls13, "TLS_AES_256_GCM_SHA384"),
            (Self::V12, Key::Ecdsa) => (TlsVersions::Tls12, "TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384"),
            (Self::V12, Key::Rsa) => (TlsVersions::Tls12, "TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384"),
        };
        let mut options = TlsOptions { versions, ..client::options(suite) };
        if self == Self::V12 && key == Key::Ecdsa {
            // RFC 8422 §5.1: without P-256 among the client's groups a TLS 1.2 server may not show its certificate. The
            // exchange is X25519 all the same, since that is all that the servers offer.
            options.groups.push("secp256r1".to_owned());
        }
        options
    }
}

/// The subjects of a part, running.
pub(crate) struct Subjects {
    /// In the page's order.
    pub servers: Vec<web::Server>,
}

impl Subjects {
    /// Starts every program with `site` on `cpus`. One that cannot be had in this way is left out with a note; with
    /// nobody left there is no part.
    pub fn start(
        bench: &mut Bench<'_>,
        part: &mut sealane_lab_report::Part,
        setup: &Setup,
        site: &Site,
        cpus: &[usize],
    ) -> anyhow::Result<Self> {
        let mut servers = Vec::new();
        for program in bench.programs.clone() {
            match web::start(&program, &program.name, &setup.workspace, site, cpus) {
                Ok(server) => {
                    bench.show_configuration(&program.name, &server.configuration);
                    servers.push(server);
                }
                Err(error) => part.note(format!("{} is left out: {error:#}", program.name)),
            }
        }
        let subjects = Self { servers };
        subjects.some().map(|()| subjects)
    }

    fn some(&self) -> anyhow::Result<()> {
        anyhow::ensure!(!self.servers.is_empty(), "no subject could be started");
        Ok(())
    }

    /// Everybody answers the same over HTTP/1.1, or the part is left out.
    pub fn check(&self, tls: &TlsOptions) -> anyhow::Result<()> {
        let all: Vec<(&str, std::net::SocketAddr)> =
            self.servers.iter().map(|s| (s.name.as_str(), s.address)).collect();
        client::check_alike(&all, "/", tls).map(drop).context("before measuring")
    }

    /// Runs a short load at each, whose figures nobody keeps: caches, pools and the first tickets come about in it. Leaves
    /// out, with a note, those that complete nothing because they do not speak what is asked for.
    pub fn keep_able(
        &mut self,
        bench: &Bench<'_>,
        part: &mut sealane_lab_report::Part,
        tls: &TlsOptions,
        shape: impl Fn(Plan) -> Plan,
    ) -> anyhow::Result<()> {
        let mut able = Vec::new();
        for server in self.servers.drain(..) {
            let mut first = shape(load::plan(bench, &server, "/", tls)?);
            first.duration = Some(std::time::Duration::from_millis(300));
            match load::run(bench, &first) {
                Ok(report) if report.completed > 0 => able.push(server),
                Ok(report) => {
                    let why = report.failures.values().find_map(|f| f.first.clone()).unwrap_or_default();
                    part.note(format!("{} is left out: nothing completed ({why})", server.name));
                }
                Err(error) => part.note(format!("{} is left out: {error:#}", server.name)),
            }
        }
        anyhow::ensure!(!able.is_empty(), "no subject supports the protocol of this part: {}", part.notes.join("; "));
        self.servers = able;
        Ok(())
    }

    /// The names.
    pub fn names(&self) -> Vec<String> {
        self.servers.iter().map(|s| s.name.clone()).collect()
    }
}

/// The site that parts begin from.
pub(crate) fn site(bench: &Bench<'_>, answer: web::Answer) -> anyhow::Result<Site> {
    Ok(Site { logs: bench.size("logs")?, ..Site::new(answer) })
}

/// Programs of the kind that can be one process with threads or several without.
pub(crate) fn haproxies(bench: &Bench<'_>) -> Vec<Program> {
    bench.programs.iter().filter(|p| p.kind == "haproxy").cloned().collect()
}
