//! Which stack fits a need: what must work was tried, the rest decides the order.

use crate::catalogue::{Stack, Support};
use crate::wire::Feature;

/// What somebody may need: the word on the command line, the features that it takes, and what it means.
const NEEDS: &[(&str, &[&str], &str)] = &[
    ("quic", &["quic"], "an interface for QUIC"),
    ("fips", &["fips"], "FIPS mode"),
    ("0-rtt", &["early-data"], "early data"),
    ("ocsp", &["ocsp"], "stapled OCSP responses"),
    ("crl", &["crl"], "revocation lists"),
    ("sni", &["sni"], "the server's name"),
    ("alpn", &["alpn"], "ALPN"),
    ("ct", &["ct"], "certificate transparency"),
    ("pq", &["group:x25519mlkem768"], "post-quantum key exchange"),
    ("tickets", &["tickets:1.2", "tickets:1.3"], "session tickets"),
    ("chacha20", &["cipher:1.2:chacha20", "cipher:1.3:chacha20"], "ChaCha20-Poly1305"),
    ("tls1.0", &["tls1.0"], "TLS 1.0"),
    ("tls1.1", &["tls1.1"], "TLS 1.1"),
    ("tls1.2", &["tls1.2"], "TLS 1.2"),
    ("tls1.3", &["tls1.3"], "TLS 1.3"),
];

/// Needs that are no features, and what is said of a stack that does not meet them.
const OTHER: &[(&str, &str)] = &[
    ("lts", "no long-term support"),
    ("supported", "no longer supported"),
    ("permissive", "no licence without copyleft"),
];

/// What is known of a stack.
#[derive(Clone, Debug)]
pub struct Candidate {
    /// From the catalogue.
    pub stack: Stack,
    /// What was tried; none when it is not built.
    pub features: Option<Vec<Feature>>,
    /// Lock calls per resumed handshake on the server's side.
    pub locks: Option<f64>,
}

/// A stack and what speaks for or against it.
#[derive(Clone, Debug, PartialEq)]
pub struct Advice {
    /// The stack.
    pub name: String,
    /// Does it fit?
    pub fits: bool,
    /// In one line.
    pub why: String,
}

/// Looks that all needs are known words.
pub fn check(needs: &[String]) -> Result<(), String> {
    let known = |need: &str| NEEDS.iter().any(|n| n.0 == need) || OTHER.iter().any(|n| n.0 == need);
    needs.iter().find(|need| !known(need)).map_or(Ok(()), |need| {
        let words = NEEDS.iter().map(|n| n.0).chain(OTHER.iter().map(|n| n.0));
        Err(format!("--need {need:?} is unknown; write some of {}", words.collect::<Vec<_>>().join(", ")))
    })
}

/// Ranks: those that fit first; among these, those that are supported, then those with fewest lock calls.
pub fn rank(candidates: &[Candidate], needs: &[String], today: &str) -> Vec<Advice> {
    let mut all: Vec<(u8, f64, Advice)> = candidates
        .iter()
        .filter(|c| !c.stack.variant)
        .map(|candidate| {
            let advice = judge(candidate, needs, today);
            let ended = candidate.stack.support(today) == Support::Ended;
            let class = match (advice.fits, ended, &candidate.features) {
                (true, false, _) => 0,
                (true, true, _) => 1,
                (false, _, Some(_)) => 2,
                (false, _, None) => 3,
            };
            (class, candidate.locks.unwrap_or(f64::MAX), advice)
        })
        .collect();
    all.sort_by(|a, b| a.0.cmp(&b.0).then(a.1.total_cmp(&b.1)));
    all.into_iter().map(|(_, _, advice)| advice).collect()
}

