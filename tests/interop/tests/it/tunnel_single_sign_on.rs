//! Users of the tunnel log in with a browser at a real OpenID Connect provider (npm's oidc-provider), with Debian's OpenVPN and our own
//! client.

use crate::tunnel_world::{End, INSIDE, SERVER, World, count, said};
use rustix::process::{Pid, Signal, kill_process};
use sealane_interop::process::{self, Server};
use sealane_interop::{binary, eventually, need, peers, skip};
use std::net::TcpStream;
use std::path::PathBuf;

macro_rules! world {
    () => {
        match World::new() {
            Ok(world) => world,
            Err(why) => skip!("{why}"),
        }
    };
}

const PROVIDER: &str = "127.0.0.1:4000";
const REDIRECT: &str = "https://10.99.0.1:8443/vpn-login";

/// What a person with a browser does: opens the link, agrees, fills in the provider's forms. Prints the status of the last page, and
/// what it says; then those of requests that must be refused.
const BROWSER: &str = r#"
import html, http.cookiejar, re, ssl, sys, urllib.error, urllib.parse, urllib.request
link, ca, user = sys.argv[1:]
def browser():
    trust = urllib.request.HTTPSHandler(context=ssl.create_default_context(cafile=ca))
    cookies = urllib.request.HTTPCookieProcessor(http.cookiejar.CookieJar())
    return urllib.request.build_opener(urllib.request.ProxyHandler({}), trust, cookies)
def ask(web, url, data=None):
    try:
        return web.open(url, data, timeout=60)
    except urllib.error.HTTPError as e:
        return e
def sent(web, page, fields):
    text = page.read().decode()
    form = re.search(r"<form.*?</form>", text, re.S).group(0)
    action = html.unescape(re.search(r'action="([^"]+)"', form).group(1))
    inputs = re.findall(r"<input[^>]*>", form)
    value = lambda tag, name: html.unescape((re.search(name + r'="([^"]*)"', tag) or [None, ""])[1])
    hidden = {value(i, "name"): value(i, "value") for i in inputs if value(i, "type") == "hidden"}
    data = urllib.parse.urlencode({**hidden, **fields}).encode()
    return ask(web, urllib.parse.urljoin(page.url, action), data)
own = browser()
page = ask(own, link)
assert page.status == 200, page.read()
print("other", ask(browser(), link).status)
page = sent(own, page, {})
if user and page.status == 200:
    assert page.url.startswith("http://127.0.0.1:4000/"), page.url
    page = sent(own, page, {"login": user, "password": "any"})
    page = sent(own, page, {})
    assert page.url.startswith("https://10.99.0.1:8443/vpn-login?"), page.url
print("page", page.status, re.sub(r"\s+", " ", re.search(r"<p>(.*?)</p>", page.read().decode(), re.S).group(1)))
print("again", ask(own, page.url).status)
"#;

/// The files of the gateway's certificate, and of the client's secret at the provider.
fn prepare(world: &World) {
    let made = rcgen::generate_simple_self_signed(vec![SERVER.to_owned()]).expect("a certificate");
    world.write("web.crt", &made.cert.pem());
    world.write("web.key", &made.signing_key.serialize_pem());
    world.write("oidc.secret", "the-secret-of-the-test-client\n");
}

/// A tunnel whose users log in at the provider, and a host for the login page.
fn settings() -> String {
    format!(
        r#"token_lifetime = "1h"
renegotiate = "5s"
[tunnel.oidc]
issuer = "http://{PROVIDER}"
client_id = "sealane"
client_secret_file = "../oidc.secret"
redirect_uri = "{REDIRECT}"
socket = "login.sock"
scopes = ["email", "groups"]
groups_claim = "groups"
allowed_groups = ["vpn"]
[[tunnel.group]]
name = "staff"
oidc_groups = ["VPN"]
addresses = "10.88.0.200/29"
[[listener]]
address = "{SERVER}:8443"
[listener.tls]
certificates = {{ cert = "../web.crt", key = "../web.key" }}
[[host]]
names = ["{SERVER}"]
respond = {{ status = 404 }}
[[host.route]]
exact = "/vpn-login"
to = ["unix:login.sock"]"#
    )
}

/// The provider at the server's end.
fn provider(world: &World, (node, folder): &(PathBuf, PathBuf)) -> Server {
    let mut command = world.command(End::Server, node);
    command.current_dir(folder).arg("provider.mjs").args([PROVIDER.rsplit(':').next().unwrap_or_default(), REDIRECT]);
    command.env_remove("HTTP_PROXY").env_remove("HTTPS_PROXY").env("NO_PROXY", "*");
    let server = Server::start(command, &world.path(""));
    let listens = || world.within(End::Server, || TcpStream::connect(PROVIDER).is_ok());
    assert!(eventually(listens), "{}", server.log());
    server
}

/// A stock client that can open pages.
fn client(world: &World, profile: &std::path::Path) -> Server {
    world.openvpn(End::Client, profile, &["--setenv", "IV_SSO", "webauth", "--push-peer-info"])
}

/// The page that a client is told to open.
#[track_caller]
fn link(client: &Server, server: &Server) -> String {
    let start = format!("{REDIRECT}?login=");
    assert!(said(client, &start), "{}\n{}", client.log(), server.log());
    let log = client.log();
    let secret = log.rsplit(&start).next().unwrap_or_default();
    let end = secret.find(|c: char| !c.is_ascii_alphanumeric() && c != '-' && c != '_').unwrap_or(secret.len());
    format!("{start}{}", &secret[..end])
}

