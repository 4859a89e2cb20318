//! Audits by the policies that people know by name: `sealane check --policy NAME`.
//!
//! The reading code calls these functions where it has a setting and its place; without a policy they return at once. What
//! breaks a rule is an error with the place of the setting, or of the table in which the setting is missing. The rules with their
//! sources are in `docs/reference/policies.md`.

use super::Mode;
use super::certificates::load::{self, Loaded};
use super::decode::{self, At, Node, Section};
use super::diagnostics::Sink;
use super::host::{Hosts, Target, Upstreams, only_with_tls};
use super::listen_address::ListenAddress;
use super::listener::Draft;
use super::settings::Shape;
use super::tls::{GROUPS, SUITES};
use sealane_proxy::snapshot::Action;
use sealane_tls::fips;
use sealane_tls::policy::{Group, KeyKind, Suite, Version};
use std::net::IpAddr;
use std::ops::Range;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};
use x509_parser::prelude::{FromDer, X509Certificate};
use x509_parser::public_key::PublicKey;

/// A policy that a configuration can be audited by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Policy {
    /// Mozilla's guideline "Server Side TLS", configuration Modern.
    Modern,
    /// The same guideline, configuration Intermediate.
    Intermediate,
    /// The same guideline, configuration Old.
    Old,
    /// PCI DSS 4.0.1, requirements 2.2.7 and 4.2.1.
    PciDss4,
    /// 45 CFR 164.312(e), by the guidance of HHS: NIST SP 800-52 revision 2.
    Hipaa,
    /// FIPS 140-3: approved algorithms, in a validated module.
    Fips1403,
    /// NSA's CNSA 2.0.
    Cnsa2,
}

/// Every policy with its name.
pub const POLICIES: &[(&str, Policy)] = &[
    ("modern", Policy::Modern),
    ("intermediate", Policy::Intermediate),
    ("old", Policy::Old),
    ("pci-dss-4", Policy::PciDss4),
    ("hipaa", Policy::Hipaa),
    ("fips-140-3", Policy::Fips1403),
    ("cnsa-2", Policy::Cnsa2),
];

/// The policies that some build of this program can fulfil. The last one needs the FIPS module.
const EVERY_PRESET: &[(&str, Policy)] = &[
    ("modern", Policy::Modern),
    ("intermediate", Policy::Intermediate),
    ("pci-dss-4", Policy::PciDss4),
    ("hipaa", Policy::Hipaa),
    ("cnsa-2", Policy::Cnsa2),
    ("fips-140-3", Policy::Fips1403),
];
/// The policies that this program can fulfil, so that `preset` may name them.
const PRESETS: &[(&str, Policy)] =
    if fips::BUILD { EVERY_PRESET } else { EVERY_PRESET.split_at(EVERY_PRESET.len() - 1).0 };

/// Reads `preset`.
pub(super) fn preset(sink: &Sink, key: &str, node: &Node) -> Option<Policy> {
    let name = decode::text(sink, key, node)?;
    let mut named = POLICIES.iter().filter(|(known, _)| known.eq_ignore_ascii_case(&name)).map(|(_, policy)| *policy);
    let (policy, instead) = match named.next() {
        Some(Policy::Old) => (Policy::Old, "intermediate"),
        Some(Policy::Fips1403) if !fips::BUILD => (Policy::Fips1403, "hipaa"),
        _ => return decode::choose(sink, &format!("\"{key}\""), &name, &node.span(), PRESETS),
    };
    let why = policy.rules().limit.unwrap_or_default();
    let help = format!("write {key} = \"{instead}\", the nearest preset, and run sealane check --policy {policy}");
    sink.error(&node.span(), format!("\"{key}\" cannot be \"{policy}\": {why}"), Some(help));
    None
}

/// What [`preset`] reads.
pub(super) fn preset_shape() -> Shape {
    Shape::Choice(PRESETS.iter().map(|(name, _)| *name).collect())
}

impl std::str::FromStr for Policy {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        let known = POLICIES.iter().find(|(known, _)| *known == name).map(|(_, policy)| *policy);
        known.ok_or_else(|| {
            let names: Vec<&str> = POLICIES.iter().map(|(name, _)| *name).collect();
            format!("the policies are {}", names.join(", "))
        })
    }
}

impl std::fmt::Display for Policy {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(POLICIES.iter().find(|(_, policy)| policy == self).map_or("", |(name, _)| name))
    }
}

/// What a policy demands of the elements of a set.
struct Allowed<T: 'static> {
    these: &'static [T],
    /// Where it is written.
    source: &'static str,
}

