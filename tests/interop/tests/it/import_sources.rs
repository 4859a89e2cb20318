//! The configurations in Debian's source packages of NGINX and HAProxy, read by `sealane import` while the test runs: nothing that the
//! original accepts is refused, every directive has an outcome, and the table says what became of each kind of directive.
//!
//! `SEALANE_SOURCES=FOLDER` takes unpacked sources from there; `SEALANE_UPDATE=1` writes `docs/reference/import-coverage.md` anew.

use sealane_interop::gateway::run;
use sealane_interop::need;
use sealane_interop::peers::find;
use sealane_interop::process;
use sealane_interop::site::Site;
use sealane_interop::skip;
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The directive of the entries that are about the whole translation.
const WHOLE_FILE: &str = "the whole file";

const KEYRING: &str = "/usr/share/keyrings/debian-archive-keyring.gpg";

/// Outcomes of a kind of directive: the same, different, not translated, undecided.
type Counts = [usize; 4];

const OUTCOMES: [&str; 4] = ["same", "different", "not_translated", "undecided"];

/// What one collection of configurations came to.
#[derive(Default)]
struct Coverage {
    /// Configurations that the original accepts, or all where it is not asked.
    read: usize,
    /// Configurations that the original refuses.
    refused: usize,
    /// Configurations whose translation Sealane refuses as a whole.
    unusable: usize,
    kinds: BTreeMap<String, Counts>,
    /// Configurations that the original accepts and the import does not read.
    errors: Vec<String>,
}

impl Coverage {
    fn sum(&self, at: usize) -> usize {
        self.kinds.values().map(|c| c[at]).sum()
    }

    fn translated(&self) -> f64 {
        100.0 * (self.sum(0) + self.sum(1)) as f64 / (0..4).map(|at| self.sum(at)).sum::<usize>().max(1) as f64
    }

    fn row(&self, name: &str) -> String {
        let sums: Vec<String> = (0..4).map(|at| self.sum(at).to_string()).collect();
        format!(
            "| {name} | {} | {} | {} | {} | {:.1} % |\n",
            self.read,
            sums.join(" | "),
            self.errors.len(),
            self.unusable,
            self.translated()
        )
    }

    fn add(&mut self, other: &Self) {
        for (kind, counts) in &other.kinds {
            let sums = self.kinds.entry(kind.clone()).or_default();
            (0..4).for_each(|at| sums[at] += counts[at]);
        }
    }
}

/// What a directive is counted as: HAProxy's rules and options are named by two words.
fn kind(program: &str, directive: &str) -> String {
    let mut words = directive.split(' ').filter(|w| *w != "no");
    let first = words.next().unwrap_or("");
    let two = program == "haproxy"
        && matches!(
            first,
            "option"
                | "timeout"
                | "http-request"
                | "http-response"
                | "http-after-response"
                | "tcp-request"
                | "stats"
                | "http-check"
        );
    let second = words.next().filter(|_| two).map(|w| w.split('(').next().unwrap_or(w));
    second.map_or_else(|| first.to_owned(), |second| format!("{first} {second}"))
}

/// Imports a file. `accepted`: by the original.
fn import(program: &str, file: &Path, accepted: bool, name: &str, folder: &Path, into: &mut Coverage) {
    let out = folder.join("result.toml");
    let _ = fs::remove_file(&out);
    // Pages that the one before has left beside its result.
    for left in fs::read_dir(folder).into_iter().flatten().filter_map(Result::ok) {
        if left.file_name().to_string_lossy().starts_with("error-") {
            let _ = fs::remove_file(left.path());
        }
    }
    let output = run([
        Path::new("import"),
        Path::new(program),
        file,
        Path::new("--report"),
        Path::new("json"),
        Path::new("--out"),
        &out,
    ]);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(matches!(output.status.code(), Some(0 | 1)) && !said.contains("panicked"), "{name}: {said}");
    let Ok(report) = serde_json::from_slice::<serde_json::Value>(&output.stdout) else {
        match accepted {
            true => {
                into.read += 1;
                into.errors.push(format!("{name}: {said}"));
            }
            false => into.refused += 1,
        }
        return;
    };
    // NGINX refuses the few examples that there are for what is missing here, such as a module; they are read all the same.
    if !accepted && program == "haproxy" {
        into.refused += 1;
        return;
    }
    into.read += 1;
    // Each directive counts with its worst outcome.
    let mut worst: BTreeMap<(String, u64, String), usize> = BTreeMap::new();
    let mut refused = false;
    for entry in report["entries"].as_array().expect("a list") {
        let text = |key: &str| entry[key].as_str().expect("a text").to_owned();
        // What Sealane says of the translation is about no directive.
        if text("directive") == WHOLE_FILE {
            refused = true;
            continue;
        }
        let at = OUTCOMES.iter().position(|o| *o == text("outcome")).expect("a known outcome");
        let key = (text("file"), entry["line"].as_u64().expect("a number"), text("directive"));
        let there = worst.entry(key).or_default();
        *there = at.max(*there);
    }
    into.unusable += usize::from(refused);
    assert!(!worst.is_empty() || refused || report["directives"] == 0, "{name}: nothing is said");
    for ((.., directive), at) in worst {
        into.kinds.entry(kind(program, &directive)).or_default()[at] += 1;
    }
}

