//! Random configurations of HAProxy, and what HAProxy does with requests under them.

use super::{Answer, Generated, Random, Request};
use std::fmt::Write as _;

/// A test of requests; the path is given, since rules change it.
type Holds = fn(&Request, &str) -> bool;

/// Criteria; the first ones end with whole segments.
const CRITERIA: &[(&str, Holds)] = &[
    ("path_beg /a/", |_, p| p.starts_with("/a/")),
    ("path_beg /a/b/", |_, p| p.starts_with("/a/b/")),
    ("path_beg /b/ /ab/", |_, p| p.starts_with("/b/") || p.starts_with("/ab/")),
    ("path /a", |_, p| p == "/a"),
    ("path /a/b /x", |_, p| p == "/a/b" || p == "/x"),
    ("path_reg ^/(a|b)/", |_, p| p.starts_with("/a/") || p.starts_with("/b/")),
    ("path_reg ^/b$", |_, p| p == "/b"),
    ("hdr(host) a.example", |r, _| r.host == "a.example"),
    ("hdr(host) -i b.example x.a.example", |r, _| r.host == "b.example" || r.host == "x.a.example"),
    ("hdr_end(host) -i .a.example", |r, _| r.host.ends_with(".a.example")),
    ("method POST", |r, _| r.method == "POST"),
    ("method GET PUT", |r, _| r.method != "POST"),
    ("hdr(X-One) -m found", |r, _| r.one.is_some()),
    ("hdr_cnt(X-One) eq 0", |r, _| r.one.is_none()),
    ("hdr(X-One) 1", |r, _| r.one == Some("1")),
    ("hdr(X-Two) 1", |r, _| r.two == Some("1")),
    ("hdr_sub(X-One) -i 2 x", |r, _| r.one.is_some_and(|v| v.contains('2') || v.contains('x'))),
    ("hdr_reg(X-One) ^1 2$", |r, _| r.one.is_some_and(|v| v.starts_with('1') || v.ends_with('2'))),
    ("req.fhdr(X-Two) -m beg 1", |r, _| r.two.is_some_and(|v| v.starts_with('1'))),
    ("hdr_beg(host) -i x. y.", |r, _| r.host.starts_with("x.") || r.host.starts_with("y.")),
    ("hdr_beg(host) x", |r, _| r.host.starts_with('x')),
    ("hdr_end(host) -i a.example", |r, _| r.host.ends_with("a.example")),
    ("hdr_dom(host) -i a", |r, _| format!(".{}.", r.host).contains(".a.")),
    ("hdr_dom(host) -i a.example", |r, _| format!(".{}.", r.host).contains(".a.example.")),
    ("hdr(host),field(1,:),lower b.example x.a.example", |r, _| r.host == "b.example" || r.host == "x.a.example"),
    ("src 10.0.0.0/8 192.0.2.1", |_, _| false),
    ("src 127.0.0.0/8", |_, _| true),
    ("ssl_fc", |_, _| false),
    ("always_true", |_, _| true),
    ("dst_port 8080", |_, _| true),
    ("ssl_fc_sni a.example", |_, _| false),
    ("path_end .php x", |_, p| p.ends_with(".php") || p.ends_with('x')),
    ("path_reg ^/a/|/b/", |_, p| p.starts_with("/a/") || p.contains("/b/")),
    ("path_sub b", |_, p| p.contains('b')),
    ("path_beg /a", |_, p| p.starts_with("/a")),
    ("path_beg -i /a/", |_, p| p.to_ascii_lowercase().starts_with("/a/")),
    ("path,length gt 3", |_, p| p.len() > 3),
    ("path,field(2,/) a", |_, p| p.split('/').nth(1) == Some("a")),
    ("ssl_fc 0", |_, _| true),
    ("method -m beg P", |r, _| r.method.starts_with('P')),
    ("hdr(X-One),length 1", |r, _| r.one.is_some()),
];
/// How many of them end with whole segments, and are translated.
const PLAIN: usize = 34;

type Term = Vec<(bool, usize)>;

/// `or` of `and`.
#[derive(Clone)]
struct Condition {
    unless: bool,
    terms: Vec<Term>,
}

impl Condition {
    fn holds(&self, r: &Request, path: &str) -> bool {
        let all = |t: &Term| t.iter().all(|(negated, c)| CRITERIA[*c].1(r, path) != *negated);
        self.terms.iter().any(all) != self.unless
    }

    fn text(&self) -> String {
        let one = |(negated, c): &(bool, usize)| format!("{}{{ {} }}", if *negated { "!" } else { "" }, CRITERIA[*c].0);
        let all = |t: &Term| t.iter().map(one).collect::<Vec<_>>().join(" ");
        let terms: Vec<String> = self.terms.iter().map(all).collect();
        format!("{} {}", if self.unless { "unless" } else { "if" }, terms.join(" or "))
    }
}

