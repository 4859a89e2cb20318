//! What a client does so that a variable has a value.

use crate::draft::{Draft, Shown};
use crate::samples;
use crate::tree::Node;
use crate::words::in_and_out;

/// A variable and a value that it is to have.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wish {
    pub variable: String,
    pub value: String,
}

impl Wish {
    /// Whether it is for the address of the client.
    pub fn is_address(&self) -> bool {
        matches!(self.variable.as_str(), "remote_addr" | "binary_remote_addr")
    }
}

/// Most keys of a map that are tried in upper case, too.
const MAX_UPPER: usize = 100;

/// Whether a variable is a header, a cookie or a part of the query.
fn is_of_client(variable: &str) -> bool {
    ["http_", "cookie_", "arg_"].iter().any(|p| variable.starts_with(p)) && variable != "http_host"
}

/// Values that an operator tells apart: some that satisfy it, and one that does not.
pub fn values(operator: &str, operand: &str) -> Option<Vec<String>> {
    Some(match operator {
        "=" | "!=" => vec![operand.to_owned(), format!("{operand}x"), String::new()],
        "~" | "!~" | "~*" | "!~*" => {
            let mut out = samples::regex(operand, operator.contains('*'))?;
            out.push("zzz".to_owned());
            out.push(String::new());
            out
        }
        _ => return None,
    })
}

/// The variable, the operator and the operand of `if`.
pub fn condition(node: &Node) -> Option<(String, String, String)> {
    let text = node.arguments().join(" ");
    let text = text.trim().strip_prefix('(')?.strip_suffix(')')?.trim();
    let mut words = text.splitn(3, ' ');
    let variable = words.next()?.strip_prefix('$')?.to_owned();
    let operator = words.next().unwrap_or_default().to_owned();
    let operand = words.next().unwrap_or_default().trim_matches('"').to_owned();
    Some((variable, operator, operand))
}

/// What `if` asks to be tried.
pub fn of_if(node: &Node) -> Option<Vec<Wish>> {
    let (variable, operator, operand) = condition(node)?;
    let mut values = match operator.as_str() {
        "" => vec!["1".to_owned(), "0".to_owned(), String::new()],
        operator => values(operator, &operand)?,
    };
    // Clients choose these: the text at another place, and in another case.
    if operator.contains('~')
        && (variable.starts_with("http_") || variable.starts_with("cookie_"))
        && let Some(first) = values.first().filter(|first| !first.is_empty()).cloned()
    {
        values.extend([format!("x{first}x"), first.to_ascii_uppercase(), first.to_ascii_lowercase()]);
        values.dedup();
    }
    Some(values.into_iter().map(|value| Wish { variable: variable.clone(), value }).collect())
}

/// What a `map` or a `geo` asks to be tried.
pub fn of_map(node: &Node) -> Option<Vec<Wish>> {
    let (source, is_geo) = match (node.name(), node.words.len()) {
        ("map", 3) => (node.word(1), false),
        ("geo", 2) => ("$remote_addr", true),
        ("geo", 3) => (node.word(1), true),
        _ => return None,
    };
    let variable = source.strip_prefix('$')?.trim_matches(['{', '}']).to_owned();
    // Of several variables together none is tried.
    if !variable.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_') {
        return None;
    }
    let mut out = Vec::new();
    let mut wish = |value: &str| {
        let new = Wish { variable: variable.clone(), value: value.to_owned() };
        if !out.contains(&new) {
            out.push(new);
        }
    };
    let mut texts: Vec<&str> = Vec::new();
    for entry in node.inner() {
        let key = entry.name();
        match key {
            "default" => wish(if is_geo { "203.0.113.77" } else { "other" }),
            "hostnames" | "volatile" | "include" | "proxy" | "ranges" | "delete" => {}
            key if is_geo => wish(key),
            key => match key.strip_prefix('~') {
                Some(pattern) => {
                    let (pattern, any_case) = pattern.strip_prefix('*').map_or((pattern, false), |p| (p, true));
                    samples::regex(pattern, any_case).unwrap_or_default().iter().for_each(|v| wish(v));
                }
                None if key.starts_with("*.") || key.starts_with('.') => {
                    samples::host(key).unwrap_or_default().iter().for_each(|v| wish(v));
                }
                None => {
                    let text = key.strip_prefix('\\').unwrap_or(key);
                    texts.push(text);
                    wish(text);
                }
            },
        }
    }
    // NGINX compares texts in any case. Names of hosts have none.
    if matches!(variable.as_str(), "uri" | "document_uri" | "request_uri") || is_of_client(&variable) {
        texts.iter().take(MAX_UPPER).for_each(|text| wish(&text.to_ascii_uppercase()));
    }
    Some(out)
}

