//! `allow` and `deny`: who may come, by address, with lists in files, by certificate and by header; and the users of `basic_auth`.
//!
//! A list or a file of users that changes is read again by itself ([`AccessLists::replace`]); nothing else of the configuration is.

use super::Config;
use super::conditions::only_entry;
use super::decode::{self, At, Node, Section};
use super::diagnostics::{Diagnostic, Errors, Severity, Sink};
use super::fields::named;
use super::files;
use super::paths::{Written, compiled_once, path_regex};
use super::route::Routes;
use super::settings::{Setting, Shape, Strings, access as s, access_of_requests as r};
use super::surroundings::Answers;
use super::tls::client_names;
use sealane_http::Known;
use sealane_passwords::{Mistake as UsersMistake, Users};
use sealane_proxy::access::{Access, HeaderCondition, HeaderIs, HeaderValue, RequestRule, Rule};
use sealane_route::proxies::{Cidr, CidrError};
use sealane_route::{AccessRule, AddressSet};
use sealane_tls::policy::ClientName;
use std::collections::HashMap;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use toml::de::DeValue;

/// The most blocks in a file: a set of these takes 32 MB at most.
const MAX_BLOCKS: usize = 1_000_000;
/// Mistakes in one file that are told one by one.
const MAX_TOLD: usize = 5;

/// Where the addresses of an `allow` or a `deny` stand.
#[derive(Clone, Debug, Default)]
struct Addresses {
    /// In the configuration itself.
    written: Option<Arc<AddressSet>>,
    files: Vec<PathBuf>,
}

impl Addresses {
    fn sets(&self, files: &HashMap<PathBuf, Arc<AddressSet>>) -> Box<[Arc<AddressSet>]> {
        let from_files = self.files.iter().filter_map(|file| files.get(file));
        self.written.iter().chain(from_files).cloned().collect()
    }
}

/// A rule as it is written.
#[derive(Clone, Debug, Default)]
struct WrittenRule {
    /// `None`: every address is let in.
    addresses: Option<(Option<Addresses>, Addresses)>,
    request: Option<Arc<RequestRule>>,
}

/// The access rules of a configuration, and the files that they name.
#[derive(Clone, Debug, Default)]
pub struct AccessLists {
    rules: Vec<WrittenRule>,
    files: HashMap<PathBuf, Arc<AddressSet>>,
    /// Files of users, as routes name them by index.
    users: Vec<(PathBuf, Arc<Users>)>,
    /// The first setting of the host that is being read that looks at clients' certificates: its name, and where it stands.
    pub(super) certificates: Option<(&'static str, Range<usize>)>,
    /// What lanes get.
    compiled: Arc<Access>,
}

impl AccessLists {
    fn push(&mut self, rule: WrittenRule) -> usize {
        self.rules.push(rule);
        self.rules.len() - 1
    }

    /// The rules as lanes get them: listeners, hosts and routes name them by index.
    pub fn rules(&self) -> &Arc<Access> {
        &self.compiled
    }

    /// The files of the lists, in no order.
    pub fn files(&self) -> impl Iterator<Item = &PathBuf> {
        self.files.keys()
    }

    /// Puts a list that was read again in the place of the one from the same file.
    pub fn replace(&mut self, file: &Path, set: Arc<AddressSet>) {
        if let Some(list) = self.files.get_mut(file) {
            *list = set;
            self.compile();
        }
    }

    /// Puts users that were read again in the place of those from the same file.
    pub fn replace_users(&mut self, file: &Path, users: Arc<Users>) {
        if let Some((_, old)) = self.users.iter_mut().find(|(path, _)| path == file) {
            *old = users;
            self.compile();
        }
    }

    pub(super) fn compile(&mut self) {
        let of_addresses = |(allow, deny): &(Option<Addresses>, Addresses)| AccessRule {
            allow: allow.as_ref().map(|allow| allow.sets(&self.files)),
            deny: deny.sets(&self.files),
        };
        let rule = |written: &WrittenRule| Rule {
            addresses: written.addresses.as_ref().map(of_addresses),
            request: written.request.clone(),
        };
        self.compiled = Arc::new(Access {
            rules: self.rules.iter().map(rule).collect(),
            users: self.users.iter().map(|(_, users)| users.clone()).collect(),
        });
    }

