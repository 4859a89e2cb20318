//! Handshakes whose certificate's key a token holds (PKCS#11).
//!
//! ```text
//! start_session ─► the lane tries with signing refused ─► resumed, or a key of this machine: as usual
//!                    │ the token must sign
//!                    ▼
//!                  RemoteKey::submit, bounded ─► a signing thread ─► Message::Signed ─► Open
//!                    │ full: refused              AwaitsSignature, until the deadline of the handshake
//! ```
//!
//! A lane never waits for a token. What comes back for a connection that is gone is dropped. A client that was sent back for
//! another key share signs with its second hello: the lane collects that hello, and hands it over whole.

use crate::client::connection::{INTERNAL_ERROR, client_failed, client_open, handshake_failed, refuse_raw};
use crate::conn::Conn;
use crate::connections::Connections;
use crate::counters::Count;
use crate::lifecycle::close_connection;
use crate::service::{Message, Proxy};
use crate::transport::{ReadResult, TransportError};
use sealane_lane::{Context, Key};
use sealane_tls::hello::{self, LargeHello, SMALL_HELLO, fatal_alert};
use sealane_tls::remote::{Away, Back, RemoteKey};
use sealane_tls::{Session, TlsError};
use std::sync::Arc;
use std::time::Instant;

/// The most bytes that are collected of a second hello, with early data in front of it that the server skips.
const MAX_SECOND_HELLO: usize = 128 * 1024;

/// Answers a hello for whose name a token holds a key. `again` makes another session like `session`.
pub(super) fn start(
    proxy: &mut Proxy,
    cx: &mut Context,
    key: Key,
    session: Session,
    again: impl FnOnce() -> Option<Session>,
) {
    let Proxy { connections, scratch, .. } = proxy;
    let Some(Conn::Client(client_conn)) = connections.get_mut(key) else { return };
    match client_conn.transport.start_server_watched(session, scratch) {
        Err(e) => {
            proxy.connections.mark_for_flush(key);
            client_failed(proxy, cx, key, e);
        }
        Ok(watched) => match watched.chosen {
            Some(token) if watched.refused => match again() {
                Some(session) => send_away(proxy, cx, key, Box::new(session), &token),
                None => refuse(proxy, cx, key, "other"),
            },
            chosen => {
                note_second_hello(&mut proxy.connections, key, chosen);
                proxy.connections.mark_for_flush(key);
                client_open(proxy, cx, key);
            }
        },
    }
}

/// Notes which key signs for a client that was sent back for another key share.
fn note_second_hello(connections: &mut Connections, key: Key, chosen: Option<Arc<dyn RemoteKey>>) {
    let Some(client_conn) = connections.client(key) else { return };
    let is_back = client_conn.transport.tls.as_ref().is_some_and(|tls| tls.awaits_second_hello());
    if let Some(opening) = client_conn.opening() {
        opening.second_hello = chosen.filter(|_| is_back);
    }
}

/// Whether the session is to take its second hello on a signing thread.
pub(super) fn awaits_second_hello(connections: &mut Connections, key: Key) -> bool {
    let opening = connections.client(key).and_then(|client_conn| client_conn.opening());
    opening.is_some_and(|opening| opening.second_hello.is_some())
}

/// Collects the second hello. Once it is whole, a signing thread gets the session.
pub(super) fn read_second_hello(proxy: &mut Proxy, cx: &mut Context, key: Key) {
    loop {
        let Proxy { connections, scratch, .. } = proxy;
        let Some(Conn::Client(client_conn)) = connections.get_mut(key) else { return };
        if hello::is_second_whole(&client_conn.transport.unread, scratch.text()) {
            let Some(token) = client_conn.opening().and_then(|opening| opening.second_hello.take()) else { return };
            let Some(session) = client_conn.transport.tls.take() else { return };
            return send_away(proxy, cx, key, session, &token);
        }
        let collected = client_conn.transport.unread.len();
        let Some(opening) = client_conn.opening() else { return };
        if collected > SMALL_HELLO && opening.large_hello.is_none() {
            opening.large_hello = LargeHello::acquire();
            if opening.large_hello.is_none() {
                return refuse(proxy, cx, key, "too_many_large_hellos");
            }
        }
        if collected > MAX_SECOND_HELLO {
            return refuse(proxy, cx, key, "oversize_hello");
        }
        match client_conn.transport.read_raw(scratch) {
            Ok(ReadResult::Progress) => {}
            Ok(ReadResult::Blocked) => return,
            Ok(ReadResult::End { .. }) => {
                handshake_failed(proxy, key, "closed");
                return close_connection(proxy, cx, key);
            }
            Err(e) => return client_failed(proxy, cx, key, e),
        }
    }
}

