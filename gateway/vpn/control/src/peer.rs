//! A client of the server's: its session, and what has been agreed upon with it.
//!
//! ```text
//! Handshake ─ its message ─▶ Deciding ─ accepted ─▶ Installing ─ KeyInstalled ─▶ Connected ─▶ Leaving
//!     └──────── fails, takes too long ─▶ gone         └ refused ─▶ Leaving (once it has been told)
//! ```

use super::auth::Claim;
use super::login::Login;
use super::pool::Addresses;
use super::session::{SavedSession, Session, Words};
use super::settings::Settings;
use super::verify::{common_name, organizational_units};
use anyhow::Context as _;
use sealane_config::{CertificateId, TunnelClient, TunnelMember};
use sealane_ovpn::data::{Cipher, Format, Header, PeerId};
use sealane_ovpn::peer_info::{self, PeerInfo, proto};
use sealane_ovpn::push::{self, Flags};
use sealane_tunnel::filter::Filter;
use sealane_tunnel::plane::{Keepalive, Prefix, Rates, SocketId, Transport};
use serde::{Deserialize, Serialize};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::task::AbortHandle;

/// How far a client has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stage {
    /// TLS and its message.
    Handshake,
    /// Somebody decides whether it may come in.
    Deciding,
    /// The plane installs its first key.
    Installing,
    /// It has its configuration, or is to ask for it.
    Connected,
    /// It goes at this time; until then it may be told why.
    Leaving(Instant),
}

/// A renegotiation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Renewal {
    pub key_id: u8,
    /// Given up then.
    pub deadline: Instant,
    /// The plane has the key.
    pub installed: bool,
}

/// A check of a password that is under way. It ends with this.
#[derive(Debug)]
pub(super) struct Check(pub AbortHandle);

impl Drop for Check {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// A decision that a program on the management socket was asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Pending {
    /// How the program calls the exchange.
    pub kid: u32,
    pub key_id: u8,
    /// Who the client is, if it is accepted.
    pub user: Option<String>,
    /// When the exchange began: it may not take for ever.
    pub since: Instant,
    /// How many answers of the client the program was told.
    pub responses: u32,
}

/// A connected client as plain data. Times are told from the moment of saving, in milliseconds.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct SavedPeer {
    pub name: String,
    session: SavedSession,
    socket: u64,
    tcp: bool,
    remote: SocketAddr,
    local: Option<IpAddr>,
    id: u32,
    user: Option<String>,
    proto: u32,
    version: String,
    platform: String,
    address4: Option<Ipv4Addr>,
    address6: Option<Ipv6Addr>,
    routes: Vec<String>,
    cipher: String,
    tls_ekm: bool,
    cc_exit: bool,
    dyn_tls_crypt: bool,
    aead_epoch: bool,
    #[serde(default)]
    takes_stub: bool,
    key_id: u8,
    keys: u64,
    key_age: u64,
    /// 0 from a process that did not know it.
    #[serde(default)]
    key_made_age: u64,
    connected_for: u64,
    lame_duck_in: Option<u64>,
    token: Option<String>,
    /// None from a process that did not know it.
    #[serde(default)]
    certificate: Option<(CertificateId, i64)>,
    #[serde(default)]
    common_name: Option<String>,
    #[serde(default)]
    units: Vec<String>,
    #[serde(default)]
    more_push: Vec<String>,
    #[serde(default)]
    user_is_given: bool,
    #[serde(default)]
    directory_groups: Vec<String>,
}

