//! `sealane debug`: the archive for a bug report, unpacked by tar, and what open requests wait for.

use crate::operating::{Operated, order};
use sealane_control::admin::ask::{Where, ask};
use sealane_interop::backend::{Backend, ok};
use sealane_interop::gateway::run;
use sealane_interop::process::{self, Server};
use sealane_interop::site::Site;
use sealane_interop::{WAIT_LIMIT, eventually, need, ports};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

const SECRET: &str = "k7Qp2mZc9vTt";

/// Unpacks an archive, and returns the folder in it.
fn unpacked(tar: &Path, archive: &Path, site: &Site) -> PathBuf {
    let to = site.path().join("unpacked");
    std::fs::create_dir_all(&to).expect("the test's folder can be written");
    let done = process::run(Command::new(tar).arg("-xf").arg(archive).arg("-C").arg(&to), b"");
    let said = String::from_utf8_lossy(&done.stderr).into_owned();
    assert!(done.status.success() && said.is_empty(), "{said}");
    let mut folders = std::fs::read_dir(to).expect("it is there").map(|entry| entry.expect("an entry").path());
    let folder = folders.next().expect("there is a folder");
    assert!(folders.next().is_none());
    folder
}

fn read(folder: &Path, name: &str) -> String {
    std::fs::read_to_string(folder.join(name)).unwrap_or_else(|error| panic!("{name}: {error}"))
}

#[test]
fn a_bundle_has_what_a_report_needs_and_no_secrets() {
    let tar = need!("tar");
    let (site, backend, listen) = (Site::new(), Backend::saying("hello"), ports::free());
    let file = |admin: &str, more: &str| {
        Operated::simple_file(&site, admin, listen, &backend.url())
            + &format!("response_headers = {{ set = {{ X-Token = \"{SECRET}\" }} }}\n{more}")
    };
    let operated = Operated::start(&site, 1, |admin| file(admin, ""), listen);
    assert_eq!(operated.get("/").text(), "hello");
    // An error that quotes the line with the secret.
    let broken = file(&operated.admin_lines, "").replace("X-Token =", "X Token =");
    operated.write(&broken);
    let error = order(&operated.socket, "reload").expect_err("the file has a mistake").to_string();
    assert!(error.contains(SECRET), "{error}");
    operated.write(&file(&operated.admin_lines, ""));

    let archive = site.path().join("report.tar");
    let bundle = || {
        run([
            "debug".as_ref(),
            "bundle".as_ref(),
            "--socket".as_ref(),
            operated.socket.as_os_str(),
            "--output".as_ref(),
            archive.as_os_str(),
        ])
    };
    let done = bundle();
    let said = String::from_utf8_lossy(&done.stdout).into_owned();
    assert!(done.status.success() && !said.contains("left out"), "{said}{}", String::from_utf8_lossy(&done.stderr));
    let mode = std::fs::metadata(&archive).expect("it is there").permissions().mode();
    assert_eq!(mode & 0o777, 0o600);

    let folder = unpacked(&tar, &archive, &site);
    let version: serde_json::Value = serde_json::from_str(&read(&folder, "version.json")).expect("it is JSON");
    assert_eq!(version["name"], "sealane");
    let status: serde_json::Value = serde_json::from_str(&read(&folder, "status.json")).expect("it is JSON");
    assert_eq!(status["pid"], operated.gateway.server.id());
    assert!(status["reloads"]["last_error"].as_str().is_some_and(|error| error.contains("sealane.toml")), "{status}");
    assert!(read(&folder, "metrics.txt").contains("\nsealane_requests_total 1\n"));
    let log = read(&folder, "log.txt");
    assert!(log.contains("listening on") && log.contains("not reloaded"), "{log}");
    let configuration: serde_json::Value =
        serde_json::from_str(&read(&folder, "configuration.json")).expect("it is JSON");
    assert!(configuration["listener"].is_array(), "{configuration}");
    assert!(read(&folder, "self-check.json").contains("\"feature\""));
    let system = read(&folder, "system.txt");
    assert!(system.contains("net.core.somaxconn = ") && system.contains("Max open files"), "{system}");
    for entry in std::fs::read_dir(&folder).expect("it is there") {
        let path = entry.expect("an entry").path();
        assert!(!read(&folder, path.to_str().expect("a plain name")).contains(SECRET), "{}", path.display());
    }

    // What is there is not written over.
    let again = bundle();
    assert!(!again.status.success() && String::from_utf8_lossy(&again.stderr).contains("cannot make"));

    // The log may name clients: a process that can only reach the address does not get it.
    let refused =
        ask(&Where::Address(operated.gateway.admin), "GET", "/v1/log", WAIT_LIMIT).expect_err("it is refused");
    assert!(refused.to_string().contains("only operators may do this"), "{refused}");
}

