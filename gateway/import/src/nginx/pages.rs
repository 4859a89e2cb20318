//! `error_page`, where it names a file.

use super::actions::PASSES;
use super::auth;
use super::locations::Site;
use super::parser::Directive;
use super::scope::{Import, Scope};
use super::variables::has_variables;
use crate::output::{Action, ErrorPage};

const FILES: &str =
    "the import translates only pages that are files, and did not find a file for this URI: write error_page";

const SUCCESS: &str = "an error_page of Sealane has the status of the error, or another one from 400 to 599: let the server send this page";

/// What takes the place of a page for those whom the server of `auth_request` refuses.
const REFUSED: &str = "with forward_auth, the client gets the response of the server that is asked, with its status and body: let this server \
     send what clients are to see";

/// The same, where the page leads to a login.
const LOGIN: &str = "with forward_auth, the client gets the response of the server that is asked: let this server redirect to the login page. \
     oauth2-proxy does this at the path \"/\" if it has reverse_proxy = true and upstreams = [\"static://202\"]: then write path = \"/\" in forward_auth";

/// What gRPC clients do without a page.
const GRPC: &str = "an error_page cannot send grpc-status. A gRPC client derives the gRPC status from the HTTP \
                    status of the gateway's error: 14 UNAVAILABLE (from 429, 502, 503, 504), 16 UNAUTHENTICATED \
                    (401), 7 PERMISSION_DENIED (403) or 12 UNIMPLEMENTED (404). If this is enough, nothing needs to \
                    be done";

/// The pages of a location.
pub(super) fn pages<'d>(import: &mut Import<'d>, site: &Site<'d>, scope: &Scope<'d>) -> Vec<ErrorPage> {
    let all = scope.all(&["error_page"]);
    let intercept = scope.value("proxy_intercept_errors").filter(|(_, value)| *value == "on").map(|(d, _)| d);
    let mut out = Vec::new();
    // Elsewhere in the server, nobody is asked, and so nobody is refused in this way.
    let asks = site.asks() || auth::asks(scope);
    for d in all {
        let statuses = d.arguments();
        let target = statuses.last().copied().unwrap_or_default();
        if target.starts_with('@') {
            site.used_by_pages(import, target);
        }
        if asks && statuses.first().is_some_and(|s| matches!(*s, "401" | "403")) && !statuses.contains(&"500") {
            import.missing(d, if site.leads_on(target) { LOGIN } else { REFUSED });
            continue;
        }
        if scope.blocks().next().is_some_and(|b| b.iter().any(|d| d.name() == "grpc_pass")) {
            import.missing(d, GRPC);
            continue;
        }
        let page = match page(site, d) {
            Ok(page) => page,
            Err(why) => {
                match plain(site, d) {
                    Some(status) => import.missing(
                        d,
                        format!(
                            "what the gateway itself refuses (addresses, passwords, limits) has the status of the error: write error_page with \
                             a file, and status = {status}"
                        ),
                    ),
                    None => import.missing(d, why),
                }
                continue;
            }
        };
        import.differs_a_little(d, "error_page: a request with an ambiguous path (400) gets a plain text unless all routes of the host have the page");
        // Of servers' responses, only those from 500 are replaced.
        let (replaced, own): (Vec<u16>, Vec<u16>) =
            page.statuses.iter().partition(|s| intercept.is_some() && **s >= 500);
        for (statuses, upstream) in [(own, false), (replaced, true)] {
            if !statuses.is_empty() {
                out.push(ErrorPage { statuses, upstream, ..page.clone() });
            }
        }
    }
    if let Some(d) = intercept {
        match out.iter().flat_map(|p| &p.statuses).all(|s| *s >= 500) && !out.is_empty() {
            true => import.same(d, "error_page.upstream"),
            false => import.differs(
                d,
                "error_page.upstream: responses of servers are replaced only if their status is 500 or higher",
            ),
        }
    }
    out
}

