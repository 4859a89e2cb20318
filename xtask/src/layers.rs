//! The layers of `ARCHITECTURE.md`, checked: a crate imports only from rows above its own, cores do no I/O, one crate
//! alone names rustls' unbuffered API, `unsafe` stays where it is allowed, the proxy stays a short composition of parts,
//! its QUIC transport knows no HTTP, and the default members of the workspace are crates of the gateway.

use crate::metadata::{Dependency, Package, Workspace};
use anyhow::Context;
use std::path::Path;

/// A row of the table: folders, or all folders in one where the name ends in `/`.
struct Row {
    name: &'static str,
    folders: &'static [&'static str],
}

const fn row(name: &'static str, folders: &'static [&'static str]) -> Row {
    Row { name, folders }
}

/// The product's rows from the top. Rows do not import themselves, so "shells do not import each other" follows.
const PRODUCT: &[Row] = &[
    row("cores", &["gateway/exchange", "gateway/http", "gateway/routing", "gateway/vpn/protocol"]),
    row("platform", &["gateway/sys", "gateway/blocking"]),
    row("engines", &["gateway/tls", "gateway/dial", "gateway/passwords"]),
    row("runtime", &["gateway/lane"]),
    row("shells", &["gateway/proxy", "gateway/vpn/data", "client/connect"]),
    row("shims", &["client/preload", "client/capi"]),
    row("configuration", &["gateway/config"]),
    row("import", &["gateway/import"]),
    row("the log, requests", &["gateway/log", "gateway/requests"]),
    row("the store", &["gateway/store"]),
    row("the VPN's control plane", &["gateway/vpn/control"]),
    row("integrations", &["gateway/integrations/"]),
    row("assembly", &["gateway/control"]),
    row("the binary", &["gateway/sealane"]),
    row("the translation for Kubernetes", &["kube/translate"]),
    row("the controller for Kubernetes", &["kube/controller"]),
];

/// The lab's rows. It measures the gateway from outside, so of the product it sees only what [`LAB_MAY`] lists.
const LAB: &[Row] = &[
    row("the network emulator and ports", &["lab/emulator", "lab/ports"]),
    row("the lab's reports and protocol clients", &["lab/report", "lab/wire"]),
    row("the lab", &["lab/load", "lab/probe", "lab/stacks", "lab/stacks/"]),
    row("the experiments' harness", &["lab/harness"]),
    row("experiments", &["lab/experiments/", "lab/compare"]),
    row("the lab's binary", &["lab/sealane-lab"]),
];

/// What any user of the published libraries could import: no loop, no gateway, no control.
const LAB_MAY: &[&str] = &[
    "gateway/exchange",
    "gateway/http",
    "gateway/routing",
    "gateway/vpn/protocol",
    "gateway/sys",
    "gateway/tls",
    "gateway/dial",
    "client/connect",
];

/// What stands around both, and may see all of it.
const AROUND: &[&str] = &["xtask", "fuzz", "tests/"];

/// Where `unsafe` may be: the platform crate, the library that takes a C function's place, the functions for programs in C, and
/// the lab's crates that are foreign calls by nature. All others inherit the workspace's `unsafe_code = "forbid"`, which no `allow` can lift.
const UNSAFE: &[&str] = &["gateway/sys", "client/preload", "client/capi", "lab/stacks/"];

/// Folders that are sans-IO: bytes, `now` and a random source come in from outside.
const SANS_IO: &[&str] =
    &["gateway/exchange", "gateway/http", "gateway/routing", "gateway/vpn/protocol", "gateway/dial", "kube/translate"];

/// What a sans-IO crate never names.
const IO: &[&str] =
    &["Instant::now", "SystemTime::now", "TcpStream", "TcpListener", "UdpSocket", "std::fs", "std::thread", "tokio::"];

/// rustls' unbuffered API changes with 0.24, so one crate alone names it.
const UNBUFFERED: &[&str] = &["rustls::unbuffered", "UnbufferedServerConnection", "UnbufferedClientConnection"];

/// Folders whose files never name some modules or crates, tests excepted, and why.
const SEPARATE: &[(&str, &[&str], &str)] = &[
    (
        "gateway/proxy/src/quic/",
        &[
            "crate::client",
            "crate::conn",
            "crate::exchange",
            "crate::h2",
            "crate::h3",
            "crate::service",
            "crate::upstream",
            "sealane_http",
        ],
        "the transport must not use HTTP, or the data that is kept with a connection",
    ),
    (
        "gateway/proxy/src/h3/",
        &["crate::client", "crate::h2", "crate::quic_driver", "crate::service", "crate::upstream::h"],
        "code that both sides of HTTP/3 share must not use either side",
    ),
    (
        "gateway/proxy/src/client/h3",
        &["crate::client::h1", "crate::client::h2", "crate::h2", "crate::upstream"],
        "the adapter of an HTTP version must not use the adapter of another version",
    ),
    (
        "gateway/proxy/src/upstream/h3",
        &["crate::client", "crate::h2", "crate::upstream::h1", "crate::upstream::h2"],
        "the adapter of an HTTP version must not use the adapter of another version",
    ),
    ("gateway/proxy/src/upstream/", &["crate::client"], "code for servers must not use code for clients"),
    ("gateway/proxy/src/client/", &["crate::upstream"], "code for clients must not use code for servers"),
    (
        "gateway/proxy/src/exchange/waste.rs",
        &["crate::client", "crate::h2", "crate::h3", "crate::upstream"],
        "only `exchange/streams.rs` may use the adapters",
    ),
];

/// The type that composes the parts of the proxy, and its crate's folder.
const COMPOSITION: (&str, &str) = ("gateway/proxy", "Proxy");
/// The most `impl` blocks that it may have, those of traits included.
const IMPLS: usize = 8;
/// The most fields.
const FIELDS: usize = 10;

/// What prints to the standard error past the log (`gateway/log`), which only the command line's own output may.
const PRINTS: &[&str] = &["eprintln!", "eprint!", "dbg!"];

/// One line for each crossing.
pub fn check(workspace: &Workspace) -> anyhow::Result<Vec<String>> {
    let mut found = Vec::new();
    for package in workspace.members() {
        let folder = workspace.folder(package);
        if place(&folder).is_none() {
            found.push(format!(
                "{folder} has no row in the table of layers: add it to xtask/src/layers.rs and ARCHITECTURE.md"
            ));
            continue;
        }
        for dependency in package.dependencies.iter().filter(|d| d.path.is_some()) {
            found.extend(judge_import(&folder, &imported(workspace, dependency), dependency.kind.as_deref()));
        }
        if !within(&folder, UNSAFE) && !inherits_lints(package)? {
            found.push(format!("{folder}/Cargo.toml lacks `[lints] workspace = true`, which forbids `unsafe`"));
        }
        let mut composition = Composition::default();
        for file in sources(package)? {
            let text = std::fs::read_to_string(&file).with_context(|| file.display().to_string())?;
            let name = workspace.relative(&file);
            found.extend(
                judge_source(&folder, &name, &text).into_iter().map(|(line, what)| format!("{name}:{line}: {what}")),
            );
            found.extend(examples(&text).map(|line| {
                format!("{name}:{line}: an example in a doc comment: nothing runs it; make it a test or a program in `examples/`")
            }));
            composition.look(&text);
        }
        if folder == COMPOSITION.0 {
            found.extend(composition.judge().into_iter().map(|what| format!("{folder}: {what}")));
        }
    }
    found.extend(judge_root(workspace.root())?);
    Ok(found)
}

/// Where a folder stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    Product(usize),
    Lab(usize),
    Around,
}