/// The sources of both programs, unpacked. The error says why there are none.
fn sources(folder: &Path) -> Result<PathBuf, String> {
    if let Some(there) = std::env::var_os("SEALANE_SOURCES") {
        return Ok(there.into());
    }
    let apt = find("apt-get").ok_or("there is no apt-get")?;
    let done = |command: &mut Command| -> Result<String, String> {
        let said: sealane_interop::peers::Said = process::run(command, b"").into();
        if said.code == Some(0) { Ok(said.text()) } else { Err(said.err) }
    };
    // The mirror and the suite that this machine uses already.
    let uris = ["indextargets", "--format", "$(REPO_URI) $(CODENAME)", "Created-By: Packages", "Origin: Debian"];
    let targets = done(Command::new(&apt).args(uris))?;
    let target =
        targets.lines().find(|l| !l.contains("security") && !l.contains('-')).ok_or("apt knows no Debian mirror")?;
    let (mirror, suite) = target.split_once(' ').ok_or("apt says no suite")?;
    let root = folder.join("apt");
    let shown = root.display();
    let write = |name: &str, text: String| fs::write(root.join(name), text).map_err(|e| e.to_string());
    for below in ["lists/partial", "cache/archives/partial"] {
        fs::create_dir_all(root.join(below)).map_err(|e| e.to_string())?;
    }
    write("sources.list", format!("deb-src [signed-by={KEYRING}] {mirror} {suite} main\n"))?;
    write("status", String::new())?;
    write(
        "apt.conf",
        format!(
            "Dir::State::lists \"{shown}/lists\";\nDir::State::status \"{shown}/status\";\nDir::Cache \"{shown}/cache\";\n\
             Dir::Etc::sourcelist \"{shown}/sources.list\";\nDir::Etc::sourceparts \"-\";\nAPT::Sandbox::User \"root\";\n\
             Acquire::Retries \"2\";\nAcquire::http::Timeout \"20\";\n"
        ),
    )?;
    let apt = |arguments: &[&str]| {
        done(Command::new(&apt).env("APT_CONFIG", root.join("apt.conf")).current_dir(&root).args(arguments))
    };
    apt(&["-q", "update"])?;
    apt(&["-q", "source", "--download-only", "nginx", "haproxy"])?;
    let unpacked = folder.join("unpacked");
    for file in fs::read_dir(&root).map_err(|e| e.to_string())?.filter_map(Result::ok) {
        let name = file.file_name().to_string_lossy().into_owned();
        if name.contains(".tar.") && !name.ends_with(".asc") {
            // Debian's own files have a folder of their own, `debian`, in each.
            let into = unpacked.join(name.split('_').next().unwrap_or("")).join(if name.contains(".debian.") {
                "debian"
            } else {
                "original"
            });
            fs::create_dir_all(&into).map_err(|e| e.to_string())?;
            done(Command::new("tar").arg("-xf").arg(file.path()).arg("-C").arg(&into))?;
        }
    }
    Ok(unpacked)
}

/// All files below a folder.
fn files(folder: &Path) -> Vec<PathBuf> {
    let mut out = Vec::new();
    let mut folders = vec![folder.to_path_buf()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).into_iter().flatten().filter_map(Result::ok) {
            match entry.file_type() {
                Ok(kind) if kind.is_dir() => folders.push(entry.path()),
                Ok(kind) if kind.is_file() => out.push(entry.path()),
                _ => {}
            }
        }
    }
    out.sort();
    out
}