/// What a policy demands of certificates.
struct Certificates {
    /// Of an RSA key; `None`: RSA is not allowed.
    rsa_bits: Option<usize>,
    /// Sizes of ECDSA's curves.
    curves: &'static [usize],
    ed25519: bool,
    /// Parameter sets of ML-DSA.
    ml_dsa: &'static [KeyKind],
    /// From the first to the last day.
    days: Option<i64>,
    /// What is written where of keys, and of signatures.
    source: &'static str,
}

impl Certificates {
    /// Whether nothing else may sign, so that signatures of authorities must be ML-DSA, too.
    fn only_ml_dsa(&self) -> bool {
        self.rsa_bits.is_none() && self.curves.is_empty() && !self.ed25519
    }
}

/// The rules of a policy.
struct Rules {
    versions: Allowed<Version>,
    /// Versions that must be enabled.
    needed: Allowed<Version>,
    groups: Allowed<Group>,
    /// At least one of these must be enabled.
    one_of: Allowed<Group>,
    suites: Allowed<Suite>,
    certificates: Certificates,
    /// Some certificate of the listener must have an RSA key.
    rsa_needed: bool,
    /// The source of: no early data. Empty: it is allowed.
    no_early_data: &'static str,
    /// The source of: traffic is encrypted, servers are verified, secrets of connections are not written down, certificates are
    /// valid. Empty: the policy is only about what listeners negotiate.
    whole_path: &'static str,
    /// What no configuration of this program fulfils.
    limit: Option<&'static str>,
}

const BOTH: &[Version] = &[Version::Tls13, Version::Tls12];
const TLS13: &[Version] = &[Version::Tls13];
const EVERY_GROUP: &[Group] = &[
    Group::X25519MlKem768,
    Group::X25519,
    Group::Secp256r1,
    Group::Secp384r1,
    Group::Secp256r1MlKem768,
    Group::MlKem768,
    Group::MlKem1024,
];
/// What the guideline names, and hybrids with these.
const MOZILLA_GROUPS: &[Group] =
    &[Group::X25519MlKem768, Group::X25519, Group::Secp256r1, Group::Secp384r1, Group::Secp256r1MlKem768];
const NIST_GROUPS: &[Group] = &[
    Group::X25519MlKem768,
    Group::Secp256r1,
    Group::Secp384r1,
    Group::Secp256r1MlKem768,
    Group::MlKem768,
    Group::MlKem1024,
];
const EVERY_ML_DSA: &[KeyKind] = &[KeyKind::MlDsa44, KeyKind::MlDsa65, KeyKind::MlDsa87];
const EVERY_SUITE: &[Suite] = &[
    Suite::TLS13_AES_128_GCM_SHA256,
    Suite::TLS13_AES_256_GCM_SHA384,
    Suite::TLS13_CHACHA20_POLY1305_SHA256,
    Suite::ECDHE_ECDSA_AES_128_GCM_SHA256,
    Suite::ECDHE_ECDSA_AES_256_GCM_SHA384,
    Suite::ECDHE_ECDSA_CHACHA20_POLY1305_SHA256,
    Suite::ECDHE_RSA_AES_128_GCM_SHA256,
    Suite::ECDHE_RSA_AES_256_GCM_SHA384,
    Suite::ECDHE_RSA_CHACHA20_POLY1305_SHA256,
];
const TLS13_SUITES: &[Suite] =
    &[Suite::TLS13_AES_128_GCM_SHA256, Suite::TLS13_AES_256_GCM_SHA384, Suite::TLS13_CHACHA20_POLY1305_SHA256];
const AES_SUITES: &[Suite] = &[
    Suite::TLS13_AES_128_GCM_SHA256,
    Suite::TLS13_AES_256_GCM_SHA384,
    Suite::ECDHE_ECDSA_AES_128_GCM_SHA256,
    Suite::ECDHE_ECDSA_AES_256_GCM_SHA384,
    Suite::ECDHE_RSA_AES_128_GCM_SHA256,
    Suite::ECDHE_RSA_AES_256_GCM_SHA384,
];

const MOZILLA_MODERN: &str = "Mozilla Server Side TLS 6.0, Modern";
const MOZILLA_INTERMEDIATE: &str = "Mozilla Server Side TLS 6.0, Intermediate";
const MOZILLA_OLD: &str = "Mozilla Server Side TLS 5.8, Old";
const PCI: &str = "PCI DSS 4.0.1, 4.2.1";
const NIST_VERSIONS: &str = "NIST SP 800-52r2, 3.1";
const NIST_CERTIFICATES: &str = "NIST SP 800-52r2, 3.2";
const NIST_SUITES: &str = "NIST SP 800-52r2, 3.3";
const NIST_EXTENSIONS: &str = "NIST SP 800-52r2, 3.4";
const HIPAA: &str = "45 CFR 164.312(e)";
const FIPS: &str = "FIPS 140-3, SP 800-140C";
const CNSA: &str = "CNSA 2.0";
/// Why QUIC is outside the FIPS module.
pub(super) const QUIC: &str = "QUIC's packets are protected with keys and nonces that are made outside the FIPS module";
const CNSA_TLS: &str = "draft-becker-cnsa2-tls-profile-05";

