//! `cargo xtask kubernetes`: the conformance suite of the Gateway API against `sealane-kube` and the gateway, with a real API server.
//!
//! etcd, the API server, its controllers, CoreDNS and the suite are built from Go modules; a program in `packaging/kubernetes/test-cluster`
//! stands in for kubelet and for load balancers. All of it runs in namespaces of its own, so it needs root. The first build takes about
//! half an hour on two cores. The report is `docs/measurements/kubernetes/report.yaml`.

use crate::metadata::{Workspace, cargo};
use crate::programs::{checked, quiet};
use crate::setup;
use anyhow::{Context, bail, ensure};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Folder of the Go module, and of the scripts.
const MODULE: &str = "packaging/kubernetes/test-cluster";
/// Where the last report is.
const REPORT: &str = "docs/measurements/kubernetes/report.yaml";
/// Programs of the module, and their packages.
const PROGRAMS: &[(&str, &str)] = &[
    ("etcd", "go.etcd.io/etcd/server/v3"),
    ("kube-apiserver", "k8s.io/kubernetes/cmd/kube-apiserver"),
    ("kube-controller-manager", "k8s.io/kubernetes/cmd/kube-controller-manager"),
    ("echo-basic", "sigs.k8s.io/gateway-api/conformance/echo-basic"),
    ("kubelet", "./kubelet"),
];
/// The DNS server of one of the tests; its module does not fit together with that of Kubernetes.
const COREDNS: &str = "github.com/coredns/coredns@v1.12.2";
/// What the suite tests.
const PROFILES: &str = "GATEWAY-HTTP,GATEWAY-GRPC,GATEWAY-TLS";

/// What is asked for.
#[derive(clap::Args)]
pub struct Options {
    /// Run only the test with this name, and write no report
    #[arg(long, value_name = "NAME")]
    test: Option<String>,
    /// Use this program as the gateway, and build none
    #[arg(long, value_name = "FILE")]
    gateway: Option<PathBuf>,
}

/// Runs the suite.
pub fn run(workspace: &Workspace, options: &Options) -> anyhow::Result<u8> {
    for program in ["go", "kubectl", "unshare", "ip", "openssl"] {
        ensure!(setup::find(program).is_some(), "`{program}` is missing");
    }
    let module = workspace.root().join(MODULE);
    let programs = workspace.target().join("test-cluster");
    fs::create_dir_all(&programs)?;
    for (name, package) in PROGRAMS {
        let mut build = go(&module);
        checked(build.args(["build", "-ldflags=-s -w", "-o"]).arg(programs.join(name)).arg(package))?;
    }
    let mut suite = go(&module);
    checked(
        suite
            .args(["test", "-c", "-o"])
            .arg(programs.join("conformance.test"))
            .arg("sigs.k8s.io/gateway-api/conformance"),
    )?;
    if !programs.join("coredns").is_file() {
        checked(go(&module).env("GOBIN", &programs).args(["install", COREDNS]))?;
    }
    let definitions = quiet(go(&module).args(["list", "-m", "-f", "{{.Dir}}", "sigs.k8s.io/gateway-api"]))?;
    let definitions = Path::new(definitions.trim()).join("config/crd/standard");

    let mut build = cargo();
    build.args(["build", "--locked", "--release", "-p", "sealane-kube"]);
    if options.gateway.is_none() {
        build.args(["-p", "sealane"]);
    }
    checked(build.current_dir(workspace.root()))?;
    let built = workspace.target().join("release");
    let gateway = options.gateway.clone().unwrap_or_else(|| built.join("sealane"));
    let gateway = fs::canonicalize(&gateway).with_context(|| gateway.display().to_string())?;

    let data = programs.join("data");
    if data.exists() {
        fs::remove_dir_all(&data).with_context(|| data.display().to_string())?;
    }
    fs::create_dir_all(&data)?;
    let mut command = Command::new("unshare");
    command.args(["--net", "--mount", "--pid", "--fork", "--mount-proc", "--kill-child"]);
    command.arg(module.join("conformance.sh")).arg(&programs).arg(gateway).arg(built.join("sealane-kube"));
    command.arg(&data).arg(definitions);
    match &options.test {
        Some(test) => command.args(["--run-test", test.as_str()]),
        None => command.args(["--conformance-profiles", PROFILES]),
    };
    let status = command.status().context("unshare")?;
    if options.test.is_none() {
        let report = data.join("report.yaml");
        if !report.is_file() {
            bail!("the suite has written no report: {} has the logs", data.display());
        }
        let to = workspace.root().join(REPORT);
        fs::create_dir_all(to.parent().unwrap_or(workspace.root()))?;
        fs::copy(&report, &to).with_context(|| to.display().to_string())?;
        println!("{}", to.display());
    }
    Ok(u8::from(!status.success()))
}

fn go(module: &Path) -> Command {
    let mut command = Command::new("go");
    command.current_dir(module);
    command
}
