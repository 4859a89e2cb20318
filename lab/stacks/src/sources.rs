//! The sources of workers, peer, lock counter and provision crates, carried inside this program: an installed
//! `sealane-lab` builds stacks without a checkout. A test holds the table against the folders.

use std::path::Path;

macro_rules! files {
    ($($path:literal),* $(,)?) => { &[$(($path, include_str!(concat!("../on-demand/", $path)))),*] };
}

/// Every file: its path below `lab/stacks/on-demand`, and its text.
pub const FILES: &[(&str, &str)] = files![
    "preload/locks.c",
    "preload/paths.c",
    "provision/aws-lc-fips/Cargo.lock",
    "provision/aws-lc-fips/Cargo.toml",
    "provision/aws-lc/Cargo.lock",
    "provision/aws-lc/Cargo.toml",
    "provision/boringssl/Cargo.lock",
    "provision/boringssl/Cargo.toml",
    "provision/empty.rs",
    "provision/libressl/Cargo.lock",
    "provision/libressl/Cargo.toml",
    "provision/openssl-1.1.1/Cargo.lock",
    "provision/openssl-1.1.1/Cargo.toml",
    "provision/openssl-3.0.2/Cargo.lock",
    "provision/openssl-3.0.2/Cargo.toml",
    "provision/openssl-3.0/Cargo.lock",
    "provision/openssl-3.0/Cargo.toml",
    "provision/openssl-3.1/Cargo.lock",
    "provision/openssl-3.1/Cargo.toml",
    "provision/openssl-3.2/Cargo.lock",
    "provision/openssl-3.2/Cargo.toml",
    "provision/openssl-3.3/Cargo.lock",
    "provision/openssl-3.3/Cargo.toml",
    "provision/openssl-3.4/Cargo.lock",
    "provision/openssl-3.4/Cargo.toml",
    "provision/openssl-3.5/Cargo.lock",
    "provision/openssl-3.5/Cargo.toml",
    "provision/openssl-3.6/Cargo.lock",
    "provision/openssl-3.6/Cargo.toml",
    "provision/openssl-4.0/Cargo.lock",
    "provision/openssl-4.0/Cargo.toml",
    "provision/quictls/Cargo.lock",
    "provision/quictls/Cargo.toml",
    "provision/wolfssl/Cargo.lock",
    "provision/wolfssl/Cargo.toml",
    "workers/frame/Cargo.toml",
    "workers/frame/src/conditions.rs",
    "workers/frame/src/drive.rs",
    "workers/frame/src/features.rs",
    "workers/frame/src/ffi.rs",
    "workers/frame/src/json.rs",
    "workers/frame/src/lib.rs",
    "workers/frame/src/peer.rs",
    "workers/frame/src/pipe.rs",
    "workers/frame/src/run.rs",
    "workers/frame/src/scope.rs",
    "workers/frame/src/settings.rs",
    "workers/gnutls/Cargo.lock",
    "workers/gnutls/Cargo.toml",
    "workers/gnutls/src/features.rs",
    "workers/gnutls/src/main.rs",
    "workers/mbedtls/Cargo.lock",
    "workers/mbedtls/Cargo.toml",
    "workers/mbedtls/src/features.rs",
    "workers/mbedtls/src/main.rs",
    "workers/openssl/Cargo.lock",
    "workers/openssl/Cargo.toml",
    "workers/openssl/src/api.rs",
    "workers/openssl/src/features.rs",
    "workers/openssl/src/main.rs",
    "workers/peer/Cargo.lock",
    "workers/peer/Cargo.toml",
    "workers/peer/src/lib.rs",
    "workers/rustls/Cargo.lock",
    "workers/rustls/Cargo.toml",
    "workers/rustls/src/main.rs",
    "workers/s2n/Cargo.lock",
    "workers/s2n/Cargo.toml",
    "workers/s2n/build.rs",
    "workers/s2n/src/features.rs",
    "workers/s2n/src/main.rs",
    "workers/wolfssl/Cargo.lock",
    "workers/wolfssl/Cargo.toml",
    "workers/wolfssl/src/features.rs",
    "workers/wolfssl/src/main.rs",
];

/// The folder of the provision crate for a stack: variants share their library's.
pub fn provision_name(stack: &str) -> &str {
    match stack {
        "aws-lc-c99" => "aws-lc",
        "libressl-3.1" => "libressl",
        other => other,
    }
}

/// A file of a stack's provision crate.
pub fn provision(stack: &str, file: &str) -> Option<&'static str> {
    let path = format!("provision/{}/{file}", provision_name(stack));
    FILES.iter().find(|(name, _)| *name == path).map(|(_, text)| *text)
}

/// A number for all that begins with one of `prefixes`: what is built from it is good as long as it stays the same.
pub fn fingerprint(prefixes: &[&str], more: &str) -> String {
    // FNV-1a: no adversary here, only change.
    let mut hash = 0xcbf2_9ce4_8422_2325u64;
    let mut add = |bytes: &[u8]| {
        for byte in bytes {
            hash = (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
        }
    };
    for (name, text) in FILES.iter().filter(|(name, _)| prefixes.iter().any(|p| name.starts_with(p))) {
        add(name.as_bytes());
        add(&[0]);
        add(text.as_bytes());
        add(&[0]);
    }
    add(more.as_bytes());
    format!("{hash:016x}")
}

/// Writes all files below `folder`; those that are as they should be are left alone, so that cargo sees no change.
pub fn unpack(folder: &Path) -> std::io::Result<()> {
    for (name, text) in FILES {
        let path = folder.join(name);
        if std::fs::read(&path).is_ok_and(|old| old == text.as_bytes()) {
            continue;
        }
        if let Some(parent) = path.parent() {
            std::fs::create_dir_all(parent)?;
        }
        std::fs::write(path, text)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn the_table_has_every_file() {
        fn walk(root: &Path, folder: &Path, found: &mut BTreeSet<String>) {
            for entry in std::fs::read_dir(folder).expect("the folder is there").flatten() {
                let path = entry.path();
                let name = entry.file_name();
                if name == "target" || (folder.ends_with("frame") && name == "Cargo.lock") {
                    continue;
                }
                if path.is_dir() {
                    walk(root, &path, found);
                } else {
                    found.insert(path.strip_prefix(root).expect("below").display().to_string());
                }
            }
        }
        let root = &Path::new(env!("CARGO_MANIFEST_DIR")).join("on-demand");
        let mut found = BTreeSet::new();
        for folder in ["preload", "provision", "workers"] {
            walk(root, &root.join(folder), &mut found);
        }
        let table: BTreeSet<String> = FILES.iter().map(|(name, _)| (*name).to_owned()).collect();
        assert_eq!(found, table);
    }

    #[test]
    fn what_changes_changes_the_number() {
        let one = fingerprint(&["workers/frame/", "workers/rustls/"], "ring");
        assert_eq!(one, fingerprint(&["workers/frame/", "workers/rustls/"], "ring"));
        assert_ne!(one, fingerprint(&["workers/frame/", "workers/rustls/"], "aws-lc"));
        assert_ne!(one, fingerprint(&["workers/rustls/"], "ring"));
    }
}
