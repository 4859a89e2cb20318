//! OpenVPN's management protocol: a program decides who may come in, as openvpn-auth-oauth2 does, and tools look and steer.

use crate::tunnel_world::{End, INSIDE, World, count, said};
use sealane_interop::process::Server;
use sealane_interop::{eventually, need, skip};
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

macro_rules! world {
    () => {
        match World::new() {
            Ok(world) => world,
            Err(why) => skip!("{why}"),
        }
    };
}

/// As openvpn-auth-oauth2 does it: it releases the hold, asks for the version, and answers each question. alice is sent to a web page
/// and comes in when the file `approved` is there; bob is denied; nobody answers for others.
const PROGRAM: &str = r#"
import base64, os, select, socket, sys
path, approved = sys.argv[1:]
link = socket.socket(socket.AF_UNIX)
link.connect(path)
rest, event, env, waiting = b"", None, {}, []
def say(*lines):
    for line in lines:
        print("<", line, flush=True)
        link.sendall(line.encode() + b"\n")
def question(kind, cid, kid):
    name = env.get("common_name")
    if kind == "REAUTH":
        say(f'client-pending-auth {cid} {kid} "WEB_AUTH::https://sso.example/again" 60', f"client-auth-nt {cid} {kid}")
    elif name == "alice":
        say(f'client-pending-auth {cid} {kid} "WEB_AUTH::https://sso.example/login?state=abc" 180')
        waiting.append((cid, kid))
    elif name == "bob":
        say(f'client-deny {cid} {kid} "not in the group" "this is not \\"your\\" network"')
say("hold release", "version")
while True:
    if waiting and os.path.exists(approved):
        cid, kid = waiting.pop()
        user = base64.b64encode(b"alice@example.com").decode()
        say(f"client-auth {cid} {kid}", f'push "auth-token-user {user}"', 'push "setenv-safe team blue"', "END")
    if not select.select([link], [], [], 0.05)[0]:
        continue
    piece = link.recv(4096)
    if not piece:
        break
    rest += piece
    *lines, rest = rest.split(b"\r\n")
    for line in lines:
        line = line.decode()
        print(">", line, flush=True)
        if line.startswith((">CLIENT:CONNECT,", ">CLIENT:REAUTH,")):
            event, env = line[len(">CLIENT:"):].split(","), {}
        elif line == ">CLIENT:ENV,END":
            if event:
                question(*event)
            event = None
        elif line.startswith(">CLIENT:ENV,"):
            name, _, value = line[len(">CLIENT:ENV,"):].partition("=")
            env[name] = value
"#;

const SOCKET: &str = "vpn/manage.sock";

/// The program, connected.
fn program(world: &World) -> Server {
    let script = world.write("program.py", PROGRAM);
    let mut command = world.command(End::Server, &sealane_interop::peers::find("python3").expect("looked for before"));
    command.arg(script).arg(world.path(SOCKET)).arg(world.path("approved"));
    let program = Server::start(command, &world.path(""));
    assert!(said(&program, "> SUCCESS: hold release succeeded"), "{}", program.log());
    assert!(said(&program, "> Management Version: 5"), "{}", program.log());
    program
}

/// A tool on the socket.
pub struct Tool {
    reader: BufReader<UnixStream>,
}

impl Tool {
    #[track_caller]
    pub fn connect(world: &World) -> Self {
        Self::connect_to(&world.path(SOCKET), 5)
    }

    /// A tool on a socket with this version of the protocol.
    #[track_caller]
    pub fn connect_to(socket: &Path, version: u8) -> Self {
        let stream = UnixStream::connect(socket).expect("the socket is there");
        stream.set_read_timeout(Some(Duration::from_secs(60))).expect("a socket option");
        let mut tool = Self { reader: BufReader::new(stream) };
        let (line, greeting) = (tool.line(), format!(">INFO:OpenVPN Management Interface Version {version} "));
        assert!(line.starts_with(&greeting), "{line}");
        tool
    }

    #[track_caller]
    pub fn line(&mut self) -> String {
        let mut line = String::new();
        self.reader.read_line(&mut line).expect("a line");
        line.trim_end().to_owned()
    }

    fn say(&mut self, line: &str) {
        self.reader.get_mut().write_all(format!("{line}\r\n").as_bytes()).expect("it listens");
    }