fn text_of(file: &Path) -> String {
    String::from_utf8_lossy(&fs::read(file).expect("it can be read")).into_owned()
}

/// The configurations in a file of `varnishtest`, with addresses in the place of its macros.
fn of_vtc(text: &str, testdir: &Path, tmpdir: &Path) -> Vec<String> {
    let mut out = Vec::new();
    let mut rest = text;
    while let Some(at) = rest.find(" -conf") {
        let after = &rest[at + 1..];
        let word = after.split_whitespace().next().unwrap_or("");
        let bad = word.starts_with("-conf-BAD");
        let mut behind = &after[word.len()..];
        // `-conf-BAD` has the message in braces first.
        for group in 0..if bad { 2 } else { 1 } {
            let Some(open) = behind.find('{') else { break };
            let mut depth = 0usize;
            let end = behind[open..].char_indices().find_map(|(i, c)| {
                match c {
                    '{' => depth += 1,
                    '}' => depth -= 1,
                    _ => {}
                }
                (depth == 0).then_some(open + i)
            });
            let Some(end) = end else { break };
            if group + 1 == if bad { 2 } else { 1 } {
                out.push(without_macros(&behind[open + 1..end], testdir, tmpdir));
            }
            behind = &behind[end + 1..];
        }
        rest = behind;
    }
    out
}

fn without_macros(text: &str, testdir: &Path, tmpdir: &Path) -> String {
    let mut out = String::new();
    let mut rest = text;
    while let Some(at) = rest.find("${") {
        let Some(end) = rest[at..].find('}').map(|e| at + e) else { break };
        let (before, name) = (&rest[..at], &rest[at + 2..end]);
        rest = &rest[end + 1..];
        let value = match name {
            "testdir" => testdir.display().to_string(),
            "tmpdir" => tmpdir.display().to_string(),
            n if n.contains("HAPROXY") || n.contains("VTEST") || n.contains("VTC") => format!("${{{n}}}"),
            n if n.ends_with("_port") => "8080".to_owned(),
            n if n.ends_with("_addr") => "127.0.0.1".to_owned(),
            _ => "127.0.0.1:8080".to_owned(),
        };
        // A socket that the test runner opens is an address like others.
        out.push_str(if value.contains(':') { before.trim_end_matches("fd@") } else { before });
        out.push_str(&value);
    }
    out + rest
}

/// The examples in the manual: what is indented more than the word before them.
fn of_manual(text: &str) -> Vec<String> {
    let lines: Vec<&str> = text.lines().collect();
    let indent = |l: &str| l.len() - l.trim_start().len();
    let mut out = Vec::new();
    for (at, line) in lines.iter().enumerate() {
        let word = line.trim().trim_end_matches(':').trim();
        if !matches!(word, "Example" | "Examples") {
            continue;
        }
        let body = lines[at + 1..].iter().take_while(|l| l.trim().is_empty() || indent(l) > indent(line));
        let body: Vec<&str> = body.copied().collect();
        if body.iter().any(|l| !l.trim().is_empty()) {
            out.push(body.join("\n"));
        }
    }
    out
}

/// Whether HAProxy accepts a file.
fn haproxy_accepts(program: &Path, file: &Path) -> bool {
    process::run(Command::new(program).arg("-c").arg("-f").arg(file), b"").status.success()
}

const SECTIONS: &[&str] =
    &["global", "defaults", "frontend", "backend", "listen", "peers", "resolvers", "userlist", "cache"];

