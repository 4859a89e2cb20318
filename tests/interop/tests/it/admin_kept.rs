//! Changes of single servers and certificates by the API that are kept: in the configuration's files, and in the folder of
//! certificates.

use crate::admin_api::{Reply, over_socket};
use crate::operating::{Operated, Other, order};
use sealane_interop::backend::Backend;
use sealane_interop::site::{HOST, Site};
use sealane_interop::{eventually, gateway, ports, skip};
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

const SERVERS: &str = "/v1/upstreams/app/servers";

fn change(running: &Operated, method: &str, path: &str, body: &Value) -> Reply {
    let body = if body.is_null() { String::new() } else { body.to_string() };
    over_socket(&running.socket, method, path, &[("Content-Type", "application/json")], &body)
}

fn read(running: &Operated, path: &str) -> Value {
    over_socket(&running.socket, "GET", path, &[], "").json()
}

/// Who answers twelve requests.
fn seen(running: &Operated) -> BTreeSet<String> {
    (0..12).map(|_| running.get("/").text()).collect()
}

fn names(names: &[&str]) -> BTreeSet<String> {
    names.iter().map(|name| (*name).to_owned()).collect()
}

/// A server as the API calls it.
fn name(backend: &Backend) -> String {
    backend.url().trim_start_matches("http://").to_owned()
}

/// A gateway whose host leads to the upstream "app", which is declared by `declaration`; `top` stands before everything.
fn declared(site: &Site, top: &str, declaration: &str) -> Operated {
    let listen = ports::free();
    let file = |admin: &str| {
        let text = Operated::simple_file(site, admin, listen, "");
        format!("{top}{}{declaration}", text.replace("to = [\"\"]\n", "upstream = \"app\"\n"))
    };
    Operated::start(site, 2, file, listen)
}

