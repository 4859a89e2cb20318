//! Examples in doc comments that rustdoc runs as tests. Most of our packages have none, and rustdoc needs seconds to find that out for
//! each, so it is started only for packages that have some.

use crate::metadata::{Package, Workspace};
use anyhow::Context;
use std::fs;
use std::path::Path;

/// The packages of the workspace that have such examples in their library.
pub fn packages(workspace: &Workspace) -> anyhow::Result<Vec<&Package>> {
    let mut found = Vec::new();
    for package in workspace.members() {
        let folder = package.manifest_path.parent().context("a manifest's folder")?;
        if folder.join("src/lib.rs").is_file() && has_examples(&folder.join("src"))? {
            found.push(package);
        }
    }
    Ok(found)
}

/// Whether a source below this folder has an example.
fn has_examples(folder: &Path) -> anyhow::Result<bool> {
    if !folder.is_dir() {
        return Ok(false);
    }
    for entry in fs::read_dir(folder).with_context(|| folder.display().to_string())? {
        let path = entry?.path();
        let found = match path.extension() {
            _ if path.is_dir() => has_examples(&path)?,
            Some(extension) if extension == "rs" => {
                is_example(&fs::read_to_string(&path).with_context(|| path.display().to_string())?)
            }
            _ => false,
        };
        if found {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Whether a source has a block of code in a doc comment that rustdoc takes for Rust.
fn is_example(source: &str) -> bool {
    let mut within = false;
    for line in source.lines().map(str::trim_start) {
        let Some(text) = line.strip_prefix("///").or_else(|| line.strip_prefix("//!")) else {
            within = false;
            continue;
        };
        let Some(info) = text.trim_start().strip_prefix("```") else { continue };
        let info = info.trim();
        if within {
            within = !info.is_empty();
        } else if info.split(',').map(str::trim).all(|word| RUST.contains(&word) || word.starts_with("edition")) {
            return true;
        } else {
            within = true;
        }
    }
    false
}

/// The words after a fence with which the block stays Rust that is at least compiled.
const RUST: [&str; 5] = ["", "rust", "should_panic", "no_run", "compile_fail"];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn examples_are_found_and_other_blocks_are_not() {
        for example in ["/// ```\n/// f();\n/// ```", "    //! ```rust\n", "/// ```no_run", "/// ```rust,should_panic"]
        {
            assert!(is_example(example), "{example}");
        }
        for other in [
            "/// ```text\n/// a -> b\n/// ```\nfn f() {}",
            "/// ```toml\n/// a = 1\n/// ```\n/// then\n/// ```json\n/// {}\n/// ```",
            "// ```\n",
            "/// ```ignore\n/// f()\n/// ```",
            "let text = \"```\";",
        ] {
            assert!(!is_example(other), "{other}");
        }
    }
}
