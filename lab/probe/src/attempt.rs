//! One attempt of one variant: connect, shake hands, ask, read, and note curl's five moments.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustls::ClientConfig;

use crate::error::ProbeError;
use crate::h1::{self, Request, Response};
use crate::h2;
use crate::net::{Deadline, Resolver, Socket};
use crate::quic;
use crate::target::Target;
use crate::tickets::TicketCount;
use crate::timing::Timing;
use crate::tls::{Client, Negotiated, TlsStream, since};
use crate::variant::{Handshake, Http, Variant};
use sealane_lab_wire::Verifier;

/// What one attempt gave.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// The moments.
    pub timing: Timing,
    /// What was agreed on.
    pub negotiated: Negotiated,
    /// The response.
    pub response: Response,
    /// Whom it was made to.
    pub peer: SocketAddr,
}

/// Makes attempts of one variant, and keeps its tickets between them.
pub struct Runner<'a> {
    /// What is measured.
    pub variant: &'a Variant,
    target: &'a Target,
    request: Request,
    client: Client,
    verifier: Arc<Verifier>,
    timeout: Duration,
    /// The protocol of the connection that gave the ticket: early data is written in it.
    http: Option<Http>,
}

impl<'a> Runner<'a> {
    /// Prepares attempts of `variant`.
    pub fn new(
        variant: &'a Variant,
        target: &'a Target,
        request: Request,
        verifier: Arc<Verifier>,
        timeout: Duration,
    ) -> Result<Self, ProbeError> {
        // RFC 8446 §8: early data can be replayed, so only what may happen twice is sent in it.
        if variant.handshake == Handshake::EarlyData && !matches!(request.method.as_str(), "GET" | "HEAD" | "OPTIONS") {
            return Err(ProbeError::Usage(format!(
                "variant '{variant}': {} is not sent as early data, which an attacker could replay; use GET or HEAD",
                request.method
            )));
        }
        let client = Client::new(variant, &verifier)?;
        let request = request.with_usual_fields();
        Ok(Self { variant, target, request, client, verifier, timeout, http: variant.http })
    }

    /// Makes one attempt. When the variant needs a ticket and none is left, a connection that is not measured
    /// fetches one first.
    pub fn attempt(&mut self, resolver: &mut Resolver) -> Result<Outcome, ProbeError> {
        self.prime(resolver)?;
        let early = self.variant.handshake == Handshake::EarlyData;
        let outcome = self.connect(resolver, self.client.config.clone(), early)?;
        if self.variant.resumes() && !outcome.negotiated.handshake.is_resumed() {
            return Err(ProbeError::NotOffered(format!(
                "variant '{}': the server gave a ticket but did not resume from it",
                self.variant
            )));
        }
        if early && outcome.negotiated.early_data.is_none() {
            return Err(ProbeError::NotOffered(format!("variant '{}': no early data was sent", self.variant)));
        }
        Ok(outcome)
    }

    /// Makes a connection that is not measured: it offers a ticket if there is one, and fetches new ones.
    pub fn fetch(&mut self, resolver: &mut Resolver) -> Result<Outcome, ProbeError> {
        self.connect(resolver, self.client.priming.clone(), false)
    }

    /// The tickets so far; `None` when the variant does not resume.
    pub fn tickets(&self) -> Option<TicketCount> {
        self.client.tickets.as_ref().map(|t| t.count())
    }

    fn prime(&mut self, resolver: &mut Resolver) -> Result<(), ProbeError> {
        let Some(tickets) = self.client.tickets.clone() else { return Ok(()) };
        let early = self.variant.handshake == Handshake::EarlyData;
        let ready = || if early { tickets.has_early_data() } else { tickets.has_ticket() };
        // A second try, because a ticket that comes after the response may have been missed.
        for _ in 0..2 {
            if ready() {
                return Ok(());
            }
            self.fetch(resolver)?;
        }
        if ready() {
            return Ok(());
        }
        Err(ProbeError::NotOffered(match tickets.has_ticket() {
            true => format!("variant '{}': the server's tickets allow no early data (0-RTT)", self.variant),
            false => format!("variant '{}': the server gives no session tickets", self.variant),
        }))
    }

    fn connect(
        &mut self,
        resolver: &mut Resolver,
        config: Arc<ClientConfig>,
        early: bool,
    ) -> Result<Outcome, ProbeError> {
        let deadline = Deadline::after(self.timeout);
        let start = Instant::now();
        let addresses = resolver.resolve(self.target, deadline)?;
        let namelookup = since(start);
        if self.variant.http == Some(Http::H3) {
            // One address: QUIC's own silence tells nothing about the next one before the timeout.
            let peer = addresses[0];
            let ask = quic::Ask {
                config: &config,
                target: self.target,
                peer,
                verifier: &self.verifier,
                request: &self.request,
                early,
                start,
            };
            let quic = quic::request(&ask, deadline)?;
            let timing = moments(namelookup, namelookup, quic.handshake_done, &quic.response);
            return Ok(Outcome { timing, negotiated: quic.negotiated, response: quic.response, peer });
        }

        let socket = Socket::connect(&addresses, deadline)?;
        let connect = since(start);
        let peer = socket.peer;
        let early_bytes = match (early, self.http) {
            (false, _) => None,
            (true, Some(Http::H2)) => Some(h2::ask(&self.request).out),
            (true, _) => Some(h1::encode(&self.request)),
        };
        let mut stream = TlsStream::handshake(
            config,
            self.target.server_name.clone(),
            socket,
            &self.verifier,
            early_bytes.as_deref(),
        )?;
        let appconnect = since(start);
        let negotiated = stream.negotiated();
        let http = if negotiated.alpn.as_deref() == Some("h2") { Http::H2 } else { Http::H1 };
        if self.variant.http == Some(Http::H2) && http != Http::H2 {
            return Err(ProbeError::NotOffered(format!("variant '{}': the server did not pick HTTP/2", self.variant)));
        }
        self.http = Some(http);
        let done = stream.early_bytes_accepted();
        let response = match http {
            Http::H2 => {
                let mut client = h2::ask(&self.request);
                stream.write_all(client.out.get(done..).unwrap_or_default())?;
                client.out.clear();
                h2::receive(&mut stream, &mut client, start)?
            }
            _ => {
                stream.write_all(h1::encode(&self.request).get(done..).unwrap_or_default())?;
                h1::receive(&mut stream, &self.request, start)?
            }
        };
        stream.close();
        let timing = moments(namelookup, connect, appconnect, &response);
        Ok(Outcome { timing, negotiated, response, peer })
    }
}

/// With early data the response may begin before the handshake is done: then its first byte ends both.
fn moments(namelookup: u64, connect: u64, appconnect: u64, response: &Response) -> Timing {
    let starttransfer = response.first_byte;
    let appconnect = appconnect.min(starttransfer).max(connect);
    Timing { namelookup, connect, appconnect, starttransfer, total: response.last_byte }
}