fn place(folder: &str) -> Option<Place> {
    // From below, since the lab's binary lies in the lab's folder.
    let find = |rows: &[Row]| rows.iter().rposition(|row| within(folder, row.folders));
    find(PRODUCT)
        .map(Place::Product)
        .or_else(|| find(LAB).map(Place::Lab))
        .or_else(|| within(folder, AROUND).then_some(Place::Around))
}

fn row_name(place: Place) -> &'static str {
    match place {
        Place::Product(row) => PRODUCT[row].name,
        Place::Lab(row) => LAB[row].name,
        Place::Around => "around it",
    }
}

/// Whether a folder is one of those listed; an entry with a slash at its end stands for what lies in it.
fn within(folder: &str, list: &[&str]) -> bool {
    list.iter().any(|entry| if entry.ends_with('/') { folder.starts_with(entry) } else { folder == *entry })
}

fn imported(workspace: &Workspace, dependency: &Dependency) -> String {
    dependency.path.as_deref().map_or_else(|| dependency.name.clone(), |path| workspace.relative(path))
}

/// What is wrong with `folder` importing `other`, if anything.
fn judge_import(folder: &str, other: &str, kind: Option<&str>) -> Option<String> {
    let (Some(from), Some(to)) = (place(folder), place(other)) else {
        return Some(format!("{folder} imports {other}, which has no row in the table of layers"));
    };
    let test = kind == Some("dev");
    let allowed = match (from, to) {
        (Place::Around, _) => true,
        // Cores do no I/O, so the tests of one may drive another.
        (Place::Product(0), Place::Product(0)) => test,
        (Place::Product(from), Place::Product(to)) => to < from,
        (Place::Lab(from), Place::Lab(to)) => to < from,
        (Place::Lab(_), Place::Product(_)) => within(other, LAB_MAY),
        // Nothing of the product imports the lab; its tests may.
        (Place::Product(_), Place::Lab(_)) => test,
        (_, Place::Around) => test,
    };
    let how = if test { "its tests import" } else { "it imports" };
    (!allowed).then(|| {
        format!(
            "{folder} ({}): {how} {other} ({}); imports are allowed only from the rows above its own row",
            row_name(from),
            row_name(to)
        )
    })
}

