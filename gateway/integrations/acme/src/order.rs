//! One order: from the name to the certificate (RFC 8555 §7.4), with a deadline for the whole.

use crate::challenges::{Answered, Challenge, Proof, Responder};
use crate::folder::pending_file;
use crate::hook::Record;
use crate::http::Http;
use crate::schedule::{LONGEST_WAIT, now};
use crate::storage::{Kept, Lease, Published, Storage, StorageError};
use instant_acme::{
    Account, AccountCredentials, AuthorizationStatus, CertificateIdentifier, ChallengeHandle, ChallengeType, Error,
    ExternalAccountKey, Identifier, NewAccount, NewOrder, Order, OrderStatus, Problem, RetryPolicy,
};
use rcgen::{CertificateParams, CustomExtension, DistinguishedName, KeyPair};
use rustls::ClientConfig;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use sealane_config::{AcmeChallenge, AcmeSettings};
use serde::{Deserialize, Serialize};
use std::io::{self, ErrorKind};
use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::Mutex;
use tokio::time::timeout;
use zeroize::{Zeroize, Zeroizing};

/// From the first request to the certificate.
pub(crate) const ORDER_LIMIT: Duration = Duration::from_secs(150);
/// How long the authority may check, and how long it may take to issue.
const POLLS: RetryPolicy =
    RetryPolicy::new().initial_delay(Duration::from_millis(500)).backoff(1.5).timeout(Duration::from_secs(60));
/// The most bytes of what an authority says that are kept.
const MAX_WORDS: usize = 600;
/// How long an order is gone on with that the authority does not complete.
const PENDING_LIMIT: u64 = 86_400;
/// The longest token. RFC 8555 §8.3 demands 128 bits; authorities have 43 characters.
pub(crate) const MAX_TOKEN: usize = 256;

/// Why there is no certificate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Failure {
    /// In words.
    pub why: String,
    /// What the authority demands to wait, in seconds.
    pub demanded: Option<u64>,
    /// The demand is for every order: a rate limit, or an authority that is not there.
    pub of_authority: bool,
    /// The authority could not be reached, or its answer was none.
    pub unreachable: bool,
    /// The authority does not know the account.
    pub account_unknown: bool,
    /// Another gateway orders for the name.
    pub lost: bool,
}

impl Failure {
    /// Something here, not at the authority.
    pub fn ours(why: impl Into<String>) -> Self {
        Self {
            why: why.into(),
            demanded: None,
            of_authority: false,
            unreachable: false,
            account_unknown: false,
            lost: false,
        }
    }

    fn of(error: &Error, http: &Http) -> Self {
        let mut failure = Self::ours(words(error));
        failure.demanded = http.demanded();
        failure.unreachable = matches!(error, Error::Other(_) | Error::Json(_) | Error::Str(_));
        if let Error::Timeout(Some(at)) = error {
            // The order stays open, and is gone on with then.
            failure.demanded = Some(at.saturating_duration_since(Instant::now()).as_secs().min(LONGEST_WAIT) + 1);
        }
        if let Error::Api(problem) = error {
            let kind = kind_of(problem);
            failure.of_authority = kind == Some("rateLimited") || failure.demanded.is_some();
            failure.account_unknown = kind == Some("accountDoesNotExist");
            if kind == Some("rateLimited") && failure.demanded.is_none() {
                failure.demanded = Some(3600);
            }
        }
        failure
    }
}

impl From<io::Error> for Failure {
    fn from(e: io::Error) -> Self {
        Self::ours(e.to_string())
    }
}

impl From<StorageError> for Failure {
    fn from(e: StorageError) -> Self {
        Self { lost: matches!(e, StorageError::Lost(_)), ..Self::ours(e.to_string()) }
    }
}

