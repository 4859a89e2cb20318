//! What Sealane does with a request under a configuration, by its own routing.

use crate::model::{Answer, Request};
use sealane_proxy::patterns::Pattern;
use sealane_route::AddressSet;
use sealane_route::{Conditions, FieldRule, NameMap, PathRule, RouteTable, Subject};
use std::collections::HashMap;
use std::net::{IpAddr, Ipv4Addr};
use toml::{Table, Value};

/// What a route does.
struct Does {
    answer: Answer,
    rewrite: Option<String>,
    /// The whole new path.
    template: Option<String>,
    pattern: Option<String>,
    /// `deny_header` of the host and the route: it has an entry for a request that they refuse.
    denied: RouteTable<()>,
}

/// A configuration with one listener.
pub struct Sealane {
    names: NameMap<usize>,
    hosts: Vec<RouteTable<Does>>,
    patterns: Vec<Pattern>,
}

/// A request, and the expressions of the configuration.
struct Asked<'a> {
    request: &'a Request,
    patterns: &'a [Pattern],
}

const CLIENT: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);

impl Subject for Asked<'_> {
    fn method(&self) -> &[u8] {
        self.request.method.as_bytes()
    }

    fn matches(&self, pattern: usize, path: &[u8]) -> bool {
        self.patterns[pattern].matches(path)
    }

    fn any_field(&self, name: &str, accepts: &mut dyn FnMut(&[u8]) -> bool) -> bool {
        let value = match name.to_ascii_lowercase().as_str() {
            "x-one" => self.request.one,
            "x-two" => self.request.two,
            "host" => Some(self.request.host),
            _ => None,
        };
        value.is_some_and(|v| accepts(v.as_bytes()))
    }
}

fn list(table: &Table, key: &str) -> Vec<Value> {
    table.get(key).and_then(Value::as_array).cloned().unwrap_or_default()
}

fn text<'t>(table: &'t Table, key: &str) -> Option<&'t str> {
    table.get(key).and_then(Value::as_str)
}

fn texts(table: &Table, key: &str) -> Vec<String> {
    list(table, key).iter().filter_map(Value::as_str).map(str::to_owned).collect()
}

/// A condition on a header.
fn field(value: &Value, patterns: &mut Vec<Pattern>) -> FieldRule {
    match value {
        Value::Boolean(true) => FieldRule::Present,
        Value::Boolean(false) => FieldRule::Absent,
        Value::Table(table) => match (text(table, "regex"), table.get("not")) {
            (Some(regex), _) => {
                patterns.push(Pattern::new(regex).expect("it has been checked"));
                FieldRule::Matches(patterns.len() - 1)
            }
            (None, inner) => FieldRule::Not(Box::new(field(inner.expect("a condition"), patterns))),
        },
        value => {
            let text = value.as_str().unwrap();
            match text.strip_suffix('*') {
                Some(begin) => FieldRule::Prefix(begin.into()),
                None => FieldRule::Exact(text.into()),
            }
        }
    }
}

/// Adds the conditions of `deny_header`, each as one of all requests.
fn deny(table: &Table, patterns: &mut Vec<Pattern>, denied: &mut RouteTable<()>) {
    for (name, value) in table.get("deny_header").and_then(Value::as_table).into_iter().flatten() {
        let fields = vec![(name.clone(), field(value, patterns))];
        let path = PathRule::Prefix("/".to_owned());
        denied.insert(Conditions { path, pattern: None, methods: Vec::new(), fields }, ()).expect("a condition");
    }
}

