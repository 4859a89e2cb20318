//! The conditions of `if`.

use super::parser::Directive;
use crate::patterns;
use crate::values::{self, COOKIE};
use sealane_tls::distinguished_name;

/// A condition of `if`, as far as it is understood.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Condition {
    /// The request came over TLS, or (`false`) did not.
    Tls(bool),
    /// The request came to this port, or (`false`) to another one.
    Port(u16, bool),
    /// The host is one of these names, or (`false`) none of them.
    Host(Vec<String>, bool),
    /// The method is one of these, or (`false`) none of them.
    Method(Vec<String>, bool),
    /// One of these holds: headers and cookies, by name, and conditions in TOML.
    Values(Vec<(String, String)>),
    /// One of the first holds, and none of the second.
    Except {
        any: Vec<(String, String)>,
        except: Vec<(String, String)>,
    },
    /// A header or cookie is not this text.
    OtherValue(String, String),
    /// A header or cookie does not match. `anywhere`: the expression looks at no end of the value.
    Unmatched {
        name: String,
        rule: String,
        anywhere: bool,
    },
    /// The client has shown no certificate that was accepted. `over_tls`: over TLS only.
    NoCertificate {
        over_tls: bool,
    },
    /// The client has shown no certificate with one of these names, as in `allow_certificate`.
    OtherCertificate(Vec<String>),
    Unknown,
}

impl Condition {
    /// Whether it holds without the header, if it compares one that the gateway takes from trusted proxies only.
    pub fn without_claim(&self) -> Option<bool> {
        match self {
            Self::Values(any) | Self::Except { any, .. } => any
                .iter()
                .any(|(name, _)| values::is_claim(name))
                .then(|| any.iter().any(|(_, rule)| values::holds_without(rule))),
            Self::OtherValue(name, _) | Self::Unmatched { name, .. } => values::is_claim(name).then_some(true),
            _ => None,
        }
    }
}

/// Reads the condition of an `if`. Everything that is not read here is unknown.
pub(super) fn condition(d: &Directive) -> Condition {
    read(d).unwrap_or(Condition::Unknown)
}

/// The variable of a condition, its operator and its value, each without parentheses.
pub(super) struct Parts {
    pub variable: String,
    /// Empty where the variable alone is the condition.
    pub operator: String,
    pub value: String,
}

/// Takes a condition apart that compares a variable.
pub(super) fn parts(d: &Directive) -> Option<Parts> {
    let mut words: Vec<String> = d.arguments().into_iter().map(str::to_owned).collect();
    let first = words.first_mut()?;
    *first = first.strip_prefix('(')?.to_owned();
    let last = words.last_mut()?;
    *last = last.strip_suffix(')')?.to_owned();
    if words.first().is_some_and(String::is_empty) {
        words.remove(0);
    }
    // The parenthesis at the end may be a word of its own, and so may an empty value.
    if words.len() > 3 && words.last().is_some_and(String::is_empty) {
        words.pop();
    }
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let variable = words.first()?.strip_prefix('$')?;
    let variable = match variable.strip_prefix('{') {
        Some(inner) => inner.strip_suffix('}')?,
        None => variable,
    };
    let (operator, value) = match words[1..] {
        [] | [""] => ("", ""),
        [operator, value] => (operator, value),
        _ => return None,
    };
    Some(Parts { variable: variable.to_owned(), operator: operator.to_owned(), value: value.to_owned() })
}