/// What all orders share.
#[derive(Clone)]
pub(crate) struct Work {
    pub settings: Arc<AcmeSettings>,
    pub storage: Arc<dyn Storage>,
    /// The right to order for the name.
    pub lease: Lease,
    pub tls: Arc<ClientConfig>,
    pub responder: Responder,
    /// One registration at a time.
    pub registration: Arc<Mutex<()>>,
}

/// An order that is finalized, as it is kept on disk.
#[derive(Serialize, Deserialize)]
struct Pending {
    /// Of which authority it is.
    directory: String,
    url: String,
    /// The key of the certificate, in PEM.
    key: String,
    /// When it was finalized, in seconds since 1970.
    since: u64,
}

impl Drop for Pending {
    fn drop(&mut self) {
        self.key.zeroize();
    }
}

/// A certificate as it is kept: the key, then the chain.
pub(crate) struct Issued {
    pub pem: Vec<u8>,
}

/// What an authority suggests for a renewal (RFC 9773 §4.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Suggested {
    /// From when to when, in seconds since 1970.
    pub window: (u64, u64),
    /// In how many seconds it wants to be asked again.
    pub again: u64,
}

impl Work {
    /// Gets a certificate for a name. `attempt` chooses among the ways to prove it; `replaces` is the one that this renews.
    pub async fn obtain(
        &self,
        name: &str,
        attempt: u32,
        replaces: Option<CertificateDer<'static>>,
    ) -> Result<Issued, Failure> {
        let http = Http::new(self.tls.clone());
        let order = self.order(&http, name, attempt, replaces);
        timeout(ORDER_LIMIT, order).await.unwrap_or_else(|_| {
            Err(Failure::ours(format!("the authority has not issued it within {} s", ORDER_LIMIT.as_secs())))
        })
    }

    async fn order(
        &self,
        http: &Http,
        name: &str,
        attempt: u32,
        replaces: Option<CertificateDer<'static>>,
    ) -> Result<Issued, Failure> {
        let failed = |e: Error| Failure::of(&e, http);
        // Before the authority counts an order whose result could not be kept.
        self.storage.folder().has_room().await?;
        let account = self.account(http).await?;
        if let Some(issued) = self.resume(http, &account, name).await? {
            return Ok(issued);
        }
        let identifiers = [identifier(name)];
        let plain = || match self.settings.profile.as_deref() {
            Some(profile) => NewOrder::new(&identifiers).profile(profile),
            None => NewOrder::new(&identifiers),
        };
        // RFC 9773 §5: renewals that say what they replace may be exempt from limits. An authority that refuses it is asked
        // without.
        let id = replaces.as_ref().and_then(|leaf| CertificateIdentifier::try_from(leaf).ok());
        let renewal = match id {
            Some(id) => match account.new_order(&plain().replaces(id)).await {
                Ok(order) => Some(order),
                Err(e) if refuses_replacing(&e) => {
                    sealane_log::debug!(
                        "{name}: the authority refuses to link the order to the old certificate; ordering without it: {}",
                        words(&e)
                    );
                    None
                }
                Err(e) => return Err(failed(e)),
            },
            None => None,
        };
        let mut order = match renewal {
            Some(order) => order,
            None => account.new_order(&plain()).await.map_err(failed)?,
        };
        // Lanes answer until the order is through, whatever becomes of it.
        let answered = self.authorize(http, &mut order, name, attempt, account.id()).await?;
        let ready = order.poll_ready(&POLLS).await;
        if !matches!(ready, Ok(OrderStatus::Ready)) {
            let why = why_invalid(&mut order).await;
            let mut failure = match ready {
                Err(e) => failed(e),
                Ok(_) => Failure::ours("the authority has refused the order"),
            };
            failure.why = why.unwrap_or(failure.why);
            if let Some(record) = answered.iter().find_map(Held::persistent) {
                failure.why += &format!("; {record}");
            }
            return Err(failure);
        }
        drop(answered);
        let key = KeyPair::generate().map_err(|e| Failure::ours(e.to_string()))?;
        let mut params = CertificateParams::new(vec![name.to_owned()]).map_err(|e| Failure::ours(e.to_string()))?;
        params.distinguished_name = DistinguishedName::new();
        let request = params.serialize_request(&key).map_err(|e| Failure::ours(e.to_string()))?;
        // Before the authority has it: what becomes of the order later can be used.
        let pending = Pending {
            directory: self.settings.directory.clone(),
            url: order.url().to_owned(),
            key: key.serialize_pem(),
            since: now(),
        };
        let bytes = serde_json::to_vec(&pending).map_err(|e| Failure::ours(e.to_string()))?;
        self.storage.write(&pending_file(name), Kept::plain(bytes), &self.lease).await?;
        order.finalize_csr(request.der()).await.map_err(failed)?;
        self.complete(http, order, name, &pending.key).await
    }

