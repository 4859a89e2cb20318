//! How long a client's authentication lasts.
//!
//! A client certificate is verified in a full handshake only; resumed sessions repeat the result. So that an expired
//! certificate does not resume for ever, a session carries when its certificate was verified and when the first
//! certificate of its chain expires. Tickets and stored sessions hold both (in front of rustls' own state), a resumed
//! session takes them over into the tickets that it issues, and a ticket whose authentication has ended opens to nothing:
//! the handshake is a full one, and the certificate is verified again.
//!
//! rustls verifies certificates, opens tickets and issues tickets from `Send + Sync` objects that do not know the session.
//! They all run on the session's thread within [`during`], which lends them the session's authentication.

use crate::description;
use crate::policy::{ClientName, MAX_DEPTH};
use rustls::client::danger::HandshakeSignatureValid;
use rustls::pki_types::{CertificateDer, UnixTime};
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::{CertificateError, DigitallySignedStruct, DistinguishedName, Error, SignatureScheme};
use std::cell::Cell;
use std::sync::Arc;
use std::time::Duration;
use x509_parser::certificate::X509CertificateParser;
use x509_parser::nom::Parser as _;
use x509_parser::prelude::{FromDer, GeneralName, X509Certificate, X509Name};

/// The default for how long a client's certificate, once verified, is good for resumption.
pub const REAUTHENTICATE_AFTER: Duration = Duration::from_secs(24 * 3600);

/// When a session's client certificate was verified, in seconds since 1970.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Authentication {
    /// The time of the full handshake.
    verified: u64,
    /// The first `notAfter` of the chain that the client has shown.
    expires: u64,
    /// It is from a ticket or a stored session.
    resumed: bool,
}

thread_local! {
    static CURRENT: Cell<Option<Authentication>> = const { Cell::new(None) };
}

/// Lets a session handle what it has received. `authentication` is the session's; verifying a certificate or opening a
/// ticket sets it, and tickets issued meanwhile carry it.
pub(crate) fn during<T>(authentication: &mut Option<Authentication>, handle: impl FnOnce() -> T) -> T {
    CURRENT.set(*authentication);
    let handled = handle();
    *authentication = CURRENT.take();
    handled
}

/// Forgets the authentication of a ticket that was opened and not used: the handshake is a full one.
pub(crate) fn forget_unused_ticket(authentication: &mut Option<Authentication>) {
    *authentication = authentication.filter(|a| !a.resumed);
}

/// What tickets and stored sessions of one policy hold in front of rustls' state, and when they are refused.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    /// How long an authentication is good for, in seconds.
    max_age: u64,
}

/// No client certificate.
const ANONYMOUS: u8 = 0;
/// The times follow, 8 bytes each.
const AUTHENTICATED: u8 = 1;

impl Limits {
    pub fn new(max_age: Duration) -> Self {
        Self { max_age: max_age.as_secs() }
    }

    /// rustls' state of the current session with its authentication in front.
    pub fn wrap(self, state: &[u8]) -> Vec<u8> {
        let mut wrapped = Vec::with_capacity(1 + 16 + state.len());
        match CURRENT.get() {
            None => wrapped.push(ANONYMOUS),
            Some(a) => {
                wrapped.push(AUTHENTICATED);
                wrapped.extend_from_slice(&a.verified.to_be_bytes());
                wrapped.extend_from_slice(&a.expires.to_be_bytes());
            }
        }
        wrapped.extend_from_slice(state);
        wrapped
    }

    /// rustls' state, and the session's authentication is the ticket's from now on. `None` where that has ended.
    pub fn unwrap(self, wrapped: &[u8]) -> Option<&[u8]> {
        self.unwrap_at(wrapped, UnixTime::now().as_secs())
    }

    fn unwrap_at(self, wrapped: &[u8], now: u64) -> Option<&[u8]> {
        let (kind, rest) = wrapped.split_first()?;
        let (authentication, state) = match *kind {
            ANONYMOUS => (None, rest),
            AUTHENTICATED => {
                let (verified, rest) = rest.split_first_chunk()?;
                let (expires, state) = rest.split_first_chunk()?;
                let (verified, expires) = (u64::from_be_bytes(*verified), u64::from_be_bytes(*expires));
                // A clock that was set back makes no authentication younger than nothing.
                if now >= expires || now.saturating_sub(verified) >= self.max_age {
                    return None;
                }
                (Some(Authentication { verified, expires, resumed: true }), state)
            }
            _ => return None,
        };
        CURRENT.set(authentication);
        Some(state)
    }
}

