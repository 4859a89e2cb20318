//! A copy of a configuration of NGINX that runs beside others: one process, files in the run's folder, logs off.

use super::{listen, socket, socket_path};
use crate::files::Files;
use crate::tree::{Node, Place};
use crate::words::Named;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

/// What an NGINX can do.
#[derive(Clone, Debug, Default)]
pub struct Abilities {
    /// Its version.
    pub version: (u32, u32, u32),
    /// Whether it has HTTP/3.
    pub http3: bool,
    /// Whether it has the stream module.
    pub stream: bool,
    /// The stream module, where it is one that is loaded.
    pub module: Option<PathBuf>,
    /// The folder of modules.
    pub modules: PathBuf,
}

impl Abilities {
    /// With the modules that a configuration loads.
    pub fn loading(mut self, tree: &[Node], base: &Path) -> Self {
        self.stream |= tree.iter().any(|n| loads_stream(n) && self.file(base, n.word(1)).is_some());
        self
    }

    /// The file of a module: relative paths are from NGINX's own folder, which the copy's is not. `None`: it is not here.
    fn file(&self, base: &Path, name: &str) -> Option<PathBuf> {
        let path = Path::new(name);
        let own = path.file_name().map(|file| self.modules.join(file));
        let beside = self.modules.parent().map(|prefix| prefix.join(path));
        [Some(base.join(path)), beside, own].into_iter().flatten().find(|path| path.exists())
    }

    /// From what `nginx -V` says.
    pub fn of(said: &str, modules: &Path) -> Self {
        let number = said.split("nginx/").nth(1).unwrap_or_default();
        let mut parts = number.split(|c: char| !c.is_ascii_digit()).map(|p| p.parse().unwrap_or(0));
        let mut part = || parts.next().unwrap_or(0);
        let module = Some(modules.join("ngx_stream_module.so")).filter(|m| m.exists());
        Self {
            version: (part(), part(), part()),
            http3: said.contains("--with-http_v3_module"),
            stream: said.split_whitespace().any(|w| w == "--with-stream") || module.is_some(),
            module,
            modules: modules.to_owned(),
        }
    }
}

fn loads_stream(node: &Node) -> bool {
    node.name() == "load_module" && node.word(1).ends_with("ngx_stream_module.so")
}

/// Dropped wherever they are: logs, processes, and what would ask somebody else.
const DROPPED: &[&str] = &[
    "user",
    "pid",
    "error_log",
    "access_log",
    "lock_file",
    "daemon",
    "master_process",
    "worker_processes",
    "worker_cpu_affinity",
    "worker_priority",
    "worker_rlimit_nofile",
    "worker_rlimit_core",
    "working_directory",
    "env",
    "google_perftools_profiles",
    "client_body_temp_path",
    "proxy_temp_path",
    "fastcgi_temp_path",
    "uwsgi_temp_path",
    "scgi_temp_path",
    "ssl_stapling",
    "ssl_stapling_verify",
    "ssl_stapling_file",
];

/// Blocks whose lines are not directives.
const VALUES: &[&str] = &["map", "geo", "split_clients", "types", "charset_map"];

/// Dropped wherever they are: a request that is answered from a cache says nothing of how it would be passed on.
const CACHES: &[&str] = &["proxy_cache", "fastcgi_cache", "uwsgi_cache", "scgi_cache"];
/// The same, of one name.
const OTHER_CACHES: &[&str] = &["slice"];

/// Dropped wherever they are: the copy runs in the machine's own file system, and must write only in its own folder.
const WRITING: &[&str] =
    &["dav_methods", "dav_ext_methods", "dav_ext_lock", "dav_ext_lock_zone", "create_full_put_path"];

/// Whether a directive writes files outside of the copy's folder.
fn writes(name: &str) -> bool {
    WRITING.contains(&name) || name.ends_with("_store") || name.ends_with("_store_access")
}

/// Dropped if their files are not here.
const OPTIONAL: &[&str] = &["ssl_dhparam", "ssl_session_ticket_key", "ssl_password_file", "geoip_country"];
/// A CA.
const AUTHORITIES: &[&str] = &[
    "ssl_client_certificate",
    "ssl_trusted_certificate",
    "proxy_ssl_trusted_certificate",
    "grpc_ssl_trusted_certificate",
];