#[test]
fn a_change_of_a_server_that_is_kept_is_in_the_file() {
    let site = Site::new();
    let backends = [Backend::saying("one"), Backend::saying("two"), Backend::saying("three")];
    let [one, two, three] = [0, 1, 2].map(|n: usize| backends[n].url());
    let declaration = format!(
        "# The application\n[[upstream]] # of ours\nname   = 'app'\nservers = [\n    \"{one}\", # rack 1\n    # not rack 2\n]\nkeepalive = 7\n"
    );
    let running = declared(&site, "reload_on_change = true\n", &declaration);
    let file = site.path().join("sealane.toml");
    std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o640)).expect("it is ours");
    assert_eq!(over_socket(&running.socket, "POST", "/v1/reload", &[], "").status, 200);
    let before = running.text();
    let with = |servers: &str| {
        let begin = before.find("servers = [").expect("it is there");
        let end = begin + before[begin..].find("]\n").expect("it is there") + 1;
        format!("{}servers = {servers}{}", &before[..begin], &before[end..])
    };
    let keep = |path: &str| format!("{path}?keep=file");

    let added = change(&running, "POST", &keep(SERVERS), &json!({ "server": two, "weight": 3 }));
    assert_eq!((added.status, &added.json()["temporary"]), (201, &json!(false)), "{added:?}");
    let server = added.json()["servers"][0].clone();
    assert_eq!((&server["added"], &server["weight"]), (&json!(false), &json!(3)), "{server}");
    assert_eq!(
        running.text(),
        with(&format!("[\n    \"{one}\", # rack 1\n    # not rack 2\n    {{ url = \"{two}\", weight = 3 }},\n]"))
    );
    let meta = std::fs::metadata(&file).expect("it is there");
    assert_eq!((meta.mode() & 0o777, meta.uid()), (0o640, rustix::process::getuid().as_raw()));
    assert!(eventually(|| seen(&running) == names(&["one", "two"])), "the new server gets no requests");
    let configuration = read(&running, "/v1/config");
    assert_eq!((&configuration["temporary"], &configuration["not_in_file"]), (&json!(false), &json!([])));
    // What the gateway has written itself is no edit: no reload follows.
    let revision = configuration["revision"].clone();
    std::thread::sleep(std::time::Duration::from_secs(7));
    assert_eq!(read(&running, "/v1/config")["revision"], revision);

    // A temporary weight ends with the one that is kept.
    let (first, second) = (format!("{SERVERS}/{}", name(&backends[0])), format!("{SERVERS}/{}", name(&backends[1])));
    assert_eq!(change(&running, "PATCH", &first, &json!({ "weight": 9 })).status, 200);
    assert_eq!(read(&running, "/v1/status")["upstreams"][0]["servers"][0]["weight_is_set"], true);
    let patched = change(&running, "PATCH", &keep(&first), &json!({ "weight": 5, "drain": true }));
    let server = patched.json()["servers"][0].clone();
    assert_eq!((patched.status, &server["state"]), (200, &json!("draining")), "{patched:?}");
    assert_eq!(
        (&server["weight"], &server["weight_is_set"], &server["drain_is_set"]),
        (&json!(5), &json!(false), &json!(false))
    );
    let servers = format!(
        "[\n    {{ url = \"{one}\", weight = 5, drain = true }}, # rack 1\n    # not rack 2\n    {{ url = \"{two}\", weight = 3 }},\n]"
    );
    assert_eq!(running.text(), with(&servers));
    assert!(eventually(|| seen(&running) == names(&["two"])), "it is not drained");
    // Without keep=file, the end of the drain is temporary.
    assert_eq!(change(&running, "PATCH", &first, &json!({ "drain": false })).json()["temporary"], true);
    assert_eq!(read(&running, "/v1/status")["upstreams"][0]["servers"][0]["drain_is_set"], true);
    assert_eq!(change(&running, "PATCH", &first, &json!({ "drain": true })).status, 200);
    assert_eq!(read(&running, "/v1/status")["upstreams"][0]["servers"][0]["drain_is_set"], false);

    // A server that was added for a while is kept by adding it again.
    assert_eq!(change(&running, "POST", SERVERS, &json!({ "server": three })).json()["temporary"], true);
    let third = format!("{SERVERS}/{}", name(&backends[2]));
    assert!(change(&running, "PATCH", &keep(&third), &json!({ "weight": 2 })).is_problem(409));
    assert_eq!(change(&running, "POST", &keep(SERVERS), &json!({ "server": three })).status, 201);
    assert!(change(&running, "POST", &keep(SERVERS), &json!({ "server": three })).is_problem(409));
    assert_eq!(change(&running, "DELETE", &keep(&second), &Value::Null).status, 204);
    let servers = format!(
        "[\n    {{ url = \"{one}\", weight = 5, drain = true }}, # rack 1\n    # not rack 2\n    \"{three}\",\n]"
    );
    assert_eq!(running.text(), with(&servers));
    assert!(eventually(|| seen(&running) == names(&["three"])), "it is not removed");

    // Another process reads the same.
    order(&running.socket, "upgrade").expect("the program is there");
    let _successor = Other::of(&running);
    let upstream = read(&running, "/v1/status")["upstreams"][0].clone();
    let states: Vec<&Value> = upstream["servers"].as_array().expect("a list").iter().map(|s| &s["state"]).collect();
    assert_eq!(states, [&json!("draining"), &json!("up")], "{upstream}");
    assert_eq!(seen(&running), names(&["three"]));
}

