//! A session: its control channel with TLS in it, for servers and clients alike. No sockets, no clock.
//!
//! ```text
//! key exchange:  ExpectOpen ─▶ ExpectHandshake ─▶ ExpectMessage ─▶ server: Held ─▶ (send_message) ─▶ Done
//!                              (a client sends its message here)   client: ─────────────────────────▶ Done
//! ```
//! A server is told that a client's message has come ([`Event::Message`]), checks who it is, installs the keys, and
//! only then answers with its own message; so no client can use a key that is not there yet.

use super::records::SavedRecords;
use super::tls::{Endpoint, Tls};
use anyhow::{Context, Result, anyhow, bail};
use sealane_ovpn::command::{Command, Commands};
use sealane_ovpn::data::KeyPair;
use sealane_ovpn::gate::Accepted;
use sealane_ovpn::key_method::{EXPORT_DATA_KEYS, EXPORT_DYNAMIC_WRAP, KeySource, Message, prf_keys};
use sealane_ovpn::link::{Link, LinkError};
use sealane_ovpn::packet::SessionId;
use sealane_ovpn::push::with_compression_of;
use sealane_ovpn::saved::SavedLink;
use sealane_ovpn::wrap::WrapKey;
use sealane_ovpn::wrap::v2::ClientKey;
use serde::{Deserialize, Serialize};
use std::collections::VecDeque;
use std::time::Instant;

/// What we say in key method 2, besides random bytes.
#[derive(Clone, Debug, Default)]
pub struct Words {
    /// The options string.
    pub options: String,
    /// A client's, if it has one.
    pub username: String,
    /// A client's password or token.
    pub password: String,
    /// `IV_…` lines.
    pub peer_info: String,
}

/// What has happened.
#[derive(Debug)]
pub enum Event {
    /// The peer's message has come: to a server, to decide; to a client, to use the new key.
    Message(u8),
    /// A command on the control channel.
    Command(Command),
    /// The peer has received everything of this exchange that we had to send.
    Confirmed(u8),
    /// An exchange has failed. That of key 0 takes the session with it; a renegotiation may be tried again.
    Failed(u8, anyhow::Error),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    ExpectOpen,
    ExpectHandshake,
    ExpectMessage,
    Held,
    ExpectConfirmation,
    Done,
    Failed,
}

struct Exchange {
    key_id: u8,
    stage: Stage,
    tls: Option<Tls>,
    ours: Message,
    theirs: Option<Message>,
    commands: Commands,
    /// TLS has had something to answer: a whole ClientHello, on a server.
    answered: bool,
}

/// A server's session as plain data, to go on with in another process. It holds keys.
#[derive(Debug, Serialize, Deserialize)]
pub struct SavedSession {
    link: SavedLink,
    exchanges: Vec<SavedExchange>,
}

#[derive(Debug, Serialize, Deserialize)]
struct SavedExchange {
    key_id: u8,
    confirmed: bool,
    tls: SavedRecords,
}

/// A session.
pub struct Session {
    link: Link,
    endpoint: Endpoint,
    words: Words,
    /// The newest last; two at most, as in [`Link`].
    exchanges: Vec<Exchange>,
    events: VecDeque<Event>,
}

impl std::fmt::Debug for Session {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Session").field("link", &self.link).finish_non_exhaustive()
    }
}

/// Random bytes from the system.
pub fn random<const N: usize>() -> Result<[u8; N]> {
    let mut bytes = [0; N];
    aws_lc_rs::rand::fill(&mut bytes).map_err(|_| anyhow!("the system has no random bytes"))?;
    Ok(bytes)
}

/// A new session id.
pub fn random_session() -> Result<SessionId> {
    SessionId::new(random()?).context("eight random bytes that are all zero")
}

impl Exchange {
    fn new(key_id: u8, words: &Words) -> Result<Self> {
        let ours = Message {
            source: KeySource::new(&random()?),
            options: words.options.clone(),
            username: words.username.clone(),
            password: words.password.clone(),
            peer_info: words.peer_info.clone(),
        };
        Ok(Self {
            key_id,
            stage: Stage::ExpectOpen,
            tls: None,
            ours,
            theirs: None,
            commands: Commands::default(),
            answered: false,
        })
    }
}

