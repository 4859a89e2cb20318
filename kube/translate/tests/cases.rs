//! Translates the objects of each folder in `tests/cases`, and compares the configuration and the statuses with the files beside them.
//!
//! With the environment variable `UPDATE=1`, the files are written. With `SEALANE_BIN`, this program checks each configuration.

use sealane_kube_translate::objects::{Condition, Kind, Name, ObjectRef};
use sealane_kube_translate::status::Status;
use sealane_kube_translate::toml::Table;
use sealane_kube_translate::{FEATURES, Outcome, Ports, Settings, Support, World, annotations, model, translate};
use serde_json::{Value, json};
use std::fmt::Write;
use std::path::Path;
use std::process::Command;

const BASE: &str = "[admin]\nlisten = \"127.0.0.1:9901\"\n\n[[listener]]\naddress = \":8081\"\n\n[[host]]\nnames = [\"*\"]\n\
                    listeners = [\":8081\"]\nrespond = { status = 200 }\n";

fn settings(case: &str) -> Settings {
    let ports = match case {
        "services" => Ports::Services { first: 20000, last: 20003 },
        _ => Ports::Direct,
    };
    Settings {
        gateway_controller: "sealane.github.io/gateway".to_owned(),
        ingress_controller: "sealane.github.io/ingress".to_owned(),
        ports,
        reserved: [8081, 9901, 9902].into(),
        namespace: "sealane".to_owned(),
        addresses: vec!["192.0.2.1".to_owned()],
        ingress_ports: (8080, 8443),
        ingress_public_port: 443,
        ingress_service: Some(Name::new("sealane", "sealane-ingress")),
        zone: Some("z1".to_owned()),
        http3: case == "services",
        listener: Table::default(),
        base: BASE.to_owned(),
    }
}

fn world(text: &str) -> World {
    world_of(&serde_saphyr::from_multiple::<Value>(text).expect("the objects are YAML"))
}

fn world_of(objects: &[Value]) -> World {
    let mut world = World::default();
    for object in objects {
        let (group, _) = object["apiVersion"].as_str().unwrap().rsplit_once('/').unwrap_or(("", ""));
        let kind = Kind::of(group, object["kind"].as_str().unwrap()).expect("a kind that is known");
        // What cannot be read is part of a case.
        let _ = world.insert(kind, object);
    }
    world
}

fn conditions(out: &mut String, indent: &str, list: &[Condition]) {
    for c in list {
        let message = if c.message.is_empty() { String::new() } else { format!(": {}", c.message) };
        writeln!(out, "{indent}{}={} {} ({}){message}", c.kind, c.status, c.reason, c.observed_generation).unwrap();
    }
}

fn shown(outcome: &Outcome) -> String {
    let mut out = String::new();
    for (object, status) in &outcome.statuses {
        writeln!(out, "{object}").unwrap();
        match status {
            Status::Class { conditions: list, .. } => conditions(&mut out, "  ", list),
            Status::Gateway { conditions: list, addresses, listeners } => {
                conditions(&mut out, "  ", list);
                for address in addresses {
                    writeln!(out, "  address {}", address.value).unwrap();
                }
                for l in listeners {
                    let kinds: Vec<&str> = l.supported_kinds.iter().map(|k| k.kind.as_str()).collect();
                    writeln!(out, "  listener {}: {} routes, kinds {}", l.name, l.attached_routes, kinds.join(" "))
                        .unwrap();
                    conditions(&mut out, "    ", &l.conditions);
                }
            }
            Status::Route { parents } => {
                for (parent, list) in parents {
                    let section = parent.section_name.as_deref().unwrap_or("*");
                    writeln!(out, "  parent {} {section}", parent.name).unwrap();
                    conditions(&mut out, "    ", list);
                }
            }
            Status::Policy { ancestors } => {
                for (gateway, list) in ancestors {
                    writeln!(out, "  ancestor {gateway}").unwrap();
                    conditions(&mut out, "    ", list);
                }
            }
            Status::Ingress { addresses } => {
                for a in addresses {
                    writeln!(out, "  address {}{}", a.ip, a.hostname).unwrap();
                }
            }
        }
    }
    for service in &outcome.services {
        writeln!(out, "Service {} for {}: {:?}", service.name, service.gateway, service.ports).unwrap();
        writeln!(out, "  labels {:?}\n  annotations {:?}", service.labels, service.annotations).unwrap();
    }
    for event in &outcome.events {
        writeln!(out, "Event {} {}: {}", event.object, event.reason, event.message).unwrap();
    }
    out
}