/// Lines of a source file that name what their crate may not. Tests, kept last in a file, are free to.
fn judge_source(folder: &str, file: &str, text: &str) -> Vec<(usize, String)> {
    let mut found = Vec::new();
    for (number, line) in text.lines().enumerate() {
        if line.trim() == "#[cfg(test)]" {
            break;
        }
        let code = line.split("//").next().unwrap_or(line);
        let mut look = |names: &[&str], why: &str| {
            for name in names.iter().filter(|name| code.contains(**name)) {
                found.push((number + 1, format!("`{name}`: {why}")));
            }
        };
        if within(folder, SANS_IO) {
            look(IO, "a sans-IO crate must not use this: it gets bytes and time from its caller");
        }
        if matches!(place(folder), Some(Place::Product(_))) && folder != "gateway/tls" {
            look(UNBUFFERED, "only gateway/tls may use rustls' unbuffered API");
        }
        if matches!(place(folder), Some(Place::Product(_))) && !["gateway/sealane", "kube/controller"].contains(&folder)
        {
            look(PRINTS, "only the programs may print; all other code writes to the log");
        }
        for (_, names, why) in SEPARATE.iter().filter(|(folder, ..)| file.starts_with(folder)) {
            look(names, why);
        }
    }
    found
}

/// The lines at which a doc comment has a block of code that rustdoc takes for Rust. To run those, rustdoc would need seconds for each
/// package, and dependencies that are compiled again with other features.
fn examples(text: &str) -> impl Iterator<Item = usize> {
    const RUST: [&str; 5] = ["", "rust", "should_panic", "no_run", "compile_fail"];
    let mut within = false;
    text.lines().enumerate().filter_map(move |(number, line)| {
        let line = line.trim_start();
        let Some(text) = line.strip_prefix("///").or_else(|| line.strip_prefix("//!")) else {
            within = false;
            return None;
        };
        let info = text.trim_start().strip_prefix("```")?.trim();
        let begins = !within;
        within = begins || !info.is_empty();
        let is_rust = info.split(',').map(str::trim).all(|word| RUST.contains(&word) || word.starts_with("edition"));
        (begins && is_rust).then_some(number + 1)
    })
}