fn haproxy_coverage(program: &Path, sources: &Path, folder: &Path) -> Vec<(&'static str, Coverage)> {
    let root = sources.join("haproxy");
    let all = files(&root);
    let mut out = vec![
        ("HAProxy: examples and tests (`*.cfg`)", Coverage::default()),
        ("HAProxy: regression tests (`*.vtc`)", Coverage::default()),
        ("HAProxy: examples of the manual", Coverage::default()),
    ];
    let file = folder.join("haproxy.cfg");
    for path in &all {
        let name = path.strip_prefix(&root).expect("it is below").display().to_string();
        match path.extension().and_then(|e| e.to_str()) {
            Some("cfg") => {
                // Beside it, since it may name files.
                import("haproxy", path, haproxy_accepts(program, path), &name, folder, &mut out[0].1);
            }
            Some("vtc") => {
                for (n, text) in
                    of_vtc(&text_of(path), path.parent().expect("it has one"), folder).into_iter().enumerate()
                {
                    fs::write(&file, text).expect("it can be written");
                    let accepted = haproxy_accepts(program, &file);
                    import("haproxy", &file, accepted, &format!("{name} {n}"), folder, &mut out[1].1);
                }
            }
            Some("txt") if name.ends_with("doc/configuration.txt") => {
                for (n, text) in of_manual(&text_of(path)).into_iter().enumerate() {
                    let whole = text.lines().any(|l| SECTIONS.contains(&l.split_whitespace().next().unwrap_or("")));
                    let wrappings: &[&str] = match whole {
                        true => &[""],
                        false => &["listen l\n mode http\n bind 127.0.0.1:8080\n", "global\n"],
                    };
                    for wrapping in wrappings {
                        fs::write(&file, format!("{wrapping}{text}\n")).expect("it can be written");
                        let accepted = haproxy_accepts(program, &file);
                        import("haproxy", &file, accepted, &format!("{name}, example {n}"), folder, &mut out[2].1);
                        if accepted {
                            break;
                        }
                    }
                }
            }
            _ => {}
        }
    }
    out
}

/// Moves listeners to the loopback interface: NGINX opens them to check a file.
fn on_loopback(text: &str) -> String {
    let moved = |line: &str| {
        let mut words = line.trim_start().splitn(2, ' ');
        match (words.next(), words.next()) {
            (Some("listen"), Some(rest)) => {
                let address = rest.trim_start();
                let end = address.find([' ', ';']).unwrap_or(address.len());
                let port = address[..end].rsplit(':').next().unwrap_or("").parse::<u16>();
                // Those of IPv6 have an address of their own, as before.
                let host = if address.starts_with('[') { "127.0.0.2" } else { "127.0.0.1" };
                let address_of = |port: u16| format!("listen {host}:{}{}", 8000 + port % 1000, &address[end..]);
                port.map_or_else(|_| line.to_owned(), address_of)
            }
            _ => line.to_owned(),
        }
    };
    // Modules of this machine are not in the folder of the test.
    let lines = text.lines().filter(|l| !l.contains("modules-enabled"));
    lines.map(moved).collect::<Vec<_>>().join("\n").replace(" ipv6only=on", "")
}

fn nginx_coverage(program: &Path, sources: &Path, folder: &Path) -> Vec<(&'static str, Coverage)> {
    let root = sources.join("nginx");
    let mut coverage = Coverage::default();
    fs::create_dir_all(folder.join("logs")).expect("a folder can be made");
    for path in files(&root) {
        let name = path.strip_prefix(&root).expect("it is below").display().to_string();
        let configuration =
            ["/conf/nginx.conf", "/sites-available/", "/snippets/", "/help/examples/", "libnginx-mod.conf/"];
        if name.ends_with(".pl") || name.contains("nginx_modsite") || !configuration.iter().any(|c| name.contains(c)) {
            continue;
        }
        let text = on_loopback(&text_of(&path));
        // Beside what Debian installs, since it may include some of that.
        let beside = root.join("debian/debian/conf/sealane-test.conf");
        let whole = text.contains("http {") || text.contains("http{") || text.contains("load_module");
        let wrapped = if whole { text } else { format!("events {{}}\nhttp {{\n{text}\n}}\n") };
        let snippet = format!("events {{}}\nhttp {{ server {{\n{wrapped}\n}} }}\n");
        let mut accepted = false;
        for candidate in [&wrapped, &snippet] {
            fs::write(&beside, candidate).expect("it can be written");
            let mut command = Command::new(program);
            command.args(["-t", "-q", "-e", "stderr", "-p"]).arg(folder).arg("-c").arg(&beside);
            accepted = process::run(&mut command, b"").status.success();
            if accepted {
                break;
            }
        }
        if !accepted {
            fs::write(&beside, &wrapped).expect("it can be written");
        }
        import("nginx", &beside, accepted, &name, folder, &mut coverage);
        fs::remove_file(&beside).expect("it is there");
    }
    vec![("NGINX: examples and defaults", coverage)]
}

