//! What Sealane does with a request under a configuration, by its own routing.

use crate::model::{Answer, Request};
use sealane_route::proxies::Cidr;
use sealane_route::{AccessRule, AddressSet, Conditions, FieldRule, NameMap, PathRule, RouteTable, Subject};
use std::collections::HashMap;
use std::net::Ipv4Addr;
use std::sync::Arc;
use toml::{Table, Value};

/// What a route does.
struct Does {
    answer: Answer,
    rewrite: Option<String>,
}

/// A configuration with one listener.
pub struct Sealane {
    names: NameMap<usize>,
    hosts: Vec<RouteTable<Does>>,
}

impl Subject for Request {
    fn method(&self) -> &[u8] {
        self.method.as_bytes()
    }

    fn any_field(&self, name: &str, accepts: &mut dyn FnMut(&[u8]) -> bool) -> bool {
        let value = match name.to_ascii_lowercase().as_str() {
            "x-one" => self.one,
            "x-two" => self.two,
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

/// Whether a host or a route refuses the client of all requests.
fn refuses(table: &Table) -> bool {
    let set = |key: &str| -> Box<[Arc<AddressSet>]> {
        let blocks = texts(table, key).into_iter().map(|b| b.parse::<Cidr>().expect("it has been checked"));
        [Arc::new(blocks.collect())].into()
    };
    let rule = AccessRule { allow: table.contains_key("allow").then(|| set("allow")), deny: set("deny") };
    !rule.permits(Ipv4Addr::LOCALHOST.into())
}

impl Sealane {
    pub fn new(toml: &str) -> Self {
        let root: Table = toml.parse().expect("it has been checked");
        let mut servers: HashMap<String, String> = HashMap::new();
        for upstream in list(&root, "upstream") {
            let upstream = upstream.as_table().expect("a table");
            servers.insert(text(upstream, "name").unwrap().to_owned(), texts(upstream, "servers").join(" "));
        }
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
        let mut out = Self { names: NameMap::default(), hosts: Vec::new() };
        for host in list(&root, "host") {
            let host = host.as_table().expect("a table");
            for name in texts(host, "names") {
                out.names.insert(name.parse().unwrap(), out.hosts.len()).expect("a name is there once");
            }
            let mut routes = RouteTable::default();
            for route in list(host, "route") {
                let route = route.as_table().expect("a table");
                let path = match text(route, "path") {
                    Some(p) => PathRule::Prefix(p.to_owned()),
                    None => PathRule::Exact(text(route, "exact").expect("a route has a path").to_owned()),
                };
                let headers = route.get("headers").and_then(Value::as_table).cloned().unwrap_or_default();
                let field = |value: &Value| match value {
                    Value::Boolean(true) => FieldRule::Present,
                    Value::Boolean(false) => FieldRule::Absent,
                    value => {
                        let text = value.as_str().unwrap();
                        match text.strip_suffix('*') {
                            Some(begin) => FieldRule::Prefix(begin.into()),
                            None => FieldRule::Exact(text.into()),
                        }
                    }
                };
                let fields = headers.iter().map(|(name, value)| (name.clone(), field(value))).collect();
                let conditions = Conditions { path, methods: texts(route, "methods"), fields };
                let rewrite = text(route, "rewrite_prefix").map(str::to_owned);
                let answer = answer(if refuses(host) { host } else { route }).expect("a route does something");
                routes.insert(conditions, Does { answer, rewrite }).expect("a path of a route");
            }
            if let Some(answer) = answer(host) {
                let all = Conditions { path: PathRule::Prefix("/".into()), methods: Vec::new(), fields: Vec::new() };
                routes.insert(all, Does { answer, rewrite: None }).unwrap();
            }
            out.hosts.push(routes);
        }
        out
    }

    /// What becomes of a request.
    pub fn decide(&self, request: &Request) -> Answer {
        let Some(host) = self.names.find(request.host) else { return Answer::Status(404, String::new()) };
        let found = match self.hosts[*host].find(request.path.as_bytes(), request) {
            Ok(Some(found)) => found,
            Ok(None) => return Answer::Status(404, String::new()),
            Err(_) => return Answer::Status(400, String::new()),
        };
        match &found.value.answer {
            Answer::Server(server, _) => {
                let path = match &found.value.rewrite {
                    Some(to) => {
                        let rest = &request.path[found.matched..];
                        format!("{}{}", to.trim_end_matches('/'), if rest.is_empty() { "/" } else { rest })
                    }
                    None => request.path.to_owned(),
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