/// The names of a server, as a certificate has them.
fn names_of(server: &[Node]) -> BTreeSet<String> {
    server
        .iter()
        .filter(|n| n.name() == "server_name")
        .flat_map(|n| n.arguments())
        .flat_map(|n| match n.strip_prefix('.') {
            Some(bare) => vec![bare.to_owned(), format!("*.{bare}")],
            None => vec![n.clone()],
        })
        .filter(|n| n != "_" && !n.starts_with('~'))
        .collect()
}

/// The names for which a certificate of this block is used: those of the server, or of the servers in `http` that have no certificate
/// of their own.
fn certified(block: &[Node]) -> BTreeSet<String> {
    let has_none = |n: &&Node| n.name() == "server" && n.all("ssl_certificate").next().is_none();
    let inner = block.iter().filter(has_none).flat_map(|n| names_of(n.inner()));
    names_of(block).into_iter().chain(inner).collect()
}

/// Makes the files that a configuration names and that are not here.
pub fn prepare(tree: &[Node], base: &Path, named: &Named, files: &mut Files) -> anyhow::Result<()> {
    fn visit(block: &[Node], names: &BTreeSet<String>, base: &Path, files: &mut Files) -> anyhow::Result<()> {
        let own = certified(block);
        let names = if own.is_empty() { names } else { &own };
        for (cert, key) in
            [("ssl_certificate", "ssl_certificate_key"), ("proxy_ssl_certificate", "proxy_ssl_certificate_key")]
        {
            let all = |name: &'static str| block.iter().filter(move |n| n.name() == name).map(|n| base.join(n.word(1)));
            for (cert, key) in all(cert).zip(all(key)) {
                files.certificate(&cert, Some(&key), names)?;
            }
        }
        for node in block {
            if node.name() == "auth_basic_user_file" {
                files.passwords(&base.join(node.word(1)))?;
            }
            visit(node.inner(), names, base, files)?;
        }
        Ok(())
    }
    visit(tree, &named.dns_names().cloned().collect(), base, files)
}

/// Values of maps that are in files of their own, in the place of `include`. `read` parses a file.
pub fn with_included(tree: &mut [Node], base: &Path, read: &dyn Fn(&Path) -> Option<Vec<Node>>) {
    for node in tree {
        let is_values = VALUES.contains(&node.name());
        let Some(block) = node.block.as_mut() else { continue };
        if !is_values {
            with_included(block, base, read);
            continue;
        }
        for mut line in std::mem::take(block) {
            if line.name() == "include" && line.words.len() == 2 {
                // The copy is in another folder.
                let path = base.join(line.word(1));
                match read(&path) {
                    Some(values) => {
                        block.extend(values);
                        continue;
                    }
                    None => line.words[1] = path.display().to_string(),
                }
            }
            block.push(line);
        }
    }
}

/// The text, and the place of each of its lines.
pub struct Runnable {
    pub text: String,
    pub places: Vec<Option<Place>>,
}

/// Where the copy's files are.
#[derive(Clone, Copy, Debug)]
pub struct Paths<'p> {
    /// Relative paths of the original are from here.
    pub base: &'p Path,
    /// The copy's own files are here.
    pub folder: &'p Path,
    /// What takes the place of Unix sockets of servers.
    pub sockets: &'p BTreeMap<String, PathBuf>,
}

struct Writer<'f> {
    out: Runnable,
    files: &'f mut Files,
    base: &'f Path,
    folder: &'f Path,
    sockets: &'f BTreeMap<String, PathBuf>,
    abilities: &'f Abilities,
    /// What the program has refused.
    refused: &'f BTreeSet<(Place, String)>,
}

