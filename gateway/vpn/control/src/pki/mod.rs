//! The certificates of a tunnel: a folder with a CA, an index of what the CA has issued, and its revocation list.
//!
//! A folder is one of two kinds (`Layout`): what `sealane tunnel init` makes, and easy-rsa's `pki`. Both keep the index in
//! OpenSSL's format ([`index`]). One command at a time changes a folder, and files that exist are replaced in one step.

pub mod index;
mod init;
mod pair;
mod profile;
mod signed;

pub use init::{Init, init};
pub use profile::Remotes;

use super::session::random;
use anyhow::{Context as _, Result, anyhow, bail};
use index::{Entry, Index, hex};
use rcgen::{
    BasicConstraints, CertificateParams, CertificateRevocationListParams, DnType, ExtendedKeyUsagePurpose, IsCa,
    Issuer, KeyIdMethod, KeyPair, KeyUsagePurpose, PKCS_ECDSA_P256_SHA256, PublicKeyData as _, RevocationReason,
    RevokedCertParams, SerialNumber,
};
use rustix::fs::FlockOperation;
use rustix::io::Errno;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use sealane_config::encrypted_key;
use serde::Serialize;
use std::fs::{File, OpenOptions};
use std::io::Write as _;
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};
use time::OffsetDateTime;
use x509_parser::prelude::{FromDer as _, ParsedExtension, X509Certificate};
use zeroize::Zeroizing;

const DAY: i64 = 86_400;
const CA_DAYS: i64 = 3650;
/// How long a client's certificate is valid, in days, if nothing else is asked.
pub const LEAF_DAYS: i64 = 825;
/// How long a command waits for another one that changes the folder.
const LOCK_LIMIT: Duration = Duration::from_secs(10);
/// The name of the server's certificate in a folder of `init`.
const SERVER: &str = "server";

/// How the files of a folder are named.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Layout {
    /// As `sealane tunnel init` does.
    Own,
    /// As easy-rsa does.
    EasyRsa,
}

/// Reasons for a revocation, as OpenSSL names them.
const REASONS: [(&str, RevocationReason); 7] = [
    ("unspecified", RevocationReason::Unspecified),
    ("keyCompromise", RevocationReason::KeyCompromise),
    ("CACompromise", RevocationReason::CaCompromise),
    ("affiliationChanged", RevocationReason::AffiliationChanged),
    ("superseded", RevocationReason::Superseded),
    ("cessationOfOperation", RevocationReason::CessationOfOperation),
    ("certificateHold", RevocationReason::CertificateHold),
];

/// The names of `REASONS`.
pub fn reasons() -> impl Iterator<Item = &'static str> {
    REASONS.iter().map(|(name, _)| *name)
}

/// Which certificates are revoked.
#[derive(Clone, Copy, Debug)]
pub enum Which<'a> {
    /// All of a name.
    Name(&'a str),
    /// The one in a file: a PEM certificate, or a client profile.
    File(&'a Path),
}

/// A certificate of the index, for people and programs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Issued {
    /// Its common name.
    pub name: String,
    /// `valid`, `expired` or `revoked`.
    pub state: &'static str,
    /// When it expires, in seconds since 1970.
    pub not_after: i64,
    /// When it was revoked, in seconds since 1970.
    pub revoked: Option<i64>,
    /// Why it was revoked.
    pub reason: Option<String>,
    /// Its serial number, hexadecimal.
    pub serial: String,
}

/// A certificate and its key, PEM.
#[derive(Debug)]
struct Pair {
    certificate: String,
    key: Zeroizing<String>,
}

/// Gives the passphrase of the CA's key when it is needed.
pub type AskPassphrase<'a> = &'a mut dyn FnMut() -> Result<Zeroizing<String>>;

/// A folder with a CA.
#[derive(Debug)]
pub struct Ca {
    /// As named.
    folder: PathBuf,
    /// Where the index and the revocation list are.
    pki: PathBuf,
    layout: Layout,
    /// The CA's key.
    key: PathBuf,
    certificate: CertificateDer<'static>,
}

/// Where a command of a CA stands: nothing else changes the folder while this is there.
struct Locked<'a> {
    ca: &'a Ca,
    index: Index,
    _lock: File,
}

