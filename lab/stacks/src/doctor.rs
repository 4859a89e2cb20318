//! One library or program under the lamp: which TLS library it really uses, how that was built, how long it is
//! supported, how many locks a handshake takes, and what light locks would regain.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde::Serialize;

use crate::builder::{Builder, Built};
use crate::catalogue::{self, Stack, Support};
use crate::elf::Images;
use crate::locks::{self, PerHandshake};
use crate::measure::{Figure, Measured};
use crate::paths::{self, Taken};
use crate::recipe;
use crate::study::{Bench, Machine};
use crate::wire::{self, Case, Description, Line};

/// What was asked about.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Found {
    /// A shared library that one of the workers can open, by path.
    Library(PathBuf),
    /// Another shared TLS library, for which there is no worker.
    Other(PathBuf),
    /// None is loaded, but these words in the program itself give one away.
    Inside(Vec<String>),
    /// Nothing.
    Nothing,
}

/// Names of shared TLS libraries; where a program loads several, the first of these is looked at.
const LIBRARIES: &[&str] =
    &["libssl.so", "libwolfssl.so", "libgnutls.so", "libmbedtls.so", "libs2n.so", "libnss3.so", "libcrypto.so"];

/// What a program, a running process (by number) or a library uses.
pub fn find(what: &str) -> Result<Found, String> {
    if let Ok(pid) = what.parse::<u32>() {
        let maps = std::fs::read_to_string(format!("/proc/{pid}/maps")).map_err(|e| format!("process {pid}: {e}"))?;
        let files =
            maps.lines().filter_map(|line| line.split_once('/')).map(|(_, path)| PathBuf::from(format!("/{path}")));
        let program = std::fs::read_link(format!("/proc/{pid}/exe")).map_err(|e| format!("process {pid}: {e}"))?;
        return Ok(choose(files.collect(), &program));
    }
    let path = if what.contains('/') { Some(PathBuf::from(what)) } else { recipe::find(what) };
    let path = path.filter(|p| p.exists()).ok_or_else(|| format!("{what}: no such program or library"))?;
    let path = path.canonicalize().map_err(|e| format!("{what}: {e}"))?;
    let name = path.file_name().map(|n| n.to_string_lossy().into_owned()).unwrap_or_default();
    if path.is_dir() || name.contains(".so") {
        let known = path.is_dir() || Stack::worker_for(&path).is_some();
        return Ok(if known { Found::Library(path) } else { Found::Other(path) });
    }
    Ok(choose(needed(&path), &path))
}

/// The library of a stack that was built here.
pub fn of_stack(builder: &Builder, stack: &Stack) -> Result<Found, String> {
    let library = match &stack.system {
        // Its worker is made when it is wanted.
        Some(system) => system.find(),
        None => builder.ready(stack).map(|ready| ready.library.unwrap_or(ready.worker)),
    };
    let library = library.ok_or_else(|| format!("{} is not built: sealane-lab stacks build {0}", stack.name))?;
    if stack.source.is_none() && stack.system.is_none() {
        return Err(format!("{} is linked into its worker: sealane-lab stacks run {0}", stack.name));
    }
    // Of a folder nobody could tell that it is not one of OpenSSL's kind.
    let file = library.join("libwolfssl.so");
    Ok(Found::Library(if file.is_file() { file } else { library }))
}

/// The libraries that the loader would load, all of them; asked of the loader itself.
fn needed(program: &Path) -> Vec<PathBuf> {
    let output = Command::new("ldd").arg(program).output();
    let text = output.map(|o| String::from_utf8_lossy(&o.stdout).into_owned()).unwrap_or_default();
    text.lines()
        .filter_map(|line| line.split_whitespace().find(|word| word.starts_with('/')))
        .map(PathBuf::from)
        .collect()
}

fn choose(files: Vec<PathBuf>, program: &Path) -> Found {
    let named = |prefix: &str| {
        files.iter().find(|f| f.file_name().is_some_and(|n| n.to_string_lossy().starts_with(prefix))).cloned()
    };
    if let Some(library) = LIBRARIES.iter().find_map(|name| named(name)) {
        return if Stack::worker_for(&library).is_some() { Found::Library(library) } else { Found::Other(library) };
    }
    let inside = marks(program);
    if inside.is_empty() { Found::Nothing } else { Found::Inside(inside) }
}