/// Writes the copy. `refused`: directives that this NGINX does not know.
pub fn runnable(
    tree: &[Node],
    paths: &Paths<'_>,
    files: &mut Files,
    abilities: &Abilities,
    refused: &BTreeSet<(Place, String)>,
) -> anyhow::Result<Runnable> {
    let Paths { base, folder, sockets } = *paths;
    let out = Runnable { text: String::new(), places: Vec::new() };
    let mut writer = Writer { out, files, base, folder, sockets, abilities, refused };
    let f = folder.display();
    let names_stream = tree.iter().any(|n| loads_stream(n) && writer.module(n.word(1)).is_some());
    if let (Some(module), true, false) = (&abilities.module, tree.iter().any(|n| n.name() == "stream"), names_stream) {
        writer.line(&format!("load_module {};", module.display()), None);
    }
    // NGINX wants modules before all else.
    for node in tree.iter().filter(|n| n.name() == "load_module") {
        if let Some(path) = writer.module(node.word(1)) {
            writer.line(&format!("load_module {};", quoted(&path.display().to_string())), Some(&node.place));
        }
    }
    let head = format!(
        "user root root; daemon off; master_process off; worker_processes 1; pid {f}/pid; error_log {f}/error.log warn;"
    );
    writer.line(&head, None);
    writer.line("events { worker_connections 1000; }", None);
    let whole = tree.iter().any(|n| n.name() == "http");
    if !whole {
        writer.line("http {", None);
        writer.http();
    }
    for node in tree.iter().filter(|n| !matches!(n.name(), "events" | "load_module")) {
        writer.node(node, 0)?;
    }
    if !whole {
        writer.line("}", None);
    }
    Ok(writer.out)
}

impl Writer<'_> {
    fn line(&mut self, text: &str, place: Option<&Place>) {
        self.out.text.push_str(text);
        self.out.text.push('\n');
        self.out.places.push(place.cloned());
    }

    fn http(&mut self) {
        let f = self.folder.display();
        let line = format!(
            "access_log off; client_body_temp_path {f}/body; proxy_temp_path {f}/proxy; fastcgi_temp_path {f}/fastcgi; \
             uwsgi_temp_path {f}/uwsgi; scgi_temp_path {f}/scgi;"
        );
        self.line(&line, None);
    }

    fn node(&mut self, node: &Node, depth: usize) -> anyhow::Result<()> {
        let Some(mut words) = self.words(node)? else { return Ok(()) };
        with_empty_value(&mut words);
        let words: Vec<String> = words.iter().map(|w| quoted(&self.isolated(w))).collect();
        let indent = "  ".repeat(depth);
        match &node.block {
            None => self.line(&format!("{indent}{};", words.join(" ")), Some(&node.place)),
            Some(block) => {
                self.line(&format!("{indent}{} {{", words.join(" ")), Some(&node.place));
                if node.name() == "http" {
                    self.http();
                }
                for inner in block {
                    match VALUES.contains(&node.name()) {
                        true => self.value(inner, depth + 1),
                        false => self.node(inner, depth + 1)?,
                    }
                }
                self.line(&format!("{indent}}}"), Some(&node.place));
            }
        }
        Ok(())
    }

    /// A line that has a value and what it stands for.
    fn value(&mut self, node: &Node, depth: usize) {
        let words: Vec<String> = node.words.iter().map(|w| quoted(&self.isolated(w))).collect();
        self.line(&format!("{}{};", "  ".repeat(depth), words.join(" ")), Some(&node.place));
    }

    /// A word with a socket on which nobody listens in the place of each Unix socket that is not a back-end of this run: the machine's own
    /// servers must get no requests.
    fn isolated(&self, word: &str) -> String {
        let (mut out, mut rest) = (String::new(), word);
        while let Some((before, socket)) = rest.split_once("unix:") {
            let path = &socket[..socket.find(':').unwrap_or(socket.len())];
            out.push_str(before);
            out.push_str("unix:");
            match path.starts_with('/') && !self.sockets.values().any(|own| own == Path::new(path)) {
                true => out.push_str(&self.folder.join("absent").display().to_string()),
                false => out.push_str(path),
            }
            rest = &socket[path.len()..];
        }
        out.push_str(rest);
        out
    }

    fn module(&self, name: &str) -> Option<PathBuf> {
        self.abilities.file(self.base, name)
    }

    /// The words of a directive in the copy; `None` if it is left out.
    fn words(&mut self, node: &Node) -> anyhow::Result<Option<Vec<String>>> {
        let name = node.name();
        if DROPPED.contains(&name)
            || CACHES.iter().any(|c| name.starts_with(c))
            || OTHER_CACHES.contains(&name)
            || writes(name)
            || name.ends_with("_by_lua_block")
            || self.refused.contains(&(node.place.clone(), name.to_owned()))
        {
            return Ok(None);
        }
        let path = || self.base.join(node.word(1));
        let with = |path: PathBuf| {
            let mut words = node.words.clone();
            words[1] = path.display().to_string();
            Ok(Some(words))
        };
        let is_newer = self.abilities.version >= (1, 25, 1);
        match name {
            "stream" if !self.abilities.stream => Ok(None),
            "http2" if !is_newer => Ok(None),
            "http3" | "http3_hq" if !self.abilities.http3 => Ok(None),
            n if n.starts_with("quic_") && !self.abilities.http3 => Ok(None),
            "server" | "proxy_pass" | "grpc_pass" if socket_path(node.word(1)).is_some() => {
                let mut words = node.words.clone();
                let (word, name) = (node.word(1), socket(node.word(1)));
                if let (Some(old), Some(new)) = (socket_path(word), name.and_then(|n| self.sockets.get(&n))) {
                    words[1] = word.replacen(old, &new.display().to_string(), 1);
                }
                Ok(Some(words))
            }
            "listen" if listen(node.word(1)).is_none() => Ok(None),
            "listen" if node.words.iter().any(|w| w == "quic") && !self.abilities.http3 => Ok(None),
            n if OPTIONAL.contains(&n) => {
                if path().exists() {
                    with(path())
                } else {
                    Ok(None)
                }
            }
            n if AUTHORITIES.contains(&n) => with(self.files.ca()),
            "ssl_crl" | "proxy_ssl_crl" => with(self.files.crl()?),
            "ssl_certificate"
            | "ssl_certificate_key"
            | "proxy_ssl_certificate"
            | "proxy_ssl_certificate_key"
            | "auth_basic_user_file"
                if !node.word(1).contains('$') =>
            {
                with(self.files.instead(&path()))
            }
            _ => Ok(Some(node.words.clone())),
        }
    }
}

