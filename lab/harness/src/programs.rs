//! The programs under test: where they are and what they say of themselves.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::bail;

use crate::options::Options;
use crate::spec::Spec;

/// A program under test.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Program {
    /// The name in reports.
    pub name: String,
    /// Which kind it is, by the experiment's file.
    pub kind: String,
    /// Where it is.
    pub path: PathBuf,
    /// Version, compiler, TLS library: what it says.
    pub version: Vec<String>,
}

/// What was found, and a sentence for each that was not.
pub type Found = (Vec<Program>, Vec<String>);

/// The kind of a program that `--subject` names: that of the experiment's own subject of this name; else `haproxy` for a
/// name such as `haproxy-wolfssl`; else `sealane` for a file such as `/tmp/sealane-old/sealane`.
pub fn kind<'a>(spec: &'a Spec, name: &str, path: &Path) -> Option<&'a str> {
    let kinds = || spec.subjects.iter().map(|s| s.kind.as_str());
    let file = path.file_name().unwrap_or_default().to_string_lossy();
    let own = spec.subjects.iter().find(|s| s.name == name).map(|s| s.kind.as_str());
    let prefixed = |kind: &&str| name.strip_prefix(*kind).is_some_and(|rest| rest.starts_with('-'));
    own.or_else(|| kinds().find(prefixed)).or_else(|| kinds().find(|kind| file.starts_with(*kind)))
}

/// Finds the experiment's subjects, and those that `--subject` adds ([`kind`]), less those that `--without` names. An
/// unknown name is an error, and so is a path where no program is.
pub fn find(spec: &Spec, options: &Options) -> anyhow::Result<Found> {
    let (mut found, mut missing) = (Vec::new(), Vec::new());
    for (name, path) in &options.subjects {
        if kind(spec, name, path).is_none() {
            let kinds: Vec<&str> = spec.subjects.iter().map(|s| s.kind.as_str()).collect();
            bail!(
                "--subject {name}: the experiment \"{}\" has no subject of this kind; name one of {}, or KIND-NAME",
                spec.name,
                kinds.join(", ")
            );
        }
        if !path.is_file() {
            bail!("--subject {name}: there is no program {}", path.display());
        }
    }
    for name in &options.without {
        if !spec.subjects.iter().any(|s| s.name == *name) {
            let names: Vec<&str> = spec.subjects.iter().map(|s| s.name.as_str()).collect();
            bail!(
                "--without {name}: the experiment \"{}\" has no such subject; its subjects are {}",
                spec.name,
                names.join(", ")
            );
        }
    }
    for subject in spec.subjects.iter().filter(|s| !options.without.contains(&s.name)) {
        let path = options.subject(&subject.name).cloned().or_else(|| look_up(&subject.program));
        match path {
            Some(path) => found.push(program(&subject.name, &subject.kind, path)),
            None if subject.optional => {
                missing.push(format!(
                    "{}: no program {:?} in PATH, beside this program or in sbin; name it with --subject {}=PATH",
                    subject.name, subject.program, subject.name
                ));
            }
            None => bail!(
                "{} was not found: there is no program {:?} in PATH, beside this program or in sbin; name it with --subject {}=PATH",
                subject.name,
                subject.program,
                subject.name
            ),
        }
    }
    for (name, path) in &options.subjects {
        if found.iter().any(|p| p.name == *name) || options.without.contains(name) {
            continue;
        }
        if let Some(kind) = kind(spec, name, path) {
            found.push(program(name, kind, path.clone()));
        }
    }
    // Some experiments have no programs as subjects, or find none and say so themselves.
    if found.is_empty() && !options.without.is_empty() {
        bail!("{}: no subject is left to measure", spec.name);
    }
    Ok((found, missing))
}

