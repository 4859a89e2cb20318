//! What the status page is told, and that it shows all names as text, also those that a client chose.

use crate::operating::{Operated, order};
use sealane_interop::backend::{Backend, ok};
use sealane_interop::gateway::{configured, run};
use sealane_interop::http::Wire;
use sealane_interop::process;
use sealane_interop::site::{HOST, Site};
use sealane_interop::{client, eventually, need, ports};
use serde_json::Value;
use std::net::SocketAddr;
use std::path::Path;
use std::process::Command;
use std::time::{SystemTime, UNIX_EPOCH};

/// What the admin listener answers, and its status.
fn ask(admin: SocketAddr, path: &str) -> (u16, String, String) {
    let mut wire = Wire::new(client::tcp(admin));
    wire.send(format!("GET {path} HTTP/1.1\r\nHost: {admin}\r\nConnection: close\r\n\r\n")).expect("it reads");
    let answer = wire.response("GET").expect("it answers");
    (answer.status(), answer.header("content-security-policy").unwrap_or_default().to_owned(), answer.text())
}

fn json(admin: SocketAddr, path: &str) -> Value {
    let (status, _, text) = ask(admin, path);
    assert_eq!(status, 200, "{text}");
    serde_json::from_str(&text).expect("it is JSON")
}

/// The page as a browser has made it, without its script, and what the browser says.
fn dumped(site: &Site, chromium: &Path, admin: SocketAddr) -> (String, String) {
    let mut command = Command::new(chromium);
    command.args(["--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"]);
    command.args(["--virtual-time-budget=6000", "--dump-dom"]);
    command.arg(format!("--user-data-dir={}", site.path().join("browser").display()));
    command.arg(format!("http://{admin}/"));
    let said = process::run(&mut command, b"");
    let dom = String::from_utf8_lossy(&said.stdout);
    let dom = dom.split("<script>").next().unwrap_or_default().to_owned();
    (dom, String::from_utf8_lossy(&said.stderr).into_owned())
}

/// An authority that cannot be reached: the status and the page say why, and when the next attempt is made.
#[test]
fn the_page_says_how_automatic_certificates_stand() {
    let site = Site::new();
    let (listen, dead, storage) = (ports::free(), ports::free(), site.path().join("acme"));
    let file = |admin: &str| {
        format!(
            "{admin}\n[acme]\ndirectory = \"https://{dead}/dir\"\nca = {:?}\nstorage = {storage:?}\n\
             [[listener]]\naddress = \"{listen}\"\n[listener.tls]\ncertificates = \"auto\"\n\
             [[host]]\nnames = [\"www.acme.test\"]\nrespond = {{}}\n",
            site.ca
        )
    };
    let running = Operated::start(&site, 1, file, listen);
    let admin = running.gateway.admin;
    let certificate = || json(admin, "/v1/status")["certificates"][0].clone();
    let why = |certificate: &Value| certificate["automatic"]["last_error"].as_str().unwrap_or_default().to_owned();
    assert!(eventually(|| !why(&certificate()).is_empty()), "{}", running.gateway.server.log());
    let certificate = certificate();
    assert_eq!(certificate["self_signed"], true, "{certificate}");
    assert!(why(&certificate).contains(&dead.to_string()), "{certificate}");
    let now = SystemTime::now().duration_since(UNIX_EPOCH).expect("it is after 1970").as_secs();
    let next = certificate["automatic"]["next"].as_u64().expect("there is a next attempt");
    assert!(next + 60 > now && next <= now + 120, "{next} is not one of the first minutes after {now}");
    let (dom, err) = dumped(&site, &need!("chromium"), admin);
    assert!(dom.contains("self-signed, until an authority has issued one; "), "{dom}\n{err}");
    assert!(dom.contains(&dead.to_string()) && dom.contains("next attempt in "), "{dom}\n{err}");
}

#[test]
fn what_was_measured_is_remembered() {
    let (site, backend) = (Site::new(), Backend::saying("hello"));
    let running = Operated::simple(&site, 1, ports::free(), &backend.url());
    let admin = running.gateway.admin;
    assert_eq!(running.get("/").text(), "hello");
    let requests = |history: &Value| -> f64 {
        history["heat"]["counts"]
            .as_array()
            .into_iter()
            .flatten()
            .flat_map(|column| column.as_array())
            .flatten()
            .filter_map(Value::as_f64)
            .sum()
    };
    let mut history = Value::Null;
    let has_it = || {
        let now = json(admin, "/v1/history?range=5m");
        let found = requests(&now) == 1.0;
        found.then_some(now)
    };
    assert!(eventually(|| has_it().map(|now| history = now).is_some()), "{}", json(admin, "/v1/history"));
    let at = history["at"].as_array().expect("points have times");
    assert!(history["step"] == 1 && at.len() <= 300);
    for (name, values) in history["series"].as_object().expect("series have names") {
        assert_eq!(values.as_array().map(Vec::len), Some(at.len()), "{name}");
    }
    // What is known already is not sent again.
    let last = at.last().and_then(Value::as_u64).expect("there is one");
    let newer = json(admin, &format!("/v1/history?range=5m&since={last}"));
    assert!(newer["at"].as_array().is_some_and(|at| at.iter().all(|at| at.as_u64() > Some(last))), "{newer}");
    assert_eq!(json(admin, "/v1/history?range=24h")["step"], 60);
    for bad in ["range=1y", "since=x", "range=5m&more=1"] {
        assert_eq!(ask(admin, &format!("/v1/history?{bad}")).0, 400, "{bad}");
    }
    let status = json(admin, "/v1/status");
    assert_eq!(status["places"][0]["requests"], 1, "{status}");
    assert!(status["places"][0]["p50"].as_f64().is_some_and(|seconds| seconds > 0.0));
}

