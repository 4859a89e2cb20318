//! `client-config-dir`, as tables of clients.

use super::super::ovpn_file::{self, Directive};
use super::super::profile::read;
use super::directive::{NO_NETWORK, network_of, not_pushed};
use super::{Writer, counting, list, quoted};
use sealane_tunnel::plane::Prefix;
use std::path::Path;

/// What editors and packages leave in a folder.
fn is_leftover(name: &str) -> bool {
    let ends =
        ["~", ".bak", ".orig", ".swp", ".swo", ".tmp", ".rpmsave", ".rpmnew", ".dpkg-old", ".dpkg-dist", ".dpkg-new"];
    name.starts_with(['.', '#']) || ends.iter().any(|end| name.ends_with(end))
}

/// `client-config-dir`: a file per client. The tables, and the networks behind clients.
pub(super) fn clients(folder: Option<&Path>, w: &mut Writer) -> (String, Vec<Prefix>) {
    let (mut text, mut behind) = (String::new(), Vec::new());
    let Some(folder) = folder else { return (text, behind) };
    let entries = match std::fs::read_dir(folder) {
        Ok(entries) => entries,
        Err(e) => {
            w.out.undecided.push(format!("client-config-dir {}: {e}", folder.display()));
            return (text, behind);
        }
    };
    let mut paths: Vec<_> = entries.filter_map(|e| e.ok().map(|e| e.path())).filter(|p| p.is_file()).collect();
    paths.sort();
    for path in paths {
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        if is_leftover(&name) {
            w.out.notes.push(format!("{}: skipped: this is a backup copy of an editor or a package", path.display()));
            continue;
        }
        let directives = match read(&path).and_then(|t| ovpn_file::parse(&t)) {
            Ok(directives) => directives,
            Err(e) => {
                w.out.undecided.push(format!("{e:#}"));
                continue;
            }
        };
        let at =
            |d: &Directive, why: &str| format!("{}, line {}: {}: {why}", path.display(), d.line, d.words.join(" "));
        let decide = |w: &mut Writer, d: &Directive, why: &str| w.out.undecided.push(at(d, why));
        let directives = counting(directives, &mut w.out.notes);
        // For clients without a file of their own.
        if name == "DEFAULT" {
            let mut push = Vec::new();
            for d in &directives {
                match (d.name(), d.arguments().as_slice()) {
                    ("disable", _) => w.set("known_clients_only", "true"),
                    ("push", [option, ..]) => match not_pushed(option) {
                        Some(why) => w.out.notes.push(at(d, why)),
                        None => push.push((*option).to_owned()),
                    },
                    _ => decide(w, d, "is for one client, and cannot apply to all clients without a file"),
                }
            }
            if !push.is_empty() {
                w.set("push_unlisted", &list(&push));
            }
            continue;
        }
        text.push_str(&format!("\n[[tunnel.client]]\nname = {}\n", quoted(&name)));
        let (mut routes, mut push) = (Vec::new(), Vec::new());
        for d in &directives {
            match (d.name(), d.arguments().as_slice()) {
                ("ifconfig-push", [address, ..]) => text.push_str(&format!("address = {}\n", quoted(address))),
                ("ifconfig-ipv6-push", [address, ..]) => {
                    let address = address.split('/').next().unwrap_or(address);
                    text.push_str(&format!("address6 = {}\n", quoted(address)));
                }
                ("iroute", [network, rest @ ..]) => {
                    let network = network_of(network, rest.first().copied());
                    match network.filter(|network| network.parse::<Prefix>().is_ok()) {
                        Some(network) => routes.push(network),
                        None => decide(w, d, NO_NETWORK),
                    }
                }
                ("iroute-ipv6", [network, ..]) if network.parse::<Prefix>().is_ok() => {
                    routes.push((*network).to_owned());
                }
                ("iroute-ipv6", _) => decide(w, d, NO_NETWORK),
                ("push", [option, ..]) => match not_pushed(option) {
                    Some(why) => w.out.notes.push(at(d, why)),
                    None => push.push((*option).to_owned()),
                },
                ("disable", _) => text.push_str("disabled = true\n"),
                _ => decide(w, d, "is not understood"),
            }
        }
        behind.extend(routes.iter().filter_map(|r| r.parse::<Prefix>().ok()));
        for (key, items) in [("routes", routes), ("push", push)] {
            if !items.is_empty() {
                text.push_str(&format!("{key} = {}\n", list(&items)));
            }
        }
    }
    (text, behind)
}
