//! Rules of HTTPRoutes and GRPCRoutes as `[[host.route]]` tables.
//!
//! The precedence of the Gateway API (exact path, longer prefix, method, number of headers) is the gateway's own; among equal routes, the
//! order in the file decides, which is the age of the HTTPRoute and then the order of its rules.

use crate::Translation;
use crate::backends::{BadRef, Variant};
use crate::checks::{self, Tried};
use crate::model::Section;
use crate::objects::gateway::ObjectReference;
use crate::objects::routes::{
    BackendRef, Cors, Filter, GrpcRule, HeaderModifier, HttpRule, NamedMatch, PathModifier, Redirect, Retry, Timeouts,
    TypedValue,
};
use crate::objects::{Kind, Name};
use crate::routes::{RouteHead, carries};
use crate::toml::{Table, Value};

/// The rules of a route.
#[derive(Default)]
pub(crate) struct Rules {
    pub all: Vec<Rule>,
}

/// A rule, checked.
pub(crate) struct Rule {
    matches: Vec<Match>,
    /// `request_headers`, `response_headers` and `cors`.
    request_headers: Option<Table>,
    response_headers: Option<Table>,
    cors: Option<Table>,
    redirect: Option<Redirect>,
    rewrite: Option<PathModifier>,
    mirror: Option<(ObjectReference, u32)>,
    backends: Vec<(ObjectReference, u32)>,
    /// Settings of the upstreams.
    variant: Table,
    total_timeout: Option<u64>,
}

struct Match {
    path: Path,
    /// `methods` and `headers`.
    settings: Table,
    expressions: Vec<String>,
}

enum Path {
    Prefix(String),
    Exact(String),
    Regex(String),
}

/// Where a rule is used: what redirects need to know.
pub(crate) struct Place<'p> {
    pub gateway: Option<&'p Name>,
    pub port: u16,
    pub https: bool,
}

impl Place<'_> {
    pub const fn nowhere() -> Self {
        Self { gateway: None, port: 80, https: false }
    }
}

impl Rules {
    pub fn expressions(&self) -> Vec<String> {
        self.all.iter().flat_map(|rule| &rule.matches).flat_map(|m| m.expressions.iter().cloned()).collect()
    }

    /// About how many bytes the rules have for one name at one port.
    pub fn size(&self) -> usize {
        self.all.iter().map(Rule::size).sum()
    }
}

impl Match {
    /// Equal texts for equal conditions.
    fn key(&self) -> String {
        let path = match &self.path {
            Path::Prefix(path) => format!("prefix {}", path.trim_end_matches('/')),
            Path::Exact(path) => format!("exact {path}"),
            Path::Regex(text) => format!("regex {text}"),
        };
        format!("{path} {:?}", self.settings)
    }

    fn conditions(&self) -> Table {
        let table = match &self.path {
            Path::Prefix(path) => Table::default().with("path", path.as_str()),
            Path::Exact(path) => Table::default().with("exact", path.as_str()),
            Path::Regex(text) => Table::default().with("path_regex", text.as_str()),
        };
        Table(table.0.into_iter().chain(self.settings.0.iter().cloned()).collect())
    }
}

fn path_of(path: Option<&TypedValue>, expressions: &mut Vec<String>, tried: &mut Tried) -> Result<Path, String> {
    let Some(path) = path else { return Ok(Path::Prefix("/".to_owned())) };
    let value = path.value.as_deref().unwrap_or("/");
    match path.kind.as_deref().unwrap_or("PathPrefix") {
        "Exact" => checks::path(value).map(|()| Path::Exact(value.to_owned())),
        "PathPrefix" => checks::path(value).map(|()| Path::Prefix(value.to_owned())),
        "RegularExpression" => {
            let whole = tried.whole_regex(value)?;
            expressions.push(whole.clone());
            Ok(Path::Regex(whole))
        }
        other => Err(format!("the path type {other:?} is not supported")),
    }
}