/// What the sources of a crate say of the type in [`COMPOSITION`].
#[derive(Debug, Default)]
struct Composition {
    impls: usize,
    fields: Option<usize>,
}

impl Composition {
    /// Counts `impl` blocks and fields, as rustfmt writes them.
    fn look(&mut self, text: &str) {
        let name = COMPOSITION.1;
        let is_name =
            |rest: &str| rest.strip_prefix(name).is_some_and(|r| !r.starts_with(|c: char| c.is_alphanumeric()));
        let mut lines = text.lines();
        while let Some(line) = lines.next() {
            if line.starts_with("impl") {
                let target = line.split_once(" for ").or_else(|| line.split_once(' ')).map_or("", |(_, target)| target);
                self.impls += usize::from(is_name(target));
            } else if line.split_once("struct ").is_some_and(|(before, rest)| !before.contains("//") && is_name(rest)) {
                let fields = lines.by_ref().take_while(|line| *line != "}").map(str::trim);
                self.fields = Some(fields.filter(|line| !line.starts_with(['/', '#']) && line.contains(": ")).count());
            }
        }
    }

    fn judge(&self) -> Vec<String> {
        let (name, advice) = (COMPOSITION.1, "add new fields and functions to the part that owns the data");
        match self.fields {
            None => vec![format!("there is no struct `{name}`: adapt xtask/src/layers.rs")],
            Some(fields) => {
                let mut found = Vec::new();
                if self.impls > IMPLS {
                    found.push(format!("`{name}` has {} impl blocks, more than {IMPLS}: {advice}", self.impls));
                }
                if fields > FIELDS {
                    found.push(format!("`{name}` has {fields} fields, more than {FIELDS}: {advice}"));
                }
                found
            }
        }
    }
}

/// Rust files under `src`, without those that hold only tests.
fn sources(package: &Package) -> anyhow::Result<Vec<std::path::PathBuf>> {
    let mut files = Vec::new();
    let mut folders = vec![package.manifest_path.with_file_name("src")];
    while let Some(folder) = folders.pop() {
        if !folder.is_dir() {
            continue;
        }
        for entry in std::fs::read_dir(&folder).with_context(|| folder.display().to_string())? {
            let path = entry?.path();
            let stem = path.file_stem().map(|s| s.to_string_lossy().into_owned()).unwrap_or_default();
            match (path.is_dir(), path.extension().is_some_and(|e| e == "rs")) {
                _ if stem == "tests" || stem.ends_with("_tests") => {}
                (true, _) => folders.push(path),
                (false, true) => files.push(path),
                (false, false) => {}
            }
        }
    }
    files.sort();
    Ok(files)
}

fn manifest(path: &Path) -> anyhow::Result<toml::Table> {
    let text = std::fs::read_to_string(path).with_context(|| path.display().to_string())?;
    text.parse().with_context(|| path.display().to_string())
}

fn inherits_lints(package: &Package) -> anyhow::Result<bool> {
    let manifest = manifest(&package.manifest_path)?;
    let inherits = |lints: &toml::Value| lints.get("workspace").and_then(toml::Value::as_bool);
    Ok(manifest.get("lints").and_then(inherits).unwrap_or(false))
}

fn judge_root(root: &Path) -> anyhow::Result<Vec<String>> {
    let manifest = manifest(&root.join("Cargo.toml"))?;
    let mut value = manifest.get("workspace");
    for key in ["lints", "rust", "unsafe_code"] {
        value = value.and_then(|table| table.get(key));
    }
    let mut found = Vec::new();
    if value.and_then(toml::Value::as_str) != Some("forbid") {
        found.push("Cargo.toml: `unsafe_code` is no longer \"forbid\" for the workspace".to_owned());
    }
    found.extend(judge_default_members(&manifest));
    Ok(found)
}