impl Ca {
    /// A folder of `sealane tunnel init`, or one of easy-rsa (the folder itself, or its `pki`). `key`: where the CA's key is, if
    /// not where the folder has it.
    pub fn open(folder: &Path, key: Option<&Path>) -> Result<Self> {
        let is_easy_rsa = |pki: &Path| pki.join("ca.crt").exists() && pki.join("issued").is_dir();
        let (pki, layout, own_key) = match () {
            () if is_easy_rsa(&folder.join("pki")) => (folder.join("pki"), Layout::EasyRsa, "private/ca.key"),
            () if is_easy_rsa(folder) => (folder.to_owned(), Layout::EasyRsa, "private/ca.key"),
            () => (folder.to_owned(), Layout::Own, "ca.key"),
        };
        let file = pki.join("ca.crt");
        let pem = std::fs::read(&file).map_err(|e| {
            let (shown, why) = (file.display(), sealane_config::plain(&e));
            anyhow!("{shown}: {why}\n  help: name the folder of `sealane tunnel init` or of easy-rsa with --folder")
        })?;
        let certificate = CertificateDer::from_pem_slice(&pem).with_context(|| file.display().to_string())?;
        let key = key.map_or_else(|| pki.join(own_key), Path::to_owned);
        Ok(Self { folder: folder.to_owned(), pki, layout, key, certificate })
    }