    /// A command's answer: up to `END`, or one line.
    #[track_caller]
    pub fn ask(&mut self, command: &str) -> Vec<String> {
        self.say(command);
        let mut lines = Vec::new();
        loop {
            let line = self.line();
            if line.starts_with('>') {
                continue;
            }
            lines.push(line);
            let last = lines.last().map_or("", String::as_str);
            if last == "END" || last.starts_with("SUCCESS:") || last.starts_with("ERROR:") || last.is_empty() {
                return lines;
            }
        }
    }

    /// Whether the other side has closed the connection.
    fn ends(mut self) -> bool {
        let mut rest = Vec::new();
        self.reader.read_to_end(&mut rest).is_ok()
    }
}

/// Nobody is there to ask; a web page; a refusal with a reason; a renewal of keys; and a client that leaves.
#[test]
fn a_program_on_the_socket_decides_who_may_come_in() {
    let world = world!();
    need!("python3");
    world.init("management = \"manage.sock\"\nmanagement_client_auth = true");
    let (alice, bob) = (world.profile("alice"), world.profile("bob"));
    let server = world.serve();
    let client = world.openvpn(End::Client, &alice, &[]);
    let nobody = "AUTH_FAILED,TEMP:authentication is not possible at the moment";
    assert!(said(&client, nobody), "{}\n{}", client.log(), server.log());
    drop(client);
    let program = program(&world);
    let client = world.openvpn(End::Client, &bob, &[]);
    assert!(said(&client, "AUTH_FAILED,this is not \"your\" network"), "{}\n{}", client.log(), program.log());
    assert!(said(&server, "is refused: not in the group"), "{}", server.log());
    drop(client);
    let client = world.openvpn(End::Client, &alice, &["--verb", "4", "--reneg-sec", "3"]);
    assert!(said(&client, "WEB_AUTH::https://sso.example/login?state=abc"), "{}\n{}", client.log(), program.log());
    assert!(!client.log().contains("Initialization Sequence Completed"), "{}", client.log());
    assert!(!server.log().contains("alice is connected"), "{}", server.log());
    world.write("approved", "");
    assert!(said(&client, "Initialization Sequence Completed"), "{}\n{}", client.log(), program.log());
    assert!(client.log().contains("setenv-safe team blue"), "{}", client.log());
    assert_eq!(world.pings(End::Client, INSIDE, 3, "0.05", 56), 3);
    for line in [
        "> >CLIENT:ENV,common_name=alice",
        "> >CLIENT:ENV,untrusted_ip=10.99.0.2",
        "> >CLIENT:ENV,IV_PLAT=linux",
        "> >CLIENT:ESTABLISHED,",
        ",10.88.0.2,1",
    ] {
        assert!(said(&program, line), "{line}: {}", program.log());
    }
    // The renewal is asked for, too; the client's user stays the one that the program has named.
    assert!(said(&program, "> >CLIENT:REAUTH,"), "{}", program.log());
    assert!(eventually(|| world.read("vpn/tunnel.log").contains("\"event\":\"renew\"")), "{}", server.log());
    assert_eq!(world.pings(End::Client, INSIDE, 20, "0.05", 56), 20);
    assert_eq!(server.log().matches("alice is connected").count(), 1, "{}", server.log());
    let mut tool = Tool::connect(&world);
    let status = tool.ask("status 3").join("\n");
    assert!(status.contains("\talice@example.com\t"), "{status}");
    client.terminate();
    assert!(said(&program, "> >CLIENT:DISCONNECT,"), "{}", program.log());
    assert!(eventually(|| count(&world, "asked") >= 3), "{}", server.log());
}