impl Policy {
    fn rules(self) -> Rules {
        let nobody = Allowed { these: &[], source: "" };
        let no_group = Allowed { these: &[], source: "" };
        match self {
            Self::Modern => Rules {
                versions: Allowed { these: TLS13, source: MOZILLA_MODERN },
                needed: nobody,
                groups: Allowed { these: MOZILLA_GROUPS, source: MOZILLA_MODERN },
                one_of: no_group,
                suites: Allowed { these: TLS13_SUITES, source: MOZILLA_MODERN },
                certificates: Certificates {
                    rsa_bits: None,
                    curves: &[256, 384],
                    ed25519: false,
                    ml_dsa: &[],
                    days: Some(90),
                    source: MOZILLA_MODERN,
                },
                rsa_needed: false,
                no_early_data: "",
                whole_path: "",
                limit: None,
            },
            Self::Intermediate => Rules {
                versions: Allowed { these: BOTH, source: MOZILLA_INTERMEDIATE },
                needed: nobody,
                groups: Allowed { these: MOZILLA_GROUPS, source: MOZILLA_INTERMEDIATE },
                one_of: no_group,
                suites: Allowed { these: EVERY_SUITE, source: MOZILLA_INTERMEDIATE },
                certificates: Certificates {
                    rsa_bits: Some(2048),
                    curves: &[256, 384],
                    ed25519: false,
                    ml_dsa: &[],
                    days: Some(366),
                    source: MOZILLA_INTERMEDIATE,
                },
                rsa_needed: false,
                no_early_data: "",
                whole_path: "",
                limit: None,
            },
            Self::Old => Rules {
                versions: Allowed { these: BOTH, source: MOZILLA_OLD },
                needed: Allowed { these: BOTH, source: MOZILLA_OLD },
                groups: Allowed { these: MOZILLA_GROUPS, source: MOZILLA_OLD },
                one_of: no_group,
                suites: Allowed { these: EVERY_SUITE, source: MOZILLA_OLD },
                certificates: Certificates {
                    rsa_bits: Some(2048),
                    curves: &[256, 384],
                    ed25519: false,
                    ml_dsa: &[],
                    days: Some(366),
                    source: MOZILLA_OLD,
                },
                rsa_needed: true,
                no_early_data: "",
                whole_path: "",
                limit: Some(
                    "this program has no TLS 1.0, no TLS 1.1 and no cipher with CBC, which clients of the policy \"old\" need",
                ),
            },
            Self::PciDss4 => Rules {
                versions: Allowed { these: BOTH, source: PCI },
                needed: nobody,
                groups: Allowed { these: EVERY_GROUP, source: PCI },
                one_of: no_group,
                suites: Allowed { these: EVERY_SUITE, source: PCI },
                certificates: Certificates {
                    rsa_bits: Some(2048),
                    curves: &[256, 384, 521],
                    ed25519: true,
                    ml_dsa: EVERY_ML_DSA,
                    days: None,
                    source: "PCI DSS 4.0.1, glossary: strong cryptography",
                },
                rsa_needed: false,
                no_early_data: "",
                whole_path: PCI,
                limit: None,
            },
            Self::Hipaa => Rules {
                versions: Allowed { these: BOTH, source: NIST_VERSIONS },
                needed: Allowed { these: TLS13, source: NIST_VERSIONS },
                groups: Allowed { these: NIST_GROUPS, source: NIST_EXTENSIONS },
                one_of: Allowed { these: &[Group::Secp256r1, Group::Secp384r1], source: NIST_EXTENSIONS },
                suites: Allowed { these: AES_SUITES, source: NIST_SUITES },
                certificates: Certificates {
                    rsa_bits: Some(2048),
                    curves: &[256, 384, 521],
                    ed25519: false,
                    ml_dsa: &[],
                    days: None,
                    source: NIST_CERTIFICATES,
                },
                rsa_needed: false,
                no_early_data: NIST_EXTENSIONS,
                whole_path: HIPAA,
                limit: None,
            },
            Self::Fips1403 => Rules {
                versions: Allowed { these: BOTH, source: FIPS },
                needed: nobody,
                groups: Allowed { these: NIST_GROUPS, source: "FIPS 203, SP 800-56A, SP 800-56C" },
                one_of: no_group,
                suites: Allowed { these: AES_SUITES, source: "SP 800-38D" },
                certificates: Certificates {
                    rsa_bits: Some(2048),
                    curves: &[256, 384, 521],
                    ed25519: true,
                    ml_dsa: EVERY_ML_DSA,
                    days: None,
                    source: "FIPS 186-5, FIPS 204",
                },
                rsa_needed: false,
                no_early_data: "",
                whole_path: FIPS,
                limit: match fips::BUILD {
                    true => None,
                    false => Some(
                        "the cryptographic library of this build is not a validated module (docs/how-to/fips.md: how to build \
                         Sealane with AWS-LC's FIPS module)",
                    ),
                },
            },
            Self::Cnsa2 => Rules {
                versions: Allowed { these: TLS13, source: CNSA },
                needed: nobody,
                groups: Allowed { these: &[Group::MlKem1024], source: CNSA },
                one_of: no_group,
                suites: Allowed { these: &[Suite::TLS13_AES_256_GCM_SHA384], source: CNSA },
                certificates: Certificates {
                    rsa_bits: None,
                    curves: &[],
                    ed25519: false,
                    ml_dsa: &[KeyKind::MlDsa87],
                    days: None,
                    source: "CNSA 2.0: ML-DSA-87",
                },
                rsa_needed: false,
                no_early_data: CNSA_TLS,
                whole_path: CNSA,
                limit: None,
            },
        }
    }