/// Verifies the client certificates of some authorities as another verifier does, and demands one of some names.
#[derive(Debug)]
pub(crate) struct AuthorityVerifier {
    pub verifier: Arc<dyn ClientCertVerifier>,
    /// Empty: every name is good.
    pub names: Vec<ClientName>,
    /// The most intermediate certificates that a client may send. Those that are trust anchors do not count.
    pub depth: u8,
    /// Trust anchors.
    pub roots: Vec<CertificateDer<'static>>,
    /// Revocation lists are to be fetched, and none is there yet.
    pub lists_missing: bool,
    /// When the revocation lists expire by which the certificate is judged, if that matters.
    pub lists_end: Option<u64>,
}

impl AuthorityVerifier {
    /// Verifies a certificate, and returns for how long it is good, in seconds since 1970.
    fn verify(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<u64, Error> {
        self.verifier.verify_client_cert(end_entity, intermediates, now)?;
        // The verifier does not tell which of them the chain needs. Many programs also send the root.
        let depth = || intermediates.iter().filter(|c| !self.roots.contains(c)).count();
        if self.depth < MAX_DEPTH && depth() > usize::from(self.depth) {
            return Err(CertificateError::UnknownIssuer.into());
        }
        if self.lists_missing {
            return Err(CertificateError::UnknownRevocationStatus.into());
        }
        if !self.names.is_empty() && !has_one_of(end_entity, &self.names) {
            return Err(CertificateError::ApplicationVerificationFailure.into());
        }
        // A certificate that the chain does not need may expire first. Then the session ends earlier than it could, and
        // the client authenticates again. One that cannot be read has expired.
        let expiry = |c: &CertificateDer<'_>| not_after(c).unwrap_or_default();
        let expires = intermediates.iter().map(expiry).fold(expiry(end_entity), u64::min);
        Ok(self.lists_end.map_or(expires, |end| expires.min(end)))
    }
}

/// Accepts the client certificates that satisfy the rule of one of some authorities, and notes for how long they are good.
#[derive(Debug)]
pub(crate) struct NotesAuthentication {
    /// Never empty.
    authorities: Vec<AuthorityVerifier>,
    /// The names of all trust anchors, each once.
    hints: Vec<DistinguishedName>,
}

impl NotesAuthentication {
    /// `None` without an authority.
    pub fn new(authorities: Vec<AuthorityVerifier>) -> Option<Self> {
        let mut hints: Vec<DistinguishedName> = Vec::new();
        for hint in authorities.iter().flat_map(|authority| authority.verifier.root_hint_subjects()) {
            if !hints.iter().any(|known| known.as_ref() == hint.as_ref()) {
                hints.push(hint.clone());
            }
        }
        (!authorities.is_empty()).then_some(Self { authorities, hints })
    }

    /// What does not depend on the authority.
    fn any(&self) -> &dyn ClientCertVerifier {
        &*self.authorities[0].verifier
    }
}

impl ClientCertVerifier for NotesAuthentication {
    fn offer_client_auth(&self) -> bool {
        self.any().offer_client_auth()
    }

    fn client_auth_mandatory(&self) -> bool {
        self.any().client_auth_mandatory()
    }

    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        &self.hints
    }

    fn verify_client_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        // That an authority has not signed it says less than what is wrong with one that it has signed. A bad signature is that of another
        // authority with the same name.
        let unsigned = [CertificateError::UnknownIssuer, CertificateError::BadSignature].map(Error::from);
        let mut failure = Error::from(CertificateError::UnknownIssuer);
        for authority in &self.authorities {
            match authority.verify(end_entity, intermediates, now) {
                Ok(expires) => {
                    CURRENT.set(Some(Authentication { verified: now.as_secs(), expires, resumed: false }));
                    return Ok(ClientCertVerified::assertion());
                }
                Err(e) if unsigned.contains(&failure) => failure = e,
                Err(_) => {}
            }
        }
        Err(failure)
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.any().verify_tls12_signature(message, cert, dss)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.any().verify_tls13_signature(message, cert, dss)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.any().supported_verify_schemes()
    }
}

