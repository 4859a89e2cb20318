//! How each library is built from its source: the steps, what they need, and which files come out.

use std::path::{Path, PathBuf};

/// A command of a recipe, run in the tree.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Step {
    /// Program.
    pub program: &'static str,
    /// Its arguments.
    pub arguments: Vec<String>,
    /// Where to run it, below the tree.
    pub folder: &'static str,
    /// Run once: when an interrupted build goes on, only what is not marked runs again.
    pub once: bool,
}

/// What a recipe does.
#[derive(Clone, Debug)]
pub struct Recipe {
    /// Programs that must be there.
    pub needs: &'static [&'static str],
    /// The steps in their order.
    pub steps: Vec<Step>,
    /// Files that come out, below the tree, and their names in the stack's `lib`.
    pub outputs: &'static [(&'static str, &'static str)],
}

/// The Debian package that holds a program.
pub fn package(program: &str) -> &str {
    match program {
        "cc" => "gcc",
        "c++" => "g++",
        "autoreconf" => "autoconf, automake",
        "libtoolize" => "libtool",
        "go" => "golang-go",
        other => other,
    }
}

/// The programs of `needs` that are not to be found.
pub fn missing<'a>(needs: &[&'a str]) -> Vec<&'a str> {
    needs.iter().copied().filter(|program| find(program).is_none()).collect()
}

/// Looks for a program as a shell would.
pub fn find(program: &str) -> Option<PathBuf> {
    std::env::split_paths(&std::env::var_os("PATH")?).map(|folder| folder.join(program)).find(|file| file.is_file())
}

fn step(program: &'static str, once: bool, arguments: &[&str]) -> Step {
    Step { program, arguments: arguments.iter().map(|&a| a.to_owned()).collect(), folder: "", once }
}

fn make(jobs: usize, arguments: &[&str]) -> Step {
    let mut step = step("make", false, arguments);
    step.arguments.insert(0, format!("-j{jobs}"));
    step
}

/// Flags that all cmake builds share: shared libraries, as a server uses them, and nothing but them.
fn cmake(jobs: usize, flags: &[&str]) -> Vec<Step> {
    let mut configure = step(
        "cmake",
        true,
        &["-S", ".", "-B", "out", "-DCMAKE_BUILD_TYPE=Release", "-DBUILD_SHARED_LIBS=ON", "-DBUILD_TESTING=OFF"],
    );
    configure.arguments.extend(flags.iter().map(|&f| f.to_owned()));
    let mut build = step("cmake", false, &["--build", "out", "--target", "ssl", "crypto"]);
    build.arguments.push(format!("-j{jobs}"));
    vec![configure, build]
}

const AWS_LC: &[&str] = &["-DBUILD_TOOL=OFF", "-DDISABLE_GO=ON", "-DDISABLE_PERL=ON"];
const AWS_LC_C99: &[&str] = &["-DBUILD_TOOL=OFF", "-DDISABLE_GO=ON", "-DDISABLE_PERL=ON", "-DCMAKE_C_STANDARD=99"];
const AWS_LC_OUT: &[(&str, &str)] = &[("out/ssl/libssl.so", "libssl.so"), ("out/crypto/libcrypto.so", "libcrypto.so")];

