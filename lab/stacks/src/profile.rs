//! Where a stack's CPU time goes, by `perf`: the study's table (locks, atomics, asymmetric crypto, memory, kernel), and a
//! flame graph.
//!
//! `perf record -e cpu-clock` needs no performance counters, so that it runs in virtual machines too. Chains of callers
//! are unwound from debug information, since these libraries have no frame pointers. Only samples of the side under test
//! count: those with the worker's marker of that side among their callers, and those within the library whose chain of
//! callers broke before it (hand-written assembly has no unwind information everywhere).

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;

use serde::Serialize;

use crate::builder::Built;
use crate::locks::Folder;
use crate::recipe;
use crate::wire::{self, Case};

/// What time is spent on, in the order of the table.
pub const KINDS: [&str; 8] =
    ["locks", "atomics", "asymmetric crypto", "symmetric crypto", "look-ups", "memory", "kernel", "other"];

/// The parts of functions' names that give away what they do; the first kind with a match counts.
static NAMES: [(&str, &[&str]); 6] = [
    (
        "locks",
        &[
            "pthread_rwlock",
            "pthread_mutex",
            "pthread_spin",
            "lll_lock",
            "lll_unlock",
            "futex",
            "CRYPTO_THREAD_read_lock",
            "CRYPTO_THREAD_write_lock",
            "CRYPTO_THREAD_unlock",
            "CRYPTO_MUTEX",
            "CRYPTO_STATIC_MUTEX",
            "ossl_rcu",
            "sync::mutex",
            "sync::rwlock",
            "wc_LockMutex",
            "wc_UnLockMutex",
        ],
    ),
    ("atomics", &["atomic", "up_ref", "UP_REF", "DOWN_REF", "refcount", "ref_inc", "ref_dec", "drop_slow"]),
    (
        "asymmetric crypto",
        &[
            "ecp_",
            "EC_",
            "ec_G",
            "ecdsa",
            "ECDSA",
            "ecdh",
            "ECDH",
            "bn_",
            "BN_",
            "rsa",
            "RSA",
            "x25519",
            "X25519",
            "curve25519",
            "fe51_",
            "fe64_",
            "fe_",
            "fiat_",
            "p256",
            "P256",
            "ge_",
            "sc_m",
            "mul_mont",
            "mulx",
            "sp_256",
            "sp_2048",
            "sp_4096",
            "sp_int",
            "_sp_",
            "bignum_",
            "mlkem",
            "MLKEM",
            "ml_kem",
            "beeu_",
            "mpn_",
            "__gmpn",
            "__gmpz",
            "ecc_",
            "eddsa",
            "mbedtls_mpi",
            "scalar",
            "point_",
            "nistz",
            "sqr_",
            "modinv",
            "keccak",
            "Keccak",
        ],
    ),
    (
        "symmetric crypto",
        &[
            "aes",
            "AES",
            "gcm",
            "GCM",
            "ghash",
            "gmult",
            "sha1",
            "sha2",
            "sha3",
            "sha5",
            "SHA",
            "Sha",
            "chacha",
            "ChaCha",
            "poly1305",
            "hmac",
            "HMAC",
            "hkdf",
            "HKDF",
            "md5",
            "MD5",
            "drbg",
            "DRBG",
            "rand_bytes",
            "RAND_bytes",
            "digest",
        ],
    ),
    (
        "look-ups",
        &[
            "evp_generic_fetch",
            "EVP_CIPHER_fetch",
            "EVP_MD_fetch",
            "EVP_KDF_fetch",
            "namemap",
            "ossl_property",
            "ossl_method",
            "method_store",
            "ossl_provider",
            "provider_",
            "ossl_lib_ctx",
            "OSSL_PARAM",
            "OPENSSL_LH",
            "lh_",
            "getrn",
            "strcasecmp",
            "strcmp",
            "OPENSSL_sk",
            "sk_",
            "decoder",
            "DECODER",
            "OBJ_",
            "ossl_ht",
        ],
    ),
    (
        "memory",
        &[
            "malloc",
            "free",
            "calloc",
            "realloc",
            "memcpy",
            "memmove",
            "memset",
            "bzero",
            "cleanse",
            "CRYPTO_zalloc",
            "arena",
            "unlink_chunk",
            "alloc",
        ],
    ),
];

