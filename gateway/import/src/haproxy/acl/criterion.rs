//! A criterion: the fetch of a sample, its converters, the kind of match, flags and values.

use super::{Counter, Files, HostSample, HostTexts, Test, Users};
use crate::addresses::{AddressList, AddressSet, Certificate};
use crate::haproxy::variables::SAVED;
use crate::nginx::{is_name, of_certificate};
use crate::paths::PathTest;
use crate::patterns::{self, Expression};
use crate::values::{self, COOKIE, Stand};

/// A criterion in its parts.
struct Criterion<'w> {
    name: &'w str,
    argument: &'w str,
    /// `-i`, or the converter `lower`.
    any_case: bool,
    /// The converter `lower`.
    lower: bool,
    /// It is the request's host without the port.
    bare: bool,
    /// `-m`; empty where there is none.
    matching: &'w str,
    values: Vec<&'w str>,
    /// `-f`: files with more values.
    files: Vec<&'w str>,
}

/// Takes a criterion apart; `None` where a converter, a flag or a parenthesis is not known.
fn criterion(words: &[String]) -> Option<Criterion<'_>> {
    let first = words.first()?;
    let host = HostSample::of(first);
    let (fetch, lower) = match (host, first.strip_suffix(",lower")) {
        (Some(host), _) => (&first[..=first.find(')')?], host.lower),
        (None, Some(fetch)) => (fetch, true),
        (None, None) => (first.as_str(), false),
    };
    let bare = host.is_some_and(|host| host.bare);
    let (name, argument) = match fetch.split_once('(') {
        Some((name, rest)) => (name, rest.strip_suffix(')')?),
        None => (fetch, ""),
    };
    // What is left of a converter has a comma, or a second parenthesis.
    if name.contains([',', ')']) || argument.contains(['(', ')']) {
        return None;
    }
    let (values, files) = (Vec::new(), Vec::new());
    let mut out = Criterion { name, argument, any_case: lower, lower, bare, matching: "", values, files };
    let mut i = 1;
    let mut flags = true;
    while i < words.len() {
        match words[i].as_str() {
            "-i" if flags => out.any_case = true,
            "-m" if flags && out.matching.is_empty() => {
                i += 1;
                out.matching = words.get(i)?;
            }
            "-f" if flags => {
                i += 1;
                out.files.push(words.get(i)?);
            }
            "-n" if flags && out.name == "src" => {}
            "--" if flags => flags = false,
            flag if flags && flag.starts_with('-') => return None,
            value => {
                flags = false;
                out.values.push(value);
            }
        }
        i += 1;
    }
    Some(out)
}