#[test]
fn a_server_is_kept_in_the_included_file_that_declares_its_upstream() {
    let site = Site::new();
    let backends = [Backend::saying("one"), Backend::saying("two")];
    std::fs::create_dir(site.path().join("conf.d")).expect("a folder can be made");
    let part = site.path().join("conf.d/app.toml");
    let text = format!("# Ours\n[[upstream]]\nname = \"app\"\nservers = [\"{}\"]\n", backends[0].url());
    std::fs::write(&part, &text).expect("it can be written");
    let running = declared(&site, "include = [\"conf.d/*.toml\"]\n", "");
    let main = running.text();
    let body = json!({ "server": backends[1].url() });
    assert_eq!(change(&running, "POST", &format!("{SERVERS}?keep=file"), &body).status, 201);
    let wanted = text.replace("\"]", &format!("\", \"{}\"]", backends[1].url()));
    assert_eq!(std::fs::read_to_string(&part).expect("it is there"), wanted);
    assert_eq!(running.text(), main);
    assert!(eventually(|| seen(&running) == names(&["one", "two"])));
    assert_eq!(over_socket(&running.socket, "POST", "/v1/reload", &[], "").status, 200);
    assert_eq!(seen(&running), names(&["one", "two"]));
    // The next change of the same file finds it as this one has left it.
    let path = format!("{SERVERS}/{}?keep=file", name(&backends[0]));
    assert_eq!(change(&running, "DELETE", &path, &Value::Null).status, 204);
    // An edit of another file that is not loaded yet takes no effect by such a change.
    running.write(&(main.clone() + "# by hand\n"));
    let refused = change(&running, "POST", &format!("{SERVERS}?keep=file"), &json!({ "server": backends[0].url() }));
    assert!(refused.is_problem(412) && refused.body.contains("sealane.toml has changed"), "{refused:?}");
    assert_eq!(seen(&running), names(&["two"]));
}

#[test]
fn what_cannot_be_kept_in_a_file_is_refused_and_changes_nothing() {
    let site = Site::new();
    let backend = Backend::saying("one");
    let url = backend.url();
    let server = name(&backend);
    let keep = format!("{SERVERS}?keep=file");
    let body = json!({ "server": "http://127.0.0.1:9" });
    let refused = |running: &Operated, method: &str, path: &str, body: &Value, status: u16, why: &str| {
        let before = running.text();
        let reply = change(running, method, path, body);
        assert!(reply.is_problem(status) && reply.body.contains(why), "{why}: {reply:?}");
        assert_eq!(running.text(), before, "{why}");
        assert_eq!(seen(running), names(&["one"]), "{why}");
        let left: Vec<_> = std::fs::read_dir(site.path()).expect("our own folder").flatten().collect();
        assert!(!left.iter().any(|file| file.file_name().to_string_lossy().ends_with(".new")), "{left:?}");
    };
    let app = format!("[[upstream]]\nname = \"app\"\nservers = [\"{url}\"]\n");

    let running = declared(&site, "", &app);
    let one = format!("{SERVERS}/{server}?keep=file");
    refused(&running, "DELETE", &one, &Value::Null, 409, "the only server");
    refused(&running, "POST", &keep, &json!({ "server": "https://127.0.0.1:9" }), 422, "do not use TLS");
    refused(&running, "POST", &keep, &json!({ "server": "unix:/run/${file:/etc/shadow}" }), 422, "URL");
    refused(&running, "POST", &format!("{SERVERS}?keep=memory"), &body, 400, "keep");
    refused(&running, "PATCH", &one, &json!({ "weight": 257 }), 422, "0 to 256");
    refused(&running, "PATCH", &one, &json!({ "default_weight": true }), 422, "default_weight");
    refused(&running, "DELETE", &format!("{SERVERS}/x?keep=file"), &Value::Null, 404, "no server");
    refused(&running, "POST", "/v1/upstreams/x/servers?keep=file", &body, 404, "no upstream");
    // The same text again, by whomever, is no edit; another text is one.
    running.write(&running.text());
    assert_eq!(change(&running, "PATCH", &one, &json!({ "weight": 2 })).status, 200);
    running.write(&(running.text() + "# by hand\n"));
    refused(&running, "POST", &keep, &body, 412, "has changed since the gateway loaded it");
    assert_eq!(over_socket(&running.socket, "POST", "/v1/reload", &[], "").status, 200);
    // The configuration in use is not the file's.
    let toml = [("Content-Type", "application/toml"), ("If-Match", "*")];
    let other = running.text() + "# temporary\n";
    assert_eq!(over_socket(&running.socket, "PUT", "/v1/config", &toml, &other).status, 200);
    refused(&running, "POST", &keep, &body, 409, "with keep=file (option --keep), or reload");
    assert_eq!(over_socket(&running.socket, "PUT", "/v1/config?keep=file", &toml, &other).status, 200);
    assert_eq!(change(&running, "POST", &keep, &json!({ "server": "http://127.0.0.1:9", "weight": 0 })).status, 201);
    drop(running);

    let to = Operated::simple(&site, 1, ports::free(), &url);
    let upstream = read(&to, "/v1/servers")["upstreams"][0]["name"]
        .as_str()
        .expect("a name")
        .replace('*', "%2A")
        .replace(' ', "%20");
    refused(&to, "POST", &format!("/v1/upstreams/{upstream}/servers?keep=file"), &body, 409, "\\\"to\\\"");
    drop(to);
    let snippet = declared(
        &site,
        "",
        &format!("[[upstream]]\nname = \"app\"\nuse = \"s\"\n[snippet.s]\nservers = [\"{url}\"]\n"),
    );
    refused(&snippet, "POST", &keep, &body, 409, "snippet");
    drop(snippet);
    let variable =
        declared(&site, "", &format!("[[upstream]]\nname = \"${{env:NO_SUCH:-app}}\"\nservers = [\"{url}\"]\n"));
    refused(&variable, "POST", &keep, &body, 409, "variable");
    drop(variable);
    let variable =
        declared(&site, "", &format!("[[upstream]]\nname = \"app\"\nservers = \"${{env:NO_SUCH:-{url}}}\"\n"));
    refused(&variable, "POST", &keep, &body, 409, "reference");
    refused(&variable, "PATCH", &one, &json!({ "weight": 2 }), 409, "reference");
    drop(variable);
    // The result would not load: the host's certificates could be bypassed, or, as here, names differ.
    let named =
        declared(&site, "", &format!("{app}[[upstream]]\nname = \"tls\"\nservers = [\"https://a.example.test\"]\n"));
    let other = json!({ "server": "https://b.example.test" });
    refused(&named, "POST", "/v1/upstreams/tls/servers?keep=file", &other, 422, "different names");
}