/// A person logs in. Without a user, the person only agrees.
#[track_caller]
fn log_in(world: &World, link: &str, user: &str) -> String {
    let script = world.write("browser.py", BROWSER);
    let mut command = world.command(End::Server, &peers::find("python3").expect("looked for before"));
    command.arg(script).args([link, "web.crt", user]);
    let said: peers::Said = process::run(&mut command, b"").into();
    assert_eq!(said.code, Some(0), "{}", said.all());
    said.text()
}

#[test]
fn a_login_in_the_browser_admits_one_client() {
    let world = world!();
    need!("python3");
    let openid = match peers::openid() {
        Ok(found) => found,
        Err(why) => skip!("no oidc-provider: {why}"),
    };
    prepare(&world);
    world.init(&settings());
    let alice = world.profile("alice");
    let identity = provider(&world, &openid);
    let server = world.serve();
    // A client that cannot open a page is told so.
    let old = world.openvpn(End::Client, &alice, &[]);
    assert!(said(&old, "AUTH_FAILED,this server needs a login in the browser"), "{}\n{}", old.log(), server.log());
    drop(old);
    // In none of the groups.
    let eve = client(&world, &alice);
    let text = log_in(&world, &link(&eve, &server), "eve");
    assert!(text.contains("other 403") && text.contains("page 403 You are logged in, but"), "{text}");
    assert!(said(&eve, "AUTH_FAILED,this user may not connect"), "{}\n{}", eve.log(), server.log());
    drop(eve);

    let stock = client(&world, &alice);
    let page = link(&stock, &server);
    assert!(!stock.log().contains("Initialization Sequence Completed"), "{}", stock.log());
    let text = log_in(&world, &page, "alice");
    assert!(text.contains("other 403"), "another browser: {text}");
    assert!(text.contains("page 200 You are logged in as alice."), "{text}");
    assert!(text.contains("again 404"), "the provider's answer is good once: {text}");
    assert!(said(&stock, "Initialization Sequence Completed"), "{}\n{}", stock.log(), server.log());
    assert!(stock.log().contains("ifconfig 10.88.0.20"), "the group's address: {}", stock.log());
    assert_eq!(world.pings(End::Client, INSIDE, 3, "0.05", 56), 3);
    // Renewals of keys and another connection need no browser, but the token.
    let renewed = || world.read("vpn/tunnel.log").matches("\"event\":\"renew\"").count() >= 2;
    assert!(eventually(renewed), "{}\n{}", server.log(), stock.log());
    let pid = Pid::from_raw(stock.id() as i32).expect("a pid");
    kill_process(pid, Signal::USR1).expect("it runs");
    let connected = || server.log().matches("alice is connected from").count() == 2;
    assert!(eventually(connected), "{}\n{}", server.log(), stock.log());
    assert!(eventually(|| world.pings(End::Client, INSIDE, 3, "0.05", 56) == 3), "{}", server.log());
    assert_eq!(stock.log().matches("WEB_AUTH::").count(), 1, "{}", stock.log());
    for (name, wanted) in [("logins", 2), ("login_granted", 1), ("login_not_allowed", 1), ("login_unsupported", 1)] {
        assert!(eventually(|| count(&world, name) == wanted), "{name}: {}", count(&world, name));
    }
    drop(stock);

    // Our own client.
    let mut command = world.command(End::Client, binary::sealane());
    command.args(["tunnel", "connect"]).arg(&alice);
    let ours = Server::start(command, &world.path(""));
    let text = log_in(&world, &link(&ours, &server), "alice");
    assert!(text.contains("page 200"), "{text}");
    assert!(said(&ours, "connected to"), "{}\n{}", ours.log(), server.log());
    drop((ours, identity));
}

/// Without the provider, nobody comes in, and a login can be tried again as long as it may take.
#[test]
fn a_provider_that_is_away_admits_nobody() {
    let world = world!();
    need!("python3");
    let openid = match peers::openid() {
        Ok(found) => found,
        Err(why) => skip!("no oidc-provider: {why}"),
    };
    prepare(&world);
    world.init(&settings().replace("socket = ", "timeout = \"40s\"\nsocket = "));
    let alice = world.profile("alice");
    let server = world.serve();
    let stock = client(&world, &alice);
    let page = link(&stock, &server);
    let text = log_in(&world, &page, "");
    assert!(text.contains("page 503 The identity provider cannot be reached."), "{text}");
    assert!(said(&server, "no user can log in"), "{}", server.log());
    // Nobody logs in in time.
    assert!(said(&stock, "AUTH_FAILED,the login has taken too long"), "{}\n{}", stock.log(), server.log());
    assert!(eventually(|| count(&world, "login_expired") == 1), "{}", server.log());
    assert!(!server.log().contains("alice is connected"), "{}", server.log());
    drop(stock);
    // It is back.
    let _identity = provider(&world, &openid);
    let stock = client(&world, &alice);
    let text = log_in(&world, &link(&stock, &server), "alice");
    assert!(text.contains("page 200"), "{text}");
    assert!(said(&stock, "Initialization Sequence Completed"), "{}\n{}", stock.log(), server.log());
    // What was said to browsers and clients is in no log.
    for secret in ["code=", "the-secret-of-the-test-client", "login=", "eyJ"] {
        assert!(!server.log().contains(secret), "{secret}: {}", server.log());
    }
}
