//! Rules that change by a reload or an upgrade, while clients have connections and sessions of before.

use super::*;
use crate::operating::{Other, order};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum How {
    Reload,
    Upgrade,
}

const OFF: Rules = Rules { on: false, ..RULES };

/// From which rules to which.
const CHANGES: [(&str, Rules, Rules); 6] = [
    ("nothing changes", RULES, RULES),
    ("another certificate is revoked", RULES, Rules { revokes_valid: true, ..RULES }),
    ("another authority is trusted", RULES, Rules { other_authority: true, ..RULES }),
    ("names change places", RULES, Rules { swapped: true, ..RULES }),
    ("the rules are removed", RULES, OFF),
    ("rules are added", OFF, RULES),
];

/// The certificates that are valid under one of these rules, and none.
const HOLDERS: [State; 4] = [State::Without, State::Valid, State::Revoked, State::OtherAuthority];

/// A client of before the change.
struct Client {
    browser: Browser,
    listener: Listener,
    /// The name of its connection or session.
    from: &'static str,
    holder: State,
    what: String,
}

/// The clients that get a connection under these rules: with every version, under a name of every group, with every certificate.
fn clients(world: &World, rules: Rules) -> Vec<Client> {
    let mut clients = Vec::new();
    for listener in [Listener::First, Listener::Second] {
        for speaks in ALL {
            for from in GROUPS {
                for holder in HOLDERS.into_iter().filter(|holder| rules.admits(listener, from, *holder)) {
                    let browser = world.browser(listener, speaks);
                    let what = format!("{listener:?}, {speaks:?}, {from}, {holder:?}");
                    clients.push(Client { browser, listener, from, holder, what });
                }
            }
        }
    }
    clients
}

/// What becomes of a request on a connection that is older than the rules.
fn judge_open(what: &str, how: How, before: Rules, after: Rules, client: &Client, host: &str, outcome: &Outcome) {
    let rule = before.rule(client.listener, client.from);
    let wanted = match after.rule(client.listener, host) == rule {
        true => Outcome::Served(owner(host).to_owned()),
        false => Outcome::Misdirected,
    };
    let may = match how {
        // The rules of a connection end with it.
        How::Reload if !after.has(client.listener, rule) => *outcome != Outcome::Served(owner(host).to_owned()),
        How::Reload => *outcome == wanted,
        // It stays with the process of before, which has its own configuration and says good-bye.
        How::Upgrade => [before.wanted(client.listener, client.from, host), Outcome::Refused].contains(outcome),
    };
    assert!(may, "{host} on an open connection of {}: {outcome:?}: {what}", client.what);
}

fn change(how: How, name: &str, before: Rules, after: Rules) {
    let mut world = World::with(before);
    let what = format!("{how:?}, {name}");
    // Sessions, each to be used once: under its name or another, with the certificate of then or none.
    let mut visitors = Vec::new();
    for other in [false, true] {
        for with in [false, true] {
            for client in clients(&world, before) {
                if with && client.holder == State::Without {
                    continue;
                }
                client.browser.prime(client.from, client.holder);
                let shown = if with { client.holder } else { State::Without };
                let at = GROUPS.iter().position(|name| *name == client.from).expect("it is one of them");
                let sni = if other { GROUPS[(at + 1) % GROUPS.len()] } else { client.from };
                visitors.push((client, sni, shown));
            }
        }
    }
    // Open connections.
    let mut opened = Vec::new();
    for client in clients(&world, before) {
        client.browser.show(client.holder);
        let mut open = client.browser.open(client.from, client.from).unwrap_or_else(|_| panic!("{}", client.what));
        assert_eq!(open.ask(client.from), Outcome::Served(owner(client.from).to_owned()), "{}", client.what);
        opened.push((client, open));
    }
    world.write(after);
    let mut successor = None;
    match how {
        How::Reload => assert_eq!(order(&world.operated.socket, "reload").expect("the file is good"), "reloaded\n"),
        How::Upgrade => {
            order(&world.operated.socket, "upgrade").expect("the same program can be started again");
            successor = Some(Other::of(&world.operated));
        }
    }
    for (client, mut open) in opened {
        for host in GROUPS {
            let outcome = open.ask(host);
            judge_open(&what, how, before, after, &client, host, &outcome);
            if outcome == Outcome::Refused {
                break;
            }
        }
        open.close();
    }
    if successor.is_some() {
        // Until then, it may take a client that it has accepted before.
        assert_eq!(world.operated.gateway.server.wait().code(), Some(0));
    }
    for (client, sni, shown) in visitors {
        let listener = client.listener;
        let same = before.rule(listener, sni) == after.rule(listener, sni);
        let resumes = client.browser.has_session() && sni == client.from && same;
        client.browser.show(shown);
        let visit = client.browser.visit(sni, &NAMES);
        let may = resumes || after.admits(listener, sni, shown);
        let what = format!("{sni} with a session of {}, showing {shown:?}: {what}", client.what);
        judge(&what, after, listener, sni, may, &NAMES, &visit);
    }
    for listener in [Listener::First, Listener::Second] {
        for speaks in ALL {
            for sni in GROUPS {
                for state in STATES {
                    let browser = world.browser(listener, speaks);
                    browser.show(state);
                    let visit = browser.visit(sni, &NAMES);
                    let what = format!("{listener:?}, {speaks:?}, {sni}, {state:?}: {what}");
                    judge(&what, after, listener, sni, after.admits(listener, sni, state), &NAMES, &visit);
                }
            }
        }
    }
    plain(&world, after, &what);
}

/// Without TLS, a name that requires a certificate is redirected.
pub(super) fn plain(world: &World, rules: Rules, what: &str) {
    for host in NAMES {
        let secret = requires(rules.group(Listener::First, host));
        let mut wire = Wire::new(client::tcp(world.plain));
        wire.send(h1_request(host)).expect("the gateway reads");
        let response = wire.response("GET").expect("it answers");
        let to = format!("https://{host}:{}/", world.gateway().address.port());
        match secret {
            true => {
                assert_eq!((response.status(), response.header("location")), (308, Some(to.as_str())), "{host}: {what}")
            }
            false => assert_eq!((response.status(), response.text().as_str()), (200, owner(host)), "{host}: {what}"),
        }
        let mut frames = Frames::plain(world.plain, &[]);
        frames.stream.write_all(&h2_request(1, host)).expect("the gateway reads");
        let body = h2_body(&mut frames, 1);
        assert_eq!(body.as_deref(), Some(if secret { "" } else { owner(host) }), "HTTP/2, {host}: {what}");
    }
}

#[test]
fn after_a_reload() {
    CHANGES.into_iter().for_each(|(name, before, after)| change(How::Reload, name, before, after));
}

#[test]
fn after_an_upgrade() {
    CHANGES.into_iter().for_each(|(name, before, after)| change(How::Upgrade, name, before, after));
}