#[test]
fn a_bundle_without_a_gateway_has_the_rest() {
    let tar = need!("tar");
    let site = Site::new();
    let config = site.file(
        "sealane.toml",
        "[[listener]]\naddress = \"127.0.0.1:1\"\n[[host]]\nnames = [\"*\"]\nrespond = { status = 204 }\n",
    );
    let (archive, socket) = (site.path().join("report.tar"), site.path().join("nobody.sock"));
    let [config, archive_name, socket] = [&config, &archive, &socket].map(|path| path.to_str().expect("a plain name"));
    let done = run(["debug", "bundle", "--socket", socket, "-c", config, "-o", archive_name]);
    let said = String::from_utf8_lossy(&done.stdout).into_owned();
    assert!(done.status.success() && said.contains("left out:\n  status.json: no gateway listens"), "{said}");
    let folder = unpacked(&tar, &archive, &site);
    assert!(read(&folder, "configuration.json").contains("127.0.0.1:1"));
    assert!(read(&folder, "missing.txt").contains("log.txt: "));
    assert!(!folder.join("status.json").exists());
}

/// Runs `sealane debug`, and returns what it says if it succeeds.
fn debug(operated: &Operated, arguments: &[&str]) -> Result<String, String> {
    let socket = operated.socket.to_str().expect("a plain name");
    let done = run(["debug"].iter().chain(arguments).copied().chain(["--socket", socket]));
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    if done.status.success() { Ok(text(&done.stdout)) } else { Err(text(&done.stderr)) }
}

#[test]
fn open_requests_are_listed_with_what_they_wait_for() {
    let curl = need!("curl");
    let (site, listen) = (Site::new(), ports::free());
    // Nobody is answered before the test says so.
    let released = Arc::new(AtomicBool::new(false));
    let backend = {
        let released = released.clone();
        Backend::answering(move |_| {
            eventually(|| released.load(Relaxed));
            ok(b"hello")
        })
    };
    let operated = Operated::simple(&site, 2, listen, &backend.url());
    assert_eq!(debug(&operated, &["connections"]), Ok("no open requests\n".to_owned()));

    let open = |count: usize| {
        let listed = || debug(&operated, &["connections", "--slow", "--json"]).expect("it answers");
        let all = || {
            let value: serde_json::Value = serde_json::from_str(&listed()).expect("it is JSON");
            value["exchanges"].as_array().cloned().unwrap_or_default()
        };
        assert!(eventually(|| all().len() == count), "{:?}", all());
        all()
    };
    let asking = || {
        let mut wire = operated.gateway.connect();
        let head = "GET /slow?token=k7Qp2mZc9vTt HTTP/1.1\r\nHost: localhost\r\n\r\n";
        wire.send(head).expect("the gateway reads");
        wire
    };
    let mut first = asking();
    open(1);
    let mut uploading = operated.gateway.connect();
    let head = "POST /upload HTTP/1.1\r\nHost: localhost\r\nContent-Length: 5\r\n\r\nab";
    uploading.send(head).expect("the gateway reads");
    open(2);
    // The backend reads the upload to its end before it answers, so that the request waits for its client.
    let mut http2 = Command::new(curl);
    http2.args(["--disable", "--noproxy", "*", "--silent", "--http2", "--cacert"]).arg(operated.gateway.ca());
    http2.args(["--resolve", &format!("localhost:{}:127.0.0.1", listen.port())]).arg(operated.gateway.url("/h2"));
    let http2 = Server::start(http2, site.path());
    let all = open(3);

    let told = |key: &str| all.iter().map(|x| x[key].as_str().unwrap_or_default().to_owned()).collect::<Vec<_>>();
    assert_eq!(told("path"), ["/slow", "/upload", "/h2"], "the oldest first");
    assert_eq!(told("protocol"), ["HTTP/1.1", "HTTP/1.1", "HTTP/2"]);
    assert_eq!(told("method"), ["GET", "POST", "GET"]);
    let response = "the head of the server's response";
    assert_eq!(told("waits_for"), [response, "the client to send the request's body", response]);
    assert_eq!(all[1]["bytes_in"], 2);
    let server = backend.address.to_string();
    assert!(all.iter().all(|x| x["server"] == server.as_str() && x["upstream"] == "host *"), "{all:?}");

    let text = debug(&operated, &["connections", "--slow"]).expect("it answers");
    assert!(!text.contains(SECRET) && text.lines().count() == 4, "{text}");
    let oldest = debug(&operated, &["connections", "--limit", "1"]).expect("it answers");
    assert!(oldest.contains("GET localhost/slow at ") && oldest.lines().count() == 2, "{oldest}");
    assert_eq!(
        debug(&operated, &["connections", "--over", "3600"]),
        Ok("no request has been open for more than 3600 s\n".to_owned())
    );

    let id = all[0]["id"].as_str().expect("a request has an ID").to_owned();
    let one = debug(&operated, &["exchange", &id]).expect("it is open");
    assert!(one.contains("\nwaits for   the head of the server's response\n"), "{one}");
    assert!(one.contains(&format!("\nserver      {server}\n")) && one.contains("\nfailures    0\n"), "{one}");
    released.store(true, Relaxed);
    assert_eq!(first.response("GET").expect("the backend answers").text(), "hello");
    uploading.send("cde").expect("the gateway reads");
    assert_eq!(uploading.response("POST").expect("the backend answers").text(), "hello");
    open(0);
    let gone = debug(&operated, &["exchange", &id]).expect_err("it is over");
    assert!(gone.contains(&format!("no open request has the ID {id}")), "{gone}");
    drop(http2);

    // Requests name clients: a process that can only reach the address does not get them.
    let refused =
        ask(&Where::Address(operated.gateway.admin), "GET", "/v1/exchanges", WAIT_LIMIT).expect_err("it is refused");
    assert!(refused.to_string().contains("only operators may do this"), "{refused}");
}