#[test]
fn of_writers_at_one_time_each_server_is_in_the_file() {
    let site = Site::new();
    let backend = Backend::saying("one");
    let running = declared(&site, "", &format!("[[upstream]]\nname = \"app\"\nservers = [\"{}\"]\n", backend.url()));
    let replies: Vec<Reply> = std::thread::scope(|scope| {
        let add = |n: u16| {
            let running = &running;
            let body = json!({ "server": format!("http://127.0.0.1:{}", 2 + n), "weight": 0 });
            scope.spawn(move || change(running, "POST", &format!("{SERVERS}?keep=file"), &body))
        };
        let writers: Vec<_> = (0..8).map(add).collect();
        writers.into_iter().map(|writer| writer.join().expect("it does not panic")).collect()
    });
    assert!(replies.iter().all(|reply| reply.status == 201), "{replies:?}");
    let text = running.text();
    for n in 0..8 {
        assert_eq!(text.matches(&format!("\"http://127.0.0.1:{}\"", 2 + n)).count(), 1, "{text}");
    }
    assert_eq!(read(&running, "/v1/servers")["upstreams"][0]["servers"].as_array().map(Vec::len), Some(9));
}

#[test]
fn commands_keep_their_changes() {
    let site = Site::new();
    let backends = [Backend::saying("one"), Backend::saying("two")];
    let storage = format!("storage = \"{}\"\n", site.path().join("api").display());
    let listen = ports::free();
    let app = format!("[[upstream]]\nname = \"app\"\nservers = [\"{}\"]\n", backends[0].url());
    let file = |admin: &str| {
        let text = Operated::simple_file(&site, &(admin.to_owned() + &storage), listen, "");
        text.replace("to = [\"\"]\n", "upstream = \"app\"\n") + &app
    };
    let running = Operated::start(&site, 1, file, listen);
    let socket = running.socket.display().to_string();
    let run = |arguments: &[&str]| {
        let output = gateway::run([arguments, &["--socket", &socket]].concat());
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        (output.status.code(), text(&output.stdout) + &text(&output.stderr))
    };
    let (one, two) = (name(&backends[0]), name(&backends[1]));
    assert_eq!(run(&["api", "add-server", "app", &backends[1].url(), "--keep"]).0, Some(0));
    let (code, said) = run(&["server", "app", &two, "--weight", "4", "--keep"]);
    assert!(code == Some(0) && said.contains("the change is in the file"), "{said}");
    assert_eq!(run(&["server", "app", &one, "--drain", "--keep"]).0, Some(0));
    let text = running.text();
    let servers =
        format!("servers = [{{ url = \"http://{one}\", drain = true }}, {{ url = \"http://{two}\", weight = 4 }}]");
    assert!(text.contains(&servers), "{text}");
    assert_eq!(run(&["api", "remove-server", "app", &one, "--keep"]).0, Some(0));
    assert!(!running.text().contains(&one));
    let (code, said) = run(&["server", "app", &one, "--drain", "--keep"]);
    assert!(code == Some(1) && said.contains("has no server"), "{said}");

    let sent = site.issue("sent", &["sent.example.test"]);
    let (cert, key) = (sent.cert.display().to_string(), sent.key.display().to_string());
    let (code, said) = run(&["api", "add-certificate", "sent", "--cert", &cert, "--key", &key, "--keep"]);
    assert_eq!(code, Some(0), "{said}");
    assert!(site.path().join("api/sent.pem").exists());
    let (code, said) = run(&["status"]);
    assert!(code == Some(0) && !said.contains("temporary"), "{said}");
    assert_eq!(run(&["api", "remove-certificate", "sent"]).0, Some(1));
    assert_eq!(run(&["api", "remove-certificate", "sent", "--keep"]).0, Some(0));
    assert!(!site.path().join("api/sent.pem").exists());
}