    /// Waits for the certificate of an order that is finalized. An order that the authority does not complete in time is kept, and
    /// the next attempt goes on with it.
    async fn complete(&self, http: &Http, mut order: Order, name: &str, key: &str) -> Result<Issued, Failure> {
        let chain = match order.poll_certificate(&POLLS).await {
            Ok(chain) => chain,
            Err(e) => {
                if !matches!(e, Error::Timeout(_)) && order.state().status == OrderStatus::Invalid {
                    self.forget_pending(name).await;
                }
                return Err(Failure::of(&e, http));
            }
        };
        let pem = format!("{key}{chain}").into_bytes();
        if let Err(why) = crate::certificate::check(&pem, name) {
            // It would be the same the next time.
            self.forget_pending(name).await;
            return Err(Failure::ours(format!(
                "the gateway cannot serve the certificate that the authority issued: {why}"
            )));
        }
        Ok(Issued { pem })
    }

    /// Goes on with an order that the authority had not completed. `None`: there is none.
    async fn resume(&self, http: &Http, account: &Account, name: &str) -> Result<Option<Issued>, Failure> {
        let Some(bytes) = self.storage.read(&pending_file(name)).await? else { return Ok(None) };
        let bytes = Zeroizing::new(bytes);
        let pending: Option<Pending> = serde_json::from_slice(&bytes).ok();
        // One of another authority may be gone on with when that one is asked again.
        if pending.as_ref().is_some_and(|p| p.directory != self.settings.directory) {
            return Ok(None);
        }
        let open = pending.filter(|p| now().saturating_sub(p.since) < PENDING_LIMIT);
        let Some(pending) = open else {
            self.forget_pending(name).await;
            return Ok(None);
        };
        let mut order = match account.order(pending.url.clone()).await {
            Ok(order) => order,
            // It has forgotten the order.
            Err(Error::Api(problem)) if !is_for_all_orders(&problem) => {
                self.forget_pending(name).await;
                return Ok(None);
            }
            Err(e) => return Err(Failure::of(&e, http)),
        };
        match order.state().status {
            OrderStatus::Processing | OrderStatus::Valid => {
                self.complete(http, order, name, &pending.key).await.map(Some)
            }
            OrderStatus::Pending | OrderStatus::Ready | OrderStatus::Invalid => {
                self.forget_pending(name).await;
                Ok(None)
            }
        }
    }

    /// Forgets an order that was kept to go on with.
    pub async fn forget_pending(&self, name: &str) {
        if let Err(e) = self.storage.remove(&pending_file(name), &self.lease).await {
            sealane_log::warn!("{e}");
        }
    }

