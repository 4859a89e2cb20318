//! Questions that a server asks after the password: our client answers them, those of a stock server and those of our own.

use crate::tunnel_management::Tool;
use crate::tunnel_profiles::stock_server;
use crate::tunnel_world::{End, INSIDE, World, said};
use sealane_interop::process::{self, Server};
use sealane_interop::{binary, eventually, need, peers, skip};
use std::io::Write as _;
use std::os::unix::fs::PermissionsExt as _;

macro_rules! world {
    () => {
        match World::new() {
            Ok(world) => world,
            Err(why) => skip!("{why}"),
        }
    };
}

/// A script that only its owner runs.
fn script(world: &World, name: &str, text: &str) -> String {
    let path = world.write(name, &format!("#!/bin/sh\n{text}"));
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o700)).expect("it is ours");
    path.display().to_string()
}

/// A stock server whose logins this script decides.
#[track_caller]
fn server_with(world: &World, decide: &str, more: &str) -> Server {
    let check = script(world, "check", decide);
    let lines = format!("topology subnet\nscript-security 2\nauth-user-pass-verify {check} via-file\n{more}");
    stock_server(world, &lines)
}

/// Our client without a terminal, with these lines as its input.
fn client(world: &World, profile: &str, answers: &str) -> Server {
    world.write("asking.ovpn", profile);
    world.write("answers", answers);
    let mut command = world.command(End::Client, &peers::find("setsid").expect("util-linux has it"));
    let connect = format!("exec {} tunnel connect --dns off asking.ovpn < answers", binary::sealane().display());
    command.arg(peers::find("sh").expect("every system has one")).args(["-c", &connect]);
    Server::start(command, &world.path(""))
}

/// The profile of `alice`, with a login that is asked.
#[track_caller]
fn alice(world: &World, more: &str) -> String {
    world.init(more);
    world.profile("alice");
    format!("{}auth-user-pass\n", world.read("alice.ovpn"))
}

/// The second question (`CRV1`) is the reason of a refusal; its answer is the password of the next login.
const CRV1: &str = r#"name=$(head -n 1 "$1"); password=$(tail -n 1 "$1")
echo "$name $password" >> asked
case "$name/$password" in
al/right) echo 'CRV1:R,E:state-7:YWw=:Code: now?' > "$auth_failed_reason_file";;
al/locked) echo 'CRV1::state-8:YWw=:the account is locked' > "$auth_failed_reason_file";;
al/CRV1::state-7::123) exit 0;;
esac
exit 1
"#;

#[test]
fn a_server_asks_again_after_the_password() {
    let world = world!();
    let profile = alice(&world, "");
    let server = server_with(&world, CRV1, "");
    let first = client(&world, &profile, "al\nright\n123\n");
    assert!(said(&first, "asks: Code: now?"), "{}\n{}", first.log(), server.log());
    assert!(said(&first, "connected to"), "{}\n{}", first.log(), server.log());
    assert_eq!(world.pings(End::Client, INSIDE, 3, "0.05", 56), 3, "{}", first.log());
    assert_eq!(world.read("asked"), "al right\nal CRV1::state-7::123\n");
    drop(first);
    for (answers, message) in [
        ("al\nright\n124\n", "the server refuses this client"),
        ("al\nright\n", "there was no answer to \"Code: now?\""),
        ("al\nlocked\n", "the server refuses this client: the account is locked"),
    ] {
        let mut client = client(&world, &profile, answers);
        assert!(!client.wait().success(), "{answers}: {}", client.log());
        assert!(client.log().contains(message), "{answers}: {}", client.log());
    }
}

