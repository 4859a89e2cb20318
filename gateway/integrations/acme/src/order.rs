//! One order: from the name to the certificate (RFC 8555 §7.4), with a deadline for the whole.

use crate::challenges::{Answered, Challenge, Proof, Responder};
use crate::folder::Folder;
use crate::hook::Record;
use crate::http::Http;
use crate::{ChallengeKind, Settings};
use instant_acme::{
    Account, AccountCredentials, AuthorizationStatus, CertificateIdentifier, ChallengeHandle, ChallengeType, Error,
    ExternalAccountKey, Identifier, NewAccount, NewOrder, Order, OrderStatus, Problem, RetryPolicy,
};
use rcgen::{CertificateParams, CustomExtension, DistinguishedName, KeyPair};
use rustls::ClientConfig;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use std::io;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::Mutex;
use tokio::time::timeout;

/// From the first request to the certificate.
pub(crate) const ORDER_LIMIT: Duration = Duration::from_secs(150);
/// How long the authority may check, and how long it may take to issue.
const POLLS: RetryPolicy =
    RetryPolicy::new().initial_delay(Duration::from_millis(500)).backoff(1.5).timeout(Duration::from_secs(60));
/// The most bytes of what an authority says that are kept.
const MAX_WORDS: usize = 600;
/// The longest token. RFC 8555 §8.3 demands 128 bits; authorities have 43 characters.
const MAX_TOKEN: usize = 256;

/// Why there is no certificate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Failure {
    /// In words.
    pub why: String,
    /// What the authority demands to wait, in seconds.
    pub demanded: Option<u64>,
    /// The demand is for every order: a rate limit, or an authority that is not there.
    pub of_authority: bool,
    /// The authority does not know the account.
    pub account_unknown: bool,
}

impl Failure {
    /// Something here, not at the authority.
    pub fn ours(why: impl Into<String>) -> Self {
        Self { why: why.into(), demanded: None, of_authority: false, account_unknown: false }
    }