/// `headers` of a route. Of several conditions on one name, the first counts.
fn headers_of(
    matches: &[NamedMatch],
    expressions: &mut Vec<String>,
    tried: &mut Tried,
) -> Result<Option<Table>, String> {
    let mut all: Vec<(String, Value)> = Vec::new();
    for condition in matches {
        let name = condition.name.to_ascii_lowercase();
        if !checks::is_token(&name) {
            return Err(format!("{:?} is not the name of a header", condition.name));
        }
        if all.iter().any(|(known, _)| *known == name) {
            continue;
        }
        let mut regex = |whole: String| {
            expressions.push(whole.clone());
            Value::from(Table::default().with("regex", whole))
        };
        let value = match condition.kind.as_deref().unwrap_or("Exact") {
            "Exact" => {
                checks::header_value(&condition.value)?;
                // A text with "*" at its end is a prefix, and some texts look like references.
                let is_special = condition.value.ends_with('*') || condition.value.starts_with(['$', '{', '%']);
                match is_special {
                    true => regex(format!("^{}$", regex::escape(&condition.value))),
                    false => condition.value.as_str().into(),
                }
            }
            "RegularExpression" => regex(tried.whole_regex(&condition.value)?),
            other => return Err(format!("the header match type {other:?} is not supported")),
        };
        all.push((name, value));
    }
    all.sort_by(|a, b| a.0.cmp(&b.0));
    Ok((!all.is_empty()).then_some(Table(all)))
}

fn modifier(changes: &HeaderModifier, of_request: bool) -> Result<Table, String> {
    let mut out = Table::default();
    if !changes.remove.is_empty() {
        changes.remove.iter().try_for_each(|name| checks::header_name(name))?;
        out.set("remove", changes.remove.iter().map(String::as_str).collect::<Vec<_>>());
    }
    for (key, list) in [("set", &changes.set), ("add", &changes.add)] {
        let mut table = Table::default();
        for header in list {
            checks::header_name(&header.name)?;
            match of_request {
                true => checks::request_header_value(&header.value),
                false => checks::header_value(&header.value),
            }
            .map_err(|why| format!("header {}: {why}", header.name))?;
            let is_known = table.0.iter().any(|(name, _)| name.eq_ignore_ascii_case(&header.name));
            if !is_known {
                table.set(&header.name, header.value.as_str());
            }
        }
        if !table.is_empty() {
            out.set(key, table);
        }
    }
    Ok(out)
}

fn cors_of(cors: &Cors) -> Result<Table, String> {
    let credentials = cors.allow_credentials.unwrap_or(false);
    let mut origins = Vec::new();
    for origin in &cors.allow_origins {
        if origin == "*" {
            origins.push("*".to_owned());
            continue;
        }
        let Some((scheme @ ("http" | "https"), rest)) = origin.split_once("://") else {
            return Err(format!("the origin {origin:?} is not supported"));
        };
        let (host, port) = rest.split_once(':').map_or((rest, None), |(host, port)| (host, Some(port)));
        let is_port = port.is_none_or(|p| p.parse::<u16>().is_ok());
        if !checks::is_hostname_pattern(host) || !is_port {
            return Err(format!("the origin {origin:?} is not supported"));
        }
        let host = crate::names::in_configuration(Some(host));
        origins.push(format!("{scheme}://{host}{}", port.map_or_else(String::new, |port| format!(":{port}"))));
    }
    let any = |list: &[String]| list.iter().any(|entry| entry == "*");
    if origins.is_empty() || credentials && (any(&origins) || any(&cors.allow_headers) || any(&cors.expose_headers)) {
        return Err("CORS needs origins, and allowCredentials cannot be combined with \"*\"".to_owned());
    }
    let mut methods = cors.allow_methods.clone();
    if any(&methods) {
        methods = ["GET", "HEAD", "POST", "PUT", "DELETE", "PATCH", "OPTIONS"].map(str::to_owned).to_vec();
    }
    let mut out = Table::default().with("origins", origins);
    for (key, list) in
        [("methods", &methods), ("headers", &cors.allow_headers), ("expose_headers", &cors.expose_headers)]
    {
        if let Some(bad) = list.iter().find(|name| !checks::is_token(name)) {
            return Err(format!("CORS: {bad:?} is not a name"));
        }
        match any(list) {
            true => out.set(key, "*"),
            false if list.is_empty() => {}
            false => out.set(key, list.clone()),
        }
    }
    if credentials {
        out.set("credentials", true);
    }
    out.set("max_age", format!("{}s", cors.max_age.unwrap_or(5).min(86_400)));
    Ok(out)
}

fn hostname(name: &Option<String>) -> Result<Option<&str>, String> {
    match name.as_deref() {
        Some(name) if !checks::is_hostname(name) => Err(format!("{name:?} is not a host name")),
        name => Ok(name),
    }
}