/// On a terminal, the question is asked there. While it is, the client can be ended.
#[test]
fn a_second_question_is_asked_on_the_terminal() {
    let world = world!();
    let program = need!("script");
    let profile = alice(&world, "");
    let server = server_with(&world, CRV1, "");
    world.write("asking.ovpn", &profile);
    let sh = peers::find("sh").expect("every system has one");
    let mkfifo = peers::find("mkfifo").expect("every system has one");
    assert!(process::run(world.command(End::Client, &mkfifo).arg("typed"), b"").status.success());
    let mut command = world.command(End::Client, &sh);
    let connect = format!("{} tunnel connect --dns off asking.ovpn", binary::sealane().display());
    command.args(["-c", &format!("exec {} -qec '{connect}' /dev/null < typed", program.display())]);
    let client = Server::start(command, &world.path(""));
    let mut keyboard = std::fs::File::options().write(true).open(world.path("typed")).expect("it is read");
    for (question, answer) in [("User name:", "al"), ("Password:", "right"), ("Code: now?", "123")] {
        assert!(said(&client, question), "{question} {}\n{}", client.log(), server.log());
        writeln!(keyboard, "{answer}").expect("it is read");
    }
    assert!(said(&client, "connected to"), "{}\n{}", client.log(), server.log());
    drop((client, keyboard));
    // Without a terminal and with an input that does not end.
    let mut command = world.command(End::Client, &peers::find("setsid").expect("util-linux has it"));
    command.arg(&sh).args(["-c", &format!("exec {connect} < typed")]);
    let mut client = Server::start(command, &world.path(""));
    let mut keyboard = std::fs::File::options().write(true).open(world.path("typed")).expect("it is read");
    keyboard.write_all(b"al\nright\n").expect("it is read");
    assert!(said(&client, "asks: Code: now?"), "{}\n{}", client.log(), server.log());
    client.terminate();
    assert!(client.wait().success(), "{}", client.log());
}

/// What a program on our server's management socket is asked: the client's numbers, and the password.
#[track_caller]
fn question(tool: &mut Tool) -> (String, String) {
    let (mut about, mut password) = (None, String::new());
    loop {
        let line = tool.line();
        assert!(!line.is_empty(), "the gateway has closed the socket");
        if let Some(numbers) = line.strip_prefix(">CLIENT:CONNECT,") {
            about = Some(numbers.replace(',', " "));
        } else if let Some(value) = line.strip_prefix(">CLIENT:ENV,password=") {
            password = value.to_owned();
        } else if let (">CLIENT:ENV,END", Some(about)) = (line.as_str(), &about) {
            return (about.clone(), password);
        }
    }
}

/// A program that decides at our server asks by its refusal.
#[test]
fn a_program_at_our_server_asks_again_after_the_password() {
    let world = world!();
    let profile = alice(&world, "management = \"manage.sock\"\nmanagement_client_auth = true");
    let server = world.serve();
    let mut tool = Tool::connect(&world);
    let client = client(&world, &profile, "al\nright\n123\n");
    let (about, password) = question(&mut tool);
    assert_eq!(password, "right", "{}", server.log());
    let deny = format!("client-deny {about} \"a code is missing\" \"CRV1:R,E:state-7:YWw=:Code: now?\"");
    assert_eq!(tool.ask(&deny), ["SUCCESS: client-deny command succeeded"]);
    let (about, password) = question(&mut tool);
    assert_eq!(password, "CRV1::state-7::123", "{}", server.log());
    assert_eq!(tool.ask(&format!("client-auth-nt {about}")), ["SUCCESS: client-auth command succeeded"]);
    assert!(said(&client, "connected to"), "{}\n{}", client.log(), server.log());
    assert!(eventually(|| server.log().contains("is refused: a code is missing")), "{}", server.log());
}

/// The script decides later (exit code 2): when the file `opened` is there, or by the other script.
const DEFERRED: &str = r#"case $(tail -n 1 "$1") in
web)
    printf '60\nwebauth\nWEB_AUTH:hidden:https://id.example.com/login?s=1\n' > "$auth_pending_file"
    (for n in $(seq 600); do [ -e opened ] && break; sleep 0.1; done; echo 1 > "$auth_control_file") &
    exit 2;;
open) printf '2\nopenurl\nOPEN_URL:http://[fd00::1]/\n' > "$auth_pending_file"; exit 2;;
file) printf '2\nopenurl\nOPEN_URL:file:///etc/passwd\n' > "$auth_pending_file"; exit 2;;
text) printf '60\ncrtext\nCR_TEXT:R,E:Code: now?\n' > "$auth_pending_file"; exit 2;;
esac
exit 1
"#;
const ANSWERED: &str = r#"[ "$(base64 -d < "$1")" = 123 ] && verdict=1 || verdict=0
echo $verdict > "$auth_control_file"
"#;

