//! Certificates, keys and authorities in Secrets and ConfigMaps, as far as they can be checked without cryptography; the gateway checks the
//! rest, and names the line of the configuration if something is wrong.

use crate::Translation;
use crate::model::Section;
use crate::objects::{Kind, Name, ObjectRef};
use crate::toml::Table;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use x509_parser::pem::Pem;

/// The largest certificate or list of authorities, in bytes.
const MAX: usize = 256 << 10;

/// The highest cost of bcrypt in a Secret: about a quarter of a second.
const MAX_BCRYPT_COST: u32 = 12;
/// The most memory of Argon2 in a Secret, in KiB.
const MAX_ARGON2_MEMORY: u32 = 64 << 10;
/// The most passes of Argon2 in a Secret.
const MAX_ARGON2_PASSES: u32 = 10;

/// The parts of a PEM text with one of these labels.
fn pem_parts(text: &[u8], is_wanted: impl Fn(&str) -> bool) -> Result<Vec<Pem>, String> {
    if text.len() > MAX {
        return Err(format!("it has more than {} KiB", MAX >> 10));
    }
    let parts: Result<Vec<Pem>, _> = Pem::iter_from_buffer(text).collect();
    let parts = parts.map_err(|_| "it is not PEM".to_owned())?;
    Ok(parts.into_iter().filter(|part| is_wanted(&part.label)).collect())
}

fn check_certificates(text: &[u8]) -> Result<(), String> {
    let parts = pem_parts(text, |label| label == "CERTIFICATE")?;
    if parts.is_empty() {
        return Err("it has no certificate".to_owned());
    }
    parts.iter().try_for_each(|part| match x509_parser::parse_x509_certificate(&part.contents) {
        Ok(([], _)) => Ok(()),
        _ => Err("it has a certificate that cannot be read".to_owned()),
    })
}

/// Whether a check of a password costs no more time and memory than what users of one gateway may take from each other. The gateway itself
/// allows more, because its own operator writes its files.
fn is_cheap(hash: &str) -> bool {
    let mut parts = hash.split('$').skip(1);
    match parts.next() {
        Some("2a" | "2b" | "2y") => {
            parts.next().and_then(|cost| cost.parse::<u32>().ok()).is_some_and(|cost| cost <= MAX_BCRYPT_COST)
        }
        _ => {
            let all: Vec<&str> = parts.flat_map(|part| part.split(',')).collect();
            let number = |key: &str| {
                let mut values = all.iter().filter_map(|part| part.strip_prefix(key));
                values.next().and_then(|value| value.parse::<u32>().ok()).filter(|_| values.next().is_none())
            };
            number("m=").is_some_and(|m| m <= MAX_ARGON2_MEMORY) && number("t=").is_some_and(|t| t <= MAX_ARGON2_PASSES)
        }
    }
}