    /// The versions, groups and suites that it allows, as far as this build has them.
    pub(super) fn allowed(self) -> (&'static [Version], Vec<Group>, Vec<Suite>) {
        let rules = self.rules();
        let (mut groups, mut suites) = (rules.groups.these.to_vec(), rules.suites.these.to_vec());
        if fips::BUILD {
            let module = Self::Fips1403.rules();
            groups.retain(|group| module.groups.these.contains(group));
            suites.retain(|suite| module.suites.these.contains(suite));
        }
        (rules.versions.these, groups, suites)
    }

    /// Whether a preset of this name may be overridden only by what the policy allows.
    pub(super) fn is_strict(self) -> bool {
        matches!(self, Self::PciDss4 | Self::Hipaa | Self::Fips1403 | Self::Cnsa2)
    }

    /// Whether servers are audited, too, not only what clients see.
    fn covers_upstreams(self) -> bool {
        !self.rules().whole_path.is_empty()
    }
}

/// The policy of this reading, and its rules.
fn rules(sink: &Sink) -> Option<(Policy, Rules)> {
    sink.policy.map(|policy| (policy, policy.rules()))
}

/// The policies that a TLS section is judged by: that of the audit, the preset, if it is one whose rules must hold, and in builds with the
/// FIPS module its own.
fn judges(sink: &Sink, preset: Option<Policy>) -> impl Iterator<Item = (Policy, Rules)> {
    let strict = preset.filter(|preset| preset.is_strict());
    let strict = strict.filter(|preset| sink.policy != Some(*preset));
    let module = fips::BUILD.then_some(Policy::Fips1403);
    let module = module.filter(|module| sink.policy != Some(*module) && strict != Some(*module));
    sink.policy.into_iter().chain(strict).chain(module).map(|policy| (policy, policy.rules()))
}

/// Cryptography outside AWS-LC's module: builds with the FIPS module refuse it, and so does the audit by `fips-140-3`. Returns whether it
/// is refused.
pub(super) fn outside_module(sink: &Sink, span: &Range<usize>, what: &str, help: &str) -> bool {
    let is_refused = fips::BUILD || sink.policy == Some(Policy::Fips1403);
    if is_refused {
        breaks(sink, Policy::Fips1403, FIPS, span, what, help.to_owned());
    }
    is_refused
}

fn breaks(sink: &Sink, policy: Policy, source: &str, span: &Range<usize>, message: &str, help: String) {
    sink.error(span, format!("{policy}: {message} ({source})"), Some(help));
}

/// What no configuration fulfils.
pub(super) fn limits(sink: &Sink) {
    let Some((policy, rules)) = rules(sink) else { return };
    if let Some(limit) = rules.limit {
        sink.error_of_file(format!("{policy}: {limit}"));
    }
    if let (Policy::Fips1403, Some(module)) = (policy, fips::module()) {
        let message =
            format!("{policy}: this audit does not know whether {module} is validated, and for which systems");
        sink.warn(&(0..0), message, Some("compare it with the list of validated modules of NIST's CMVP".to_owned()));
    }
}

