//! What a profile wants of the server's certificate and of TLS.

use super::Files;
use crate::pki::AskPassphrase;
use crate::tls::Endpoint;
use crate::verify::{Demands, Fingerprint, Verifier};
use anyhow::{Context as _, Result, bail};
use rustls::client::Resumption;
use rustls::crypto::CryptoProvider;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, CertificateRevocationListDer, PrivateKeyDer};
use rustls::{SupportedCipherSuite, SupportedProtocolVersion};
use sealane_config::encrypted_key::{self, Undecipherable};
use sealane_ovpn::file::{Directive, NameRule, usage_oid};
use std::sync::Arc;
use zeroize::Zeroizing;

/// What the profile wants of the server's certificate.
fn demands(files: &Files<'_>) -> Result<Demands> {
    let mut demands = Demands::default();
    for d in files.directives {
        let arguments = d.arguments();
        let wrong = |what: &str| anyhow::anyhow!("line {}: {}: {what}", d.line, d.words.join(" "));
        match d.name() {
            "remote-cert-tls" => match arguments.first() {
                Some(&"server") => demands.explicit_usage = true,
                _ => return Err(wrong("only the value `server` is supported")),
            },
            "remote-cert-eku" => {
                let name = arguments.join(" ");
                demands
                    .extended_usages
                    .push(usage_oid(&name).ok_or_else(|| wrong("this is not an extended key usage"))?);
            }
            "remote-cert-ku" => {
                for value in &arguments {
                    let digits = value.trim_start_matches("0x");
                    let bits = u8::from_str_radix(digits, 16)
                        .map_err(|_| wrong("this is not a number of one or two hexadecimal digits"))?;
                    demands.key_usages.push(bits);
                }
                if arguments.is_empty() {
                    demands.explicit_usage = true;
                }
            }
            "peer-fingerprint" => {
                for fingerprint in fingerprints(d).ok_or_else(|| wrong("this is not a SHA-256 fingerprint"))? {
                    match fingerprint {
                        Fingerprint::Sha256(f) => demands.fingerprints.push(f),
                        Fingerprint::Sha1(_) => {
                            return Err(wrong("this is a SHA-1 fingerprint; write the SHA-256 fingerprint"));
                        }
                    }
                }
            }
            "verify-hash" => {
                let found = fingerprints(d).ok_or_else(|| wrong("this is not a SHA-1 or SHA-256 fingerprint"))?;
                let named = match arguments.get(1) {
                    None => true,
                    Some(&"SHA1") => found.iter().all(|f| matches!(f, Fingerprint::Sha1(_))),
                    Some(&"SHA256") => found.iter().all(|f| matches!(f, Fingerprint::Sha256(_))),
                    Some(_) => false,
                };
                if !named {
                    return Err(wrong("the length of the fingerprint does not match the named digest"));
                }
                demands.issuer_fingerprints.extend(found);
            }
            "verify-x509-name" => demands.name = Some(NameRule::of(d)?),
            _ => {}
        }
    }
    Ok(demands)
}

/// Reads the fingerprints of an option or of its block, one per line. `None`: there are none, or one is invalid.
fn fingerprints(d: &Directive) -> Option<Vec<Fingerprint>> {
    let text = d.inline.as_deref().or_else(|| d.words.get(1).map(String::as_str))?;
    let lines = text.lines().map(str::trim).filter(|l| !l.is_empty() && !l.starts_with(['#', ';']));
    let found: Vec<Fingerprint> = lines.map(fingerprint).collect::<Option<_>>()?;
    (!found.is_empty()).then_some(found)
}

/// 20 or 32 pairs of hexadecimal digits with colons between them.
fn fingerprint(text: &str) -> Option<Fingerprint> {
    let pair = |pair: &str| {
        let digits = pair.len() == 2 && pair.bytes().all(|b| b.is_ascii_hexdigit());
        digits.then(|| u8::from_str_radix(pair, 16).ok()).flatten()
    };
    let bytes: Vec<u8> = text.split(':').map(pair).collect::<Option<_>>()?;
    if let Ok(bytes) = bytes.as_slice().try_into() {
        return Some(Fingerprint::Sha1(bytes));
    }
    bytes.as_slice().try_into().ok().map(Fingerprint::Sha256)
}

