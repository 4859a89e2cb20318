//! What a server offers: versions, certificates, staple, tickets, early data, and the fields that bear on security.

use std::sync::Arc;
use std::time::Duration;

use serde::Serialize;

use crate::attempt::{Outcome, Runner};
use crate::cert::{Certificate, printable};
use crate::ech::{Ech, ech};
use crate::error::ProbeError;
use crate::h1::Request;
use crate::net::Resolver;
use crate::ocsp::Staple;
use crate::scan::{Scan, scan};
use crate::target::Target;
use crate::tickets::TicketCount;
use crate::tls::{EarlyData, Negotiated};
use crate::trust::unix_now;
use crate::variant::{Handshake, Http, Variant, Version};
use sealane_lab_wire::Verifier;

/// One TLS version that a modern client would use.
#[derive(Clone, Debug, Serialize)]
pub struct VersionReport {
    /// Whether a request over it succeeded.
    pub offered: bool,
    /// Why not, in one line.
    pub problem: Option<String>,
    /// What was agreed on.
    pub negotiated: Option<Negotiated>,
    /// Tickets (or session ids) given on the first connection.
    pub tickets: TicketCount,
    /// Whether a second connection resumed; `None` when there was nothing to resume from, or the second connection failed.
    pub resumed: Option<bool>,
    /// Whether early data was accepted; `None` when no ticket allowed it.
    pub early_data_accepted: Option<bool>,
}

/// Everything that was seen.
#[derive(Clone, Debug, Serialize)]
pub struct Inspection {
    /// What a modern client gets.
    pub negotiated: Negotiated,
    /// Whether chain and name were checked (and found good) or not looked at.
    pub certificate_checked: bool,
    /// The chain, the server's own certificate first.
    pub certificates: Vec<Certificate>,
    /// The stapled OCSP response.
    pub ocsp_staple: Option<Staple>,
    /// TLS 1.2.
    pub tls12: VersionReport,
    /// TLS 1.3.
    pub tls13: VersionReport,
    /// Whether HTTP/2 was picked when offered.
    pub http2: bool,
    /// The status of the response that the fields below are from.
    pub status: u16,
    /// `Strict-Transport-Security`.
    pub hsts: Option<String>,
    /// `Server`.
    pub server: Option<String>,
    /// `Alt-Svc`: where HTTP/3 is announced.
    pub alt_svc: Option<String>,
    /// What else is accepted; `None` when that was not asked.
    pub scan: Option<Scan>,
    /// What becomes of an encrypted ClientHello; `None` when that was not asked, or the target is an address.
    pub ech: Option<Ech>,
}

/// Inspects `target` with a handful of requests, and some twenty short connections when `with_scan`.
pub fn inspect(
    target: &Target,
    request: &Request,
    verifier: &Arc<Verifier>,
    resolver: &mut Resolver,
    timeout: Duration,
    with_scan: bool,
) -> Result<Inspection, ProbeError> {
    // Looking must not change anything: a POST is measured when asked for, but never repeated for the report.
    let mut request = request.clone();
    if !matches!(request.method.as_str(), "GET" | "HEAD" | "OPTIONS") {
        request.method = "HEAD".into();
    }
    let mut looker = Looker { target, request, verifier, resolver, timeout };
    let first = looker.over(&Variant::negotiated())?;
    let shown = verifier.last().unwrap_or_default();

    // Fields are read over HTTP/1.1, where they come as text; a server may speak only HTTP/2.
    let headers = looker.over(&Variant { http: Some(Http::H1), ..Variant::negotiated() }).unwrap_or(first.clone());
    let field = |name| headers.response.header(name).map(printable);
    let now = unix_now();
    let tls12 = looker.version(Version::Tls12);
    let tls13 = looker.version(Version::Tls13);
    let scan = if with_scan { Some(scan(target, looker.resolver, timeout)?) } else { None };
    let ech = if with_scan { ech(target, verifier, looker.resolver, timeout) } else { None };
    Ok(Inspection {
        http2: first.negotiated.alpn.as_deref() == Some("h2"),
        certificate_checked: verifier.checks_the_chain(),
        certificates: shown.chain.iter().filter_map(|der| Certificate::read(der, now)).collect(),
        ocsp_staple: (!shown.ocsp.is_empty()).then(|| Staple::read(&shown.ocsp)),
        tls12,
        tls13,
        status: headers.response.status,
        hsts: field("strict-transport-security"),
        server: field("server"),
        alt_svc: field("alt-svc"),
        negotiated: first.negotiated,
        scan,
        ech,
    })
}

struct Looker<'a> {
    target: &'a Target,
    request: Request,
    verifier: &'a Arc<Verifier>,
    resolver: &'a mut Resolver,
    timeout: Duration,
}

impl<'a> Looker<'a> {
    fn runner<'v>(&self, variant: &'v Variant) -> Result<Runner<'v>, ProbeError>
    where
        'a: 'v,
    {
        Runner::new(variant, self.target, self.request.clone(), self.verifier.clone(), self.timeout)
    }

    fn over(&mut self, variant: &Variant) -> Result<Outcome, ProbeError> {
        self.runner(variant)?.attempt(self.resolver)
    }

    fn version(&mut self, version: Version) -> VersionReport {
        let mut report = VersionReport {
            offered: false,
            problem: None,
            negotiated: None,
            tickets: TicketCount::default(),
            resumed: None,
            early_data_accepted: None,
        };
        if let Err(error) = self.fill(version, &mut report) {
            report.problem.get_or_insert(first_line(&error));
        }
        report
    }

    fn fill(&mut self, version: Version, report: &mut VersionReport) -> Result<(), ProbeError> {
        let resumed = Variant { version: Some(version), handshake: Handshake::Resumed, ..Variant::negotiated() };
        let mut runner = self.runner(&resumed)?;
        let first = runner.fetch(self.resolver)?;
        report.offered = true;
        report.negotiated = Some(first.negotiated);
        report.tickets = runner.tickets().unwrap_or_default();
        if report.tickets.tls12 + report.tickets.tls13 == 0 {
            return Ok(());
        }
        match runner.fetch(self.resolver) {
            Ok(second) => report.resumed = Some(second.negotiated.handshake.is_resumed()),
            Err(error) => report.problem = Some(format!("resumption was not tested: {}", first_line(&error))),
        }
        if report.tickets.max_early_data > 0 {
            let early = Variant { handshake: Handshake::EarlyData, ..resumed.clone() };
            let outcome = self.runner(&early)?.attempt(self.resolver)?;
            report.early_data_accepted = Some(outcome.negotiated.early_data == Some(EarlyData::Accepted));
        }
        Ok(())
    }
}

fn first_line(error: &ProbeError) -> String {
    error.to_string().lines().next().unwrap_or_default().to_owned()
}