    fn parsed(&self) -> Result<X509Certificate<'_>> {
        Ok(X509Certificate::from_der(&self.certificate).context("ca.crt")?.1)
    }

    /// How lists name the CA's key: as its certificate does, since OpenSSL compares the two.
    fn key_id(&self) -> Result<KeyIdMethod> {
        let ca = self.parsed()?;
        let id = ca.iter_extensions().find_map(|e| match e.parsed_extension() {
            ParsedExtension::SubjectKeyIdentifier(id) => Some(id.0.to_vec()),
            _ => None,
        });
        Ok(id.map_or(KeyIdMethod::Sha256, KeyIdMethod::PreSpecified))
    }

    /// When the CA's certificate expires, in seconds since 1970.
    pub fn not_after(&self) -> Result<i64> {
        Ok(self.parsed()?.validity().not_after.timestamp())
    }

    /// The revocation list.
    pub fn crl_file(&self) -> PathBuf {
        self.pki.join("crl.pem")
    }

    fn index_file(&self) -> PathBuf {
        self.pki.join("index.txt")
    }

    fn read_index(&self) -> Result<Index> {
        let file = self.index_file();
        match std::fs::read_to_string(&file) {
            Ok(text) => Index::parse(&text).with_context(|| file.display().to_string()),
            // A folder of before there was an index: the server's certificate is known, clients' are not.
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => {
                let mut index = Index::default();
                if let Ok(pem) = std::fs::read(self.pki.join("server.crt")) {
                    let der = CertificateDer::from_pem_slice(&pem).context("server.crt")?;
                    index.entries.push(entry_of(&der)?);
                }
                Ok(index)
            }
            Err(e) => Err(e).with_context(|| file.display().to_string()),
        }
    }

    fn lock(&self) -> Result<Locked<'_>> {
        let lock = File::open(&self.pki).with_context(|| self.pki.display().to_string())?;
        let limit = Instant::now() + LOCK_LIMIT;
        while let Err(e) = rustix::fs::flock(&lock, FlockOperation::NonBlockingLockExclusive) {
            if !matches!(e, Errno::WOULDBLOCK | Errno::INTR) {
                let shown = self.pki.display();
                return Err(e).with_context(|| {
                    format!(
                        "{shown}: cannot be locked (NFS has no locks for folders): use the folder where it is local"
                    )
                });
            }
            if Instant::now() >= limit {
                return Err(e).with_context(|| format!("another command uses {}", self.pki.display()));
            }
            std::thread::sleep(Duration::from_millis(50));
        }
        pair::recover(&self.pki)?;
        Ok(Locked { ca: self, index: self.read_index()?, _lock: lock })
    }

    /// The CA's key, ready to sign.
    fn issuer(&self, ask: AskPassphrase<'_>) -> Result<Issuer<'static, KeyPair>> {
        let shown = self.key.display();
        let pem = Zeroizing::new(std::fs::read(&self.key).with_context(|| {
            format!("cannot read the CA's key {shown} (if it is in another place, name it with --ca-key)")
        })?);
        let key = match encrypted_key::is_encrypted(&pem) {
            true => encrypted_key::decrypt(&pem, ask()?.as_bytes()).with_context(|| shown.to_string())?,
            false => PrivateKeyDer::from_pem_slice(&pem)
                .with_context(|| format!("{shown}: this is not a private key in PEM that can be read"))?,
        };
        let key = KeyPair::try_from(&key).with_context(|| shown.to_string())?;
        let issuer = Issuer::from_ca_cert_der(&self.certificate, key).context("ca.crt")?;
        if issuer.key().subject_public_key_info() != self.parsed()?.public_key().raw {
            bail!("{shown}: this is not the key of {}", self.pki.join("ca.crt").display());
        }
        Ok(issuer)
    }

    /// What was issued, the oldest first.
    pub fn list(&self) -> Result<Vec<Issued>> {
        let now = now();
        let state = |entry: &Entry| match () {
            () if entry.revoked.is_some() => "revoked",
            () if entry.not_after <= now => "expired",
            () => "valid",
        };
        let issued = self.read_index()?.entries.into_iter().map(|entry| Issued {
            state: state(&entry),
            serial: hex(&entry.serial),
            name: entry.name,
            not_after: entry.not_after,
            revoked: entry.revoked,
            reason: entry.reason,
        });
        Ok(issued.collect())
    }

    /// A complete `.ovpn` for a client. `renew`: the client has a certificate, and is given another.
    ///
    /// Errors: the client has a certificate that is valid, or has none to be renewed; nothing was issued.
    pub fn client_profile(
        &self,
        name: &str,
        renew: bool,
        days: i64,
        remotes: &Remotes<'_>,
        ask: AskPassphrase<'_>,
    ) -> Result<String> {
        let good = !name.is_empty()
            && name.len() <= 64
            && name.chars().all(|c| c.is_ascii_graphic() && !"/,\"'\\".contains(c));
        if !good {
            bail!(
                "{name:?}: write a name of 1 to 64 printable ASCII characters, without spaces, commas, quotes, slashes and backslashes"
            );
        }
        // Before anything is issued: a profile that cannot be completed must not leave a certificate behind.
        let (frame, issuer) = (self.frame(remotes)?, self.issuer(ask)?);
        let mut locked = self.lock()?;
        if self.is_server(name) {
            bail!("{name}: this is the server's name; a client needs another");
        }
        match (renew, locked.index.good(name, now()).next()) {
            (false, Some(entry)) => bail!(
                "{name} has a certificate already, which is valid for another {} days: `sealane tunnel ca renew {name}` \
                 issues a new one, and `sealane tunnel ca revoke {name}` revokes it",
                (entry.not_after - now()) / DAY
            ),
            (true, None) if !locked.index.entries.iter().any(|e| e.name == name) => {
                bail!("{name} was never issued a certificate by this CA: use `sealane tunnel client-config {name}`")
            }
            _ => {}
        }
        let pair = locked.issue(&issuer, name, ExtendedKeyUsagePurpose::ClientAuth, days)?;
        frame.complete(name, &pair)
    }

    /// Whether a name is the server's.
    fn is_server(&self, name: &str) -> bool {
        match self.layout {
            Layout::Own => name == SERVER,
            Layout::EasyRsa => std::fs::read(self.pki.join(format!("issued/{name}.crt"))).is_ok_and(|pem| {
                CertificateDer::from_pem_slice(&pem).is_ok_and(|der| {
                    X509Certificate::from_der(&der).is_ok_and(|(_, cert)| {
                        cert.extended_key_usage().ok().flatten().is_some_and(|usage| usage.value.server_auth)
                    })
                })
            }),
        }
    }

    /// Whether `renew` of this name is a matter of the server's own files.
    pub fn renews_server(&self, name: &str) -> bool {
        self.layout == Layout::Own && name == SERVER
    }

    /// Gives the server a new certificate with a new key, in the place of the old files.
    pub fn renew_server(&self, days: i64, ask: AskPassphrase<'_>) -> Result<()> {
        let issuer = self.issuer(ask)?;
        let mut locked = self.lock()?;
        let pair = locked.issue(&issuer, SERVER, ExtendedKeyUsagePurpose::ServerAuth, days)?;
        pair::replace(&self.pki, &pair)
    }

    /// Revokes certificates and writes the revocation list. Those that were revoked before stay as they are. Returns the serial
    /// numbers of all that are revoked now.
    pub fn revoke(&self, which: Which<'_>, reason: Option<&str>, ask: AskPassphrase<'_>) -> Result<Vec<String>> {
        if let Some(reason) = reason.filter(|reason| !REASONS.iter().any(|(name, _)| name == reason)) {
            bail!("{reason:?} is not a reason; the reasons are {}", reasons().collect::<Vec<_>>().join(", "));
        }
        let issuer = self.issuer(ask)?;
        let mut locked = self.lock()?;
        let selected: Vec<usize> = match which {
            Which::Name(name) => {
                let entries = locked.index.entries.iter().enumerate();
                entries.filter(|(_, entry)| entry.name == name).map(|(i, _)| i).collect()
            }
            Which::File(file) => {
                let entry = self.entry_of_file(file)?;
                let known = locked.index.entries.iter().position(|e| e.serial == entry.serial);
                vec![known.unwrap_or_else(|| {
                    locked.index.entries.push(entry);
                    locked.index.entries.len() - 1
                })]
            }
        };
        if selected.is_empty() {
            let Which::Name(name) = which else { return Ok(Vec::new()) };
            bail!(
                "{} has no certificate of {name}. If the certificate was issued before the folder had an index, name its \
                 file: sealane tunnel ca revoke --certificate FILE (a certificate or a profile)",
                self.index_file().display()
            );
        }
        let now = now();
        for &i in &selected {
            let entry = &mut locked.index.entries[i];
            if entry.revoked.is_none() {
                (entry.revoked, entry.reason) = (Some(now), reason.map(str::to_owned));
            }
        }
        // The index first: if the list cannot be written, the next command writes it.
        locked.write_index()?;
        locked.write_list(&issuer)?;
        let revoked: Vec<Entry> = selected.iter().map(|&i| locked.index.entries[i].clone()).collect();
        if self.layout == Layout::EasyRsa {
            revoked.iter().for_each(|entry| self.put_away(entry));
        }
        Ok(revoked.iter().map(|entry| hex(&entry.serial)).collect())
    }

    /// Writes the revocation list anew, from the index.
    pub fn write_list(&self, ask: AskPassphrase<'_>) -> Result<()> {
        let issuer = self.issuer(ask)?;
        self.lock()?.write_list(&issuer)
    }

    /// Whether the CA's key can be used.
    pub fn check_key(&self, ask: AskPassphrase<'_>) -> Result<()> {
        self.issuer(ask).map(drop)
    }

    /// Encrypts the CA's key with a new passphrase; `None`: writes it as it is.
    pub fn set_passphrase(&self, new: Option<&str>, ask: AskPassphrase<'_>) -> Result<()> {
        let issuer = self.issuer(ask)?;
        let _lock = self.lock()?;
        replace(&self.key, &key_pem(issuer.key(), new)?, 0o600)
    }

    /// The certificate in a file: of a profile, its `<cert>`.
    fn entry_of_file(&self, file: &Path) -> Result<Entry> {
        let shown = file.display();
        let text = std::fs::read_to_string(file).with_context(|| shown.to_string())?;
        let block = text.split_once("<cert>").and_then(|(_, rest)| rest.split_once("</cert>"));
        let pem = block.map_or(text.as_str(), |(block, _)| block);
        let der = CertificateDer::from_pem_slice(pem.as_bytes())
            .with_context(|| format!("{shown}: there is no certificate in this file"))?;
        let (_, cert) = X509Certificate::from_der(&der).with_context(|| shown.to_string())?;
        let ca = self.parsed()?;
        // Two CAs may have one name; then their keys tell them apart.
        let issuer_key = cert.iter_extensions().find_map(|e| match e.parsed_extension() {
            ParsedExtension::AuthorityKeyIdentifier(id) => id.key_identifier.as_ref().map(|id| id.0),
            _ => None,
        });
        let key_id = self.key_id()?;
        let other_key = match (issuer_key, &key_id) {
            (Some(theirs), KeyIdMethod::PreSpecified(ours)) => theirs != ours.as_slice(),
            _ => false,
        };
        if cert.issuer().as_raw() != ca.subject().as_raw() || other_key {
            bail!("{shown}: the certificate was issued by another CA ({})", cert.issuer());
        }
        // Everybody can write a certificate with the CA's name and another client's serial number into it.
        signed::check(&der, &self.certificate).with_context(|| shown.to_string())?;
        entry_of(&der)
    }

    /// Moves the files of a revoked certificate as `easyrsa revoke` does, so that easy-rsa issues the name again.
    fn put_away(&self, entry: &Entry) {
        let (name, serial) = (&entry.name, hex(&entry.serial));
        if name.contains('/') {
            return;
        }
        let issued = self.pki.join(format!("issued/{name}.crt"));
        let is_it = std::fs::read(&issued).is_ok_and(|pem| {
            CertificateDer::from_pem_slice(&pem)
                .is_ok_and(|der| entry_of(&der).is_ok_and(|there| there.serial == entry.serial))
        });
        // The list is what counts: files that stay where they are are in the way of easy-rsa at most.
        let _ = std::fs::remove_file(self.pki.join(format!("certs_by_serial/{serial}.pem")));
        for (from, to, ending) in [("issued", "certs", "crt"), ("private", "private", "key"), ("reqs", "reqs", "req")]
            .iter()
            .filter(|_| is_it)
        {
            let folder = self.pki.join(format!("revoked/{to}_by_serial"));
            let _ = std::fs::create_dir_all(&folder);
            let from = self.pki.join(format!("{from}/{name}.{ending}"));
            let _ = std::fs::rename(from, folder.join(format!("{serial}.{ending}")));
        }
    }
}

