//! The documentation is true where a program can tell: links lead somewhere, configurations pass `sealane check`,
//! commands have options that exist, and blocks marked `<!-- run -->` run.

use sealane_interop::binary;
use sealane_interop::gateway::run;
use sealane_interop::process;
use sealane_interop::site::Site;
use sealane_sys::netlink::Netlink;
use sealane_sys::netlink_route::LinkSet;
use sealane_sys::netns::NetNs;
use std::collections::{BTreeMap, BTreeSet};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Component, Path, PathBuf};
use std::process::Command;

/// A page, by its path from the repository's root.
struct Page {
    path: String,
    text: String,
}

/// A fenced block of code.
struct Block<'p> {
    page: &'p Page,
    /// The number of its first line in the page.
    line: usize,
    /// What stands behind the fence.
    language: &'p str,
    /// The exit code that `<!-- run -->` above it asks for.
    marked: Option<i32>,
    text: String,
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().expect("the repository is there")
}

/// Every page for readers: the ones at the root, in `docs`, in `examples`, and beside the lab and the fuzz targets.
fn pages() -> Vec<Page> {
    let root = root();
    const AT_THE_ROOT: [&str; 6] =
        ["README.md", "README.ko.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "SECURITY.md", "CHANGELOG.md"];
    let mut files: Vec<PathBuf> = AT_THE_ROOT.map(|name| root.join(name)).to_vec();
    let mut folders = ["docs", "examples", "lab", "fuzz"].map(|name| root.join(name)).to_vec();
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(&folder).expect("the folder is there") {
            let path = entry.expect("it can be read").path();
            match path.extension() {
                _ if path.is_dir() && path.file_name().is_some_and(|name| name == "target") => {}
                _ if path.is_dir() => folders.push(path),
                Some(extension) if extension == "md" => files.push(path),
                _ => {}
            }
        }
    }
    files.sort();
    let page = |file: PathBuf| {
        let text = std::fs::read_to_string(&file).unwrap_or_else(|error| panic!("{}: {error}", file.display()));
        let path =
            file.strip_prefix(&root).expect("it is in the repository").to_str().expect("a plain name").to_owned();
        Page { path, text }
    };
    files.into_iter().map(page).collect()
}

fn blocks(page: &Page) -> Vec<Block<'_>> {
    let (mut found, mut open): (Vec<Block<'_>>, Option<(Block<'_>, usize)>) = (Vec::new(), None);
    let mut before = "";
    for (number, line) in page.text.lines().enumerate() {
        let bare = line.trim_start();
        let indent = line.len() - bare.len();
        match (bare.strip_prefix("```"), &mut open) {
            (Some(language), None) => {
                let marked = match before.trim() {
                    "<!-- run -->" => Some(0),
                    "<!-- run, exit code 1 -->" => Some(1),
                    _ => None,
                };
                let block = Block { page, line: number + 2, language: language.trim(), marked, text: String::new() };
                open = Some((block, indent));
            }
            (Some(_), Some(_)) => found.extend(open.take().map(|(block, _)| block)),
            (None, Some((block, indent))) => {
                block.text.push_str(line.get((*indent).min(line.len())..).unwrap_or_default());
                block.text.push('\n');
            }
            (None, None) => {}
        }
        before = line;
    }
    assert!(open.is_none(), "{}: a block that does not end", page.path);
    found
}

/// The text without fenced blocks, in which there are no links and no headings.
fn prose(page: &Page) -> String {
    let mut inside = false;
    let lines = page.text.lines().filter(|line| {
        let fence = line.trim_start().starts_with("```");
        inside ^= fence;
        !inside && !fence
    });
    lines.collect::<Vec<_>>().join("\n")
}

/// The anchors of a page's headings, as GitHub and mdBook make them.
fn anchors(page: &Page) -> BTreeSet<String> {
    let mut seen: BTreeMap<String, usize> = BTreeMap::new();
    let text = prose(page);
    let headings = text.lines().filter(|line| line.starts_with('#'));
    headings
        .map(|heading| {
            let kept = |c: char| c.is_alphanumeric() || c == '-' || c == '_' || c == ' ';
            let slug: String =
                heading.trim_start_matches('#').trim().to_lowercase().chars().filter(|c| kept(*c)).collect();
            let slug = slug.replace(' ', "-");
            let count = seen.entry(slug.clone()).or_insert(0);
            *count += 1;
            if *count == 1 { slug } else { format!("{slug}-{}", *count - 1) }
        })
        .collect()
}