/// The server decides after a page is opened (web authentication), or after an answer on the control channel.
#[test]
fn a_login_waits_for_a_page_or_an_answer() {
    let world = world!();
    let profile = alice(&world, "");
    let more = format!("client-crresponse {}\n", script(&world, "answered", ANSWERED));
    let server = server_with(&world, DEFERRED, &more);
    let web = client(&world, &profile, "al\nweb\n");
    let page = "open this page to log in: https://id.example.com/login?s=1";
    assert!(said(&web, page), "{}\n{}", web.log(), server.log());
    assert!(web.log().contains("the server decides within 60 s"), "{}", web.log());
    assert!(!web.log().contains("connected to"), "{}", web.log());
    world.write("opened", "");
    assert!(said(&web, "connected to"), "{}\n{}", web.log(), server.log());
    assert_eq!(world.pings(End::Client, INSIDE, 3, "0.05", 56), 3, "{}", web.log());
    drop(web);
    let text = client(&world, &profile, "al\ntext\n123\n");
    assert!(said(&text, "connected to"), "{}\n{}", text.log(), server.log());
    assert!(text.log().contains("the server asks: Code: now?"), "{}", text.log());
    drop(text);
    for (answers, message) in
        [("al\ntext\n124\n", "the server refuses this client"), ("al\ntext\n", "there was no answer to \"Code: now?\"")]
    {
        let mut client = client(&world, &profile, answers);
        assert!(!client.wait().success(), "{answers}: {}", client.log());
        assert!(client.log().contains(message), "{answers}: {}", client.log());
    }
    // A server does not decide for ever, and a page is a page of the web.
    let profile = profile + "hand-window 10\n";
    for (password, message) in [
        ("open", "open this page to log in: http://[fd00::1]/"),
        ("file", "expects something that this client cannot do: OPEN_URL:file:///etc/passwd"),
    ] {
        let client = client(&world, &profile, &format!("al\n{password}\n"));
        assert!(said(&client, message), "{}\n{}", client.log(), server.log());
        // The client's own limit, or the server's refusal at the same time.
        let ends = ["the login was not completed in time", "the server refuses this client"];
        assert!(eventually(|| ends.iter().any(|end| client.log().contains(end))), "{}\n{}", client.log(), server.log());
    }
}

/// The same at our own server, from a program on the management socket.
#[test]
fn a_login_waits_for_a_page_or_an_answer_at_our_server() {
    let world = world!();
    let profile = alice(&world, "management = \"manage.sock\"\nmanagement_client_auth = true");
    let server = world.serve();
    let mut tool = Tool::connect(&world);
    let client = client(&world, &profile, "al\nright\n");
    let (about, _) = question(&mut tool);
    let pending = format!("client-pending-auth {about} \"WEB_AUTH::https://id.example.com/login?s=2\" 90");
    assert_eq!(tool.ask(&pending), ["SUCCESS: client-pending-auth command succeeded"]);
    let page = "open this page to log in: https://id.example.com/login?s=2";
    assert!(said(&client, page), "{}\n{}", client.log(), server.log());
    assert!(!client.log().contains("connected to"), "{}", client.log());
    assert_eq!(tool.ask(&format!("client-auth-nt {about}")), ["SUCCESS: client-auth command succeeded"]);
    assert!(said(&client, "connected to"), "{}\n{}", client.log(), server.log());
    drop(client);
    // A question in place of a page: the program hears the answer in base64.
    let client = self::client(&world, &profile, "al\nright\n123\n");
    let (about, _) = question(&mut tool);
    let pending = format!("client-pending-auth {about} \"CR_TEXT:R,E:Code: now?\" 90");
    assert_eq!(tool.ask(&pending), ["SUCCESS: client-pending-auth command succeeded"]);
    let answer = format!(">CLIENT:CR_RESPONSE,{},MTIz", about.replace(' ', ","));
    loop {
        let line = tool.line();
        assert!(!line.is_empty(), "the gateway has closed the socket");
        if line == answer {
            break;
        }
    }
    assert_eq!(tool.ask(&format!("client-auth-nt {about}")), ["SUCCESS: client-auth command succeeded"]);
    assert!(said(&client, "connected to"), "{}\n{}", client.log(), server.log());
}
