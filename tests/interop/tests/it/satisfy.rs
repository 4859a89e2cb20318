//! `satisfy = "any"`: a client that the rules of a host and a route allow needs no password and no permission, any other client needs
//! one, and neither says who it is.

use sealane_interop::backend::Backend;
use sealane_interop::base64;
use sealane_interop::gateway::{Gateway, run};
use sealane_interop::site::Site;
use sealane_interop::versions::{Asked, Everywhere, Listening};
use std::net::SocketAddr;

/// Alice's password is "open sesame".
const ALICE: &str = "alice:$2y$05$abcdefghijklmnopqrstuupx2xBUC4954936wVIjyyPHmUBFu0wCW\n";

const USERS: &str = "basic_auth = { users = \"users.txt\", user_header = \"Remote-User\" }";

fn gateway(site: &Site, app: &Backend, rest: &str) -> (Gateway, SocketAddr) {
    site.file("users.txt", ALICE);
    let rest = format!("[[host]]\nnames = [\"*\"]\nto = {:?}\n{rest}\n", app.url());
    Listening { both: "trusted_proxies = \"127.0.0.1\"", rest: &rest, ..Listening::default() }.start(site)
}

/// The statuses over all versions of a request that a trusted proxy passes on for this client.
fn ask(every: &mut Everywhere, client: &str, target: &str, more: &[(&str, &str)]) -> [u16; 3] {
    let fields: Vec<(&str, &str)> = [("x-forwarded-for", client), ("remote-user", "root"), ("remote_user", "root")]
        .into_iter()
        .chain(more.iter().copied())
        .collect();
    every.ask(Asked { target, fields: &fields, ..Asked::default() }).map(|(status, _)| status)
}

#[test]
fn an_allowed_address_or_a_password_is_enough() {
    let site = Site::new();
    let app = Backend::saying("hello");
    let rest = format!(
        "satisfy = \"any\"\nallow = \"10.0.0.0/8\"\n{USERS}\n\
         [[host.route]]\npath = \"/narrow\"\nto = {url:?}\nallow = \"10.1.0.0/16\"\n\
         [[host.route]]\npath = \"/both\"\nto = {url:?}\nsatisfy = \"all\"\n\
         [[host.route]]\npath = \"/list\"\nto = {url:?}\nbasic_auth = false\n\
         [[host.route]]\npath = \"/kept\"\nto = {url:?}\n\
         basic_auth = {{ users = \"users.txt\", keep_authorization = true }}\n",
        url = app.url()
    );
    let (gateway, plain) = gateway(&site, &app, &rest);
    let mut every = Everywhere::new(&gateway, plain);
    let right = format!("Basic {}", base64(b"alice:open sesame"));
    let wrong = format!("Basic {}", base64(b"alice:open"));
    for (client, target, password, status, user) in [
        ("10.2.0.1", "/", None, 200, None),
        // Nobody looks at the password of a client whose address is enough.
        ("10.2.0.1", "/", Some(&wrong), 200, None),
        ("10.2.0.1", "/", Some(&right), 200, None),
        ("192.0.2.1", "/", None, 401, None),
        ("192.0.2.1", "/", Some(&wrong), 401, None),
        ("192.0.2.1", "/", Some(&right), 200, Some("alice")),
        // The rules of the host and of the route count together.
        ("10.1.0.1", "/narrow", None, 200, None),
        ("10.2.0.1", "/narrow", None, 401, None),
        ("10.2.0.1", "/narrow", Some(&right), 200, Some("alice")),
        // A route that requires all.
        ("10.2.0.1", "/both", None, 401, None),
        ("10.2.0.1", "/both", Some(&right), 200, Some("alice")),
        ("192.0.2.1", "/both", Some(&right), 403, None),
        // Nothing is left but the rules.
        ("10.2.0.1", "/list", None, 200, None),
        ("192.0.2.1", "/list", Some(&right), 403, None),
    ] {
        let sent: Vec<(&str, &str)> = password.iter().map(|p| ("authorization", p.as_str())).collect();
        let before = app.requests().len();
        assert_eq!(ask(&mut every, client, target, &sent), [status; 3], "{client} {target} {password:?}");
        let passed = app.requests().split_off(before);
        assert_eq!(passed.len(), if status == 200 { 3 } else { 0 }, "{client} {target}");
        for request in passed {
            assert_eq!(request.header("remote-user"), user, "{client} {target} {password:?}");
            assert_eq!(request.header("remote_user"), None, "{client} {target}");
            let passes_on = target == "/list";
            assert_eq!(request.header("authorization").is_some(), passes_on && password.is_some(), "{client} {target}");
        }
    }
    assert_eq!(ask(&mut every, "10.2.0.1", "/kept", &[("authorization", &wrong)]), [200; 3]);
    assert_eq!(app.last().header("authorization"), Some(&*wrong));
}

