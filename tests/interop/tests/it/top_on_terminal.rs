//! `sealane top` on a terminal, by its keys.

use crate::operating::Operated;
use sealane_interop::backend::{Backend, ok};
use sealane_interop::http::Message;
use sealane_interop::site::Site;
use sealane_interop::tmux::Tmux;
use sealane_interop::{binary, eventually, need, ports};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

/// Two hosts in front of a server that holds requests for `/held` until it is told.
fn started(site: &Site, release: &Arc<AtomicBool>) -> (Operated, Backend) {
    let release = release.clone();
    let backend = Backend::answering(move |request: &Message| {
        while request.target() == "/held" && !release.load(Relaxed) {
            std::thread::sleep(Duration::from_millis(5));
        }
        ok(b"hello")
    });
    let listen = ports::free();
    let (cert, key) = (&site.ecdsa.cert, &site.ecdsa.key);
    let file = |admin: &str| {
        format!(
            "{admin}[[listener]]\naddress = \"{listen}\"\n[listener.tls]\ncertificates = {{ cert = {cert:?}, key = {key:?} }}\n\
             [[host]]\nnames = [\"a.example\"]\nupstream = \"app\"\n[[host]]\nnames = [\"b.example\"]\nrespond = {{ body = \"b\" }}\n\
             [[upstream]]\nname = \"app\"\nservers = [{:?}]\n",
            backend.url()
        )
    };
    (Operated::start(site, 1, file, listen), backend)
}

/// A script that runs `top`, and notes the terminal's modes before and after.
fn script(socket: &Path, ended: &str) -> String {
    format!(
        "stty -g >modes-before; {:?} top --socket {socket:?}; echo \"ended with $?\"; stty -g >modes-after; echo {ended}; exec sleep 1000",
        binary::sealane()
    )
}

fn get(running: &Operated, host: &str, path: &str) {
    let head = format!("GET {path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n");
    // A held request may last longer than the test waits.
    let _ = running.gateway.exchange(head);
}

#[test]
fn top_is_used_by_its_keys_and_leaves_the_terminal_as_it_was() {
    let tmux = need!("tmux");
    let (site, release) = (Site::new(), Arc::new(AtomicBool::new(false)));
    let (running, backend) = started(&site, &release);
    get(&running, "a.example", "/");
    get(&running, "b.example", "/");
    let terminal = Tmux::start(&tmux, site.path(), (120, 40), &script(&running.socket, "the-end"));
    terminal.shows(&["serving", "clients", "q quit", "0 overview"]);
    assert_eq!((terminal.value("alternate_on"), terminal.value("cursor_flag")), ("1".to_owned(), "0".to_owned()));

    // Tables, and their order.
    terminal.press(&["1"]);
    terminal.shows(&["per_second v", "a.example", "b.example"]);
    terminal.press(&["s"]);
    terminal.shows(&["4xx v"]);
    terminal.press(&["r"]);
    terminal.shows(&["4xx ^"]);
    terminal.press(&["S"]);
    terminal.shows(&["per_second v"]);
    // A search, in which letters are letters.
    terminal.press(&["/", "b", ".", "e", "x"]);
    terminal.shows(&["find: b.ex", "b.example"]);
    terminal.hides(&["a.example"]);
    terminal.press(&["Enter"]);
    terminal.shows(&["only rows with \"b.ex\""]);
    // A row by itself.
    terminal.press(&["Enter"]);
    terminal.shows(&["host  b.example", "Esc back"]);
    terminal.press(&["Escape"]);
    terminal.shows(&["only rows with"]);
    terminal.press(&["Escape"]);
    terminal.shows(&["a.example", "b.example"]);
    terminal.press(&["Tab"]);
    terminal.shows(&["in_use", "app"]);
    terminal.press(&["BTab"]);
    terminal.shows(&["per_second"]);
    terminal.press(&["!"]);
    terminal.shows(&["no problem is known"]);
    terminal.press(&["c"]);
    terminal.shows(&["! ", "c clients"]);

    // A request under way, inspected while it waits and when it is over.
    std::thread::scope(|scope| {
        scope.spawn(|| get(&running, "a.example", "/held"));
        assert!(eventually(|| backend.requests().iter().any(|request| request.target() == "/held")));
        terminal.press(&["8"]);
        terminal.shows(&["open_for", "/held", "the head of the server's response"]);
        terminal.press(&["Enter"]);
        terminal.shows(&["path  /held", "waits_for  the head of the server's response"]);
        let age = || {
            let screen = terminal.screen();
            screen.lines().find_map(|line| line.trim().strip_prefix("open_for").map(str::to_owned))
        };
        let first = age();
        assert!(eventually(|| age() != first), "what is shown is live: {first:?}");
        release.store(true, Relaxed);
        terminal.shows(&["This row no longer exists", "path  /held"]);
    });
    terminal.press(&["Escape"]);
    terminal.shows(&["no open requests"]);

    // Another size.
    terminal.ask(&["resize-window", "-x", "60", "-y", "15"]);
    terminal.shows(&["q quit"]);
    terminal.press(&["0"]);
    let fits =
        || terminal.screen().lines().all(|line| line.chars().count() <= 60) && terminal.screen().contains("lane");
    assert!(eventually(fits), "{}", terminal.screen());

    terminal.press(&["q"]);
    terminal.shows(&["ended with 0", "the-end"]);
    assert_eq!((terminal.value("alternate_on"), terminal.value("cursor_flag")), ("0".to_owned(), "1".to_owned()));
    let modes = |name: &str| std::fs::read_to_string(site.path().join(name)).expect("the script has written it");
    assert_eq!(modes("modes-before"), modes("modes-after"));
}

#[test]
fn ctrl_c_ends_it_and_a_gateway_that_goes_does_not() {
    let tmux = need!("tmux");
    let (site, release) = (Site::new(), Arc::new(AtomicBool::new(false)));
    let (running, _backend) = started(&site, &release);
    let terminal = Tmux::start(&tmux, site.path(), (100, 30), &script(&running.socket, "the-end"));
    terminal.shows(&["serving"]);
    let socket = running.socket.clone();
    drop(running);
    terminal.shows(&[&socket.display().to_string(), "q quit"]);
    terminal.press(&["C-c"]);
    terminal.shows(&["ended with 0", "the-end"]);
    assert_eq!((terminal.value("alternate_on"), terminal.value("cursor_flag")), ("0".to_owned(), "1".to_owned()));
}