/// Reads a criterion. `None`: something of it is not known.
pub(super) fn read(words: &[String], files: Files, remarks: &mut Vec<String>) -> Option<Test> {
    if let Some(sample) = words.first().and_then(|w| w.strip_prefix(SAVED)) {
        let words = [&[sample.to_owned()], &words[1..]].concat();
        return read(&words, files, remarks).map(|test| Test::Saved(Box::new(test)));
    }
    let c = criterion(words)?;
    if let ("src", "" | "ip", "", false) = (c.name, c.matching, c.argument, c.any_case) {
        return source(&c, files);
    }
    let listed: Vec<Vec<String>> = c.files.iter().map(|f| files.entries(f)).collect::<Option<_>>()?;
    let values: Vec<&str> = c.values.iter().copied().chain(listed.iter().flatten().map(String::as_str)).collect();
    let values = values.as_slice();
    if values.is_empty() && !c.files.is_empty() && c.matching != "found" {
        let files: Vec<String> = c.files.iter().map(|f| files.path(f)).collect();
        remarks.push(format!(
            "{} has no entry, so this condition does not hold for any request. The import does not translate entries that you add later",
            files.join(" and ")
        ));
        return Some(Test::Always(false));
    }
    // A value in capitals is never equal to one in small letters.
    if c.lower && values.iter().any(|v| v.bytes().any(|b| b.is_ascii_uppercase())) {
        return None;
    }
    let owned = || values.iter().map(|v| (*v).to_owned()).collect::<Vec<String>>();
    let plain = c.argument.is_empty() && c.matching.is_empty() && !c.any_case;
    let path = |test: fn(&str) -> PathTest| {
        (c.argument.is_empty() && !values.is_empty())
            .then(|| Test::Path(values.iter().map(|v| PathTest { any_case: c.any_case, ..test(v) }).collect()))
    };
    if let Some((of, matching)) = of_value(&c) {
        return value(&c, of, matching, values, remarks);
    }
    match (c.name, c.matching) {
        ("always_true" | "always_false", _) if plain && values.is_empty() => {
            Some(Test::Always(c.name == "always_true"))
        }
        ("ssl_fc", _) if plain && values.is_empty() => Some(Test::Tls),
        ("rand", "") if !c.any_case => share(c.argument, values),
        ("ssl_c_used" | "ssl_fc_has_crt", _) if plain && values.is_empty() => {
            Some(Test::Certificate { is: Certificate::Any, now: c.name == "ssl_fc_has_crt" })
        }
        // A certificate that is not accepted ends the handshake, and without one there is no error.
        ("ssl_c_verify", _) if plain && values == ["0"] => Some(Test::Tls),
        ("ssl_c_s_dn", "" | "str") if c.argument.eq_ignore_ascii_case("cn") && !c.any_case && !values.is_empty() => {
            let names = values.iter().map(|v| format!("cn:{v}")).collect();
            Some(Test::Certificate { is: Certificate::Named(names), now: false })
        }
        ("ssl_c_s_dn" | "ssl_c_i_dn", "" | "str") if !c.any_case && !c.lower && !values.is_empty() => {
            // As NGINX writes them; without a format, as OpenSSL did before.
            let variable = match (c.name, c.argument) {
                ("ssl_c_s_dn", "") => "ssl_client_s_dn_legacy",
                ("ssl_c_s_dn", ",0,rfc2253") => "ssl_client_s_dn",
                (_, "") => "ssl_client_i_dn_legacy",
                (_, ",0,rfc2253") => "ssl_client_i_dn",
                _ => return None,
            };
            let names: Option<Vec<String>> = values.iter().map(|v| of_certificate(variable, v, false)).collect();
            names.map(|names| Test::Certificate { is: Certificate::Named(names), now: false })
        }
        ("req.ssl_hello_type" | "req_ssl_hello_type", _) if plain && values == ["1"] => Some(Test::Always(true)),
        ("dst_port", _) if plain && !values.is_empty() => {
            values.iter().map(|v| v.parse().ok()).collect::<Option<_>>().map(Test::Port)
        }
        ("ssl_fc_sni" | "req.ssl_sni" | "req_ssl_sni", "" | "str") if c.argument.is_empty() => {
            names(values, "str").map(Test::ServerName)
        }
        ("ssl_fc_sni" | "req.ssl_sni" | "req_ssl_sni", "end" | "reg") if c.argument.is_empty() => {
            names(values, c.matching).map(Test::ServerName)
        }
        ("ssl_fc_sni_end" | "req_ssl_sni_end", "") if c.argument.is_empty() => {
            names(values, "end").map(Test::ServerName)
        }
        ("ssl_fc_sni_reg" | "req_ssl_sni_reg", "") if c.argument.is_empty() => {
            names(values, "reg").map(Test::ServerName)
        }
        ("path", "" | "str") | ("path_str", "") => path(PathTest::exact),
        ("path", "beg") | ("path_beg", "") => path(PathTest::begins),
        ("path", "reg") | ("path_reg", "") if c.argument.is_empty() && !values.is_empty() => {
            let all: Option<Vec<Vec<PathTest>>> = values.iter().map(|v| patterns::paths(v, c.any_case)).collect();
            match all.map(|all| all.concat()).filter(|tests| tests.iter().all(PathTest::is_route)) {
                Some(tests) => Some(Test::Path(tests)),
                None => expression(values, |v| Some(v.to_owned()), "", c.any_case),
            }
        }
        ("path", "end") | ("path_end", "") if c.argument.is_empty() && !values.is_empty() => {
            expression(values, escaped, "$", c.any_case)
        }
        ("path", "sub") | ("path_sub", "") if c.argument.is_empty() && !values.is_empty() => {
            expression(values, escaped, "", c.any_case)
        }
        ("http_auth", "") if is_name(c.argument) && values.is_empty() && !c.any_case => {
            Some(Test::Users(Users { list: c.argument.to_owned(), groups: Vec::new() }))
        }
        ("http_auth_group", "") if is_name(c.argument) && !c.any_case && !values.is_empty() => {
            Users::of_groups(c.argument, values).map(Test::Users)
        }
        ("method", "" | "str") if c.argument.is_empty() && !c.any_case && !values.is_empty() => {
            let good = |m: &&str| !m.is_empty() && m.bytes().all(|b| b.is_ascii_uppercase());
            values.iter().all(good).then(|| Test::Method(owned()))
        }
        ("hdr_cnt" | "req.hdr_cnt", "") if is_name(c.argument) && !c.any_case => match values {
            ["gt", "0"] | ["ge", "1"] => Some(Test::Header(c.argument.to_owned(), "true".to_owned())),
            ["0"] | ["eq", "0"] => Some(Test::Header(c.argument.to_owned(), "false".to_owned())),
            _ => None,
        },
        ("req.body_size" | "body_size", "") if plain => body(values),
        ("req.hdr_val" | "hdr_val", "") if c.argument.eq_ignore_ascii_case("content-length") && !c.any_case => {
            body(values)
        }
        ("sc_http_req_rate" | "sc0_http_req_rate" | "sc1_http_req_rate" | "sc2_http_req_rate", "") if !c.any_case => {
            let counter = match (c.name.strip_prefix("sc")?.bytes().next()?, c.argument) {
                (b'_', n) => n.parse().ok()?,
                (digit, "") => digit - b'0',
                _ => return None,
            };
            let n = match values {
                ["gt", n] => n.parse().ok()?,
                ["ge", n] => n.parse::<u32>().ok()?.checked_sub(1)?,
                _ => return None,
            };
            Some(Test::Rate(Counter(counter), n))
        }
        _ => None,
    }
}