/// The corpus of the import's own tests.
fn corpus(program: &str, folder: &Path) -> Coverage {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../gateway/import/tests/corpus").join(program);
    let ending = if program == "nginx" { "conf" } else { "cfg" };
    let mut out = Coverage::default();
    let mut all: Vec<PathBuf> =
        fs::read_dir(root).expect("it is there").filter_map(Result::ok).map(|e| e.path()).collect();
    all.retain(|p| p.extension().is_some_and(|e| e == ending));
    all.sort();
    for path in all {
        import(program, &path, true, &path.display().to_string(), folder, &mut out);
    }
    out
}

/// The commit of the working tree, as far as Git knows it.
fn commit() -> String {
    let told =
        Command::new("git").args(["rev-parse", "--short=8", "HEAD"]).current_dir(env!("CARGO_MANIFEST_DIR")).output();
    let hash = told.map(|told| String::from_utf8_lossy(&told.stdout).trim().to_owned()).unwrap_or_default();
    if hash.is_empty() { "unknown".to_owned() } else { hash }
}

fn page(sources: &[(&str, Coverage)]) -> String {
    let mut out = "<!-- Written by the test `import_sources` with SEALANE_UPDATE=1: do not edit this file. -->\n\n\
        # What the import translates, in numbers\n\n\
        The corpus is `gateway/import/tests/corpus`: configurations in the style of the documentation and of popular guides. The other \
        rows are the configurations in Debian's source packages of NGINX and HAProxy, which the test `import_sources` downloads and \
        reads. For HAProxy, only files that `haproxy -c` accepts are counted. These files test single, often rare features; a site \
        uses few of these features. An error is a configuration that NGINX or HAProxy accepts, but the import cannot read. A translation \
        is unusable if Sealane refuses it as a whole, for example because the file has no listener.\n\n\
        Each directive is counted with its worst result ([the report](import.md#the-report)). The column *translated* is the share of directives that are *the same* or *different*.\n\n\
        The counts are of the import at commit @. If later commits have changed results, [Import](import.md) has the current results.\n\n\
        | configurations | files | the same | different | not translated | undecided | errors | unusable | translated |\n\
        |---|---|---|---|---|---|---|---|---|\n"
        .replacen('@', &commit(), 1);
    for (name, coverage) in sources {
        out += &coverage.row(name);
    }
    for program in ["NGINX", "HAProxy"] {
        let mut all = Coverage::default();
        sources.iter().filter(|(name, _)| name.contains(program)).for_each(|(_, c)| all.add(c));
        out += &format!(
            "\n## {program}\n\n| directive | the same | different | not translated | undecided |\n|---|---|---|---|---|\n"
        );
        for (kind, counts) in &all.kinds {
            let numbers: Vec<String> =
                counts.iter().map(|n| if *n == 0 { String::new() } else { n.to_string() }).collect();
            out += &format!("| `{}` | {} |\n", kind.replace('|', "\\|"), numbers.join(" | "));
        }
    }
    out
}

#[test]
fn the_configurations_in_debians_sources_are_read() {
    let (nginx, haproxy) = (need!("nginx"), need!("haproxy"));
    let site = Site::new();
    let folder = site.path();
    let sources = match sources(folder) {
        Ok(sources) => sources,
        Err(why) => skip!("no source packages: {why}"),
    };
    let mut all =
        vec![("the corpus, NGINX", corpus("nginx", folder)), ("the corpus, HAProxy", corpus("haproxy", folder))];
    all.extend(nginx_coverage(&nginx, &sources, folder));
    all.extend(haproxy_coverage(&haproxy, &sources, folder));
    let page = page(&all);
    println!("{page}");
    for (name, coverage) in &all {
        assert!(coverage.errors.is_empty(), "{name}:\n{}", coverage.errors.join("\n"));
        assert!(coverage.read > 0, "{name}: none of {} configurations is accepted", coverage.refused);
    }
    let corpus = all.iter().take(2).map(|(_, c)| c.translated());
    assert!(corpus.into_iter().all(|percent| percent >= 90.0), "90 % of the corpus are translated");
    if std::env::var_os("SEALANE_UPDATE").is_some() {
        let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/reference/import-coverage.md");
        fs::write(file, page).expect("the page can be written");
    }
}