/// The name of a group or suite as the registry has it.
fn name_of<T: PartialEq>(names: &'static [(&'static str, T)], of: &T) -> &'static str {
    names.iter().find(|(_, value)| value == of).map_or("", |(name, _)| name)
}

fn names_of<T: PartialEq>(names: &'static [(&'static str, T)], of: &[T]) -> Vec<&'static str> {
    of.iter().map(|value| name_of(names, value)).collect()
}

const VERSION_NAMES: &[(&str, Version)] = &[("1.3", Version::Tls13), ("1.2", Version::Tls12)];

/// A TLS section, or the place of what has the defaults.
pub(super) struct Written<'s, 'd> {
    pub sink: &'s Sink<'s>,
    pub section: Option<&'s Section<'s, 'd>>,
    /// Where it stands.
    pub span: Range<usize>,
}

impl Written<'_, '_> {
    /// Where a setting stands, or should.
    fn at(&self, key: &str) -> Range<usize> {
        self.section.and_then(|section| section.key_span(key)).unwrap_or_else(|| self.span.clone())
    }
}

/// One set of a TLS section, against what a policy allows.
fn subset<T: PartialEq + Copy>(
    written: &Written,
    policy: Policy,
    key: &'static str,
    names: &'static [(&'static str, T)],
    used: &[T],
    allowed: &Allowed<T>,
) {
    let (kept, more): (Vec<T>, Vec<T>) = used.iter().copied().partition(|value| allowed.these.contains(value));
    if more.is_empty() {
        return;
    }
    let help = match (kept.is_empty(), allowed.these.is_empty()) {
        (true, true) => "this program supports no value of this setting that the policy allows".to_owned(),
        (true, false) => format!("write {key} = {:?}", names_of(names, allowed.these)),
        (false, _) => format!("write {key} = {:?}", names_of(names, &kept)),
    };
    let message = format!("\"{key}\" has {}, which the policy does not allow", names_of(names, &more).join(", "));
    breaks(written.sink, policy, allowed.source, &written.at(key), &message, help);
}

/// What a TLS section lets connections negotiate. `preset` is that of a listener.
pub(super) fn protocol(
    written: &Written,
    preset: Option<Policy>,
    versions: &[Version],
    groups: &[Group],
    suites: &[Suite],
) {
    for (policy, rules) in judges(written.sink, preset) {
        if preset.is_none() && !policy.covers_upstreams() {
            continue;
        }
        subset(written, policy, "versions", VERSION_NAMES, versions, &rules.versions);
        subset(written, policy, "groups", GROUPS, groups, &rules.groups);
        // Suites of a version that is not allowed go with the version.
        let of_version: Vec<Suite> = suites
            .iter()
            .copied()
            .filter(|suite| {
                let version = if TLS13_SUITES.contains(suite) { Version::Tls13 } else { Version::Tls12 };
                rules.versions.these.contains(&version)
            })
            .collect();
        subset(written, policy, "ciphers", SUITES, &of_version, &rules.suites);
        for version in rules.needed.these.iter().filter(|version| !versions.contains(version)) {
            let name = name_of(VERSION_NAMES, version);
            let (message, help) = (format!("TLS {name} is not enabled"), format!("add \"{name}\" to \"versions\""));
            breaks(written.sink, policy, rules.needed.source, &written.at("versions"), &message, help);
        }
        let one_of = &rules.one_of;
        if !one_of.these.is_empty() && !groups.iter().any(|group| one_of.these.contains(group)) {
            let names = names_of(GROUPS, one_of.these).join(" and ");
            let message = format!("\"groups\" has neither of {names}, of which one must be enabled");
            let help = format!("add one of {names} to \"groups\"");
            breaks(written.sink, policy, one_of.source, &written.at("groups"), &message, help);
        }
    }
}

/// What else `[listener.tls]` says.
pub(super) fn listener(
    section: &Section,
    preset: Policy,
    early_data: bool,
    key_log: bool,
    certificates: Option<&[Arc<Loaded>]>,
) {
    let sink = section.sink;
    let at = |key: &str| section.key_span(key).unwrap_or_else(|| section.span.clone());
    for (policy, rules) in judges(sink, Some(preset)).filter(|(_, rules)| early_data && !rules.no_early_data.is_empty())
    {
        let message = "early data is accepted, which an attacker can replay";
        breaks(sink, policy, rules.no_early_data, &at("early_data"), message, "remove \"early_data\"".to_owned());
    }
    let Some((policy, rules)) = rules(sink) else { return };
    if key_log && !rules.whole_path.is_empty() {
        let message = "secrets of connections are written to a file";
        let help = "remove \"dangerous_key_log\"".to_owned();
        breaks(sink, policy, rules.whole_path, &at("dangerous_key_log"), message, help);
    }
    let is_rsa = |loaded: &Arc<Loaded>| loaded.identity.kind == KeyKind::Rsa;
    if rules.rsa_needed && !sink.offline() && certificates.is_some_and(|all| !all.iter().any(is_rsa)) {
        let message = "no certificate has an RSA key, which the oldest clients need";
        let help = "add a certificate with an RSA key of 2048 bits for the same names".to_owned();
        breaks(sink, policy, rules.certificates.source, &at("certificates"), message, help);
    }
}