impl Session {
    /// A server's, for a client that has proven its address; the proving packet is handled at once.
    pub fn server(accepted: Accepted, endpoint: Endpoint, words: Words, datagrams: bool) -> Result<Self> {
        let (link, first) = Link::server(accepted, datagrams);
        let exchanges = vec![Exchange::new(0, &words)?];
        let mut session = Self { link, endpoint, words, exchanges, events: VecDeque::new() };
        // What it holds was checked when the address was; a bad body here is a bad packet and no more.
        let _ = session.link.handle_unwrapped(&first);
        session.pump();
        Ok(session)
    }

    /// A client's: its first packet is ready to be sent.
    pub fn client(
        endpoint: Endpoint,
        words: Words,
        key: &WrapKey,
        v2: Option<&ClientKey>,
        datagrams: bool,
        unix: u32,
    ) -> Result<Self> {
        let link = Link::client(random_session()?, key, v2, datagrams, unix);
        let exchanges = vec![Exchange::new(0, &words)?];
        Ok(Self { link, endpoint, words, exchanges, events: VecDeque::new() })
    }

    /// A server's session whose exchange has been answered, to go on elsewhere; what is still going on beside it is
    /// given up. An error: there is no such exchange.
    pub fn save(self) -> Result<SavedSession> {
        let mut exchanges = Vec::new();
        for exchange in self.exchanges {
            let confirmed = match exchange.stage {
                Stage::ExpectConfirmation => false,
                Stage::Done => true,
                _ => continue,
            };
            let tls = exchange.tls.context("the TLS handshake has not begun")?.save()?;
            exchanges.push(SavedExchange { key_id: exchange.key_id, confirmed, tls });
        }
        let ids: Vec<u8> = exchanges.iter().map(|e| e.key_id).collect();
        if ids.is_empty() {
            bail!("no key exchange is complete");
        }
        let link = self.link.save(&ids).context("the peer has sent nothing")?;
        Ok(SavedSession { link, exchanges })
    }

    /// A server's session that goes on here.
    pub fn restore(saved: SavedSession, endpoint: Endpoint, words: Words, now: Instant) -> Result<Self> {
        let link = Link::restore(&saved.link, now)
            .context("the old process handed over a control channel in an unknown format")?;
        let mut exchanges = Vec::new();
        for exchange in saved.exchanges.into_iter().take(2) {
            let mut own = Exchange::new(exchange.key_id, &words)?;
            own.stage = if exchange.confirmed { Stage::Done } else { Stage::ExpectConfirmation };
            own.tls = Some(Tls::restore(exchange.tls)?);
            exchanges.push(own);
        }
        Ok(Self { link, endpoint, words, exchanges, events: VecDeque::new() })
    }

    /// The peer's session id, once it has spoken.
    pub const fn remote(&self) -> Option<SessionId> {
        self.link.remote()
    }

    /// What new exchanges are made of: a reload may change it.
    pub fn set_endpoint(&mut self, endpoint: Endpoint) {
        self.endpoint = endpoint;
    }

    /// A client's credentials for the next exchange.
    pub fn set_credentials(&mut self, username: String, password: String) {
        (self.words.username, self.words.password) = (username, password);
    }

    /// Handles a control packet.
    pub fn handle(&mut self, packet: &[u8]) -> Result<(), LinkError> {
        let handled = self.link.handle(packet)?;
        if let Some(key_id) = handled.new_key {
            self.begin(key_id);
        }
        self.pump();
        Ok(())
    }

    /// Begins a renegotiation, unless one is going on. The new key's id.
    pub fn renegotiate(&mut self) -> Option<u8> {
        let key_id = self.link.renegotiate()?;
        self.begin(key_id);
        Some(key_id)
    }

    fn begin(&mut self, key_id: u8) {
        if self.exchanges.len() > 1 {
            self.exchanges.remove(0);
        }
        match Exchange::new(key_id, &self.words) {
            Ok(exchange) => self.exchanges.push(exchange),
            Err(e) => self.events.push_back(Event::Failed(key_id, e)),
        }
    }

    /// What has happened since.
    pub fn poll_event(&mut self) -> Option<Event> {
        self.events.pop_front()
    }

    /// The next packet to send.
    pub fn poll_transmit(&mut self, now: Instant, out: &mut Vec<u8>) -> bool {
        self.link.poll_transmit(now, out)
    }

