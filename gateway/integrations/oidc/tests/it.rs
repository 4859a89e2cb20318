//! A browser against the login pages, and a provider that answers by a script. A real provider is in `tests/interop` (oidc-provider).

use aws_lc_rs::digest::{SHA256, digest};
use aws_lc_rs::rand::SystemRandom;
use aws_lc_rs::signature::{ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair, KeyPair as _};
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use sealane_config::{Oidc, Place};
use sealane_oidc::OidcLogin;
use sealane_vpn::login::{LoginClient, LoginOutcome, LoginRefusal, WebLogin as _};
use serde_json::{Value, json};
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::sync::mpsc::{Receiver, TryRecvError, channel};
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use tempfile::TempDir;

const WAIT: Duration = Duration::from_secs(60);

/// How the provider behaves.
#[derive(Clone, Debug, Default)]
struct Script {
    /// What the ID token says in addition, or in place of what it would say.
    claims: Vec<(&'static str, Value)>,
    /// What was asked for: the nonce and the challenge.
    nonce: String,
    challenge: String,
    /// It accepts connections and says nothing.
    is_silent: bool,
    /// Its document never ends.
    is_endless: bool,
    requests: usize,
}

struct Provider {
    issuer: String,
    script: Arc<Mutex<Script>>,
}

/// A request's head and body.
fn request(stream: &mut TcpStream) -> Option<(String, String)> {
    let (mut text, mut piece) = (Vec::new(), [0; 4096]);
    loop {
        let whole = String::from_utf8_lossy(&text).into_owned();
        if let Some((head, body)) = whole.split_once("\r\n\r\n") {
            let length =
                head.lines().find_map(|line| line.to_ascii_lowercase().strip_prefix("content-length: ")?.parse().ok());
            if body.len() >= length.unwrap_or(0) {
                return Some((head.to_owned(), body.to_owned()));
            }
        }
        match stream.read(&mut piece).ok()? {
            0 => return None,
            n => text.extend_from_slice(&piece[..n]),
        }
    }
}

fn value<'a>(form: &'a str, name: &str) -> &'a str {
    form.split('&').find_map(|pair| pair.strip_prefix(name)?.strip_prefix('=')).unwrap_or("")
}

impl Provider {
    /// It ends with the process.
    fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let issuer = format!("http://{}", listener.local_addr().expect("bound"));
        let script = Arc::new(Mutex::new(Script::default()));
        let key = Arc::new(EcdsaKeyPair::generate(&ECDSA_P256_SHA256_FIXED_SIGNING).expect("generated"));
        let (ours, own) = (script.clone(), issuer.clone());
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let (script, issuer, key) = (ours.clone(), own.clone(), key.clone());
                std::thread::spawn(move || answer(stream, &script, &issuer, &key));
            }
        });
        Self { issuer, script }
    }

    fn set(&self, change: impl FnOnce(&mut Script)) {
        change(&mut self.script.lock().expect("not poisoned"));
    }
}

fn answer(mut stream: TcpStream, script: &Mutex<Script>, issuer: &str, key: &EcdsaKeyPair) {
    let Some((head, body)) = request(&mut stream) else { return };
    let script = {
        let mut script = script.lock().expect("not poisoned");
        script.requests += 1;
        script.clone()
    };
    if script.is_silent {
        std::thread::sleep(WAIT);
        return;
    }
    let path = head.split(' ').nth(1).unwrap_or("");
    let (status, answer) = match path {
        "/.well-known/openid-configuration" if script.is_endless => {
            let _ = stream.write_all(b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n");
            while stream.write_all(&[b' '; 8192]).is_ok() {}
            return;
        }
        "/.well-known/openid-configuration" => (
            200,
            json!({
                "issuer": issuer, "authorization_endpoint": format!("{issuer}/auth"), "token_endpoint": format!("{issuer}/token"),
                "jwks_uri": format!("{issuer}/keys"),
            }),
        ),
        "/keys" => {
            let point = key.public_key().as_ref();
            let [x, y] = [&point[1..33], &point[33..]].map(|bytes| URL_SAFE_NO_PAD.encode(bytes));
            (200, json!({ "keys": [{ "kty": "EC", "crv": "P-256", "kid": "p", "x": x, "y": y }] }))
        }
        "/token" => {
            let challenge = URL_SAFE_NO_PAD.encode(digest(&SHA256, value(&body, "code_verifier").as_bytes()));
            match value(&body, "code") == "good" && challenge == script.challenge {
                true => (
                    200,
                    json!({ "id_token": token(&script, issuer, key), "access_token": "a", "token_type": "Bearer" }),
                ),
                false => (400, json!({ "error": "invalid_grant" })),
            }
        }
        _ => (404, json!({})),
    };
    let text = answer.to_string();
    let length = text.len();
    let _ = write!(stream, "HTTP/1.1 {status} X\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n{text}");
}

fn token(script: &Script, issuer: &str, key: &EcdsaKeyPair) -> String {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).expect("after 1970").as_secs();
    let mut claims = json!({
        "iss": issuer, "sub": "al", "aud": "vpn", "iat": now, "exp": now + 60, "nonce": script.nonce, "groups": ["vpn"],
    });
    for (name, value) in &script.claims {
        claims[*name] = value.clone();
    }
    let b64 = |value: &Value| URL_SAFE_NO_PAD.encode(value.to_string());
    let message = format!("{}.{}", b64(&json!({ "alg": "ES256", "kid": "p" })), b64(&claims));
    let signature = key.sign(&SystemRandom::new(), message.as_bytes()).expect("signed");
    format!("{message}.{}", URL_SAFE_NO_PAD.encode(signature.as_ref()))
}