fn compare(file: &Path, text: &str) {
    if std::env::var_os("UPDATE").is_some() {
        std::fs::write(file, text).unwrap();
    }
    let expected = std::fs::read_to_string(file).unwrap_or_default();
    let line = expected.lines().zip(text.lines()).position(|(a, b)| a != b);
    let line = line.unwrap_or_else(|| expected.lines().count().min(text.lines().count()));
    assert!(
        expected == text,
        "{} differs at line {}: expected {:?}, got {:?}",
        file.display(),
        line + 1,
        expected.lines().nth(line),
        text.lines().nth(line)
    );
}

/// Writes a configuration with its files, and checks it with the gateway. Certificates of the cases have keys that belong to them.
fn check_with_gateway(program: &std::ffi::OsStr, outcome: &Outcome) {
    let folder = tempfile::tempdir().unwrap();
    std::fs::create_dir(folder.path().join(model::FILES)).unwrap();
    for (name, content) in &outcome.rendered.files {
        std::fs::write(folder.path().join(model::FILES).join(name), content).unwrap();
    }
    let file = folder.path().join("sealane.toml");
    std::fs::write(&file, &outcome.rendered.toml).unwrap();
    let output = Command::new(program).args(["check", "--json", "-c"]).arg(&file).output().unwrap();
    let told = format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{told}\n{}", outcome.rendered.toml);
}

#[test]
fn cases() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/cases");
    let mut names: Vec<_> = std::fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    names.sort();
    assert!(names.len() >= 8, "the cases are in {}", folder.display());
    let gateway = std::env::var_os("SEALANE_BIN");
    if gateway.is_none() {
        println!("SEALANE_BIN is not set: the configurations are not checked by the gateway");
    }
    for case in names {
        let name = case.file_name().unwrap().to_str().unwrap().to_owned();
        let text = std::fs::read_to_string(case.join("objects.yaml")).unwrap();
        let (world, settings) = (world(&text), settings(&name));
        let outcome = translate(&world, &settings);
        compare(&case.join("sealane.toml"), &outcome.rendered.toml);
        compare(&case.join("status.txt"), &shown(&outcome));
        assert_eq!(translate(&world, &settings).rendered.toml, outcome.rendered.toml, "{name}: not deterministic");
        if let Some(program) = &gateway {
            check_with_gateway(program, &outcome);
        }
    }
}

/// A Gateway that the gateway refuses is not served, and keeps its Service: its address would change, and the next translation, which does
/// not know yet that it is refused, would create the Service again.
#[test]
fn a_gateway_that_is_refused_keeps_its_service() {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/cases/services/objects.yaml");
    let mut world = world(&std::fs::read_to_string(file).unwrap());
    let before = translate(&world, &settings("services"));
    assert!(before.rendered.toml.contains("address = \":20002\""));
    let gateway = ObjectRef { kind: Kind::Gateway, name: Name::new("infra", "recorded") };
    world.refused.insert(gateway.clone(), "the gateway refuses it".to_owned());
    let after = translate(&world, &settings("services"));
    assert_eq!(after.services, before.services);
    assert!(!after.rendered.toml.contains("address = \":20002\""));
    let Status::Gateway { conditions, .. } = &after.statuses[&gateway] else { panic!("it is a Gateway") };
    assert!(conditions.iter().all(|condition| condition.status == "False"), "{conditions:?}");
}

/// A Service `s` with one endpoint.
fn service(namespace: &str, address: &str) -> [Value; 2] {
    let labels = json!({ "kubernetes.io/service-name": "s" });
    [
        json!({
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": { "name": "s", "namespace": namespace },
            "spec": { "type": "ClusterIP", "ports": [{ "port": 80 }] },
        }),
        json!({
            "apiVersion": "discovery.k8s.io/v1",
            "kind": "EndpointSlice",
            "metadata": { "name": "s-1", "namespace": namespace, "labels": labels },
            "addressType": "IPv4",
            "endpoints": [{ "addresses": [address] }],
            "ports": [{ "port": 8080 }],
        }),
    ]
}