/// Checks a path that replaces another one. `has_prefix`: the rule matches prefixes only.
fn path_modifier(path: &PathModifier, has_prefix: bool) -> Result<(), String> {
    match (path.kind.as_str(), &path.replace_full_path, &path.replace_prefix_match) {
        ("ReplaceFullPath", Some(full), None) => checks::target_path(full).map(drop),
        ("ReplacePrefixMatch", None, Some(prefix)) if has_prefix => match prefix.as_str() {
            "" => Ok(()),
            prefix => checks::target_path(prefix).map(drop),
        },
        ("ReplacePrefixMatch", None, Some(_)) => {
            Err("ReplacePrefixMatch needs matches of the type PathPrefix".to_owned())
        }
        (kind, ..) => Err(format!("the path modifier {kind:?} is not supported")),
    }
}

impl Rule {
    fn new(matches: Vec<Match>, backends: &[BackendRef]) -> Result<Self, String> {
        if backends.iter().any(|backend| !backend.filters.is_empty()) {
            return Err("filters of backendRefs are not supported".to_owned());
        }
        let weight = |backend: &BackendRef| backend.weight.unwrap_or(1);
        if backends.len() > 64 || backends.iter().any(|backend| weight(backend) > 1_000_000) {
            return Err("a rule has more than 64 backends, or a weight above 1000000".to_owned());
        }
        Ok(Self {
            matches,
            request_headers: None,
            response_headers: None,
            cors: None,
            redirect: None,
            rewrite: None,
            mirror: None,
            backends: backends.iter().map(|backend| (backend.object(), weight(backend))).collect(),
            variant: Table::default(),
            total_timeout: None,
        })
    }

    /// About how many bytes the rule has: its settings are written for each of its conditions.
    fn size(&self) -> usize {
        let tables = [&self.request_headers, &self.response_headers, &self.cors];
        let targets = [self.redirect.as_ref().and_then(|redirect| redirect.path.as_ref()), self.rewrite.as_ref()];
        let texts =
            targets.into_iter().flatten().flat_map(|path| [&path.replace_full_path, &path.replace_prefix_match]);
        let each = tables.into_iter().flatten().map(Table::size).sum::<usize>()
            + texts.flatten().map(String::len).sum::<usize>()
            + 128 * (1 + self.backends.len());
        self.matches.iter().map(|m| m.conditions().size() + each).sum()
    }

    fn has_prefixes(&self) -> bool {
        self.matches.iter().all(|m| matches!(m.path, Path::Prefix(_)))
    }

    fn filter(&mut self, filter: &Filter) -> Result<(), String> {
        let twice = || format!("a rule has two filters {}", filter.kind);
        match (filter.kind.as_str(), filter) {
            ("RequestHeaderModifier", Filter { request_header_modifier: Some(changes), .. }) => {
                let old = self.request_headers.replace(modifier(changes, true)?);
                old.map_or(Ok(()), |_| Err(twice()))
            }
            ("ResponseHeaderModifier", Filter { response_header_modifier: Some(changes), .. }) => {
                let old = self.response_headers.replace(modifier(changes, false)?);
                old.map_or(Ok(()), |_| Err(twice()))
            }
            ("CORS", Filter { cors: Some(cors), .. }) => {
                self.cors.replace(cors_of(cors)?).map_or(Ok(()), |_| Err(twice()))
            }
            ("RequestMirror", Filter { request_mirror: Some(mirror), .. }) => {
                let percent = match (mirror.percent, &mirror.fraction) {
                    (Some(_), Some(_)) => return Err("a mirror has percent and fraction".to_owned()),
                    (Some(percent), None) => percent,
                    (None, Some(fraction)) => {
                        let (n, d) = (u64::from(fraction.numerator), u64::from(fraction.denominator.unwrap_or(100)));
                        if d == 0 || (n * 100) % d != 0 {
                            return Err("the fraction of a mirror must be a whole number of percent".to_owned());
                        }
                        u32::try_from(n * 100 / d).unwrap_or(u32::MAX)
                    }
                    (None, None) => 100,
                };
                if percent > 100 {
                    return Err("a mirror has more than 100 percent".to_owned());
                }
                self.mirror
                    .replace((mirror.backend_ref.clone(), percent))
                    .map_or(Ok(()), |_| Err("a rule can have one RequestMirror".to_owned()))
            }
            ("RequestRedirect", Filter { request_redirect: Some(redirect), .. }) => {
                let scheme = redirect.scheme.as_deref();
                if !matches!(scheme, None | Some("http" | "https")) || redirect.port == Some(0) {
                    return Err("the scheme or the port of a redirect is not valid".to_owned());
                }
                if !matches!(redirect.status_code, None | Some(301 | 302 | 303 | 307 | 308)) {
                    return Err("the status of a redirect must be 301, 302, 303, 307 or 308".to_owned());
                }
                hostname(&redirect.hostname)?;
                if let Some(path) = &redirect.path {
                    path_modifier(path, self.has_prefixes())?;
                }
                self.redirect.replace(redirect.clone()).map_or(Ok(()), |_| Err(twice()))
            }
            ("URLRewrite", Filter { url_rewrite: Some(rewrite), .. }) => {
                if let Some(host) = hostname(&rewrite.hostname)? {
                    self.variant.set("host_header", host);
                }
                if let Some(path) = &rewrite.path {
                    path_modifier(path, self.has_prefixes())?;
                }
                self.rewrite = rewrite.path.clone();
                Ok(())
            }
            (kind, _) => Err(format!("the filter {kind} is not supported")),
        }
    }

