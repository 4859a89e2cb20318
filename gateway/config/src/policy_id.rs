//! Ids of TLS policies: a digest over what a resumed session must not be carried across.
//!
//! The same settings give the same id after a reload and in another process, so that sessions go on; a changed CA or
//! revocation list gives another, so that a client whose certificate was checked by the old rules is checked again.
//! Certificates of our own are left out: renewing one ends no session.

use aws_lc_rs::digest::{Context, SHA256};
use sealane_tls::policy::{ClientAuth, ClientAuthMode, ExpiredLists, MAX_DEPTH, Revocation};
use sealane_tls::transparency::LogList;

/// A digest being made. Every part is preceded by its length, so that parts cannot run into each other.
pub(super) struct PolicyId(Context);

impl PolicyId {
    pub fn new(kind: &str) -> Self {
        let mut id = Self(Context::new(&SHA256));
        id.text("sealane policy 1");
        id.text(kind);
        id
    }

    pub fn bytes(&mut self, part: &[u8]) {
        self.0.update(&(part.len() as u64).to_be_bytes());
        self.0.update(part);
    }

    pub fn text(&mut self, part: &str) {
        self.bytes(part.as_bytes());
    }

    pub fn number(&mut self, n: u64) {
        self.bytes(&n.to_be_bytes());
    }

    pub fn certificates<C: AsRef<[u8]>>(&mut self, list: &[C]) {
        self.number(list.len() as u64);
        list.iter().for_each(|c| self.bytes(c.as_ref()));
    }

    pub fn client_auth(&mut self, auth: Option<&ClientAuth>) {
        let Some(auth) = auth else { return self.number(0) };
        self.number(match auth.mode {
            ClientAuthMode::Optional => 1,
            ClientAuthMode::Require => 2,
        });
        for (i, authority) in auth.authorities.iter().enumerate() {
            if i > 0 {
                // No name of a client: those begin with their kind and a colon.
                self.text("authority");
            }
            self.certificates(&authority.roots);
            // Lists that are replaced while the gateway serves enter by `with_lists`.
            self.number(0);
            // Nothing where there are none: as in versions that had no names.
            authority.names.iter().for_each(|name| self.text(&name.to_string()));
            if authority.depth < MAX_DEPTH {
                self.text(&format!("depth {}", authority.depth));
            }
        }
    }

    /// Makes the id of a policy, and lets its rules about revocation know what it is made of.
    pub fn finish_with<'r>(self, revocations: impl IntoIterator<Item = &'r mut Revocation>) -> [u8; 16] {
        let rules = self.finish();
        let mut all = Vec::new();
        for revocation in revocations {
            revocation.rules = rules;
            all.push(&*revocation);
        }
        of_lists(rules, &all)
    }

    pub fn finish(self) -> [u8; 16] {
        let digest = self.0.finish();
        let mut id = [0; 16];
        id.copy_from_slice(&digest.as_ref()[..16]);
        id
    }
}

/// The id of a policy with these lists. It is the same as long as nobody else is revoked: a list that was issued again ends no
/// session.
pub(super) fn with_lists(revocation: &Revocation) -> [u8; 16] {
    of_lists(revocation.rules, &[revocation])
}

/// The same for a policy towards clients, which has lists for each authority.
pub(super) fn with_lists_of(auth: &ClientAuth) -> [u8; 16] {
    let all: Vec<&Revocation> = auth.authorities.iter().map(|authority| &authority.revocation).collect();
    of_lists(all.first().map_or([0; 16], |first| first.rules), &all)
}

fn of_lists(rules: [u8; 16], all: &[&Revocation]) -> [u8; 16] {
    if all.iter().all(|revocation| revocation.sources.is_empty()) {
        return rules;
    }
    let mut id = PolicyId::new("lists");
    id.bytes(&rules);
    for (i, revocation) in all.iter().enumerate() {
        if i > 0 {
            id.text("authority");
        }
        id.number(match revocation.expired {
            ExpiredLists::Accept => 0,
            ExpiredLists::Refuse => 1,
        });
        revocation.sources.iter().for_each(|source| id.bytes(&source.digest));
    }
    id.finish()
}

/// The id of a policy towards servers, with these lists and with the logs that must have certificates: with other logs, a server is
/// checked again.
pub(super) fn of_client(revocation: &Revocation, logs: Option<&LogList>) -> [u8; 16] {
    let lists = with_lists(revocation);
    let Some(logs) = logs else { return lists };
    let mut id = PolicyId::new("logs");
    id.bytes(&lists);
    id.bytes(&logs.digest());
    id.finish()
}