/// A gateway that keeps certificates in a folder.
fn with_storage(site: &Site, backend: &Backend) -> (Operated, PathBuf) {
    let storage = site.path().join("api");
    let line = format!("storage = \"{}\"\n", storage.display());
    let listen = ports::free();
    let file = |admin: &str| Operated::simple_file(site, &(admin.to_owned() + &line), listen, &backend.url());
    (Operated::start(site, 2, file, listen), storage)
}

#[test]
fn a_certificate_that_is_kept_outlasts_reloads_and_upgrades() {
    let site = Site::new();
    let backend = Backend::saying("hello");
    let (running, storage) = with_storage(&site, &backend);
    let configured = running.served_certificate();
    let new = site.issue("sent", &[HOST]);
    let pem = |path: &Path| std::fs::read_to_string(path).expect("our own file");
    let whole = pem(&new.cert) + &pem(&new.key);
    let headers = [("Content-Type", "application/x-pem-file")];
    let put = |path: &str, text: &str| over_socket(&running.socket, "PUT", path, &headers, text);
    let delete = |path: &str| over_socket(&running.socket, "DELETE", path, &[], "");
    let reply = put("/v1/certificates/www?keep=file", &whole);
    assert_eq!((reply.status, &reply.json()["temporary"]), (200, &json!(false)), "{reply:?}");
    let certificate = reply.json()["certificates"][0].clone();
    assert_eq!((&certificate["added"], &certificate["kept"]), (&json!(true), &json!(true)));
    let file = storage.join("www.pem");
    let mode = |path: &Path| std::fs::metadata(path).expect("it is there").mode() & 0o777;
    assert_eq!((mode(&file), mode(&storage)), (0o600, 0o700));
    let served = new.load().0[0].to_vec();
    assert!(eventually(|| running.served_certificate() == Some(served.clone())), "clients do not get it");
    assert_eq!(over_socket(&running.socket, "POST", "/v1/reload", &[], "").status, 200);
    assert_eq!(running.served_certificate(), Some(served.clone()));
    // Otherwise the next start would bring back what nobody sees.
    assert!(put("/v1/certificates/www", &whole).is_problem(409));
    assert!(delete("/v1/certificates/www").is_problem(409));
    // What cannot be used is not stored, and one that is sent for a while is in no file.
    assert!(put("/v1/certificates/bad?keep=file", &pem(&new.cert)).is_problem(422));
    assert_eq!(put("/v1/certificates/short", &whole).json()["temporary"], true);
    assert!(std::fs::read_dir(&storage).expect("it is there").count() == 1);
    // A file that somebody else has put there keeps no gateway from starting.
    std::fs::write(storage.join("broken.pem"), "no PEM").expect("it can be written");

    order(&running.socket, "upgrade").expect("the program is there");
    let _successor = Other::of(&running);
    assert!(eventually(|| running.served_certificate() == Some(served.clone())), "the successor does not serve it");
    let certificates = read(&running, "/v1/certificates");
    let kept: Vec<&Value> = certificates["certificates"].as_array().expect("a list").iter().collect();
    assert!(kept.iter().any(|c| c["file"] == "api:www" && c["kept"] == true), "{certificates}");
    assert!(!kept.iter().any(|c| c["file"] == "api:short"), "{certificates}");
    let log = over_socket(&running.socket, "GET", "/v1/log", &[], "").body;
    assert!(log.contains("broken: the certificate in \"storage\" of [admin] cannot be used"), "{log}");
    assert_eq!(delete("/v1/certificates/www?keep=file").status, 204);
    assert!(!file.exists());
    assert!(eventually(|| running.served_certificate() == configured), "clients still get it");
    assert!(delete("/v1/certificates/www?keep=file").is_problem(404));
}