/// Hands a session over to the signing threads of a token.
fn send_away(proxy: &mut Proxy, cx: &mut Context, key: Key, session: Box<Session>, token: &Arc<dyn RemoteKey>) {
    let mailbox = proxy.settings.own_mailbox().clone();
    let Some(client_conn) = proxy.connections.client(key) else { return };
    let away = Away::new(session, std::mem::take(&mut client_conn.transport.unread));
    let until = Instant::now() + client_conn.handshake_time_left(cx.now());
    let work = move || {
        // Its client has been told that it took too long.
        if Instant::now() < until {
            // A lane that has ended has no connections.
            let _ = mailbox.send(Message::Signed(key, Box::new(away.run())));
        }
    };
    if token.submit(Box::new(work)) {
        return client_conn.await_signature();
    }
    proxy.counters.count(Count::TokenBusy);
    refuse(proxy, cx, key, "signing_busy");
}

/// Ends a handshake of which nothing was sent under a key.
fn refuse(proxy: &mut Proxy, cx: &mut Context, key: Key, reason: &'static str) {
    handshake_failed(proxy, key, reason);
    refuse_raw(proxy, cx, key, &fatal_alert(INTERNAL_ERROR));
}

/// A session comes back.
pub(crate) fn signed(proxy: &mut Proxy, cx: &mut Context, key: Key, back: Back) {
    let Proxy { connections, scratch, counters, .. } = proxy;
    // It took too long, or the client has gone.
    let Some(Conn::Client(client_conn)) = connections.get_mut(key) else { return counters.count(Count::TokenLate) };
    if !client_conn.leave_signature() {
        return counters.count(Count::TokenLate);
    }
    let result = client_conn.transport.resume_server(back, scratch);
    let failed = matches!(&result, Err(TransportError::Tls(e)) if is_of_token(e));
    if failed {
        counters.count(Count::TokenFailed);
    } else if result.is_ok() {
        counters.count(Count::TokenSigned);
    }
    connections.mark_for_flush(key);
    match result {
        Ok(()) => client_open(proxy, cx, key),
        Err(e) => client_failed(proxy, cx, key, e),
    }
}

