//! ACLs and conditions.
//!
//! A condition is a disjunction of conjunctions of ACLs. For a given address, host and path most ACLs are decided; what is left is
//! about methods and headers, which routes can say.
//!
//! An ACL is understood if its fetch, its converters, its kind of match, its flags and its values are all in [`read`]
//! (`criterion.rs`); everything else is [`Test::Unknown`], and so is undecided where a rule uses it. `left.rs` decides conditions.

mod criterion;
mod hosts;
mod left;

pub(super) use hosts::{HostClass, HostSample, HostTexts, classes};
pub(super) use left::{Atom, Left};

use super::parser::{Line, Proxy};
use super::variables::{self, Setters};
use crate::addresses::{AddressList, Certificate};
use crate::nginx::is_name;
use crate::output::Methods;
use crate::paths::PathTest;
use crate::patterns::Expression;
use crate::reader::Reader;
use crate::report::{Id, Place};
use crate::values;
use criterion::{read, unknown};
use std::collections::BTreeMap;
use std::path::Path;

/// What one `acl` line tests; several of one name are alternatives.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Test {
    Always(bool),
    Tls,
    Port(Vec<u16>),
    /// Names of the request's host, as in `[[host]]`.
    Host(Vec<String>),
    /// A part of the request's host.
    HostTexts(HostTexts),
    /// Names of the request's host, some of them only with a port. Each name has a `[[host]]`, and the condition on `Host` in TOML.
    HostPorts {
        names: Vec<String>,
        rule: String,
    },
    /// Names of the ClientHello, as in `[[host]]`. A connection without TLS has none.
    ServerName(Vec<String>),
    Path(Vec<PathTest>),
    /// The path matches.
    Expression(Expression),
    Method(Vec<String>),
    /// A header, and a condition in TOML.
    Header(String, String),
    /// The client has the password of one of these users.
    Users(Users),
    /// More requests in the period of a stick table than this, by the counter of this number.
    Rate(Counter, u32),
    /// The client's address is one of these.
    Source(AddressList),
    /// The client has this certificate. `now`: it was shown in this handshake, not in that of the session that it resumes.
    Certificate {
        is: Certificate,
        now: bool,
    },
    /// Chance: this many of so many requests.
    Share(u32, u32),
    /// The body has more (`longer`), or at most, this many bytes.
    Body {
        limit: u64,
        longer: bool,
    },
    /// The same of the request as it has come, which responses know, too.
    Saved(Box<Test>),
    /// It checks who the client is.
    Access,
    Unknown,
}

impl Test {
    /// Whether it is not understood.
    pub fn is_unknown(&self) -> bool {
        match self {
            Self::Saved(inner) => inner.is_unknown(),
            test => matches!(test, Self::Access | Self::Unknown),
        }
    }

    /// The texts with which it compares a part of the request's host.
    pub fn host_texts(&self) -> Option<&HostTexts> {
        if let Self::HostTexts(texts) = self { Some(texts) } else { None }
    }
}

/// Users of a `userlist`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Users {
    pub list: String,
    /// Only those in one of these groups. Empty: all.
    pub groups: Vec<String>,
}

impl Users {
    /// Those in some groups.
    pub fn of_groups(list: &str, groups: &[&str]) -> Option<Self> {
        let mut all: Vec<String> = groups.iter().map(|g| (*g).to_owned()).collect();
        all.sort();
        all.dedup();
        all.iter().all(|g| is_name(g)).then(|| Self { list: list.to_owned(), groups: all })
    }

    /// The file of their list, beside the result.
    pub fn file(&self) -> String {
        format!("{}.users", self.list)
    }

    /// Whether all of the others are among them.
    pub fn includes(&self, others: &Self) -> bool {
        let wide = self.groups.is_empty()
            || !others.groups.is_empty() && others.groups.iter().all(|g| self.groups.contains(g));
        self.list == others.list && wide
    }
}

/// A counter of clients' requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Counter(pub u8);

/// A conjunction: tests, each perhaps negated.
pub(super) type All = Vec<(bool, Vec<Test>)>;

/// A condition. Empty: always.
#[derive(Clone, Debug, Default)]
pub(super) struct Condition(pub Vec<All>);