#[test]
fn a_reload_with_another_folder_takes_its_certificates() {
    let site = Site::new();
    let backend = Backend::saying("hello");
    let (running, storage) = with_storage(&site, &backend);
    let new = site.issue("sent", &[HOST]);
    let pem = |path: &Path| std::fs::read_to_string(path).expect("our own file");
    let other = site.path().join("other");
    std::fs::create_dir(&other).expect("a folder can be made");
    std::fs::write(other.join("www.pem"), pem(&new.cert) + &pem(&new.key)).expect("it can be written");
    let text = running.text();
    running.write(&text.replace(&storage.display().to_string(), &other.display().to_string()));
    assert_eq!(over_socket(&running.socket, "POST", "/v1/reload", &[], "").status, 200);
    assert_eq!(running.served_certificate(), Some(new.load().0[0].to_vec()));
    // Without a folder, nothing is kept, and what was is temporary now.
    let line = format!("storage = \"{}\"\n", other.display());
    running.write(&running.text().replace(&line, ""));
    assert_eq!(over_socket(&running.socket, "POST", "/v1/reload", &[], "").status, 200);
    let certificates = read(&running, "/v1/certificates");
    let sent = certificates["certificates"].as_array().expect("a list").iter().find(|c| c["file"] == "api:www");
    assert_eq!(sent.map(|c| &c["kept"]), Some(&json!(false)), "{certificates}");
    let headers = [("Content-Type", "application/x-pem-file")];
    let whole = pem(&new.cert) + &pem(&new.key);
    let refused = over_socket(&running.socket, "PUT", "/v1/certificates/www?keep=file", &headers, &whole);
    assert!(refused.is_problem(409) && refused.body.contains("storage"), "{refused:?}");
}

/// Ends what keeps a file from being replaced.
struct Held {
    end: std::process::Command,
}

impl Held {
    /// By a program with these arguments; `None`: the system does not allow it.
    fn by(begin: &[&str], end: &[&str], file: &Path) -> Option<Self> {
        let command = |words: &[&str]| {
            let mut command = std::process::Command::new(words[0]);
            command.args(&words[1..]).arg(file).stderr(std::process::Stdio::null());
            command
        };
        let done = command(begin).status().is_ok_and(|status| status.success());
        done.then(|| Self { end: command(end) })
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        let _ = self.end.status();
    }
}