/// A certificate of a listener.
pub(super) fn certificate(sink: &Sink, loaded: &Loaded, span: &Range<usize>) {
    let Some((policy, rules)) = rules(sink) else { return };
    // Offline there is a stand-in for each.
    if sink.offline() {
        return;
    }
    let demands = &rules.certificates;
    let shown = loaded.identity.source.display();
    if loaded.self_signed {
        let message = format!("{shown}: there is no certificate of the authority yet");
        let help = "run the audit again when the gateway has obtained it".to_owned();
        return breaks(sink, policy, demands.source, span, &message, help);
    }
    for (i, der) in loaded.identity.chain.iter().enumerate() {
        let Ok((_, parsed)) = X509Certificate::from_der(der) else { continue };
        let which = if i == 0 { format!("{shown}") } else { format!("{shown}, certificate {}", i + 1) };
        let tell = |what: String, help: &str| {
            breaks(sink, policy, demands.source, span, &format!("{which}: {what}"), help.to_owned());
        };
        let renew = "get a certificate with another key";
        let ml_dsa = load::ml_dsa(&parsed.public_key().algorithm.algorithm.to_id_string());
        let is_allowed = |set: Option<(KeyKind, &str)>| set.is_some_and(|(kind, _)| demands.ml_dsa.contains(&kind));
        match parsed.public_key().parsed() {
            Ok(PublicKey::RSA(key)) => match demands.rsa_bits {
                // Authorities sign ECDSA certificates with RSA, too.
                None if i > 0 && !demands.curves.is_empty() && key.key_size() >= 2048 => {}
                None => tell("its key is RSA".to_owned(), renew),
                Some(bits) if key.key_size() < bits => {
                    tell(format!("its RSA key has {} bits, but must have at least {bits}", key.key_size()), renew);
                }
                Some(_) => {}
            },
            Ok(PublicKey::EC(point)) => {
                // P-521 has 66 bytes.
                let bits = if point.key_size() == 528 { 521 } else { point.key_size() };
                if !demands.curves.contains(&bits) {
                    tell(format!("its key is ECDSA with {bits} bits"), renew);
                }
            }
            _ if loaded.identity.kind == KeyKind::Ed25519 && i == 0 => {
                if !demands.ed25519 {
                    tell("its key is Ed25519".to_owned(), renew);
                }
            }
            _ => match ml_dsa {
                _ if is_allowed(ml_dsa) => {}
                Some((_, name)) => tell(format!("its key is {name}"), renew),
                None => tell("its key is of a kind that the policy does not name".to_owned(), renew),
            },
        }
        let weak = ["1.2.840.113549.1.1.4", "1.2.840.113549.1.1.5", "1.2.840.10045.4.1"];
        let signature = parsed.signature_algorithm.algorithm.to_id_string();
        if weak.contains(&signature.as_str()) && parsed.subject() != parsed.issuer() {
            tell("it is signed with SHA-1 or MD5".to_owned(), "get a certificate that is signed with SHA-256");
        } else if demands.only_ml_dsa() && is_allowed(ml_dsa) && (i == 0 || parsed.subject() != parsed.issuer()) {
            // Of a certificate with another key, that is said.
            if !is_allowed(load::ml_dsa(&signature)) {
                tell("it is signed with another algorithm".to_owned(), "get a certificate from another authority");
            }
        }
        let (from, to) = (parsed.validity().not_before.timestamp(), parsed.validity().not_after.timestamp());
        if let Some(days) = demands.days.filter(|days| i == 0 && to - from > days * 86_400 + 86_399) {
            let what = format!("it is valid for {} days, but at most {days} are allowed", (to - from) / 86_400);
            tell(what, "get certificates with a shorter lifetime, and renew them automatically");
        }
        if i == 0 && !rules.whole_path.is_empty() && !(from..=to).contains(&now()) {
            let what = format!("{which}: it is not valid now");
            breaks(sink, policy, rules.whole_path, span, &what, "renew it".to_owned());
        }
    }
}

fn now() -> i64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_secs() as i64)
}