/// `a/b/../c` is `a/c`.
fn normal(path: &Path) -> String {
    let mut parts: Vec<&str> = Vec::new();
    for part in path.components() {
        match part {
            Component::ParentDir => {
                parts.pop();
            }
            Component::Normal(name) => parts.push(name.to_str().expect("a plain name")),
            _ => {}
        }
    }
    parts.join("/")
}

/// The targets of `[text](target)`.
fn links(text: &str) -> Vec<&str> {
    let targets = text.split("](").skip(1).filter_map(|rest| rest.split(')').next());
    targets.filter(|target| !target.contains(char::is_whitespace) && !target.is_empty()).collect()
}

#[test]
fn every_link_leads_somewhere() {
    let (root, pages) = (root(), pages());
    let by_path: BTreeMap<&str, &Page> = pages.iter().map(|page| (page.path.as_str(), page)).collect();
    let (mut broken, mut checked) = (Vec::new(), 0);
    for page in &pages {
        for target in links(&prose(page)) {
            if target.contains("://") || target.starts_with("mailto:") {
                continue;
            }
            checked += 1;
            let (path, anchor) = target.split_once('#').unwrap_or((target, ""));
            let folder = Path::new(&page.path).parent().expect("a page lies in a folder");
            let path = if path.is_empty() { page.path.clone() } else { normal(&folder.join(path)) };
            let known = by_path.get(path.as_str());
            let found =
                root.join(&path).exists() && (anchor.is_empty() || known.is_none_or(|p| anchors(p).contains(anchor)));
            if !found {
                broken.push(format!("{}: {target}", page.path));
            }
        }
    }
    assert_eq!(broken, Vec::<String>::new());
    assert!(checked > 150, "{checked}");
}

#[test]
fn the_summary_has_every_page() {
    let pages = pages();
    let summary = pages.iter().find(|page| page.path == "docs/SUMMARY.md").expect("docs/SUMMARY.md is there");
    let listed: BTreeSet<String> =
        links(&summary.text).into_iter().map(|target| normal(&Path::new("docs").join(target))).collect();
    let written: BTreeSet<String> = pages.iter().map(|page| page.path.clone()).collect();
    let wanted = written.iter().filter(|path| path.starts_with("docs/") && *path != "docs/SUMMARY.md");
    let missing: Vec<&String> = wanted.filter(|path| !listed.contains(*path)).collect();
    assert_eq!(missing, Vec::<&String>::new(), "pages that the book's summary does not list");
}

/// A page's folder says what kind of page it is, and the book's summary has it under the heading of that kind.
#[test]
fn every_page_is_in_its_part() {
    const PARTS: [(&str, &str); 6] = [
        ("docs/tutorial/", "Tutorials"),
        ("docs/how-to/", "How-to guides"),
        ("docs/reference/", "Reference"),
        ("docs/explanation/", "Explanation"),
        ("docs/decisions/", "Explanation"),
        ("docs/measurements/", "Measurements"),
    ];
    // Other files and sites link to these pages where they are.
    const AT_THE_TOP: [(&str, &str); 8] = [
        ("docs/index.md", "Summary"),
        ("docs/security.md", "Explanation"),
        ("docs/stability.md", "Explanation"),
        ("docs/upgrading.md", "Explanation"),
        ("docs/counting.md", "Contributing"),
        ("docs/debugging.md", "Contributing"),
        ("docs/releasing.md", "Contributing"),
        ("docs/testing.md", "Contributing"),
    ];
    let pages = pages();
    let summary = pages.iter().find(|page| page.path == "docs/SUMMARY.md").expect("docs/SUMMARY.md is there");
    let (mut part, mut wrong, mut checked) = ("", Vec::new(), 0);
    for line in summary.text.lines() {
        part = line.strip_prefix("# ").unwrap_or(part);
        for target in links(line) {
            let path = normal(&Path::new("docs").join(target));
            let of_folder = PARTS.iter().find(|(folder, _)| path.starts_with(folder));
            let wanted = AT_THE_TOP.iter().find(|(page, _)| *page == path).or(of_folder);
            checked += 1;
            if wanted.is_none_or(|(_, wanted)| *wanted != part) {
                wrong.push(format!("{path} is under {part}, and belongs to {wanted:?}"));
            }
        }
    }
    assert_eq!(wrong, Vec::<String>::new());
    assert!(checked > 50, "{checked}");
}

