//! The TLS 1.0 PRF (RFC 2246 §5), which keys of clients before 2.6 come from.

use aws_lc_rs::hmac;
use md5::{Digest as _, Md5};

/// HMAC with MD5 (RFC 2104), which aws-lc-rs does not have.
fn hmac_md5(key: &[u8], parts: &[&[u8]]) -> [u8; 16] {
    let mut block = [0; 64];
    match key.len() {
        0..=64 => block[..key.len()].copy_from_slice(key),
        _ => block[..16].copy_from_slice(&Md5::digest(key)),
    }
    let mut inner = Md5::new_with_prefix(block.map(|b| b ^ 0x36));
    parts.iter().for_each(|p| inner.update(p));
    Md5::new_with_prefix(block.map(|b| b ^ 0x5c)).chain_update(inner.finalize()).finalize().into()
}

fn hmac_sha1(key: &[u8], parts: &[&[u8]]) -> [u8; 20] {
    let mut mac = hmac::Context::with_key(&hmac::Key::new(hmac::HMAC_SHA1_FOR_LEGACY_USE_ONLY, key));
    parts.iter().for_each(|p| mac.update(p));
    let mut out = [0; 20];
    out.copy_from_slice(mac.sign().as_ref());
    out
}

/// RFC 2246 §5: P_hash, XORed into `out`.
fn expand<const N: usize>(hash: fn(&[u8], &[&[u8]]) -> [u8; N], secret: &[u8], seed: &[u8], out: &mut [u8]) {
    let mut a = hash(secret, &[seed]);
    for chunk in out.chunks_mut(N) {
        let block = hash(secret, &[&a, seed]);
        chunk.iter_mut().zip(block).for_each(|(o, b)| *o ^= b);
        a = hash(secret, &[&a]);
    }
}

/// RFC 2246 §5: PRF(secret, label ‖ seed) = P_MD5(S1, …) ⊕ P_SHA-1(S2, …), the halves sharing a byte if it is odd.
pub fn tls10(secret: &[u8], seed: &[u8], out: &mut [u8]) {
    let half = secret.len().div_ceil(2);
    out.fill(0);
    expand(hmac_md5, &secret[..half], seed, out);
    expand(hmac_sha1, &secret[secret.len() - half..], seed, out);
}

#[cfg(test)]
mod tests {
    use super::*;

    /// OpenVPN's own unit test (`crypto_test_tls_prf`).
    #[test]
    fn agrees_with_openvpn() {
        let seed = b"Quis aute iure reprehenderit in voluptate velit esse cillum dolore";
        let secret = b"Lorem ipsum dolor sit amet, consectetur adipisici elit, sed eiusmod tempor incidunt ut \
                       labore et dolore magna aliqua.";
        let mut out = [0; 32];
        tls10(secret, seed, &mut out);
        let expected = [
            0xd9, 0x8c, 0x85, 0x18, 0xc8, 0x5e, 0x94, 0x69, 0x27, 0x91, 0x6a, 0xcf, 0xc2, 0xd5, 0x92, 0xfb, 0xb1, 0x56,
            0x7e, 0x4b, 0x4b, 0x14, 0x59, 0xe6, 0xa9, 0x04, 0xac, 0x2d, 0xda, 0xb7, 0x2d, 0x67,
        ];
        assert_eq!(out, expected);
    }

    /// RFC 2202 §2, test cases 1 and 6.
    #[test]
    fn hmac_md5_is_rfc_2104s() {
        let hex = |b: [u8; 16]| b.iter().map(|b| format!("{b:02x}")).collect::<String>();
        assert_eq!(hex(hmac_md5(&[0x0b; 16], &[b"Hi ", b"There"])), "9294727a3638bb1c13f48ef8158bfc9d");
        let long = hmac_md5(&[0xaa; 80], &[b"Test Using Larger Than Block-Size Key - Hash Key First"]);
        assert_eq!(hex(long), "6b1ab7fe4bd7bf8f0b62e6ce61b9d0cd");
    }

    /// OpenSSL's PRF of TLS 1.0, for secrets and seeds of any length.
    #[test]
    fn agrees_with_openssl() {
        let hex = |bytes: &[u8]| bytes.iter().map(|b| format!("{b:02x}")).collect::<String>();
        let mut state = 1u64;
        let mut next = move || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            state >> 33
        };
        for case in 0..60 {
            let mut bytes = |most: u64| (0..1 + next() % most).map(|_| next() as u8).collect::<Vec<u8>>();
            let (secret, seed, mut out) = (bytes(160), bytes(200), bytes(300));
            tls10(&secret, &seed, &mut out);
            let mut openssl = std::process::Command::new("openssl");
            openssl.args(["kdf", "-keylen", &out.len().to_string(), "-kdfopt", "digest:MD5-SHA1"]);
            openssl.args(["-kdfopt", &format!("hexsecret:{}", hex(&secret)), "-kdfopt"]);
            openssl.args([&format!("hexseed:{}", hex(&seed)), "TLS1-PRF"]);
            let Ok(said) = openssl.output() else { return println!("skipped: `openssl` is not installed") };
            assert!(said.status.success(), "{}", String::from_utf8_lossy(&said.stderr));
            let theirs = String::from_utf8_lossy(&said.stdout).trim().replace(':', "").to_ascii_lowercase();
            assert_eq!(hex(&out), theirs, "case {case}: secret {}, seed {}", hex(&secret), hex(&seed));
        }
    }
}