#[test]
fn an_allowed_address_or_the_server_that_is_asked_is_enough() {
    let site = Site::new();
    let app = Backend::saying("hello");
    let auth = Backend::answering(|request| match request.header("cookie") {
        Some("session=good") => b"HTTP/1.1 204 No Content\r\nRemote-User: alice\r\n\r\n".to_vec(),
        _ => b"HTTP/1.1 302 Found\r\nLocation: https://login.example/\r\nContent-Length: 0\r\n\r\n".to_vec(),
    });
    let rest = format!(
        "satisfy = \"any\"\ndeny = \"192.0.2.0/24\"\nallow_header = {{ X-Edge = \"k\" }}\n\
         forward_auth = {{ upstream = \"auth\", path = \"/verify\", copy_headers = [\"Remote-User\"] }}\n\
         [[upstream]]\nname = \"auth\"\nservers = {:?}\n",
        auth.url()
    );
    let (gateway, plain) = gateway(&site, &app, &rest);
    let mut every = Everywhere::new(&gateway, plain);
    let (edge, good) = (("x-edge", "k"), ("cookie", "session=good"));
    for (client, sent, status, user, asked) in [
        ("10.0.0.1", &[edge][..], 200, None, 0),
        ("10.0.0.1", &[], 302, None, 3),
        ("192.0.2.1", &[edge], 302, None, 3),
        ("192.0.2.1", &[edge, good], 200, Some("alice"), 3),
        ("10.0.0.1", &[good], 200, Some("alice"), 3),
    ] {
        let before = (app.requests().len(), auth.requests().len());
        assert_eq!(ask(&mut every, client, "/", sent), [status; 3], "{client} {sent:?}");
        assert_eq!(auth.requests().len() - before.1, asked, "{client} {sent:?}");
        for request in app.requests().split_off(before.0) {
            assert_eq!(request.header("remote-user"), user, "{client} {sent:?}");
        }
    }
}

/// What a route with two second checks would require is not clear.
#[test]
fn a_password_and_a_server_exclude_each_other() {
    let site = Site::new();
    site.file("users.txt", ALICE);
    let host = "[[listener]]\naddress = \"127.0.0.1:0\"\n[[host]]\nnames = [\"*\"]\nsatisfy = \"any\"\nallow = \"10.0.0.0/8\"\n\
                respond = { status = 200 }\n";
    let auth = "forward_auth = { upstream = \"auth\", path = \"/verify\" }\n[[upstream]]\nname = \"auth\"\nservers = \"http://127.0.0.1:1\"\n";
    for (more, is_good) in [(format!("{USERS}\n{auth}"), false), (auth.to_owned(), true)] {
        let file = site.file("any.toml", format!("{host}{more}"));
        let said = run(["check".as_ref(), "--config".as_ref(), file.as_path()]);
        let text = String::from_utf8_lossy(&said.stderr).into_owned();
        assert_eq!(said.status.success(), is_good, "{text}");
        assert_eq!(text.contains("can have only one of \"basic_auth\" and \"forward_auth\""), !is_good, "{text}");
    }
}
