//! The servers' metrics.

use super::LiveUpstreams;
use crate::metrics::prometheus::Writer;

impl LiveUpstreams {
    /// Writes them as they are now.
    pub fn render(&self, out: &mut Writer) {
        let all = self.list();
        let labels = |s: &super::ServerStatus| [("upstream", s.upstream.clone()), ("server", s.server.clone())];
        let mut gauge = |name: &'static str, help: &str, value: fn(&super::ServerStatus) -> f64| {
            let mut family = out.gauge(name, help);
            for s in &all {
                let labels = labels(s);
                family.sample(&[(labels[0].0, &labels[0].1), (labels[1].0, &labels[1].1)], value(s));
            }
        };
        gauge(
            "sealane_server_up",
            "1 if the gateway may use the server (also if the server is draining, is a backup or has weight 0); 0 if its health checks \
             fail, it is ejected, or its name has never resolved.",
            |s| f64::from(u8::from(s.up)),
        );
        gauge("sealane_server_weight", "The current weight of a server.", |s| s.effective_weight);
        gauge("sealane_server_draining", "1 if the server is draining, 0 if not.", |s| f64::from(u8::from(s.draining)));
        gauge("sealane_server_in_use", "Open requests at a server.", |s| s.in_use as f64);
        let mut counter = |name: &'static str, help: &str, value: fn(&super::ServerStatus) -> u64| {
            let mut family = out.counter(name, help);
            for s in &all {
                let labels = labels(s);
                family.sample(&[(labels[0].0, &labels[0].1), (labels[1].0, &labels[1].1)], value(s));
            }
        };
        counter("sealane_server_requests_total", "Requests sent to a server.", |s| s.requests);
        counter("sealane_server_failures_total", "Connections to a server that failed, broke or timed out.", |s| {
            s.failures
        });
        counter("sealane_server_ejections_total", "Times that a server was ejected because of failed requests.", |s| {
            s.ejections
        });
        let mut family = out.counter("sealane_server_checks_total", "Active checks by their result.");
        for s in &all {
            for (result, n) in [("good", s.checks_good), ("bad", s.checks_bad)] {
                family.sample(&[("upstream", &s.upstream), ("server", &s.server), ("result", result)], n);
            }
        }
        let groups = self.0.groups();
        let mut family = out.counter("sealane_dns_failures_total", "Times that the name of a server did not resolve.");
        for group in &groups.all {
            family.sample(&[("upstream", group.name())], group.dns_failures);
        }
        let mut family =
            out.counter("sealane_dns_changes_total", "Times that the name of a server resolved to new addresses.");
        for group in &groups.all {
            family.sample(&[("upstream", group.name())], group.dns_changes);
        }
    }
}