/// The files that ARCHITECTURE.md, CONTRIBUTING.md and the decisions name are there.
#[test]
fn every_named_file_exists() {
    const FOLDERS: [&str; 11] = [
        "gateway/",
        "kube/",
        "client/",
        "lab/",
        "tests/",
        "fuzz/",
        "xtask/",
        "docs/",
        "examples/",
        "packaging/",
        ".ci/",
    ];
    // ARCHITECTURE.md says in which folder the files of a section are, and names them without it.
    const SHORT: [&str; 6] = [
        "gateway/proxy/src",
        "gateway/proxy/src/exchange",
        "gateway/vpn",
        "gateway/vpn/data/src/user",
        "kube/controller/src",
        "kube/translate/src",
    ];
    let (root, pages) = (root(), pages());
    let current = ["ARCHITECTURE.md", "CONTRIBUTING.md", "README.md", "README.ko.md", "SECURITY.md"];
    let (mut missing, mut checked) = (Vec::new(), 0);
    for page in pages.iter().filter(|p| current.contains(&p.path.as_str()) || p.path.starts_with("docs/decisions/")) {
        let text = prose(page);
        for quoted in text.split('`').skip(1).step_by(2) {
            // A pattern, or a word that stands for many.
            let plain = quoted.bytes().all(|b| b.is_ascii_alphanumeric() || b"/._-".contains(&b));
            let short = page.path == "ARCHITECTURE.md" && quoted.ends_with(".rs");
            if plain && (short || FOLDERS.iter().any(|folder| quoted.starts_with(folder))) {
                checked += 1;
                let shortened = || short && SHORT.iter().any(|folder| root.join(folder).join(quoted).exists());
                if !root.join(quoted).exists() && !shortened() {
                    missing.push(format!("{}: {quoted}", page.path));
                }
            }
        }
    }
    assert_eq!(missing, Vec::<String>::new());
    assert!(checked > 80, "{checked}");
}

/// The names of all tests in Rust sources below a folder.
fn tests_below(folder: &Path, names: &mut BTreeSet<String>) {
    for entry in std::fs::read_dir(folder).unwrap().map(Result::unwrap) {
        let path = entry.path();
        if path.is_dir() {
            if entry.file_name() != "target" {
                tests_below(&path, names);
            }
            continue;
        }
        if path.extension().is_none_or(|extension| extension != "rs") {
            continue;
        }
        let text = std::fs::read_to_string(&path).unwrap();
        let mut is_test = false;
        for line in text.lines().map(str::trim) {
            is_test |= line.starts_with("#[test]") || line.starts_with("#[tokio::test");
            if let Some((_, name)) = line.split_once("fn ").filter(|_| is_test) {
                names.extend(name.split('(').next().map(str::to_owned));
                is_test = false;
            }
        }
    }
}

/// The tables of defects name a test in each row: a test that was renamed or removed must not stay there.
#[test]
fn every_test_that_the_security_page_names_exists() {
    let mut tests = BTreeSet::new();
    for folder in ["gateway", "client", "lab", "tests", "fuzz", "xtask"] {
        tests_below(&root().join(folder), &mut tests);
    }
    let pages = pages();
    let page = pages.iter().find(|page| page.path == "docs/security.md").unwrap();
    let text = prose(page);
    // `::` by itself is an address.
    let is_name =
        |quoted: &&str| quoted.len() > 2 && quoted.bytes().all(|b| b.is_ascii_alphanumeric() || b":_- ".contains(&b));
    let named: Vec<&str> =
        text.split('`').skip(1).step_by(2).filter(|quoted| quoted.contains("::")).filter(is_name).collect();
    let missing: Vec<&&str> = named.iter().filter(|name| !tests.contains(name.rsplit("::").next().unwrap())).collect();
    assert_eq!(missing, Vec::<&&str>::new());
    assert!(named.len() > 300, "{}", named.len());
}