    /// When there is something to send again.
    pub fn deadline(&self) -> Option<Instant> {
        self.link.deadline()
    }

    /// Whether a server's client has sent a ClientHello that TLS has answered.
    pub fn has_client_hello(&self) -> bool {
        self.exchanges.iter().any(|e| e.answered)
    }

    /// The peer's message.
    pub fn message(&self, key_id: u8) -> Option<&Message> {
        self.exchange(key_id)?.theirs.as_ref()
    }

    /// The peer's certificate, DER.
    pub fn peer_certificate(&self, key_id: u8) -> Option<&[u8]> {
        self.exchange(key_id)?.tls.as_ref()?.peer_certificate()
    }

    /// TLS' version and suite.
    pub fn tls_described(&self, key_id: u8) -> String {
        self.exchange(key_id).and_then(|e| e.tls.as_ref()).map(Tls::described).unwrap_or_default()
    }

    /// The data keys of an exchange: from TLS' exporter, or, for old peers, from both sides' random bytes.
    pub fn keys(&self, key_id: u8, exporter: bool) -> Result<KeyPair> {
        let exchange = self.exchange(key_id).context("there is no key exchange with this ID")?;
        let tls = exchange.tls.as_ref().context("the TLS handshake has not begun")?;
        let server = self.endpoint.is_server();
        if exporter {
            return Ok(KeyPair::from_expansion(&tls.export(EXPORT_DATA_KEYS)?, server));
        }
        let theirs = exchange.theirs.as_ref().context("the peer has not sent its key message")?;
        let remote = self.link.remote().context("the peer has sent nothing")?;
        let (own, ours) = (self.link.own(), &exchange.ours.source);
        Ok(match server {
            true => prf_keys(&theirs.source, ours, remote, own, true),
            false => prf_keys(ours, &theirs.source, own, remote, false),
        })
    }

    /// From now on renegotiations are wrapped with a key from the first exchange's TLS.
    pub fn use_dynamic_wrap(&mut self, unix: u32) -> Result<()> {
        let first =
            self.exchange(0).and_then(|e| e.tls.as_ref()).context("the first key exchange is no longer stored")?;
        let exported = first.export(EXPORT_DYNAMIC_WRAP)?;
        self.link.use_dynamic_wrap(&exported, unix);
        Ok(())
    }

    /// A server's message: the client may use the key now.
    pub fn send_message(&mut self, key_id: u8) -> Result<()> {
        let server = self.endpoint.is_server();
        let exchange = self.exchange_mut(key_id).context("there is no key exchange with this ID")?;
        if exchange.stage != Stage::Held {
            bail!("the key exchange is not ready for an answer");
        }
        let theirs = exchange.theirs.as_ref().map_or("", |theirs| &theirs.options);
        exchange.ours.options = with_compression_of(&exchange.ours.options, theirs);
        let bytes = exchange.ours.to_bytes(!server);
        exchange.tls.as_mut().context("the TLS handshake has not begun")?.write(&bytes)?;
        exchange.stage = Stage::ExpectConfirmation;
        self.pump();
        Ok(())
    }

    /// A server's message, where it was not sent before.
    pub fn answer(&mut self, key_id: u8) -> Result<()> {
        match self.exchange(key_id).map(|e| e.stage) {
            Some(Stage::ExpectConfirmation | Stage::Done) => Ok(()),
            _ => self.send_message(key_id),
        }
    }

    /// Whether the peer has received everything of this exchange.
    pub fn is_confirmed(&self, key_id: u8) -> bool {
        self.exchange(key_id).is_some_and(|e| e.stage == Stage::Done)
    }

    /// Sends a command in the newest exchange that is done with its messages.
    pub fn send_command(&mut self, command: &[u8]) -> Result<()> {
        let ready = |e: &&mut Exchange| matches!(e.stage, Stage::ExpectConfirmation | Stage::Done);
        let exchange = self.exchanges.iter_mut().rev().find(ready).context("no key exchange is ready for commands")?;
        exchange.tls.as_mut().context("the TLS handshake has not begun")?.write(command)?;
        self.pump();
        Ok(())
    }

