//! The tables of deadlines as the reference has them, for people. Nothing else uses this module: it is the only part of the crate
//! that allocates.

use super::{ConnectionWait, Party, Wait};

/// One row of the table for exchanges.
#[derive(Clone, Copy, Debug)]
pub struct Row {
    /// What is waited for.
    pub wait: Wait,
    /// Its name in the documentation.
    pub name: &'static str,
    /// The settings that limit it; `[limits]` for the client, `[[upstream]]` for the upstream.
    pub settings: &'static [&'static str],
    /// What becomes of the exchange while the response's head has not been sent.
    pub before: &'static str,
    /// And after that.
    pub after: &'static str,
}

/// The table for exchanges.
pub const TABLE: &[Row] = &[
    Row {
        wait: Wait::Handshake,
        name: "the end of the handshake, for a request that the server refused as too early (425)",
        settings: &["handshake_timeout (total)"],
        before: "408",
        after: "",
    },
    Row {
        wait: Wait::RequestBody,
        name: "a request's body",
        settings: &["idle_timeout", "min_body_rate"],
        before: "408",
        after: "both sides are reset",
    },
    Row {
        wait: Wait::RequestRoom,
        name: "a server that does not read more of a request's body",
        settings: &["idle_timeout", "min_body_rate"],
        before: "504",
        after: "both sides are reset",
    },
    Row {
        wait: Wait::RequestRest,
        name: "the rest of a request that was answered before it was complete",
        settings: &[
            "idle_timeout",
            "min_body_rate",
            "and a fixed limit of 2 seconds or 512 KiB, whichever comes first (total)",
        ],
        before: "",
        after: "the connection (HTTP/1.1) or the stream ends",
    },
    Row {
        wait: Wait::Connection,
        name: "a connection to a server, or a stream on a connection",
        settings: &[
            "connect_timeout per attempt",
            "the sum of connect_timeout and first_byte_timeout (total)",
            "try_timeout (total)",
        ],
        before: "another server, or 504",
        after: "",
    },
    Row {
        wait: Wait::Authorization,
        name: "the response of a `forward_auth` server, including the connection to it",
        settings: &["try_timeout (total)", "and in forward_auth the setting timeout (total)"],
        before: "504; with try_timeout another server",
        after: "",
    },
    Row {
        wait: Wait::Password,
        name: "the check of a password (`basic_auth`)",
        settings: &["10 seconds (total)"],
        before: "503",
        after: "",
    },
    Row {
        wait: Wait::Queue,
        name: "room at the servers of a group, all of which have `max_connections` requests",
        settings: &["queue_timeout (total)"],
        before: "503",
        after: "",
    },
    Row {
        wait: Wait::ResponseHead,
        name: "a response's head, once the request has been sent",
        settings: &["first_byte_timeout (total)", "try_timeout (total)"],
        before: "504; with try_timeout another server",
        after: "",
    },
    Row {
        wait: Wait::ResponseBody,
        name: "a response's body",
        settings: &["idle_timeout", "min_body_rate"],
        before: "",
        after: "the response is cut off",
    },
    Row {
        wait: Wait::ResponseRoom,
        name: "a client that does not read more of a response",
        settings: &["idle_timeout", "min_body_rate"],
        before: "",
        after: "the response is cut off",
    },
    Row {
        wait: Wait::Tunnel,
        name: "any byte of an upgraded or relayed connection",
        settings: &["idle_timeout (both directions together)"],
        before: "",
        after: "both sides are closed",
    },
    Row {
        wait: Wait::Exchange,
        name: "the end of an exchange on a route with `total_timeout`, also of an upgraded connection",
        settings: &["total_timeout (total)"],
        before: "408 while the request's body is awaited, else 504",
        after: "both sides are reset",
    },
    Row {
        wait: Wait::Copy,
        name: "the end of a copy of a request (`mirror`)",
        settings: &["timeout (total)"],
        before: "the copy ends; the client does not notice",
        after: "the same",
    },
];

/// One row of the table for connections.
#[derive(Clone, Copy, Debug)]
pub struct ConnectionRow {
    /// What is waited for.
    pub wait: ConnectionWait,
    /// Who is at the other end, and to blame; nobody if it is another gateway's store.
    pub party: Option<Party>,
    /// Its name in the documentation.
    pub name: &'static str,
    /// The setting that limits it; of `[limits]` for a client's connection, of `[[upstream]]` for one to a server.
    pub setting: &'static str,
    /// What follows.
    pub after: &'static str,
}