fn judge(candidate: &Candidate, needs: &[String], today: &str) -> Advice {
    let stack = &candidate.stack;
    let name = stack.name.clone();
    let no = |why: String| Advice { name: name.clone(), fits: false, why };
    let support = stack.support(today);
    let Some(features) = &candidate.features else {
        return no(format!("not built, so nothing was tried: sealane-lab stacks build {name}"));
    };
    for need in needs {
        // Of several licences to choose from, one is enough.
        let free = |licence: &str| !["GPL", "commercial"].iter().any(|word| licence.contains(word));
        let permissive = stack.licence.split(" OR ").any(free);
        let met = match need.as_str() {
            "lts" => support == Support::LongTerm,
            "supported" => support != Support::Ended,
            "permissive" => permissive,
            _ => true,
        };
        if !met {
            let meaning = OTHER.iter().find(|n| n.0 == need).map_or("", |n| n.1);
            let has = match need.as_str() {
                "permissive" => stack.licence.clone(),
                _ => support.until(stack.support_ends.as_deref()),
            };
            return no(format!("{meaning}: {has}"));
        }
        let Some((_, takes, meaning)) = NEEDS.iter().find(|n| n.0 == need) else { continue };
        for &feature in *takes {
            let tried = features.iter().find(|f| f.name == feature);
            match tried.map(|f| (f.state.as_str(), f.note.as_str())) {
                Some(("yes", _)) => {}
                Some(("no", note)) => return no(format!("without {meaning}: {note}")),
                _ => return no(format!("{meaning}: its worker cannot test this")),
            }
        }
    }
    let mut why = match (support, &stack.support_ends) {
        (Support::Ended, Some(end)) => format!("fits, but its support ended on {end}"),
        (_, Some(end)) => format!("fits; {}", support.until(Some(end.as_str()))),
        _ => format!("fits; {}: {}", support.name(), stack.note.as_deref().unwrap_or("follow its newest release")),
    };
    if let Some(locks) = candidate.locks {
        why.push_str(&format!("; {locks:.0} lock calls per resumed handshake"));
    }
    Advice { name, fits: true, why }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn candidate(name: &str, yes: &[&str], locks: f64) -> Candidate {
        let all = crate::catalogue::catalogue();
        let stack = all.stacks.into_iter().find(|s| s.name == name).expect("known");
        let feature = |name: &&str| Feature { name: (*name).into(), state: "yes".into(), note: String::new() };
        let mut features: Vec<Feature> = yes.iter().map(feature).collect();
        features.push(Feature { name: "fips".into(), state: "no".into(), note: "not in this build".into() });
        Candidate { stack, features: Some(features), locks: Some(locks) }
    }

    fn needs(list: &[&str]) -> Vec<String> {
        list.iter().map(|s| (*s).to_owned()).collect()
    }

    #[test]
    fn what_fits_comes_first_and_says_why() {
        let all = [
            candidate("openssl-1.1.1", &["tls1.3"], 30.0),
            candidate("openssl-3.5", &["tls1.3", "quic"], 100.0),
            candidate("wolfssl", &["tls1.3", "quic"], 8.0),
            Candidate { features: None, ..candidate("boringssl", &[], 4.0) },
        ];
        let ranked = rank(&all, &needs(&["tls1.3"]), "2026-11-21");
        let names: Vec<&str> = ranked.iter().map(|a| a.name.as_str()).collect();
        assert_eq!(names, ["wolfssl", "openssl-3.5", "openssl-1.1.1", "boringssl"]);
        assert!(ranked[2].why.contains("ended on 2023-09-11") && ranked[1].why.contains("100 lock calls"));
        let ranked = rank(&all, &needs(&["quic", "lts"]), "2026-11-21");
        assert!(ranked[0].name == "openssl-3.5" && ranked[0].fits && !ranked[1].fits, "{ranked:?}");
        assert!(rank(&all, &needs(&["fips"]), "2026-11-21").iter().all(|a| !a.fits));
        assert!(!rank(&all[2..3], &needs(&["permissive"]), "2026-11-21")[0].fits);
    }

    #[test]
    fn unknown_needs_are_refused() {
        assert!(check(&needs(&["quic", "lts"])).is_ok());
        assert!(check(&needs(&["speed"])).expect_err("unknown").contains("quic"));
    }
}