/// Header fields and timings of requests for one host, without secrets. What is recorded is the same for all versions of HTTP.
#[test]
fn a_recording_has_fields_and_timings_and_no_secrets() {
    let (site, listen) = (Site::new(), ports::free());
    let backend = Backend::answering(|_| {
        b"HTTP/1.1 200 OK\r\nX-Echo: got hush-file\r\nSet-Cookie: id=hush-cookie\r\nLocation: /next?code=hush-code\r\nContent-Length: 5\r\n\r\nhello"
            .to_vec()
    });
    // What `config show` masks, no recording shows.
    let token = site.path().join("token");
    std::fs::write(&token, "hush-file\n").expect("the test's folder can be written");
    let rules = format!(
        "request_headers = {{ set = {{ X-Tok = \"a ${{file:{}}}\" }}, add = {{ X-Added = \"hush-added\" }} }}\n\
         response_headers = {{ set = {{ X-Out = \"hush-out\" }} }}\nallow_header = {{ X-Edge = \"hush-edge\" }}\n",
        token.display()
    );
    let file = |admin: &str| Operated::simple_file(&site, admin, listen, &backend.url()) + &rules;
    let operated = Operated::start(&site, 2, file, listen);
    let stop = AtomicBool::new(false);
    let record = |more: &[&str]| {
        let socket = operated.socket.to_str().expect("a plain name");
        let done = run([&["debug", "record", "--socket", socket], more].concat());
        (
            done.status.success(),
            String::from_utf8_lossy(&done.stdout).into_owned() + &String::from_utf8_lossy(&done.stderr),
        )
    };
    let recorded = std::thread::scope(|scope| {
        let head = "GET /a?token=hush-query HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nAuthorization: Bearer hush-bearer\r\n\
                    Cookie: id=hush-cookie\r\nX-Api-Key: hush-key\r\nX-Edge: hush-edge\r\nReferer: https://a.example/?q=hush-referer\r\n\
                    User-Agent: some\u{9b}2J\u{202e}client\r\n\r\n"
            .to_owned();
        let other = head.replace("Host: localhost", "Host: other.example");
        let (gateway, stop) = (&operated.gateway, &stop);
        scope.spawn(move || {
            while !stop.load(Relaxed) {
                let _ = gateway.exchange(&head);
                let _ = gateway.exchange(&other);
            }
        });
        // It ends when it has as many as it may have, however long that takes.
        let recorded = record(&["--for", "240s", "--host", "LOCALHOST", "--limit", "3", "--json"]);
        let text = record(&["--for", "240s", "--limit", "2"]);
        stop.store(true, Relaxed);
        assert!(text.0 && text.1.to_ascii_lowercase().contains("> authorization: ***"), "{}", text.1);
        assert!(text.1.contains("ended early") && !text.1.contains("hush"), "{}", text.1);
        assert!(text.1.contains("some\\u{9b}2J\\u{202e}client") && text.1.is_ascii(), "{}", text.1);
        recorded
    });
    assert!(recorded.0, "{}", recorded.1);
    assert!(!recorded.1.contains("hush"), "{}", recorded.1);
    // A terminal obeys U+009B, too.
    assert!(recorded.1.contains("some\\u009b2J\\u202eclient") && recorded.1.is_ascii(), "{}", recorded.1);
    let recorded: serde_json::Value = serde_json::from_str(&recorded.1).expect("it is JSON");
    let exchanges = recorded["exchanges"].as_array().expect("a list");
    assert_eq!((exchanges.len(), recorded["is_cut"].as_bool()), (3, Some(true)));
    for exchange in exchanges {
        assert_eq!(
            (exchange["host"].as_str(), exchange["path"].as_str()),
            (Some("localhost"), Some("/a")),
            "{exchange}"
        );
        assert_eq!((exchange["status"].as_u64(), exchange["bytes_out"].as_u64()), (Some(200), Some(5)));
        let [sent, responded, took] = ["sent", "responded", "took"].map(|step| exchange[step].as_f64().unwrap_or(-1.0));
        assert!(0.0 <= sent && sent <= responded && responded <= took, "{exchange}");
        let field = |side: &str, wanted: &str| {
            let fields = exchange[side].as_array().cloned().unwrap_or_default();
            fields
                .iter()
                .find(|f| f[0].as_str().is_some_and(|name| name.eq_ignore_ascii_case(wanted)))
                .map(|f| f[1].clone())
        };
        assert_eq!(field("request", "authorization"), Some("***".into()));
        assert_eq!(field("request", "referer"), Some("https://a.example/?***".into()));
        for name in ["x-tok", "x-added", "x-edge"] {
            assert_eq!(field("request", name), Some("***".into()), "{name}");
        }
        assert_eq!(field("response", "x-out"), Some("***".into()));
        assert_eq!(field("response", "x-echo"), Some("got ***".into()));
        assert_eq!(field("response", "set-cookie"), Some("***".into()));
        assert_eq!(field("response", "location"), Some("/next?***".into()));
    }
}

