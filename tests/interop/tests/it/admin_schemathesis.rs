//! Schemathesis, which makes requests out of an OpenAPI document, against the API of a running gateway: every response is one that the
//! document describes.

use crate::admin_api::{for_operators_with, over_socket};
use sealane_interop::backend::Backend;
use sealane_interop::site::{HOST, Site};
use sealane_interop::{peers, process, skip};
use std::path::Path;
use std::process::Command;
use std::time::Duration;

/// Pinned, so that a new release cannot turn our test red.
const PACKAGE: &str = "schemathesis==4.32.5";
/// Test cases of a kind for each endpoint.
const EXAMPLES: &str = "15";
/// A run takes a minute on an idle machine.
const LIMIT: Duration = Duration::from_secs(900);

/// What it must know of our media types: a text is sent as it is.
const HOOKS: &str = "\
import schemathesis

@schemathesis.serializer('application/toml', 'application/x-pem-file')
def text(ctx, value):
    return value if isinstance(value, bytes) else str(value).encode('utf-8', 'surrogatepass')
";

/// The statuses of refusals. It does not expect 412 and 428, by which we refuse requests with another If-Match, or with none.
const CONFIGURATION: &str = "\
[checks]
negative_data_rejection.expected-statuses = [400, 403, 404, 405, 408, 409, 412, 413, 415, 422, 428]
missing_required_header.expected-statuses = [400, 403, 415, 422, 428]
";

#[test]
fn schemathesis_gets_only_responses_that_the_document_describes() {
    let python = match peers::venv("interop-schemathesis", &[PACKAGE]) {
        Ok(python) => python,
        Err(why) => skip!("{why}"),
    };
    let site = Site::new();
    let backend = Backend::saying("hello");
    let storage = format!("storage = \"{}\"\n", site.path().join("api").display());
    let mut running = for_operators_with(&site, &site.ca, &backend, &storage);
    let alice = site.issue("alice", &["alice.example.test"]);
    site.file("hooks.py", HOOKS);
    site.file("schemathesis.toml", CONFIGURATION);
    let document = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/reference/openapi.json");
    let program = python.parent().expect("it is in a folder").join("schemathesis");
    let mut command = Command::new(program);
    // In a folder of its own: its database of examples would make a run depend on the one before.
    command.current_dir(site.path()).env("SCHEMATHESIS_HOOKS", "hooks").env("PYTHONPATH", site.path());
    command.arg("run").arg(document).args(["--url", &format!("https://{HOST}:{}", running.gateway.admin.port())]);
    command.arg("--tls-verify").arg(&site.ca).arg("--request-cert").arg(&alice.cert);
    command.arg("--request-cert-key").arg(&alice.key);
    // These end or replace the process; a recording lasts as long as it is told to.
    for path in ["/v1/drain", "/v1/upgrade", "/v1/record"] {
        command.args(["--exclude-path", path]);
    }
    // With several workers, its coverage phase fails in Python's parser now and then.
    command.args(["--max-examples", EXAMPLES, "--seed", "1", "--workers", "1", "--request-timeout", "60"]);
    command.args(["--continue-on-failure", "--no-shrink", "--warnings", "off", "--suppress-health-check", "all"]);
    // A schema says of a text neither that it is a certificate nor that it is a configuration.
    command.args(["--checks", "all", "--exclude-checks", "positive_data_acceptance"]);
    let said = peers::Said::from(process::run_within(&mut command, b"", LIMIT));
    // An error of its own prints all of its code.
    let told: String = said.all().lines().map(|line| line.chars().take(300).collect::<String>() + "\n").collect();
    assert_eq!(said.code, Some(0), "{told}");
    assert!(told.lines().any(|line| line.contains("generated") && line.contains("passed")), "it tests nothing: {told}");
    assert!(running.gateway.server.running());
    assert_eq!(over_socket(&running.socket, "GET", "/healthz", &[], "").status, 200);
}