/// A client.
#[derive(Debug)]
pub(super) struct Peer {
    pub session: Session,
    pub stage: Stage,
    /// It has sent a ClientHello: clients that have not are evicted before it.
    pub settled: bool,
    pub socket: SocketId,
    pub transport: Transport,
    pub remote: SocketAddr,
    pub local: Option<IpAddr>,
    /// Handshake and decision must be over by then.
    pub deadline: Instant,
    /// Its number in the plane, once it is accepted.
    pub id: Option<PeerId>,
    /// What it is known by: the certificate's name, or the user's.
    pub name: String,
    pub user: Option<String>,
    pub info: PeerInfo,
    pub addresses: Addresses,
    pub settings: TunnelClient,
    pub cipher: Cipher,
    pub flags: Flags,
    /// Its configuration enables compression; the server pushes `compress stub-v2`.
    pub takes_stub: bool,
    pub renewal: Option<Renewal>,
    /// Under the plane's primary slot.
    pub key_id: u8,
    pub keys: u64,
    /// When it was installed, or was last tried to be renewed.
    pub key_since: Instant,
    /// When it was installed.
    pub key_made: Instant,
    pub connected_at: Instant,
    /// The old key is dropped then.
    pub lame_duck: Option<Instant>,
    pub push_requested: bool,
    /// When it was last given its configuration, by this process.
    pub pushed_at: Option<Instant>,
    /// It has received its configuration, from this process or from its predecessor.
    pub configured: bool,
    /// In place of the password, to be pushed.
    pub token: Option<String>,
    /// The client's certificate, and when it expires, in seconds since 1970.
    pub certificate: Option<(CertificateId, i64)>,
    /// The certificate's common name and organizational units.
    pub common_name: Option<String>,
    pub units: Vec<String>,
    /// The groups in which its user is, as the directory says.
    pub directory_groups: Vec<String>,
    /// Its group's name.
    pub group: Option<String>,
    /// What the plane lets it reach; `None`: it is not known.
    pub filter: Option<Option<Arc<Filter>>>,
    /// How much the plane lets it send and receive; `None`: it is not known.
    pub rates: Option<Rates>,
    /// Its password is checked, or waits for that.
    pub check: Option<Check>,
    /// Somebody was asked about it.
    pub pending: Option<Pending>,
    /// Its user is to log in with a browser.
    pub login: Option<Login>,
    /// How many times somebody was asked.
    pub asked: u32,
    /// Programs on the management socket know it.
    pub announced: bool,
    /// Options that such a program has added.
    pub more_push: Vec<String>,
    /// Such a program has said who the user is.
    pub user_is_given: bool,
    /// When its traffic was looked at last, and how much there was.
    pub activity: (Instant, u64),
}

impl Peer {
    pub fn new(
        session: Session,
        socket: SocketId,
        transport: Transport,
        remote: SocketAddr,
        local: Option<IpAddr>,
        now: Instant,
        settings: &Settings,
    ) -> Self {
        Self {
            session,
            stage: Stage::Handshake,
            settled: false,
            socket,
            transport,
            remote,
            local,
            deadline: now + settings.handshake,
            id: None,
            name: String::new(),
            user: None,
            info: PeerInfo::default(),
            addresses: Addresses::default(),
            settings: TunnelClient::default(),
            cipher: Cipher::Aes256Gcm,
            flags: Flags::default(),
            takes_stub: false,
            renewal: None,
            key_id: 0,
            keys: 0,
            key_since: now,
            key_made: now,
            connected_at: now,
            lame_duck: None,
            push_requested: false,
            pushed_at: None,
            configured: false,
            token: None,
            certificate: None,
            common_name: None,
            units: Vec::new(),
            directory_groups: Vec::new(),
            group: None,
            filter: None,
            rates: None,
            check: None,
            pending: None,
            login: None,
            asked: 0,
            announced: false,
            more_push: Vec::new(),
            user_is_given: false,
            activity: (now, 0),
        }
    }

    /// To go on elsewhere; `None`: it is not connected, or leaves.
    pub fn save(self, now: Instant) -> anyhow::Result<Option<SavedPeer>> {
        let (Stage::Connected, Some(id)) = (self.stage, self.id) else { return Ok(None) };
        let ms = |d: Duration| d.as_millis() as u64;
        Ok(Some(SavedPeer {
            session: self.session.save()?,
            name: self.name,
            socket: self.socket.to_bits(),
            tcp: self.transport == Transport::Tcp,
            remote: self.remote,
            local: self.local,
            id: id.get(),
            user: self.user,
            proto: self.info.proto,
            version: self.info.version,
            platform: self.info.platform,
            address4: self.addresses.four,
            address6: self.addresses.six,
            routes: self.settings.routes.iter().map(ToString::to_string).collect(),
            cipher: self.cipher.name().to_owned(),
            tls_ekm: self.flags.tls_ekm,
            cc_exit: self.flags.cc_exit,
            dyn_tls_crypt: self.flags.dyn_tls_crypt,
            aead_epoch: self.flags.aead_epoch,
            takes_stub: self.takes_stub,
            key_id: self.key_id,
            keys: self.keys,
            key_age: ms(now.saturating_duration_since(self.key_since)),
            key_made_age: ms(now.saturating_duration_since(self.key_made)),
            connected_for: ms(now.saturating_duration_since(self.connected_at)),
            lame_duck_in: self.lame_duck.map(|at| ms(at.saturating_duration_since(now))),
            token: self.token,
            certificate: self.certificate,
            common_name: self.common_name,
            units: self.units,
            more_push: self.more_push,
            user_is_given: self.user_is_given,
            directory_groups: self.directory_groups,
        }))
    }