/// An Ingress for all paths of a host. Later years are younger.
fn ingress(namespace: &str, year: u32, host: &str, tls: &[&str], annotations: &[(&str, &str)]) -> Value {
    let annotations: serde_json::Map<String, Value> = annotations
        .iter()
        .map(|(name, value)| (format!("nginx.ingress.kubernetes.io/{name}"), Value::from(*value)))
        .collect();
    let backend = json!({ "service": { "name": "s", "port": { "number": 80 } } });
    json!({
        "apiVersion": "networking.k8s.io/v1",
        "kind": "Ingress",
        "metadata": {
            "name": "i",
            "namespace": namespace,
            "creationTimestamp": format!("{year}-01-01T00:00:00Z"),
            "annotations": annotations,
        },
        "spec": {
            "ingressClassName": "sealane",
            "tls": tls.iter().map(|host| json!({ "hosts": [host] })).collect::<Vec<Value>>(),
            "rules": [{ "host": host, "http": { "paths": [{ "path": "/", "pathType": "Prefix", "backend": backend }] } }],
        },
    })
}

/// What an older Ingress of namespace `a` and an Ingress of namespace `b` result in.
fn two_ingresses(b: Value) -> Outcome {
    let class = json!({
        "apiVersion": "networking.k8s.io/v1",
        "kind": "IngressClass",
        "metadata": { "name": "sealane" },
        "spec": { "controller": "sealane.github.io/ingress" },
    });
    let a = ingress("a", 2020, "www.example.com", &[], &[]);
    let objects = [vec![class, a, b], service("a", "10.0.0.1").to_vec(), service("b", "10.0.0.2").to_vec()].concat();
    translate(&world_of(&objects), &settings("ingress"))
}

/// A user who may write Ingresses in one namespace gets no requests for a path that another namespace has.
#[test]
fn a_younger_ingress_takes_nothing_from_another_namespace() {
    let www = "www.example.com";
    for (what, b) in [
        ("canary", ingress("b", 2021, www, &[], &[("canary", "true"), ("canary-weight", "100")])),
        ("header", ingress("b", 2021, www, &[], &[("canary", "true"), ("canary-by-header", "x")])),
        ("the same path", ingress("b", 2021, www, &[], &[])),
        ("redirects to https", ingress("b", 2021, www, &[www], &[])),
        ("redirects to another host", ingress("b", 2021, "example.com", &[], &[("from-to-www-redirect", "true")])),
        ("an alias", ingress("b", 2021, "example.com", &[], &[("server-alias", www)])),
    ] {
        let toml = two_ingresses(b).rendered.toml;
        let hosts: Vec<&str> = toml.split("[[host]]").filter(|host| host.contains("\"www.example.com\"")).collect();
        assert_eq!(hosts.len(), 1, "{what}\n{toml}");
        let host = hosts[0].split("[[upstream]]").next().unwrap();
        assert!(host.contains("upstream = \"a/s:80\""), "{what}\n{toml}");
        assert!(!host.contains("b/s:80") && !host.contains("redirect"), "{what}\n{toml}");
    }
    // An Ingress of the same namespace is a second version.
    let mut canary = ingress("a", 2021, www, &[], &[("canary", "true"), ("canary-weight", "100")]);
    canary["metadata"]["name"] = json!("second");
    canary["spec"]["rules"][0]["http"]["paths"][0]["backend"]["service"]["name"] = json!("none");
    let events = two_ingresses(canary).events;
    assert!(
        events.iter().any(|event| event.reason == "BadBackend" && event.object.name.name == "second"),
        "{events:?}"
    );
}

/// One object cannot fill the configuration that all objects share.
#[test]
fn objects_that_become_large_are_refused() {
    let aliases: Vec<String> = (0..5000).map(|at| format!("h{at}.example")).collect();
    let outcome = two_ingresses(ingress("b", 2021, "b.example", &[], &[("server-alias", &aliases.join(","))]));
    assert!(!outcome.rendered.toml.contains("h1.example") && outcome.rendered.toml.contains("www.example.com"));
    assert!(outcome.events.iter().any(|event| event.reason == "NotServed" && event.message.contains("configuration")));

    let headers: Vec<Value> =
        (0..16).map(|at| json!({ "name": format!("x-{at}"), "value": "v".repeat(4000) })).collect();
    let matches: Vec<Value> =
        (0..64).map(|at| json!({ "path": { "type": "Exact", "value": format!("/{at}") } })).collect();
    let names: Vec<String> = (0..16).map(|at| format!("h{at}.example")).collect();
    let filter = json!({ "type": "ResponseHeaderModifier", "responseHeaderModifier": { "set": headers } });
    let route = json!({
        "apiVersion": "gateway.networking.k8s.io/v1",
        "kind": "HTTPRoute",
        "metadata": { "name": "large", "namespace": "a" },
        "spec": {
            "parentRefs": [{ "name": "g" }],
            "hostnames": names,
            "rules": [{ "matches": matches, "filters": [filter], "backendRefs": [{ "name": "s", "port": 80 }] }],
        },
    });
    let toml = |route: &Value| translate(&gateway_world(std::slice::from_ref(route)), &settings("http")).rendered.toml;
    assert!(!toml(&route).contains("h1.example"));
    let mut smaller = route;
    smaller["spec"]["rules"][0]["filters"] = json!([]);
    assert!(toml(&smaller).contains("h1.example"));
}