    fn filters(&mut self, filters: &[Filter]) -> Result<(), String> {
        filters.iter().try_for_each(|filter| self.filter(filter))?;
        let rewrites = filters.iter().filter(|filter| filter.kind == "URLRewrite").count();
        if rewrites > 1 || rewrites > 0 && self.redirect.is_some() {
            return Err("a rule can have one of URLRewrite and RequestRedirect, once".to_owned());
        }
        Ok(())
    }

    fn timeouts(&mut self, timeouts: Option<&Timeouts>, retry: Option<&Retry>) -> Result<(), String> {
        if let Some(retry) = retry {
            if !retry.codes.is_empty() || retry.backoff.is_some() {
                return Err("retry with codes or backoff is not supported".to_owned());
            }
            if let Some(attempts) = retry.attempts {
                self.variant.set("tries", u64::from(attempts.min(15)) + 1);
            }
        }
        let Some(timeouts) = timeouts else { return Ok(()) };
        if let Some(request) = &timeouts.request {
            self.total_timeout = Some(checks::duration(request)?);
        }
        if let Some(text) = &timeouts.backend_request {
            let timeout = checks::duration(text)?;
            if timeout > 0 {
                self.variant.set("try_timeout", format!("{timeout}ms"));
            }
        }
        Ok(())
    }

    fn redirect_action(&self, redirect: &Redirect, place: &Place) -> Table {
        let scheme = redirect.scheme.as_deref().unwrap_or(if place.https { "https" } else { "http" });
        // Without a port, that of the scheme if the redirect names a scheme, and else that of the listener.
        let port = match (redirect.port, &redirect.scheme) {
            (Some(port), _) => Some(port),
            (None, Some(_)) => None,
            (None, None) => Some(place.port),
        };
        let port = port.filter(|port| !matches!((scheme, port), ("http", 80) | ("https", 443)));
        let port = port.map_or_else(String::new, |port| format!(":{port}"));
        let host = redirect.hostname.as_deref().unwrap_or("{host}");
        let path = match redirect.path.as_ref().map(|path| (&path.replace_full_path, &path.replace_prefix_match)) {
            Some((Some(full), _)) => format!("{}{{query}}", checks::target_path(full).unwrap_or_default()),
            Some((_, Some(prefix))) => {
                let prefix = checks::target_path(prefix).unwrap_or_default();
                format!("{}{{rest}}", prefix.trim_end_matches('/'))
            }
            _ => "{uri}".to_owned(),
        };
        let status = u64::from(redirect.status_code.unwrap_or(302));
        Table::default().with("to", format!("{scheme}://{host}{port}{path}")).with("status", status)
    }
}

fn respond(status: u64) -> (&'static str, Value) {
    ("respond", Table::default().with("status", status).into())
}

