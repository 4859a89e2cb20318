//! The answers to `status`, in OpenVPN's three formats, and lines of the state.

use super::clean;
use std::fmt::Write as _;
use time::OffsetDateTime;

/// A connected client.
#[derive(Clone, Debug, Default)]
pub(crate) struct Row {
    pub cid: u64,
    pub name: String,
    pub user: Option<String>,
    pub remote: String,
    pub address4: Option<String>,
    pub address6: Option<String>,
    /// Its addresses, and the networks behind it.
    pub routes: Vec<String>,
    pub received: u64,
    pub sent: u64,
    /// Seconds since 1970.
    pub since: u64,
    /// When it was heard last, in seconds since 1970.
    pub heard: u64,
    pub peer_id: u32,
    pub cipher: &'static str,
}

/// What the program calls itself.
pub(crate) fn title() -> String {
    format!("Sealane {} {}", env!("CARGO_PKG_VERSION"), std::env::consts::ARCH)
}

/// `2026-11-24 01:50:28`, UTC.
fn moment(unix: u64) -> String {
    let at = i64::try_from(unix).ok().and_then(|s| OffsetDateTime::from_unix_timestamp(s).ok());
    let Some(at) = at else { return String::new() };
    let ((year, month, day), (hour, minute, second)) = (at.to_calendar_date(), at.to_hms());
    format!("{year:04}-{:02}-{day:02} {hour:02}:{minute:02}:{second:02}", u8::from(month))
}

/// The status of a server. Writing to a string cannot fail.
pub(crate) fn status(format: u8, rows: &[Row], now: u64, in_kernel: bool) -> String {
    let mut out = String::new();
    if format == 1 {
        let _ = writeln!(out, "OpenVPN CLIENT LIST\nUpdated,{}", moment(now));
        out.push_str("Common Name,Real Address,Bytes Received,Bytes Sent,Connected Since\n");
        for row in rows {
            let (name, since) = (clean(&row.name), moment(row.since));
            let _ = writeln!(out, "{name},{},{},{},{since}", row.remote, row.received, row.sent);
        }
        out.push_str("ROUTING TABLE\nVirtual Address,Common Name,Real Address,Last Ref\n");
        for (row, route) in rows.iter().flat_map(|row| row.routes.iter().map(move |route| (row, route))) {
            let _ = writeln!(out, "{route},{},{},{}", clean(&row.name), row.remote, moment(row.heard));
        }
        out.push_str("GLOBAL STATS\nMax bcast/mcast queue length,0\nEND");
        return out;
    }
    let separator = if format == 3 { "\t" } else { "," };
    let mut line = |fields: &[&str]| {
        out.push_str(&fields.join(separator));
        out.push('\n');
    };
    line(&["TITLE", &title()]);
    line(&["TIME", &moment(now), &now.to_string()]);
    line(&[
        "HEADER",
        "CLIENT_LIST",
        "Common Name",
        "Real Address",
        "Virtual Address",
        "Virtual IPv6 Address",
        "Bytes Received",
        "Bytes Sent",
        "Connected Since",
        "Connected Since (time_t)",
        "Username",
        "Client ID",
        "Peer ID",
        "Data Channel Cipher",
    ]);
    for row in rows {
        line(&[
            "CLIENT_LIST",
            &clean(&row.name),
            &row.remote,
            row.address4.as_deref().unwrap_or(""),
            row.address6.as_deref().unwrap_or(""),
            &row.received.to_string(),
            &row.sent.to_string(),
            &moment(row.since),
            &row.since.to_string(),
            &row.user.as_deref().map_or_else(|| "UNDEF".to_owned(), clean),
            &row.cid.to_string(),
            &row.peer_id.to_string(),
            row.cipher,
        ]);
    }
    let last = "Last Ref (time_t)";
    line(&["HEADER", "ROUTING_TABLE", "Virtual Address", "Common Name", "Real Address", "Last Ref", last]);
    for (row, route) in rows.iter().flat_map(|row| row.routes.iter().map(move |route| (row, route))) {
        let heard = row.heard.to_string();
        line(&["ROUTING_TABLE", route, &clean(&row.name), &row.remote, &moment(row.heard), &heard]);
    }
    line(&["GLOBAL_STATS", "Max bcast/mcast queue length", "0"]);
    line(&["GLOBAL_STATS", "dco_enabled", if in_kernel { "1" } else { "0" }]);
    out.push_str("END");
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rows() -> Vec<Row> {
        vec![Row {
            cid: 4,
            name: "alice".to_owned(),
            remote: "192.0.2.7:40000".to_owned(),
            address4: Some("10.8.0.2".to_owned()),
            routes: vec!["10.8.0.2".to_owned(), "192.168.7.0/24".to_owned()],
            received: 3871,
            sent: 3924,
            since: 1_704_067_200,
            heard: 1_704_067_260,
            peer_id: 2,
            cipher: "AES-256-GCM",
            ..Row::default()
        }]
    }

    #[test]
    fn the_formats_are_openvpns() {
        let first = status(1, &rows(), 1_704_067_261, false);
        for line in [
            "OpenVPN CLIENT LIST",
            "Updated,2024-01-01 00:01:01",
            "alice,192.0.2.7:40000,3871,3924,2024-01-01 00:00:00",
            "192.168.7.0/24,alice,192.0.2.7:40000,2024-01-01 00:01:00",
            "END",
        ] {
            assert!(first.lines().any(|l| l == line), "{line}: {first}");
        }
        let second = status(2, &rows(), 1_704_067_261, false);
        let client = "CLIENT_LIST,alice,192.0.2.7:40000,10.8.0.2,,3871,3924,2024-01-01 00:00:00,1704067200,UNDEF,4,2,AES-256-GCM";
        assert!(second.lines().any(|l| l == client), "{second}");
        assert!(second.ends_with("GLOBAL_STATS,dco_enabled,0\nEND"), "{second}");
        assert_eq!(status(3, &rows(), 1_704_067_261, false).replace('\t', ","), second);
    }

    #[test]
    fn a_name_begins_no_line_of_its_own() {
        let mut rows = rows();
        (rows[0].name, rows[0].user) = ("a\r\nEND".to_owned(), Some("b\n>CLIENT:ESTABLISHED,1".to_owned()));
        for format in 1..=3 {
            let text = status(format, &rows, 0, false);
            assert_eq!(text.lines().filter(|l| l.starts_with("END") || l.starts_with('>')).count(), 1, "{text}");
        }
    }
}