/// A bind-mounted file, as in a container, and an immutable one: their folder can be written, and they cannot be replaced.
#[test]
fn a_file_that_cannot_be_replaced_is_found_before_anything_changes() {
    if !rustix::process::geteuid().is_root() {
        skip!("only root can mount files");
    }
    let mut seen_ways = 0;
    for way in ["mount", "chattr"] {
        let (site, elsewhere) = (Site::new(), Site::new());
        let backends = [Backend::saying("one"), Backend::saying("two")];
        let declaration = format!("[[upstream]]\nname = \"app\"\nservers = [\"{}\"]\n", backends[0].url());
        let running = declared(&site, "", &declaration);
        let file = site.path().join("sealane.toml");
        let other = elsewhere.path().join("mounted.toml").display().to_string();
        std::fs::copy(&file, &other).expect("it can be copied");
        let held = match way {
            "mount" => Held::by(&["mount", "--bind", &other], &["umount"], &file),
            _ => Held::by(&["chattr", "+i"], &["chattr", "-i"], &file),
        };
        let Some(held) = held else { continue };
        seen_ways += 1;
        // The mounted file has the same text, and is another one.
        assert_eq!(over_socket(&running.socket, "POST", "/v1/reload", &[], "").status, 200);
        let (body, keep) = (json!({ "server": backends[1].url() }), format!("{SERVERS}?keep=file"));
        let text = running.text();
        for round in 0..2 {
            let refused = change(&running, "POST", &keep, &body);
            let why = if way == "mount" { "mount its folder" } else { "immutable" };
            assert!(refused.is_problem(409) && refused.body.contains(why), "{way} {round}: {refused:?}");
        }
        let toml = [("Content-Type", "application/toml"), ("If-Match", "*")];
        let other_text = format!("{text}# other\n");
        let refused = over_socket(&running.socket, "PUT", "/v1/config?keep=file", &toml, &other_text);
        assert!(refused.is_problem(409), "{way}: {refused:?}");
        assert_eq!((running.text(), seen(&running)), (text, names(&["one"])), "{way}");
        assert_eq!(read(&running, "/v1/config")["temporary"], false, "{way}");
        let left: Vec<_> = std::fs::read_dir(site.path()).expect("our own folder").flatten().collect();
        assert!(!left.iter().any(|file| file.file_name().to_string_lossy().ends_with(".new")), "{way}: {left:?}");
        let log = over_socket(&running.socket, "GET", "/v1/log", &[], "").body;
        assert!(log.contains("keep=file: refused (409)") && !log.contains("(500)"), "{way}: {log}");
        // Without keep=file it is done.
        assert_eq!(change(&running, "POST", SERVERS, &body).status, 201, "{way}");
        drop(held);
    }
    if seen_ways == 0 {
        skip!("neither mount nor chattr works here");
    }
}

#[test]
fn a_server_that_was_removed_for_a_while_is_not_kept_half() {
    let site = Site::new();
    let backends = [Backend::saying("one"), Backend::saying("two")];
    let [one, two] = [0, 1].map(|n: usize| backends[n].url());
    let declaration =
        format!("[[upstream]]\nname = \"app\"\nservers = [\"{one}\", {{ url = \"{two}\", weight = 4 }}]\n");
    let running = declared(&site, "", &declaration);
    let text = running.text();
    let (keep, second) = (format!("{SERVERS}?keep=file"), format!("{SERVERS}/{}", name(&backends[1])));
    assert_eq!(change(&running, "DELETE", &second, &Value::Null).status, 204);
    let patched = change(&running, "PATCH", &format!("{second}?keep=file"), &json!({ "weight": 6 }));
    assert!(patched.is_problem(409) && patched.body.contains("is temporarily removed"), "{patched:?}");
    let added = change(&running, "POST", &keep, &json!({ "server": two }));
    assert!(added.is_problem(409) && added.body.contains("To end this removal"), "{added:?}");
    assert_eq!(running.text(), text);
    assert_eq!(change(&running, "POST", SERVERS, &json!({ "server": two, "weight": 4 })).status, 201);
    assert_eq!(change(&running, "PATCH", &format!("{second}?keep=file"), &json!({ "weight": 6 })).status, 200);
}