/// Operators in the condition of an `if`.
const OPERATORS: &[&str] = &["=", "!=", "~", "!~", "~*", "!~*"];

/// The words of `if ($a = "")` end with `""` and `)` in NGINX, and with `)` alone in the parsed original.
fn with_empty_value(words: &mut Vec<String>) {
    let operator = if words.get(1).is_some_and(|w| w == "(") { 3 } else { 2 };
    let compares = words.get(operator).is_some_and(|w| OPERATORS.contains(&w.as_str()));
    let ends = words.len() == operator + 2 && words.last().is_some_and(|w| w == ")");
    if words.first().is_some_and(|w| w == "if") && compares && ends {
        words.insert(operator + 1, String::new());
    }
}

/// A word in double quotes, as `ngx_conf_read_token` reads them.
fn quoted(word: &str) -> String {
    let mut out = String::from("\"");
    for c in word.chars() {
        match c {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            c => out.push(c),
        }
    }
    out.push('"');
    out
}

/// `http2 on` as an NGINX before version 1.25.1 wants it: at `listen`.
pub fn with_old_http2(tree: &mut [Node], abilities: &Abilities) {
    if abilities.version >= (1, 25, 1) {
        return;
    }
    fn visit(block: &mut [Node], around: bool) {
        let own = block.iter().rev().find(|n| n.name() == "http2").map(|n| n.word(1) == "on");
        let on = own.unwrap_or(around);
        for node in block {
            if node.name() == "listen"
                && on
                && node.words.iter().any(|w| w == "ssl")
                && !node.words.iter().any(|w| w == "http2")
            {
                node.words.push("http2".to_owned());
            }
            if let Some(inner) = &mut node.block {
                visit(inner, on);
            }
        }
    }
    visit(tree, false);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn modules_are_loaded_before_all_else_from_nginx_s_own_folder() {
        let folder = tempfile::tempdir().unwrap();
        let modules = folder.path().join("modules");
        std::fs::create_dir(&modules).unwrap();
        std::fs::write(modules.join("ngx_stream_module.so"), b"").unwrap();
        let node = |words: &[&str], block| Node {
            place: Place { file: "n".into(), line: 3 },
            words: words.iter().map(|w| (*w).to_owned()).collect(),
            block,
            from: None,
        };
        let tree = [
            node(&["worker_processes", "auto"], None),
            node(&["load_module", "modules/ngx_stream_module.so"], None),
            node(&["load_module", "modules/ngx_absent_module.so"], None),
            node(&["stream"], Some(Vec::new())),
        ];
        let abilities = Abilities::of("nginx version: nginx/1.22.1", &modules);
        let mut files = Files::new(&folder.path().join("files")).unwrap();
        let paths = Paths { base: Path::new("/etc/nginx"), folder: folder.path(), sockets: &BTreeMap::new() };
        let out = runnable(&tree, &paths, &mut files, &abilities, &BTreeSet::new()).unwrap();
        let first = format!("load_module \"{}\";\nuser root", modules.join("ngx_stream_module.so").display());
        assert!(out.text.starts_with(&first), "{}", out.text);
        assert_eq!(out.text.matches("load_module").count(), 1, "{}", out.text);
        assert_eq!(out.places[0].as_ref().map(|p| p.line), Some(3));
        // A module from elsewhere.
        let other = node(&["load_module", modules.join("ngx_stream_module.so").to_str().unwrap()], None);
        let bare = Abilities::of("nginx version: nginx/1.22.1", Path::new("/nonexistent"));
        assert!(!bare.stream && bare.clone().loading(&[other], Path::new("/etc/nginx")).stream);
        assert!(!bare.loading(&tree, Path::new("/etc/nginx")).stream);
    }

    #[test]
    fn values_are_no_directives_and_may_be_in_files() {
        let folder = tempfile::tempdir().unwrap();
        let node = |words: &[&str], block| Node {
            place: Place { file: "n".into(), line: 1 },
            words: words.iter().map(|w| (*w).to_owned()).collect(),
            block,
            from: None,
        };
        let values = ["user 1", "include a.map", "include b*.map"];
        let values = values.map(|v| node(&v.split(' ').collect::<Vec<_>>(), None)).to_vec();
        let mut tree = [node(&["http"], Some(vec![node(&["map", "$arg_a", "$b"], Some(values))]))];
        let read =
            |path: &Path| (path == Path::new("/etc/nginx/a.map")).then(|| vec![node(&["listen", "unix:/x"], None)]);
        with_included(&mut tree, Path::new("/etc/nginx"), &read);
        let mut files = Files::new(&folder.path().join("files")).unwrap();
        let paths = Paths { base: Path::new("/etc/nginx"), folder: folder.path(), sockets: &BTreeMap::new() };
        let out = runnable(&tree, &paths, &mut files, &Abilities::default(), &BTreeSet::new()).unwrap();
        let absent = format!("\"listen\" \"unix:{}/absent\";", folder.path().display());
        for line in ["\"user\" \"1\";", &absent, "\"include\" \"/etc/nginx/b*.map\";"] {
            assert!(out.text.contains(line), "{}", out.text);
        }
        assert!(!out.text.contains("a.map"), "{}", out.text);
    }

    #[test]
    fn the_copy_neither_writes_files_nor_reaches_servers_of_the_machine() {
        let folder = tempfile::tempdir().unwrap();
        let node = |text: &str| Node {
            place: Place { file: "n".into(), line: 1 },
            words: text.split(' ').map(str::to_owned).collect(),
            block: None,
            from: None,
        };
        let lines = [
            "dav_methods PUT DELETE",
            "fastcgi_store on",
            "proxy_store_access user:rw",
            "fastcgi_pass unix:/run/php.sock",
            "uwsgi_pass unix:///run/app.sock",
            "set $a unix:/run/a.sock:/x",
            "proxy_pass http://unix:/run/b.sock:/uri",
            "proxy_pass http://unix:/run/other.sock:/uri",
        ];
        let own = folder.path().join("b");
        let sockets = BTreeMap::from([("unix:/run/b.sock".to_owned(), own.clone())]);
        let mut files = Files::new(&folder.path().join("files")).unwrap();
        let paths = Paths { base: Path::new("/etc/nginx"), folder: folder.path(), sockets: &sockets };
        let out = runnable(&lines.map(node), &paths, &mut files, &Abilities::default(), &BTreeSet::new()).unwrap();
        let absent = folder.path().join("absent").display().to_string();
        assert!(!out.text.contains("dav_") && !out.text.contains("_store"), "{}", out.text);
        assert!(!out.text.contains("/run/"), "{}", out.text);
        assert_eq!(out.text.matches(&format!("unix:{absent}")).count(), 4, "{}", out.text);
        assert!(out.text.contains(&format!("\"proxy_pass\" \"http://unix:{}:/uri\"", own.display())), "{}", out.text);
    }

    #[test]
    fn a_condition_keeps_its_empty_value() {
        let folder = tempfile::tempdir().unwrap();
        let node = |words: &[&str], block| Node {
            place: Place { file: "n".into(), line: 1 },
            words: words.iter().map(|w| (*w).to_owned()).collect(),
            block,
            from: None,
        };
        // As the import's parser reads them: `if ($a = "")`, `if ( $a != '')`, `if ($a = b )`, `if ( $a )`, `if ($a = "" )`, `~`.
        let conditions: [(&[&str], &str); 6] = [
            (&["if", "($a", "=", ")"], r#""if" "($a" "=" "" ")" {"#),
            (&["if", "(", "$a", "!=", ")"], r#""if" "(" "$a" "!=" "" ")" {"#),
            (&["if", "($a", "=", "b", ")"], r#""if" "($a" "=" "b" ")" {"#),
            (&["if", "(", "$a", ")"], r#""if" "(" "$a" ")" {"#),
            (&["if", "($a", "=", "", ")"], r#""if" "($a" "=" "" ")" {"#),
            (&["if", "($a", "~", "^x;{2} \"y)"], r#""if" "($a" "~" "^x;{2} \"y)" {"#),
        ];
        let set = || Some(vec![node(&["set", "$b", ""], None)]);
        let tree: Vec<Node> = conditions.iter().map(|(words, _)| node(words, set())).collect();
        let mut files = Files::new(&folder.path().join("files")).unwrap();
        let paths = Paths { base: Path::new("/etc/nginx"), folder: folder.path(), sockets: &BTreeMap::new() };
        let out = runnable(&tree, &paths, &mut files, &Abilities::default(), &BTreeSet::new()).unwrap();
        for (_, wanted) in conditions {
            assert!(out.text.contains(wanted), "{wanted}: {}", out.text);
        }
        assert_eq!(out.text.matches(r#""set" "$b" "";"#).count(), 6, "{}", out.text);
    }

    #[test]
    fn words_are_quoted_as_nginx_reads_them() {
        assert_eq!(quoted(r#"a "b" \.c"#), r#""a \"b\" \\.c""#);
        assert_eq!(quoted("x\n"), "\"x\\n\"");
    }

    #[test]
    fn the_version_decides_how_http_2_is_written() {
        let said = "nginx version: nginx/1.22.1\nconfigure arguments: --with-stream=dynamic --with-http_v2_module";
        let old = Abilities::of(said, Path::new("/nonexistent"));
        assert_eq!((old.version, old.http3, old.stream), ((1, 22, 1), false, false));
        let place = || Place { file: "n".into(), line: 1 };
        let node = |words: &[&str], block| Node {
            place: place(),
            words: words.iter().map(|w| (*w).to_owned()).collect(),
            block,
            from: None,
        };
        let mut tree =
            [node(&["server"], Some(vec![node(&["listen", "443", "ssl"], None), node(&["http2", "on"], None)]))];
        with_old_http2(&mut tree, &old);
        assert_eq!(tree[0].inner()[0].words, ["listen", "443", "ssl", "http2"]);
    }

    #[test]
    fn a_certificate_of_all_servers_has_the_names_of_those_without_one() {
        let node = |words: &[&str], block| Node {
            place: Place { file: "n".into(), line: 1 },
            words: words.iter().map(|w| (*w).to_owned()).collect(),
            block,
            from: None,
        };
        let http = [
            node(&["types"], Some(vec![node(&["text/html", "html.x"], None)])),
            node(&["ssl_certificate", "all.pem"], None),
            node(&["server"], Some(vec![node(&["server_name", ".a.test", "_", "~^b"], None)])),
            node(
                &["server"],
                Some(vec![node(&["server_name", "c.test"], None), node(&["ssl_certificate", "c.pem"], None)]),
            ),
        ];
        assert_eq!(certified(&http), ["*.a.test".to_owned(), "a.test".to_owned()].into());
        assert_eq!(certified(http[3].inner()), ["c.test".to_owned()].into());
    }
}