/// Cipher suites of `tls-cipher` and `tls-ciphersuites`, as OpenVPN, OpenSSL and rustls name them.
const SUITES: &[[&str; 3]] = &[
    [
        "TLS-ECDHE-ECDSA-WITH-AES-256-GCM-SHA384",
        "ECDHE-ECDSA-AES256-GCM-SHA384",
        "TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384",
    ],
    [
        "TLS-ECDHE-ECDSA-WITH-AES-128-GCM-SHA256",
        "ECDHE-ECDSA-AES128-GCM-SHA256",
        "TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256",
    ],
    [
        "TLS-ECDHE-ECDSA-WITH-CHACHA20-POLY1305-SHA256",
        "ECDHE-ECDSA-CHACHA20-POLY1305",
        "TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256",
    ],
    ["TLS-ECDHE-RSA-WITH-AES-256-GCM-SHA384", "ECDHE-RSA-AES256-GCM-SHA384", "TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384"],
    ["TLS-ECDHE-RSA-WITH-AES-128-GCM-SHA256", "ECDHE-RSA-AES128-GCM-SHA256", "TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256"],
    [
        "TLS-ECDHE-RSA-WITH-CHACHA20-POLY1305-SHA256",
        "ECDHE-RSA-CHACHA20-POLY1305",
        "TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256",
    ],
    ["TLS_AES_256_GCM_SHA384", "TLS-AES-256-GCM-SHA384", "TLS13_AES_256_GCM_SHA384"],
    ["TLS_AES_128_GCM_SHA256", "TLS-AES-128-GCM-SHA256", "TLS13_AES_128_GCM_SHA256"],
    ["TLS_CHACHA20_POLY1305_SHA256", "TLS-CHACHA20-POLY1305-SHA256", "TLS13_CHACHA20_POLY1305_SHA256"],
];

/// Groups of `tls-groups` and `ecdh-curve`, and rustls' names of them.
const GROUPS: &[(&str, &str)] = &[
    ("X25519", "X25519"),
    ("SECP256R1", "secp256r1"),
    ("PRIME256V1", "secp256r1"),
    ("P-256", "secp256r1"),
    ("SECP384R1", "secp384r1"),
    ("P-384", "secp384r1"),
    ("X25519MLKEM768", "X25519MLKEM768"),
];

/// TLS as the profile restricts it: suites, groups and versions.
fn restricted(files: &Files<'_>) -> Result<(CryptoProvider, Vec<&'static SupportedProtocolVersion>)> {
    let mut provider = rustls::crypto::aws_lc_rs::default_provider();
    let last = |name: &str| files.directives.iter().rfind(|d| d.name() == name);
    for (option, tls13) in [("tls-cipher", false), ("tls-ciphersuites", true)] {
        let Some(d) = last(option) else { continue };
        if !tls13 && keeps_all(d.words.get(1).map_or("", String::as_str)) {
            continue;
        }
        let wanted = list(d)?;
        let is_wanted = |suite: &SupportedCipherSuite| {
            let name = format!("{:?}", suite.suite());
            SUITES
                .iter()
                .any(|names| names[2] == name && names.iter().any(|n| wanted.contains(&n.to_ascii_uppercase())))
        };
        provider.cipher_suites.retain(|suite| suite.tls13().is_some() != tls13 || is_wanted(suite));
        if !provider.cipher_suites.iter().any(|s| s.tls13().is_some() == tls13) {
            bail!(
                "line {}: none of the suites in {option} is supported (ECDHE with AES-GCM and ChaCha20-Poly1305 are)",
                d.line
            );
        }
    }
    if let Some(d) = last("tls-groups").or_else(|| last("ecdh-curve")) {
        let wanted = list(d)?;
        provider.kx_groups.retain(|group| {
            let name = format!("{:?}", group.name());
            GROUPS.iter().any(|(theirs, ours)| *ours == name && wanted.contains(&(*theirs).to_owned()))
        });
        if provider.kx_groups.is_empty() {
            bail!(
                "line {}: none of the groups in {} is supported (X25519, secp256r1 and secp384r1 are)",
                d.line,
                d.name()
            );
        }
    }
    let version = |name: &str, default: u8| -> Result<u8> {
        let Some(d) = last(name) else { return Ok(default) };
        match d.arguments().first().copied() {
            Some("1.0") => Ok(0),
            Some("1.1") => Ok(1),
            Some("1.2") => Ok(2),
            Some("1.3") => Ok(3),
            other => bail!("line {}: {name} {}: this is not a TLS version", d.line, other.unwrap_or("")),
        }
    };
    let (least, most) = (version("tls-version-min", 2)?, version("tls-version-max", 3)?);
    let all = [(3, &rustls::version::TLS13), (2, &rustls::version::TLS12)];
    let versions: Vec<_> = all.into_iter().filter(|(n, _)| (least..=most).contains(n)).map(|(_, v)| v).collect();
    if versions.is_empty() {
        bail!("tls-version-min and tls-version-max leave no version: TLS 1.2 and 1.3 are supported");
    }
    Ok((provider, versions))
}