    /// The exchange has taken the place of those before it.
    pub fn retire_before(&mut self, key_id: u8) {
        self.exchanges.retain(|e| e.key_id == key_id);
        self.link.retire_before(key_id);
    }

    /// Gives an exchange up: a renegotiation that takes too long.
    pub fn abandon(&mut self, key_id: u8) {
        self.exchanges.retain(|e| e.key_id != key_id);
        self.link.abandon(key_id);
    }

    /// Whether everything that was sent has arrived.
    pub fn is_flushed(&self) -> bool {
        self.exchanges.iter().all(|e| self.link.is_flushed(e.key_id))
    }

    fn exchange(&self, key_id: u8) -> Option<&Exchange> {
        self.exchanges.iter().find(|e| e.key_id == key_id)
    }

    fn exchange_mut(&mut self, key_id: u8) -> Option<&mut Exchange> {
        self.exchanges.iter_mut().find(|e| e.key_id == key_id)
    }

    /// Moves bytes between the link and TLS, and exchanges through their stages.
    fn pump(&mut self) {
        let (server, endpoint) = (self.endpoint.is_server(), self.endpoint.clone());
        for exchange in &mut self.exchanges {
            if exchange.stage == Stage::Failed {
                continue;
            }
            let result = exchange.pump(&mut self.link, &endpoint, server, &mut self.events);
            // Also after a failure: an alert says why.
            if let Some(tls) = &mut exchange.tls {
                let out = tls.take_output();
                exchange.answered |= result.is_ok() && !out.is_empty();
                if !out.is_empty() && !self.link.write(exchange.key_id, &out) {
                    self.events.push_back(Event::Failed(exchange.key_id, anyhow!("too much data waits to be sent")));
                }
            }
            match result {
                Ok(()) => {
                    if exchange.stage == Stage::ExpectConfirmation && self.link.is_flushed(exchange.key_id) {
                        exchange.stage = Stage::Done;
                        self.events.push_back(Event::Confirmed(exchange.key_id));
                    }
                }
                Err(e) => {
                    exchange.stage = Stage::Failed;
                    self.events.push_back(Event::Failed(exchange.key_id, e));
                }
            }
        }
    }
}

impl Exchange {
    fn pump(&mut self, link: &mut Link, endpoint: &Endpoint, server: bool, events: &mut VecDeque<Event>) -> Result<()> {
        if self.stage == Stage::ExpectOpen && link.is_open(self.key_id) {
            self.tls = Some(Tls::new(endpoint)?);
            self.stage = Stage::ExpectHandshake;
        }
        while let Some(bytes) = link.read(self.key_id) {
            let Some(tls) = &mut self.tls else {
                bail!("the peer sent TLS data before the session was open");
            };
            let mut records = Vec::new();
            let fed = tls.feed(&bytes, |plaintext| records.push(plaintext));
            self.shake(server)?;
            for plaintext in records {
                self.take(&plaintext, server, events)?;
            }
            fed?;
        }
        Ok(())
    }

    /// After the handshake a client speaks first.
    fn shake(&mut self, server: bool) -> Result<()> {
        let Some(tls) = self.tls.as_mut().filter(|t| !t.is_handshaking()) else { return Ok(()) };
        if self.stage == Stage::ExpectHandshake {
            self.stage = Stage::ExpectMessage;
            if !server {
                tls.write(&self.ours.to_bytes(true))?;
            }
        }
        Ok(())
    }

    /// Takes a record's plaintext: the peer's message first, then commands.
    fn take(&mut self, plaintext: &[u8], server: bool, events: &mut VecDeque<Event>) -> Result<()> {
        match self.stage {
            Stage::ExpectMessage => {
                self.theirs = Some(Message::parse(plaintext, server)?);
                self.stage = if server { Stage::Held } else { Stage::Done };
                events.push_back(Event::Message(self.key_id));
            }
            // A client may ask before it has its answer.
            Stage::Held | Stage::ExpectConfirmation | Stage::Done => {
                let good = self.commands.take(plaintext, |c| {
                    // What is not text is dropped, as OpenVPN does.
                    events.extend(c.map(Event::Command));
                });
                if !good {
                    bail!("the peer sent a control message that is too long or has no end");
                }
            }
            _ => bail!("the peer sent data before the TLS handshake was complete"),
        }
        Ok(())
    }
}
