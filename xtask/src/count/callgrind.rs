//! Reads what callgrind wrote about the lane's thread.
//!
//! The format: <https://valgrind.org/docs/manual/cl-format.html>. `fn=(id) name` begins a function, `cfn=(id) name` and
//! `calls=N …` one that it called, `totals: N` ends the file. A name stands where its id comes first.

use anyhow::{Context, bail};
use std::collections::HashMap;
use std::path::{Path, PathBuf};

/// The sums of one thread.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Profile {
    pub instructions: u64,
    pub allocations: u64,
    /// Those of them that rustls asks for by name; what it has a vector grow for is not told apart.
    pub of_rustls: u64,
    pub copies: u64,
}

/// Looks in the file of each thread for the lane's.
pub fn read(prefix: &Path) -> anyhow::Result<Profile> {
    let mut lanes = Vec::new();
    for file in beginning(prefix)? {
        let text = std::fs::read_to_string(&file).with_context(|| file.display().to_string())?;
        // The loop itself may be inlined; what it calls is named either way.
        if text.contains("sealane_lane::run::run") || text.contains(" as sealane_lane::run::Service>") {
            lanes.push(parse(&text).with_context(|| file.display().to_string())?);
        }
    }
    let [lane] = lanes[..] else { bail!("{} threads look like a lane in {}*", lanes.len(), prefix.display()) };
    Ok(lane)
}

/// The files whose names begin like this.
pub fn beginning(prefix: &Path) -> anyhow::Result<Vec<PathBuf>> {
    let folder = prefix.parent().context("no folder")?;
    let start = prefix.file_name().context("no name")?.to_string_lossy().into_owned();
    let mut files = Vec::new();
    for entry in std::fs::read_dir(folder).with_context(|| folder.display().to_string())? {
        let entry = entry?;
        if entry.file_name().to_string_lossy().starts_with(&start) {
            files.push(entry.path());
        }
    }
    files.sort();
    Ok(files)
}

fn parse(text: &str) -> anyhow::Result<Profile> {
    let mut names: HashMap<&str, &str> = HashMap::new();
    let mut found = Profile::default();
    let (mut caller, mut callee) = ("", "");
    let mut whole = false;
    for line in text.lines() {
        if let Some(rest) = line.strip_prefix("fn=") {
            caller = resolve(&mut names, rest);
        } else if let Some(rest) = line.strip_prefix("cfn=") {
            callee = resolve(&mut names, rest);
        } else if let Some(rest) = line.strip_prefix("calls=") {
            let calls: u64 = rest.split_whitespace().next().unwrap_or_default().parse().context(line.to_owned())?;
            if allocates(callee) && !in_allocator(caller) {
                found.allocations += calls;
            } else if caller.starts_with("rustls::") && asks_for_memory(callee) {
                found.of_rustls += calls;
            } else if copies(callee) && !copies(caller) {
                found.copies += calls;
            }
        } else if let Some(rest) = line.strip_prefix("totals:") {
            found.instructions = rest.trim().parse().context(line.to_owned())?;
            whole = true;
        }
    }
    if !whole {
        bail!("the profile is not complete: it has no line `totals:`");
    }
    Ok(found)
}

fn resolve<'t>(names: &mut HashMap<&'t str, &'t str>, text: &'t str) -> &'t str {
    let Some((id, name)) = text.strip_prefix('(').and_then(|rest| rest.split_once(')')) else { return text };
    match name.trim_start() {
        "" => names.get(id).copied().unwrap_or_default(),
        name => {
            names.insert(id, name);
            name
        }
    }
}

/// mimalloc is Rust's allocator here; the C libraries use the system's.
fn allocates(function: &str) -> bool {
    matches!(function, "malloc" | "calloc" | "realloc" | "memalign" | "aligned_alloc" | "posix_memalign")
        || (function.starts_with("mi_") && function.contains("alloc"))
}

/// What the compiler calls for Rust code, such as `__rustc::__rust_alloc`.
fn asks_for_memory(function: &str) -> bool {
    ["__rust_alloc", "__rust_alloc_zeroed", "__rust_realloc"].iter().any(|name| function.ends_with(name))
}

fn in_allocator(function: &str) -> bool {
    allocates(function) || function.starts_with("mi_") || function.starts_with("_mi_")
}

/// The C library has one for each kind of processor, such as `__memcpy_avx_unaligned_erms`.
fn copies(function: &str) -> bool {
    function.contains("memcpy") || function.contains("memmove")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_are_counted_from_outside() {
        let text = "\
version: 1\nevents: Ir\nfl=(1) a.rs\nfn=(1) sealane_lane::run::run\n10 5\n\
cfn=(2) mi_malloc_aligned\ncalls=3 20\n10 90\ncfn=(3) __memcpy_avx_unaligned_erms\ncalls=4 30\n10 40\n\
cfn=(4) free\ncalls=9 1\n11 9\n\
fn=(2)\n20 30\ncfn=(5) mi_malloc\ncalls=3 5\n20 60\n\
fn=(8) rustls::msgs::f\n1 1\ncfn=(9) __rustc::__rust_alloc\ncalls=2 1\n1 8\n\
fn=(9)\n1 1\ncfn=(2)\ncalls=2 1\n1 8\n\
fn=(6) OPENSSL_malloc\n1 1\ncfn=(7) malloc\ncalls=2 1\n1 8\n\
totals: 1234\n";
        assert_eq!(parse(text).unwrap(), Profile { instructions: 1234, allocations: 7, of_rustls: 2, copies: 4 });
        assert!(parse(text.strip_suffix("totals: 1234\n").unwrap()).is_err());
    }
}