impl Locked<'_> {
    fn issue(
        &mut self,
        issuer: &Issuer<'_, KeyPair>,
        name: &str,
        usage: ExtendedKeyUsagePurpose,
        days: i64,
    ) -> Result<Pair> {
        let end = (now() + days * DAY).min(self.ca.not_after()?);
        if end <= now() {
            bail!("{}: the CA has expired", self.ca.pki.join("ca.crt").display());
        }
        let serial = new_serial()?;
        let pair = leaf(issuer, name, usage, &serial, end)?;
        self.index.entries.push(Entry::new(name, serial.clone(), end));
        // Before anybody has the certificate: one that is not in the index cannot be revoked by name.
        self.write_index()?;
        if self.ca.layout == Layout::EasyRsa {
            let serial = hex(&serial);
            replace(&self.ca.pki.join(format!("certs_by_serial/{serial}.pem")), &pair.certificate, 0o600)?;
            replace(&self.ca.pki.join(format!("issued/{name}.crt")), &pair.certificate, 0o600)?;
        }
        Ok(pair)
    }

    fn write_index(&self) -> Result<()> {
        replace(&self.ca.index_file(), &self.index.to_text()?, 0o600)
    }

    fn write_list(&self, issuer: &Issuer<'_, KeyPair>) -> Result<()> {
        let list = revocation_list(issuer, self.ca.key_id()?, &self.index, self.ca.not_after()?)?;
        // Everybody may read it, and a gateway that is not root must.
        replace(&self.ca.crl_file(), &list, 0o644)
    }
}