#[derive(Clone)]
enum Does {
    Answer(String, Answer),
    /// `replace-path ^/a/(.*) /new/\1`
    Cut,
    Backend(usize),
}

#[derive(Clone)]
struct Rule {
    does: Does,
    when: Option<Condition>,
}

/// Rules of the frontend, of each backend, and the default backend.
struct Proxies {
    front: Vec<Rule>,
    backs: Vec<Vec<Rule>>,
    default: usize,
}

fn condition(random: &mut Random, plain: usize) -> Condition {
    let last = if plain > 0 && !random.one_in(30) { plain } else { CRITERIA.len() };
    let term = |random: &mut Random| -> Term {
        (0..1 + random.below(2)).map(|_| (random.one_in(4), random.below(last))).collect()
    };
    let terms = (0..1 + usize::from(random.one_in(4))).map(|_| term(random)).collect();
    Condition { unless: random.one_in(4), terms }
}

fn rules(random: &mut Random, number: &mut usize, plain: usize) -> Vec<Rule> {
    let mut out = Vec::new();
    for _ in 0..random.below(3) {
        *number += 1;
        let does = match random.below(7) {
            0 => Does::Answer(
                format!("http-request return status 200 content-type text/plain string text{number}"),
                Answer::Status(200, format!("text{number}")),
            ),
            1 => Does::Answer(
                format!("http-request redirect location https://r.example/{number} code 302"),
                Answer::Redirect(302, format!("https://r.example/{number}")),
            ),
            2 => Does::Answer("http-request deny deny_status 404".into(), Answer::Status(404, String::new())),
            3 if random.one_in(2) => Does::Cut,
            _ => Does::Answer("http-request deny".into(), Answer::Status(403, String::new())),
        };
        let when = match &does {
            Does::Cut => None,
            _ => (!random.one_in(12)).then(|| condition(random, plain)),
        };
        out.push(Rule { does, when });
    }
    out
}

/// A configuration; `whole`: its paths end with slashes.
pub fn generate(random: &mut Random, whole: bool) -> Generated {
    let mut number = 0;
    let plain = if whole || !random.one_in(4) { PLAIN } else { 0 };
    let mut front = rules(random, &mut number, plain);
    let backs: Vec<Vec<Rule>> =
        (0..3).map(|_| if random.one_in(4) { rules(random, &mut number, plain) } else { Vec::new() }).collect();
    for _ in 0..random.below(3) {
        front.push(Rule { does: Does::Backend(random.below(3)), when: Some(condition(random, plain)) });
    }
    let default = random.below(3);
    let mut text = "defaults\n mode http\n timeout connect 5s\n timeout client 5s\n timeout server 5s\nfrontend f\n bind 127.0.0.1:8080\n".to_owned();
    write(&front, &mut text);
    let _ = writeln!(text, " default_backend b{default}");
    for (at, rules) in backs.iter().enumerate() {
        let _ = writeln!(text, "backend b{at}");
        write(rules, &mut text);
        let _ = writeln!(text, " server s 10.0.0.{}:80", at + 1);
    }
    let proxies = Proxies { front, backs, default };
    Generated { text, model: Box::new(move |request| decide(&proxies, request)) }
}

fn write(rules: &[Rule], out: &mut String) {
    for rule in rules {
        let does = match &rule.does {
            Does::Answer(text, _) => text.clone(),
            Does::Cut => "http-request replace-path ^/a/(.*) /new/\\1".to_owned(),
            Does::Backend(at) => format!("use_backend b{at}"),
        };
        let when = rule.when.as_ref().map_or_else(String::new, |c| format!(" {}", c.text()));
        let _ = writeln!(out, " {does}{when}");
    }
}

fn decide(proxies: &Proxies, r: &Request) -> Answer {
    let mut path = r.path.to_owned();
    let mut backend = None;
    if let Some(answer) = run(&proxies.front, r, &mut path, &mut backend) {
        return answer;
    }
    let backend = backend.unwrap_or(proxies.default);
    if let Some(answer) = run(&proxies.backs[backend], r, &mut path, &mut None) {
        return answer;
    }
    Answer::Server(format!("10.0.0.{}:80", backend + 1), path)
}

fn run(rules: &[Rule], r: &Request, path: &mut String, backend: &mut Option<usize>) -> Option<Answer> {
    for rule in rules {
        if !rule.when.as_ref().is_none_or(|c| c.holds(r, path)) {
            continue;
        }
        match &rule.does {
            Does::Answer(_, answer) => return Some(answer.clone()),
            Does::Cut => {
                if let Some(rest) = path.strip_prefix("/a/") {
                    *path = format!("/new/{rest}");
                }
            }
            Does::Backend(at) => *backend = backend.or(Some(*at)),
        }
    }
    None
}