    /// Goes on here.
    pub fn restore(saved: SavedPeer, settings: &Settings, now: Instant) -> anyhow::Result<Self> {
        let transport = if saved.tcp { Transport::Tcp } else { Transport::Udp };
        let words = server_words(settings, transport);
        let session = Session::restore(saved.session, settings.tls.clone(), words, now)?;
        let before = |ms| now.checked_sub(Duration::from_millis(ms)).unwrap_or(now);
        let socket = SocketId::from_bits(saved.socket);
        let mut peer = Self::new(session, socket, transport, saved.remote, saved.local, now, settings);
        peer.stage = Stage::Connected;
        peer.id = Some(PeerId::new(saved.id).with_context(|| format!("the stored peer ID {} is invalid", saved.id))?);
        (peer.name, peer.user, peer.token) = (saved.name, saved.user, saved.token);
        (peer.info.proto, peer.info.version, peer.info.platform) = (saved.proto, saved.version, saved.platform);
        peer.addresses = Addresses { four: saved.address4, six: saved.address6 };
        let route = |r: &String| r.parse::<Prefix>().ok().with_context(|| format!("the stored route {r:?} is invalid"));
        let routes = saved.routes.iter().map(route);
        peer.settings.routes = routes.collect::<anyhow::Result<_>>()?;
        let unknown = || format!("the stored cipher {:?} is unknown", saved.cipher);
        peer.cipher = Cipher::from_name(&saved.cipher).with_context(unknown)?;
        peer.flags = Flags {
            tls_ekm: saved.tls_ekm,
            cc_exit: saved.cc_exit,
            dyn_tls_crypt: saved.dyn_tls_crypt,
            aead_epoch: saved.aead_epoch,
        };
        peer.certificate = saved.certificate;
        (peer.common_name, peer.units) = (saved.common_name, saved.units);
        (peer.more_push, peer.user_is_given) = (saved.more_push, saved.user_is_given);
        peer.directory_groups = saved.directory_groups;
        (peer.takes_stub, peer.configured) = (saved.takes_stub, true);
        (peer.key_id, peer.keys) = (saved.key_id, saved.keys);
        (peer.key_since, peer.connected_at) = (before(saved.key_age), before(saved.connected_for));
        peer.key_made = before(saved.key_made_age);
        peer.lame_duck = saved.lame_duck_in.map(|ms| now + Duration::from_millis(ms));
        Ok(peer)
    }

    /// Who it says it is, in the exchange of this key.
    pub fn claim(&self, key_id: u8) -> Option<Claim> {
        let message = self.session.message(key_id)?;
        Some(Claim {
            common_name: self.session.peer_certificate(key_id).and_then(common_name),
            username: message.username.clone(),
            password: message.password.clone(),
            remote: self.remote,
        })
    }

    /// Remembers the certificate of a key exchange.
    pub fn remember_certificate(&mut self, key_id: u8) {
        let certificate = self.session.peer_certificate(key_id);
        self.certificate = certificate.and_then(CertificateId::of);
        self.common_name = certificate.and_then(common_name);
        self.units = certificate.map(organizational_units).unwrap_or_default();
    }

    /// What decides on its group, for this user.
    pub fn member<'a>(&'a self, user: Option<&'a str>) -> TunnelMember<'a> {
        let (common_name, groups) = (self.common_name.as_deref(), &self.directory_groups);
        TunnelMember { common_name, units: &self.units, user, directory_groups: groups }
    }

    /// Whether its certificate is revoked.
    pub fn is_revoked(&self, settings: &Settings) -> bool {
        self.certificate.as_ref().is_some_and(|(id, _)| settings.revoked.contains(id))
    }