impl Sealane {
    pub fn new(toml: &str) -> Self {
        let root: Table = toml.parse().expect("it has been checked");
        let mut servers: HashMap<String, String> = HashMap::new();
        for upstream in list(&root, "upstream") {
            let upstream = upstream.as_table().expect("a table");
            servers.insert(text(upstream, "name").unwrap().to_owned(), texts(upstream, "servers").join(" "));
        }
        // The client of the models is in no block that they write.
        let refuses = |table: &Table| {
            let has_client = |key| {
                texts(table, key).iter().map(|block| block.parse().unwrap()).collect::<AddressSet>().contains(CLIENT)
            };
            table.contains_key("allow") && !has_client("allow") || has_client("deny")
        };
        let answer = |table: &Table| -> Option<Answer> {
            if refuses(table) {
                return Some(Answer::Status(403, String::new()));
            }
            if let Some(name) = text(table, "upstream") {
                return Some(Answer::Server(servers[name].trim_start_matches("http://").to_owned(), String::new()));
            }
            if let Some(redirect) = table.get("redirect").and_then(Value::as_table) {
                let status = redirect["status"].as_integer().unwrap() as u16;
                return Some(Answer::Redirect(status, text(redirect, "to").unwrap().to_owned()));
            }
            let respond = table.get("respond")?.as_table()?;
            let body = text(respond, "body").unwrap_or_default().to_owned();
            Some(match respond["status"].as_integer().unwrap() as u16 {
                501 => Answer::File,
                status => Answer::Status(status, body),
            })
        };
        let mut out = Self { names: NameMap::default(), hosts: Vec::new(), patterns: Vec::new() };
        for host in list(&root, "host") {
            let host = host.as_table().expect("a table");
            for name in texts(host, "names") {
                out.names.insert(name.parse().unwrap(), out.hosts.len()).expect("a name is there once");
            }
            let mut routes = RouteTable::default();
            for route in list(host, "route") {
                let route = route.as_table().expect("a table");
                let pattern = text(route, "path_regex").map(|text| {
                    out.patterns.push(Pattern::new(text).expect("it has been checked"));
                    out.patterns.len() - 1
                });
                let path = match (text(route, "path"), text(route, "exact")) {
                    (Some(p), _) => PathRule::Prefix(p.to_owned()),
                    (None, Some(p)) => PathRule::Exact(p.to_owned()),
                    (None, None) => PathRule::Prefix("/".to_owned()),
                };
                let headers = route.get("headers").and_then(Value::as_table).cloned().unwrap_or_default();
                let patterns = &mut out.patterns;
                let mut denied = RouteTable::default();
                [host, route].into_iter().for_each(|table| deny(table, patterns, &mut denied));
                let fields = headers.iter().map(|(name, value)| (name.clone(), field(value, patterns))).collect();
                let conditions = Conditions { path, pattern, methods: texts(route, "methods"), fields };
                let rewrite = text(route, "rewrite_prefix").map(str::to_owned);
                let template = text(route, "rewrite").map(str::to_owned);
                let answer = answer(route).expect("a route does something");
                // The lists of the host apply to its routes, too.
                let answer = if refuses(host) { Answer::Status(403, String::new()) } else { answer };
                let pattern = text(route, "path_regex").map(str::to_owned);
                routes
                    .insert(conditions, Does { answer, rewrite, template, pattern, denied })
                    .expect("a path of a route");
            }
            if let Some(answer) = answer(host) {
                let all = Conditions {
                    path: PathRule::Prefix("/".into()),
                    pattern: None,
                    methods: Vec::new(),
                    fields: Vec::new(),
                };
                let mut denied = RouteTable::default();
                deny(host, &mut out.patterns, &mut denied);
                routes.insert(all, Does { answer, rewrite: None, template: None, pattern: None, denied }).unwrap();
            }
            out.hosts.push(routes);
        }
        out
    }

    /// What becomes of a request.
    pub fn decide(&self, request: &Request) -> Answer {
        let Some(host) = self.names.find(request.host) else { return Answer::Status(404, String::new()) };
        let asked = Asked { request, patterns: &self.patterns };
        let found = match self.hosts[*host].find(request.path.as_bytes(), &asked) {
            Ok(Some(found)) => found,
            Ok(None) => return Answer::Status(404, String::new()),
            Err(_) => return Answer::Status(400, String::new()),
        };
        if !matches!(found.value.denied.find(request.path.as_bytes(), &asked), Ok(None)) {
            return Answer::Status(403, String::new());
        }
        match &found.value.answer {
            Answer::Server(server, _) => {
                let path = match (&found.value.rewrite, &found.value.template) {
                    // The models have a group in one expression: what is below /b/.
                    (_, Some(to)) => {
                        // Or what is behind the text of a location.
                        let text = found.value.pattern.as_deref().and_then(|p| p.strip_suffix("(.*)$"));
                        let text = text.map_or("/b/", |p| p.trim_start_matches("(?i)").trim_start_matches('^'));
                        let rest = request.path.get(text.len()..).unwrap_or("");
                        to.replace("{1}", rest)
                    }
                    (Some(to), None) => {
                        let rest = &request.path[found.matched..];
                        format!("{}{}", to.trim_end_matches('/'), if rest.is_empty() { "/" } else { rest })
                    }
                    (None, None) => request.path.to_owned(),
                };
                Answer::Server(server.clone(), path)
            }
            Answer::Redirect(status, to) => {
                let to = to
                    .replace("{scheme}", "http")
                    .replace("{host}", request.host)
                    .replace("{uri}", request.path)
                    .replace("{path}", request.path)
                    .replace("{query}", "")
                    .replace("{rest}", &request.path[found.matched..]);
                Answer::Redirect(*status, to)
            }
            other => other.clone(),
        }
    }
}