/// A list of all that is revoked. It is good as long as the CA: servers refuse everybody when a list has expired, and nobody
/// writes a list for that alone.
fn revocation_list(
    issuer: &Issuer<'_, KeyPair>,
    key_identifier_method: KeyIdMethod,
    index: &Index,
    not_after: i64,
) -> Result<String> {
    let time = |seconds| OffsetDateTime::from_unix_timestamp(seconds);
    let now = now();
    let mut revoked_certs = Vec::new();
    for entry in &index.entries {
        let Some(revoked) = entry.revoked else { continue };
        let reason = entry.reason.as_ref().and_then(|why| REASONS.iter().find(|(name, _)| name == why));
        revoked_certs.push(RevokedCertParams {
            serial_number: SerialNumber::from(entry.serial.clone()),
            revocation_time: time(revoked)?,
            // RFC 5280 §5.3.1: "unspecified" is not written.
            reason_code: reason.map(|(_, code)| *code).filter(|code| *code != RevocationReason::Unspecified),
            invalidity_date: None,
        });
    }
    let list = CertificateRevocationListParams {
        // A clock that is an hour off is not worth a failure.
        this_update: time(now - 3600)?,
        next_update: time(not_after).context("the expiry date of the CA cannot be used")?,
        crl_number: SerialNumber::from(u64::try_from(now).unwrap_or(1)),
        issuing_distribution_point: None,
        revoked_certs,
        key_identifier_method,
    };
    Ok(list.signed_by(issuer).context("the revocation list cannot be signed")?.pem()?)
}

/// What the index says of a certificate.
fn entry_of(der: &[u8]) -> Result<Entry> {
    let (_, cert) = X509Certificate::from_der(der).context("the certificate cannot be read")?;
    let name = super::verify::common_name(der).context("the certificate has no common name")?;
    // DER has a zero before a high bit; OpenSSL's index has not.
    let serial = cert.raw_serial();
    let serial = if let [0, rest @ ..] = serial
        && !rest.is_empty()
    {
        rest
    } else {
        serial
    };
    Ok(Entry::new(&name, serial.to_vec(), cert.validity().not_after.timestamp()))
}

