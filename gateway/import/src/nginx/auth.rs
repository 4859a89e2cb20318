//! `auth_request` as `forward_auth`, and `auth_basic` as `basic_auth`.

use super::actions;
use super::conditions::header_name;
use super::headers::{self, FRAMING, HostHeader};
use super::locations::Site;
use super::parser::Directive;
use super::scope::{Import, Scope};
use super::upstreams::{self, Protocol, Target};
use super::variables::{expand, has_variables, of_request};
use crate::output::{BasicAuth, ForwardAuth};
use crate::units::nginx_time;

const WHERE: &str = "the import does not understand which server and which path auth_request uses: write forward_auth";
const FIELDS: &str =
    "the import does not understand a header of the subrequest: write forward_auth, with this header in set_headers";

/// Largest file of users.
const MAX_USERS: usize = 4 << 20;

/// The users that `auth_basic` lets in.
pub(super) fn basic_auth<'d>(
    import: &mut Import<'d>,
    scope: &Scope<'d>,
    d: &'d Directive,
) -> Result<BasicAuth, String> {
    let realm = expand(import, scope, d.word(1).unwrap_or(""));
    if has_variables(&realm) || !headers::is_value(&realm) {
        return Err("the realm contains a variable: write basic_auth with a constant realm".to_owned());
    }
    let Some((file, name)) = scope.value("auth_basic_user_file") else {
        return Err(
            "there is no auth_basic_user_file, so that NGINX asks for no password: write basic_auth, or remove the entry from \"undecided\""
                .to_owned(),
        );
    };
    if has_variables(&expand(import, scope, name)) {
        return Err("the file of users is chosen by a variable: write basic_auth".to_owned());
    }
    let users = import.path(name);
    let wrong = match import.users.get(&users) {
        Some(there) => there.clone(),
        None => {
            let wrong = read_users(import, &users).err();
            import.users.insert(users.clone(), wrong.clone());
            wrong
        }
    };
    match wrong {
        Some(why) => import.decide(file, why),
        None => import.same(file, "basic_auth.users"),
    }
    import.differs_a_little(d, "basic_auth: the challenge has charset=\"UTF-8\", too. After 20 wrong passwords from an address, all its logins get 429 for some seconds");
    Ok(BasicAuth { users, allowed: None, realm, user_header: None, origin: d.place.clone() })
}

/// Whether Sealane reads a file of users. The error never contains a hash.
fn read_users(import: &Import, path: &str) -> Result<(), String> {
    let bytes = import.reader.read(std::path::Path::new(path)).map_err(|e| {
        format!(
            "the import cannot read the file here ({e}). Its hashes must be bcrypt or Argon2: run the import on the \
             machine that has the file, or check the hashes there"
        )
    })?;
    let text = std::str::from_utf8(&bytes).ok().filter(|t| t.len() <= MAX_USERS);
    let text = text.ok_or("the file is not text, or is too long: write a file of users")?;
    sealane_passwords::Users::parse(text).map(|_| ()).map_err(|mistake| mistake.to_string())
}

/// The server that `auth_request` asks.
pub(super) fn forward_auth<'d>(
    import: &mut Import<'d>,
    site: &Site<'d>,
    scope: &Scope<'d>,
    d: &'d Directive,
) -> Result<ForwardAuth, String> {
    let uri = d.word(1).filter(|u| u.starts_with('/') && !u.contains(['$', '?'])).ok_or(WHERE)?;
    // A question goes through the server's own directives, too.
    if let Some(before) = site.step_for(uri) {
        return Err(format!(
            "{} ({}) also applies to the subrequest {uri}, and the import does not know its effect on the subrequest: \
             write forward_auth",
            before.name(),
            before.place
        ));
    }
    let l = site
        .location_of(uri)
        .ok_or_else(|| format!("no location sends the subrequest {uri} to a server: write forward_auth"))?;
    if !l.is_plain() {
        return Err(format!(
            "the location at {} has further directives that apply to the subrequest: write forward_auth",
            l.directive().place
        ));
    }
    let pass = l.directive().inner().iter().rfind(|d| d.name() == "proxy_pass").ok_or(WHERE)?;
    let url = expand(import, l.scope(), pass.word(1).unwrap_or(""));
    let (tls, authority, path) = actions::parts_of_url(&url).ok_or(WHERE)?;
    let path = match (path, l.text()) {
        (None, _) => uri.to_owned(),
        (Some(path), Some(text)) => format!("{path}{}", uri.strip_prefix(text).ok_or(WHERE)?),
        (Some(_), None) => return Err(WHERE.to_owned()),
    };
    if has_variables(authority) || has_variables(&path) || !path.bytes().all(|b| b.is_ascii_graphic()) {
        return Err(WHERE.to_owned());
    }
    let (host, set_headers) = fields(import, site, l.scope())?;
    let target = Target { protocol: Protocol::Http, tls, authority };
    let upstream = upstreams::upstream(import, l.scope(), pass, &target, host.as_ref()).ok_or(WHERE)?;
    import.same(pass, format!("forward_auth asks the upstream \"{upstream}\""));
    if let Some((body, value)) = l.scope().value("proxy_pass_request_body") {
        match value {
            "off" if l.internal().is_none() => {
                import.differs_a_little(
                    body,
                    "the requests to the forward_auth server have no body; requests of clients to this location keep \
                     their body",
                );
            }
            "off" => import.same(body, "requests to the forward_auth server have no body"),
            _ => import.differs_a_little(body, "requests to the forward_auth server have no body"),
        }
    }
    import.differs(
        d,
        "forward_auth: the client gets every response except 2xx, with its headers and body; NGINX responds to 401 and 403 with its own pages, and to all others with 500. The server gets HEAD for a HEAD request (NGINX: GET)",
    );
    let timeout = l.scope().value("proxy_read_timeout").and_then(|(_, t)| nginx_time(t)).filter(|t| t != "0s");
    let copy_headers = copied(import, scope);
    Ok(ForwardAuth { upstream, path, set_headers, copy_headers, timeout, origin: d.place.clone() })
}