/// Some objects with a Gateway `g` and a Service `s` in namespace `a`.
fn gateway_world(objects: &[Value]) -> World {
    let class = json!({
        "apiVersion": "gateway.networking.k8s.io/v1",
        "kind": "GatewayClass",
        "metadata": { "name": "sealane" },
        "spec": { "controllerName": "sealane.github.io/gateway" },
    });
    let gateway = json!({
        "apiVersion": "gateway.networking.k8s.io/v1",
        "kind": "Gateway",
        "metadata": { "name": "g", "namespace": "a" },
        "spec": { "gatewayClassName": "sealane", "listeners": [{ "name": "http", "port": 80, "protocol": "HTTP" }] },
    });
    world_of(&[&[class, gateway][..], &service("a", "10.0.0.1"), objects].concat())
}

fn route(namespace: &str, name: &str, rules: Value) -> Value {
    json!({
        "apiVersion": "gateway.networking.k8s.io/v1",
        "kind": "HTTPRoute",
        "metadata": { "name": name, "namespace": namespace },
        "spec": { "parentRefs": [{ "name": "g", "namespace": "a" }], "rules": rules },
    })
}

/// Expressions of a route that no listener takes do not count.
#[test]
fn routes_that_are_not_allowed_use_up_no_expressions() {
    let rule = |text: String| json!({ "matches": [{ "path": { "type": "RegularExpression", "value": text } }] });
    let many: Vec<Value> = (0..256).map(|at| rule(format!("/{at}"))).collect();
    let own = route("a", "own", json!([rule("/own.*".to_owned())]));
    let toml = |other: Value| translate(&gateway_world(&[own.clone(), other]), &settings("http")).rendered.toml;
    assert!(toml(route("0", "foreign", json!(many))).contains("/own.*"));
    // Its name comes first.
    assert!(!toml(route("a", "many", json!(many))).contains("/own.*"));
}

/// A Service whose policy cannot be read gets no requests in plain text.
#[test]
fn a_policy_that_cannot_be_read_refuses_connections() {
    let forward = route("a", "r", json!([{ "backendRefs": [{ "name": "s", "port": 80 }] }]));
    let policy = json!({
        "apiVersion": "gateway.networking.k8s.io/v1",
        "kind": "BackendTLSPolicy",
        "metadata": { "name": "p", "namespace": "a" },
        "spec": {
            "targetRefs": [{ "group": "", "kind": "Service", "name": "s" }],
            "validation": { "hostname": "s.example", "wellKnownCACertificates": "System" },
            "somethingNew": true,
        },
    });
    let before = translate(&gateway_world(std::slice::from_ref(&forward)), &settings("http"));
    assert!(before.rendered.toml.contains("http://10.0.0.1:8080"));
    let after = translate(&gateway_world(&[forward, policy]), &settings("http"));
    assert!(!after.rendered.toml.contains("10.0.0.1"), "{}", after.rendered.toml);
    let object = ObjectRef { kind: Kind::BackendTlsPolicy, name: Name::new("a", "p") };
    let Status::Policy { ancestors } = &after.statuses[&object] else { panic!("it is a policy") };
    assert!(ancestors[0].1.iter().any(|condition| condition.kind == "Accepted" && condition.status == "False"));
}