/// What is to be reported of the tests of a condition.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Remarks {
    /// A test matches further requests, for the reason that is said. `true`: it is one that must not hold.
    pub wider: Vec<(String, bool)>,
    /// Other lines because of which the condition is not understood: variables and ACLs, with their lines.
    pub because: Vec<String>,
    /// A test of the line itself is not understood.
    pub own: bool,
}

impl Remarks {
    /// Why the condition is not understood, if this is only because of other lines.
    pub fn only_because(&self) -> Option<String> {
        let mut all: Vec<&str> = Vec::new();
        for one in self.because.iter().map(String::as_str) {
            if !all.contains(&one) {
                all.push(one);
            }
        }
        (!self.own && !all.is_empty()).then(|| all.join(" and "))
    }
}

/// A variable with its line, as the report names it.
fn named_variable(name: &str, place: &Place) -> String {
    format!("the variable {name} (line {})", place.line)
}

/// An `acl` line: what it tests, and remarks about that.
pub(super) type Acl<'l> = (Test, &'l Line, Vec<String>);

/// Methods, headers with their conditions, and the expression of the path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Match {
    pub methods: Methods,
    pub headers: Vec<(String, String)>,
    pub pattern: Option<String>,
}

/// The requests that meet two [`Match`]es.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Both {
    None,
    These(Match),
    /// No condition of a route says this.
    Unsayable,
}

impl Match {
    /// Whether it has no condition.
    pub fn is_all(&self) -> bool {
        self.methods == Methods::Any && self.headers.is_empty() && self.pattern.is_none()
    }

    /// The requests that another one is for, too.
    pub fn and(&self, other: &Self) -> Both {
        let mut both = self.clone();
        both.methods = match &other.methods {
            Methods::Any => self.methods.clone(),
            Methods::Of(list) => left::and_methods(&self.methods, false, list),
            Methods::Not(list) => left::and_methods(&self.methods, true, list),
        };
        if matches!(&both.methods, Methods::Of(none) if none.is_empty()) {
            return Both::None;
        }
        for (name, rule) in &other.headers {
            match both.headers.iter().find(|(n, _)| n.eq_ignore_ascii_case(name)) {
                None => both.headers.push((name.clone(), rule.clone())),
                Some((_, there)) if there == rule => {}
                Some((_, there)) if values::negated(there) == *rule => return Both::None,
                Some(_) => return Both::Unsayable,
            }
        }
        match (&self.pattern, &other.pattern) {
            (Some(a), Some(b)) if a != b => return Both::Unsayable,
            (None, pattern) => both.pattern.clone_from(pattern),
            _ => {}
        }
        Both::These(both)
    }
}

/// The files that `-f` names.
#[derive(Clone, Copy)]
pub(super) struct Files<'f> {
    pub reader: &'f dyn Reader,
    /// Relative paths are from here.
    pub base: &'f Path,
}

/// Most entries of a file.
const MAX_ENTRIES: usize = 2000;

impl Files<'_> {
    pub fn path(&self, name: &str) -> String {
        self.base.join(name).to_string_lossy().into_owned()
    }

    /// What a file lists; `None`: it cannot be read, or is too long.
    pub fn entries(&self, name: &str) -> Option<Vec<String>> {
        let bytes = self.reader.read(Path::new(&self.path(name))).ok()?;
        let text = String::from_utf8(bytes).ok()?;
        let lines = text.lines().map(str::trim).filter(|l| !l.is_empty() && !l.starts_with('#'));
        let found: Vec<String> = lines.take(MAX_ENTRIES + 1).map(str::to_owned).collect();
        (found.len() <= MAX_ENTRIES).then_some(found)
    }
}

/// The ACLs of a proxy, by section and name: those of `defaults` are for the rules in them only.
pub(super) struct Acls<'l> {
    files: Files<'l>,
    pub named: BTreeMap<(Id, &'l str), Vec<Acl<'l>>>,
    /// Variables that are not translated.
    setters: &'l Setters,
    /// Whether the configuration takes addresses of clients from headers, so that the result needs `trusted_proxies`.
    pub trusts: bool,
}