/// OpenSSL's cipher classes that contain none of our suites: excluding them restricts nothing.
const ABSENT: &[&str] = &[
    "3DES", "ADH", "AECDH", "ARIA", "CAMELLIA", "DES", "DH", "DHE", "DSS", "EDH", "EXP", "EXPORT", "IDEA", "KRB5",
    "LOW", "MD5", "MEDIUM", "NULL", "PSK", "RC2", "RC4", "SEED", "SHA", "SHA1", "SRP", "SSLv2", "aDSS", "aNULL",
    "aPSK", "aSRP", "eNULL", "kDHE", "kEDH", "kPSK", "kRSA", "kSRP",
];

/// Whether an OpenSSL cipher expression keeps all our suites: `DEFAULT:!EXP:!PSK`, `DEFAULT:@SECLEVEL=1`.
fn keeps_all(text: &str) -> bool {
    let mut words = text.split(':');
    let whole = words.next().is_some_and(|first| ["DEFAULT", "ALL", "HIGH"].contains(&first));
    // Our own minimum is that of level 2.
    let level = |word: &str| ["@SECLEVEL=0", "@SECLEVEL=1", "@SECLEVEL=2", "@STRENGTH"].contains(&word);
    whole && words.all(|word| level(word) || word.strip_prefix(['!', '-']).is_some_and(|class| ABSENT.contains(&class)))
}

/// A list with colons in it, in capitals. OpenSSL's expressions are not understood.
fn list(d: &Directive) -> Result<Vec<String>> {
    let text = d.words.get(1).map_or("", String::as_str);
    let named = |name: &&str| !name.is_empty() && name.chars().all(|c| c.is_ascii_alphanumeric() || "-_".contains(c));
    match text.split(':').all(|name| named(&name) && !["DEFAULT", "HIGH", "ALL"].contains(&name)) {
        true => Ok(text.split(':').map(str::to_ascii_uppercase).collect()),
        false => bail!("line {}: {} {text}: only names with colons between them are supported", d.line, d.name()),
    }
}

/// The private key. `ask` gives the passphrase that an encrypted key needs, unless `askpass` names a file with it.
fn private_key(files: &Files<'_>, pem: &str, ask: AskPassphrase<'_>) -> Result<PrivateKeyDer<'static>> {
    if !encrypted_key::is_encrypted(pem.as_bytes()) {
        return PrivateKeyDer::from_pem_slice(pem.as_bytes()).context("key");
    }
    let passphrase = match passphrase(files)? {
        Some(passphrase) => passphrase,
        None => ask()?,
    };
    encrypted_key::decrypt(pem.as_bytes(), passphrase.as_bytes()).map_err(|e| match e {
        Undecipherable::Unsupported(what) => anyhow::anyhow!(
            "key: it is encrypted with {what}, which is not supported (openssl pkey -provider legacy -provider default \
             -aes256 -in FILE -out FILE.new encrypts it again)"
        ),
        e => anyhow::Error::from(e).context("key"),
    })
}

/// The first line of the file that `askpass` names.
fn passphrase(files: &Files<'_>) -> Result<Option<Zeroizing<String>>> {
    let Some(d) = files.directives.iter().rfind(|d| d.name() == "askpass") else { return Ok(None) };
    if d.inline.is_none() && matches!(d.words.get(1).map(String::as_str), None | Some("stdin")) {
        return Ok(None);
    }
    let text = Zeroizing::new(files.text("askpass")?.unwrap_or_default());
    match text.lines().next() {
        Some(line) if !line.is_empty() => Ok(Some(Zeroizing::new(line.to_owned()))),
        _ => bail!("line {}: askpass: there is no passphrase in this file", d.line),
    }
}