/// Checks the rules of an HTTPRoute.
pub(crate) fn http_rules(rules: &[HttpRule], tried: &mut Tried) -> Result<Rules, String> {
    let mut out = Rules::default();
    for rule in rules {
        if rule.session_persistence.is_some() {
            return Err("sessionPersistence is not supported".to_owned());
        }
        let mut matches = Vec::new();
        for m in &rule.matches {
            if !m.query_params.is_empty() {
                return Err("matches with queryParams are not supported".to_owned());
            }
            let mut expressions = Vec::new();
            let path = path_of(m.path.as_ref(), &mut expressions, tried)?;
            let mut settings = Table::default();
            if let Some(method) = &m.method {
                if !checks::is_token(method) || method.bytes().any(|b| b.is_ascii_lowercase()) {
                    return Err(format!("{method:?} is not a method"));
                }
                settings.set("methods", vec![method.as_str()]);
            }
            if let Some(headers) = headers_of(&m.headers, &mut expressions, tried)? {
                settings.set("headers", headers);
            }
            matches.push(Match { path, settings, expressions });
        }
        if rule.matches.is_empty() {
            matches.push(everything());
        }
        let mut checked = Rule::new(matches, &rule.backend_refs)?;
        checked.filters(&rule.filters)?;
        checked.timeouts(rule.timeouts.as_ref(), rule.retry.as_ref())?;
        out.all.push(checked);
    }
    Ok(out)
}

/// Checks the rules of a GRPCRoute.
pub(crate) fn grpc_rules(rules: &[GrpcRule], tried: &mut Tried) -> Result<Rules, String> {
    let mut out = Rules::default();
    for rule in rules {
        if rule.session_persistence.is_some() {
            return Err("sessionPersistence is not supported".to_owned());
        }
        let mut matches = Vec::new();
        for m in &rule.matches {
            let mut expressions = Vec::new();
            let method = m.method.as_ref();
            let kind = method.and_then(|method| method.kind.as_deref()).unwrap_or("Exact");
            let part = |of: Option<&String>| of.filter(|text| !text.is_empty()).cloned();
            let service = part(method.and_then(|method| method.service.as_ref()));
            let name = part(method.and_then(|method| method.method.as_ref()));
            let path = match (kind, service, name) {
                (_, None, None) => Path::Prefix("/".to_owned()),
                ("Exact", Some(service), Some(name)) => {
                    let path = format!("/{service}/{name}");
                    checks::path(&path)?;
                    Path::Exact(path)
                }
                ("Exact", Some(service), None) => {
                    let path = format!("/{service}");
                    checks::path(&path)?;
                    Path::Prefix(path)
                }
                ("Exact", None, Some(name)) => Path::Regex(format!("^/[^/]+/{}$", regex::escape(&name))),
                ("RegularExpression", service, name) => {
                    let service = service.unwrap_or_else(|| "[^/]+".to_owned());
                    let name = name.unwrap_or_else(|| "[^/]+".to_owned());
                    Path::Regex(format!("^/(?:{service})/(?:{name})$"))
                }
                (kind, ..) => return Err(format!("the method match type {kind:?} is not supported")),
            };
            if let Path::Regex(text) = &path {
                tried.regex(text)?;
                expressions.push(text.clone());
            }
            let mut settings = Table::default();
            if let Some(headers) = headers_of(&m.headers, &mut expressions, tried)? {
                settings.set("headers", headers);
            }
            matches.push(Match { path, settings, expressions });
        }
        if rule.matches.is_empty() {
            matches.push(everything());
        }
        let mut checked = Rule::new(matches, &rule.backend_refs)?;
        checked.filters(&rule.filters)?;
        out.all.push(checked);
    }
    Ok(out)
}