    /// The index of the users of a file, which is read if it was not.
    pub(super) fn users_of(&mut self, sink: &Sink, file: &At<PathBuf>) -> usize {
        if let Some(index) = self.users.iter().position(|(path, _)| *path == file.value) {
            return index;
        }
        let users = match files::read(sink, "file of users", file) {
            Some(bytes) => users(&file.value, bytes).unwrap_or_else(|(message, help)| {
                sink.error(&file.span, message, Some(help));
                Users::default()
            }),
            // It is not read, or not yet, or the error is told.
            None => Users::default(),
        };
        self.users.push((file.value.clone(), Arc::new(users)));
        self.users.len() - 1
    }

    /// The users of the file at this index.
    pub(super) fn users_at(&self, index: usize) -> &Users {
        &self.users[index].1
    }
}

impl Config {
    /// The files with lists of addresses.
    pub fn address_lists(&self) -> Vec<PathBuf> {
        let mut files: Vec<PathBuf> = self.access.files().cloned().collect();
        files.sort_unstable();
        files
    }

    /// The files with users of `basic_auth`.
    pub fn users_files(&self) -> Vec<PathBuf> {
        self.access.users.iter().map(|(file, _)| file.clone()).collect()
    }
}

/// The settings that judge requests.
pub(super) const OF_REQUESTS: [&str; 4] =
    [r::allow_certificate.key, r::deny_certificate.key, r::allow_header.key, r::deny_header.key];

/// Reads the settings of a listener. Returns the index of its rule; `None`: everybody may come.
pub(super) fn read(section: &Section, routes: &mut Routes) -> Option<usize> {
    // Whether a listener asks for certificates is known where it is read.
    let before = routes.access.certificates.take();
    let rule = read_of_requests(section, routes);
    routes.access.certificates = before;
    rule
}

/// Reads the settings of a host or a route. Returns the index of its rule; `None`: everybody may come.
pub(super) fn read_of_requests(section: &Section, routes: &mut Routes) -> Option<usize> {
    let mut compiled = |written: Option<Vec<Condition>>| -> Vec<HeaderCondition> {
        written.unwrap_or_default().into_iter().map(|condition| condition.compiled(section.sink, routes)).collect()
    };
    let allow_header = compiled(section.optional(&r::allow_header));
    let deny_header = compiled(section.optional(&r::deny_header));
    let lists = &mut routes.access;
    let addresses = by_address(section, lists);
    let names =
        |setting: &Setting<Strings>| section.optional(setting).map(|written| client_names(section.sink, &written));
    let is_written = OF_REQUESTS.iter().any(|key| section.key_span(key).is_some());
    let request = RequestRule {
        allow_certificate: section.optional(&r::allow_certificate).map(|written| {
            let (any, written): (Vec<_>, Vec<_>) = written.into_iter().partition(|name| name.value == "any");
            let mut names = client_names(section.sink, &written);
            names.extend(any.first().map(|_| ClientName::Any));
            names
        }),
        deny_certificate: names(&r::deny_certificate).unwrap_or_default(),
        allow_header,
        deny_header,
    };
    if request.allow_certificate.is_some() || !request.deny_certificate.is_empty() {
        let key = if request.allow_certificate.is_some() { r::allow_certificate.key } else { r::deny_certificate.key };
        lists.certificates = lists.certificates.take().or_else(|| section.key_span(key).map(|span| (key, span)));
    }
    let request = is_written.then(|| Arc::new(request));
    (addresses.is_some() || request.is_some()).then(|| lists.push(WrittenRule { addresses, request }))
}

fn by_address(section: &Section, lists: &mut AccessLists) -> Option<(Option<Addresses>, Addresses)> {
    let (allow, deny) = (section.optional(&s::allow), section.optional(&s::deny));
    let allow_files = paths(section, &s::allow_file);
    let deny_files = paths(section, &s::deny_file);
    let allow = (allow.is_some() || allow_files.is_some()).then(|| addresses(section, allow, allow_files, lists));
    let has_rule = allow.is_some() || deny.is_some() || deny_files.is_some();
    let deny = addresses(section, deny, deny_files, lists);
    has_rule.then_some((allow, deny))
}

/// What a header may be: [`header_conditions`].
pub(super) fn header_shape() -> Shape {
    let expression = Shape::Map(Box::new(Shape::Text(None)));
    Shape::Map(Box::new(Shape::Either(vec![Shape::Flag, Shape::List(Box::new(Shape::Text(None))), expression])))
}

/// A condition of `allow_header` or `deny_header`, as it is written.
pub(super) struct Condition {
    name: String,
    is: Is,
}

enum Is {
    Plain(HeaderIs),
    Regex(At<Written>),
}

impl Condition {
    /// With its expression as one of those of the configuration.
    fn compiled(self, sink: &Sink, routes: &mut Routes) -> HeaderCondition {
        let is = match self.is {
            Is::Plain(is) => is,
            Is::Regex(regex) => HeaderIs::Matches(compiled_once(sink, regex, routes)),
        };
        HeaderCondition { name: self.name, is }
    }
}

/// What to do instead where a setting goes by a header of requests that it cannot go by: the gateway handles the header itself, or the
/// header is for one connection only. `of_host`: what to do instead of going by `Host`.
pub(super) fn unseen_header(name: &str, of_host: &'static str) -> Option<&'static str> {
    // Servers that follow CGI read both spellings as one name, and so do these settings.
    match Known::lookup(name.replace('_', "-").as_bytes()) {
        Known::Host => Some(of_host),
        Known::Expect => Some("the gateway itself answers \"Expect: 100-continue\""),
        Known::ContentLength => Some("use \"max_body_size\" to limit the length of bodies"),
        known if known.is_hop_by_hop() => {
            Some("remove it: this header is for one connection only, and HTTP/2 and HTTP/3 do not have it")
        }
        _ => None,
    }
}

/// `allow_header` and `deny_header`.
pub(super) fn header_conditions(sink: &Sink, key: &str, node: &Node) -> Option<Vec<Condition>> {
    let mut out = Vec::new();
    if matches!(node.get_ref(), DeValue::Table(table) if table.is_empty()) {
        let help = format!("add a header, as in {key} = {{ X-Edge-Secret = \"k7Qp2mZc9vTt\" }}, or remove \"{key}\"");
        sink.error(&node.span(), format!("\"{key}\" is empty"), Some(help));
        return None;
    }
    for (name, value) in named(sink, key, node)? {
        if let Some(help) = unseen_header(&name.value, "use \"names\" of [[host]] to distinguish hosts") {
            let help = help.to_owned();
            sink.error(&name.span, format!("\"{key}\" cannot have a condition on \"{}\"", name.value), Some(help));
            continue;
        }
        let is = match value.get_ref() {
            DeValue::Boolean(true) => Is::Plain(HeaderIs::Present),
            DeValue::Boolean(false) => Is::Plain(HeaderIs::Absent),
            DeValue::String(_) | DeValue::Array(_) => {
                let Some(texts) = decode::strings(sink, &name.value, value) else { continue };
                let values = texts.iter().filter_map(|text| header_value(sink, &name.value, text));
                Is::Plain(HeaderIs::OneOf(values.collect()))
            }
            _ => match only_entry(value, "regex") {
                Some(expression) => {
                    let Some(written) = path_regex(sink, "regex", expression) else { continue };
                    Is::Regex(At { value: written, span: expression.span() })
                }
                None => {
                    let help = "write true (present), false (absent), \"text\" (equal to it), \"text*\" (starts with it), a list \
                                of texts, or { regex = '…' }";
                    let message = format!("this is not a condition on \"{}\"", name.value);
                    sink.error(&value.span(), message, Some(help.to_owned()));
                    continue;
                }
            },
        };
        out.push(Condition { name: name.value, is });
    }
    Some(out)
}

fn header_value(sink: &Sink, name: &str, text: &At<String>) -> Option<HeaderValue> {
    // Everybody can send an empty header.
    if text.value.is_empty() {
        let help = "write the value; or write false: the header is absent; or true: it is present".to_owned();
        sink.error(&text.span, format!("\"{name}\" has an empty value"), Some(help));
        return None;
    }
    let (start, is_prefix) = match text.value.strip_suffix('*') {
        Some(start) => (start, true),
        None => (text.value.as_str(), false),
    };
    if start.is_empty() && is_prefix {
        sink.error(&text.span, "\"*\" matches every value", Some("write true: the header is present".to_owned()));
        return None;
    }
    // A value that no message can have is never met.
    if !is_prefix && sealane_http::Fields::new().push(b"x", start.as_bytes()).is_err() {
        let help = "write the value without control characters and without white space around it".to_owned();
        sink.error(
            &text.span,
            "no header has this value: it has control characters, or white space around it",
            Some(help),
        );
        return None;
    }
    let start = start.as_bytes().to_vec();
    Some(if is_prefix { HeaderValue::Prefix(start) } else { HeaderValue::Exact(start) })
}

/// What is wrong with a file of users, and what to do.
pub(super) fn users_mistake(file: &Path, mistake: UsersMistake) -> (String, String) {
    let shown = file.display();
    let message = match mistake.line {
        0 => format!("{shown}: {}", mistake.what),
        line => format!("{shown}:{line}: {}", mistake.what),
    };
    (message, mistake.help.to_owned())
}

fn users(file: &Path, bytes: &[u8]) -> Result<Users, (String, String)> {
    let text = std::str::from_utf8(bytes).map_err(|e| {
        let message = format!("{}: the file of users is not UTF-8 text at byte {}", file.display(), e.valid_up_to());
        (message, "store it as UTF-8".to_owned())
    })?;
    let users = Users::parse(text).map_err(|mistake| users_mistake(file, mistake))?;
    if users.has_codes() {
        let message =
            format!("{}: users with \"totp=\" are for [tunnel]: browsers cannot ask for a code", file.display());
        let help = "use another file for basic_auth, or let a server check the password and the code: `forward_auth`";
        return Err((message, help.to_owned()));
    }
    Ok(users)
}

/// Reads two settings that say who is let through. Returns the index of their rule; `None`: nobody is.
pub(super) fn read_allowed(
    section: &Section,
    allow: &Setting<Strings>,
    allow_file: &Setting<Strings>,
    lists: &mut AccessLists,
) -> Option<usize> {
    let (allow, files) = (section.optional(allow), paths(section, allow_file));
    (allow.is_some() || files.is_some()).then(|| {
        let allow = addresses(section, allow, files, lists);
        lists.push(WrittenRule { addresses: Some((Some(allow), Addresses::default())), request: None })
    })
}

fn paths(section: &Section, setting: &Setting<Strings>) -> Option<Vec<At<PathBuf>>> {
    let files = section.optional(setting)?;
    let path = |file: At<String>| {
        if file.value.is_empty() {
            let key = setting.key;
            let help = format!("write the path of a list, as in {key} = \"lists/offices.txt\", or remove \"{key}\"");
            section.sink.error(&file.span, format!("\"{key}\" is empty"), Some(help));
            return None;
        }
        Some(At { value: section.sink.base.join(file.value), span: file.span })
    };
    Some(files.into_iter().filter_map(path).collect())
}

fn addresses(
    section: &Section,
    written: Option<Vec<At<String>>>,
    files: Option<Vec<At<PathBuf>>>,
    lists: &mut AccessLists,
) -> Addresses {
    let sink = section.sink;
    let written = written.map(|blocks| Arc::new(blocks.iter().filter_map(|text| block(sink, text)).collect()));
    let files = files.unwrap_or_default();
    for file in &files {
        sink.names_file(&file.value);
        if lists.files.contains_key(&file.value) {
            continue;
        }
        let help = "correct the path, or create the file, with one address or block (\"192.0.2.0/24\") on each line";
        let set = match files::read_or(sink, "list of addresses", file, help) {
            Some(bytes) => list(&file.value, bytes).unwrap_or_else(|mistakes| {
                mistakes.into_iter().for_each(|m| sink.error(&file.span, m.message, m.help));
                AddressSet::default()
            }),
            // It is not read, or not yet, or the error is told.
            None => AddressSet::default(),
        };
        lists.files.insert(file.value.clone(), Arc::new(set));
    }
    Addresses { written, files: files.into_iter().map(|f| f.value).collect() }
}

/// A block of addresses; reports what is wrong with it.
pub(super) fn block(sink: &Sink, text: &At<String>) -> Option<Cidr> {
    match text.value.parse::<Cidr>() {
        Ok(block) => Some(block),
        Err(e) => {
            let (message, help) = explained(&text.value, e);
            sink.error(&text.span, message, Some(help));
            None
        }
    }
}

fn explained(text: &str, e: CidrError) -> (String, String) {
    match e {
        CidrError::HostBits(better) => {
            (format!("\"{text}\" has bits beyond its prefix"), format!("write \"{better}\""))
        }
        CidrError::Malformed => {
            let help = "write \"192.0.2.0/24\", \"2001:db8::/32\" or one address".to_owned();
            (format!("\"{text}\" is not a block of addresses"), help)
        }
    }
}

/// A mistake in a list.
pub(super) struct Mistake {
    /// It names the file and the line.
    pub message: String,
    pub help: Option<String>,
}

/// Reads a list: one address or block per line. What follows `#` or `;` is a comment.
fn list(file: &Path, bytes: &[u8]) -> Result<AddressSet, Vec<Mistake>> {
    let shown = file.display();
    let whole = |message: String| vec![Mistake { message, help: None }];
    let text = std::str::from_utf8(bytes)
        .map_err(|e| whole(format!("{shown}: the list is not UTF-8 text at byte {}", e.valid_up_to())))?;
    let mut mistakes = Vec::new();
    let mut wrong = 0;
    let mut blocks = Vec::new();
    for (number, line) in text.strip_prefix('\u{feff}').unwrap_or(text).lines().enumerate() {
        let entry = line.split(['#', ';']).next().unwrap_or_default().trim();
        if entry.is_empty() {
            continue;
        }
        match entry.parse::<Cidr>() {
            Ok(block) => blocks.push(block),
            Err(e) => {
                wrong += 1;
                if wrong <= MAX_TOLD {
                    // A file that is none of ours may have lines of any length.
                    let start: String = entry.chars().take(60).collect();
                    let (message, help) = explained(&start, e);
                    mistakes.push(Mistake { message: format!("{shown}:{}: {message}", number + 1), help: Some(help) });
                }
            }
        }
    }
    if wrong > MAX_TOLD {
        mistakes.push(Mistake { message: format!("{shown}: {} more lines are wrong", wrong - MAX_TOLD), help: None });
    }
    if blocks.len() > MAX_BLOCKS {
        mistakes
            .extend(whole(format!("{shown}: the list has {} blocks, but may have at most {MAX_BLOCKS}", blocks.len())));
    }
    if mistakes.is_empty() { Ok(blocks.into_iter().collect()) } else { Err(mistakes) }
}

/// Reads a list again, for a gateway that serves. `answers` has the file's content.
pub fn read_list_again(file: &Path, answers: &Answers) -> Result<Arc<AddressSet>, Errors> {
    read_again("list of addresses", file, answers, |bytes| list(file, bytes))
}

/// Reads users again, for a gateway that serves. `answers` has the file's content.
pub fn read_users_again(file: &Path, answers: &Answers) -> Result<Arc<Users>, Errors> {
    read_again("file of users", file, answers, |bytes| {
        users(file, bytes).map_err(|(message, help)| vec![Mistake { message, help: Some(help) }])
    })
}

/// Reads a file again, for a gateway that serves.
pub(super) fn read_again<T>(
    what: &str,
    file: &Path,
    answers: &Answers,
    read: impl FnOnce(&[u8]) -> Result<T, Vec<Mistake>>,
) -> Result<Arc<T>, Errors> {
    let error = |Mistake { message, help }: Mistake| Diagnostic {
        severity: Severity::Error,
        file: String::new(),
        line: 0,
        column: 0,
        message,
        help,
        excerpt: String::new(),
        more: 0,
    };
    let read = match answers.contents.get(file) {
        Some(Ok(content)) => read(&content.bytes),
        Some(Err(e)) => {
            let message = format!("cannot read the {what} {}: {}", file.display(), e.why);
            Err(vec![Mistake { message, help: e.help.clone() }])
        }
        None => Err(vec![Mistake { message: format!("{} was not read", file.display()), help: None }]),
    };
    read.map(Arc::new).map_err(|mistakes| Errors {
        errors: mistakes.into_iter().map(error).collect(),
        warnings: Vec::new(),
        files: Vec::new(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<AddressSet, Vec<String>> {
        list(Path::new("list"), text.as_bytes()).map_err(|all| all.into_iter().map(|m| m.message).collect())
    }

    #[test]
    fn lists_have_comments() {
        let set = read("# a list\n\n10.0.0.0/8 ; SBL1\r\n2001:db8::/32# b\n192.0.2.1\n").unwrap();
        for ip in ["10.1.2.3", "2001:db8::1", "192.0.2.1"] {
            assert!(set.contains(ip.parse().unwrap()), "{ip}");
        }
        assert_eq!(set.ranges(), 3);
        assert_eq!(read("").unwrap().ranges(), 0);
    }

    #[test]
    fn mistakes_name_their_line() {
        let told = read("10.0.0.0/8\nexample.com\n\n10.1.2.3/8\n").unwrap_err();
        assert_eq!(
            told,
            [
                "list:2: \"example.com\" is not a block of addresses",
                "list:4: \"10.1.2.3/8\" has bits beyond its prefix"
            ]
        );
        let told = read(&"x\n".repeat(1000)).unwrap_err();
        assert_eq!((told.len(), told[MAX_TOLD].as_str()), (MAX_TOLD + 1, "list: 995 more lines are wrong"));
    }
}