    /// The account of the folder; registers one the first time.
    async fn account(&self, http: &Http) -> Result<Account, Failure> {
        let failed = |e: Error| Failure::of(&e, http);
        let _one = self.registration.lock().await;
        let file = account_file(&self.settings.directory);
        let builder = || Account::builder_with_http(Box::new(http.clone()));
        let read = |bytes: Vec<u8>| {
            serde_json::from_slice::<AccountCredentials>(&bytes).map_err(|e| {
                let storage = self.settings.storage.display();
                Failure::ours(format!("the account file {storage}/{file} cannot be used: {e}"))
            })
        };
        if let Some(bytes) = self.storage.read(&file).await? {
            return builder().from_credentials(read(bytes)?).await.map_err(failed);
        }
        let contact: Vec<&str> = self.settings.contact.iter().map(String::as_str).collect();
        let account = NewAccount { contact: &contact, terms_of_service_agreed: true, only_return_existing: false };
        let external = self.settings.external_account.as_ref();
        let external = external.map(|e| ExternalAccountKey::new(e.id.clone(), &e.key));
        let (account, credentials) =
            builder().create(&account, self.settings.directory.clone(), external.as_ref()).await.map_err(failed)?;
        let bytes = serde_json::to_vec(&credentials).map_err(|e| Failure::ours(e.to_string()))?;
        match self.storage.write(&file, Kept::plain(bytes), &self.lease).await {
            // Another gateway has registered an account meanwhile: it is that of all.
            Err(StorageError::Io(e)) if e.kind() == ErrorKind::AlreadyExists => {
                let bytes = self.storage.read(&file).await?;
                let bytes = bytes.ok_or_else(|| Failure::ours("the store does not keep the account"))?;
                return builder().from_credentials(read(bytes)?).await.map_err(failed);
            }
            written => written?,
        }
        sealane_log::info!("registered an account with the certificate authority {}", self.settings.directory);
        Ok(account)
    }

    /// Forgets the account, which the authority does not know.
    pub async fn forget_account(&self) {
        let _one = self.registration.lock().await;
        let _ = self.storage.remove(&account_file(&self.settings.directory), &self.lease).await;
    }