impl Translation<'_> {
    /// The routes of a rule, each with a text that is the same for the same requests. `bad`: the first reference that cannot be used.
    pub(crate) fn rule_sections(
        &mut self,
        head: RouteHead,
        rule: &Rule,
        place: &Place,
        bad: &mut Option<(&'static str, String)>,
    ) -> Vec<(String, Section)> {
        let origin = head.object();
        let (action, value) = self.action(head, rule, place, bad);
        let forwards = matches!(action, "upstream" | "split");
        let mirror = self.mirror(head, rule, place, bad);
        let sections = rule.matches.iter().map(|m| {
            let mut settings = m.conditions();
            settings.set(action, value.clone());
            if let Some(changes) = &rule.response_headers {
                settings.set("response_headers", changes.clone());
            }
            if let Some(cors) = &rule.cors {
                settings.set("cors", cors.clone());
            }
            if !forwards {
                return (m.key(), Section { settings, origin: origin.clone() });
            }
            if let Some(changes) = &rule.request_headers {
                settings.set("request_headers", changes.clone());
            }
            match rule.rewrite.as_ref().map(|path| (&path.replace_full_path, &path.replace_prefix_match)) {
                Some((Some(full), _)) => settings.set("rewrite", checks::target_path(full).unwrap_or_default()),
                Some((_, Some(prefix))) => {
                    let prefix = checks::target_path(prefix).unwrap_or_default();
                    settings.set("rewrite_prefix", if prefix.is_empty() { "/".to_owned() } else { prefix });
                }
                _ => {}
            }
            if let Some(timeout) = rule.total_timeout {
                settings.set("total_timeout", format!("{timeout}ms"));
            }
            if let Some(mirror) = &mirror {
                settings.set("mirror", mirror.clone());
            }
            (m.key(), Section { settings, origin: origin.clone() })
        });
        sections.collect()
    }

    fn action(
        &mut self,
        head: RouteHead,
        rule: &Rule,
        place: &Place,
        bad: &mut Option<(&'static str, String)>,
    ) -> (&'static str, Value) {
        if let Some(redirect) = &rule.redirect {
            return ("redirect", rule.redirect_action(redirect, place).into());
        }
        let from = (head.kind, head.metadata.namespace.as_str());
        let mut found = Vec::new();
        for (reference, weight) in &rule.backends {
            let backend = self.backend(from, reference, carries(head.kind), place.gateway);
            if let Err(BadRef { reason: Some(reason), message }) = &backend {
                bad.get_or_insert_with(|| (*reason, message.clone()));
            }
            if *weight > 0 {
                found.push((backend, *weight));
            }
        }
        let variant = Variant { settings: rule.variant.clone(), copies: false };
        let origin = head.object();
        match &found[..] {
            // All requests for a rule without a backend that can be used get 500.
            [] | [(Err(_), _)] => respond(500),
            [(Ok(backend), _)] if backend.servers.is_empty() => respond(503),
            [(Ok(backend), _)] => ("upstream", self.upstream(&origin, backend, &variant).into()),
            all if all.iter().all(|(backend, _)| backend.is_err()) => respond(500),
            all => {
                let groups: Vec<Value> = all
                    .iter()
                    .enumerate()
                    .map(|(at, (backend, weight))| {
                        let upstream = match backend {
                            Ok(backend) => self.upstream(&origin, backend, &variant),
                            Err(_) => self.nobody(head.kind),
                        };
                        let group = Table::default().with("name", format!("g{at}")).with("upstream", upstream);
                        group.with("weight", u64::from(*weight)).into()
                    })
                    .collect();
                ("split", Table::default().with("groups", Value::List(groups)).into())
            }
        }
    }

    /// The upstream of backends that cannot be used, where others of the rule can.
    fn nobody(&mut self, kind: Kind) -> String {
        let origin = crate::objects::ObjectRef { kind, name: Name::default() };
        let servers = Table::default().with("servers", vec![crate::backends::nobody("http")]);
        self.add_upstream(&origin, "no backend", servers, None, &Variant::default())
    }

    fn mirror(
        &mut self,
        head: RouteHead,
        rule: &Rule,
        place: &Place,
        bad: &mut Option<(&'static str, String)>,
    ) -> Option<Table> {
        let (reference, percent) = rule.mirror.as_ref()?;
        let from = (head.kind, head.metadata.namespace.as_str());
        match self.backend(from, reference, carries(head.kind), place.gateway) {
            Ok(backend) if *percent > 0 && !backend.servers.is_empty() => {
                let settings = rule.variant.0.iter().filter(|(key, _)| key == "host_header").cloned().collect();
                let variant = Variant { settings: Table(settings), copies: true };
                let upstream = self.upstream(&head.object(), &backend, &variant);
                let mut table = Table::default().with("upstream", upstream);
                if *percent < 100 {
                    table.set("percent", u64::from(*percent));
                }
                Some(table)
            }
            Ok(_) => None,
            Err(why) => {
                if let Some(reason) = why.reason {
                    bad.get_or_insert((reason, why.message));
                }
                None
            }
        }
    }
}

fn everything() -> Match {
    Match { path: Path::Prefix("/".to_owned()), settings: Table::default(), expressions: Vec::new() }
}