/// What is wrong with the packages that `cargo build` and `cargo run` build at the root, if anything. The first build of a user must
/// not take the time for the lab's libraries. The dependencies of product crates need no check here: [`judge_import`] keeps the lab out.
fn judge_default_members(manifest: &toml::Table) -> Option<String> {
    let members = manifest.get("workspace").and_then(|workspace| workspace.get("default-members"));
    let Some(members) = members.and_then(toml::Value::as_array) else {
        return Some("Cargo.toml: `default-members` is missing, so that `cargo build` also builds the lab".to_owned());
    };
    let is_product = |folder: &str| matches!(place(folder), Some(Place::Product(_)));
    let others: Vec<&str> =
        members.iter().filter_map(toml::Value::as_str).filter(|folder| !is_product(folder)).collect();
    (!others.is_empty()).then(|| {
        format!("Cargo.toml: `default-members` must list only crates of the gateway, not {}", others.join(", "))
    })
}

#[cfg(test)]
mod tests {
    use super::{judge_source as judge_file, *};

    #[test]
    fn examples_in_doc_comments_are_found_and_other_blocks_are_not() {
        for example in ["/// ```\n/// f();\n/// ```", "    //! ```rust\n", "/// ```no_run", "/// ```rust,should_panic"]
        {
            assert_eq!(examples(example).collect::<Vec<_>>(), [1], "{example}");
        }
        for other in [
            "/// ```text\n/// a -> b\n/// ```\nfn f() {}",
            "/// ```toml\n/// a = 1\n/// ```\n/// then\n/// ```json\n/// {}\n/// ```",
            "// ```\n",
            "/// ```ignore\n/// f()\n/// ```",
            "let text = \"```\";",
        ] {
            assert_eq!(examples(other).count(), 0, "{other}");
        }
    }

    /// What is wrong with a crate's main file.
    fn judge_source(folder: &str, text: &str) -> Vec<(usize, String)> {
        judge_file(folder, &format!("{folder}/src/lib.rs"), text)
    }

    fn refused(from: &str, to: &str, kind: Option<&str>) -> bool {
        judge_import(from, to, kind).is_some()
    }

    #[test]
    fn imports_go_up_only() {
        assert!(!refused("gateway/proxy", "gateway/lane", None));
        assert!(!refused("gateway/sealane", "gateway/control", None));
        assert!(refused("gateway/lane", "gateway/proxy", None));
        assert!(refused("gateway/http", "gateway/sys", None));
        assert!(refused("gateway/http", "gateway/routing", None));
        assert!(!refused("gateway/exchange", "gateway/http", Some("dev")));
        assert!(refused("gateway/proxy", "gateway/vpn/data", None));
        assert!(refused("gateway/proxy", "gateway/vpn/data", Some("dev")));
    }

    #[test]
    fn the_lab_stays_outside_and_only_tests_import_it() {
        assert!(refused("gateway/proxy", "lab/load", None));
        assert!(refused("gateway/proxy", "lab/load", Some("build")));
        assert!(!refused("gateway/proxy", "lab/load", Some("dev")));
        assert!(!refused("lab/sealane-lab", "lab/load", None));
        assert!(refused("lab/load", "lab/sealane-lab", None));
        assert!(refused("lab/load", "lab/probe", None));
        assert!(refused("lab/load", "gateway/proxy", None));
        assert!(!refused("lab/load", "gateway/sys", None));
        assert!(!refused("tests/interop", "gateway/sealane", Some("dev")));
    }