/// The names in a client's certificate, by which a client is allowed or refused.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CertificateNames {
    /// In lower case. A wildcard in a client's certificate is no name.
    dns: Vec<String>,
    uris: Vec<String>,
    emails: Vec<String>,
    /// Where the subject has one only.
    common: Option<String>,
    /// As [`CertificateDescription`](crate::CertificateDescription) has it, and empty where it has no attribute. `None`: it is in doubt.
    subject: Option<String>,
    /// The same of the authority.
    issuer: Option<String>,
    /// Names that are not clear enough to be allowed by, and that may be meant all the same where a name is refused.
    doubtful: Doubtful,
}

/// What [`CertificateNames`] does not take for names.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Doubtful {
    /// What stands behind `*` in DNS names, with the dot, in lower case.
    wildcards: Vec<String>,
    /// The common names of a subject that has several.
    commons: Vec<String>,
    /// The certificate, or a common name, cannot be read.
    unread: bool,
}

impl CertificateNames {
    /// The names of a certificate in DER. One that does not parse has none.
    pub fn of(certificate: &[u8]) -> Self {
        let mut names = Self::default();
        let Ok((_, parsed)) = X509Certificate::from_der(certificate) else {
            names.doubtful.unread = true;
            return names;
        };
        (names.subject, names.issuer) = (whole(parsed.subject()), whole(parsed.issuer()));
        let alternative = parsed.subject_alternative_name();
        names.doubtful.unread = alternative.is_err();
        let alternative = alternative.ok().flatten();
        for name in alternative.iter().flat_map(|names| &names.value.general_names) {
            match name {
                GeneralName::DNSName(dns) if !dns.contains('*') => names.dns.push(dns.to_ascii_lowercase()),
                GeneralName::DNSName(dns) => {
                    names.doubtful.wildcards.extend(dns.split_once('*').map(|(_, behind)| behind.to_ascii_lowercase()));
                }
                GeneralName::URI(uri) => names.uris.push((*uri).to_owned()),
                GeneralName::RFC822Name(address) => names.emails.push((*address).to_owned()),
                _ => {}
            }
        }
        let common: Vec<_> = parsed.subject().iter_common_name().map(|name| name.as_str()).collect();
        match common[..] {
            [Ok(name)] if !name.is_empty() => names.common = Some(name.to_owned()),
            _ => {
                names.doubtful.unread |= common.iter().any(Result::is_err);
                names.doubtful.commons = common.iter().flatten().map(|name| (*name).to_owned()).collect();
            }
        }
        names
    }

    /// The common name of the subject, where it has exactly one.
    pub fn common_name(&self) -> Option<&str> {
        self.common.as_deref()
    }

    /// Whether the certificate may be meant by a name that is refused: more than [`Self::has`] takes for this name, since a
    /// doubt must not let a client in.
    pub fn may_be(&self, denied: &ClientName) -> bool {
        let commons = || self.common.iter().chain(&self.doubtful.commons);
        self.doubtful.unread
            || self.has(denied)
            || match denied {
                ClientName::Dns(pattern) => self.doubtful.wildcards.iter().any(|behind| {
                    // A name that the wildcard covers, or a pattern for names that it covers.
                    pattern.matches(&format!("a{behind}")) || pattern.to_string().ends_with(behind.as_str())
                }),
                ClientName::Uri(wanted) => {
                    self.uris.iter().any(|uri| uri.eq_ignore_ascii_case(wanted) || !is_plain(uri))
                }
                ClientName::UriBelow(start) => self.uris.iter().any(|uri| {
                    let begins = uri.get(..start.len()).is_some_and(|begin| begin.eq_ignore_ascii_case(start));
                    begins || !is_plain(uri)
                }),
                ClientName::Email(wanted) => self.emails.iter().any(|email| email.eq_ignore_ascii_case(wanted)),
                ClientName::CommonName(wanted) => commons().any(|name| name.eq_ignore_ascii_case(wanted)),
                ClientName::Subject(wanted) => self.subject.as_ref().is_none_or(|own| is_alike(own, wanted)),
                ClientName::Issuer(wanted) => self.issuer.as_ref().is_none_or(|own| is_alike(own, wanted)),
                ClientName::Any => true,
            }
    }