/// The requests that give a variable a value; `None` where no request can.
pub fn grant(draft: &Draft, wish: &Wish) -> Option<Vec<Draft>> {
    let value = wish.value.as_str();
    let header = |name: &str| -> Draft {
        let mut out = draft.clone();
        out.headers.retain(|(n, _)| !n.eq_ignore_ascii_case(name));
        if value.is_empty() { out } else { out.with(name, value) }
    };
    let query = |text: String| draft.clone().at(&format!("{}?{text}", draft.path.split('?').next().unwrap_or("/")));
    let one = match wish.variable.as_str() {
        "host" | "http_host" | "server_name" | "ssl_server_name" | "ssl_preread_server_name" => {
            let mut out = draft.clone();
            if value.is_empty() || value.contains('*') {
                return None;
            }
            value.clone_into(&mut out.host);
            out
        }
        "http_upgrade" if !value.is_empty() => header("Upgrade").with("Connection", "upgrade"),
        "request_method" if !value.is_empty() && value.bytes().all(|b| b.is_ascii_uppercase()) => {
            Draft { method: value.to_owned(), ..draft.clone() }
        }
        "args" | "query_string" if !value.is_empty() => query(value.to_owned()),
        "is_args" => query("x=1".to_owned()),
        "uri" | "request_uri" | "document_uri" if value.starts_with('/') => draft.clone().at(value),
        "content_type" => header("Content-Type"),
        "ssl_client_verify" => {
            Draft { shown: if value == "SUCCESS" { Shown::Known } else { Shown::None }, ..draft.clone() }
        }
        "remote_addr" | "binary_remote_addr" => {
            let (inside, outside) = in_and_out(value)?;
            return Some([inside, outside].map(|from| Draft { from: Some(from), ..draft.clone() }).into());
        }
        variable => {
            if let Some(name) = variable.strip_prefix("http_") {
                header(&name.replace('_', "-"))
            } else if let Some(name) = variable.strip_prefix("arg_") {
                query(format!("{name}={value}"))
            } else if let Some(name) = variable.strip_prefix("cookie_") {
                match value {
                    "" => draft.clone(),
                    value => draft.clone().with("Cookie", &format!("{name}={value}")),
                }
            } else {
                return None;
            }
        }
    };
    Some(vec![one])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::draft::cases::place;

    #[test]
    fn keys_of_a_map_of_paths_are_tried_in_upper_case_too() {
        let node = |words: &[&str], block: Option<Vec<Node>>| {
            let words = words.iter().map(|w| (*w).to_owned()).collect();
            Node { place: place(1), words, block, from: None }
        };
        let entries = vec![node(&["default", ""], None), node(&["/jobs", "/karriere"], None)];
        let values = |source: &str| -> Vec<String> {
            let wishes = of_map(&node(&["map", source, "$new"], Some(entries.clone())));
            wishes.unwrap().into_iter().map(|w| w.value).collect()
        };
        assert_eq!(values("$uri"), ["other", "/jobs", "/JOBS"]);
        assert_eq!(values("$host"), ["other", "/jobs"]);
    }
}