fn read(d: &Directive) -> Option<Condition> {
    let Parts { variable, operator, value } = parts(d)?;
    let (variable, operator, value) = (variable.as_str(), operator.as_str(), value.as_str());
    let positive = match operator {
        "" | "=" | "~" | "~*" => true,
        "!=" | "!~" | "!~*" => false,
        _ => return None,
    };
    let pattern = operator.contains('~');
    if !pattern && value.contains('$') {
        return None;
    }
    Some(match variable {
        "scheme" => {
            let schemes = if pattern { patterns::texts(value)? } else { vec![value.to_owned()] };
            match schemes.as_slice() {
                [one] if one == "https" && !operator.is_empty() => Condition::Tls(positive),
                [one] if one == "http" && !operator.is_empty() => Condition::Tls(!positive),
                _ => return None,
            }
        }
        "https" => match (operator, value) {
            ("", _) => Condition::Tls(true),
            ("=" | "!=", "on") => Condition::Tls(positive),
            ("=" | "!=", "") => Condition::Tls(!positive),
            _ => return None,
        },
        // A certificate that is not accepted is answered with 400 before.
        "ssl_client_verify" => match (operator, value) {
            ("!=", "SUCCESS") => Condition::NoCertificate { over_tls: false },
            ("=", "NONE") => Condition::NoCertificate { over_tls: true },
            _ => return None,
        },
        "ssl_client_s_dn" | "ssl_client_i_dn" | "ssl_client_s_dn_legacy" | "ssl_client_i_dn_legacy" => match operator {
            "!=" => Condition::OtherCertificate(vec![of_certificate(variable, value, false)?]),
            _ => return None,
        },
        "server_port" if matches!(operator, "=" | "!=") => Condition::Port(value.parse().ok()?, positive),
        "host" | "http_host" => {
            let names = match (pattern, operator) {
                (true, _) => patterns::names(value)?,
                (false, "") => return None,
                // The host is in lower case; the header may not be.
                (false, _) if variable == "host" && value.bytes().any(|b| b.is_ascii_uppercase()) => return None,
                (false, _) => vec![value.to_ascii_lowercase()],
            };
            let good = |n: &String| {
                !n.is_empty()
                    && n.split('.')
                        .all(|l| !l.is_empty() && l.bytes().all(|b| b.is_ascii_alphanumeric() || b"-_".contains(&b)))
            };
            if !names.iter().all(good) {
                return None;
            }
            Condition::Host(names, positive)
        }
        "request_method" => {
            let methods = match operator {
                "" => return None,
                // NGINX takes methods in capitals only.
                "~*" | "!~*" => patterns::texts(value)?.iter().map(|m| m.to_ascii_uppercase()).collect(),
                "~" | "!~" => patterns::texts(value)?,
                _ => vec![value.to_owned()],
            };
            let good = |m: &String| !m.is_empty() && m.bytes().all(|b| b.is_ascii_uppercase());
            if !methods.iter().all(good) {
                return None;
            }
            Condition::Method(methods, positive)
        }
        variable => {
            let name = of_variable(variable)?;
            let one = |rule: String| Condition::Values(vec![(name.clone(), rule)]);
            match (operator, value) {
                ("", _) | ("!=", "") => one("true".to_owned()),
                ("=", "") => one(values::NOTHING.to_owned()),
                ("=", value) => one(values::equal(value)),
                ("!=", value) => Condition::OtherValue(name, value.to_owned()),
                ("~" | "~*", pattern) => {
                    let all = values::matched(&[(pattern, operator == "~*")])?;
                    Condition::Values(all.into_iter().map(|rule| (name.clone(), rule)).collect())
                }
                (_, pattern) => {
                    let rule = values::unmatched(pattern, operator == "!~*")?;
                    Condition::Unmatched { name, rule, anywhere: !patterns::looks(pattern)? }
                }
            }
        }
    })
}

/// The name of a client's certificate in `allow_certificate`, where a variable has this value. `any_case`: the value is compared in any
/// case.
pub(crate) fn of_certificate(variable: &str, value: &str, any_case: bool) -> Option<String> {
    let (kind, is_legacy) = match variable {
        "ssl_client_s_dn" => ("subject", false),
        "ssl_client_i_dn" => ("issuer", false),
        "ssl_client_s_dn_legacy" => ("subject", true),
        "ssl_client_i_dn_legacy" => ("issuer", true),
        _ => return None,
    };
    let name = if is_legacy { reversed(value)? } else { value.to_owned() };
    let normal = distinguished_name(&name).ok()?;
    // Texts are compared: a text in another form is equal to no certificate's.
    let is_same = if any_case { normal.eq_ignore_ascii_case(&name) } else { normal == name };
    is_same.then(|| format!("{kind}:{normal}"))
}