struct World {
    _folder: TempDir,
    socket: PathBuf,
    login: Arc<OidcLogin>,
}

impl World {
    fn new(issuer: &str) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let socket = folder.path().join("login.sock");
        let login = Arc::new(OidcLogin::new(Oidc {
            issuer: issuer.to_owned(),
            roots: Vec::new(),
            client_id: "vpn".to_owned(),
            client_secret: None,
            redirect_uri: "https://vpn.example/login".to_owned(),
            redirect_path: "/login".to_owned(),
            socket: socket.clone(),
            owner: None,
            scopes: vec!["openid".to_owned()],
            username_claim: "sub".to_owned(),
            groups_claim: Some("groups".to_owned()),
            allowed_groups: vec!["vpn".to_owned()],
            allowed_email_domains: Vec::new(),
            timeout: Duration::from_secs(120),
            place: Place::default(),
        }));
        let listener = UnixListener::bind(&socket).expect("a free path");
        listener.set_nonblocking(true).expect("a socket option");
        let serving = login.clone();
        // It ends with the process.
        std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
            runtime.block_on(async move {
                let listener = tokio::net::UnixListener::from_std(listener).expect("within a runtime");
                serving.serve(listener).await;
            });
        });
        Self { _folder: folder, socket, login }
    }

    /// The login of a client: its number, the secret of its link, and how it ends.
    fn begin(&self) -> (u64, String, Receiver<LoginOutcome>) {
        let (sender, outcomes) = channel();
        let client = LoginClient {
            certificate: Some("laptop".to_owned()),
            remote: ([192, 0, 2, 1], 4711).into(),
            program: "2.6 linux".to_owned(),
        };
        let report = Box::new(move |outcome| drop(sender.send(outcome)));
        let begun = self.login.begin(client, Duration::from_secs(120), report).expect("room");
        let link = begun.url.strip_prefix("https://vpn.example/login?login=").expect("a link").to_owned();
        (begun.id, link, outcomes)
    }

    /// One request of a browser.
    fn ask(&self, method: &str, target: &str, cookie: &str, body: &str) -> Response {
        let mut stream = UnixStream::connect(&self.socket).expect("it listens");
        stream.set_read_timeout(Some(WAIT)).expect("a socket option");
        let kind = if body.is_empty() { "" } else { "Content-Type: application/x-www-form-urlencoded\r\n" };
        let cookie = if cookie.is_empty() { String::new() } else { format!("Cookie: {cookie}\r\n") };
        let length = body.len();
        let head = format!(
            "{method} {target} HTTP/1.1\r\nHost: vpn.example\r\n{cookie}{kind}Content-Length: {length}\r\n\r\n"
        );
        stream.write_all(format!("{head}{body}").as_bytes()).expect("it reads");
        let mut text = String::new();
        stream.read_to_string(&mut text).expect("an answer");
        Response(text)
    }

    /// The page of a link: the cookie, and the form's secret.
    fn open(&self, link: &str) -> (String, String) {
        let page = self.ask("GET", &format!("/login?login={link}"), "", "");
        assert_eq!(page.status(), "200", "{}", page.0);
        assert!(page.0.contains("laptop") && page.0.contains("192.0.2.1:4711"), "{}", page.0);
        let cookie = page.header("set-cookie").split(';').next().expect("a cookie").to_owned();
        let confirm = page.0.split("name=\"confirm\" value=\"").nth(1).and_then(|rest| rest.split('"').next());
        (cookie, confirm.expect("a form").to_owned())
    }

    /// The user agrees: the query of the provider's page.
    fn agree(&self, provider: &Provider, link: &str, cookie: &str, confirm: &str) -> String {
        let sent = self.ask("POST", "/login", cookie, &format!("login={link}&confirm={confirm}"));
        assert_eq!(sent.status(), "303", "{}", sent.0);
        let (at, query) =
            sent.header("location").split_once('?').map(|(a, b)| (a.to_owned(), b.to_owned())).expect("a query");
        assert_eq!(at, format!("{}/auth", provider.issuer));
        for (name, wanted) in [("response_type", "code"), ("client_id", "vpn"), ("code_challenge_method", "S256")] {
            assert_eq!(value(&query, name), wanted);
        }
        let (nonce, challenge) = (value(&query, "nonce").to_owned(), value(&query, "code_challenge").to_owned());
        provider.set(|script| (script.nonce, script.challenge) = (nonce, challenge));
        query
    }

    /// A login up to the provider: the cookie, the state, and how it ends.
    fn sent(&self, provider: &Provider) -> (String, String, Receiver<LoginOutcome>) {
        let (_, link, outcomes) = self.begin();
        let (cookie, confirm) = self.open(&link);
        let query = self.agree(provider, &link, &cookie, &confirm);
        (cookie, value(&query, "state").to_owned(), outcomes)
    }
}