#[test]
fn errors_have_their_reason_and_their_trace() {
    let (site, collector, backend) = (
        Site::new(),
        Backend::answering(|_| ok(b"")),
        Backend::answering(|_| b"HTTP/1.1 500 No\r\nContent-Length: 0\r\n\r\n".to_vec()),
    );
    let (cert, key, dead) = (&site.ecdsa.cert, &site.ecdsa.key, ports::free());
    let gateway = configured(
        &site,
        &format!(
            "lanes = 1\n[traces]\nendpoint = \"{}\"\n[admin]\nlisten = \"@ADMIN@\"\n[[listener]]\naddress = \"@ADDRESS@\"\n\
             [listener.tls]\ncertificates = {{ cert = {cert:?}, key = {key:?} }}\n[[host]]\nnames = [\"{HOST}\"]\n\
             upstream = \"gone\"\n[[host.route]]\npath = \"/own\"\nupstream = \"failing\"\n\
             [[upstream]]\nname = \"gone\"\nservers = [\"http://{dead}\"]\n\
             [[upstream]]\nname = \"failing\"\nservers = [{:?}]\n",
            collector.url(),
            backend.url()
        ),
    );
    assert_eq!((gateway.get("/<script>alert(1)</script>?secret=1").status(), gateway.get("/own").status()), (502, 500));
    let mut errors = Value::Null;
    assert!(eventually(|| {
        errors = json(gateway.admin, "/v1/status")["errors"].clone();
        errors.as_array().is_some_and(|errors| errors.len() == 2)
    }));
    // The newest first.
    let (own, gone) = (&errors[0], &errors[1]);
    assert_eq!((own["status"].as_u64(), gone["status"].as_u64()), (Some(500), Some(502)), "{errors}");
    assert_eq!((own["upstream"].as_str(), own["route"].as_str()), (Some("failing"), Some("/own")), "{errors}");
    assert_eq!(
        (gone["host"].as_str(), gone["server"].as_str()),
        (Some(HOST), Some(dead.to_string().as_str())),
        "{errors}"
    );
    assert_eq!(gone["why"], "it cannot be reached");
    for error in [own, gone] {
        let trace = error["trace"].as_str().unwrap_or_default();
        assert!(trace.len() == 32 && trace.bytes().all(|b| b.is_ascii_hexdigit()), "{error}");
        assert!(error["request"].as_str().is_some_and(|id| id.starts_with("0-")), "{error}");
    }
    // Nothing that a client has sent: the page can be read by all who reach the admin address.
    assert!(!errors.to_string().contains("script") && !errors.to_string().contains("secret"), "{errors}");
    // The upstream's server is told what the client is not: that it is one of a trace.
    let told = backend.last().header("traceparent").map(str::to_owned).expect("the server is told");
    assert!(told.contains(own["trace"].as_str().expect("a text")), "{told}");
}

#[test]
fn limits_that_refuse_are_told_in_words() {
    let site = Site::new();
    let (cert, key) = (&site.ecdsa.cert, &site.ecdsa.key);
    let gateway = configured(
        &site,
        &format!(
            "lanes = 1\n[admin]\nlisten = \"@ADMIN@\"\n[[listener]]\naddress = \"@ADDRESS@\"\n[listener.tls]\n\
             certificates = {{ cert = {cert:?}, key = {key:?} }}\n[[host]]\nnames = [\"*\"]\ndeny = [\"0.0.0.0/0\"]\nrespond = {{}}\n"
        ),
    );
    assert_eq!(gateway.get("/").status(), 403);
    let found = || {
        let status = json(gateway.admin, "/v1/status");
        let limits = status["limits"].as_array().cloned().unwrap_or_default();
        limits.iter().any(|limit| limit["what"] == "requests refused: allow or deny" && limit["total"] == 1)
    };
    assert!(eventually(found), "{}", json(gateway.admin, "/v1/status"));
}