/// Names and values of headers that are set.
type SetFields = Vec<(String, String)>;

/// What the question says of the request: its Host, and the headers that it has besides the client's.
fn fields<'d>(
    import: &mut Import<'d>,
    site: &Site<'d>,
    scope: &Scope<'d>,
) -> Result<(Option<HostHeader>, SetFields), String> {
    let mut host = None;
    let mut set: Vec<(String, String)> = Vec::new();
    for d in scope.all(&["proxy_set_header"]) {
        let (Some(name), Some(written)) = (d.word(1), d.word(2)) else { return Err(FIELDS.to_owned()) };
        let expanded = expand(import, scope, written);
        let value = expanded.replace(['{', '}'], "");
        let lower = name.to_ascii_lowercase();
        let always = match lower.as_str() {
            "host" => {
                host = headers::host(import, site, d, &value).ok_or(FIELDS)?;
                continue;
            }
            n if FRAMING.contains(&n) => true,
            "content-type" | "content-encoding" => value.is_empty(),
            "x-forwarded-for" => matches!(value.as_str(), "$proxy_add_x_forwarded_for" | "$remote_addr"),
            // A trusted proxy may have said something else.
            "x-forwarded-proto" => value == "$scheme" && !import.trusts,
            "x-forwarded-host" => matches!(value.as_str(), "$host" | "$http_host") && !import.trusts,
            "x-forwarded-uri" => value == "$request_uri",
            "x-forwarded-method" => value == "$request_method",
            n => value == format!("$http_{}", n.replace('-', "_")),
        };
        if always {
            import.same(d, "the forward_auth server always gets this header");
            continue;
        }
        // An empty value removes the header of the client.
        let said = of_request(&expanded, site.name.as_deref(), site.port).ok();
        let Some(said) = said.filter(|v| !v.is_empty() && headers::is_value(v) && headers::is_name(name)) else {
            return Err(format!("{FIELDS} ({}: {name})", d.place));
        };
        import.same(d, "forward_auth.set_headers");
        set.push((name.to_owned(), said));
    }
    Ok((host, set))
}

/// Whether a server is asked about the requests of a scope.
pub(super) fn asks(scope: &Scope) -> bool {
    scope.last("auth_request").is_some_and(|d| d.word(1) != Some("off"))
}

/// Whether the answer of the server that is asked gives a variable its value.
pub(super) fn sets(scope: &Scope, variable: &str) -> bool {
    let is = |d: &&Directive| d.word(1).and_then(|v| v.strip_prefix('$')) == Some(variable);
    asks(scope) && scope.all(&["auth_request_set"]).iter().any(is)
}

/// The header that a variable of `auth_request_set` is, in the way of variables: `x_user` for `X-User`.
pub(super) fn answered<'d>(scope: &Scope<'d>, variable: &str) -> Option<(&'d Directive, &'d str)> {
    let sets = scope.all(&["auth_request_set"]);
    let d = sets.into_iter().rfind(|d| d.word(1).and_then(|v| v.strip_prefix('$')) == Some(variable))?;
    let value = d.word(2)?.strip_prefix('$')?;
    let value = value.strip_prefix('{').map_or(Some(value), |v| v.strip_suffix('}'))?;
    Some((d, value.strip_prefix("upstream_http_")?))
}

/// The headers of the answer that become headers of the request.
fn copied<'d>(import: &mut Import<'d>, scope: &Scope<'d>) -> Vec<(String, String)> {
    let mut out: Vec<(String, String)> = Vec::new();
    for d in scope.all(&["proxy_set_header", "grpc_set_header"]) {
        let (Some(name), Some(value)) = (d.word(1), d.word(2)) else { continue };
        let variable = value.replace(['{', '}'], "");
        let Some((set, header)) = variable.strip_prefix('$').and_then(|v| answered(scope, v)) else { continue };
        if !out.iter().any(|(n, _)| n.eq_ignore_ascii_case(name)) {
            import.same(set, "copy_headers");
            // The answer comes later than the `set` that gives the variable its first value.
            for first in scope.blocks().flatten().filter(|d| d.name() == "set" && d.word(1) == set.word(1)) {
                import.same(first, "auth_request_set replaces this value");
            }
            let same = name.to_ascii_lowercase().replace('-', "_") == header;
            out.push((name.to_owned(), if same { name.to_owned() } else { header_name(header) }));
        }
    }
    out
}