/// A part of a configuration, with what must stand around it: the table that it belongs to, a listener, a host, and the
/// upstreams and rate limits that it names.
fn completed(part: &str) -> String {
    let first = part.lines().map(str::trim).find(|line| !line.is_empty() && !line.starts_with('#')).unwrap_or_default();
    let before = match first {
        _ if first.starts_with("[[host.") => "[[host]]\nnames = [\"*\"]\nrespond = { status = 200 }\n",
        _ if first.starts_with("[upstream.") => "[[upstream]]\nname = \"part\"\nservers = [\"https://127.0.0.1:1\"]\n",
        "[listener.tls]" | "[listener.quic]" => "[[listener]]\naddress = \":443\"\n",
        _ if first.starts_with("certificates") || first.starts_with("client_auth") => {
            "[[listener]]\naddress = \":443\"\n[listener.tls]\n"
        }
        _ if first.starts_with("[[listener.tls.") => "[[listener]]\naddress = \":443\"\n[listener.tls]\n",
        _ if ["[tunnel.", "[[tunnel.", "event_", "management", "auth_command"]
            .iter()
            .any(|part| first.starts_with(part)) =>
        {
            "[tunnel]\nlisten = [\"udp://:1194\"]\nnetwork = \"10.8.0.0/24\"\nca = \"ca\"\ncert = \"c\"\nkey = \"k\"\n"
        }
        _ => "",
    };
    let mut text = format!("{before}{part}\n");
    // A key of TLS without certificates is a key of a part, too.
    if text.contains("[listener.tls]") && !text.contains("certificates") {
        text = text.replace("[listener.tls]", "[listener.tls]\ncertificates = [{ cert = \"c\", key = \"k\" }]");
    }
    if text.contains("[listener.quic]") && !text.contains("http3 = true") {
        text = text.replace("address = \":443\"\n", "address = \":443\"\nhttp3 = true\n");
        text.push_str("[listener.tls]\ncertificates = [{ cert = \"c\", key = \"k\" }]\n");
    }
    let quoted = |key: &str| -> Vec<String> {
        let mut names: Vec<String> = text
            .lines()
            .filter_map(|line| line.trim().strip_prefix(key)?.trim_start().strip_prefix('=')?.split('"').nth(1))
            .map(str::to_owned)
            .collect();
        names.sort();
        names.dedup();
        names
    };
    let defined = |table: &str, name: &str| {
        text.split(table).skip(1).any(|rest| rest.lines().any(|line| line.trim() == format!("name = \"{name}\"")))
    };
    let mut after = String::new();
    for (key, scheme) in [("upstream", "http"), ("passthrough", "tcp")] {
        for name in quoted(key).iter().filter(|name| !defined("[[upstream]]", name)) {
            after += &format!("[[upstream]]\nname = \"{name}\"\nservers = [\"{scheme}://127.0.0.1:1\"]\n");
        }
    }
    for name in quoted("rate_limit").iter().filter(|name| !defined("[[rate_limit]]", name)) {
        after += &format!("[[rate_limit]]\nname = \"{name}\"\nrate = \"1/s\"\n");
    }
    if !text.contains("[[listener]]") {
        after += "[[listener]]\naddress = \":443\"\n[listener.tls]\ncertificates = [{ cert = \"c\", key = \"k\" }]\n";
    }
    if !text.contains("[[host]]") {
        after += "[[host]]\nnames = [\"other.example.org\"]\nrespond = { status = 200 }\n";
    }
    text + &after
}