/// Where the time goes.
#[derive(Clone, Debug, Serialize)]
pub struct Profile {
    /// The case's name.
    pub case: String,
    /// Samples of the side under test.
    pub samples: u64,
    /// Samples of everything else: start-up, the other side, the worker.
    pub others: u64,
    /// The part of each kind, 0 to 1.
    pub shares: BTreeMap<&'static str, f64>,
    /// The functions with most of it.
    pub functions: Vec<(String, f64)>,
    /// Samples by chain of callers, outermost first.
    #[serde(skip)]
    pub stacks: BTreeMap<Vec<String>, u64>,
}

/// A sample: function and file of each frame, innermost first.
type Sample<'a> = Vec<(&'a str, &'a str)>;

/// Runs a case under `perf`.
pub fn profile(
    built: &Built,
    peer: &Path,
    certs: &Path,
    case: &Case,
    seconds: f64,
    root: &Path,
) -> Result<Profile, String> {
    if recipe::find("perf").is_none() {
        return Err("perf is missing (Debian package linux-perf)".into());
    }
    let folder = Folder::new(root)?;
    let data = folder.0.join("perf.data");
    let mut arguments = case.arguments();
    arguments.extend(["--unsplit".into(), "--seconds".into(), seconds.to_string()]);
    let worker = wire::command(built, peer, certs, &arguments);
    let mut record = Command::new("perf");
    record
        .args(["record", "-q", "-e", "cpu-clock", "-F", "499", "--call-graph", "dwarf,8192", "-o"])
        .arg(&data)
        .arg("--")
        .arg(worker.get_program())
        .args(worker.get_args());
    wire::run(record).map_err(|why| format!("perf may not run here: {why}"))?;
    let mut script = Command::new("perf");
    script.args(["script", "--no-inline", "-F", "ip,sym,dso", "-i"]).arg(&data);
    let output = script.output().map_err(|e| format!("perf script: {e}"))?;
    if !output.status.success() {
        return Err(format!("perf script: {}", String::from_utf8_lossy(&output.stderr).trim()));
    }
    let side = if case.test == "client" { "lab_client_side" } else { "lab_server_side" };
    // Of a library, its folder: libssl and libcrypto lie beside each other. Where none is opened, it is in the worker.
    let own = match &built.library {
        Some(library) if library.is_dir() => library.as_path(),
        Some(library) => library.parent().unwrap_or(library),
        None => &built.worker,
    };
    sort(&String::from_utf8_lossy(&output.stdout), side, own, case.name())
}

