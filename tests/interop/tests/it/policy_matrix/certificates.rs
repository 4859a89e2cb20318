//! Certificates in every state, in full, resumed and early handshakes.

use super::*;
use sealane_interop::eventually;
use std::collections::BTreeMap;

/// As which reasons a refused client is counted. The versions of HTTP have not the same reason for every certificate that is not valid.
fn reasons(state: State) -> &'static [&'static str] {
    match state {
        State::Without => &["no_client_certificate"],
        State::Revoked => &["certificate_revoked"],
        State::Expired => &["certificate_expired"],
        _ => &["bad_certificate"],
    }
}

#[test]
fn full_handshakes() {
    let world = World::start();
    let mut refused = BTreeMap::new();
    for listener in [Listener::First, Listener::Second] {
        for speaks in ALL {
            for sni in NAMES {
                for state in STATES {
                    let browser = world.browser(listener, speaks);
                    browser.show(state);
                    let visit = browser.visit(sni, &NAMES);
                    let what = format!("{listener:?}, {speaks:?}, {sni}, {state:?}");
                    let may = RULES.admits(listener, sni, state);
                    judge(&what, RULES, listener, sni, may, &NAMES, &visit);
                    if !may {
                        *refused.entry(reasons(state)).or_insert(0.0) += 1.0;
                    }
                }
            }
        }
    }
    assert!(world.gateway().metric("sealane_misdirected_requests_total") > Some(0.0));
    assert_eq!(refused.len(), 4, "{refused:?}");
    for (reasons, count) in refused {
        let counted = || reasons.iter().map(|reason| world.gateway().failed_handshakes(reason)).sum::<f64>();
        assert!(eventually(|| counted() == count), "{reasons:?}: {count} are expected, not {}", counted());
    }
}

/// A session of a client with a valid certificate, when the client shows another one: the session counts, under its own name only.
#[test]
fn resumed() {
    let world = World::start();
    for listener in [Listener::First, Listener::Second] {
        for speaks in ALL {
            for from in GROUPS {
                for sni in GROUPS {
                    for state in STATES {
                        let browser = world.browser(listener, speaks);
                        browser.prime(from, State::Valid);
                        let resumes = browser.has_session() && sni == from;
                        browser.show(state);
                        let visit = browser.visit(sni, &NAMES);
                        let what = format!("{listener:?}, {speaks:?}, {sni} with a session of {from}, {state:?}");
                        let may = resumes || RULES.admits(listener, sni, state);
                        judge(&what, RULES, listener, sni, may, &NAMES, &visit);
                    }
                }
            }
        }
    }
    assert!(world.gateway().metric_with("sealane_handshakes_total", "kind=\"resumed\"") > Some(0.0));
}

/// A session that allows early data, under every name and with every certificate.
#[test]
fn early() {
    let world = World::start();
    let mut accepted = 0;
    for speaks in [Speaks::H1, Speaks::H2, Speaks::H3] {
        for sni in GROUPS {
            for host in GROUPS {
                for state in STATES {
                    let browser = world.browser(Listener::First, speaks);
                    browser.prime("public.example.test", State::Valid);
                    browser.show(state);
                    let visit = browser.visit(sni, &[host]);
                    let what = format!("{speaks:?}, {sni} for {host}, {state:?}");
                    let may = RULES.admits(Listener::First, sni, state);
                    judge(&what, RULES, Listener::First, sni, may, &[host], &visit);
                    accepted += usize::from(visit.early.1);
                }
            }
        }
    }
    assert!(accepted > 0);
}