/// The recipe of a name, for this machine.
pub fn recipe(name: &str, jobs: usize) -> Result<Recipe, String> {
    let recipe = match name {
        "openssl" | "openssl-1.1.1" | "openssl-3.0.2" => {
            let target = match std::env::consts::ARCH {
                "x86_64" => "linux-x86_64",
                "aarch64" => "linux-aarch64",
                other => return Err(format!("no OpenSSL target is known here for {other}")),
            };
            // As it comes, but for what nobody here runs. Shared libraries are linked by hand from the static ones,
            // the way its own makefile would: the newer crates lack the script that writes the list of exports.
            let mut configure =
                step("perl", true, &["Configure", target, "no-shared", "no-tests", "--openssldir=/etc/ssl", "-fPIC"]);
            if name != "openssl-1.1.1" {
                // Since 3.0: the crates lack what the modules (the legacy provider) are made from.
                configure.arguments.push("no-module".into());
            }
            // 3.0.2 has DES in libcrypto.a twice when there are no modules, the same both times.
            let twice: &[&str] = if name == "openssl-3.0.2" { &["-Wl,--allow-multiple-definition"] } else { &[] };
            let link = |from: &str, to: &str, with: &[&str]| {
                let soname = format!("-Wl,-soname,{to}");
                let all = ["-shared", "-o", to, &soname, "-Wl,-Bsymbolic", "-Wl,--whole-archive", from];
                let all = [&all[..], &["-Wl,--no-whole-archive"], with, &["-ldl", "-lpthread"]].concat();
                step("cc", false, &all)
            };
            Recipe {
                needs: &["perl", "make", "cc"],
                steps: vec![
                    configure,
                    make(jobs, &["build_libs"]),
                    link("libcrypto.a", "libcrypto.so", twice),
                    link("libssl.a", "libssl.so", &["-L.", "-lcrypto"]),
                ],
                outputs: &[("libssl.so", "libssl.so"), ("libcrypto.so", "libcrypto.so")],
            }
        }
        "aws-lc" => Recipe { needs: &["cmake", "make", "cc", "c++"], steps: cmake(jobs, AWS_LC), outputs: AWS_LC_OUT },
        "aws-lc-c99" => {
            Recipe { needs: &["cmake", "make", "cc", "c++"], steps: cmake(jobs, AWS_LC_C99), outputs: AWS_LC_OUT }
        }
        "aws-lc-fips" => Recipe {
            // Its power-on self-test hashes the module, which a program in Go writes into it.
            needs: &["cmake", "make", "cc", "c++", "perl", "go"],
            steps: cmake(jobs, &["-DFIPS=1", "-DBUILD_TOOL=OFF"]),
            outputs: AWS_LC_OUT,
        },
        "boringssl" => Recipe {
            needs: &["cmake", "make", "cc", "c++"],
            steps: cmake(jobs, &[]),
            outputs: &[("out/libssl.so", "libssl.so"), ("out/libcrypto.so", "libcrypto.so")],
        },
        "libressl" => Recipe {
            needs: &["tar", "make", "cc"],
            steps: vec![
                step("sh", true, &["./configure", "--disable-static", "--disable-tests"]),
                make(jobs, &["-C", "include"]),
                make(jobs, &["-C", "crypto"]),
                make(jobs, &["-C", "ssl"]),
            ],
            outputs: &[("ssl/.libs/libssl.so", "libssl.so"), ("crypto/.libs/libcrypto.so", "libcrypto.so")],
        },
        "wolfssl" => Recipe {
            needs: &["autoreconf", "libtoolize", "make", "cc"],
            steps: vec![
                step("autoreconf", true, &["-fi"]),
                step(
                    "sh",
                    true,
                    &[
                        "./configure",
                        "--disable-examples",
                        "--disable-crypttests",
                        "--enable-shared",
                        "--disable-static",
                        // Single-precision arithmetic and AES in assembly: without them it is several times slower.
                        if cfg!(target_arch = "x86_64") { "--enable-intelasm" } else { "--enable-armasm" },
                        "--enable-sp=yes",
                        "--enable-sp-asm",
                        "--enable-sp-math-all",
                        "--enable-session-ticket",
                        // rustls' tickets have nonces of 32 bytes; without this wolfSSL's client takes 8 at most.
                        "--enable-ticket-nonce-malloc",
                        // A server's application may ask for the name after the handshake.
                        "CPPFLAGS=-DWOLFSSL_ALWAYS_KEEP_SNI",
                        "--enable-tls13",
                        "--enable-earlydata",
                        "--enable-mlkem",
                        "--enable-quic",
                        "--enable-alpn",
                        "--enable-sni",
                        "--enable-ocsp",
                        "--enable-ocspstapling",
                        "--enable-crl",
                        "--enable-curve25519",
                        "--enable-supportedcurves",
                    ],
                ),
                make(jobs, &["src/libwolfssl.la"]),
            ],
            outputs: &[("src/.libs/libwolfssl.so", "libwolfssl.so")],
        },
        other => return Err(format!("no recipe {other:?}")),
    };
    Ok(recipe)
}

/// Copies a source tree, writable, since some builds write beside their sources.
pub fn copy_tree(from: &Path, to: &Path) -> std::io::Result<()> {
    std::fs::create_dir_all(to)?;
    for entry in std::fs::read_dir(from)? {
        let entry = entry?;
        let (source, target) = (entry.path(), to.join(entry.file_name()));
        let kind = entry.file_type()?;
        if kind.is_dir() {
            copy_tree(&source, &target)?;
        } else if kind.is_file() {
            // Keeps the permissions, and with them what is executable; cargo unpacks writable.
            std::fs::copy(&source, &target)?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_stack_has_its_recipe() {
        for stack in crate::catalogue::catalogue().stacks {
            if let Some(name) = &stack.recipe {
                let recipe = recipe(name, 2).expect("known");
                assert!(!recipe.outputs.is_empty() && recipe.steps.iter().any(|s| !s.once), "{name}");
                for step in &recipe.steps {
                    assert!(step.program == "sh" || recipe.needs.contains(&step.program), "{name}: {}", step.program);
                }
            }
        }
        assert!(recipe("pie", 1).is_err());
    }

    #[test]
    fn what_is_missing_is_named() {
        assert_eq!(missing(&["sh", "no-such-program"]), ["no-such-program"]);
        assert_eq!(package("c++"), "g++");
    }
}
