//! Users of the tunnel log in with a browser at a real OpenID Connect provider (npm's oidc-provider), with Debian's OpenVPN and our own
//! client; and with openvpn-auth-oauth2 on the management socket.

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

/// A browser, as far as it is needed: cookies and forms.
const FORMS: &str = r#"
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
"#;

/// What a person with a browser does: opens the link, agrees, fills in the provider's forms. Prints the status of the last page, and
/// what it says; then those of requests that must be refused.
const OWN_PAGES: &str = r#"
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

/// The same where openvpn-auth-oauth2 sends the person to the provider at once.
const PAGES_OF_PROGRAM: &str = r#"
assert page.url.startswith("http://127.0.0.1:4000/"), page.url
page = sent(own, page, {"login": user, "password": "any"})
page = sent(own, page, {})
assert page.url.startswith("http://10.99.0.1:9000/oauth2/callback?"), page.url
print("page", page.status)
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

/// The provider at the server's end, which sends browsers back to this page.
fn provider(world: &World, (node, folder): &(PathBuf, PathBuf), redirect: &str) -> Server {
    let mut command = world.command(End::Server, node);
    command.current_dir(folder).arg("provider.mjs").args([PROVIDER.rsplit(':').next().unwrap_or_default(), redirect]);
    command.env_remove("HTTP_PROXY").env_remove("HTTPS_PROXY").env("NO_PROXY", "*");
    let server = Server::start(command, &world.path(""));
    listens(world, PROVIDER, &server);
    server
}

/// Waits until a program at the server's end listens on an address.
#[track_caller]
fn listens(world: &World, address: &str, program: &Server) {
    let listens = || world.within(End::Server, || TcpStream::connect(address).is_ok());
    assert!(eventually(listens), "{}", program.log());
}

/// A stock client that can open pages.
fn client(world: &World, profile: &std::path::Path) -> Server {
    world.openvpn(End::Client, profile, &["--setenv", "IV_SSO", "webauth", "--push-peer-info"])
}

/// The page that a client is told to open.
#[track_caller]
fn link(client: &Server, server: &Server) -> String {
    link_that_begins(client, server, &format!("{REDIRECT}?login="))
}

#[track_caller]
fn link_that_begins(client: &Server, server: &Server, start: &str) -> String {
    assert!(said(client, start), "{}\n{}", client.log(), server.log());
    let log = client.log();
    let secret = log.rsplit(start).next().unwrap_or_default();
    let end = secret.find(|c: char| !c.is_ascii_alphanumeric() && !"-_=%+/".contains(c)).unwrap_or(secret.len());
    format!("{start}{}", &secret[..end])
}

/// A person logs in. Without a user, the person only agrees.
#[track_caller]
fn log_in(world: &World, link: &str, user: &str) -> String {
    browse(world, OWN_PAGES, link, user)
}

#[track_caller]
fn browse(world: &World, pages: &str, link: &str, user: &str) -> String {
    let script = world.write("browser.py", &format!("{FORMS}{pages}"));
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
    let identity = provider(&world, &openid, REDIRECT);
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
    let _identity = provider(&world, &openid, REDIRECT);
    let stock = client(&world, &alice);
    let text = log_in(&world, &link(&stock, &server), "alice");
    assert!(text.contains("page 200"), "{text}");
    assert!(said(&stock, "Initialization Sequence Completed"), "{}\n{}", stock.log(), server.log());
    // What was said to browsers and clients is in no log.
    for secret in ["code=", "the-secret-of-the-test-client", "login=", "eyJ"] {
        assert!(!server.log().contains(secret), "{secret}: {}", server.log());
    }
}

/// openvpn-auth-oauth2 on the management socket sends users to the provider, as it does beside OpenVPN's server.
#[test]
fn openvpn_auth_oauth2_admits_and_denies_clients() {
    const PAGES: &str = "10.99.0.1:9000";
    let world = world!();
    need!("python3");
    let openid = match peers::openid() {
        Ok(found) => found,
        Err(why) => skip!("no oidc-provider: {why}"),
    };
    let program = match peers::openvpn_auth_oauth2() {
        Ok(program) => program,
        Err(why) => skip!("no openvpn-auth-oauth2: {why}"),
    };
    prepare(&world);
    world.init("management = \"manage.sock\"\nmanagement_client_auth = true");
    let alice = world.profile("alice");
    let identity = provider(&world, &openid, &format!("http://{PAGES}/oauth2/callback"));
    let server = world.serve();
    let mut command = world.command(End::Server, &program);
    command.env_remove("HTTP_PROXY").env_remove("HTTPS_PROXY").env("NO_PROXY", "*").args([
        format!("--http.baseurl=http://{PAGES}"),
        format!("--http.listen={PAGES}"),
        "--http.secret=0123456789abcdef".to_owned(),
        format!("--openvpn.addr=unix://{}", world.path("vpn/manage.sock").display()),
        format!("--oauth2.issuer=http://{PROVIDER}"),
        "--oauth2.client.id=sealane".to_owned(),
        "--oauth2.client.secret=the-secret-of-the-test-client".to_owned(),
        "--oauth2.auth-style=AuthStyleInHeader".to_owned(),
        "--oauth2.scopes=openid,profile,groups".to_owned(),
        "--oauth2.validate.groups=vpn".to_owned(),
    ]);
    let program = Server::start(command, &world.path(""));
    listens(&world, PAGES, &program);
    let start = format!("http://{PAGES}/oauth2/start?state=");
    // Not in the group.
    let eve = client(&world, &alice);
    let text = browse(&world, PAGES_OF_PROGRAM, &link_that_begins(&eve, &program, &start), "eve");
    assert!(!text.contains("page 200"), "{text}\n{}", program.log());
    assert!(said(&eve, "AUTH_FAILED"), "{}\n{}\n{}", eve.log(), program.log(), server.log());
    assert!(!eve.log().contains("Initialization Sequence Completed"), "{}", eve.log());
    drop(eve);
    let stock = client(&world, &alice);
    let page = link_that_begins(&stock, &program, &start);
    assert!(!stock.log().contains("Initialization Sequence Completed"), "{}", stock.log());
    let text = browse(&world, PAGES_OF_PROGRAM, &page, "alice");
    assert!(text.contains("page 200"), "{text}\n{}", program.log());
    let connected = said(&stock, "Initialization Sequence Completed");
    assert!(connected, "{}\n{}\n{}", stock.log(), program.log(), server.log());
    assert_eq!(world.pings(End::Client, INSIDE, 3, "0.05", 56), 3, "{}", server.log());
    assert!(said(&program, "client established"), "{}", program.log());
    stock.terminate();
    assert!(said(&program, "client disconnected"), "{}", program.log());
    drop((program, identity));
}