/// A program that does not answer lets nobody in, and answers to questions that nobody has asked do nothing.
#[test]
fn no_answer_refuses() {
    let world = world!();
    world.init("management = \"manage.sock\"\nmanagement_client_auth = true\nhandshake_timeout = \"3s\"");
    let carol = world.profile("carol");
    let server = world.serve();
    let mut tool = Tool::connect(&world);
    let client = world.openvpn(End::Client, &carol, &[]);
    let question = loop {
        let line = tool.line();
        if let Some(question) = line.strip_prefix(">CLIENT:CONNECT,") {
            break question.to_owned();
        }
    };
    let (cid, kid) = question.split_once(',').expect("two numbers");
    let other: u32 = kid.parse::<u32>().expect("a number") + 1;
    for wrong in [format!("client-auth-nt {cid} {other}"), "client-auth-nt 4711 0".to_owned()] {
        assert_eq!(tool.ask(&wrong), ["ERROR: client-auth command failed: no client waits for this decision"]);
    }
    tool.say(&format!("client-auth {cid} {kid}"));
    tool.say("push \"route 10.0.0.0 255.0.0.0,peer-id 3\"");
    let answer = tool.ask("END");
    assert!(answer[0].starts_with("ERROR: client-auth command failed"), "{answer:?}");
    assert!(said(&client, "AUTH_FAILED,TEMP:authentication has taken too long"), "{}\n{}", client.log(), server.log());
    assert_eq!(
        tool.ask(&format!("client-auth-nt {cid} {kid}")),
        ["ERROR: client-auth command failed: no client waits for this decision"]
    );
    assert!(!server.log().contains("carol is connected"), "{}", server.log());
    assert!(eventually(|| count(&world, "unanswered") >= 1), "{}", server.log());
}

/// What openvpn-monitor, exporters and administrators read, and what they may do.
#[test]
fn tools_read_the_status_and_disconnect_clients() {
    let world = world!();
    world.init("management = \"manage.sock\"\nmanagement_mode = \"0660\"");
    let alice = world.profile("alice");
    let mut server = world.serve();
    let mode = std::fs::metadata(world.path(SOCKET)).expect("it is there").permissions().mode() & 0o777;
    assert_eq!(mode, 0o660);
    let client = world.connected(&alice, &["--connect-retry", "1"]);
    assert!(said(&server, "alice is connected from"), "{}", server.log());
    let mut tool = Tool::connect(&world);
    let pid = tool.ask("pid");
    assert!(world.serving().iter().any(|serving| pid == [format!("SUCCESS: pid={serving}")]), "{pid:?}");
    let first = tool.ask("status");
    assert_eq!(first[0], "OpenVPN CLIENT LIST");
    assert!(first.iter().any(|line| line.starts_with("alice,10.99.0.2:")), "{first:?}");
    assert!(first.iter().any(|line| line.starts_with("10.88.0.2,alice,")), "{first:?}");
    let second = tool.ask("status 2");
    let row = second.iter().find(|line| line.starts_with("CLIENT_LIST,alice,")).expect("the client");
    assert!(row.contains(",10.88.0.2,") && row.ends_with("AES-256-GCM"), "{row}");
    assert_eq!(tool.ask("status 3").join("\n").replace('\t', ",").lines().count(), second.len());
    let state = tool.ask("state");
    assert!(state[0].contains(",CONNECTED,SUCCESS,10.88.0.1,"), "{state:?}");
    assert!(tool.ask("log all").iter().any(|line| line.contains("alice: connect")), "the event");
    assert_eq!(tool.ask("log on"), ["SUCCESS: real-time log notification set to ON"]);
    assert!(tool.ask("load-stats")[0].starts_with("SUCCESS: nclients=1,bytesin="));
    assert_eq!(tool.ask("bytecount 1"), ["SUCCESS: bytecount interval changed"]);
    while !tool.line().starts_with(">BYTECOUNT_CLI:") {}
    assert_eq!(tool.ask("bytecount 0"), ["SUCCESS: bytecount interval changed"]);
    for (command, answer) in [
        ("hold", "SUCCESS: hold=0"),
        ("verb", "SUCCESS: verb=3"),
        ("kill nobody", "ERROR: common name 'nobody' not found"),
        ("kill 192.0.2.1:1", "ERROR: client at address 192.0.2.1:1 not found"),
        ("reboot", "ERROR: unknown command [reboot], enter 'help' for more options"),
        ("client-auth-nt 0 0", "ERROR: client-auth command failed: no client waits for this decision"),
    ] {
        assert_eq!(tool.ask(command), [answer], "{command}");
    }
    assert!(tool.ask("signal SIGTERM")[0].starts_with("ERROR: signal 'SIGTERM' is not accepted"));
    assert!(tool.ask("help").len() > 15);
    // By name, and by number.
    assert_eq!(tool.ask("kill alice"), ["SUCCESS: common name 'alice' found, 1 client(s) killed"]);
    assert!(said(&client, "Connection reset command was pushed by server"), "{}", client.log());
    let connected = |times| eventually(|| server.log().matches("alice is connected from").count() == times);
    assert!(connected(2), "{}\n{}", server.log(), client.log());
    let second = tool.ask("status 2");
    let row = second.iter().find(|line| line.starts_with("CLIENT_LIST,alice,")).expect("the client");
    let cid = row.split(',').nth(10).expect("its number").to_owned();
    assert_eq!(tool.ask(&format!("client-kill {cid} HALT")), ["SUCCESS: client-kill command succeeded"]);
    assert!(said(&client, "Halt command was pushed by server"), "{}", client.log());
    assert!(server.running());
    tool.say("quit");
    assert!(tool.ends());
    server.terminate();
    server.wait();
    assert!(!world.path(SOCKET).exists(), "a socket that nobody listens on is left");
}