/// The table for connections.
pub const CONNECTIONS: &[ConnectionRow] = &[
    ConnectionRow {
        wait: ConnectionWait::Handshake,
        party: Some(Party::Client),
        name: "a client's PROXY protocol header, and TLS or QUIC handshake",
        setting: "handshake_timeout",
        after: "the connection is closed",
    },
    ConnectionRow {
        wait: ConnectionWait::Ticket,
        party: None,
        name: "the single-use ticket of a client, from the store that gateways share",
        setting: "early_data_wait",
        after: "a full handshake; early data is refused",
    },
    ConnectionRow {
        wait: ConnectionWait::FirstRequest,
        party: Some(Party::Client),
        name: "the first byte of a connection's first request (HTTP/1.1)",
        setting: "header_timeout",
        after: "the connection is closed",
    },
    ConnectionRow {
        wait: ConnectionWait::RequestHead,
        party: Some(Party::Client),
        name: "a request's head, from its first byte; over HTTP/2 also the client's preface",
        setting: "header_timeout",
        after: "HTTP/1.1: 408; HTTP/2: the connection is closed; HTTP/3: the stream is reset",
    },
    ConnectionRow {
        wait: ConnectionWait::Request,
        party: Some(Party::Client),
        name: "the next request of a client",
        setting: "keepalive_timeout",
        after: "the connection is closed; over HTTP/2 after a GOAWAY",
    },
    ConnectionRow {
        wait: ConnectionWait::Room,
        party: Some(Party::Client),
        name: "a client that does not read from its connection (HTTP/2)",
        setting: "idle_timeout",
        after: "the connection is closed",
    },
    ConnectionRow {
        wait: ConnectionWait::LastBytes,
        party: Some(Party::Client),
        name: "a client that does not read the last bytes before its connection closes; over HTTP/3 the last bytes of a response",
        setting: "idle_timeout",
        after: "the connection is closed immediately; over HTTP/3 the stream is reset, or the connection is closed if the client has \
                acknowledged nothing",
    },
    ConnectionRow {
        wait: ConnectionWait::ClientEnd,
        party: Some(Party::Client),
        name: "the client to close its direction of a connection, after the gateway has closed the other direction (for \
               example over HTTP/1.1, after a response to an incomplete request)",
        setting: "no setting, fixed at 2 seconds or 512 KiB, whichever comes first",
        after: "the connection is closed immediately",
    },
    ConnectionRow {
        wait: ConnectionWait::Goaway,
        party: Some(Party::Client),
        name: "a client that the gateway has told to open no more streams (GOAWAY), until the client has received this",
        setting: "no setting, fixed at 5 seconds",
        after: "further streams are refused (REFUSED_STREAM, H3_REQUEST_REJECTED), and count as wasted requests",
    },
    ConnectionRow {
        wait: ConnectionWait::Connect,
        party: Some(Party::Upstream),
        name: "a connection to a server that is being made, including TLS or QUIC",
        setting: "connect_timeout or, if that is less, try_timeout",
        after: "the connection is closed; its requests go to another server, or get 504",
    },
    ConnectionRow {
        wait: ConnectionWait::Request,
        party: Some(Party::Upstream),
        name: "the next request for a connection to a server",
        setting: "keepalive_timeout",
        after: "the connection is closed",
    },
    ConnectionRow {
        wait: ConnectionWait::Room,
        party: Some(Party::Upstream),
        name: "a server that does not read from its connection (HTTP/2)",
        setting: "idle_timeout",
        after: "the connection is closed; its requests get 504, or their responses are cut off",
    },
    ConnectionRow {
        wait: ConnectionWait::LastBytes,
        party: Some(Party::Upstream),
        name: "a server that does not read the last bytes of a relayed connection",
        setting: "idle_timeout",
        after: "the connection is closed immediately",
    },
];

/// The table for exchanges, as Markdown.
pub fn table() -> String {
    let mut text = String::from(
        "| what the gateway waits for | who causes the wait | limits | before the response's head has been sent | after that |\n\
         |---|---|---|---|---|\n",
    );
    for row in TABLE {
        let (party, section) = match (row.wait.party(), row.wait) {
            (_, Wait::Password) => ("nobody", "the gateway's own"),
            (_, Wait::Exchange) => ("nobody", "`[[host]]`, `[[host.route]]`"),
            (_, Wait::Copy) => ("nobody", "`mirror`"),
            (Some(party), _) => named(party),
            (None, _) => ("nobody", "`[[upstream]]`"),
        };
        let settings: Vec<String> = row.settings.iter().map(|s| quoted(s)).collect();
        push_row(&mut text, &[row.name, party, &format!("{section}: {}", settings.join(", ")), row.before, row.after]);
    }
    text
}

/// The table for connections, as Markdown.
pub fn connections() -> String {
    let mut text = String::from(
        "| what the gateway waits for | who causes the wait | limit (total) | what follows |\n|---|---|---|---|\n",
    );
    for row in CONNECTIONS {
        let (party, section) = row.party.map_or(("nobody", "`[store]`"), named);
        push_row(&mut text, &[row.name, party, &format!("{section}: {}", quoted(row.setting)), row.after]);
    }
    text
}

/// A party, and where its limits are set.
fn named(party: Party) -> (&'static str, &'static str) {
    match party {
        Party::Client => ("the client", "`[limits]`"),
        Party::Upstream => ("the upstream", "`[[upstream]]`"),
    }
}

fn push_row(text: &mut String, cells: &[&str]) {
    text.push_str(&format!("| {} |\n", cells.join(" | ").replace("|  |", "| |")));
}

/// Names of settings stand in code.
fn quoted(setting: &str) -> String {
    let words = setting.split(' ').map(|w| if w.contains('_') { format!("`{w}`") } else { w.to_owned() });
    words.collect::<Vec<_>>().join(" ")
}
