//! The watch against recorded answers of an API server.

use super::*;
use sealane_kube_translate::objects::Name;
use serde_json::json;
use std::sync::Mutex;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;

/// An answer: the beginning of the path and query that it is for, the status, and the body.
type Answer = (&'static str, u16, String);

/// Gives the answers one after the other, and then waits. Returns the client, and the targets that it asked for.
async fn server(answers: Vec<Answer>) -> (Client, Arc<Mutex<Vec<String>>>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let asked = Arc::new(Mutex::new(Vec::new()));
    let log = asked.clone();
    tokio::spawn(async move {
        for (expected, status, body) in answers {
            let (mut stream, _) = listener.accept().await.unwrap();
            let mut head = Vec::new();
            while !head.ends_with(b"\r\n\r\n") {
                head.push(stream.read_u8().await.unwrap());
            }
            let head = String::from_utf8(head).unwrap();
            let target = head.split(' ').nth(1).unwrap().to_owned();
            assert!(target.starts_with(expected), "{target} instead of {expected}");
            log.lock().unwrap().push(target);
            // The end of the body is the end of the connection, as when a watch ends.
            let head = format!("HTTP/1.1 {status} X\r\ncontent-type: application/json\r\nconnection: close\r\n\r\n");
            stream.write_all(head.as_bytes()).await.unwrap();
            stream.write_all(body.as_bytes()).await.unwrap();
        }
        std::future::pending::<()>().await;
    });
    let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
    let config = kube::Config::new(format!("http://{address}").parse().unwrap());
    (Client::try_from(config).unwrap(), asked)
}

fn service(name: &str, version: &str) -> Value {
    json!({ "apiVersion": "v1", "kind": "Service", "metadata": { "name": name, "namespace": "n", "resourceVersion": version } })
}

fn page(items: Vec<Value>, version: &str, next: &str) -> String {
    let metadata = json!({ "resourceVersion": version, "continue": next });
    json!({ "apiVersion": "v1", "kind": "ServiceList", "metadata": metadata, "items": items }).to_string()
}

fn event(kind: &str, object: Value) -> String {
    format!("{}\n", json!({ "type": kind, "object": object }))
}

fn failure(code: u16) -> Value {
    json!({ "apiVersion": "v1", "kind": "Status", "metadata": {}, "status": "Failure", "message": "m", "reason": "r", "code": code })
}

fn names(store: &Store) -> Vec<String> {
    store.lock().world.services.keys().map(|name| name.name.clone()).collect()
}

#[tokio::test]
async fn pages_events_and_a_version_that_is_too_old() {
    let bookmark = json!({ "apiVersion": "v1", "kind": "Service", "metadata": { "resourceVersion": "9" } });
    let first = [
        event("ADDED", service("c", "6")),
        event("DELETED", service("a", "7")),
        event("MODIFIED", service("b", "8")),
        event("BOOKMARK", bookmark),
    ];
    let answers = vec![
        ("/api/v1/services?", 200, page(vec![service("a", "1")], "5", "token")),
        ("/api/v1/services?", 200, page(vec![service("b", "2")], "5", "")),
        ("/api/v1/services?", 200, first.concat()),
        ("/api/v1/services?", 200, event("ERROR", failure(410))),
        ("/api/v1/services?", 200, page(vec![service("d", "20")], "21", "")),
        ("/api/v1/services?", 500, failure(500).to_string()),
    ];
    let (client, asked) = server(answers).await;
    let (store, metrics) = (Store::default(), Metrics::default());
    let mut pause = Duration::from_secs(8);
    assert!(follow(&client, Kind::Service, &store, &metrics, &mut pause).await.unwrap());
    assert_eq!(names(&store), ["b", "c"]);
    assert_eq!(pause, Duration::from_secs(1));
    // The list replaces what was known; then the watch fails.
    let failed = follow(&client, Kind::Service, &store, &metrics, &mut pause).await.unwrap_err();
    assert_eq!(told(&failed), "m (500)");
    assert_eq!(names(&store), ["d"]);
    let asked = asked.lock().unwrap().clone();
    let has = |at: usize, text: &str| asked[at].contains(text);
    assert!(has(0, "limit=500") && !has(0, "watch=true"));
    assert!(has(1, "continue=token"));
    assert!(has(2, "watch=true") && has(2, "resourceVersion=5") && has(2, "allowWatchBookmarks=true"));
    // From the bookmark, not from the last object.
    assert!(has(3, "resourceVersion=9"), "{}", asked[3]);
    assert!(has(5, "resourceVersion=21"));
}

#[tokio::test]
async fn objects_stay_while_a_definition_is_not_loaded() {
    let versions = json!([{ "name": "v1", "served": true }]);
    let definition = json!({
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": { "name": "httproutes.gateway.networking.k8s.io" },
        "spec": { "versions": versions },
    });
    let routes = "/apis/gateway.networking.k8s.io/v1/httproutes?";
    let definitions = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/httproutes.gateway.networking.k8s.io";
    let answers = vec![
        (routes, 404, "404 page not found\n".to_owned()),
        (definitions, 200, definition.to_string()),
        (routes, 404, "404 page not found\n".to_owned()),
        (definitions, 404, failure(404).to_string()),
    ];
    let (client, _) = server(answers).await;
    let (store, metrics) = (Store::default(), Metrics::default());
    let mut route = json!({ "metadata": { "name": "r", "namespace": "n" }, "spec": {} });
    store.insert(Kind::HttpRoute, "v1", &mut route).unwrap();
    let mut pause = Duration::from_secs(1);
    for is_there in [true, false] {
        assert!(!follow(&client, Kind::HttpRoute, &store, &metrics, &mut pause).await.unwrap());
        assert_eq!(is_defined(&client, Kind::HttpRoute).await.unwrap(), is_there);
    }
    assert!(store.lock().world.http_routes.contains_key(&Name::new("n", "r")));
}