    /// Answers the challenges of an order.
    async fn authorize(
        &self,
        http: &Http,
        order: &mut Order,
        name: &str,
        attempt: u32,
        account: &str,
    ) -> Result<Vec<Held>, Failure> {
        let failed = |e: Error| Failure::of(&e, http);
        let mut answered = Vec::new();
        let mut authorizations = order.authorizations();
        while let Some(authorization) = authorizations.next().await {
            let mut authorization = authorization.map_err(failed)?;
            match authorization.status {
                AuthorizationStatus::Pending => {}
                AuthorizationStatus::Valid => continue,
                _ => return Err(Failure::ours("the authority has refused the authorization")),
            }
            if authorization.identifier().to_string() != name || !answered.is_empty() {
                return Err(Failure::ours("the authority requires proof of another name"));
            }
            // Where one way does not work, the next attempt takes another one.
            let kinds = &self.settings.challenges;
            let kinds = (0..kinds.len()).map(|i| kinds[(i + attempt as usize) % kinds.len()]);
            let offered = |kind: &AcmeChallenge| {
                let fits = match kind {
                    // RFC 8738 §7: an address is not verified by DNS.
                    AcmeChallenge::Dns01 | AcmeChallenge::DnsPersist01 => name.parse::<IpAddr>().is_err(),
                    // RFC 8555 §8.4: who answers for one name does not answer for all names.
                    AcmeChallenge::Http01 | AcmeChallenge::TlsAlpn01 => !name.starts_with("*."),
                };
                fits && authorization.challenges.iter().any(|c| c.r#type == type_of(*kind))
            };
            let Some(kind) = kinds.into_iter().find(offered) else {
                return Err(Failure::ours("the authority offers none of the configured challenges"));
            };
            let Some(mut challenge) = authorization.challenge(type_of(kind)) else { continue };
            answered.push(match proof(kind, name, &challenge)? {
                // The operator has published the record, or reads here which one is missing.
                None if kind == AcmeChallenge::DnsPersist01 => {
                    Held::Persistent(persistent_record(name, &http.issuers(), account))
                }
                Some(proof) => {
                    let challenge = Arc::new(Challenge { name: name.to_owned(), proof });
                    let answered = self.responder.answer(challenge.clone()).await?;
                    Held::Lanes((answered, self.storage.publish(&challenge).await?))
                }
                None => {
                    let value = challenge.key_authorization().dns_value();
                    Held::Dns(Record::publish(&self.settings, name, value).await?)
                }
            });
            challenge.set_ready().await.map_err(failed)?;
        }
        Ok(answered)
    }

    /// When the authority would like a certificate to be renewed. `None`: it does not say.
    pub async fn renewal_window(&self, leaf: &CertificateDer<'static>) -> Result<Option<Suggested>, Failure> {
        let http = Http::new(self.tls.clone());
        let Ok(id) = CertificateIdentifier::try_from(leaf) else { return Ok(None) };
        let account = self.account(&http).await?;
        match account.renewal_info(&id).await {
            Ok((info, again)) => {
                let second = |t: time::OffsetDateTime| u64::try_from(t.unix_timestamp()).unwrap_or(0);
                let window = (second(info.suggested_window.start), second(info.suggested_window.end));
                Ok(Some(Suggested { window, again: again.as_secs() }))
            }
            Err(Error::Unsupported(_)) => Ok(None),
            Err(e) => Err(Failure::of(&e, &http)),
        }
    }
}

/// Whether an authority refuses an order because of the certificate that it replaces (RFC 9773 §5). What else is wrong, such as a
/// rate limit, would be wrong without it, too.
fn refuses_replacing(error: &Error) -> bool {
    match error {
        // Nothing was asked: the authority has no renewal information.
        Error::Unsupported(_) => true,
        Error::Api(problem) => {
            matches!(kind_of(problem), Some("alreadyReplaced" | "malformed" | "unauthorized" | "conflict"))
        }
        _ => false,
    }
}

/// Whether a problem says nothing about the order that was asked for.
fn is_for_all_orders(problem: &Problem) -> bool {
    matches!(kind_of(problem), Some("rateLimited" | "serverInternal" | "badNonce" | "accountDoesNotExist"))
}

/// The last part of a problem's type, if it is one of ACME's.
fn kind_of(problem: &Problem) -> Option<&str> {
    problem.r#type.as_deref().and_then(|t| t.strip_prefix("urn:ietf:params:acme:error:"))
}

/// What an order is for: a DNS name, or an address (RFC 8738).
fn identifier(name: &str) -> Identifier {
    match name.parse() {
        Ok(address) => Identifier::Ip(address),
        Err(_) => Identifier::Dns(name.to_owned()),
    }
}

/// The record that has to be in DNS for `dns-persist-01`, in words.
fn persistent_record(name: &str, issuers: &[String], account: &str) -> String {
    let (host, policy) = match name.strip_prefix("*.") {
        Some(host) => (host, "; policy=wildcard"),
        None => (name, ""),
    };
    let issuer = issuers.first().map_or("AUTHORITY", String::as_str);
    cut(format!(
        "publish the TXT record _validation-persist.{host} with the value \"{issuer}; accounturi={account}{policy}\""
    ))
}

fn type_of(kind: AcmeChallenge) -> ChallengeType {
    match kind {
        AcmeChallenge::DnsPersist01 => ChallengeType::Unknown("dns-persist-01".to_owned()),
        AcmeChallenge::Http01 => ChallengeType::Http01,
        AcmeChallenge::TlsAlpn01 => ChallengeType::TlsAlpn01,
        AcmeChallenge::Dns01 => ChallengeType::Dns01,
    }
}

/// An answer that is there as long as this exists.
enum Held {
    Lanes(#[expect(dead_code, reason = "holds the answers, here and at other gateways")] (Answered, Published)),
    Dns(#[expect(dead_code, reason = "holds the record")] Record),
    /// Nothing is published: which record has to be there.
    Persistent(String),
}

impl Held {
    fn persistent(&self) -> Option<&str> {
        match self {
            Self::Persistent(record) => Some(record),
            _ => None,
        }
    }
}

/// What lanes answer to prove a name; `None`: they do not.
fn proof(kind: AcmeChallenge, name: &str, challenge: &ChallengeHandle<'_>) -> Result<Option<Proof>, Failure> {
    let ours = |e: rcgen::Error| Failure::ours(e.to_string());
    let authorization = challenge.key_authorization();
    match kind {
        AcmeChallenge::Dns01 | AcmeChallenge::DnsPersist01 => Ok(None),
        AcmeChallenge::Http01 => {
            // It becomes part of a path, and a response.
            let token = &challenge.token;
            let good = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_');
            if token.is_empty() || token.len() > MAX_TOKEN || !token.bytes().all(good) {
                return Err(Failure::ours("the authority's token is not base64url"));
            }
            Ok(Some(Proof::Http { token: token.clone(), key_authorization: authorization.as_str().to_owned() }))
        }
        AcmeChallenge::TlsAlpn01 => {
            let key = KeyPair::generate().map_err(ours)?;
            let mut params = CertificateParams::new(vec![name.to_owned()]).map_err(ours)?;
            params.custom_extensions = vec![CustomExtension::new_acme_identifier(authorization.digest().as_ref())];
            let certificate = params.self_signed(&key).map_err(ours)?.der().clone();
            Ok(Some(Proof::Tls { certificate, key: PrivateKeyDer::Pkcs8(key.serialize_der().into()) }))
        }
    }
}

/// What the authority says was wrong with the proof.
async fn why_invalid(order: &mut Order) -> Option<String> {
    let mut authorizations = order.authorizations();
    while let Some(authorization) = authorizations.next().await {
        let mut authorization = authorization.ok()?;
        let state = authorization.refresh().await.ok()?;
        let error = state.challenges.iter().find_map(|c| Some((c.r#type.clone(), c.error.as_ref()?)));
        if let Some((kind, problem)) = error {
            let kind = match kind {
                ChallengeType::Http01 => "http-01",
                ChallengeType::TlsAlpn01 => "tls-alpn-01",
                ChallengeType::Dns01 => "dns-01",
                ChallengeType::Unknown(kind) if kind == "dns-persist-01" => "dns-persist-01",
                _ => "the challenge",
            };
            return Some(cut(format!("the authority could not verify {kind}: {}", problem_words(problem))));
        }
    }
    None
}

pub(crate) fn account_file(directory: &str) -> String {
    let digest = aws_lc_rs::digest::digest(&aws_lc_rs::digest::SHA256, directory.as_bytes());
    let hash: String = digest.as_ref()[..8].iter().map(|b| format!("{b:02x}")).collect();
    format!("account-{hash}.json")
}

fn problem_words(problem: &Problem) -> String {
    let detail = problem.detail.as_deref().unwrap_or("it does not say why");
    let kind = problem.r#type.as_deref().map(|t| t.rsplit(':').next().unwrap_or(t));
    kind.map_or_else(|| detail.to_owned(), |kind| format!("{detail} ({kind})"))
}

fn words(e: &Error) -> String {
    cut(match e {
        Error::Api(problem) => {
            let more: Vec<String> = problem.subproblems.iter().take(3).map(ToString::to_string).collect();
            let more = if more.is_empty() { String::new() } else { format!("; {}", more.join("; ")) };
            format!("the authority says: {}{more}", problem_words(problem))
        }
        Error::Json(e) => format!("the authority's answer does not parse: {e}"),
        Error::Timeout(_) => "the authority has not decided in time".to_owned(),
        e => e.to_string(),
    })
}

/// Bounds what an authority says, and keeps it to one line.
pub(crate) fn cut(text: String) -> String {
    let line: String = text.chars().map(|c| if c.is_control() { ' ' } else { c }).take(MAX_WORDS).collect();
    line.trim().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scripted::Authority;

    #[test]
    fn what_an_authority_says_is_one_line_of_bounded_length() {
        let text = cut(format!("a\nb\u{1b}[31m{}", "é".repeat(10_000)));
        assert!(text.starts_with("a b [31m"), "{text}");
        assert_eq!(text.chars().count(), MAX_WORDS);
    }

    fn problem(kind: &str) -> Error {
        let text = format!(r#"{{ "type": "urn:ietf:params:acme:error:{kind}", "detail": "no" }}"#);
        Error::Api(serde_json::from_str(&text).unwrap())
    }

    #[test]
    fn only_a_refused_replacement_is_asked_for_without_it() {
        assert!(refuses_replacing(&problem("alreadyReplaced")) && refuses_replacing(&Error::Unsupported("ARI")));
        for other in [problem("rateLimited"), problem("serverInternal"), Error::Other("it is away".into())] {
            assert!(!refuses_replacing(&other), "{other}");
        }
    }

    #[test]
    fn an_order_that_takes_longer_is_asked_for_when_the_authority_says() {
        let http = Http::new(Arc::new(sealane_tls::control_client(rustls::RootCertStore::empty())));
        let at = |seconds| Error::Timeout(Some(Instant::now() + Duration::from_secs(seconds)));
        let demanded = Failure::of(&at(3600), &http).demanded.unwrap();
        assert!((3500..=3601).contains(&demanded), "{demanded}");
        assert_eq!(Failure::of(&at(1_000_000), &http).demanded, Some(LONGEST_WAIT + 1));
        assert_eq!(Failure::of(&Error::Timeout(None), &http).demanded, None);
    }

    fn run(work: impl Future<Output = ()>) {
        tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(work);
    }

    #[test]
    fn an_order_that_the_authority_has_not_completed_is_gone_on_with() {
        run(async {
            let (authority, folder) = (Authority::start().await, tempfile::tempdir().unwrap());
            authority.script().processing = Some(7200);
            let work = authority.work(folder.path()).await;
            let failure = work.obtain("a.example", 0, None).await.map(|_| ()).unwrap_err();
            let demanded = failure.demanded.expect("the authority says when");
            assert!((7000..=7201).contains(&demanded) && !failure.of_authority, "{failure:?}");
            // A restart, and a look that comes too early.
            let work = authority.work(folder.path()).await;
            assert!(work.obtain("a.example", 1, None).await.is_err());
            authority.script().processing = None;
            let issued = work.obtain("a.example", 2, None).await.map_err(|f| f.why).unwrap();
            // The key is the one that was there before.
            crate::certificate::check(&issued.pem, "a.example").unwrap();
            assert_eq!(authority.script().orders, 1);
            work.forget_pending("a.example").await;
            work.obtain("a.example", 0, None).await.map_err(|f| f.why).unwrap();
            assert_eq!(authority.script().orders, 2, "an order that is through is not asked for again");
        });
    }

    #[test]
    fn a_renewal_that_a_rate_limit_refuses_is_not_repeated_without_what_it_replaces() {
        run(async {
            let (authority, folder) = (Authority::start().await, tempfile::tempdir().unwrap());
            let work = authority.work(folder.path()).await;
            let old = authority.issued_before("a.example");
            authority.script().refuses_replacing = Some("rateLimited");
            let failure = work.obtain("a.example", 0, Some(old.clone())).await.map(|_| ()).unwrap_err();
            assert!(failure.of_authority && failure.demanded.is_some(), "{failure:?}");
            assert_eq!(authority.script().orders, 0);
            authority.script().refuses_replacing = Some("alreadyReplaced");
            work.obtain("a.example", 0, Some(old)).await.map_err(|f| f.why).unwrap();
            assert_eq!(authority.script().orders, 1);
        });
    }

    #[test]
    fn each_directory_has_an_account_of_its_own() {
        let (a, b) = (account_file("https://a.example/dir"), account_file("https://a.example/dir2"));
        assert_ne!(a, b);
        assert!(crate::folder::is_file_name(&a), "{a}");
    }
}
