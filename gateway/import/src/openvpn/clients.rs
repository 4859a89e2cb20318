//! `client-config-dir`, as tables of clients.

use super::directive::{NO_NETWORK, network_of, not_pushed};
use super::{Noted, Writer, place, read};
use crate::output::{Settings, list, quoted};
use sealane_tunnel::plane::Prefix;
use std::path::Path;

/// Most files of clients.
const MAX_CLIENTS: usize = 20_000;

/// What editors and packages leave in a folder.
fn is_leftover(name: &str) -> bool {
    let ends =
        ["~", ".bak", ".orig", ".swp", ".swo", ".tmp", ".rpmsave", ".rpmnew", ".dpkg-old", ".dpkg-dist", ".dpkg-new"];
    name.starts_with(['.', '#']) || ends.iter().any(|end| name.ends_with(end))
}

/// Reads the folder of a `client-config-dir`, a file per client. Returns the networks behind clients.
pub(super) fn clients(of: &Noted, folder: &Path, w: &mut Writer) -> Vec<Prefix> {
    let mut behind = Vec::new();
    let mut names = match w.reader.list(folder) {
        Ok(names) if names.len() <= MAX_CLIENTS => names,
        Ok(names) => {
            let says = format!(
                "the folder has {} files, and the import reads at most {MAX_CLIENTS}: write [[tunnel.client]]",
                names.len()
            );
            w.decide(of, says);
            return behind;
        }
        Err(e) => {
            w.decide(of, format!("the folder {} cannot be read: {e}", folder.display()));
            return behind;
        }
    };
    names.sort();
    for name in names {
        let path = folder.join(&name);
        if is_leftover(&name) {
            let id = w.report.record(place(&path, 1), "the whole file".to_owned());
            w.report.same(id, "skipped: this is a backup copy of an editor or a package");
            continue;
        }
        let directives = match read(w.reader, &path) {
            Ok(directives) => w.counting(&path, directives),
            Err(e) => {
                let id = w.report.record(e.place, "the whole file".to_owned());
                w.report.decide(id, e.what);
                continue;
            }
        };
        match name.as_str() {
            // For clients without a file of their own.
            "DEFAULT" => default(&directives, w),
            name => one(name, &path, &directives, w, &mut behind),
        }
    }
    behind
}

/// The file for clients that have none.
fn default(directives: &[Noted], w: &mut Writer) {
    let mut push = Vec::new();
    for n in directives {
        match (n.name(), n.arguments().as_slice()) {
            ("disable", _) => {
                w.set(n, "known_clients_only", "true");
                w.same(n, "known_clients_only");
            }
            ("push", [option, ..]) => pushed(n, option, w, &mut push),
            _ => w.decide(
                n,
                "is for one client, but DEFAULT is for all clients that have no file of their own: write this setting \
                 in the [[tunnel.client]] of each client that needs it",
            ),
        }
    }
    if let (Some(first), false) = (directives.first(), push.is_empty()) {
        w.set(first, "push_unlisted", list(&push));
    }
}

/// An option for clients.
fn pushed(n: &Noted, option: &str, w: &mut Writer, push: &mut Vec<String>) {
    match not_pushed(option) {
        Some((outcome, why)) => w.report.say(n.id, outcome, why),
        None => {
            push.push(option.to_owned());
            w.same(n, "push");
        }
    }
}

/// The file of one client.
fn one(name: &str, path: &Path, directives: &[Noted], w: &mut Writer, behind: &mut Vec<Prefix>) {
    let mut out = Settings::default();
    out.set("name", quoted(name), &place(path, 1));
    let (mut routes, mut push) = (Vec::new(), Vec::new());
    for n in directives {
        let mut set = |key: &str, value: String, w: &mut Writer| {
            out.set(key, value, &n.place);
            w.same(n, key);
        };
        match (n.name(), n.arguments().as_slice()) {
            ("ifconfig-push", [address, ..]) => set("address", quoted(address), w),
            ("ifconfig-ipv6-push", [address, ..]) => {
                let address = address.split('/').next().unwrap_or(address);
                set("address6", quoted(address), w);
            }
            ("iroute", [network, rest @ ..]) => {
                let network = network_of(network, rest.first().copied());
                match network.filter(|network| network.parse::<Prefix>().is_ok()) {
                    Some(network) => {
                        routes.push(network);
                        w.same(n, "routes");
                    }
                    None => w.decide(n, NO_NETWORK),
                }
            }
            ("iroute-ipv6", [network, ..]) if network.parse::<Prefix>().is_ok() => {
                routes.push((*network).to_owned());
                w.same(n, "routes");
            }
            ("iroute-ipv6", _) => w.decide(n, NO_NETWORK),
            ("push", [option, ..]) => pushed(n, option, w, &mut push),
            ("disable", _) => set("disabled", "true".to_owned(), w),
            _ => w.decide(n, crate::report::UNREAD),
        }
    }
    behind.extend(routes.iter().filter_map(|r| r.parse::<Prefix>().ok()));
    for (key, items, of) in [("routes", routes, "iroute"), ("push", push, "push")] {
        if !items.is_empty() {
            let first = directives.iter().find(|n| n.name().starts_with(of));
            out.set(key, list(&items), &first.map_or_else(|| place(path, 1), |n| n.place.clone()));
        }
    }
    w.out.tunnel_clients.push(out);
}