/// Words of TLS libraries in a file: a library that is linked in leaves its version behind.
fn marks(program: &Path) -> Vec<String> {
    let Ok(data) = std::fs::read(program) else { return Vec::new() };
    let mut found = BTreeSet::new();
    // Version texts and paths of sources, as compilers leave them.
    for (mark, about) in [
        ("OpenSSL 1.", "OpenSSL"),
        ("OpenSSL 3.", "OpenSSL"),
        ("OpenSSL 4.", "OpenSSL"),
        ("AWS-LC", "AWS-LC"),
        ("BoringSSL", "BoringSSL"),
        ("/rustls-0.", "rustls"),
        ("/ring-0.", "ring"),
        ("wolfSSL", "wolfSSL"),
        ("GnuTLS", "GnuTLS"),
        ("crypto/tls.", "Go's crypto/tls"),
    ] {
        if let Some(at) = position(&data, mark.as_bytes()) {
            let text: String = data[at..]
                .iter()
                .take(32)
                .take_while(|b| b.is_ascii_graphic() || **b == b' ')
                .map(|&b| char::from(b))
                .collect();
            found.insert(format!("{about} ({})", text.trim_start_matches('/')));
        }
    }
    found.into_iter().collect()
}

fn position(data: &[u8], mark: &[u8]) -> Option<usize> {
    data.windows(mark.len()).position(|window| window == mark)
}

/// Everything about a library.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// The file.
    pub library: PathBuf,
    /// What it says about itself.
    pub description: Description,
    /// The series in the catalogue that it belongs to.
    pub series: Option<String>,
    /// Support of that series today, and its last day.
    pub support: Option<(Support, Option<String>)>,
    /// What stands out in how it was built.
    pub build: Vec<String>,
    /// What of the CPU matters to TLS.
    pub cpu: Vec<String>,
    /// Of these, what OpenSSL says that it found.
    pub found: Option<Vec<&'static str>>,
    /// What it was seen to run.
    pub taken: Vec<Taken>,
    /// What it does without although the CPU has it.
    pub slow: Vec<String>,
    /// Why that was not looked at.
    pub taken_skipped: Option<String>,
    /// Lock calls with a context that threads share.
    pub locks: Vec<PerHandshake>,
    /// Handshakes per second as it is and with light locks, resumed, on all CPUs.
    pub light: Option<(Figure, Figure)>,
    /// Why there is no comparison.
    pub light_skipped: Option<String>,
}

/// Looks at a library. Each kind of work is sampled for so many seconds, and each turn of the comparison with light locks
/// takes a quarter of that; counts do not depend on it.
pub fn examine(bench: &Bench, library: &Path, seconds: f64, say: &mut dyn FnMut(&str)) -> Result<Report, String> {
    let stack = Stack::installed(library);
    let worker = bench.builder.worker(&stack.worker, say).map_err(|e| e.to_string())?;
    let built = Built { stack, worker, library: Some(library.to_owned()) };
    let description = bench.describe(&built)?;
    let series = series(&description.version);
    let today = catalogue::today();
    let support = series.as_ref().map(|s| (s.support(&today), s.support_ends.clone()));
    let mut images = Images::default();
    let mut counts = Vec::new();
    let threads = Machine::this().cpus.max(2);
    // Not every library is new enough for TLS 1.3.
    let newest = bench.features(&built)?.iter().any(|f| f.name == "tls1.3" && f.state == "yes");
    let base = Case { tls: if newest { "1.3" } else { "1.2" }, threads, ..Case::BASE };
    for resumed in [false, true] {
        say(&format!("counting locks, {} handshakes", if resumed { "resumed" } else { "full" }));
        counts.push(bench.locks(&built, &Case { resumed, ..base.clone() }, &mut images)?);
    }
    say("sampling which instructions the library runs");
    let cpu = cpu();
    let (taken, taken_skipped) = match bench.paths(&built, base.tls, seconds) {
        Ok(taken) => (taken, None),
        Err(why) => (Vec::new(), Some(why)),
    };
    say("comparing the unchanged library with the same library under light locks");
    let (light, light_skipped) = match compare_light(bench, &built, &base, seconds / 4.0) {
        Ok(figures) => (Some(figures), None),
        Err(why) => (None, Some(why)),
    };
    Ok(Report {
        library: library.to_owned(),
        build: build(&description, &counts),
        slow: paths::slow(&taken, &cpu),
        found: description.cpu.as_deref().and_then(paths::capabilities),
        description,
        series: series.map(|s| s.name),
        support,
        cpu,
        taken,
        taken_skipped,
        locks: counts,
        light,
        light_skipped,
    })
}