/// `gt 1000`, of the length of a body.
fn body(values: &[&str]) -> Option<Test> {
    let [operator, n] = values else { return None };
    let n: u64 = n.parse().ok()?;
    let (limit, longer) = match *operator {
        "gt" => (n, true),
        "ge" => (n.checked_sub(1)?, true),
        "le" => (n, false),
        "lt" => (n.checked_sub(1)?, false),
        _ => return None,
    };
    // 0 would be no limit.
    (1..=i64::MAX as u64).contains(&limit).then_some(Test::Body { limit, longer })
}

/// What a criterion compares.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum OfValue {
    /// One of the values of a header that commas separate.
    Element,
    /// A header.
    Header,
    Cookie,
}

/// A criterion that compares headers or cookies, and the kind of match.
fn of_value<'c>(c: &Criterion<'c>) -> Option<(OfValue, &'c str)> {
    let kinds = [
        ("hdr", OfValue::Element),
        ("req.hdr", OfValue::Element),
        ("fhdr", OfValue::Header),
        ("req.fhdr", OfValue::Header),
        ("cook", OfValue::Cookie),
        ("req.cook", OfValue::Cookie),
    ];
    kinds.into_iter().find_map(|(name, of)| match c.name.strip_prefix(name)? {
        "" => Some((of, c.matching)),
        ending if c.matching.is_empty() => match ending.strip_prefix('_')? {
            matching @ ("str" | "beg" | "end" | "sub" | "reg" | "dom") => Some((of, matching)),
            _ => None,
        },
        _ => None,
    })
}

/// A test of a header or a cookie.
fn value(c: &Criterion, of: OfValue, matching: &str, values: &[&str], remarks: &mut Vec<String>) -> Option<Test> {
    if of != OfValue::Cookie && matches!(c.argument.to_ascii_lowercase().as_str(), "host" | "host,1" | "host,-1") {
        let kind = if matching.is_empty() { "str" } else { matching };
        if let Some(names) = names(values, kind) {
            return Some(Test::Host(names));
        }
        // A condition on `Host` compares the port, too.
        let fits = |texts: &HostTexts| !c.bare || texts.stand == Stand::Begin;
        if let Some(texts) = HostTexts::of(values, kind).filter(fits) {
            return Some(Test::HostTexts(texts));
        }
        if c.bare {
            return None;
        }
        if let Some(test) = with_ports(values, c.any_case).filter(|_| kind == "str") {
            return Some(test);
        }
    }
    if !is_name(c.argument) {
        return None;
    }
    let name = match of {
        OfValue::Cookie => format!("{COOKIE}{}", c.argument),
        OfValue::Element | OfValue::Header => c.argument.to_owned(),
    };
    // There is one host, without a comma.
    let listed = of == OfValue::Element && !name.eq_ignore_ascii_case("host");
    let stand = match matching {
        "found" => return (values.is_empty() && !c.any_case).then(|| Test::Header(name, "true".to_owned())),
        "reg" if listed => {
            let one = patterns::listed(values, c.any_case)?;
            if values.iter().any(|v| patterns::may_have(v, b',')) {
                remarks.push(
                    "HAProxy compares each comma-separated value of the header by itself, and Sealane the whole \
                     header. The translation therefore also matches requests in which the expression matches across \
                     a comma"
                        .to_owned(),
                );
            }
            return Some(Test::Header(name, values::matching(&one)));
        }
        "reg" => {
            let all: Vec<(&str, bool)> = values.iter().map(|v| (*v, c.any_case)).collect();
            return match patterns::values(&all)?.as_slice() {
                [one] => Some(Test::Header(name, values::matching(one))),
                _ => None,
            };
        }
        "" | "str" => match values {
            [one] if !listed && !c.any_case && !one.is_empty() => return Some(Test::Header(name, values::equal(one))),
            _ => Stand::Whole,
        },
        "beg" => Stand::Begin,
        "end" => Stand::End,
        "sub" => Stand::Anywhere,
        "dom" => Stand::Domain,
        _ => return None,
    };
    values::texts(values, stand, c.any_case, listed).map(|one| Test::Header(name, values::matching(&one)))
}