/// A response without a text, with the page that NGINX sends for its status.
pub(super) fn with_page<'d>(import: &mut Import<'d>, site: &Site<'d>, scope: &Scope<'d>, action: Action) -> Action {
    let Action::Respond { status, body, file: None, content_type: None, headers } = &action else { return action };
    let number = status.to_string();
    let is_grpc = scope.blocks().next().is_some_and(|b| b.iter().any(|d| d.name() == "grpc_pass"));
    let all = if is_grpc || *status < 400 || !body.is_empty() { Vec::new() } else { scope.all(&["error_page"]) };
    let found = all.into_iter().find(|d| d.arguments().contains(&number.as_str()));
    let Some(d) = found else { return action };
    let headers = headers.clone();
    match (page(site, d), plain(site, d)) {
        (Ok(page), _) => {
            import.same(d, "respond.file");
            let status = page.status.unwrap_or(*status);
            let (file, content_type) = (Some(page.file), page.content_type);
            Action::Respond { status, body: String::new(), file, content_type, headers }
        }
        (Err(_), Some(status)) => {
            import.same(d, "respond.status");
            Action::Respond { status, body: String::new(), file: None, content_type: None, headers }
        }
        (Err(_), None) => action,
    }
}

/// The status of an `error_page` whose page is a location with nothing but `return` and a status.
fn plain(site: &Site, d: &Directive) -> Option<u16> {
    let (_, response, target) = words(d)?;
    let only = |d: &Directive| match d.inner() {
        [one] if one.name() == "return" && one.words.len() == 2 => one.word(1)?.parse::<u16>().ok(),
        _ => None,
    };
    let own = only(site.named(target)?).filter(|status| (400..=599).contains(status))?;
    match response {
        // Without a word about it, the response has the status of the error.
        None => None,
        Some("") => Some(own),
        Some(number) => number.parse::<u16>().ok().filter(|n| (400..=599).contains(n)),
    }
}

/// The words of an `error_page`: its statuses, the status of the response if there is one (`=404`; `=` alone: that of the page), and the
/// page.
fn words(d: &Directive) -> Option<(Vec<u16>, Option<&str>, &str)> {
    let mut arguments = d.arguments();
    let uri = arguments.pop()?;
    let response = arguments.last().and_then(|a| a.strip_prefix('='));
    if response.is_some() {
        arguments.pop();
    }
    let statuses: Option<Vec<u16>> = arguments.iter().map(|s| s.parse().ok()).collect();
    Some((statuses.filter(|s| !s.is_empty())?, response, uri))
}

fn page(site: &Site, d: &Directive) -> Result<ErrorPage, &'static str> {
    let (statuses, response, uri) = words(d).ok_or(FILES)?;
    let status: Option<u16> = match response {
        None => None,
        // A file has 200.
        Some("") => return Err(SUCCESS),
        Some(number) => Some(number.parse::<u16>().ok().filter(|n| (400..=599).contains(n)).ok_or(SUCCESS)?),
    };
    if !statuses.iter().all(|s| (400..=599).contains(s)) {
        return Err("an error_page is only for statuses from 400 to 599: let the server send this page");
    }
    let file = file(site, uri).ok_or(FILES)?;
    let content_type = match file.rsplit_once('.').map(|(_, end)| end) {
        Some("html" | "json" | "txt") => None,
        Some("htm" | "shtml") => Some("text/html".to_owned()),
        _ => return Err("the import does not know the Content-Type of this page: write error_page with content_type"),
    };
    Ok(ErrorPage { statuses, file, content_type, upstream: false, status, origin: d.place.clone() })
}

/// The file that NGINX serves for a path.
fn file(site: &Site, uri: &str) -> Option<String> {
    let plain = uri.starts_with('/')
        && !uri.split('/').any(|segment| segment == "..")
        && uri.bytes().all(|b| b.is_ascii_alphanumeric() || b"/._-".contains(&b));
    let l = site.location_of(uri).filter(|l| plain && l.is_plain());
    let answers =
        |d: &Directive| PASSES.contains(&d.name()) || matches!(d.name(), "try_files" | "stub_status" | "return");
    let (scope, alias) = match l {
        Some(l) if l.directive().inner().iter().any(answers) => return None,
        Some(l) => (l.scope(), l.directive().inner().iter().rfind(|d| d.name() == "alias").map(|d| (d, l.text()))),
        None if plain && site.is_without_location(uri) => (&site.scope, None),
        None => return None,
    };
    let path = match alias {
        Some((d, text)) => format!("{}{}", d.word(1)?, uri.strip_prefix(text?)?),
        None => format!("{}{uri}", scope.value("root")?.1.trim_end_matches('/')),
    };
    let good =
        path.starts_with('/') && !path.ends_with('/') && !has_variables(&path) && !path.chars().any(char::is_control);
    good.then_some(path)
}