#[cfg(test)]
mod tests {
    use super::*;
    use sealane_tls::policy::{ClientAuthority, ClientName, RevocationLists};
    use std::sync::Arc;

    fn id(parts: &[&str]) -> [u8; 16] {
        let mut id = PolicyId::new("test");
        parts.iter().for_each(|p| id.text(p));
        id.finish()
    }

    #[test]
    fn equal_parts_give_equal_ids_and_others_do_not() {
        assert_eq!(id(&["a", "b"]), id(&["a", "b"]));
        assert_ne!(id(&["a", "b"]), id(&["ab", ""]));
        assert_ne!(id(&["a", "b"]), id(&["b", "a"]));
    }

    #[test]
    fn the_id_is_about_who_is_revoked_and_not_about_when_the_list_was_issued() {
        let with = |digest: u8, next_update, expired| {
            let lists = RevocationLists { digest: [digest; 32], next_update, ..RevocationLists::default() };
            with_lists(&Revocation { sources: vec![lists.into()], expired, rules: [7; 16] })
        };
        let first = with(1, Some(1), ExpiredLists::Accept);
        assert_eq!(first, with(1, Some(2), ExpiredLists::Accept));
        assert_ne!(first, with(2, Some(1), ExpiredLists::Accept));
        assert_ne!(first, with(1, Some(1), ExpiredLists::Refuse));
        assert_eq!(with_lists(&Revocation { rules: [7; 16], ..Revocation::default() }), [7; 16]);
    }

    #[test]
    fn other_client_rules_give_another_id() {
        let authority = |root: &'static [u8]| ClientAuthority {
            roots: vec![root.into()],
            revocation: Revocation::default(),
            names: vec![],
            depth: MAX_DEPTH,
        };
        let id = |mode, authorities: Vec<ClientAuthority>| {
            let mut id = PolicyId::new("server");
            let reauthenticate_after = sealane_tls::REAUTHENTICATE_AFTER;
            id.client_auth(Some(&ClientAuth { mode, authorities, reauthenticate_after }));
            id.finish()
        };
        let none = {
            let mut id = PolicyId::new("server");
            id.client_auth(None);
            id.finish()
        };
        let required = |authorities| id(ClientAuthMode::Require, authorities);
        let named = || ClientAuthority { names: vec![ClientName::CommonName("a".into())], ..authority(b"one") };
        let depth = |depth| ClientAuthority { depth, ..authority(b"one") };
        let all = [
            none,
            required(vec![authority(b"one")]),
            id(ClientAuthMode::Optional, vec![authority(b"one")]),
            required(vec![authority(b"two")]),
            required(vec![named()]),
            required(vec![depth(0)]),
            required(vec![depth(1)]),
            required(vec![authority(b"one"), authority(b"two")]),
            required(vec![ClientAuthority { roots: vec![b"one"[..].into(), b"two"[..].into()], ..authority(b"one") }]),
            required(vec![named(), authority(b"two")]),
            required(vec![authority(b"one"), ClientAuthority { roots: vec![b"two"[..].into()], ..named() }]),
        ];
        for (i, a) in all.iter().enumerate() {
            assert!(all.iter().skip(i + 1).all(|b| a != b), "{i}");
        }
        // The lists of each authority count as that authority's.
        let lists = |digest: u8| vec![Arc::new(RevocationLists { digest: [digest; 32], ..RevocationLists::default() })];
        let with = |first: &[u8], second: &[u8]| {
            let authorities = [first, second].map(|digests| ClientAuthority {
                revocation: Revocation {
                    sources: digests.iter().flat_map(|digest| lists(*digest)).collect(),
                    expired: ExpiredLists::Accept,
                    rules: [7; 16],
                },
                ..authority(b"one")
            });
            let mode = ClientAuthMode::Require;
            let reauthenticate_after = sealane_tls::REAUTHENTICATE_AFTER;
            with_lists_of(&ClientAuth { mode, authorities: authorities.into(), reauthenticate_after })
        };
        let all =
            [with(&[], &[]), with(&[1], &[]), with(&[], &[1]), with(&[1], &[2]), with(&[2], &[1]), with(&[1, 2], &[])];
        for (i, a) in all.iter().enumerate() {
            assert!(all.iter().skip(i + 1).all(|b| a != b), "{i}");
        }
        assert_eq!(all[0], [7; 16]);
    }
}
