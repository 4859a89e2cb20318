//! What control counts, as metrics.

use super::{CertificateStatus, StatusRegistry};
use crate::metrics::prometheus::Writer;
use crate::metrics::reports;
use crate::upgrade::remaining::RemainingFile;
use std::time::UNIX_EPOCH;

impl StatusRegistry {
    /// Writes what control counts as metrics.
    pub fn render(&self, out: &mut Writer) {
        let w = self.written();
        let mut family = out.counter("sealane_config_reloads_total", "Reloads, by result.");
        family.sample(&[("result", "good")], w.reloads.good);
        family.sample(&[("result", "failed")], w.reloads.failed);
        out.counter("sealane_upgrades_failed_total", "Upgrades of the process (`sealane upgrade`) that failed.")
            .sample(&[], w.reloads.upgrades_failed);
        let old = w.remaining.as_ref().map(RemainingFile::of_others).unwrap_or_default();
        let mut family = out.gauge(
            "sealane_old_process_connections",
            "Requests and connections that old processes still have to finish after an upgrade, by kind: requests, or upgraded and \
             relayed connections.",
        );
        family.sample(&[("kind", "requests")], old.iter().map(|one| one.requests).sum::<u64>());
        family.sample(&[("kind", "upgraded")], old.iter().map(|one| one.upgraded).sum::<u64>());
        out.gauge(
            "sealane_config_generation",
            "Number of the newest snapshot of the configuration; reloads and changed files increase it.",
        )
        .sample(&[], w.generation);
        out.counter(
            "sealane_key_rotations_total",
            "Replacements of the keys of session tickets and of TCP Fast Open cookies.",
        )
        .sample(&[], w.key_rotations);
        let mut family = out
            .gauge("sealane_certificate_expiry_timestamp_seconds", "When certificates expire, in seconds since 1970.");
        // Clients choose the names of those on demand: they are no labels.
        let is_configured = |c: &&CertificateStatus| !c.automatic.as_ref().is_some_and(|automatic| automatic.on_demand);
        for c in w.certificates.iter().filter(is_configured) {
            let end = u64::try_from(c.not_after).unwrap_or(0);
            family.sample(&[("file", &c.file), ("subject", &c.subject)], end);
        }
        let mut family = out.gauge(
            "sealane_certificate_start_timestamp_seconds",
            "When the validity of certificates begins, in seconds since 1970.",
        );
        for c in w.certificates.iter().filter(is_configured) {
            let start = u64::try_from(c.not_before).unwrap_or(0);
            family.sample(&[("file", &c.file), ("subject", &c.subject)], start);
        }
        let mut family =
            out.counter("sealane_certificate_replacements_total", "Certificates whose files have changed, by result.");
        family.sample(&[("result", "good")], w.replaced);
        family.sample(&[("result", "refused")], w.refused);
        let mut family =
            out.counter("sealane_address_list_replacements_total", "Changed files of address lists, by result.");
        family.sample(&[("result", "good")], w.lists.0);
        family.sample(&[("result", "refused")], w.lists.1);
        let mut family =
            out.counter("sealane_redirect_table_replacements_total", "Changed files of redirect tables, by result.");
        family.sample(&[("result", "good")], w.redirects.0);
        family.sample(&[("result", "refused")], w.redirects.1);
        let mut family =
            out.counter("sealane_users_replacements_total", "Changed files of users for basic_auth, by result.");
        family.sample(&[("result", "good")], w.users.0);
        family.sample(&[("result", "refused")], w.users.1);
        let mut family =
            out.counter("sealane_ticket_key_replacements_total", "Changed files of ticket keys, by result.");
        family.sample(&[("result", "good")], w.ticket_keys.0);
        family.sample(&[("result", "refused")], w.ticket_keys.1);
        if let Some(report) = &w.fleet {
            report(out);
        }
        if let Some(reporter) = &w.traces {
            let report = reporter();
            let mut family =
                out.counter("sealane_trace_spans_total", "Spans for the collector of [traces], by result.");
            family.sample(&[("result", "exported")], report.exported);
            family.sample(&[("result", "failed")], report.failed);
            family.sample(&[("result", "rejected")], report.rejected);
            out.gauge("sealane_traces_failing", "1 if the collector did not accept the last batch of spans.")
                .sample(&[], u64::from(!report.last_error.is_empty()));
        }
        if let Some(reporter) = &w.telemetry {
            reports::render_telemetry(&reporter(), out);
        }
        if let Some(reporter) = &w.automatic {
            let reports = reporter();
            let mut family = out.counter("sealane_acme_orders_total", "Orders for certificates, by result.");
            family.sample(&[("result", "issued")], reports.issued);
            family.sample(&[("result", "failed")], reports.failed);
            let mut family = out.gauge(
                "sealane_acme_next_order_timestamp_seconds",
                "When the next order for a certificate is made, in seconds since 1970.",
            );
            let configured = || reports.names.iter().filter(|(_, status)| !status.on_demand);
            for (name, status) in configured() {
                if let Some(next) = status.next {
                    family.sample(&[("name", name)], next);
                }
            }
            let mut family = out.gauge(
                "sealane_acme_failing",
                "1 for a name whose last order failed, or for which no certificate can be ordered.",
            );
            for (name, status) in configured() {
                family.sample(&[("name", name)], u64::from(!status.last_error.is_empty()));
            }
            if let Some(shared) = &reports.shared {
                let help = "Attempts to get the store's lease before an order for a certificate, by result; \"lost\": another \
                            gateway took over the order.";
                let mut family = out.counter("sealane_acme_leases_total", help);
                for (result, count) in shared.leases {
                    family.sample(&[("result", result)], count);
                }
                let help = "Certificates of other gateways that this gateway took from the store.";
                out.counter("sealane_acme_certificates_taken_total", help).sample(&[], shared.taken);
                let help = "Certificates that this gateway wrote to a store that had lost them or had older ones.";
                out.counter("sealane_acme_certificates_restored_total", help).sample(&[], shared.restored);
                let help = "Files of certificates that could not be written to the store when they changed.";
                out.counter("sealane_acme_store_writes_failed_total", help).sample(&[], shared.unwritten);
            }
            if let Some(on_demand) = &reports.on_demand {
                out.gauge("sealane_acme_on_demand_certificates", "Certificates that were ordered on demand.")
                    .sample(&[], on_demand.certificates as u64);
                let mut family = out.counter(
                    "sealane_acme_on_demand_total",
                    "Names without a certificate that clients asked for, by result.",
                );
                for (result, count) in on_demand.results {
                    family.sample(&[("result", result)], count);
                }
            }
        }
        if let Some(reporter) = &w.stapling {
            let reports = reporter();
            let mut family = out.counter("sealane_ocsp_requests_total", "Requests for OCSP responses, by result.");
            family.sample(&[("result", "good")], reports.good);
            family.sample(&[("result", "revoked")], reports.revoked);
            family.sample(&[("result", "failed")], reports.failed);
            let report = |c: &CertificateStatus| reports.certificates.get(&c.digest);
            let mut family = out.gauge(
                "sealane_ocsp_response_expiry_timestamp_seconds",
                "When the OCSP responses for clients expire, in seconds since 1970; 0: the gateway sends no response.",
            );
            for c in w.certificates.iter().filter(is_configured) {
                if let Some(report) = report(c) {
                    family.sample(&[("file", &c.file), ("subject", &c.subject)], report.next_update.unwrap_or(0));
                }
            }
            let mut family = out.gauge("sealane_ocsp_failing", "1 if the last request for an OCSP response failed.");
            for c in w.certificates.iter().filter(is_configured) {
                if let Some(report) = report(c) {
                    let failing = u64::from(!report.last_error.is_empty());
                    family.sample(&[("file", &c.file), ("subject", &c.subject)], failing);
                }
            }
        }
        let mut family =
            out.counter("sealane_revocation_list_replacements_total", "Changed files of revocation lists, by result.");
        family.sample(&[("result", "good")], w.lists_read.0);
        family.sample(&[("result", "refused")], w.lists_read.1);
        let mut family = out.gauge(
            "sealane_revocation_list_expiry_timestamp_seconds",
            "When revocation lists in use expire, in seconds since 1970; 0: there is no list yet.",
        );
        for (source, end) in &w.revocation_lists {
            family.sample(&[("source", source)], end.unwrap_or(0));
        }
        let mut family = out.counter(
            "sealane_log_list_replacements_total",
            "Changed files with lists of transparency logs, by result.",
        );
        family.sample(&[("result", "good")], w.log_lists_read.0);
        family.sample(&[("result", "refused")], w.log_lists_read.1);
        let mut family = out.gauge(
            "sealane_log_list_timestamp_seconds",
            "When lists of transparency logs in use were written, in seconds since 1970; 0: the list has no date.",
        );
        for (file, written) in &w.log_lists {
            family.sample(&[("file", file)], *written);
        }
        if let Some(reporter) = &w.lists_fetched {
            let reports = reporter();
            let mut family =
                out.counter("sealane_revocation_list_requests_total", "Requests for revocation lists, by result.");
            family.sample(&[("result", "updated")], reports.updated);
            family.sample(&[("result", "unchanged")], reports.unchanged);
            family.sample(&[("result", "failed")], reports.failed);
            let mut family = out.gauge(
                "sealane_revocation_list_failing",
                "1 for a URL whose last request returned no valid revocation list.",
            );
            for (url, status) in &reports.lists {
                family.sample(&[("source", url)], u64::from(!status.last_error.is_empty()));
            }
        }
        let started = self.started.0.duration_since(UNIX_EPOCH).map_or(0, |d| d.as_secs());
        out.gauge("process_start_time_seconds", "When the process was started, in seconds since 1970.")
            .sample(&[], started);
    }
}
