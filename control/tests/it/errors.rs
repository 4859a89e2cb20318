//! What a person reads when the file is wrong.

use super::files::Folder;

#[test]
fn every_mistake_is_reported_at_once() {
    let folder = Folder::new();
    folder.certificate("a", &["a.example"]);
    let report = folder.report(
        r#"drain_timeout = 30
lane = 4

[limits]
header_timeout = "10"
max_body_size = "16MB"
max_connections = 0

[[listener]]
adress = ":443"

[[listener]]
address = "localhost:8443"
trust_forwarded = "on"
[listener.tls]
preset = "modren"
versions = ["1.1"]
certificates = [{ cert = "certs/a.pem", key = "certs/b.key" }]

[[host]]
names = ["a.example", "b.example:80"]
upstream = "ap"

[[host]]
names = ["c.example"]
to = ["http://127.0.0.1:3000/app"]
respond = { status = 99 }

[[upstream]]
name = "app"
servers = ["http://127.0.0.1:3000", "https://127.0.0.1:3001"]
"#,
    );
    assert_eq!(
        report,
        r#"sealane.toml:1:17: error: "drain_timeout" has no unit
  |
1 | drain_timeout = 30
  |                 ^^
  help: write drain_timeout = "30s" for seconds, "30ms" for milliseconds
sealane.toml:2:1: error: unknown setting "lane" at the top level
  |
2 | lane = 4
  | ^^^^
  help: did you mean "lanes"?
"#
    );
}