/// Support today of the series that a version belongs to, in words; nothing where the catalogue does not know it.
pub fn support(version: &str) -> Option<String> {
    let series = series(version)?;
    let support = series.support(&catalogue::today()).until(series.support_ends.as_deref());
    Some(format!("{}: {support}", series.name))
}

/// The series of the catalogue that a version belongs to.
fn series(version: &str) -> Option<Stack> {
    let all = catalogue::catalogue().stacks;
    let number = version.strip_prefix("OpenSSL ").and_then(|rest| rest.split([' ', '-', '+']).next());
    let name = match number {
        Some(number) if number.starts_with("1.1.1") => "openssl-1.1.1".to_owned(),
        Some(number) => format!("openssl-{}", number.split('.').take(2).collect::<Vec<_>>().join(".")),
        None if version.contains("AWS-LC") => "aws-lc".into(),
        None if version.contains("BoringSSL") => "boringssl".into(),
        None if version.contains("wolfSSL") => "wolfssl".into(),
        None if version.starts_with("LibreSSL 3.1.") => "libressl-3.1".into(),
        None if version.contains("GnuTLS") => "gnutls".into(),
        None if version.to_lowercase().contains("mbed tls") => "mbedtls".into(),
        None => return None,
    };
    all.into_iter().find(|s| s.name == name)
}

/// What stands out in how a library was built.
fn build(description: &Description, counts: &[PerHandshake]) -> Vec<String> {
    let mut said = Vec::new();
    let flags = description.compiled.as_deref().unwrap_or_default();
    if flags.contains("-O0") || (flags.contains("compiler") && !flags.contains("-O") && !flags.contains("n/a")) {
        said.push("compiled without optimisation".into());
    }
    if flags.contains("OPENSSL_NO_ASM") || flags.contains("no-asm") {
        said.push("compiled without assembly: every cipher takes its slow path".into());
    }
    // A correct build of AWS-LC takes locks to read only, some forty times; references that are counted under locks
    // write.
    let writes = |c: &PerHandshake| c.kinds.iter().filter(|(kind, _)| **kind == "write").map(|(_, n)| *n).sum::<f64>();
    let most = counts.iter().map(writes).fold(0.0, f64::max);
    if description.version.contains("AWS-LC") && most >= 4.0 {
        said.push(format!(
            "{most:.0} write locks per handshake: the library counts references under locks, as a build without C11 atomics does"
        ));
    }
    said
}

/// The CPU's abilities that the fast paths of TLS libraries take.
fn cpu() -> Vec<String> {
    let info = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let Some(flags) = info.lines().find_map(|l| l.strip_prefix("flags").or_else(|| l.strip_prefix("Features"))) else {
        return Vec::new();
    };
    let wanted =
        ["aes", "pclmulqdq", "avx2", "bmi2", "adx", "sha_ni", "vaes", "vpclmulqdq", "avx512ifma", "pmull", "sha2"];
    let has: BTreeSet<&str> = flags.split_whitespace().collect();
    wanted.iter().filter(|w| has.contains(**w)).map(|w| (*w).to_owned()).collect()
}