#[test]
fn a_recording_is_bounded_and_one_at_a_time() {
    let (site, backend) = (Site::new(), Backend::saying("hello"));
    let operated = Operated::simple(&site, 1, ports::free(), &backend.url());
    let socket = operated.socket.to_str().expect("a plain name").to_owned();
    let record = |more: &[&str]| {
        let done = run([&["debug", "record", "--socket", &socket], more].concat());
        (
            done.status.code(),
            String::from_utf8_lossy(&done.stdout).into_owned() + &String::from_utf8_lossy(&done.stderr),
        )
    };
    for bad in [
        &["--for", "5m"][..],
        &["--for", "0s"],
        &["--for", "x"],
        &["--limit", "0"],
        &["--limit", "1001"],
        &["--one-in", "0"],
    ] {
        assert_eq!(record(bad).0, Some(2), "{bad:?}");
    }
    // Asked without the command, the bounds hold as well.
    let post = |body: &str| {
        sealane_control::admin::ask::ask_with(
            &Where::Socket(operated.socket.clone()),
            "POST",
            "/v1/record",
            body,
            WAIT_LIMIT,
        )
    };
    for bad in [
        "{\"millis\":300000}",
        "{\"millis\":0}",
        "{\"millis\":1000,\"limit\":100000}",
        "{\"millis\":1000,\"more\":1}",
        "x",
    ] {
        assert!(post(bad).is_err(), "{bad}");
    }
    // By address, nobody records.
    let by_address = sealane_control::admin::ask::ask_with(
        &Where::Address(operated.gateway.admin),
        "POST",
        "/v1/record",
        "{\"millis\":1}",
        WAIT_LIMIT,
    );
    assert!(by_address.is_err_and(|error| error.to_string().contains("only operators may do this")));
    assert_eq!(record(&["--for", "1s"]), (Some(0), "no request was recorded\n".to_owned()));
    let mut long = std::process::Command::new(sealane_interop::binary::sealane());
    long.args(["debug", "record", "--socket", &socket, "--for", "240s"]);
    let mut first = Server::start(long, site.path());
    // The next one takes its place, whether or not somebody waits for it still.
    let replaced = || {
        assert_eq!(record(&["--for", "1s"]).0, Some(0));
        !first.running()
    };
    assert!(eventually(replaced));
    assert!(first.log().contains("another recording began"), "{}", first.log());
}