/// What OpenSSL writes as `/C=DE/O=Example/CN=alice`, with the last part first.
fn reversed(text: &str) -> Option<String> {
    // This form escapes no separators: another reading is of a certificate that is refused then.
    let mut parts = Vec::new();
    for part in text.strip_prefix('/')?.split('/') {
        let (kind, value) = part.split_once('=')?;
        let mut out = format!("{kind}=");
        for (at, c) in value.char_indices() {
            let is_at_end = at == 0 || at + 1 == value.len();
            match c {
                // It stands for another character.
                '\\' => return None,
                ',' | '+' | '"' | '<' | '>' | ';' => out.push('\\'),
                ' ' if is_at_end => out.push('\\'),
                '#' if at == 0 => out.push('\\'),
                _ => {}
            }
            out.push(c);
        }
        parts.push(out);
    }
    parts.reverse();
    Some(parts.join(","))
}

/// The header or cookie that a variable has, as routes name it.
pub(super) fn of_variable(variable: &str) -> Option<String> {
    let good = |text: &&str| !text.is_empty() && text.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_');
    match (variable.strip_prefix("http_").filter(good), variable.strip_prefix("cookie_").filter(good)) {
        // The gateway answers it itself.
        (Some("expect"), _) => None,
        (Some(header), _) => Some(header_name(header)),
        (None, Some(cookie)) => Some(format!("{COOKIE}{cookie}")),
        (None, None) => None,
    }
}

/// `${name}` as `$name`. A text with more than one variable stays as it is.
pub(super) fn without_braces(word: &str) -> String {
    let name = word.strip_prefix("${").and_then(|rest| rest.strip_suffix('}'));
    name.map_or_else(|| word.to_owned(), |name| format!("${name}"))
}

/// The header of a text that is nothing but the variable of a header.
pub(super) fn header_of(text: &str) -> Option<String> {
    let name = text.strip_prefix("$http_").filter(|name| !name.is_empty())?;
    name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_').then(|| header_name(name))
}

/// `$http_x_beta` is the header `X-Beta`.
pub(super) fn header_name(variable: &str) -> String {
    let words: Vec<String> = variable
        .split('_')
        .map(|w| {
            let mut chars = w.chars();
            chars.next().map_or_else(String::new, |c| c.to_ascii_uppercase().to_string() + chars.as_str())
        })
        .collect();
    words.join("-")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_certificates_are_read_in_both_forms() {
        for (variable, value, any_case, wanted) in [
            ("ssl_client_s_dn", "CN=a,O=B\\, C,C=DE", false, Some("subject:CN=a,O=B\\, C,C=DE")),
            ("ssl_client_i_dn", "CN=CA", false, Some("issuer:CN=CA")),
            ("ssl_client_s_dn_legacy", "/C=DE/O=B, C/CN=a", false, Some("subject:CN=a,O=B\\, C,C=DE")),
            ("ssl_client_i_dn_legacy", "/CN=CA", false, Some("issuer:CN=CA")),
            ("ssl_client_s_dn", "cn=a,o=B", true, Some("subject:CN=a,O=B")),
            // What no certificate is equal to.
            ("ssl_client_s_dn", "cn=a,o=B", false, None),
            ("ssl_client_s_dn", "CN=a, O=B", true, None),
            ("ssl_client_s_dn", "/C=DE/CN=a", true, None),
            ("ssl_client_s_dn_legacy", "CN=a,C=DE", false, None),
            ("ssl_client_s_dn_legacy", "/CN=a\\xE4", false, None),
            ("ssl_client_s_dn", "~CN=a", true, None),
            ("ssl_client_s_dn", "", true, None),
            ("ssl_client_serial", "CN=a", false, None),
        ] {
            assert_eq!(of_certificate(variable, value, any_case).as_deref(), wanted, "{variable} {value}");
        }
    }
}
