//! Certificates, keys and authorities in Secrets and ConfigMaps, as far as they can be checked without cryptography; the gateway checks the
//! rest, and names the line of the configuration if something is wrong.

use crate::Translation;
use crate::objects::Name;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use x509_parser::pem::Pem;

/// The largest certificate or list of authorities, in bytes.
const MAX: usize = 256 << 10;

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

impl Translation<'_> {
    fn secret_value(&self, name: &Name, key: &str) -> Result<Vec<u8>, String> {
        let secret = self.world.secrets.get(name).ok_or_else(|| format!("there is no Secret {name}"))?;
        let data = secret.data.get(key).ok_or_else(|| format!("Secret {name} has no {key:?}"))?;
        STANDARD.decode(data).map_err(|_| format!("{key:?} of Secret {name} is not base64"))
    }

    /// Writes the files of a Secret with a certificate. Returns the paths of the certificate and of the key.
    pub(crate) fn certificate_files(&mut self, name: &Name) -> Result<(String, String), String> {
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
        Ok((self.config.file("cert", certificate), self.config.file("key", key)))
    }

    /// Writes a file with the authorities of a ConfigMap.
    pub(crate) fn authority_of_config_map(&mut self, name: &Name) -> Result<String, String> {
        let text = self.authorities(name)?;
        Ok(self.config.file("ca", text))
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
        Ok(self.config.file("ca", text))
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
            users += 1;
        }
        if users == 0 || text.len() > MAX {
            return Err(format!("\"auth\" of Secret {name} has no users, or is too large"));
        }
        Ok(self.config.file("users", text))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