pub(super) fn endpoint(files: &Files<'_>, ask: AskPassphrase<'_>) -> Result<Endpoint> {
    let (provider, versions) = restricted(files)?;
    let provider = Arc::new(provider);
    let demands = demands(files)?;
    let ca: Vec<CertificateDer<'static>> = match files.text("ca")? {
        Some(ca) => CertificateDer::pem_slice_iter(ca.as_bytes()).collect::<Result<_, _>>().context("ca")?,
        // The fingerprint pins the server's certificate.
        None if demands.fingerprints.is_empty() => bail!("the profile has neither `ca` nor `peer-fingerprint`"),
        None if !demands.issuer_fingerprints.is_empty() => bail!("verify-hash: the profile has no `ca`"),
        None if files.text("crl-verify")?.is_some() => bail!("crl-verify: the profile has no `ca`"),
        None => Vec::new(),
    };
    if ca.is_empty() && files.text("ca")?.is_some() {
        bail!("ca: there is no certificate");
    }
    let crls = match files.text("crl-verify")? {
        Some(text) => CertificateRevocationListDer::pem_slice_iter(text.as_bytes())
            .map(|l| l.map(|l| l.to_vec()))
            .collect::<Result<Vec<_>, _>>()
            .context("crl-verify")?,
        None => Vec::new(),
    };
    let verifier = Arc::new(Verifier::new(&provider, &ca, &crls, demands, false)?);
    let builder = rustls::ClientConfig::builder_with_provider(provider)
        .with_protocol_versions(&versions)
        .context("the profile allows no cipher suite for the TLS versions that it allows")?
        .dangerous()
        .with_custom_certificate_verifier(verifier);
    let mut config = match (files.text("cert")?, files.text("key")?) {
        (Some(cert), Some(key)) => {
            let mut chain: Vec<CertificateDer<'static>> =
                CertificateDer::pem_slice_iter(cert.as_bytes()).collect::<Result<_, _>>().context("cert")?;
            if let Some(extra) = files.text("extra-certs")? {
                let extra = CertificateDer::pem_slice_iter(extra.as_bytes());
                chain.extend(extra.collect::<Result<Vec<_>, _>>().context("extra-certs")?);
            }
            let key = private_key(files, &key, ask)?;
            builder.with_client_auth_cert(chain, key).context("cert and key")?
        }
        (None, None) => builder.with_no_client_auth(),
        _ => bail!("the profile has only one of `cert` and `key`"),
    };
    config.enable_sni = false;
    config.resumption = Resumption::disabled();
    Ok(Endpoint::Client(Arc::new(config)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_takes_no_suite_away_is_no_restriction() {
        for all in ["DEFAULT", "DEFAULT:!EXP:!LOW:!PSK:!SRP:!kRSA", "DEFAULT:@SECLEVEL=0", "HIGH:-aNULL:@STRENGTH"] {
            assert!(keeps_all(all), "{all}");
        }
        for some in ["", "ECDHE", "DEFAULT:!ECDHE", "DEFAULT:!AESGCM", "DEFAULT:@SECLEVEL=3", "!PSK", "DEFAULT:ECDHE"] {
            assert!(!keeps_all(some), "{some}");
        }
    }

    #[test]
    fn an_encrypted_key_needs_its_passphrase() {
        let key = rcgen::KeyPair::generate().expect("a key").serialize_der();
        let pem = encrypted_key::encrypt(&key, b"secret").expect("random bytes");
        let folder = tempfile::tempdir().expect("a folder");
        std::fs::write(folder.path().join("words"), "secret\r\nmore\n").expect("a file");
        std::fs::write(folder.path().join("empty"), "\n").expect("a file");
        let read = |profile: &str, asked: Option<&str>| {
            let directives = sealane_ovpn::file::parse(profile).expect("well formed");
            let files = Files { directives: &directives, base: folder.path() };
            private_key(&files, &pem, &mut || match asked {
                Some(words) => Ok(Zeroizing::new(words.to_owned())),
                None => bail!("asked"),
            })
            .map(|found| found.secret_der() == key)
            .map_err(|e| format!("{e:#}"))
        };
        assert_eq!(read("", Some("secret")), Ok(true));
        for (profile, asked, wanted) in [
            ("askpass words", None, Ok(true)),
            ("<askpass>\nsecret\n</askpass>", None, Ok(true)),
            ("askpass", Some("secret"), Ok(true)),
            ("askpass stdin", Some("secret"), Ok(true)),
            ("", None, Err("asked")),
            ("", Some("wrong"), Err("the passphrase is wrong")),
            ("askpass empty", None, Err("line 1: askpass: there is no passphrase")),
            ("askpass nowhere", None, Err("nowhere")),
        ] {
            match (read(profile, asked), wanted) {
                (Err(why), Err(wanted)) => assert!(why.contains(wanted), "{profile}: {why}"),
                (found, wanted) => assert_eq!(found, wanted.map_err(str::to_owned), "{profile}"),
            }
        }
    }

    #[test]
    fn fingerprints_are_of_their_length() {
        let sha1 = ["AB"; 20].join(":");
        let sha256 = ["0c"; 32].join(":");
        assert_eq!(fingerprint(&sha1), Some(Fingerprint::Sha1([0xab; 20])));
        assert_eq!(fingerprint(&sha256), Some(Fingerprint::Sha256([0x0c; 32])));
        for wrong in
            ["", "00", &sha1[3..], &format!("{sha256}:00"), &sha1.replace("AB", "+B"), &sha1.replace("AB", "0AB")]
        {
            assert_eq!(fingerprint(wrong), None, "{wrong}");
        }
    }
}
