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
        self.certificates(&auth.roots);
        // Lists that are replaced while the gateway serves enter by `with_lists`.
        self.number(0);
        // Nothing where there are none: as in versions that had no names.
        auth.names.iter().for_each(|name| self.text(&name.to_string()));
        if auth.depth < MAX_DEPTH {
            // No name of a client: those begin with their kind and a colon.
            self.text(&format!("depth {}", auth.depth));
        }
    }

    /// Makes the id of a policy, and lets its rules about revocation know what it is made of.
    pub fn finish_with(self, revocation: Option<&mut Revocation>) -> [u8; 16] {
        let rules = self.finish();
        revocation.map_or(rules, |revocation| {
            revocation.rules = rules;
            with_lists(revocation)
        })
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
    if revocation.sources.is_empty() {
        return revocation.rules;
    }
    let mut id = PolicyId::new("lists");
    id.bytes(&revocation.rules);
    id.number(match revocation.expired {
        ExpiredLists::Accept => 0,
        ExpiredLists::Refuse => 1,
    });
    revocation.sources.iter().for_each(|source| id.bytes(&source.digest));
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
    use sealane_tls::policy::{ClientName, RevocationLists};

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
        let auth = |mode, root: &'static [u8]| ClientAuth {
            mode,
            roots: vec![root.into()],
            revocation: Revocation::default(),
            names: vec![],
            depth: MAX_DEPTH,
            reauthenticate_after: sealane_tls::REAUTHENTICATE_AFTER,
        };
        let id = |auth: Option<ClientAuth>| {
            let mut id = PolicyId::new("server");
            id.client_auth(auth.as_ref());
            id.finish()
        };
        let all = [
            id(None),
            id(Some(auth(ClientAuthMode::Require, b"one"))),
            id(Some(auth(ClientAuthMode::Optional, b"one"))),
            id(Some(auth(ClientAuthMode::Require, b"two"))),
            id(Some(ClientAuth {
                names: vec![ClientName::CommonName("a".into())],
                ..auth(ClientAuthMode::Require, b"one")
            })),
            id(Some(ClientAuth { depth: 0, ..auth(ClientAuthMode::Require, b"one") })),
            id(Some(ClientAuth { depth: 1, ..auth(ClientAuthMode::Require, b"one") })),
        ];
        for (i, a) in all.iter().enumerate() {
            assert!(all.iter().skip(i + 1).all(|b| a != b), "{i}");
        }
    }
}
