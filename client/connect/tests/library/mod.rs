//! Where cargo has put a shared library of ours.

use std::path::PathBuf;

/// The library whose file's name begins so: beside this test, or one folder above.
pub fn library(name: &str) -> PathBuf {
    let test = std::env::current_exe().expect("the test's own executable has a path");
    let folders = test.ancestors().skip(1).take(2);
    let files = folders.filter_map(|f| std::fs::read_dir(f).ok()).flatten().flatten().map(|entry| entry.path());
    let named = |p: &PathBuf| {
        let file = p.file_name().map(|n| n.to_string_lossy().into_owned()).unwrap_or_default();
        file.starts_with(name) && file.ends_with(".so")
    };
    files.into_iter().find(named).expect("cargo builds the library before its tests")
}