struct Response(String);

impl Response {
    fn status(&self) -> &str {
        self.0.split(' ').nth(1).unwrap_or("")
    }

    fn header(&self, name: &str) -> &str {
        let head = self.0.split("\r\n\r\n").next().unwrap_or("");
        let fields = head.lines().filter_map(|line| line.split_once(": "));
        fields.filter(|(own, _)| own.eq_ignore_ascii_case(name)).map(|(_, value)| value).next().unwrap_or("")
    }
}

fn refused(outcomes: &Receiver<LoginOutcome>, why: LoginRefusal) {
    assert_eq!(outcomes.recv_timeout(WAIT), Ok(LoginOutcome::Refused(why)));
}

#[test]
fn a_user_logs_in_once_and_in_one_browser() {
    let provider = Provider::start();
    let world = World::new(&provider.issuer);
    let (_, link, outcomes) = world.begin();
    let (cookie, confirm) = world.open(&link);
    let stranger = format!("__Host-sealane-login={}", "A".repeat(43));
    // Somebody else's browser, a form without its page, and a body that is too long.
    let form = format!("login={link}&confirm={confirm}");
    for (cookie, form) in [
        ("", form.as_str()),
        (stranger.as_str(), form.as_str()),
        (cookie.as_str(), format!("login={link}&confirm={}", "A".repeat(43)).as_str()),
        (cookie.as_str(), format!("login={}&confirm={confirm}", "A".repeat(43)).as_str()),
        (cookie.as_str(), format!("login={link}").as_str()),
        (cookie.as_str(), format!("{form}&x={}", "a".repeat(5000)).as_str()),
    ] {
        let status = world.ask("POST", "/login", cookie, form).status().to_owned();
        assert!(["400", "403", "404"].contains(&status.as_str()), "{cookie} {form}: {status}");
    }
    assert_eq!(world.ask("GET", &format!("/login?login={link}"), &stranger, "").status(), "403");
    // The server does not wait for a stranger's form.
    let mut slow = UnixStream::connect(&world.socket).expect("it listens");
    slow.set_read_timeout(Some(WAIT)).expect("a socket option");
    let head = format!(
        "POST /login HTTP/1.1\r\nHost: vpn.example\r\nCookie: {stranger}\r\nContent-Type: \
         application/x-www-form-urlencoded\r\nContent-Length: 9\r\n\r\n"
    );
    slow.write_all(head.as_bytes()).expect("it reads");
    let mut start = [0; 12];
    slow.read_exact(&mut start).expect("an answer");
    assert_eq!(&start, b"HTTP/1.1 404");
    assert_eq!(provider.script.lock().expect("not poisoned").requests, 0, "strangers cause no request");
    let query = world.agree(&provider, &link, &cookie, &confirm);
    let back = format!("/login?code=good&state={}", value(&query, "state"));
    for (target, cookie, status) in [
        (back.as_str(), "", "403"),
        (back.as_str(), stranger.as_str(), "403"),
        ("/login?code=good&state=guessed", cookie.as_str(), "404"),
        ("/login?code=good", cookie.as_str(), "404"),
        ("/other", cookie.as_str(), "404"),
        ("/login", cookie.as_str(), "404"),
    ] {
        assert_eq!(world.ask("GET", target, cookie, "").status(), status, "{target} {cookie}");
    }
    assert_eq!(outcomes.try_recv(), Err(TryRecvError::Empty));
    let done = world.ask("GET", &back, &cookie, "");
    assert!(done.status() == "200" && done.0.contains("logged in as al"), "{}", done.0);
    let granted = LoginOutcome::Granted { user: "al".to_owned(), groups: vec!["vpn".to_owned()] };
    assert_eq!(outcomes.recv_timeout(WAIT), Ok(granted));
    // Neither the state nor the link is good again.
    assert_eq!(world.ask("GET", &back, &cookie, "").status(), "404");
    assert_eq!(world.ask("GET", &format!("/login?login={link}"), &cookie, "").status(), "404");
    assert!(world.login.refused_requests() >= 14, "{}", world.login.refused_requests());
}

