//! A certificate that is not valid does not take the place of one that is.
//!
//! Changed files with such a certificate are refused until they change again, or until it is valid: it was issued ahead of its time, or
//! this machine's clock was wrong.

use crate::config::{AdminTls, CertificateFiles, Loaded, NotValid};
use std::collections::HashMap;
use std::hash::Hash;
use std::ops::RangeInclusive;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

/// The time of day, in seconds since 1970.
pub fn now() -> i64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_secs() as i64)
}

/// What is used with a certificate.
pub trait WithCertificate: Clone {
    /// The certificate.
    fn certificate(&self) -> &Loaded;
}

impl WithCertificate for Arc<Loaded> {
    fn certificate(&self) -> &Loaded {
        self
    }
}

impl WithCertificate for AdminTls {
    fn certificate(&self) -> &Loaded {
        AdminTls::certificate(self)
    }
}

/// Certificates that were read again while they were not valid, by their files, and when they are.
#[derive(Debug)]
pub struct InvalidCertificates<F = CertificateFiles, C = Arc<Loaded>> {
    waiting: HashMap<F, (C, RangeInclusive<i64>)>,
}

impl<F, C> Default for InvalidCertificates<F, C> {
    fn default() -> Self {
        Self { waiting: HashMap::new() }
    }
}

impl<F: Clone + Eq + Hash, C: WithCertificate> InvalidCertificates<F, C> {
    /// Decides whether a certificate that was read again may be used. The error says why the one `in_use` stays.
    pub fn admit(&mut self, files: &F, new: &C, now: i64, in_use: impl FnOnce() -> Option<C>) -> Result<(), NotValid> {
        self.forget(files);
        let Some(why) = new.certificate().not_valid(now) else { return Ok(()) };
        let is_as_bad = |in_use: &Loaded| in_use.self_signed || in_use.not_valid(now).is_some();
        if in_use().is_none_or(|in_use| is_as_bad(in_use.certificate())) {
            return Ok(());
        }
        self.waiting.insert(files.clone(), (new.clone(), new.certificate().validity()));
        Err(why)
    }

    /// Takes those that are valid by now.
    pub fn ready(&mut self, now: i64) -> HashMap<F, C> {
        let ready = self.waiting.extract_if(|_, (_, validity)| validity.contains(&now));
        ready.map(|(files, (loaded, _))| (files, loaded)).collect()
    }

    /// Whether none waits.
    pub fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// What was read of these files is out of date.
    pub fn forget(&mut self, files: &F) {
        self.waiting.remove(files);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::read_sent;
    use rcgen::{CertificateParams, KeyPair, date_time_ymd};

    /// A certificate that is valid from the beginning of one year to that of another, as if it were of a file.
    fn read(from: i32, until: i32) -> (CertificateFiles, Arc<Loaded>) {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::new(vec!["a.example".to_owned()]).unwrap();
        (params.not_before, params.not_after) = (date_time_ymd(from, 1, 1), date_time_ymd(until, 1, 1));
        let pem = params.self_signed(&key).unwrap().pem() + &key.serialize_pem();
        let (files, loaded, _) = read_sent("a", pem.as_bytes()).unwrap();
        (files, loaded)
    }

    fn beginning_of(year: i32) -> i64 {
        date_time_ymd(year, 1, 1).unix_timestamp()
    }

    #[test]
    fn an_invalid_certificate_does_not_replace_a_valid_one() {
        let (files, in_use) = read(2020, 2030);
        let (expired, early) = (read(2010, 2020).1, read(2028, 2040).1);
        let mut all = InvalidCertificates::default();
        let mut admit = |new: &Arc<Loaded>, year| {
            all.admit(&files, new, beginning_of(year), || Some(in_use.clone())).map_err(|why| why.to_string())
        };
        assert_eq!(admit(&read(2020, 2040).1, 2025), Ok(()));
        let why = admit(&expired, 2025).unwrap_err();
        assert!(why.starts_with("the certificate expired 1827 days ago ("), "{why}");
        let why = admit(&early, 2025).unwrap_err();
        assert!(why.starts_with("the certificate is not valid before "), "{why}");
        // One that is as bad as the other replaces it: perhaps the clock is wrong.
        assert_eq!((admit(&expired, 2035), admit(&early, 2010)), (Ok(()), Ok(())));
        // What is valid in any case is not looked for.
        assert_eq!(all.admit(&files, &early, beginning_of(2030), || panic!("it is valid")), Ok(()));
        assert_eq!(all.admit(&files, &expired, beginning_of(2025), || None), Ok(()), "there is none in use");
    }

    #[test]
    fn a_certificate_is_used_once_it_is_valid() {
        let (files, in_use) = read(2020, 2030);
        let early = read(2028, 2040).1;
        let mut all = InvalidCertificates::default();
        let refuse = |all: &mut InvalidCertificates| {
            all.admit(&files, &early, beginning_of(2025), || Some(in_use.clone())).unwrap_err()
        };
        refuse(&mut all);
        assert!(all.ready(beginning_of(2028) - 1).is_empty() && !all.is_empty());
        assert!(all.ready(beginning_of(2028)).contains_key(&files) && all.is_empty());
        // Files that have changed meanwhile say something else.
        refuse(&mut all);
        all.forget(&files);
        assert!(all.ready(beginning_of(2028)).is_empty());
        // A clock that was a year ahead is set.
        let new = read(2024, 2025).1;
        all.admit(&files, &new, beginning_of(2026), || Some(in_use.clone())).unwrap_err();
        assert!(all.ready(beginning_of(2026)).is_empty());
        assert!(all.ready(beginning_of(2025) - 1).contains_key(&files) && all.is_empty());
    }
}