/// 127 random bits.
fn new_serial() -> Result<Vec<u8>> {
    let mut serial: [u8; 16] = random()?;
    serial[0] = serial[0] & 0x3f | 0x40;
    Ok(serial.to_vec())
}

fn leaf(
    issuer: &Issuer<'_, KeyPair>,
    name: &str,
    usage: ExtendedKeyUsagePurpose,
    serial: &[u8],
    not_after: i64,
) -> Result<Pair> {
    let key = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256)?;
    let mut params = parameters(name, not_after)?;
    params.serial_number = Some(SerialNumber::from(serial.to_vec()));
    params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    params.extended_key_usages = vec![usage];
    params.use_authority_key_identifier_extension = true;
    Ok(Pair { certificate: params.signed_by(&key, issuer)?.pem(), key: Zeroizing::new(key.serialize_pem()) })
}

fn now() -> i64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_secs() as i64)
}

fn parameters(name: &str, not_after: i64) -> Result<CertificateParams> {
    let mut params = CertificateParams::new(Vec::<String>::new())?;
    params.distinguished_name = rcgen::DistinguishedName::new();
    params.distinguished_name.push(DnType::CommonName, name);
    // A clock that is an hour off is not worth a failure.
    params.not_before = OffsetDateTime::from_unix_timestamp(now() - 3600)?;
    params.not_after = OffsetDateTime::from_unix_timestamp(not_after)?;
    Ok(params)
}

fn key_pem(key: &KeyPair, passphrase: Option<&str>) -> Result<Zeroizing<String>> {
    let Some(passphrase) = passphrase else { return Ok(Zeroizing::new(key.serialize_pem())) };
    let plain = Zeroizing::new(key.serialize_der());
    let pem = encrypted_key::encrypt(&plain, passphrase.as_bytes());
    Ok(Zeroizing::new(pem.map_err(|_| anyhow::anyhow!("the key cannot be encrypted"))?))
}

/// Writes a new file; one that is there is not touched.
pub fn write(path: &Path, text: &str, mode: u32) -> Result<()> {
    let mut options = OpenOptions::new();
    options.write(true).create_new(true).mode(mode);
    let mut file = options.open(path).with_context(|| path.display().to_string())?;
    file.write_all(text.as_bytes()).with_context(|| path.display().to_string())
}

/// Writes a file in one step for those who read it.
fn replace(path: &Path, text: &str, mode: u32) -> Result<()> {
    Staged::write(path, text, mode)?.commit()
}

/// A file that is written beside the one that it replaces.
struct Staged {
    place: PathBuf,
    temporary: PathBuf,
}

impl Staged {
    /// Where a file is, and where its successor is written: what a symbolic link names is replaced, not the link.
    fn of(path: &Path) -> Self {
        let place = std::fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
        let mut temporary = place.as_os_str().to_owned();
        temporary.push(".new");
        Self { place, temporary: temporary.into() }
    }

    /// Writes the successor. It has the mode of the file that is there, and its owner where that is allowed.
    fn write(path: &Path, text: &str, mode: u32) -> Result<Self> {
        let staged = Self::of(path);
        let write = || {
            let there = std::fs::metadata(&staged.place).ok();
            let mode = there.as_ref().map_or(mode, |there| there.permissions().mode() & 0o777);
            // Left behind by a command that was stopped; made anew, so that its mode is right from the start.
            let _ = std::fs::remove_file(&staged.temporary);
            let mut file = OpenOptions::new().write(true).create_new(true).mode(mode).open(&staged.temporary)?;
            if let Some(there) = &there {
                // Only root may give it away; everybody else owns it already, or may not read it afterwards.
                let _ = std::os::unix::fs::fchown(&file, Some(there.uid()), Some(there.gid()));
            }
            file.write_all(text.as_bytes())?;
            file.sync_all()
        };
        write().with_context(|| path.display().to_string())?;
        Ok(staged)
    }

    /// Puts it in place of the file.
    fn commit(self) -> Result<()> {
        let rename = || {
            std::fs::rename(&self.temporary, &self.place)?;
            let folder = self.place.parent().filter(|folder| !folder.as_os_str().is_empty());
            // The name as well as the content outlives a power failure.
            File::open(folder.unwrap_or(Path::new(".")))?.sync_all()
        };
        rename().with_context(|| self.place.display().to_string())
    }
}

#[cfg(test)]
mod tests;
