//! gRPC's interoperability tests (`interop-test-descriptions.md` of gRPC): grpc-go's own client for them, and its own server behind the
//! gateway. The client checks each case itself.

use crate::grpc_streams::floods;
use sealane_interop::gateway::Gateway;
use sealane_interop::peers::{Said, grpc_interop};
use sealane_interop::process::{Server, run};
use sealane_interop::site::{HOST, Site};
use sealane_interop::versions::Listening;
use sealane_interop::{ports, skip};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The cases that need no service of a cloud: those that grpc-go's own script runs.
const CASES: [&str; 18] = [
    "empty_unary",
    "large_unary",
    "client_streaming",
    "server_streaming",
    "ping_pong",
    "empty_stream",
    "timeout_on_sleeping_server",
    "cancel_after_begin",
    "cancel_after_first_response",
    "status_code_and_message",
    "special_status_message",
    "custom_metadata",
    "unimplemented_method",
    "unimplemented_service",
    "orca_per_rpc",
    "orca_oob",
    "rpc_soak",
    "channel_soak",
];
/// This case compares names of servers, and grpc-go's server does not send its name.
const UNNAMED: &str = "pick_first_unary";
/// Cases that need accounts of Google's cloud.
const CLOUD: [&str; 7] = [
    "compute_engine_creds",
    "service_account_creds",
    "jwt_token_creds",
    "per_rpc_creds",
    "oauth2_auth_token",
    "google_default_credentials",
    "compute_engine_channel_credentials",
];

/// The balancer of the client that passes reports of the server's load to the cases `orca_per_rpc` and `orca_oob`.
const BALANCER: &str = r#"{ "loadBalancingConfig": [{ "test_backend_metrics_load_balancer": {} }] }"#;

macro_rules! programs {
    () => {
        match grpc_interop() {
            Ok(programs) => programs,
            Err(why) => skip!("no gRPC peers: {why}"),
        }
    };
}

struct Fixture {
    client: PathBuf,
    gateway: Gateway,
    server: Server,
    site: Site,
}

impl Fixture {
    /// A gateway before grpc-go's server, which speaks only HTTP/2, with these lines in the host's table.
    fn start((client, server): (PathBuf, PathBuf), lanes: usize, tls: bool, host: &str) -> Self {
        let site = Site::new();
        let address = ports::free();
        let mut command = Command::new(server);
        command.arg(format!("-port={}", address.port()));
        let (url, trust) = if tls {
            command.arg("-use_tls");
            command.arg(flag("-tls_cert_file", &site.ecdsa.cert)).arg(flag("-tls_key_file", &site.ecdsa.key));
            (format!("https://{HOST}:{}", address.port()), format!("[upstream.tls]\nca = {:?}\n", site.ca))
        } else {
            (format!("http://{address}"), String::new())
        };
        let mut server = Server::start(command, site.path());
        server.wait_until(|| TcpStream::connect(address).is_ok());
        let rest = format!(
            "[[host]]\nnames = [\"*\"]\nupstream = \"grpc\"\n{host}\n\
             [[upstream]]\nname = \"grpc\"\nservers = {url:?}\nhttp = \"2\"\n{trust}"
        );
        let gateway = Listening { lanes, rest: &rest, ..Listening::default() }.start(&site).0;
        Self { client, gateway, server, site }
    }

    /// Runs a case; the error is what the client said.
    fn case(&self, name: &str) -> Result<(), String> {
        let mut command = Command::new(&self.client);
        command.args(["-use_tls", "-use_test_ca"]).arg(flag("-ca_file", &self.site.ca));
        command.arg(format!("-server_host={}", self.gateway.address.ip()));
        command.arg(format!("-server_port={}", self.gateway.address.port()));
        command.arg(format!("-server_host_override={HOST}"));
        // Ten times the limits that the soak cases have otherwise, for busy machines.
        command.args(["-soak_per_iteration_max_acceptable_latency_ms=10000", "-soak_overall_timeout_seconds=60"]);
        command.arg(format!("-service_config_json={BALANCER}")).arg(format!("-test_case={name}"));
        command.env("GRPC_GO_LOG_SEVERITY_LEVEL", "info");
        // No proxy of the environment's.
        for name in ["https_proxy", "http_proxy", "HTTPS_PROXY", "HTTP_PROXY"] {
            command.env_remove(name);
        }
        let said = Said::from(run(command.env("no_proxy", "*"), b""));
        if said.code == Some(0) { Ok(()) } else { Err(said.all()) }
    }

    /// Runs all cases, and fails with all that have failed.
    #[track_caller]
    fn all_cases(&self) {
        let failed = |name: &&str| self.case(name).err().map(|said| format!("{name}: {said}"));
        let failed: Vec<String> = CASES.iter().filter_map(failed).collect();
        assert!(failed.is_empty(), "{}\n{}\n{}", failed.join("\n"), self.server.log(), self.gateway.metrics());
        assert_eq!(floods(&self.gateway), 0.0);
        for name in ["sealane_http2_upstream_limits_total", "sealane_server_failures_total"] {
            assert_eq!(self.gateway.metric(name), Some(0.0), "{name}: {}", self.gateway.metrics());
        }
    }
}

fn flag(name: &str, file: &Path) -> String {
    format!("{name}={}", file.display())
}

/// What the client is able to check is what these tests run: a new version may have more.
#[test]
fn the_client_has_no_other_cases() {
    let (client, _) = programs!();
    let said = Said::from(run(Command::new(client).arg("-help"), b"")).all();
    let (_, list) = said.split_once("Valid options are:").expect("the client's help lists its cases");
    let names: Vec<&str> = list.lines().skip(1).map_while(|line| Some(line.split_once(':')?.0.trim())).collect();
    assert!(names.len() > 20, "{said}");
    for name in names {
        assert!(CASES.contains(&name) || CLOUD.contains(&name) || name == UNNAMED, "{name} is not run");
    }
}

#[test]
fn all_cases_pass_before_a_server_of_http2_by_prior_knowledge() {
    Fixture::start(programs!(), 1, false, "").all_cases();
}

#[test]
fn all_cases_pass_before_a_server_of_http2_under_tls() {
    Fixture::start(programs!(), 2, true, "").all_cases();
}

/// What a gateway takes away is missed: the cases are able to fail.
#[test]
fn a_header_that_the_gateway_removes_is_missed() {
    let host = "request_headers = { remove = [\"X-Grpc-Test-Echo-Initial\"] }";
    let fixture = Fixture::start(programs!(), 1, false, host);
    assert_eq!(fixture.case("empty_unary"), Ok(()));
    let said = fixture.case("custom_metadata").expect_err("the case needs the header");
    assert!(said.contains("Expected exactly one header"), "{said}");
}