/// The Secret of a certificate may belong to another user than the Gateway, which serves others, too.
#[test]
fn a_certificate_that_is_refused_stops_only_its_listener() {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/cases/tls/objects.yaml");
    let mut world = world(&std::fs::read_to_string(file).unwrap());
    let secret = ObjectRef { kind: Kind::Secret, name: Name::new("certs", "b") };
    let before = translate(&world, &settings("tls")).rendered;
    let mut lines = 1..=before.toml.lines().count();
    assert!(lines.any(|line| before.origins.of_line(line) == Some(&secret)));
    assert!(before.toml.contains("\"b.example.com\""));
    world.refused.insert(secret, "the gateway refuses it".to_owned());
    let after = translate(&world, &settings("tls"));
    assert!(!after.rendered.toml.contains("\"b.example.com\"") && after.rendered.toml.contains("\"a.example.com\""));
    let gateway = ObjectRef { kind: Kind::Gateway, name: Name::new("infra", "web") };
    let Status::Gateway { conditions, listeners, .. } = &after.statuses[&gateway] else { panic!("it is a Gateway") };
    assert!(conditions.iter().all(|condition| condition.status == "True"), "{conditions:?}");
    let granted = listeners.iter().find(|listener| listener.name == "granted").unwrap();
    let resolved = granted.conditions.iter().find(|condition| condition.kind == "ResolvedRefs").unwrap();
    assert_eq!((resolved.status.as_str(), resolved.reason.as_str()), ("False", "InvalidCertificateRef"));
}

/// What the reference says, section by section, is what the code does.
#[test]
fn the_reference_lists_every_annotation_and_feature() {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/reference/kubernetes.md");
    let text = std::fs::read_to_string(file).unwrap();
    let section = |title: &str| {
        let (_, rest) = text.split_once(&format!("\n### {title}\n")).expect(title);
        rest.split("\n### ").next().unwrap_or_default().to_owned()
    };
    let sections = [
        (Support::Translated, section("Translated")),
        (Support::NoEffect, section("Without effect, not reported")),
        (Support::Ignored, section("Ignored, reported")),
        (Support::Refused, section("Refused")),
    ];
    for (name, support) in annotations() {
        for (of, section) in &sections {
            let is_listed = section.contains(&format!("| `{name}` |"))
                || [format!("`{name}`,"), format!("`{name}`.")].iter().any(|entry| section.contains(entry.as_str()));
            assert_eq!(is_listed, support == *of, "{name} in the section for {of:?}");
        }
    }
    let (_, features) = text.split_once("\n## Gateway API\n").unwrap();
    let features = features.split("**Conformance.**").next().unwrap();
    let listed: Vec<&str> = features.split('`').skip(1).step_by(2).filter(|word| !word.contains(['.', ' '])).collect();
    let expected: Vec<&str> = listed.iter().copied().filter(|word| *word != "controllerName").collect();
    assert_eq!(expected, FEATURES);
}

/// One user's text must not reach another place of the configuration, whatever it contains.
#[test]
fn hostile_texts_do_not_change_the_structure() {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/cases/http/objects.yaml");
    let text = std::fs::read_to_string(file).unwrap();
    let plain = world(&text);
    let before = translate(&plain, &settings("http")).rendered.toml;
    let sections = |toml: &str| toml.lines().filter(|line| line.starts_with('[')).count();
    for hostile in
        ["\"\n[[listener]]\naddress = \":1\"\n", "${file:/etc/passwd}", "{client_address}", "\\\"", "'''", "a\u{0}"]
    {
        let mut world = World::default();
        for mut object in serde_saphyr::from_multiple::<Value>(&text).unwrap() {
            let (group, _) = object["apiVersion"].as_str().unwrap().rsplit_once('/').unwrap_or(("", ""));
            let kind = Kind::of(group, object["kind"].as_str().unwrap()).unwrap();
            if kind == Kind::HttpRoute {
                replace_texts(&mut object["spec"]["rules"], hostile);
            }
            let _ = world.insert(kind, &object);
        }
        let toml = translate(&world, &settings("http")).rendered.toml;
        assert!(sections(&toml) <= sections(&before), "{hostile:?}\n{toml}");
        assert!(!toml.contains("\naddress = \":1\"") && !toml.replace("$${", "").contains("${"), "{hostile:?}\n{toml}");
    }
}

/// Replaces values of headers and paths, but not what decides the kind of a filter or where requests go.
fn replace_texts(value: &mut Value, text: &str) {
    match value {
        Value::Array(list) => list.iter_mut().for_each(|v| replace_texts(v, text)),
        Value::Object(map) => map
            .iter_mut()
            .filter(|(key, _)| !["type", "backendRefs"].contains(&key.as_str()))
            .for_each(|(_, v)| match v {
                Value::String(s) => text.clone_into(s),
                v => replace_texts(v, text),
            }),
        _ => {}
    }
}