/// Whoever may use the socket takes no more of the gateway than a few places and lines.
#[test]
fn programs_on_the_socket_are_bounded() {
    let world = world!();
    world.init("management = \"manage.sock\"");
    let mut server = world.serve();
    let mode = std::fs::metadata(world.path(SOCKET)).expect("it is there").permissions().mode() & 0o777;
    assert_eq!(mode, 0o600);
    let mut tools: Vec<Tool> = (0..8).map(|_| Tool::connect(&world)).collect();
    let mut refused = BufReader::new(UnixStream::connect(world.path(SOCKET)).expect("it listens"));
    let mut text = String::new();
    refused.read_to_string(&mut text).expect("a line");
    assert_eq!(text, "ERROR: too many programs are connected to this socket\r\n");
    // A line without an end.
    let mut long = tools.pop().expect("there are some");
    // It may be closed before all is written.
    let _ = long.reader.get_mut().write_all(&[b'x'; 10_000]);
    let mut rest = Vec::new();
    // What was not read when it was closed resets the connection.
    let _ = long.reader.read_to_end(&mut rest);
    assert!(String::from_utf8_lossy(&rest).starts_with("ERROR: the line is too long"), "{rest:?}");
    // One that asks and does not read.
    let mut slow = tools.pop().expect("there are some");
    slow.reader.get_mut().set_nonblocking(true).expect("a socket option");
    let dropped = || said_now(&server, "a program on the management socket reads too slowly");
    let flooded = eventually(|| {
        for _ in 0..1000 {
            let _ = slow.reader.get_mut().write(b"help\n");
        }
        dropped()
    });
    assert!(flooded, "{}", server.log());
    // Others are served, and a place is free again.
    assert_eq!(tools[0].ask("hold"), ["SUCCESS: hold=0"]);
    assert_eq!(Tool::connect(&world).ask("hold"), ["SUCCESS: hold=0"]);
    assert!(server.running());
}

fn said_now(server: &Server, text: &str) -> bool {
    server.log().contains(text)
}

/// The socket is the successor's after an upgrade, and a second gateway does not take it away.
#[test]
fn the_socket_outlives_an_upgrade() {
    let world = world!();
    world.init("management = \"manage.sock\"");
    let alice = world.profile("alice");
    let server = world.serve();
    let _client = world.connected(&alice, &[]);
    let tool = Tool::connect(&world);
    world.upgrade();
    assert!(said(&server, "1 clients taken over"), "{}", server.log());
    assert!(eventually(|| world.serving().len() == 1), "{}", server.log());
    assert!(tool.ends());
    let mut tool = Tool::connect(&world);
    assert_eq!(tool.ask("pid"), [format!("SUCCESS: pid={}", world.serving()[0])]);
    assert!(tool.ask("status 2").iter().any(|line| line.starts_with("CLIENT_LIST,alice,")));
    // Another gateway with the same path, and other ports.
    let toml = world.read("vpn/tunnel.toml").replace(":1194", ":1195").replace("admin.sock", "second.sock");
    world.write("vpn/second.toml", &toml.replace("10.88.0.0/24", "10.89.0.0/24"));
    let second = world.sealane(End::Server, &["serve", "-c", "vpn/second.toml"], b"");
    assert_ne!(second.code, Some(0));
    assert!(second.all().contains("another program listens on"), "{}", second.all());
    assert_eq!(tool.ask("hold"), ["SUCCESS: hold=0"]);
}