impl Translation<'_> {
    fn secret_value(&self, name: &Name, key: &str) -> Result<Vec<u8>, String> {
        let secret = self.world.secrets.get(name).ok_or_else(|| format!("there is no Secret {name}"))?;
        let data = secret.data.get(key).ok_or_else(|| format!("Secret {name} has no {key:?}"))?;
        STANDARD.decode(data).map_err(|_| format!("{key:?} of Secret {name} is not base64"))
    }

    /// Writes the files of a Secret with a certificate. Returns the paths of the certificate and of the key.
    pub(crate) fn certificate_files(&mut self, name: &Name) -> Result<(String, String), String> {
        if let Some(why) = self.world.refusal(Kind::Secret, name) {
            return Err(format!("Secret {name}: {why}"));
        }
        let secret = self.world.secrets.get(name).ok_or_else(|| format!("there is no Secret {name}"))?;
        if secret.kind != "kubernetes.io/tls" {
            return Err(format!("Secret {name} does not have the type kubernetes.io/tls"));
        }
        let certificate = self.secret_value(name, "tls.crt")?;
        let key = self.secret_value(name, "tls.key")?;
        check_certificates(&certificate).map_err(|why| format!("\"tls.crt\" of Secret {name}: {why}"))?;
        let keys = pem_parts(&key, |label| label.ends_with("PRIVATE KEY"))
            .map_err(|why| format!("\"tls.key\" of Secret {name}: {why}"))?;
        if keys.len() != 1 {
            return Err(format!("\"tls.key\" of Secret {name} must have one private key"));
        }
        Ok((self.config.file("cert", certificate)?, self.config.file("key", key)?))
    }

    /// The certificate of a Secret in the configuration. If the gateway refuses it, only this certificate is missing: the Secret may belong
    /// to another user than the Gateway, which serves others, too.
    pub(crate) fn certificate_section(secret: &Name, (cert, key): &(String, String)) -> Section {
        let settings = Table::default().with("cert", cert.as_str()).with("key", key.as_str());
        Section { settings, origin: ObjectRef { kind: Kind::Secret, name: secret.clone() } }
    }

    /// Writes a file with the authorities of a ConfigMap.
    pub(crate) fn authority_of_config_map(&mut self, name: &Name) -> Result<String, String> {
        let text = self.authorities(name)?;
        match self.only_checks {
            true => Ok(String::new()),
            false => self.config.file("ca", text),
        }
    }

    /// The authorities of a ConfigMap (`ca.crt`).
    pub(crate) fn authorities(&self, name: &Name) -> Result<Vec<u8>, String> {
        let map = self.world.config_maps.get(name).ok_or_else(|| format!("there is no ConfigMap {name}"))?;
        let text = match (map.data.get("ca.crt"), map.binary_data.get("ca.crt")) {
            (Some(text), _) => text.clone().into_bytes(),
            (None, Some(data)) => {
                STANDARD.decode(data).map_err(|_| format!("\"ca.crt\" of ConfigMap {name} is not base64"))?
            }
            (None, None) => return Err(format!("ConfigMap {name} has no \"ca.crt\"")),
        };
        check_certificates(&text).map_err(|why| format!("\"ca.crt\" of ConfigMap {name}: {why}"))?;
        Ok(text)
    }

    /// Writes a file with the authorities of a Secret (`ca.crt`).
    pub(crate) fn authority_of_secret(&mut self, name: &Name) -> Result<String, String> {
        let text = self.secret_value(name, "ca.crt")?;
        check_certificates(&text).map_err(|why| format!("\"ca.crt\" of Secret {name}: {why}"))?;
        self.config.file("ca", text)
    }

    /// Writes the file of users of a Secret (`auth`), whose hashes must be of kinds that the gateway checks.
    pub(crate) fn users_file(&mut self, name: &Name) -> Result<String, String> {
        let text = self.secret_value(name, "auth")?;
        let readable =
            String::from_utf8(text.clone()).map_err(|_| format!("\"auth\" of Secret {name} is not UTF-8"))?;
        let mut users = 0;
        for line in readable.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#')) {
            let hash = line.split_once(':').map_or("", |(_, hash)| hash);
            if !["$2a$", "$2b$", "$2y$", "$argon2"].iter().any(|kind| hash.starts_with(kind)) {
                return Err(format!(
                    "\"auth\" of Secret {name} has a user whose hash is neither bcrypt nor Argon2: create it with htpasswd -B"
                ));
            }
            if !is_cheap(hash) {
                return Err(format!(
                    "\"auth\" of Secret {name} has a user whose hash is malformed or too expensive: bcrypt can have a cost up to \
                     {MAX_BCRYPT_COST}, and Argon2 m up to {MAX_ARGON2_MEMORY} and t up to {MAX_ARGON2_PASSES}"
                ));
            }
            users += 1;
        }
        if users == 0 || text.len() > MAX {
            return Err(format!("\"auth\" of Secret {name} has no users, or is too large"));
        }
        self.config.file("users", text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn expensive_hashes_are_refused() {
        for good in ["$2y$05$x", "$2b$12$x", "$argon2id$v=19$m=65536,t=3,p=4$c2FsdA$aGFzaA"] {
            assert!(is_cheap(good), "{good}");
        }
        for bad in [
            "$2y$13$x",
            "$2y$x",
            "$2y$",
            "$argon2id$v=19$m=1048576,t=1,p=1$c2FsdA$aGFzaA",
            "$argon2id$v=19$m=64,t=100,p=1$c2FsdA$aGFzaA",
            "$argon2id$v=19$m=64,m=1048576,t=1,p=1$c2FsdA$aGFzaA",
            "$argon2id$v=19$p=1$c2FsdA$aGFzaA",
        ] {
            assert!(!is_cheap(bad), "{bad}");
        }
    }

    #[test]
    fn what_is_no_certificate_is_refused() {
        for bad in [
            &b""[..],
            b"Hello world\n",
            b"-----BEGIN CERTIFICATE-----\nSGVsbG8=\n-----END CERTIFICATE-----\n",
            b"-----BEGIN CERTIFICATE-----\nSGVsbG8=\n",
        ] {
            assert!(check_certificates(bad).is_err(), "{bad:?}");
        }
    }
}