/// Resumed handshakes on all CPUs, as it is and with light locks in turn; both without counting.
fn compare_light(bench: &Bench, built: &Built, base: &Case, seconds: f64) -> Result<(Figure, Figure), String> {
    let counter = bench.builder.lock_counter().map_err(|e| e.to_string())?;
    let case = Case { resumed: true, ..base.clone() };
    let mut arguments = case.arguments();
    arguments.extend(["--unsplit".to_owned(), "--seconds".to_owned(), seconds.to_string()]);
    let (mut plain, mut light) = (Vec::new(), Vec::new());
    for round in 0..5 {
        for turn in 0..2 {
            let with = (round + turn) % 2 == 1;
            let mut command = wire::command(built, &bench.peer, &bench.certs, &arguments);
            // The counter is there both times, so that only the locks differ.
            locks::preload(&mut command, &counter, Path::new(""), true, with);
            command.env_remove("SEALANE_LOCKS_DIR");
            let lines = wire::run(command)?;
            let rate = lines.into_iter().find_map(|line| match line {
                Line::Handshakes(h) => Some(Measured::Handshakes(h).rate()),
                _ => None,
            });
            if with { &mut light } else { &mut plain }.push(rate.ok_or("the worker did no handshakes")?);
        }
    }
    Figure::of(plain).zip(Figure::of(light)).ok_or_else(|| "no rounds".into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_belong_to_their_series() {
        let of = |version: &str| series(version).map(|s| s.name);
        assert_eq!(of("wolfSSL 5.9.4").as_deref(), Some("wolfssl"));
        assert_eq!(of("LibreSSL 3.1.0").as_deref(), Some("libressl-3.1"));
        assert_eq!(of("LibreSSL 4.0.0"), None);
        assert_eq!(of("GnuTLS 3.7.9").as_deref(), Some("gnutls"));
        assert_eq!(of("Mbed TLS 2.28.3").as_deref(), Some("mbedtls"));
        assert_eq!(of("OpenSSL 1.1.1w  11 Sep 2023").as_deref(), Some("openssl-1.1.1"));
        assert_eq!(of("OpenSSL 3.0.17 1 Jul 2025").as_deref(), Some("openssl-3.0"));
        assert_eq!(of("AWS-LC 5.12.0").as_deref(), Some("aws-lc"));
        assert_eq!(of("LibreSSL 3.9.1"), None);
        assert_eq!(support("OpenSSL 1.1.1w  11 Sep 2023").as_deref(), Some("openssl-1.1.1: ended on 2023-09-11"));
        assert_eq!(support("nothing known 1.0"), None);
    }

    #[test]
    fn what_a_program_uses_is_found() {
        let files = |list: &[&str]| list.iter().map(PathBuf::from).collect::<Vec<_>>();
        let none = Path::new("/nowhere");
        assert_eq!(
            choose(files(&["/lib/libc.so.6", "/opt/libcrypto.so.3", "/opt/libssl.so.3"]), none),
            Found::Library("/opt/libssl.so.3".into())
        );
        assert_eq!(choose(files(&["/lib/libgnutls.so.30"]), none), Found::Library("/lib/libgnutls.so.30".into()));
        assert_eq!(choose(files(&["/lib/libnss3.so"]), none), Found::Other("/lib/libnss3.so".into()));
        assert_eq!(choose(Vec::new(), none), Found::Nothing);
        let folder = tempfile::tempdir().expect("a folder");
        let program = folder.path().join("program");
        std::fs::write(&program, b"\0\0OpenSSL 3.0.8 7 Feb 2023\0").expect("written");
        let Found::Inside(marks) = choose(Vec::new(), &program) else { panic!("it is inside") };
        assert_eq!(marks, ["OpenSSL (OpenSSL 3.0.8 7 Feb 2023)"]);
        assert!(find("no-such-program-here").is_err());
    }

    #[test]
    fn a_bad_build_stands_out() {
        let description = |version: &str, compiled: &str| Description {
            version: version.into(),
            compiled: Some(compiled.into()),
            ..Description::default()
        };
        assert!(build(&description("OpenSSL 3.0.8", "compiler: gcc -O3"), &[]).is_empty());
        assert_eq!(build(&description("OpenSSL 3.0.8", "compiler: gcc -O0 -DOPENSSL_NO_ASM"), &[]).len(), 2);
        // AWS-LC as it should be, and as C99: it does not say how it was compiled.
        let counted = |write: f64| PerHandshake {
            case: String::new(),
            side: "server",
            threads: 2,
            handshakes: 1,
            calls: 44.0 + write,
            handshake_calls: 44.0,
            kinds: [("read", 44.0), ("write", write)].into(),
            hottest: 1.0,
            contended: 0.0,
            waited_us: 0.0,
            places: Vec::new(),
        };
        let aws = description("AWS-LC 5.12.0", "compiler: n/a");
        assert!(build(&aws, &[counted(0.0)]).is_empty());
        assert_eq!(build(&aws, &[counted(0.0), counted(26.0)]).len(), 1);
    }
}