fn sort(text: &str, side: &str, own: &Path, case: String) -> Result<Profile, String> {
    let mut profile = Profile {
        case,
        samples: 0,
        others: 0,
        shares: BTreeMap::new(),
        functions: Vec::new(),
        stacks: BTreeMap::new(),
    };
    let (mut kinds, mut functions) = (BTreeMap::<&'static str, u64>::new(), BTreeMap::<String, u64>::new());
    let own = own.to_string_lossy();
    for sample in text.split("\n\n").map(frames).filter(|s| !s.is_empty()) {
        let marker = sample.iter().position(|f| f.0.starts_with("lab_"));
        let ours = match marker {
            Some(at) => sample[at].0 == side,
            None => sample[0].1.starts_with(own.as_ref()),
        };
        if !ours {
            profile.others += 1;
            continue;
        }
        profile.samples += 1;
        *kinds.entry(kind(&sample)).or_default() += 1;
        *functions.entry(sample[0].0.to_owned()).or_default() += 1;
        let inner = &sample[..marker.unwrap_or(sample.len()).min(60)];
        let chain: Vec<String> = inner.iter().rev().map(|f| f.0.to_owned()).collect();
        *profile.stacks.entry(chain).or_default() += 1;
    }
    if profile.samples < 50 {
        return Err(format!(
            "{} samples are too few: run it for longer, or on a machine with less to do",
            profile.samples
        ));
    }
    let share = |n: u64| n as f64 / profile.samples as f64;
    profile.shares = KINDS.iter().map(|&k| (k, share(kinds.get(k).copied().unwrap_or(0)))).collect();
    profile.functions = functions.into_iter().map(|(name, n)| (name, share(n))).collect();
    profile.functions.sort_by(|a, b| b.1.total_cmp(&a.1).then_with(|| a.0.cmp(&b.0)));
    profile.functions.truncate(15);
    Ok(profile)
}

/// Reads `perf script`'s lines of one sample: address, function, file in parentheses.
fn frames(text: &str) -> Sample<'_> {
    text.lines()
        .filter_map(|line| {
            let (_, rest) = line.trim().split_once(' ')?;
            let (name, file) = rest.rsplit_once(" (")?;
            Some((name.split('+').next().unwrap_or(name), file.trim_end_matches(')')))
        })
        .collect()
}

/// What a sample's time is spent on: what the function does in which it was taken, or, where that says nothing, the
/// function that called it, and so on.
fn kind(sample: &[(&str, &str)]) -> &'static str {
    if sample[0].1.starts_with("[kernel") || sample[0].1.starts_with("[guest") {
        // Sleeping and waking in a lock is the lock's.
        let lock = sample.iter().take(30).any(|f| f.0.contains("futex"));
        return if lock { "locks" } else { "kernel" };
    }
    for (name, _) in sample.iter().take(4).take_while(|f| !f.0.starts_with("lab_")) {
        let found = NAMES.iter().find(|(_, parts)| parts.iter().any(|part| name.contains(part)));
        if let Some((kind, _)) = found {
            return kind;
        }
    }
    "other"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn samples_are_sorted_by_side_and_kind() {
        let sample = |names: &[&str]| {
            let line = |name: &&str| format!("\t      1234 {name} (/x/lib/libcrypto.so)\n");
            names.iter().map(line).collect::<String>() + "\n"
        };
        let mut text = String::new();
        for _ in 0..30 {
            text += &sample(&["__pthread_rwlock_rdlock", "CRYPTO_THREAD_read_lock", "lab_server_side", "main"]);
            text += &sample(&["__bn_sqrx8x_internal", "RSA_sign", "lab_server_side", "main"]);
            text += &sample(&["_int_malloc", "SSL_new", "lab_client_side", "main"]);
            // Its chain broke.
            text += &sample(&["ecp_nistz256_mul_montx"]);
        }
        let profile = sort(&text, "lab_server_side", Path::new("/x/lib"), "c".into()).expect("enough");
        assert_eq!((profile.samples, profile.others), (90, 30));
        assert!((profile.shares["locks"] - 1.0 / 3.0).abs() < 1e-9 && profile.shares["memory"] == 0.0);
        assert!((profile.shares["asymmetric crypto"] - 2.0 / 3.0).abs() < 1e-9, "{:?}", profile.shares);
        assert!(profile.stacks.contains_key(&vec!["RSA_sign".to_owned(), "__bn_sqrx8x_internal".to_owned()]));
        assert!(sort("", "lab_server_side", Path::new("/x"), "c".into()).is_err());
    }

    #[test]
    fn the_kernels_time_in_a_lock_is_the_locks() {
        let kernel = [("do_syscall_64", "[kernel.kallsyms]"), ("__futex_wait", "[kernel.kallsyms]")];
        assert_eq!(kind(&kernel), "locks");
        assert_eq!(kind(&[("do_anonymous_page", "[kernel.kallsyms]")]), "kernel");
        assert_eq!(frames("\t  ffff tls_process (/lib/x.so)"), [("tls_process", "/lib/x.so")]);
    }
}
