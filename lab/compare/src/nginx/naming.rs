//! What the lines of a configuration name: variables of maps, zones, groups of servers.

use super::variables::{Wish, of_map};
use crate::draft::Plan;
use crate::tree::{Node, Place, walk};
use std::collections::BTreeSet;

/// What the maps ask for whose variables are used.
pub(super) fn maps(tree: &[Node], nodes: &[&Node], plan: &mut Plan) -> Vec<(Place, Wish)> {
    let mut text = String::new();
    walk(tree, &mut |n| {
        text.push_str(&n.words.join(" "));
        text.push('\n');
    });
    let mut out = Vec::new();
    for node in nodes.iter().filter(|n| matches!(n.name(), "map" | "geo" | "split_clients")) {
        let variable = node.words.last().map_or("", |w| w.trim_start_matches('$'));
        let uses = text.matches(&format!("${variable}")).count() + text.matches(&format!("${{{variable}}}")).count();
        // Once where it is made.
        if uses < 2 {
            continue;
        }
        for line in node.all("include") {
            plan.unasked(&line.place, format!("the values in {} cannot be read here", line.word(1)));
        }
        match of_map(node) {
            Some(wishes) => out.extend(wishes.into_iter().map(|w| (node.place.clone(), w))),
            None => plan.unasked(&node.place, "no request is made for its variables"),
        }
    }
    out
}

/// Most steps from a line over maps to other maps.
const MAX_NAMING: usize = 5;

/// Whether lines name what a directive of `http` makes: a variable, a zone or a group of servers.
fn is_named(node: &Node, text: &str) -> bool {
    match node.name() {
        "map" | "geo" | "split_clients" => {
            let variable = node.words.last().map_or("", |w| w.trim_start_matches('$'));
            text.contains(&format!("${variable}")) || text.contains(&format!("${{{variable}}}"))
        }
        "limit_req_zone" | "limit_conn_zone" => {
            let zone = node.words.iter().find_map(|w| w.strip_prefix("zone=")).unwrap_or_default();
            let zone = zone.split(':').next().unwrap_or_default();
            text.contains(&format!("zone={zone}")) || text.contains(&format!("limit_conn {zone} "))
        }
        "upstream" => text.contains(node.word(1)),
        _ => false,
    }
}

/// Adds the lines of what a text names, and of what these name in turn.
pub(super) fn add_named(nodes: &[&Node], mut text: String, out: &mut BTreeSet<Place>) {
    for _ in 0..MAX_NAMING {
        let before = out.len();
        for node in nodes.iter().filter(|n| !out.contains(&n.place)).copied().collect::<Vec<_>>() {
            if is_named(node, &text) {
                node.lines(out);
                walk(std::slice::from_ref(node), &mut |n| {
                    text.push_str(&n.words.join(" "));
                    text.push('\n');
                });
            }
        }
        if out.len() == before {
            break;
        }
    }
}
