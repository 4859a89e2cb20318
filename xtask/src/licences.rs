//! Every dependency's licence must let us ship the binaries under ours, whatever the platform.

use crate::metadata::Workspace;
use crate::spdx;

/// Permissive licences, all compatible with `Apache-2.0 OR MIT`.
const ALLOWED: &[&str] = &[
    "0BSD",
    "Apache-2.0",
    "Apache-2.0 WITH LLVM-exception",
    "BSD-2-Clause",
    "BSD-3-Clause",
    "BSL-1.0",
    "CC0-1.0",
    "CDLA-Permissive-2.0",
    "ISC",
    "MIT",
    "MIT-0",
    "OpenSSL",
    "Unicode-3.0",
    "Unlicense",
    "Zlib",
];

/// One line for each dependency that may not be used.
pub fn check(workspace: &Workspace) -> Vec<String> {
    let mut found = Vec::new();
    for package in workspace.foreign() {
        let who = format!("{} {}", package.name, package.version);
        let Some(expression) = &package.license else {
            found.push(format!("{who} names no licence"));
            continue;
        };
        match spdx::allowed(expression, &|licence| ALLOWED.contains(&licence)) {
            Ok(true) => {}
            Ok(false) => found.push(format!("{who} is under `{expression}`, which is not allowed here")),
            Err(error) => found.push(format!("{who}: licence `{expression}`: {error}")),
        }
    }
    found
}