/// Servers whose certificate is not checked.
pub(super) fn unverified(sink: &Sink, span: &Range<usize>) {
    let Some((policy, rules)) = rules(sink).filter(|(policy, _)| policy.covers_upstreams()) else { return };
    let help = "remove \"dangerous_skip_verification\", and set \"ca\"".to_owned();
    breaks(sink, policy, rules.whole_path, span, "the server's certificate is not checked", help);
}

/// Servers that get requests as early data.
pub(super) fn early_data_to_servers(sink: &Sink, span: &Range<usize>) {
    let Some((policy, rules)) = rules(sink).filter(|(policy, _)| policy.covers_upstreams()) else { return };
    if !rules.no_early_data.is_empty() {
        let message = "requests are sent as early data, which an attacker can replay";
        breaks(sink, policy, rules.no_early_data, span, message, "remove \"early_data\"".to_owned());
    }
}

/// Upstreams with a name whose servers are asked without TLS. What is relayed as it comes is not asked.
pub(super) fn plain_upstreams(sink: &Sink, names: &[At<String>], upstreams: &Upstreams, hosts: &Hosts) {
    let relays =
        |index: usize| hosts.actions().any(|a| matches!(a, Action::Passthrough { upstream, .. } if *upstream == index));
    for name in names {
        let Some(index) = upstreams.named.get(&name.value).copied().flatten() else { continue };
        if upstreams.all[index].tls.is_none() && !relays(index) {
            for server in &upstreams.plans[index].servers {
                plain_server(sink, &server.host, &name.span);
            }
        }
    }
}

/// A server that is asked without TLS. Inside a machine or a private network that is allowed.
pub(super) fn plain_server(sink: &Sink, host: &str, span: &Range<usize>) {
    let Some((policy, rules)) = rules(sink).filter(|(policy, _)| policy.covers_upstreams()) else { return };
    let inside = match host.parse::<IpAddr>() {
        _ if host.starts_with("unix:") => true,
        Ok(address) => is_private(address),
        // Names without a dot, and those of private zones, are the network's own.
        Err(_) => {
            let own = [".internal", ".local", ".localhost", ".lan", ".home.arpa", ".test"];
            !host.trim_end_matches('.').contains('.') || own.iter().any(|zone| host.ends_with(zone))
        }
    };
    if !inside {
        let help = format!("write \"https://{host}\"");
        let message = format!("requests for {host} leave the private network without encryption");
        breaks(sink, policy, rules.whole_path, span, &message, help);
    }
}

/// Loopback, link-local, and the private networks of RFC 1918, RFC 4193 and RFC 6598.
fn is_private(address: IpAddr) -> bool {
    match address.to_canonical() {
        IpAddr::V4(v4) => {
            let [a, b, ..] = v4.octets();
            v4.is_loopback() || v4.is_private() || v4.is_link_local() || (a == 100 && (64..128).contains(&b))
        }
        IpAddr::V6(v6) => v6.is_loopback() || v6.is_unique_local() || v6.is_unicast_link_local(),
    }
}

/// The admin listener, which has no TLS.
pub(super) fn admin(sink: &Sink, address: IpAddr, span: &Range<usize>) {
    let Some((policy, rules)) = rules(sink).filter(|(policy, _)| policy.covers_upstreams()) else { return };
    if !address.is_loopback() {
        let source = if policy == Policy::PciDss4 { "PCI DSS 4.0.1, 2.2.7" } else { rules.whole_path };
        let help = "write an address of this machine: listen = \"127.0.0.1:9180\"".to_owned();
        breaks(sink, policy, source, span, "the admin listener is reached over the network without encryption", help);
    }
}

/// Whether only programs of this machine can connect.
fn is_local(address: &ListenAddress) -> bool {
    address.ip().is_none_or(|address| address.ip().is_loopback())
}

/// Listeners that serve more than redirects without TLS.
pub(super) fn plain_listeners(sink: &Sink, listeners: &[Draft], targets: &[Target], hosts: &Hosts) {
    let Some((policy, rules)) = rules(sink).filter(|(policy, _)| policy.covers_upstreams()) else { return };
    for (listener, target) in listeners.iter().zip(targets) {
        if listener.has_tls() || listener.broken_tls || listener.mode != Mode::Http || is_local(&listener.address) {
            continue;
        }
        let served = target.hosts.iter().filter(|(_, host)| !matches!(hosts.action(**host), Action::Redirect(_)));
        let mut names: Vec<String> = served.map(|(pattern, _)| pattern.to_string()).collect();
        if names.is_empty() {
            continue;
        }
        names.sort();
        names.truncate(3);
        let message = format!("listener {} serves {} without encryption", listener.written, names.join(", "));
        let help = format!(
            "{}. Then add a [[host]] with names = [\"*\"], listeners = [\"{}\"] and redirect = \"https://{{host}}{{uri}}\"",
            only_with_tls("these hosts", targets),
            listener.written
        );
        breaks(sink, policy, rules.whole_path, &listener.span, &message, help);
    }
}

