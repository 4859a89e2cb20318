//! `mirror`: copies of requests for another upstream.
//!
//! NGINX sends a copy through a location of its own, whose `proxy_pass` usually names the client's path again
//! (`proxy_pass http://shadow$request_uri`). Sealane copies the request as the upstream of the route gets it, so that is what is translated.

use super::actions;
use super::headers;
use super::http;
use super::locations::{Location, Site};
use super::parser::Directive;
use super::scope::{Import, Scope};
use super::upstreams::{self, Protocol, Target};
use super::variables::{expand, has_variables};
use crate::output::{Action, Mirror, Route};
use crate::units::shown_size;

/// The largest body of a copy.
const MAX_BODY: u64 = 16 << 20;

/// The mirror of a route that passes requests on. `scope`: that of its location.
pub(super) fn mirror<'d>(import: &mut Import<'d>, site: &Site<'d>, scope: &Scope<'d>, route: &Route) -> Option<Mirror> {
    let mut all = scope.all(&["mirror"]).into_iter();
    let d = all.next().filter(|_| route.action.passes())?;
    if d.word(1) == Some("off") {
        import.same(d, "off");
        return None;
    }
    for more in all {
        import.missing(more, "a route has one mirror: that of the first directive");
    }
    match copies(import, site, scope, d, route) {
        Ok(mirror) => {
            import.differs(
                d,
                "mirror: upgrades (WebSocket), requests in TLS early data, and requests that arrive while a lane has 100 unfinished copies are not copied",
            );
            Some(mirror)
        }
        Err(why) => {
            import.missing(d, why);
            None
        }
    }
}

fn copies<'d>(
    import: &mut Import<'d>,
    site: &Site<'d>,
    scope: &Scope<'d>,
    d: &'d Directive,
    route: &Route,
) -> Result<Mirror, &'static str> {
    const WHERE: &str = "the import does not understand which server gets the copies: write mirror in the route";
    let uri = d.word(1).filter(|u| u.starts_with('/') && !has_variables(u)).ok_or(WHERE)?;
    // A copy goes through the server's own directives, too.
    let l = site.location_of(uri).filter(|l| l.is_plain() && site.steps.is_empty()).ok_or(WHERE)?;
    let pass = l.directive().inner().iter().rfind(|d| d.name() == "proxy_pass").ok_or(WHERE)?;
    let url = expand(import, l.scope(), pass.word(1).unwrap_or(""));
    let (tls, authority, path) = actions::parts_of_url(&url).ok_or(WHERE)?;
    let bare = authority.strip_suffix("$request_uri").or_else(|| authority.strip_suffix("${request_uri}"));
    let authority = bare.filter(|_| path.is_none()).ok_or(
        "in NGINX the copies have another path than the request, but in Sealane they have the same path: to translate \
         this, write proxy_pass http://…$request_uri in the mirror's location, and run the import again",
    )?;
    if has_variables(authority) {
        return Err(WHERE);
    }
    if route.rewrites_path() {
        return Err("in NGINX the copies have the client's path, but in Sealane they have the rewritten path: if the \
                    server accepts the rewritten path, write mirror in the route");
    }
    let host = host_of(import, site, l)?;
    let target = Target { protocol: Protocol::Http, tls, authority };
    let upstream = upstreams::upstream(import, l.scope(), pass, &target, host.as_ref()).ok_or(WHERE)?;
    let is_own = match &route.action {
        Action::Upstream(own) => *own == upstream,
        Action::Split(split) => split.groups.iter().any(|(own, _)| *own == upstream),
        _ => true,
    };
    if is_own {
        return Err(
            "copies cannot go to the upstream of the route: write a second [[upstream]] with the same servers, and \
                    mirror in the route",
        );
    }
    import.same(pass, format!("mirror: the upstream \"{upstream}\""));
    Ok(Mirror { upstream, max_body: max_body(import, scope), origin: d.place.clone() })
}

/// `Host` of the copies. Other headers of the mirror's location have no place.
fn host_of<'d>(
    import: &mut Import<'d>,
    site: &Site<'d>,
    l: &Location<'d>,
) -> Result<Option<headers::HostHeader>, &'static str> {
    let mut host = None;
    for d in l.scope().all(&["proxy_set_header"]) {
        let (Some(name), Some(written)) = (d.word(1), d.word(2)) else { continue };
        let value = expand(import, l.scope(), written);
        match name.to_ascii_lowercase().as_str() {
            "host" => {
                host = headers::host(import, site, d, &value)
                    .ok_or("the Host of the copies can only be the client's, or a constant (host_header of the upstream): write mirror in the route")?;
            }
            "content-length" if value.is_empty() => import.same(d, "the gateway frames messages by itself"),
            _ => import.differs(d, "copies have the headers that the upstream of the route gets"),
        }
    }
    Ok(host)
}

/// The largest body of a copy: NGINX copies every body that it accepts.
fn max_body(import: &mut Import, scope: &Scope) -> String {
    if let Some((d, "off")) = scope.value("mirror_request_body") {
        import.differs(
            d,
            "mirror.max_body = 0: requests with a body are not copied, but in NGINX they are copied without it",
        );
        return "0".to_owned();
    }
    let (accepted, _) = http::body_limit(scope);
    if let Some(d) = scope.last("mirror_request_body") {
        import.same(d, "mirror.max_body");
    }
    match accepted {
        MAX_BODY.. => shown_size(MAX_BODY),
        accepted => shown_size(accepted),
    }
}