#[test]
fn every_configuration_passes_the_check() {
    let (site, pages) = (Site::new(), pages());
    let (mut wrong, mut checked) = (Vec::new(), 0);
    // What `include` of an example looks into.
    std::fs::create_dir(site.path().join("conf.d")).expect("our own folder");
    for block in pages.iter().flat_map(blocks).filter(|block| block.language == "toml") {
        let whole = completed(&block.text);
        let file = site.file("part.toml", &whole);
        let output = run(["check", "--offline", "-c", file.to_str().expect("a plain name")]);
        checked += 1;
        if !output.status.success() {
            let said = String::from_utf8_lossy(&output.stderr);
            wrong.push(format!("{}:{}:\n{said}\n{whole}", block.page.path, block.line));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(checked > 15, "{checked}");
}

/// The simple commands of a shell script, as words; without assignments, redirections and `sudo`.
fn commands(script: &str) -> Vec<Vec<String>> {
    let mut found: Vec<Vec<String>> = vec![Vec::new()];
    let joined = script.replace("\\\n", " ");
    for line in joined.lines() {
        let (mut word, mut quote, mut started) = (String::new(), None, false);
        let mut characters = line.chars().peekable();
        let end = |word: &mut String, started: &mut bool, found: &mut Vec<Vec<String>>| {
            if std::mem::take(started) {
                found.last_mut().expect("there is one").push(std::mem::take(word));
            }
        };
        while let Some(c) = characters.next() {
            match (c, quote) {
                // A substitution stands for a number, such as a process's; the commands in it are not looked at.
                ('$', None | Some('"')) if characters.peek() == Some(&'(') => {
                    started = true;
                    word.push('1');
                    let mut depth = 0;
                    for inner in characters.by_ref() {
                        depth += i32::from(inner == '(') - i32::from(inner == ')');
                        if depth == 0 {
                            break;
                        }
                    }
                }
                (c, Some(q)) if c == q => quote = None,
                (c, Some(_)) => word.push(c),
                ('\'' | '"', None) => (quote, started) = (Some(c), true),
                ('#', None) if !started => break,
                ('|' | ';' | '&', None) => {
                    end(&mut word, &mut started, &mut found);
                    found.push(Vec::new());
                }
                ('>' | '<', None) => {
                    end(&mut word, &mut started, &mut found);
                    // The file that follows is no argument.
                    while characters.next_if(|c| matches!(c, '>' | '&' | ' ')).is_some() {}
                    while characters.next_if(|c| !c.is_whitespace()).is_some() {}
                }
                (c, None) if c.is_whitespace() => end(&mut word, &mut started, &mut found),
                (c, None) => {
                    word.push(c);
                    started = true;
                }
            }
        }
        end(&mut word, &mut started, &mut found);
        found.push(Vec::new());
    }
    let bare = |words: Vec<String>| -> Vec<String> {
        let prefix = |word: &String| {
            word == "sudo"
                || word.split_once('=').is_some_and(|(n, _)| n.chars().all(|c| c.is_ascii_uppercase() || c == '_'))
        };
        words.into_iter().skip_while(prefix).collect()
    };
    found.into_iter().map(bare).filter(|words| !words.is_empty()).collect()
}

/// The program of this source that a command's first word names, and the words that are its arguments.
fn ours(words: &[String]) -> Option<(PathBuf, &[String])> {
    let beside = |name: &str| binary::sealane().with_file_name(name);
    match (words[0].rsplit('/').next(), words.get(1).map(String::as_str)) {
        (Some(name @ ("sealane" | "sealane-lab")), _) => Some((beside(name), &words[1..])),
        (Some("cargo"), Some("xtask")) => Some((beside("xtask"), &words[2..])),
        (Some("cargo"), Some("run")) => {
            let at = words.iter().position(|word| word == "--")?;
            Some((beside("sealane"), &words[at + 1..]))
        }
        _ => None,
    }
}

/// clap reads arguments from left to right and stops at `--help`: what stands before it is known to exist.
#[test]
fn every_command_has_options_that_exist() {
    let pages = pages();
    let (mut wrong, mut checked, mut missing) = (Vec::new(), 0, BTreeSet::new());
    for block in pages.iter().flat_map(blocks).filter(|block| block.language == "sh") {
        for words in commands(&block.text) {
            let Some((program, arguments)) = ours(&words) else { continue };
            if !program.exists() {
                missing.insert(program);
                continue;
            }
            let before = arguments.iter().take_while(|word| *word != "--");
            let output = process::run(Command::new(&program).args(before).arg("--help"), b"");
            checked += 1;
            if !output.status.success() {
                let said = String::from_utf8_lossy(&output.stderr);
                wrong.push(format!("{}:{}: {}\n{said}", block.page.path, block.line, words.join(" ")));
            }
        }
    }
    for program in missing {
        // A build of the whole workspace, as `cargo xtask test` makes, has them all.
        eprintln!("skipped: {} is not built", program.display());
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(checked > 20, "{checked}");
}

/// A network with nothing but a loopback, where this process may make one.
fn own_network() -> Option<NetNs> {
    let network = NetNs::new().ok()?;
    let up = || -> std::io::Result<()> {
        let mut netlink = Netlink::route()?;
        let loopback = netlink.link_index("lo")?;
        netlink.link_set(loopback, &LinkSet { up: Some(true), ..LinkSet::default() })
    };
    network.run(up).and_then(|up| up).ok()?;
    Some(network)
}

#[test]
fn the_marked_commands_run() {
    let pages = pages();
    let programs = binary::sealane().parent().expect("a program lies in a folder");
    let path = std::env::var("PATH").unwrap_or_default();
    let mut count = 0;
    for page in &pages {
        // The blocks of one page go on in one folder, as a reader does, and their ports are nobody else's.
        let (site, network) = (Site::new(), own_network());
        // What a reader does as root, this does as who it is.
        let sudo = site.file("sudo", "#!/bin/sh\nexec \"$@\"\n");
        std::fs::set_permissions(&sudo, std::fs::Permissions::from_mode(0o755)).expect("its own file");
        for block in blocks(page) {
            let Some(wanted) = block.marked else { continue };
            let asks = |part: &str| block.text.contains(part);
            let compares = ["nginx", "haproxy"].into_iter().find(|p| asks(&format!("sealane-lab compare {p}")));
            if compares.is_some_and(|p| network.is_none() || sealane_interop::peers::find(p).is_none()) {
                eprintln!("skipped: {}:{}: no program, or no network namespaces", page.path, block.line);
                continue;
            }
            let mut shell = Command::new("sh");
            // What a block starts ends with it, however it ends.
            let text = format!("trap 'kill $(jobs -p) 2>/dev/null || :' EXIT\n{}", block.text);
            shell.args(["-eu", "-c", &text]).current_dir(site.path());
            shell.env("PATH", format!("{}:{}:{path}", site.path().display(), programs.display()));
            shell.env("SEALANE_SOURCE", root());
            let mut run = || process::run_within(&mut shell, b"", std::time::Duration::from_secs(600));
            let output = match &network {
                Some(network) => network.run(run).expect("a thread can be made"),
                None => run(),
            };
            count += 1;
            assert!(
                output.status.code() == Some(wanted),
                "{}:{}: {}\n{}",
                page.path,
                block.line,
                String::from_utf8_lossy(&output.stdout),
                String::from_utf8_lossy(&output.stderr)
            );
        }
    }
    assert!(count >= 5, "{count}");
}

/// The fixed parts of log lines and messages that the page on troubleshooting names are in the gateway's source.
#[test]
fn the_named_log_lines_exist() {
    let mut source = String::new();
    let mut folders = vec![root().join("gateway")];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(&folder).expect("the folder is there") {
            let path = entry.expect("it can be read").path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                source += &std::fs::read_to_string(&path).expect("the source is text");
            }
        }
    }
    // A string that goes on in the next line is one string.
    let source: String =
        source.split("\\\n").enumerate().map(|(n, part)| if n == 0 { part } else { part.trim_start() }).collect();
    let pages = pages();
    let page = pages.iter().find(|page| page.path.ends_with("how-to/troubleshooting.md")).expect("the page is there");
    let (mut missing, mut checked, mut wanted) = (Vec::new(), 0, false);
    for line in page.text.lines() {
        if let Some(row) = line.strip_prefix('|') {
            let first = row.split(" | ").next().unwrap_or_default().trim();
            wanted |= ["log line", "reason", "message contains"].contains(&first);
            for quoted in first.split('`').skip(1).step_by(2).filter(|_| wanted) {
                checked += 1;
                if !source.contains(quoted) {
                    missing.push(quoted);
                }
            }
        } else {
            wanted = false;
        }
    }
    assert_eq!(missing, Vec::<&str>::new(), "the gateway does not say this");
    assert!(checked > 30, "{checked}");
}

#[test]
fn the_extraction_finds_blocks_and_commands() {
    let text = "# A\n\n<!-- run -->\n```sh\nsealane check -c a.toml | head   # a comment\n```\n\n1. list\n   ```toml\n   x = 1\n   ```\n";
    let page = Page { path: "a.md".into(), text: text.into() };
    let found = blocks(&page);
    assert_eq!(found.len(), 2);
    assert_eq!((found[0].marked, found[1].marked), (Some(0), None));
    assert_eq!((found[0].line, found[1].text.as_str()), (5, "x = 1\n"));
    let script = "sudo A=1 sealane-lab load 'a b' \\\n  --pid $(pidof -s x) > out.txt && echo \"x;y\"\n# no\n";
    let words: Vec<Vec<String>> = commands(script);
    assert_eq!(words, [vec!["sealane-lab", "load", "a b", "--pid", "1"], vec!["echo", "x;y"]]);
    let page = Page { path: "b.md".into(), text: "## `[limits]` and more\n## Same\n## Same\n".into() };
    assert_eq!(anchors(&page).into_iter().collect::<Vec<_>>(), ["limits-and-more", "same", "same-1"]);
}
