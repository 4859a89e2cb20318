//! What NGINX puts before the path in the target of a redirect: `absolute_redirect`, `port_in_redirect`, `server_name_in_redirect`.

use super::http::everywhere;
use super::locations::Site;
use super::parser::Directive;
use super::scope::{Import, Scope};
use crate::output::Action;

const NAMES: &[&str] = &["absolute_redirect", "port_in_redirect", "server_name_in_redirect"];

/// The redirect of a directive with the whole URL that NGINX sends. `scope`: what holds where the directive is.
pub(super) fn completed<'d>(
    import: &mut Import<'d>,
    site: &Site<'d>,
    scope: &Scope<'d>,
    d: &'d Directive,
    action: Action,
) -> Action {
    match action {
        Action::Redirect { to, status } if ["/", "{uri}", "{path}"].iter().any(|p| to.starts_with(p)) => {
            let to = before(import, site, scope, d) + &to;
            Action::Redirect { to, status }
        }
        other => other,
    }
}

/// Scheme, host and port; empty: the target has its path alone.
fn before<'d>(import: &mut Import<'d>, site: &Site<'d>, scope: &Scope<'d>, d: &'d Directive) -> String {
    let mut is = |name: &str, default: bool| match scope.value(name) {
        Some((said, value)) => {
            import.same(said, "redirect");
            value == "on"
        }
        None => default,
    };
    let (absolute, port) = (is("absolute_redirect", true), is("port_in_redirect", true));
    let named = is("server_name_in_redirect", false);
    if !absolute {
        return String::new();
    }
    let host = match (named, &site.name, scope.last("server_name_in_redirect")) {
        (false, ..) | (_, _, None) => "{host}",
        (true, Some(name), _) => name.as_str(),
        (true, None, Some(said)) => {
            import.missing(said, "the first server_name is no host name: redirects name the host of the request");
            "{host}"
        }
    };
    let is_usual = site.ports.iter().all(|p| matches!(p, 80 | 443));
    match site.ports.as_slice() {
        _ if !port || is_usual => format!("{{scheme}}://{host}"),
        [only] => format!("{{scheme}}://{host}:{only}"),
        _ => {
            import.differs(
                d,
                "the server has several ports: Location has the path alone, and clients keep the port that they use; NGINX sends the whole URL",
            );
            String::new()
        }
    }
}

/// What is left to say of these directives when all hosts are written.
pub(super) fn others<'d>(import: &mut Import<'d>, block: &'d [Directive]) {
    let mut found = Vec::new();
    everywhere(block, NAMES, &mut found);
    for d in found {
        import.same(d, "no redirect of this configuration depends on it");
    }
}