    #[test]
    fn default_members_are_crates_of_the_gateway() {
        let judge = |members: &str| judge_default_members(&format!("[workspace]\n{members}\n").parse().unwrap());
        assert_eq!(judge("default-members = [\"gateway/sealane\"]"), None);
        for other in ["lab/sealane-lab", "lab/load", "tests/interop", "xtask", "elsewhere"] {
            let found = judge(&format!("default-members = [\"gateway/sealane\", \"{other}\"]"));
            assert!(found.is_some_and(|found| found.ends_with(other)), "{other}");
        }
        assert!(judge("members = [\"gateway/sealane\"]").is_some());
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
        assert_eq!(judge_root(root).unwrap(), Vec::<String>::new());
    }

    #[test]
    fn a_crate_without_a_row_is_found() {
        assert_eq!(place("elsewhere"), None);
        assert!(refused("gateway/proxy", "elsewhere", None));
        assert_eq!(place("gateway/http"), Some(Place::Product(0)));
        assert_eq!(place("lab/sealane-lab"), Some(Place::Lab(5)));
        assert_eq!(place("tests/interop"), Some(Place::Around));
    }

    #[test]
    fn a_core_names_no_clock_and_no_socket() {
        let text = "// Instant::now in a comment\nlet now = Instant::now();\n#[cfg(test)]\nuse std::fs;\n";
        let lines: Vec<usize> = judge_source("gateway/http", text).into_iter().map(|(line, _)| line).collect();
        assert_eq!(lines, [2]);
        assert!(judge_source("gateway/lane", text).is_empty());
    }

    #[test]
    fn only_the_binary_prints() {
        let text = "eprintln!(\"sealane: {e}\");\n#[cfg(test)]\neprintln!(\"skipped\");";
        assert_eq!(judge_source("gateway/control", text).len(), 1);
        assert_eq!(judge_source("gateway/proxy", text).len(), 1);
        assert!(judge_source("gateway/sealane", text).is_empty());
        assert!(judge_source("lab/load", text).is_empty());
    }

    #[test]
    fn one_crate_names_the_unbuffered_api() {
        let text = "use rustls::unbuffered::ConnectionState;";
        assert_eq!(judge_source("gateway/proxy", text).len(), 1);
        assert!(judge_source("gateway/tls", text).is_empty());
    }

    #[test]
    fn the_transport_of_quic_knows_no_http() {
        let judge = |file: &str, text: &str| judge_file("gateway/proxy", file, text).len();
        let text = "use crate::client::h3::h3_read;\nuse crate::settings::LaneSettings;\nuse sealane_http::h3::Code;\n";
        assert_eq!(judge("gateway/proxy/src/quic/receive.rs", text), 2);
        assert_eq!(judge("gateway/proxy/src/h3/stream.rs", text), 1, "HTTP/3 may name HTTP, but no side of it");
        assert_eq!(judge("gateway/proxy/src/quic_driver.rs", text), 0, "the composition names both");
        let tests = format!("#[cfg(test)]\nmod tests {{\n{text}}}\n");
        assert_eq!(judge("gateway/proxy/src/quic/receive.rs", &tests), 0);
    }

    #[test]
    fn the_proxy_stays_a_composition() {
        let fields = |n: usize| {
            let fields: String =
                (0..n).map(|i| format!("    /// What it is: this.\n    pub(crate) f{i}: T,\n")).collect();
            format!("/// A struct Proxy.\npub struct Proxy {{\n{fields}}}\n")
        };
        let judge = |text: &str| {
            let mut composition = Composition::default();
            composition.look(text);
            composition.judge().len()
        };
        assert_eq!(judge(&fields(FIELDS)), 0);
        assert_eq!(judge(&fields(FIELDS + 1)), 1);
        assert_eq!(judge("struct ProxyHeader {\n    a: T,\n}\n"), 1, "there is none");
        let impls = |n: usize| fields(1) + &"impl Proxy {\n".repeat(n - 1) + "impl Debug for Proxy {\n";
        assert_eq!(judge(&(impls(IMPLS) + "impl ProxyHeader {\nimpl From<Proxy> for Other {\n")), 0);
        assert_eq!(judge(&impls(IMPLS + 1)), 1);
    }
}