    /// Whether one of the certificate's names is allowed by this one.
    pub fn has(&self, allowed: &ClientName) -> bool {
        match allowed {
            ClientName::Dns(pattern) => self.dns.iter().any(|dns| pattern.matches(dns)),
            ClientName::Uri(wanted) => self.uris.contains(wanted),
            ClientName::UriBelow(start) => {
                self.uris.iter().any(|uri| uri.strip_prefix(start.as_str()).is_some_and(is_plain_path))
            }
            ClientName::Email(wanted) => self.emails.contains(wanted),
            ClientName::CommonName(wanted) => self.common.as_ref() == Some(wanted),
            ClientName::Subject(wanted) => self.subject.as_ref() == Some(wanted),
            ClientName::Issuer(wanted) => self.issuer.as_ref() == Some(wanted),
            ClientName::Any => true,
        }
    }
}

/// Whether a certificate has one of these names.
fn has_one_of(certificate: &[u8], names: &[ClientName]) -> bool {
    let own = CertificateNames::of(certificate);
    names.iter().any(|allowed| own.has(allowed))
}

/// A distinguished name as rules are compared with it. One without attributes is not in doubt, and no rule can name it.
fn whole(name: &X509Name) -> Option<String> {
    description::name(name).or_else(|| name.iter_rdn().next().is_none().then(String::new))
}

/// Whether two distinguished names differ in nothing but the order of their attributes, case, spaces and escapes.
fn is_alike(a: &str, b: &str) -> bool {
    fn plain(text: &str) -> impl Iterator<Item = u8> + '_ {
        text.bytes().filter(|byte| !matches!(byte, b' ' | b'\\')).map(|byte| byte.to_ascii_lowercase())
    }
    let times = |name: &str, wanted: &str| attributes(name).filter(|own| plain(own).eq(plain(wanted))).count();
    attributes(a).count() == attributes(b).count() && attributes(b).all(|one| times(a, one) == times(b, one))
}

/// The attributes of a distinguished name, with their escapes.
fn attributes(name: &str) -> impl Iterator<Item = &str> + '_ {
    let mut is_escaped = false;
    name.split(move |c: char| {
        let is_separator = !is_escaped && matches!(c, ',' | '+');
        is_escaped = !is_escaped && c == '\\';
        is_separator
    })
}

/// Whether the rest of a URI consists of segments that are read in one way only (as SPIFFE's are): nothing that leads upwards, and
/// nothing that is encoded.
/// Whether a URI has a host and segments that can be read in one way only.
fn is_plain(uri: &str) -> bool {
    uri.split_once("://").is_some_and(|(_, rest)| is_plain_path(rest.strip_suffix('/').unwrap_or(rest)))
}

fn is_plain_path(rest: &str) -> bool {
    let good = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'.' | b'_');
    rest.split('/').all(|segment| !segment.is_empty() && segment != "." && segment != ".." && segment.bytes().all(good))
}

