//! `error_page` and `maintenance`: what clients get in the place of plain texts.

use super::access;
use super::decode::{At, Node, Section};
use super::diagnostics::Sink;
use super::files;
use super::host::MAX_BODY;
use super::plan;
use super::route::Routes;
use super::settings::{error_page as e, maintenance as m};
use sealane_proxy::pages::{ErrorPage, Maintenance, Page};
use std::path::{Path, PathBuf};
use toml::de::DeValue;

/// `404`, `"500-599"`, or a list of these.
pub(super) fn statuses(sink: &Sink, key: &str, node: &Node) -> Option<Vec<(u16, u16)>> {
    let nodes: Vec<&Node> = match node.get_ref() {
        DeValue::Array(list) => list.iter().collect(),
        _ => vec![node],
    };
    if nodes.is_empty() {
        sink.error(&node.span(), format!("\"{key}\" is empty"), Some(format!("write {key} = [404, \"500-599\"]")));
        return None;
    }
    let wanted = nodes.len();
    let one = |node: &Node| {
        let help = format!("write {key} = [404, \"500-599\"]");
        let range = plan::statuses_as_in(sink, key, node, &help)?;
        if range.0 < 400 {
            sink.error(&node.span(), "an error page is for statuses from 400 to 599", Some(help));
            return None;
        }
        Some(range)
    };
    let good: Vec<(u16, u16)> = nodes.into_iter().filter_map(one).collect();
    (good.len() == wanted).then_some(good)
}

/// Reads an `error_page` of a host or a route.
pub(super) fn error_page(section: Section, routes: &mut Routes) -> Option<ErrorPage> {
    let sink = section.sink;
    let statuses = section.required(&e::statuses);
    let file = section.required(&e::file);
    let content_type = section.optional_at(&e::content_type);
    let for_upstream = section.or(&e::upstream);
    let status = section.optional(&e::status).and_then(|status| u16::try_from(status).ok());
    section.finish();
    if let (Some(statuses), true) = (&statuses, for_upstream)
        && statuses.value.iter().all(|(_, to)| *to < 500)
    {
        let help = "with upstream = true, write statuses of 500 or higher: the gateway never replaces other responses of servers";
        sink.warn(&statuses.span, "\"upstream\" has no effect below status 500", Some(help.to_owned()));
    }
    let page = page(sink, file?, content_type, routes);
    Some(ErrorPage { statuses: statuses?.value, for_upstream, page, status })
}

/// Reads the `maintenance` of a host or a route. `None` inside: it is off.
pub(super) fn maintenance(section: Section, routes: &mut Routes) -> Option<Maintenance> {
    let sink = section.sink;
    let enabled = section.or(&m::enabled);
    let page_file = section.optional_at(&m::page);
    let content_type = section.optional_at(&m::content_type);
    let retry_after = section.optional(&m::retry_after);
    let access = access::read_allowed(&section, &m::allow, &m::allow_file, &mut routes.access);
    section.finish();
    let page = page_file.map(|file| page(sink, file, content_type, routes));
    enabled.then(|| Maintenance { access, retry_after: retry_after.map(|d| d.as_secs().max(1)), page })
}

/// The media type of a file of this name.
pub(super) fn by_name(file: &Path) -> &'static str {
    match file.extension().and_then(|e| e.to_str()) {
        Some("json") => "application/json",
        Some("txt") => "text/plain; charset=utf-8",
        _ => "text/html; charset=utf-8",
    }
}

/// Reads a file with the body of a response.
pub(super) fn body(sink: &Sink, what: &str, file: &At<PathBuf>) -> Vec<u8> {
    let help = "correct the path, or create the file, with the text of the response";
    let body = files::read_or(sink, what, file, help).unwrap_or_default();
    // It is copied whole for each response.
    if body.len() > MAX_BODY {
        let help = "leave images and scripts to another host".to_owned();
        sink.error(&file.span, format!("{} has more than {} KiB", file.value.display(), MAX_BODY >> 10), Some(help));
    }
    body.to_vec()
}

/// Reads the file of a page. Returns its index.
fn page(sink: &Sink, file: At<PathBuf>, content_type: Option<At<String>>, routes: &mut Routes) -> usize {
    let media_type = |s: &str| s.contains('/') && s.bytes().all(|b| (0x20..0x7f).contains(&b));
    if let Some(value) = content_type.as_ref().filter(|c| !media_type(&c.value)) {
        let help = Some("write \"text/html; charset=utf-8\"".to_owned());
        sink.error(&value.span, "\"content_type\" does not name a media type", help);
    }
    let content_type = content_type.map_or_else(|| by_name(&file.value).to_owned(), |c| c.value);
    let page = Page { content_type, body: body(sink, "page", &file) };
    // Hosts often have the same one.
    routes.pages.iter().position(|known| *known == page).unwrap_or_else(|| {
        routes.pages.push(page);
        routes.pages.len() - 1
    })
}
