//! The metrics of the tunnel.

use crate::metrics::prometheus::Writer;
use crate::vpn::status::Status;
use std::cmp::Reverse;

/// Writes the tunnel's status as metrics. At most `most` clients have their own series.
pub(super) fn render(status: &Status, most: usize, out: &mut Writer) {
    out.gauge("sealane_tunnel_clients", "Connected clients of the tunnel.").sample(&[], status.clients.len() as u64);
    let mut family = out.gauge(
        "sealane_tunnel_expiry_timestamp_seconds",
        "When the tunnel's CA, the server's certificate and the revocation list expire, in seconds since 1970.",
    );
    for (what, at) in &status.expiries {
        family.sample(&[("what", what)], u64::try_from(*at).unwrap_or(0));
    }
    let mut family = out.gauge(
        "sealane_tunnel_client_certificate_expiry_timestamp_seconds",
        "When the certificates of connected clients expire, in seconds since 1970.",
    );
    // The clients that connected first have the series, so that a series does not end when other clients connect.
    let mut clients: Vec<_> = status.clients.iter().collect();
    clients.sort_unstable_by_key(|client| (Reverse(client.connected_s), client.peer_id));
    let with_series = clients.get(..most).unwrap_or(&clients);
    for (client, at) in with_series.iter().filter_map(|c| Some((c, c.certificate_expires?))) {
        let id = client.peer_id.to_string();
        family.sample(&[("client", &client.name), ("peer", &id)], u64::try_from(at).unwrap_or(0));
    }
    let mut family = out.counter("sealane_tunnel_control_total", "Events in the tunnel's control channel.");
    for (name, n) in &status.control {
        family.sample(&[("what", name)], *n);
    }
    let mut family = out.counter("sealane_tunnel_data_total", "Events in the tunnel's data plane.");
    for (name, n) in &status.data {
        family.sample(&[("what", name)], *n);
    }
    let mut family = out.counter("sealane_tunnel_client_bytes_total", "IP bytes of connected clients.");
    for client in with_series {
        let id = client.peer_id.to_string();
        for (direction, n) in [("received", client.rx_bytes), ("sent", client.tx_bytes)] {
            family.sample(&[("client", &client.name), ("peer", &id), ("direction", direction)], n);
        }
    }
    let beyond = clients.len().saturating_sub(with_series.len()) as u64;
    out.gauge(
        "sealane_tunnel_clients_without_series",
        "Connected clients that have no series of their own, because more clients than max_series are connected.",
    )
    .sample(&[], beyond);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metrics::prometheus::Format;
    use crate::vpn::status::ClientStatus;

    #[test]
    fn clients_of_the_tunnel_have_a_bounded_number_of_series() {
        let client = |peer_id, connected_s| ClientStatus {
            name: format!("client {peer_id}"),
            peer_id,
            connected_s,
            certificate_expires: Some(2_000_000_000),
            ..ClientStatus::default()
        };
        let clients = vec![client(1, 10), client(2, 30), client(3, 20), client(4, 20)];
        let status = Status { clients, ..Status::default() };
        let mut page = Writer::new(Format::Text);
        render(&status, 2, &mut page);
        let page = page.finish();
        let shown: Vec<&str> = page.lines().filter(|line| line.contains("direction=\"sent\"")).collect();
        assert!(shown.len() == 2 && shown[0].contains("client 2") && shown[1].contains("client 3"), "{page}");
        let name = "sealane_tunnel_client_certificate_expiry_timestamp_seconds{";
        let shown: Vec<&str> = page.lines().filter(|line| line.starts_with(name)).collect();
        assert!(shown.len() == 2 && shown[0].contains("client 2") && shown[1].contains("client 3"), "{page}");
        assert!(page.contains("\nsealane_tunnel_clients 4\n".trim_start()), "{page}");
        assert!(page.contains("sealane_tunnel_clients_without_series 2\n"), "{page}");
    }
}