/// `rand(100) lt 10`: ten of a hundred.
fn share(range: &str, values: &[&str]) -> Option<Test> {
    let of: u32 = range.parse().ok().filter(|of| (1..=10_000).contains(of))?;
    let [operator, number] = values else { return None };
    let number: u32 = number.parse().ok()?;
    let part = match *operator {
        "lt" => number,
        "le" => number.checked_add(1)?,
        "gt" => of.saturating_sub(number.checked_add(1)?),
        "ge" => of.saturating_sub(number),
        "eq" => u32::from(number < of),
        _ => return None,
    };
    Some(Test::Share(part.min(of), of))
}

/// `src`. What is in files is Sealane's to read: they change.
fn source(c: &Criterion, files: Files) -> Option<Test> {
    let set = c.values.iter().map(|v| AddressSet::of(v)).collect::<Option<Vec<_>>>()?.into_iter().collect();
    let files: Vec<String> = c.files.iter().map(|f| files.path(f)).collect();
    (!c.values.is_empty() || !files.is_empty()).then_some(Test::Source(AddressList { set, files }))
}

/// A criterion that is not understood; whether it checks who the client is only changes what is said of it.
pub(super) fn unknown(fetch: &str) -> Test {
    let about_clients =
        ["src", "http_auth", "ssl_c_", "sc_", "sc0_", "sc1_", "sc2_", "ssl_fc_has", "table_", "so_id", "user"];
    match about_clients.iter().any(|p| fetch.starts_with(p)) {
        true => Test::Access,
        false => Test::Unknown,
    }
}

/// Names of hosts. What ends within a label, or has a port, is not known.
fn names(values: &[&str], matching: &str) -> Option<Vec<String>> {
    let mut out: Vec<String> = Vec::new();
    for value in values {
        let lower = value.to_ascii_lowercase();
        let good = |n: &str| {
            !n.is_empty()
                && n.split('.').all(|l| !l.is_empty())
                && n.bytes().all(|b| b.is_ascii_alphanumeric() || b"-._".contains(&b))
        };
        match (matching, lower.strip_prefix('.')) {
            ("str", None) if good(&lower) => out.push(lower),
            ("end", Some(rest)) if good(rest) => out.push(format!("**.{rest}")),
            ("reg", _) => out.extend(patterns::names(value)?),
            _ => return None,
        }
    }
    (!out.is_empty()).then_some(out)
}

/// Names of hosts of which some have ports: `a.example a.example:443`.
fn with_ports(values: &[&str], any_case: bool) -> Option<Test> {
    let of_port = |value: &str| {
        let (name, port) = value.rsplit_once(':')?;
        (!port.is_empty() && port.bytes().all(|b| b.is_ascii_digit())).then(|| name.to_owned())
    };
    let (mut plain, mut others) = (Vec::new(), Vec::new());
    for value in values {
        match of_port(value) {
            Some(name) => others.extend(names(&[name.as_str()], "str")?),
            None => plain.extend(names(&[*value], "str")?),
        }
    }
    // Names of Sealane are for all ports.
    if others.iter().all(|name| plain.contains(name)) {
        return (!plain.is_empty()).then_some(Test::Host(plain));
    }
    let rule = match values {
        [one] if !any_case => values::equal(one),
        _ => values::matching(&values::texts(values, Stand::Whole, any_case, false)?),
    };
    plain.append(&mut others);
    Some(Test::HostPorts { names: plain, rule })
}

/// An expression for the path. `of`: what a value is in it; `end`: what follows.
fn expression(values: &[&str], of: impl Fn(&str) -> Option<String>, end: &str, any_case: bool) -> Option<Test> {
    let all: Vec<String> = values.iter().map(|v| of(v)).collect::<Option<_>>()?;
    let text = match all.as_slice() {
        [one] => format!("{one}{end}"),
        all => format!("(?:{}){end}", all.join("|")),
    };
    // Each of them is one by itself.
    if !all.iter().all(|v| Expression::of(v, any_case).is_some()) {
        return None;
    }
    Expression::of(&text, any_case).map(Test::Expression)
}

/// A text as an expression.
fn escaped(text: &str) -> Option<String> {
    let plain = |c: char| c.is_ascii_alphanumeric() || "/_-.~+".contains(c);
    let one = |c: char| match c {
        '.' | '+' => format!("\\{c}"),
        c => c.to_string(),
    };
    (!text.is_empty() && text.chars().all(plain)).then(|| text.chars().map(one).collect())
}
