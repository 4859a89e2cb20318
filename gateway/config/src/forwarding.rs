//! What a route says of its requests' way to upstreams, beyond the group that they go to: `mirror`.

use super::decode::{At, Node, Section};
use super::diagnostics::Sink;
use super::host::{self, Upstreams};
use super::settings::mirror as m;
use super::upstream::{self, Context, Entry};
use sealane_proxy::forwarding::Forwarding;
use sealane_proxy::mirrors;
use sealane_proxy::snapshot::Action;
use std::time::Duration;
use toml::de::DeValue;

/// What `mirror` says.
pub(super) enum Mirror {
    /// `false`: there are no copies.
    Off,
    /// Copies go there.
    On(Copies),
}

/// Where copies go, and what bounds them.
pub(super) struct Copies {
    upstream: Option<At<String>>,
    to: Option<At<Vec<Entry>>>,
    percent: u32,
    max_body: usize,
    max_requests: usize,
    timeout: Duration,
    remove: Vec<String>,
}

pub(super) fn mirror(sink: &Sink, key: &str, node: &Node) -> Option<Mirror> {
    let table = match node.get_ref() {
        DeValue::Boolean(false) => return Some(Mirror::Off),
        DeValue::Table(table) => table,
        _ => {
            let help =
                format!("write {key} = {{ upstream = \"shadow\", percent = 10 }}, or {key} = false in a route");
            sink.error(&node.span(), format!("\"{key}\" is neither a table nor false"), Some(help));
            return None;
        }
    };
    let section = Section::new(sink, &m::TABLE, table, node.span());
    let copies = Copies {
        upstream: section.optional_at(&m::upstream),
        to: section.optional_at(&m::to),
        percent: section.or(&m::percent) as u32,
        max_body: section.or(&m::max_body) as usize,
        max_requests: section.or(&m::max_requests) as usize,
        timeout: section.or(&m::timeout),
        remove: section.optional(&m::remove_headers).unwrap_or_default(),
    };
    let names_upstream = ["upstream", "to"].iter().any(|key| section.key_span(key).is_some());
    section.finish();
    match (&copies.upstream, &copies.to) {
        // What is wrong with it is told already.
        (None, None) if names_upstream => return None,
        (None, None) => {
            let help = format!("write {key} = {{ upstream = \"shadow\" }}, or {key} = {{ to = [\"http://127.0.0.1:3001\"] }}");
            sink.error(&node.span(), format!("\"{key}\" does not say where copies go"), Some(help));
            return None;
        }
        (Some(_), Some(to)) => {
            let help = "keep one of them".to_owned();
            sink.error(&to.span, "\"upstream\" and \"to\" exclude each other", Some(help));
            return None;
        }
        _ => {}
    }
    Some(Mirror::On(copies))
}

/// The rule for copies, with the index of their upstream. `None` inside: there are no copies.
pub(super) fn rule(
    section: &Section,
    written: At<Mirror>,
    label: &str,
    upstreams: &mut Upstreams,
    context: &mut Context,
) -> Option<Option<At<mirrors::Mirror>>> {
    let sink = section.sink;
    let At { value: Mirror::On(copies), span } = written else { return Some(None) };
    let upstream = match (copies.upstream, copies.to) {
        (Some(name), _) => {
            let place = name.span.clone();
            let index = host::reference(section, name, upstreams)?;
            if upstreams.all[index].proxy_protocol.is_some() {
                let help = "write a second [[upstream]] without it: a copy has no client to tell of".to_owned();
                sink.error(&place, "\"mirror\" and \"proxy_protocol\" exclude each other", Some(help));
                return None;
            }
            index
        }
        (None, Some(list)) => {
            let name = upstreams.unused_name(&format!("{label} mirror"));
            let (upstream, plan) = upstream::anonymous(sink, &name, &list, context)?;
            upstreams.push(upstream, plan)
        }
        (None, None) => return None,
    };
    let value = mirrors::Mirror {
        upstream,
        percent: copies.percent,
        max_body: copies.max_body,
        max_requests: copies.max_requests,
        timeout: copies.timeout,
        remove: copies.remove,
    };
    Some(Some(At { value, span }))
}

/// What a host or a route says beside its action.
#[derive(Clone, Default)]
pub(super) struct Also {
    pub mirror: Option<At<mirrors::Mirror>>,
}

impl Also {
    /// Puts it into an action that forwards. `own`: it stands in the same table as the action.
    pub fn with(self, sink: &Sink, action: Action, own: bool) -> Action {
        let mut by = match action {
            Action::Proxy { upstream } => Forwarding { upstream, mirror: None },
            Action::Forward(by) => *by,
            other => {
                if let Some(mirror) = self.mirror.filter(|_| own) {
                    let help = "remove it: there is no request to an upstream that could be copied".to_owned();
                    sink.error(&mirror.span, "\"mirror\" without an upstream", Some(help));
                }
                return other;
            }
        };
        if let Some(mirror) = &self.mirror
            && by.upstreams().any(|upstream| upstream == mirror.value.upstream)
        {
            let help = "name another upstream: these servers would get each request twice".to_owned();
            sink.error(&mirror.span, "\"mirror\" names the upstream that gets the requests", Some(help));
        }
        by.mirror = self.mirror.map(|mirror| mirror.value);
        match by.only_upstream() {
            Some(upstream) if by.mirror.is_none() => Action::Proxy { upstream },
            _ => Action::Forward(Box::new(by)),
        }
    }
}