/// A program beside this one (the gateway is built with the lab), on the path, or where Debian keeps servers.
pub fn look_up(program: &str) -> Option<PathBuf> {
    let own = std::env::current_exe().ok().and_then(|p| p.parent().map(Path::to_owned));
    // Tests run from `deps`, one folder below.
    let above = own.as_ref().and_then(|p| p.parent().map(Path::to_owned));
    let path = std::env::var_os("PATH").unwrap_or_default();
    let folders = own.into_iter().chain(above).chain(std::env::split_paths(&path));
    let folders = folders.chain(["/usr/sbin", "/usr/local/sbin", "/sbin"].map(PathBuf::from));
    folders.map(|folder| folder.join(program)).find(|file| file.is_file())
}

fn program(name: &str, kind: &str, path: PathBuf) -> Program {
    let version = version(kind, &path);
    Program { name: name.to_owned(), kind: kind.to_owned(), path, version }
}

/// The number, the compiler and its flags, the TLS library; not where things were built, nor how often.
fn version(kind: &str, path: &Path) -> Vec<String> {
    let flag = match kind {
        "nginx" => "-V",
        "haproxy" => "-vv",
        _ => "--version",
    };
    const WANTED: [&str; 9] = [
        "nginx version",
        "built ",
        "HAProxy version",
        "CFLAGS",
        "Built with SSL",
        "Built with OpenSSL version",
        "Running on SSL",
        "Running on OpenSSL",
        "sealane",
    ];
    let Ok(output) = Command::new(path).arg(flag).output() else { return Vec::new() };
    let text = [output.stdout, output.stderr].concat();
    let text = String::from_utf8_lossy(&text);
    let known = matches!(kind, "nginx" | "haproxy" | "sealane");
    text.lines()
        .map(str::trim)
        .filter(|l| if known { WANTED.iter().any(|w| l.starts_with(w)) } else { !l.is_empty() })
        .map(|l| l.split(" -Wall").next().unwrap_or(l).to_owned())
        .take(8)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spec() -> Spec {
        Spec::parse(
            "name='x'\ntitle='X'\nquestion='?'\n[[subject]]\nname='shell'\nkind='shell'\nprogram='sh'\n\
             [[subject]]\nname='none'\nkind='none'\nprogram='no-such-program'\noptional=true\n\
             [[part]]\nid='a'\ntitle='A'\nquick=true\n[quick]\n[full]\n",
        )
        .unwrap()
    }

    #[test]
    fn subjects_are_found_replaced_and_added() {
        let mut options = Options::default();
        let (found, missing) = find(&spec(), &options).unwrap();
        assert_eq!((found.len(), missing.len()), (1, 1));
        let sh = found[0].path.clone();
        options.subjects = vec![("shell-other".into(), sh.clone()), ("none".into(), sh)];
        let (found, missing) = find(&spec(), &options).unwrap();
        let names: Vec<&str> = found.iter().map(|p| p.name.as_str()).collect();
        assert_eq!((names, missing.len()), (vec!["shell", "none", "shell-other"], 0));
        assert_eq!(found[2].kind, "shell");
        options.without = vec!["shell".into()];
        let (found, _) = find(&spec(), &options).unwrap();
        assert_eq!(found.iter().map(|p| p.name.as_str()).collect::<Vec<_>>(), ["none", "shell-other"]);
        options.subjects.clear();
        assert!(find(&spec(), &options).is_err(), "no subject is left");
        options.without = vec!["bash".into()];
        assert!(find(&spec(), &options).is_err(), "an unknown name");
    }

    #[test]
    fn the_kind_follows_from_the_name_or_from_the_file() {
        let spec = spec();
        let kind = |name, path: &str| kind(&spec, name, Path::new(path));
        assert_eq!(kind("shell", "/x/y"), Some("shell"));
        assert_eq!(kind("shell-old", "/x/y"), Some("shell"));
        assert_eq!(kind("old", "/x/shell-1.2"), Some("shell"));
        assert_eq!(kind("shells", "/shell/y"), None);
    }

    #[test]
    fn wrong_subjects_are_refused() {
        for (name, path) in [("bash", "/bin/sh"), ("shell", "/nowhere/sh")] {
            let options = Options { subjects: vec![(name.into(), path.into())], ..Options::default() };
            assert!(find(&spec(), &options).is_err(), "{name} {path}");
        }
    }
}