#[test]
fn what_the_provider_does_not_confirm_lets_nobody_in() {
    let provider = Provider::start();
    let world = World::new(&provider.issuer);
    // A code of another client or another login.
    let (cookie, state, outcomes) = world.sent(&provider);
    assert_eq!(world.ask("GET", &format!("/login?code=stolen&state={state}"), &cookie, "").status(), "403");
    refused(&outcomes, LoginRefusal::Invalid);
    let (cookie, state, outcomes) = world.sent(&provider);
    provider.set(|script| script.challenge = "another".to_owned());
    assert_eq!(world.ask("GET", &format!("/login?code=good&state={state}"), &cookie, "").status(), "403");
    refused(&outcomes, LoginRefusal::Invalid);
    // The user, or the provider, says no.
    let (cookie, state, outcomes) = world.sent(&provider);
    assert_eq!(world.ask("GET", &format!("/login?error=access_denied&state={state}"), &cookie, "").status(), "403");
    refused(&outcomes, LoginRefusal::Denied);
    // Another provider's answer.
    let (cookie, state, outcomes) = world.sent(&provider);
    let mixed = format!("/login?code=good&state={state}&iss=https%3A%2F%2Fevil.example");
    assert_eq!(world.ask("GET", &mixed, &cookie, "").status(), "403");
    refused(&outcomes, LoginRefusal::Invalid);
    for (claim, value, why) in [
        ("nonce", json!("another"), LoginRefusal::Invalid),
        ("aud", json!("mail"), LoginRefusal::Invalid),
        ("iss", json!("https://evil.example"), LoginRefusal::Invalid),
        ("exp", json!(1), LoginRefusal::Invalid),
        ("groups", json!(["mail"]), LoginRefusal::NotAllowed),
        ("sub", json!(""), LoginRefusal::NotAllowed),
    ] {
        let (cookie, state, outcomes) = world.sent(&provider);
        provider.set(|script| script.claims = vec![(claim, value)]);
        let page = world.ask("GET", &format!("/login?code=good&state={state}"), &cookie, "");
        assert_eq!(page.status(), "403", "{claim}");
        refused(&outcomes, why);
    }
}

#[test]
fn a_provider_that_is_away_slow_or_endless_costs_a_bounded_time() {
    let provider = Provider::start();
    provider.set(|script| script.is_silent = true);
    let slow = World::new(&provider.issuer);
    let free = TcpListener::bind("127.0.0.1:0").and_then(|listener| listener.local_addr()).expect("a port");
    let away = World::new(&format!("http://{free}"));
    let other = Provider::start();
    other.set(|script| script.is_endless = true);
    let endless = World::new(&other.issuer);
    for world in [&slow, &away, &endless] {
        let (_, link, outcomes) = world.begin();
        let (cookie, confirm) = world.open(&link);
        let form = format!("login={link}&confirm={confirm}");
        assert_eq!(world.ask("POST", "/login", &cookie, &form).status(), "503");
        // The login goes on: the user may try again.
        assert_eq!(outcomes.try_recv(), Err(TryRecvError::Empty));
    }
    // Where it answers again, it is the same login.
    let (_, link, outcomes) = slow.begin();
    let (cookie, confirm) = slow.open(&link);
    provider.set(|script| script.is_silent = false);
    std::thread::sleep(Duration::from_secs(4));
    let query = slow.agree(&provider, &link, &cookie, &confirm);
    // It has gone when the browser comes back.
    provider.set(|script| script.is_silent = true);
    let back = format!("/login?code=good&state={}", value(&query, "state"));
    assert_eq!(slow.ask("GET", &back, &cookie, "").status(), "503");
    refused(&outcomes, LoginRefusal::Unavailable);
}

#[test]
fn a_client_that_has_gone_ends_its_login() {
    let provider = Provider::start();
    let world = World::new(&provider.issuer);
    let (id, link, outcomes) = world.begin();
    let (cookie, confirm) = world.open(&link);
    let query = world.agree(&provider, &link, &cookie, &confirm);
    world.login.end(id);
    let back = format!("/login?code=good&state={}", value(&query, "state"));
    assert_eq!(world.ask("GET", &back, &cookie, "").status(), "404");
    assert_eq!(outcomes.try_recv(), Err(TryRecvError::Disconnected));
}