    fn of(error: &Error, http: &Http) -> Self {
        let mut failure = Self::ours(words(error));
        failure.demanded = http.demanded();
        if let Error::Api(problem) = error {
            let kind = problem.r#type.as_deref().and_then(|t| t.strip_prefix("urn:ietf:params:acme:error:"));
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

/// What all orders share.
#[derive(Clone)]
pub(crate) struct Work {
    pub settings: Arc<Settings>,
    pub folder: Folder,
    pub tls: Arc<ClientConfig>,
    pub responder: Responder,
    /// One registration at a time.
    pub registration: Arc<Mutex<()>>,
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
        self.folder.has_room().await?;
        let account = self.account(http).await?;
        let identifiers = [Identifier::Dns(name.to_owned())];
        let plain = || match self.settings.profile.as_deref() {
            Some(profile) => NewOrder::new(&identifiers).profile(profile),
            None => NewOrder::new(&identifiers),
        };
        // RFC 9773 §5: renewals that say what they replace may be exempt from limits. An authority that does not understand
        // it is asked without.
        let id = replaces.as_ref().and_then(|leaf| CertificateIdentifier::try_from(leaf).ok());
        let renewal = match id {
            Some(id) => account.new_order(&plain().replaces(id)).await.ok(),
            None => None,
        };
        let mut order = match renewal {
            Some(order) => order,
            None => account.new_order(&plain()).await.map_err(failed)?,
        };
        // Lanes answer until the order is through, whatever becomes of it.
        let answered = self.authorize(http, &mut order, name, attempt).await?;
        let ready = order.poll_ready(&POLLS).await;
        if !matches!(ready, Ok(OrderStatus::Ready)) {
            let why = why_invalid(&mut order).await;
            let mut failure = match ready {
                Err(e) => failed(e),
                Ok(_) => Failure::ours("the authority has refused the order"),
            };
            failure.why = why.unwrap_or(failure.why);
            return Err(failure);
        }
        drop(answered);
        let key = KeyPair::generate().map_err(|e| Failure::ours(e.to_string()))?;
        let mut params = CertificateParams::new(vec![name.to_owned()]).map_err(|e| Failure::ours(e.to_string()))?;
        params.distinguished_name = DistinguishedName::new();
        let request = params.serialize_request(&key).map_err(|e| Failure::ours(e.to_string()))?;
        order.finalize_csr(request.der()).await.map_err(failed)?;
        let chain = order.poll_certificate(&POLLS).await.map_err(failed)?;
        let pem = format!("{}{chain}", key.serialize_pem()).into_bytes();
        crate::certificate::check(&pem, name)
            .map_err(|why| Failure::ours(format!("the authority has issued what cannot be served: {why}")))?;
        Ok(Issued { pem })
    }

    /// The account of the folder; registers one the first time.
    async fn account(&self, http: &Http) -> Result<Account, Failure> {
        let failed = |e: Error| Failure::of(&e, http);
        let _one = self.registration.lock().await;
        let file = account_file(&self.settings.directory);
        let builder = || Account::builder_with_http(Box::new(http.clone()));
        if let Some(bytes) = self.folder.read(&file).await? {
            let credentials: AccountCredentials = serde_json::from_slice(&bytes)
                .map_err(|e| Failure::ours(format!("{file} in the folder cannot be used: {e}")))?;
            return builder().from_credentials(credentials).await.map_err(failed);
        }
        let contact: Vec<&str> = self.settings.contact.iter().map(String::as_str).collect();
        let account = NewAccount { contact: &contact, terms_of_service_agreed: true, only_return_existing: false };
        let external = self.settings.external_account.as_ref();
        let external = external.map(|e| ExternalAccountKey::new(e.id.clone(), &e.key));
        let (account, credentials) =
            builder().create(&account, self.settings.directory.clone(), external.as_ref()).await.map_err(failed)?;
        let bytes = serde_json::to_vec(&credentials).map_err(|e| Failure::ours(e.to_string()))?;
        self.folder.write(&file, bytes).await?;
        sealane_log::info!("registered an account with the certificate authority {}", self.settings.directory);
        Ok(account)
    }

    /// Forgets the account, which the authority does not know.
    pub async fn forget_account(&self) {
        let _one = self.registration.lock().await;
        let _ = self.folder.remove(&account_file(&self.settings.directory)).await;
    }

    /// Answers the challenges of an order.
    async fn authorize(&self, http: &Http, order: &mut Order, name: &str, attempt: u32) -> Result<Vec<Held>, Failure> {
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
                return Err(Failure::ours("the authority wants another name to be proven"));
            }
            // Where one way does not work, the next attempt takes another one.
            let kinds = &self.settings.challenges;
            let kinds = (0..kinds.len()).map(|i| kinds[(i + attempt as usize) % kinds.len()]);
            let offered = |kind: &ChallengeKind| {
                // RFC 8555 §8.4: who answers for one name does not answer for all names.
                let fits = *kind == ChallengeKind::Dns01 || !name.starts_with("*.");
                fits && authorization.challenges.iter().any(|c| c.r#type == type_of(*kind))
            };
            let Some(kind) = kinds.into_iter().find(offered) else {
                return Err(Failure::ours("the authority offers none of the configured challenges"));
            };
            let Some(mut challenge) = authorization.challenge(type_of(kind)) else { continue };
            answered.push(match proof(kind, name, &challenge)? {
                Some(proof) => Held::Lanes(self.responder.answer(Challenge { name: name.to_owned(), proof }).await?),
                None => {
                    let command = self.settings.dns_hook.as_deref().unwrap_or_default();
                    Held::Dns(Record::publish(command, name, challenge.key_authorization().dns_value()).await?)
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

fn type_of(kind: ChallengeKind) -> ChallengeType {
    match kind {
        ChallengeKind::Http01 => ChallengeType::Http01,
        ChallengeKind::TlsAlpn01 => ChallengeType::TlsAlpn01,
        ChallengeKind::Dns01 => ChallengeType::Dns01,
    }
}

/// An answer that is there as long as this exists.
enum Held {
    Lanes(#[expect(dead_code, reason = "holds the answer")] Answered),
    Dns(#[expect(dead_code, reason = "holds the record")] Record),
}

/// What lanes answer to prove a name; `None`: they do not.
fn proof(kind: ChallengeKind, name: &str, challenge: &ChallengeHandle<'_>) -> Result<Option<Proof>, Failure> {
    let ours = |e: rcgen::Error| Failure::ours(e.to_string());
    let authorization = challenge.key_authorization();
    match kind {
        ChallengeKind::Dns01 => Ok(None),
        ChallengeKind::Http01 => {
            // It becomes part of a path, and a response.
            let token = &challenge.token;
            let good = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_');
            if token.is_empty() || token.len() > MAX_TOKEN || !token.bytes().all(good) {
                return Err(Failure::ours("the authority's token is not base64url"));
            }
            Ok(Some(Proof::Http { token: token.clone(), key_authorization: authorization.as_str().to_owned() }))
        }
        ChallengeKind::TlsAlpn01 => {
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
                _ => "the challenge",
            };
            return Some(cut(format!("the authority could not verify {kind}: {}", problem_words(problem))));
        }
    }
    None
}

fn account_file(directory: &str) -> String {
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

    #[test]
    fn what_an_authority_says_is_one_line_of_bounded_length() {
        let text = cut(format!("a\nb\u{1b}[31m{}", "é".repeat(10_000)));
        assert!(text.starts_with("a b [31m"), "{text}");
        assert_eq!(text.chars().count(), MAX_WORDS);
    }

    #[test]
    fn each_directory_has_an_account_of_its_own() {
        let (a, b) = (account_file("https://a.example/dir"), account_file("https://a.example/dir2"));
        assert_ne!(a, b);
        assert!(crate::folder::is_file_name(&a), "{a}");
    }
}
