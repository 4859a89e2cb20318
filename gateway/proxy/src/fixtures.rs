//! What the unit tests of the parts have in common: connections of socket pairs, TLS with a certificate that was made for it, and what
//! `crate::fuzzing::fixtures` has.

use crate::client::identity::Client;
use crate::client::state::{ClientConnection, ClientPhase};
use crate::conn::Conn;
use crate::fuzzing::fixtures::listener_tls;
pub(crate) use crate::fuzzing::fixtures::{lane, limits, listener, quic_listener, record_sink, snapshot, upstream};
use crate::lane_state::{LaneListener, LaneSnapshot};
use crate::records::ConnectionId;
use crate::service::MAIL_CAPACITY;
use crate::settings::LaneSettings;
use crate::snapshot::Snapshot;
use crate::traces::Made;
use crate::transport::Transport;
use crate::upstream::group::LaneUpstream;
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
use sealane_lane::{Micros, Published, mailbox};
use sealane_tls::ServerContext;
use sealane_tls::policy::{ClientPolicy, Group, ListenerTls, ServerPolicy, Suite, TicketKeys, Version};
use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::sync::Arc;

/// TLS with a certificate that was made for it.
pub(crate) fn tls() -> ListenerTls {
    let key = rcgen::KeyPair::generate().unwrap();
    let certificate = rcgen::CertificateParams::new(vec!["a.example".to_owned()]).unwrap().self_signed(&key).unwrap();
    listener_tls(certificate.der().to_vec(), key.serialize_der())
}

/// A server with the certificate of [`tls`] and the sessions of this id, which accepts so much early data and key shares of this group.
pub(crate) fn tls_server(id: u8, max_early_data: u32, group: Group) -> ServerContext {
    let policy = ServerPolicy::clone(&tls().policies[0]);
    let policy = ServerPolicy { id: [id; 16], max_early_data, groups: vec![group], ..policy };
    let keys = TicketKeys { epoch: 1, masters: vec![[id; 32]], lifetime: 60, reset: [2; 32] };
    ServerContext::new(&Arc::new(policy), &keys).unwrap()
}

/// For a client of [`tls`].
pub(crate) fn client_policy() -> ClientPolicy {
    ClientPolicy {
        id: [2; 16],
        versions: vec![Version::Tls13],
        groups: vec![Group::X25519],
        suites: vec![Suite::TLS13_AES_128_GCM_SHA256],
        alpn: Vec::new(),
        server_name: "a.example".into(),
        roots: Vec::new(),
        revocation: sealane_tls::policy::Revocation::default(),
        logs: None,
        dangerous_skip_verification: true,
        identity: None,
        resumption: true,
    }
}

/// Settings of the first lane of two, and where control publishes new ones.
pub(crate) fn settings(snapshot: Snapshot) -> (LaneSettings, Arc<Published<Snapshot>>) {
    let published = Published::new(snapshot);
    let mailboxes = (0..2).map(|_| mailbox(MAIL_CAPACITY).unwrap().0).collect();
    (LaneSettings::new(0, mailboxes, published.subscribe()), published)
}

pub(crate) fn group(lane: &LaneSnapshot) -> Rc<LaneUpstream> {
    lane.upstreams[0].clone()
}

pub(crate) fn client(listener: &Rc<LaneListener>, address: &str) -> Client {
    client_since(listener, address, 0)
}

/// A client whose connection has begun at this time.
pub(crate) fn client_since(listener: &Rc<LaneListener>, address: &str, began: Micros) -> Client {
    let peer = address.parse().unwrap();
    Client::new(listener.clone(), Some(0), peer, ConnectionId::default(), Made::begun(began))
}

/// A client's connection that is open, and its other end.
pub(crate) fn connection(listener: &Rc<LaneListener>) -> (Conn, OwnedFd) {
    connection_of(client(listener, "192.0.2.1:5"))
}

/// The same of this client.
pub(crate) fn connection_of(client: Client) -> (Conn, OwnedFd) {
    let (fd, peer) = socketpair(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::NONBLOCK, None).unwrap();
    let client_conn = ClientConnection::new(Transport::new(fd), client, ClientPhase::HELLO, 0).opened();
    (Conn::Client(Box::new(client_conn)), peer)
}