/// ACLs that HAProxy defines.
const PREDEFINED: &[(&str, &[&str])] = &[
    ("TRUE", &["always_true"]),
    ("FALSE", &["always_false"]),
    ("HTTP", &["always_true"]),
    ("METH_GET", &["method", "GET", "HEAD"]),
    ("METH_HEAD", &["method", "HEAD"]),
    ("METH_POST", &["method", "POST"]),
    ("METH_PUT", &["method", "PUT"]),
    ("METH_DELETE", &["method", "DELETE"]),
    ("METH_OPTIONS", &["method", "OPTIONS"]),
    ("METH_CONNECT", &["method", "CONNECT"]),
    ("METH_TRACE", &["method", "TRACE"]),
    ("LOCALHOST", &["src", "127.0.0.1/8"]),
    ("REQ_CONTENT", &["always_true"]),
    ("WAIT_END", &["always_true"]),
];

/// Most conjunctions of a condition.
const MAX_TERMS: usize = 200;

impl<'l> Acls<'l> {
    pub fn of(proxy: &Proxy<'l>, files: Files<'l>, setters: &'l Setters, trusts: bool) -> Self {
        let mut out = Self { files, named: BTreeMap::new(), setters, trusts };
        for line in proxy.all().filter(|l| l.word(0) == "acl" && l.words.len() > 2) {
            let mut remarks = Vec::new();
            let test = read(line.from(2), files, &mut remarks).unwrap_or_else(|| unknown(line.word(2)));
            out.named.entry((line.section, line.words[1].as_str())).or_default().push((test, line, remarks));
        }
        out
    }

    /// The path of a file.
    pub fn path(&self, name: &str) -> String {
        self.files.path(name)
    }

    /// How many bytes a file has; `None`: it cannot be read.
    pub fn size(&self, path: &str) -> Option<usize> {
        self.files.reader.read(Path::new(path)).ok().map(|bytes| bytes.len())
    }

    /// Reads a criterion; `None` where something of it is not known.
    pub fn read(&self, words: &[String]) -> Option<Test> {
        read(words, self.files, &mut Vec::new())
    }

    /// The variables that words use, each with the line that sets it.
    pub fn variables(&self, words: &[String]) -> Vec<String> {
        variables::used(words, self.setters).into_iter().map(|(name, place)| named_variable(name, place)).collect()
    }

    /// What a file lists; `None`: it cannot be read, or is too long.
    pub fn entries(&self, name: &str) -> Option<Vec<String>> {
        self.files.entries(name)
    }