#[test]
fn a_reload_shows_what_it_has_changed_without_secrets() {
    let (site, backend, listen) = (Site::new(), Backend::saying("hello"), ports::free());
    let file = |admin: &str, token: &str| {
        Operated::simple_file(&site, admin, listen, &backend.url())
            + &format!("response_headers = {{ set = {{ X-Token = \"{token}\" }} }}\n")
    };
    let running = Operated::start(&site, 1, |admin| file(admin, "first-secret"), listen);
    assert_eq!(running.status()["changes"], Value::Null);
    running.write(&(file(&running.admin_lines, "second-secret") + "[limits]\nidle_timeout = \"77s\"\n"));
    let done = order(&running.socket, "reload");
    assert!(done.is_ok(), "{done:?}");
    let status = running.status();
    let changes = &status["changes"];
    assert_eq!(changes["generation"], status["generation"], "{changes}");
    let lines: Vec<&str> = changes["lines"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
    assert!(lines.iter().any(|line| line.starts_with("~ limits.idle_timeout = ") && line.contains("77s")), "{lines:?}");
    assert!(!status.to_string().contains("-secret"), "{changes}");
    // Who can only reach the port does not read the configuration.
    let reduced = json(running.gateway.admin, "/v1/status");
    assert_eq!((&reduced["reduced"], &status["reduced"]), (&Value::Bool(true), &Value::Bool(false)));
    assert_eq!(reduced["changes"]["generation"], status["generation"], "{reduced}");
    assert_eq!(reduced["changes"]["lines"].as_array().map(Vec::len), Some(0), "{reduced}");
    let admin = running.gateway.admin.to_string();
    let said = run(["top", "--admin", &admin, "--rounds", "1", "--table", "changes"]);
    let text = String::from_utf8_lossy(&said.stdout).into_owned();
    assert!(text.contains("only over the admin socket") && !text.contains("77s"), "{text}");
}

/// A certificate's file and a line of a broken configuration have names that are HTML. They are shown as they are written.
#[test]
fn names_are_text_on_the_page_whatever_they_say() {
    let chromium = need!("chromium");
    let (site, backend, listen) = (Site::new(), Backend::saying("hello"), ports::free());
    let hostile = site.path().join("<img src=x onerror=document.title='owned'>&amp;.pem");
    std::fs::copy(&site.ecdsa.cert, &hostile).expect("the folder is ours");
    let file = |admin: &str| {
        format!(
            "{admin}[[listener]]\naddress = \"{listen}\"\n[listener.tls]\ncertificates = [{{ cert = {:?}, key = {:?} }}]\n\
             [[host]]\nnames = [\"*\"]\nto = [{:?}]\n",
            hostile,
            site.ecdsa.key,
            backend.url()
        )
    };
    let running = Operated::start(&site, 1, file, listen);
    assert_eq!(running.get("/<b>bold</b>?<i>").text(), "hello");
    let text = running.text();
    running.write("\"<script>document.title='owned'</script>\u{202e}\" = 1\n");
    order(&running.socket, "reload").expect_err("there is no such setting");
    running.write(&text);
    let (status, policy, _) = ask(running.gateway.admin, "/");
    assert_eq!(status, 200);
    assert!(
        policy.contains("script-src 'sha256-") && policy.contains("require-trusted-types-for 'script'"),
        "{policy}"
    );
    assert!(!policy.contains("unsafe"), "{policy}");
    let (dom, err) = dumped(&site, &chromium, running.gateway.admin);
    assert!(dom.contains("data-looks="), "{dom}\n{err}");
    assert!(dom.contains("<title>Sealane</title>") && !dom.contains("<img") && !dom.contains("<b>bold"), "{dom}");
    assert!(dom.contains("&lt;img src=x onerror=document.title='owned'&gt;&amp;amp;.pem"), "{dom}");
    assert!(dom.contains("&lt;script&gt;document.title='owned'&lt;/script&gt;"), "{dom}");
    // What would turn the order of the letters around is shown as a code.
    assert!(!dom.contains('\u{202e}'), "{dom}");
    // The page was not kept from running by its own policy.
    assert!(!err.contains("Content Security Policy"), "{err}");
}

#[test]
fn top_has_the_same_tables() {
    let (site, backend) = (Site::new(), Backend::saying("hello"));
    let running = Operated::simple(&site, 1, ports::free(), &backend.url());
    assert_eq!(running.get("/").text(), "hello");
    let socket = running.socket.display().to_string();
    let top = |arguments: &[&str]| {
        let said = run([&["top", "--socket", &socket, "--rounds", "1"], arguments].concat());
        assert!(said.status.success(), "{}", String::from_utf8_lossy(&said.stderr));
        String::from_utf8_lossy(&said.stdout).into_owned()
    };
    assert!(eventually(|| top(&["--table", "hosts"]).contains("per_second")));
    assert!(eventually(|| top(&["--table", "hosts", "--sort", "p99"])
        .lines()
        .any(|line| line.trim_start().starts_with('*'))));
    for (table, wanted) in [
        ("errors", "no request has got 5xx"),
        ("limits", "none of the limits that this table shows has refused a client"),
        ("certificates", "localhost"),
        ("servers", &backend.address.to_string()),
        ("tunnel", "no tunnel"),
        ("requests", "no open requests"),
        ("changes", "no reload has changed a setting"),
    ] {
        let text = top(&["--table", table]);
        assert!(text.contains(wanted), "{table}: {text}");
    }
    let said = run(["top", "--socket", &socket, "--rounds", "1", "--table", "hosts", "--sort", "nonsense"]);
    assert!(!said.status.success() && String::from_utf8_lossy(&said.stderr).contains("per_second"), "{said:?}");
}