/// The tunnel, which the policies of HTTP do not speak of.
pub(super) fn tunnel(sink: &Sink, span: &Range<usize>) {
    if outside_module(sink, span, "the tunnel has cryptography outside the FIPS module", "remove [tunnel]") {
        return;
    }
    if let Some((policy, _)) = rules(sink) {
        sink.warn(span, format!("{policy}: the tunnel is not part of this audit"), None);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_policy_has_its_name() {
        for (name, policy) in POLICIES {
            assert_eq!(name.parse::<Policy>(), Ok(*policy));
            assert_eq!(policy.to_string(), *name);
        }
        assert!("pci".parse::<Policy>().unwrap_err().contains("pci-dss-4"));
    }

    const ML_DSA: &[(&str, KeyKind)] =
        &[("ML-DSA-44", KeyKind::MlDsa44), ("ML-DSA-65", KeyKind::MlDsa65), ("ML-DSA-87", KeyKind::MlDsa87)];

    /// The rows of a policy's table in the reference.
    fn rows(policy: Policy) -> Vec<String> {
        let rules = policy.rules();
        let code = |names: Vec<&str>| names.iter().map(|name| format!("`{name}`")).collect::<Vec<_>>().join(", ");
        let tls = |these: &[Version]| {
            let names = names_of(VERSION_NAMES, these);
            names.iter().map(|name| format!("TLS {name}")).collect::<Vec<_>>().join(", ")
        };
        let mut versions = tls(rules.versions.these);
        if !rules.needed.these.is_empty() {
            versions += &format!("; required: {}", tls(rules.needed.these));
        }
        let mut groups = code(names_of(GROUPS, rules.groups.these));
        if !rules.one_of.these.is_empty() {
            groups += &format!("; at least one of {}", code(names_of(GROUPS, rules.one_of.these)));
        }
        let of = &rules.certificates;
        let mut certificates = Vec::new();
        certificates.extend(of.rsa_bits.map(|bits| format!("RSA of at least {bits} bits")));
        let curves: Vec<String> = of.curves.iter().map(|bits| format!("P-{bits}")).collect();
        certificates.extend((!curves.is_empty()).then(|| format!("ECDSA {}", curves.join(", "))));
        certificates.extend(of.ed25519.then(|| "Ed25519".to_owned()));
        certificates.extend(of.ml_dsa.iter().map(|kind| name_of(ML_DSA, kind).to_owned()));
        certificates.extend(of.days.map(|days| format!("valid for at most {days} days")));
        certificates.extend(rules.rsa_needed.then(|| "at least one with an RSA key".to_owned()));
        let mut rows = vec![
            format!("| versions | {versions} |"),
            format!("| ciphers | {} |", code(names_of(SUITES, rules.suites.these))),
            format!("| groups | {groups} |"),
            format!("| certificates | {} |", certificates.join("; ")),
        ];
        rows.extend((!rules.no_early_data.is_empty()).then(|| "| early data | off |".to_owned()));
        rows.extend((!rules.whole_path.is_empty()).then(|| "| the whole path | all rules above |".to_owned()));
        rows
    }

    #[test]
    fn the_reference_has_the_rules_of_each_policy() {
        let page = include_str!("../../../docs/reference/policies.md");
        let labels = ["versions", "ciphers", "groups", "certificates", "early data", "the whole path"];
        for (name, policy) in POLICIES {
            let section = page.split("\n## ").find(|section| section.starts_with(&format!("{name}\n")));
            let section = section.unwrap_or_else(|| panic!("docs/reference/policies.md has no section {name}"));
            let is_rule = |line: &&str| labels.iter().any(|label| line.starts_with(&format!("| {label} | ")));
            let written: Vec<&str> = section.lines().filter(is_rule).collect();
            assert_eq!(written, rows(*policy), "{name}");
        }
    }

    #[test]
    fn what_is_inside_a_private_network() {
        for inside in ["127.0.0.1", "::1", "10.1.2.3", "172.16.0.1", "192.168.1.1", "100.64.0.1", "fd00::1", "fe80::1"]
        {
            assert!(is_private(inside.parse().unwrap()), "{inside}");
        }
        for outside in ["8.8.8.8", "172.32.0.1", "100.128.0.1", "2001:db8::1", "::ffff:8.8.8.8"] {
            assert!(!is_private(outside.parse().unwrap()), "{outside}");
        }
    }
}