    /// Reads `if …` or `unless …` at the end of a line of a section; `None` where it cannot be read.
    pub fn condition(&self, section: Id, words: &[String], remarks: &mut Remarks) -> Option<Condition> {
        let Some(first) = words.first() else { return Some(Condition::default()) };
        let unless = match first.as_str() {
            "if" => false,
            "unless" => true,
            _ => return None,
        };
        let mut terms: Vec<All> = vec![Vec::new()];
        let mut negated = false;
        let mut i = 1;
        while i < words.len() {
            let mut word = words[i].as_str();
            i += 1;
            while let Some(rest) = word.strip_prefix('!') {
                negated = !negated;
                word = rest;
            }
            match word {
                "" => continue,
                "or" | "||" if !negated => {
                    terms.push(Vec::new());
                    continue;
                }
                "{" => {
                    let end = words[i..].iter().position(|w| w == "}")? + i;
                    let mut said = Vec::new();
                    let test = read(&words[i..end], self.files, &mut said)
                        .unwrap_or_else(|| unknown(words.get(i).map_or("", String::as_str)));
                    remarks.wider.extend(said.into_iter().map(|s| (s, negated != unless)));
                    if test.is_unknown() {
                        let variables = self.variables(&words[i..end]);
                        remarks.own |= variables.is_empty();
                        remarks.because.extend(variables);
                    }
                    terms.last_mut()?.push((negated, vec![test]));
                    i = end + 1;
                }
                name => {
                    let tests: Vec<Test> = match self.named.get(&(section, name)) {
                        Some(tests) => {
                            let said = tests.iter().flat_map(|(.., said)| said);
                            remarks.wider.extend(said.map(|s| (s.clone(), negated != unless)));
                            for (_, line, _) in tests.iter().filter(|(test, ..)| test.is_unknown()) {
                                remarks.because.push(match self.variables(line.from(2)).as_slice() {
                                    [] => format!("the ACL {name} (line {})", line.place.line),
                                    all => all.join(" and "),
                                });
                            }
                            tests.iter().map(|(t, ..)| t.clone()).collect()
                        }
                        None => {
                            let predefined = PREDEFINED.iter().find(|(n, _)| *n == name)?.1;
                            let words: Vec<String> = predefined.iter().map(|w| (*w).to_owned()).collect();
                            vec![read(&words, self.files, &mut Vec::new()).unwrap_or(Test::Access)]
                        }
                    };
                    terms.last_mut()?.push((negated, tests));
                }
            }
            negated = false;
            if terms.len() > MAX_TERMS || terms.last().is_some_and(|t| t.len() > MAX_TERMS) {
                return None;
            }
        }
        if negated || terms.iter().any(Vec::is_empty) {
            return None;
        }
        match (unless, terms.as_slice()) {
            (false, _) => Some(Condition(terms)),
            // Not (a or b): neither.
            (true, terms) if terms.iter().all(|t| t.len() == 1) => {
                Some(Condition(vec![terms.iter().map(|t| (!t[0].0, t[0].1.clone())).collect()]))
            }
            // Not (a and b): one of them not.
            (true, [one]) => Some(Condition(one.iter().map(|(n, t)| vec![(!n, t.clone())]).collect())),
            (true, _) => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::left::includes;
    use super::*;
    use crate::Memory;
    use crate::addresses::{AddressSet, Clients};

    fn words(text: &str) -> Vec<String> {
        text.split(' ').map(str::to_owned).collect()
    }

    const NO_VARIABLES: &Setters = &Setters::new();

    fn acls(files: &Memory) -> Acls<'_> {
        let files = Files { reader: files, base: Path::new("/etc") };
        Acls { files, named: BTreeMap::new(), setters: NO_VARIABLES, trusts: false }
    }

    fn left(condition: &str, path: &str, host: &str) -> Left {
        let mut files = Memory::of("/etc/paths", b"# those\n/a\n /b \n");
        files.files.insert("/etc/none".into(), Vec::new());
        let acls = acls(&files);
        let c = acls.condition(Id::default(), &words(condition), &mut Remarks::default()).unwrap();
        let class = &HostClass::default();
        c.of(&Atom { tls: true, trusts: false, port: 443, host, class, path: Some(path), one: Some(path) })
    }

    #[test]
    fn conditions_have_and_or_and_not() {
        assert_eq!(left("if { ssl_fc } { hdr(host) a.b }", "/", "a.b"), Left::Always);
        assert_eq!(left("if { ssl_fc } { hdr(host) a.b }", "/", "c.d"), Left::Never);
        assert_eq!(left("if !{ ssl_fc } or { hdr_end(host) .b }", "/", "a.b"), Left::Always);
        assert_eq!(left("unless { ssl_fc } || { hdr(host) x.y }", "/", "a.b"), Left::Never);
        let routes = |methods| Left::Routes(vec![Match { methods, headers: vec![], pattern: None }]);
        let post = || vec!["POST".to_owned()];
        assert_eq!(left("if METH_POST", "/", "a.b"), routes(Methods::Of(post())));
        assert_eq!(left("unless METH_POST", "/", "a.b"), routes(Methods::Not(post())));
        assert_eq!(left("if METH_POST METH_PUT", "/", "a.b"), Left::Never);
    }

    #[test]
    fn paths_are_texts() {
        for (condition, path, is) in [
            ("if { path_beg /api/ }", "/api/x", true),
            ("if { path_beg /api/ }", "/api", false),
            ("if { path_beg /api }", "/apix", true),
            ("if { path_beg -i /api }", "/APIx", true),
            ("if { path /api }", "/api/", false),
            ("if { path -m beg /api }", "/api/", true),
            ("if { path_reg ^/(a|b)$ }", "/a", true),
            ("if { path_reg ^/v[0-9]+/ }", "/v12/x", true),
            ("if { path_reg ^/v[0-9]+/ }", "/v/x", false),
            ("if { path_end .env .git }", "/a/.env", true),
            ("if { path_end .env }", "/a/xenv", false),
            ("if { path_end -i .env }", "/a/.ENV", true),
            ("if { path -m sub /cgi-bin/ }", "/a/cgi-bin/x", true),
        ] {
            assert_eq!(left(condition, path, "x"), if is { Left::Always } else { Left::Never }, "{condition} {path}");
        }
    }

    /// What is not in the list of what is understood is unknown: converters, kinds of matches, flags, arguments and values.
    #[test]
    fn what_is_not_known_is_unknown() {
        for criterion in [
            "path,field(2,/) -m str admin",
            "path,length gt 5",
            "path,url_dec /admin",
            "path -m dir admin",
            "path -m sub ad%min",
            "path -f missing /a",
            "path_dir admin",
            "url_beg /admin",
            "path(1) /a",
            "ssl_fc 0",
            "ssl_fc -m bool",
            "always_true 0",
            "method -m beg P",
            "method -i get",
            "hdr(user-agent),length 0",
            "hdr(host),field(2,:) -i a.example",
            "hdr(host),field(1,:) -m end a.example",
            "hdr(host),field(1,:) -m sub a.example",
            "hdr(host),field(1,:),lower A.example",
            "hdr(host),regsub(x,y) a",
            "hdr(x) -m found 0",
            "hdr(x,2) a",
            "hdr(x) -m dir a",
            "hdr_beg(x) -m str a",
            "hdr_ip(x) 10.0.0.1",
            "hdr(x) a,b",
            "hdr_reg(x) a^b",
            "hdr_reg(x) (?=a)",
            "hdr_dom(x) .a",
            "cook(x),length 0",
            "req.cook(x) -m found 1",
            "hdr_cnt(x) gt 5",
            "dst_port gt 1024",
            "dst_port 1000:2000",
            "path_reg ^/(?!admin/).+",
            "path_reg ^/(a",
            "path_reg ^/a ^/(b",
            "req.ssl_hello_type 2",
            "path,lower /Admin",
        ] {
            assert_eq!(left(&format!("if {{ {criterion} }}"), "/", "a.example"), Left::Unknown, "{criterion}");
        }
        for criterion in
            ["sc_http_req_rate(0) lt 5", "sc_http_req_rate(0,t) gt 5", "src_http_req_rate gt 5", "src_conn_cur gt 1"]
        {
            assert_eq!(left(&format!("if {{ {criterion} }}"), "/", "a.example"), Left::Access, "{criterion}");
        }
        for condition in ["if a and b", "if !", "if { path /a", "if", "if or TRUE", "if UNHEARD"] {
            let read = acls(&Memory::default()).condition(Id::default(), &words(condition), &mut Remarks::default());
            assert!(read.is_none(), "{condition}");
        }
    }

    #[test]
    fn values_are_compared() {
        let routes = |name: &str, rule: &str| {
            let headers = vec![(name.to_owned(), rule.to_owned())];
            Left::Routes(vec![Match { methods: Methods::Any, headers, pattern: None }])
        };
        for (condition, name, rule) in [
            ("if { req.fhdr(x) a }", "x", "\"a\""),
            ("if { req.fhdr(x) -m reg ^a b$ }", "x", "{ regex = '(?:^a)|(?:b$)' }"),
            ("if { hdr(x) a b }", "x", r"{ regex = '(?:^|,)[ \t]*(?:a|b)[ \t]*(?:,|$)' }"),
            ("unless { hdr(x) a }", "x", r"{ not = { regex = '(?:^|,)[ \t]*a[ \t]*(?:,|$)' } }"),
            ("if { hdr_sub(user-agent) -i bot }", "user-agent", "{ regex = '(?i)bot' }"),
            ("if { hdr(user-agent) -m beg curl/ }", "user-agent", r"{ regex = '(?:^|,)[ \t]*curl/' }"),
            ("if { hdr_reg(user-agent) -i ^curl }", "user-agent", r"{ regex = '(?i)(?:^|,)[ \t]*(?:curl)' }"),
            ("if { hdr(host) a.example:8080 }", "host", "\"a.example:8080\""),
            ("if { req.cook(beta) 1 }", "cookie:beta", "\"1\""),
            ("if !{ cook(id) -m found }", "cookie:id", "false"),
            ("if { cook_beg(id) guest- }", "cookie:id", "{ regex = '^guest-' }"),
        ] {
            assert_eq!(left(condition, "/", "a.example"), routes(name, rule), "{condition}");
        }
    }

    #[test]
    fn addresses_are_sets() {
        let list = |blocks: &[&str], files: &[&str]| AddressList {
            set: blocks.iter().map(|b| AddressSet::of(b).unwrap()).collect(),
            files: files.iter().map(|f| (*f).to_owned()).collect(),
        };
        let is = |condition: &str, clients: Clients| {
            assert_eq!(left(condition, "/", "a.b"), Left::Clients(clients), "{condition}");
        };
        is("if { src 10.0.0.0/8 192.0.2.1 }", Clients::In(list(&["10.0.0.0/8", "192.0.2.1"], &[])));
        is("unless { src 10.0.0.0/8 }", Clients::NotIn(list(&["10.0.0.0/8"], &[])));
        is("if !{ src -f lan 10.0.0.0/8 }", Clients::NotIn(list(&["10.0.0.0/8"], &["/etc/lan"])));
        is(
            "if { src 10.0.0.0/8 } !{ src 10.1.0.0/16 }",
            Clients::of(list(&["10.0.0.0/8"], &[]).set.minus(&list(&["10.1.0.0/16"], &[]).set)),
        );
        is("if { src 10.0.0.0/8 } or LOCALHOST", Clients::In(list(&["10.0.0.0/8", "127.0.0.0/8"], &[])));
        is("if { src 10.0.0.1 } { ssl_fc }", Clients::In(list(&["10.0.0.1"], &[])));
        assert_eq!(left("if { src 10.0.0.1 } !{ ssl_fc }", "/", "a.b"), Left::Never);
        let post = |condition: &str, clients: Vec<Option<Clients>>| {
            let all = Match { methods: Methods::Any, headers: vec![], pattern: None };
            let post = Match { methods: Methods::Of(vec!["POST".to_owned()]), ..all.clone() };
            let of =
                |c: Option<Clients>| (if c.is_some() && condition.contains(" or ") { &all } else { &post }.clone(), c);
            assert_eq!(left(condition, "/", "a.b"), Left::Mixed(clients.into_iter().map(of).collect()), "{condition}");
        };
        let one = || Some(Clients::In(list(&["10.0.0.1"], &[])));
        post("if { src 10.0.0.1 } METH_POST", vec![one()]);
        post("if { src 10.0.0.1 } or METH_POST", vec![one(), None]);
        for condition in [
            "if { src -f a } !{ src -f b }",
            "if { src host.example }",
            "if { src,ipmask(24) 10.0.0.0 }",
            "if { src -m str 10.0.0.1 }",
        ] {
            assert_eq!(left(condition, "/", "a.b"), Left::Access, "{condition}");
        }
    }

    #[test]
    fn certificates_are_asked_for() {
        let named = |names: &[&str]| Certificate::Named(names.iter().map(|n| (*n).to_owned()).collect());
        for (condition, wanted) in [
            ("unless { ssl_c_used }", Left::NoCertificate(vec![Certificate::Any])),
            ("if !{ ssl_fc_has_crt }", Left::NoCertificate(vec![Certificate::Any])),
            ("unless { ssl_c_s_dn(cn) -m str a b }", Left::NoCertificate(vec![named(&["cn:a", "cn:b"])])),
            (
                "unless { ssl_c_used } { ssl_c_verify 0 } { ssl_c_s_dn(CN) a }",
                Left::NoCertificate(vec![Certificate::Any, named(&["cn:a"])]),
            ),
            ("unless { ssl_c_s_dn /C=DE/CN=a }", Left::NoCertificate(vec![named(&["subject:CN=a,C=DE"])])),
            ("unless { ssl_c_i_dn(,0,rfc2253) CN=a }", Left::NoCertificate(vec![named(&["issuer:CN=a"])])),
            ("unless { ssl_c_s_dn CN=a }", Left::Access),
            ("if { ssl_c_used }", Left::Access),
            ("if !{ ssl_c_used } METH_POST", Left::Access),
            ("if !{ ssl_c_used } or { src 10.0.0.1 }", Left::Access),
            ("if !{ ssl_c_used } !{ ssl_c_s_dn(cn) a }", Left::Access),
            ("unless { ssl_c_s_dn(o) a }", Left::Access),
            ("unless { ssl_c_s_dn(cn) -i a }", Left::Access),
            ("unless { ssl_c_verify 10 }", Left::Access),
            ("unless { ssl_c_used 0 }", Left::Access),
        ] {
            assert_eq!(left(condition, "/", "a.b"), wanted, "{condition}");
        }
    }

    #[test]
    fn chance_has_shares() {
        for (condition, wanted) in [
            ("if { rand(100) lt 10 }", Left::Share(10, 100)),
            ("if { rand(10) le 2 }", Left::Share(3, 10)),
            ("unless { rand(10) ge 7 }", Left::Share(7, 10)),
            ("if { rand(4) gt 0 } { path /a }", Left::Share(3, 4)),
            ("if { rand(4) lt 9 }", Left::Always),
            ("if { rand(4) lt 0 }", Left::Never),
            ("if { rand(4) lt 1 } METH_POST", Left::Unknown),
            ("if { rand(4) lt 1 } or METH_POST", Left::Unknown),
            ("if { rand lt 1 }", Left::Unknown),
            ("if { rand(4) 1:2 }", Left::Unknown),
        ] {
            assert_eq!(left(condition, "/a", "a.b"), wanted, "{condition}");
        }
    }

    #[test]
    fn bodies_have_lengths() {
        for (condition, wanted) in [
            ("if { req.body_size gt 1000 }", Left::Body(1000)),
            ("if { req.body_size ge 1000 }", Left::Body(999)),
            ("unless { req.body_size le 1000 }", Left::Body(1000)),
            ("if !{ req.body_size lt 1000 } { path /a }", Left::Body(999)),
            ("if { req.hdr_val(Content-Length) gt 1000 }", Left::Body(1000)),
            ("if { req.body_size gt 1000 } { path /b }", Left::Never),
            ("if { req.body_size lt 1000 }", Left::Unknown),
            ("if { req.body_size gt 1000 } METH_POST", Left::Unknown),
            ("if { req.body_size gt 1000 } or METH_POST", Left::Unknown),
            ("if { req.body_size gt 1000 } { src 10.0.0.1 }", Left::Access),
            ("if { req.body_size ge 0 }", Left::Unknown),
            ("if { req.body_size gt 0 }", Left::Unknown),
            ("if { req.body_size 1000 }", Left::Unknown),
            ("if { req.hdr_val(x) gt 1000 }", Left::Unknown),
        ] {
            assert_eq!(left(condition, "/a", "a.b"), wanted, "{condition}");
        }
    }

    #[test]
    fn files_have_values() {
        assert_eq!(left("if { path -f paths }", "/b", "a.b"), Left::Always);
        assert_eq!(left("if { path_beg -i -f paths /c/ }", "/A/x", "a.b"), Left::Always);
        assert_eq!(left("if { path -f paths }", "/c", "a.b"), Left::Never);
        assert_eq!(left("if { path -f none }", "/", "a.b"), Left::Never);
        assert_eq!(left("if { path -f missing }", "/", "a.b"), Left::Unknown);
    }

    /// Without its port and in lower case, the host is what `names` of a `[[host]]` are compared with.
    #[test]
    fn the_host_without_its_port_is_the_host() {
        for (condition, host, is) in [
            ("if { req.hdr(host),field(1,:),lower a.b c.d }", "c.d", true),
            ("if { req.hdr(host),field(1,:),lower a.b c.d }", "e.f", false),
            ("if { hdr(host),lower,field(1,:) -m end .b }", "x.a.b", true),
            ("if { req.fhdr(host),host_only -m end .b }", "b", false),
            ("if { hdr(host),field(1,:) -m beg a. }", "a.b", true),
            ("if { hdr(host),field(1,:) -m reg -i ^(a|c)\\.b$ }", "c.b", true),
            ("if { hdr(host) a.b a.b:443 }", "a.b", true),
            ("if { hdr(host) a.b a.b:443 }", "c.b", false),
            // Only with this port: no other host can have it.
            ("if { hdr(host) a.b:8080 }", "c.b", false),
            ("if { hdr(host) a.b:8080 }", "*", false),
        ] {
            assert_eq!(left(condition, "/", host), if is { Left::Always } else { Left::Never }, "{condition} {host}");
        }
        let rule = |condition: &str| match left(condition, "/", "a.b") {
            Left::Routes(all) => all[0].headers.clone(),
            other => panic!("{other:?}"),
        };
        assert_eq!(rule("if { hdr(host) a.b:8080 }"), [("host".to_owned(), "\"a.b:8080\"".to_owned())]);
        let either = rule("if { hdr(host) -i a.b:8080 c.d }");
        assert_eq!(either, [("host".to_owned(), r"{ regex = '(?i)^(?:a\.b:8080|c\.d)$' }".to_owned())]);
    }

    #[test]
    fn patterns_include_names() {
        assert!(
            includes("**.b", "a.b") && includes("**.b", "x.a.b") && !includes("**.b", "b") && includes("*", "**.b")
        );
        assert!(includes("*.b", "a.b") && !includes("*.b", "x.a.b") && !includes("a.b", "**.b"));
    }
}