/// Whether the token is the reason.
fn is_of_token(error: &TlsError) -> bool {
    error.label() == "signing_failed"
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::client::connection::{client_timeout, hello_arrived};
    use crate::client::state::ClientPhase;
    use crate::fixtures::{self, client_policy, connection, limits, listener, snapshot, tls};
    use crate::snapshot::Snapshot;
    use rustix::net::{RecvFlags, recv};
    use sealane_lane::{After, Inbox, Published, Service};
    use sealane_tls::policy::{Curve, Identities, Identity, KeyKind, ListenerTls, PrivateKey, ServerPolicy};
    use sealane_tls::remote::{SignatureScheme, Work};
    use sealane_tls::{ClientContext, Records};
    use std::fmt;
    use std::os::fd::OwnedFd;
    use std::sync::Mutex;
    use std::sync::atomic::{AtomicBool, Ordering};

    /// A token whose threads work when a test says so.
    struct Token {
        key: rcgen::KeyPair,
        public: Vec<u8>,
        waiting: Mutex<Vec<Work>>,
        is_full: AtomicBool,
        is_lost: AtomicBool,
    }

    impl fmt::Debug for Token {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("Token")
        }
    }

    impl RemoteKey for Token {
        fn public_key(&self) -> &[u8] {
            &self.public
        }

        fn schemes(&self) -> &[SignatureScheme] {
            &[SignatureScheme::ECDSA_NISTP256_SHA256]
        }

        fn sign(&self, _: SignatureScheme, message: &[u8]) -> Result<Vec<u8>, String> {
            match self.is_lost.load(Ordering::SeqCst) {
                true => Err("it is lost".to_owned()),
                false => rcgen::SigningKey::sign(&self.key, message).map_err(|e| e.to_string()),
            }
        }

        fn submit(&self, work: Work) -> bool {
            let is_full = self.is_full.load(Ordering::SeqCst);
            if !is_full {
                self.waiting.lock().unwrap().push(work);
            }
            !is_full
        }
    }

    impl Token {
        /// Another thread does what waits.
        fn work(&self) {
            for work in self.waiting.lock().unwrap().drain(..) {
                std::thread::spawn(work).join().unwrap();
            }
        }
    }

    struct Lane {
        proxy: Proxy,
        cx: Context,
        inbox: Inbox<Message>,
        token: Arc<Token>,
        _published: Arc<Published<Snapshot>>,
    }

    /// A lane with a certificate whose key is in a token.
    fn lane() -> Lane {
        let key = rcgen::KeyPair::generate().unwrap();
        let certificate =
            rcgen::CertificateParams::new(vec!["a.example".to_owned()]).unwrap().self_signed(&key).unwrap();
        let token = Arc::new(Token {
            public: rcgen::PublicKeyData::subject_public_key_info(&key),
            key,
            waiting: Mutex::default(),
            is_full: AtomicBool::new(false),
            is_lost: AtomicBool::new(false),
        });
        let identity = Identity {
            chain: vec![certificate.der().clone()],
            key: PrivateKey::Remote(token.clone()),
            ocsp: None,
            kind: KeyKind::Ecdsa,
            curve: Some(Curve::P256),
            source: "a test".into(),
        };
        let identities = Identities { all: vec![Arc::new(identity)], default: vec![0], ..Identities::default() };
        let ListenerTls { policies, sites } = tls();
        let policy = ServerPolicy { identities: Arc::new(identities), ..ServerPolicy::clone(&policies[0]) };
        let mut secure = listener(1);
        secure.tls = Some(ListenerTls { policies: vec![Arc::new(policy)], sites });
        let mut config = snapshot(limits(), Vec::new());
        config.listeners = vec![Arc::new(secure)];
        let published = Published::new(config);
        let mut cx = Context::new().unwrap();
        let (proxy, inbox) = fixtures::lane(&published, &mut cx);
        Lane { proxy, cx, inbox, token, _published: published }
    }

    impl Lane {
        /// A client that has sent its hello: its connection, its end of it, and its session.
        fn client(&mut self) -> (Key, OwnedFd, Session) {
            let Self { proxy, cx, .. } = self;
            let (conn, peer) = connection(&proxy.settings.listeners()[0]);
            let Conn::Client(client) = conn else { unreachable!() };
            let mut client = Box::new(client.in_handshake(cx.now() + 60_000));
            client.begin_with(ClientPhase::HELLO);
            let mut hello = Records::default();
            let session = Session::client(&ClientContext::new(&client_policy()).unwrap(), &mut hello).unwrap();
            client.adopt(hello.filled().to_vec());
            let key = proxy.connections.insert(Conn::Client(client));
            proxy.admission.arrived(&proxy.counters);
            hello_arrived(proxy, cx, key, true);
            while proxy.turn(cx) == After::Again {}
            (key, peer, session)
        }

        /// The lane reads its mail.
        fn read_mail(&mut self) {
            while let Some(message) = self.inbox.receive() {
                self.proxy.message(&mut self.cx, message);
            }
        }

        fn phase(&mut self, key: Key) -> Option<ClientPhase> {
            self.proxy.connections.client(key).map(|client| client.phase())
        }

        fn counts(&self) -> [u64; 4] {
            [Count::TokenSigned, Count::TokenFailed, Count::TokenBusy, Count::TokenLate]
                .map(|count| self.proxy.counters.value(count))
        }
    }

    fn received(peer: &OwnedFd) -> Vec<u8> {
        let mut bytes = vec![0; 16_384];
        let length = recv(peer, &mut bytes[..], RecvFlags::empty()).map_or(0, |(length, _)| length);
        bytes.truncate(length);
        bytes
    }

    #[test]
    fn a_session_is_away_until_the_token_has_signed() {
        let mut lane = lane();
        let (key, peer, mut session) = lane.client();
        assert_eq!(lane.phase(key), Some(ClientPhase::AwaitsSignature));
        assert!(received(&peer).is_empty(), "nothing is sent before the token has signed");
        lane.token.work();
        lane.read_mail();
        assert_eq!(lane.phase(key), Some(ClientPhase::Open));
        assert_eq!(lane.counts(), [1, 0, 0, 0]);
        let mut flight = received(&peer);
        let mut out = Records::default();
        session.read(&mut flight, &mut Vec::new(), &mut Vec::new(), &mut out).unwrap();
        assert!(!session.is_handshaking() && !out.is_empty(), "the client accepts the signature");
    }

    #[test]
    fn a_full_queue_and_a_lost_token_end_the_handshake() {
        let mut lane = lane();
        lane.token.is_full.store(true, Ordering::SeqCst);
        let (key, peer, _session) = lane.client();
        assert_eq!((lane.phase(key), lane.counts()), (Some(ClientPhase::Lingering { read: 0 }), [0, 0, 1, 0]));
        assert_eq!(received(&peer), fatal_alert(INTERNAL_ERROR));
        lane.token.is_full.store(false, Ordering::SeqCst);
        lane.token.is_lost.store(true, Ordering::SeqCst);
        let (key, _peer, _session) = lane.client();
        lane.token.work();
        lane.read_mail();
        assert_ne!(lane.phase(key), Some(ClientPhase::Open));
        assert_eq!(lane.counts(), [0, 1, 1, 0]);
    }

    #[test]
    fn what_comes_back_too_late_is_dropped() {
        let mut lane = lane();
        let (gone, _peer, _session) = lane.client();
        let (late, _other_peer, _other_session) = lane.client();
        close_connection(&mut lane.proxy, &mut lane.cx, gone);
        client_timeout(&mut lane.proxy, &mut lane.cx, late);
        lane.token.work();
        lane.read_mail();
        assert_eq!((lane.phase(gone), lane.phase(late)), (None, None));
        assert_eq!(lane.counts(), [0, 0, 0, 2]);
    }
}