/// A certificate's `notAfter` in seconds since 1970 (RFC 5280 §4.1.2.5); 0 before 1970.
fn not_after(certificate: &[u8]) -> Option<u64> {
    // Extensions are the verifier's.
    let (_, certificate) = X509CertificateParser::new().with_deep_parse_extensions(false).parse(certificate).ok()?;
    Some(certificate.validity().not_after.timestamp().try_into().unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A name that is in doubt allows nobody, and is refused where it may be what is denied.
    #[test]
    fn doubts_are_for_neither() {
        let text = |texts: &[&str]| texts.iter().map(|t| (*t).to_owned()).collect::<Vec<_>>();
        let names = CertificateNames {
            uris: text(&["spiffe://e.org/ns/bad//x"]),
            emails: text(&["Mallory@Example.org"]),
            doubtful: Doubtful { wildcards: text(&[".bad.test"]), commons: text(&["Mallory", "x"]), unread: false },
            ..CertificateNames::default()
        };
        let dns = |pattern: &str| ClientName::Dns(pattern.parse().unwrap());
        let (common, email) = (|n: &str| ClientName::CommonName(n.into()), |n: &str| ClientName::Email(n.into()));
        let below = || ClientName::UriBelow("spiffe://e.org/ns/bad/".into());
        let denied = [common("mallory"), email("mallory@example.org"), below(), dns("*.bad.test"), dns("a.bad.test")];
        for name in denied {
            assert!(!names.has(&name) && names.may_be(&name), "{name:?}");
        }
        for name in [common("alice"), email("alice@example.org"), dns("*.good.test"), dns("a.good.test")] {
            assert!(!names.may_be(&name), "{name:?}");
        }
        let subject = |n: &str| ClientName::Subject(n.into());
        let named = CertificateNames { subject: Some("CN=Mallory  X,O=E".into()), ..CertificateNames::default() };
        assert!(!named.has(&subject("CN=mallory x,O=e")) && named.may_be(&subject("CN=mallory x,O=e")));
        assert!(!named.may_be(&subject("CN=mallory x,O=f")) && named.has(&subject("CN=Mallory  X,O=E")));
        // The operator may have written the attributes in another order.
        for alike in ["O=e,CN=mallory x", "O=E+CN=Mallory X"] {
            assert!(!named.has(&subject(alike)) && named.may_be(&subject(alike)), "{alike}");
        }
        for other in ["O=e", "CN=mallory x,CN=mallory x", "CN=mallory x,O=e,O=e", "CN=mallory x\\,O=e"] {
            assert!(!named.may_be(&subject(other)), "{other}");
        }
        // A subject that cannot be written may be any.
        assert!(names.may_be(&subject("CN=a")) && names.may_be(&ClientName::Issuer("CN=a".into())));
        assert!(!names.has(&subject("CN=a")));
        let unread = CertificateNames::of(b"not DER");
        assert!(unread.may_be(&common("alice")) && !unread.has(&common("alice")));
        let plain = CertificateNames { uris: text(&["spiffe://e.org/ns/good/x"]), ..CertificateNames::default() };
        assert!(!plain.may_be(&below()));
    }

    #[test]
    fn a_certificate_has_the_names_that_stand_in_it() {
        use rcgen::{CertificateParams, DnType, KeyPair, SanType};
        let mut params =
            CertificateParams::new(vec!["App.Clients.example".to_owned(), "*.example.net".to_owned()]).unwrap();
        let text = |text: &str| text.try_into().unwrap();
        for uri in ["spiffe://example.org/ns/prod/sa/web", "spiffe://example.org/up/../ns", "spiffe://example.org/"] {
            params.subject_alt_names.push(SanType::URI(text(uri)));
        }
        params.subject_alt_names.push(SanType::Rfc822Name(text("a@example.org")));
        params.distinguished_name.push(DnType::CommonName, "alice");
        let certificate = params.self_signed(&KeyPair::generate().unwrap()).unwrap();
        let dns = |pattern: &str| ClientName::Dns(pattern.parse().unwrap());
        let below = |start: &str| ClientName::UriBelow(start.to_owned());
        for good in [
            dns("app.clients.example"),
            dns("*.clients.example"),
            dns("**.example"),
            ClientName::Uri("spiffe://example.org/ns/prod/sa/web".to_owned()),
            below("spiffe://example.org/"),
            below("spiffe://example.org/ns/prod/"),
            ClientName::Email("a@example.org".to_owned()),
            ClientName::CommonName("alice".to_owned()),
            ClientName::Subject("CN=alice".to_owned()),
            ClientName::Issuer("CN=alice".to_owned()),
        ] {
            assert!(has_one_of(certificate.der(), &[ClientName::Uri("x:y".to_owned()), good.clone()]), "{good}");
        }
        for bad in [
            dns("clients.example"),
            dns("*.example"),
            // The certificate's own wildcard is no name.
            dns("*.example.net"),
            dns("a.example.net"),
            ClientName::Uri("spiffe://example.org/ns/prod/sa/WEB".to_owned()),
            ClientName::Uri("spiffe://example.org/ns/prod/sa".to_owned()),
            below("spiffe://example.org/up/"),
            below("spiffe://example.org/ns/prod/sa/web/"),
            below("spiffe://example.or/"),
            ClientName::Email("A@example.org".to_owned()),
            ClientName::CommonName("ali".to_owned()),
            ClientName::Subject("CN=Alice".to_owned()),
            ClientName::Subject("CN=alice,O=x".to_owned()),
            ClientName::Issuer("CN=ali".to_owned()),
            ClientName::CommonName(String::new()),
        ] {
            assert!(!has_one_of(certificate.der(), std::slice::from_ref(&bad)), "{bad}");
        }
        assert!(!has_one_of(&certificate.der()[1..], &[dns("app.clients.example")]));
        params.distinguished_name = rcgen::DistinguishedName::new();
        let nameless = params.self_signed(&KeyPair::generate().unwrap()).unwrap();
        assert!(!has_one_of(nameless.der(), &[ClientName::CommonName("alice".to_owned())]));
        let subject = ClientName::Subject("CN=alice".to_owned());
        let nameless = CertificateNames::of(nameless.der());
        assert!(!nameless.has(&subject) && !nameless.may_be(&subject), "a subject that is empty is not in doubt");
    }

    #[test]
    fn the_end_of_a_certificate_is_read_and_what_is_none_has_no_end() {
        let until = |year| {
            let key = rcgen::KeyPair::generate().unwrap();
            let mut params = rcgen::CertificateParams::new(vec!["a.example".to_owned()]).unwrap();
            params.not_before = rcgen::date_time_ymd(1960, 1, 1);
            params.not_after = rcgen::date_time_ymd(year, 1, 1);
            params.self_signed(&key).unwrap().der().to_vec()
        };
        // A UTCTime ends with 2049, a GeneralizedTime follows.
        for (year, seconds) in [(1965, 0), (1970, 0), (1971, 31_536_000), (2050, 2_524_608_000), (2100, 4_102_444_800)]
        {
            assert_eq!(not_after(&until(year)), Some(seconds), "{year}");
        }
        let good = until(2050);
        for cut in 0..good.len() {
            assert_eq!(not_after(&good[..cut]), None, "{cut}");
        }
        for at in 0..good.len() {
            let mut bad = good.clone();
            bad[at] ^= 0xff;
            let _ = not_after(&bad); // Must not panic.
        }
    }

    #[test]
    fn a_ticket_carries_the_first_authentication() {
        let limits = Limits::new(Duration::from_secs(100));
        let wrapped_with = |verified: u64, expires: u64| {
            let mut session = Some(Authentication { verified, expires, resumed: false });
            during(&mut session, || limits.wrap(b"state"))
        };
        let ticket = wrapped_with(1000, 5000);
        for (now, good) in [(1000, true), (900, true), (1099, true), (1100, false)] {
            assert_eq!(limits.unwrap_at(&ticket, now).is_some(), good, "{now}");
        }
        // A ticket that the resumed session issues is as old as the first.
        let mut session = None;
        let reissued = during(&mut session, || {
            assert_eq!(limits.unwrap_at(&ticket, 1099), Some(&b"state"[..]));
            limits.wrap(b"other")
        });
        assert_eq!(limits.unwrap_at(&reissued, 1099), Some(&b"other"[..]));
        assert_eq!(limits.unwrap_at(&reissued, 1100), None);
        // Not where the ticket was opened and a full handshake followed.
        assert!(session.is_some_and(|s| s.resumed));
        forget_unused_ticket(&mut session);
        assert_eq!(session, None);
        // The certificate expires first.
        assert_eq!(limits.unwrap_at(&wrapped_with(1000, 1050), 1050), None);
        assert_eq!(limits.unwrap_at(&[2, 1], 0), None);
        assert_eq!(limits.unwrap_at(&[], 0), None);
    }

    #[test]
    fn a_client_without_a_certificate_resumes() {
        let limits = Limits::new(Duration::ZERO);
        let ticket = during(&mut None, || limits.wrap(b"state"));
        assert_eq!(limits.unwrap_at(&ticket, u64::MAX), Some(&b"state"[..]));
    }
}