    /// Agrees on cipher and features; the reason when there is no common cipher, or packets that are not ours.
    pub fn agree(&mut self, settings: &Settings) -> Result<(), &'static str> {
        let message = self.session.message(0).ok_or("the key exchange is not complete")?;
        self.info = PeerInfo::parse(&message.peer_info);
        self.takes_stub = self.info.takes_stub(&message.options);
        if let Some(why) = peer_info::impossible(&message.options, self.takes_stub) {
            return Err(why);
        }
        self.cipher = self
            .info
            .choose(&settings.ciphers, &message.options)
            .ok_or("Data channel cipher negotiation failed (no shared cipher)")?;
        let has = |bit| self.info.has(bit);
        self.flags = Flags {
            tls_ekm: has(proto::TLS_KEY_EXPORT),
            cc_exit: has(proto::CC_EXIT_NOTIFY),
            dyn_tls_crypt: has(proto::DYN_TLS_CRYPT),
            aead_epoch: settings.epoch && has(proto::DATA_EPOCH),
        };
        self.push_requested |= self.info.takes_unasked_push();
        Ok(())
    }

    /// Whether its key should have been another long ago: OpenVPN lets an old key live for `tran-window` longer.
    pub fn is_overdue(&self, settings: &Settings, now: Instant) -> bool {
        let allowed = settings.renegotiate.saturating_add(settings.transition);
        !settings.renegotiate.is_zero() && now.saturating_duration_since(self.key_made) > allowed
    }

    pub const fn format(&self) -> Format {
        if self.flags.aead_epoch { Format::Epoch } else { Format::Stock }
    }

    /// The largest TCP segment whose packet, sealed, is no larger than `mssfix` with its outer headers. On TCP the
    /// outer connection makes its own segments.
    pub fn max_segment(&self, mssfix: u16) -> u16 {
        if mssfix == 0 || self.transport == Transport::Tcp {
            return 0;
        }
        let outer = if self.remote.ip().to_canonical().is_ipv4() { 20 } else { 40 } + 8;
        let header = Header { key_id: 0, peer_id: self.id.or(Some(PeerId::UNSET)) };
        mssfix.saturating_sub(outer + self.format().overhead(header) as u16 + 40)
    }

    /// The options of its PUSH_REPLY.
    pub fn push_options(&self, settings: &Settings) -> Vec<String> {
        let mut out = settings.push.clone();
        // From the current settings: the session's own copy is older than a reload, and a restored session has none.
        let own = settings.clients.get(&self.name).map_or(&settings.push_unlisted, |client| &client.push);
        out.extend(own.iter().cloned());
        let group = self.group.as_ref().and_then(|name| settings.groups.iter().find(|group| group.name == *name));
        out.extend(group.iter().flat_map(|group| group.push.iter().cloned()));
        out.extend(self.more_push.iter().cloned());
        if let (Some((gateway, len)), Some(four)) = (settings.network4, self.addresses.four) {
            out.push(format!("route-gateway {gateway}"));
            out.push("topology subnet".to_owned());
            out.push(format!("ifconfig {four} {}", push::mask(len)));
        }
        if let (Some((gateway, len)), Some(six)) = (settings.network6, self.addresses.six) {
            out.push(format!("ifconfig-ipv6 {six}/{len} {gateway}"));
        }
        let Keepalive { ping, ping_restart } = settings.keepalive;
        if ping > 0 {
            out.push(format!("ping {ping}"));
        }
        if ping_restart > 0 {
            out.push(format!("ping-restart {ping_restart}"));
        }
        if let Some(id) = self.id.filter(|_| self.info.has(proto::DATA_V2)) {
            out.push(format!("peer-id {}", id.get()));
        }
        if self.info.negotiates {
            out.push(format!("cipher {}", self.cipher.name()));
        }
        if self.takes_stub {
            out.push("compress stub-v2".to_owned());
        }
        out.extend(self.flags.options());
        if self.info.mtu.is_some() {
            out.push(format!("tun-mtu {}", settings.mtu));
        }
        out.extend(self.token_options());
        out
    }

    /// The token, to be pushed instead of asking for the password again.
    pub fn token_options(&self) -> Vec<String> {
        use base64::Engine as _;
        let (Some(token), Some(user)) = (&self.token, &self.user) else { return Vec::new() };
        let user = base64::engine::general_purpose::STANDARD.encode(user);
        vec![format!("auth-token {token}"), format!("auth-token-user {user}")]
    }

    /// The next time at which something is due by itself.
    pub fn next_deadline(&self, renegotiate: std::time::Duration) -> Option<Instant> {
        let stage = match self.stage {
            Stage::Handshake | Stage::Deciding | Stage::Installing => Some(self.deadline),
            Stage::Leaving(at) => Some(at),
            Stage::Connected => {
                let renew = (!renegotiate.is_zero() && self.renewal.is_none()).then(|| self.key_since + renegotiate);
                [renew, self.renewal.map(|r| r.deadline), self.lame_duck].into_iter().flatten().min()
            }
        };
        [stage, self.session.deadline()].into_iter().flatten().min()
    }
}

/// What we say to clients in key method 2.
pub(super) fn server_words(settings: &Settings, transport: Transport) -> Words {
    let auth = matches!(settings.wrap, sealane_ovpn::wrap::WrapKey::Auth { .. });
    let cipher = settings.ciphers.first().map_or("AES-256-GCM", |c| c.name());
    Words {
        options: push::options_string(true, transport == Transport::Tcp, settings.mtu, cipher, auth),
        ..Words::default()
    }
}
