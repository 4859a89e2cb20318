//! The tables of `sealane top`: those of the status page, with the same columns, sorted by any of them and narrowed by a text.

use crate::debug::printable;
use crate::running::{span, state};
use crate::top::history::Plots;
use crate::top::rates::{Rates, bytes};
use anyhow::{Result, bail};
use sealane_control::metrics::status::Status;
use sealane_control::run::inspection::OpenExchanges;
use std::cmp::Ordering;
use std::fmt::Write as _;
use std::time::{SystemTime, UNIX_EPOCH};

/// Rows that are printed.
const MOST_ROWS: usize = 200;
/// Characters of a cell.
const MOST_TEXT: usize = 48;

/// What `sealane top` shows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum Table {
    /// Rates, lanes and servers
    #[default]
    Overview,
    /// Hosts and routes, with the durations of the last five minutes
    Hosts,
    /// Servers of the upstreams; for a server that is not used, the reason
    Servers,
    /// The newest requests that got 5xx
    Errors,
    /// Limits that refuse clients
    Limits,
    /// CPU time of operations
    Operations,
    /// Certificates
    Certificates,
    /// Clients of the tunnel
    Tunnel,
    /// Open requests (admin socket only)
    Requests,
    /// Settings that the last reload has changed
    Changes,
    /// Problems, and problems that ended recently
    Problems,
    /// Clients with the most requests (addresses only over the admin socket)
    Clients,
}

/// In the order of the keys that choose them: the digits, `!` and `c`.
pub const TABLES: [Table; 12] = [
    Table::Overview,
    Table::Hosts,
    Table::Servers,
    Table::Errors,
    Table::Limits,
    Table::Operations,
    Table::Certificates,
    Table::Tunnel,
    Table::Requests,
    Table::Changes,
    Table::Problems,
    Table::Clients,
];

/// A column: its heading, and whether it has text.
type Column = (&'static str, bool);

/// How a table is sorted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sort {
    pub column: usize,
    pub falling: bool,
}

/// A cell: what is shown, and by what it is sorted.
#[derive(Clone, Debug)]
enum Cell {
    /// Cut in the table, but not where a row is shown by itself.
    Text(String),
    /// Not cut: it is the last of its row.
    Long(String),
    Number(f64, String),
}

impl Cell {
    fn whole(&self) -> &str {
        match self {
            Self::Text(text) | Self::Long(text) | Self::Number(_, text) => text,
        }
    }

    fn shown(&self) -> String {
        match self {
            Self::Text(text) if text.len() > MOST_TEXT => {
                // What is shown is ASCII.
                let cut: String = text.chars().take(MOST_TEXT - 1).collect();
                cut + "~"
            }
            cell => cell.whole().to_owned(),
        }
    }
}

/// What is shown of a table.
#[derive(Clone, Debug, Default)]
pub struct Rows {
    /// The headings, in their columns.
    pub head: String,
    /// The rows, in the same columns.
    pub lines: Vec<String>,
    /// Of each row: the heading of each column, and its whole value.
    pub values: Vec<Vec<(&'static str, String)>>,
    /// Rows that there is no room for.
    pub more: usize,
    /// What is said where there are no rows.
    pub empty: String,
}

fn text(text: &str) -> Cell {
    Cell::Text(printable(text))
}

fn long(text: &str) -> Cell {
    Cell::Long(printable(text))
}

fn count(n: u64) -> Cell {
    Cell::Number(n as f64, n.to_string())
}

fn number(value: f64, shown: String) -> Cell {
    Cell::Number(value, shown)
}

/// A duration; `-` where there is none.
fn time(seconds: Option<f64>) -> Cell {
    let shown = match seconds {
        None => "-".to_owned(),
        Some(s) if s >= 1.0 => format!("{s:.2} s"),
        Some(s) if s >= 0.001 => format!("{:.1} ms", s * 1e3),
        Some(s) => format!("{:.0} µs", s * 1e6),
    };
    Cell::Number(seconds.unwrap_or(-1.0), shown)
}

impl Table {
    /// Its columns; none where there is nothing to sort.
    fn columns(self) -> &'static [Column] {
        const T: bool = true;
        const N: bool = false;
        match self {
            Self::Overview | Self::Changes => &[],
            Self::Hosts => &[
                ("host", T),
                ("route", T),
                ("upstream", T),
                ("per_second", N),
                ("4xx", N),
                ("5xx", N),
                ("p50", N),
                ("p99", N),
                ("requests", N),
            ],
            Self::Servers => &[
                ("upstream", T),
                ("server", T),
                ("in_use", N),
                ("weight", N),
                ("per_second", N),
                ("failures", N),
                ("state", T),
            ],
            Self::Errors => &[
                ("ago", N),
                ("status", N),
                ("host", T),
                ("upstream", T),
                ("server", T),
                ("request", T),
                ("trace", T),
                ("why", T),
            ],
            Self::Limits => &[("last_minute", N), ("total", N), ("what", T)],
            Self::Operations => &[("operation", T), ("cpu", N), ("error", N), ("last_5_minutes", T)],
            Self::Certificates => &[("names", T), ("days", N), ("file", T), ("problem", T)],
            Self::Tunnel => &[
                ("name", T),
                ("over", T),
                ("cipher", T),
                ("connected", N),
                ("received", N),
                ("sent", N),
                ("dropped", N),
            ],
            Self::Requests => &[
                ("open_for", N),
                ("id", T),
                ("client", T),
                ("method", T),
                ("host", T),
                ("path", T),
                ("server", T),
                ("waits_for", T),
            ],
            Self::Problems => &[("since", N), ("lasts", N), ("kind", T), ("client", T), ("problem", T)],
            Self::Clients => {
                &[("client", T), ("per_second", N), ("part", N), ("connections", N), ("new_per_second", N)]
            }
        }
    }

    /// Its name, as in the option `--table`.
    pub fn name(self) -> String {
        use clap::ValueEnum as _;
        self.to_possible_value().map_or_else(String::new, |value| value.get_name().to_owned())
    }

    /// How it is sorted unless somebody says otherwise: by the busiest, the newest, the one that ends first.
    pub fn usual(self) -> Sort {
        let (column, falling) = match self {
            Self::Hosts => (3, true),
            Self::Servers => (4, true),
            Self::Errors | Self::Operations => (0, false),
            Self::Certificates => (1, false),
            Self::Tunnel => (3, true),
            Self::Problems => (0, false),
            Self::Clients => (1, true),
            _ => (0, true),
        };
        Sort { column, falling }
    }

    /// Sorted by the column of this name.
    pub fn sorted_by(self, name: &str) -> Result<Sort> {
        let columns = self.columns();
        match columns.iter().position(|(column, _)| *column == name) {
            // Text from A to Z, numbers from the largest.
            Some(column) => Ok(Sort { column, falling: !columns[column].1 }),
            None if columns.is_empty() => bail!("this table is not sorted: choose another one with --table"),
            None => {
                let names: Vec<&str> = columns.iter().map(|(name, _)| *name).collect();
                bail!("there is no column \"{name}\"; the columns are: {}", names.join(", "))
            }
        }
    }

    /// Sorted by the next column, or by the one before.
    pub fn next_sort(self, sort: Sort, is_back: bool) -> Sort {
        let columns = self.columns();
        let count = columns.len().max(1);
        let column = (sort.column + if is_back { count - 1 } else { 1 }) % count;
        Sort { column, falling: columns.get(column).is_some_and(|(_, is_text)| !is_text) }
    }

    /// What is said where there are no rows.
    fn empty(self, status: &Status, open: Option<&OpenExchanges>) -> &'static str {
        match self {
            Self::Hosts => "no requests yet: a host and a route appear here with their first request",
            Self::Servers => "no upstreams are configured: the gateway answers by itself",
            Self::Errors => "no request has got 5xx since the start",
            Self::Limits => {
                "none of the limits that this table shows has refused a client since the start; /metrics has other refusals"
            }
            Self::Certificates => "no certificates: no listener has TLS",
            Self::Tunnel if status.tunnel.is_none() => "no tunnel is configured",
            Self::Tunnel if status.reduced && status.tunnel.as_ref().is_some_and(|tunnel| tunnel.connected > 0) => {
                "clients of the tunnel are shown only over the admin socket: use --socket"
            }
            Self::Tunnel => "no client is connected",
            Self::Requests if open.is_none() => "requests are shown on the admin socket only: use --socket",
            Self::Requests if open.is_some_and(|open| open.lanes_missing > 0) => {
                "no open requests in the lanes that answered; the other lanes did not answer in time"
            }
            Self::Requests => "no open requests",
            Self::Operations => {
                "there are no estimates yet: wait until the number of requests and handshakes per second has varied \
                 for some time"
            }
            Self::Problems => "no problem is known",
            Self::Clients => {
                "no client is in the sample of the last ten seconds; the gateway takes the sample only while the status is read"
            }
            Self::Overview | Self::Changes => "",
        }
    }

    fn rows(self, rates: &Rates<'_>, open: Option<&OpenExchanges>, plots: &Plots) -> Vec<Vec<Cell>> {
        let now = rates.now;
        match self {
            Self::Hosts => {
                let percent = |part: f64| number(part, format!("{:.1} %", part * 100.0));
                let row = |p: &sealane_control::metrics::sampler::PlaceStatus| {
                    vec![
                        text(&p.host),
                        text(&p.route),
                        text(&p.upstream),
                        number(p.per_second, format!("{:.1}", p.per_second)),
                        percent(p.part_4xx),
                        percent(p.part_5xx),
                        time(p.p50),
                        time(p.p99),
                        count(p.requests),
                    ]
                };
                now.places.iter().map(row).collect()
            }
            Self::Servers => {
                let servers = now.upstreams.iter().flat_map(|u| u.servers.iter().map(move |s| (&u.name, s)));
                let row = |(upstream, server): (&String, &sealane_control::metrics::status::ServerStatus)| {
                    let (requests, failures) = rates.server(upstream, server);
                    vec![
                        text(upstream),
                        text(&server.name),
                        count(server.in_use),
                        count(server.weight.into()),
                        number(requests, format!("{requests:.1}")),
                        number(failures, format!("{failures:.1}")),
                        long(&state(server)),
                    ]
                };
                servers.map(row).collect()
            }
            Self::Errors => {
                let seconds = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
                let row = |e: &sealane_control::metrics::errors::ErrorStatus| {
                    let ago = seconds.saturating_sub(e.at);
                    vec![
                        number(ago as f64, span(ago)),
                        count(e.status.into()),
                        text(if e.host.is_empty() { "(none)" } else { &e.host }),
                        text(&e.upstream),
                        text(&e.server),
                        text(&e.request),
                        text(if e.trace.is_empty() { "-" } else { &e.trace }),
                        Cell::Long(match e.left_out {
                            0 => printable(&e.why),
                            n => format!("{} ({n} like this before)", printable(&e.why)),
                        }),
                    ]
                };
                now.errors.iter().map(row).collect()
            }
            Self::Limits => {
                let row = |l: &sealane_control::metrics::sampler::LimitStatus| {
                    vec![count(l.last_minute), count(l.total), long(&l.what)]
                };
                now.limits.iter().map(row).collect()
            }
            Self::Operations => {
                let micros = |seconds: Option<f64>, sign: &str| match seconds {
                    Some(s) => number(s, format!("{sign}{:.1} µs", s * 1e6)),
                    None => number(-1.0, "-".to_owned()),
                };
                let row = |o: &sealane_control::metrics::sampler::OperationStatus| {
                    let plot = plots.line(&format!("cpu_microseconds_{}", o.operation));
                    vec![text(&o.operation), micros(o.seconds, ""), micros(o.error, "± "), Cell::Long(plot)]
                };
                now.operations.iter().map(row).collect()
            }
            Self::Certificates => {
                let seconds = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs() as i64);
                let row = |c: &sealane_control::metrics::status::CertificateStatus| {
                    let days = (c.not_after - seconds).div_euclid(86_400);
                    let renewal = c.automatic.as_ref().map_or("", |automatic| &automatic.last_error);
                    let problem = if c.refused.is_empty() { renewal } else { &c.refused };
                    vec![text(&c.subject), number(days as f64, days.to_string()), text(&c.file), long(problem)]
                };
                now.certificates.iter().map(row).collect()
            }
            Self::Tunnel => {
                let amount = |n: u64| number(n as f64, bytes(n as f64).replace("/s", ""));
                let row = |c: &sealane_control::metrics::status::TunnelClient| {
                    vec![
                        text(&c.name),
                        text(&c.transport),
                        text(&c.cipher),
                        number(c.connected as f64, span(c.connected)),
                        amount(c.received),
                        amount(c.sent),
                        count(c.dropped),
                    ]
                };
                now.tunnel.iter().flat_map(|tunnel| &tunnel.clients).map(row).collect()
            }
            Self::Requests => {
                let row = |e: &sealane_control::run::inspection::OpenExchange| {
                    vec![
                        time(Some(e.age)),
                        text(&e.id),
                        text(&e.client),
                        text(&e.method),
                        text(&e.host),
                        text(&e.path),
                        text(e.server.as_ref().or(e.upstream.as_ref()).map_or("", String::as_str)),
                        long(&e.waits_for),
                    ]
                };
                open.iter().flat_map(|open| &open.exchanges).map(row).collect()
            }
            Self::Problems => {
                let seconds = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
                let row = |p: &sealane_control::metrics::problems::ProblemStatus| {
                    let ago = seconds.saturating_sub(p.since);
                    let lasts = p.until.unwrap_or(seconds).saturating_sub(p.since);
                    let over = if p.until.is_some() { "over: " } else { "" };
                    vec![
                        number(ago as f64, format!("{} ago", span(ago))),
                        number(lasts as f64, span(lasts)),
                        text(&p.kind),
                        text(match p.client.as_deref() {
                            None => "-",
                            Some("") => "(admin socket only)",
                            Some(address) => address,
                        }),
                        Cell::Long(format!("{over}{}", printable(&p.text))),
                    ]
                };
                now.problems.iter().map(row).collect()
            }
            Self::Clients => {
                let row = |c: &sealane_control::metrics::talkers::ClientStatus| {
                    vec![
                        text(if c.address.is_empty() { "(admin socket only)" } else { &c.address }),
                        number(c.per_second, format!("{:.1}", c.per_second)),
                        number(c.part, format!("{:.1} %", c.part * 100.0)),
                        count(c.connections),
                        number(c.accepted_per_second, format!("{:.1}", c.accepted_per_second)),
                    ]
                };
                let is_heard = |c: &&sealane_control::metrics::talkers::ClientStatus| {
                    c.per_second > 0.0 || c.accepted_per_second > 0.0
                };
                now.clients.iter().filter(is_heard).map(row).collect()
            }
            Self::Overview | Self::Changes => Vec::new(),
        }
    }

    /// The table as text, without the overview.
    pub fn view(self, rates: &Rates<'_>, open: Option<&OpenExchanges>, plots: &Plots, sort: Sort) -> String {
        let rows = self.shown(rates, open, plots, sort, "");
        if rows.lines.is_empty() {
            return rows.empty + "\n";
        }
        let more = if rows.more > 0 { format!("and {} more\n", rows.more) } else { String::new() };
        format!("{}\n{}\n{more}", rows.head, rows.lines.join("\n"))
    }

    /// What is shown of the table: the rows in which a text occurs, in their order.
    pub fn shown(
        self,
        rates: &Rates<'_>,
        open: Option<&OpenExchanges>,
        plots: &Plots,
        sort: Sort,
        wanted: &str,
    ) -> Rows {
        if self == Self::Changes {
            let (head, lines) = changes(rates.now);
            let lines: Vec<String> = lines.into_iter().filter(|line| line.contains(wanted)).collect();
            let values = lines.iter().map(|line| vec![("change", line.trim().to_owned())]).collect();
            return Rows { empty: head.clone(), head, lines, values, more: 0 };
        }
        let mut rows = self.rows(rates, open, plots);
        let empty = match rows.is_empty() {
            true => self.empty(rates.now, open).to_owned(),
            false => format!("no row has the text \"{wanted}\""),
        };
        let wanted = wanted.to_lowercase();
        rows.retain(|row| wanted.is_empty() || row.iter().any(|cell| cell.whole().to_lowercase().contains(&wanted)));
        rows.sort_by(|a, b| {
            let order = match (a.get(sort.column), b.get(sort.column)) {
                (Some(Cell::Number(a, _)), Some(Cell::Number(b, _))) => a.total_cmp(b),
                (Some(a), Some(b)) => a.whole().cmp(b.whole()),
                _ => Ordering::Equal,
            };
            if sort.falling { order.reverse() } else { order }
        });
        let more = rows.len().saturating_sub(MOST_ROWS);
        rows.truncate(MOST_ROWS);
        let columns = self.columns();
        let heading = |(i, (name, _)): (usize, &Column)| match i == sort.column {
            true => format!("{name} {}", if sort.falling { "v" } else { "^" }),
            false => (*name).to_owned(),
        };
        let mut lines: Vec<Vec<String>> = vec![columns.iter().enumerate().map(heading).collect()];
        lines.extend(rows.iter().map(|row| row.iter().map(Cell::shown).collect::<Vec<_>>()));
        let width =
            |i: usize| lines.iter().filter_map(|line| line.get(i)).map(|c| c.chars().count()).max().unwrap_or(0);
        let widths: Vec<usize> = (0..columns.len()).map(width).collect();
        let mut lines = lines.iter().map(|line| in_columns(line, columns, &widths));
        let head = lines.next().unwrap_or_default();
        let lines: Vec<String> = lines.collect();
        let named = |row: &Vec<Cell>| {
            columns.iter().zip(row).map(|((name, _), cell)| (*name, cell.whole().to_owned())).collect::<Vec<_>>()
        };
        Rows { head, lines, values: rows.iter().map(named).collect(), more, empty }
    }
}

/// The cells of a row under each other: text to the left, numbers to the right.
fn in_columns(line: &[String], columns: &[Column], widths: &[usize]) -> String {
    let mut out = String::new();
    for (i, cell) in line.iter().enumerate() {
        let (width, is_last) = (widths[i], i + 1 == columns.len());
        // Writing to a string cannot fail.
        let _ = match (columns[i].1, is_last) {
            (true, true) => write!(out, "{cell}"),
            (true, false) => write!(out, "{cell:<width$}  "),
            (false, true) => write!(out, "{cell:>width$}"),
            (false, false) => write!(out, "{cell:>width$}  "),
        };
    }
    out.truncate(out.trim_end_matches(' ').len());
    out
}

/// What the last reload has changed: a sentence, and a line for each setting.
fn changes(now: &Status) -> (String, Vec<String>) {
    let Some(changes) = &now.changes else {
        let none = format!("generation {} is in use; no reload has changed a setting since the start", now.generation);
        return (none, Vec::new());
    };
    let mut head = format!("generation {} is in use; generation {} has changed ", now.generation, changes.generation);
    head.push_str(match now.reduced {
        true => "settings\nthe changed settings are shown only over the admin socket: use --socket",
        false => "these settings (secrets are masked):",
    });
    let line = |line: &String| format!("  {}", printable(&line.replace('→', "->")));
    (head, changes.lines.iter().map(line).collect())
}

/// The operations whose cost is known, for the overview.
pub fn operations(now: &Status) -> String {
    let mut out = String::new();
    let known = now.operations.iter().filter_map(|o| Some((&o.operation, o.seconds?, o.error?)));
    for (i, (operation, seconds, error)) in known.enumerate() {
        if i == 0 {
            out.push_str("\nCPU time of one\n");
        }
        let _ = writeln!(out, "  {operation:<24} {:>10.1} µs ± {:.1} µs", seconds * 1e6, error * 1e6);
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn status() -> Status {
        serde_json::from_value(serde_json::json!({
            "pid": 1, "uptime": 10.0, "generation": 2,
            "places": [
                { "host": "b.example", "per_second": 2.0, "p50": 0.0005, "p99": 1.5, "requests": 20, "part_5xx": 0.5 },
                { "host": "a.example", "per_second": 7.5, "p50": 0.002, "p99": 0.1, "requests": 75 },
            ],
            "tunnel": { "clients": [{ "name": "evil\u{1b}[2J\u{202e}", "transport": "udp" }] },
            "operations": [{ "operation": "request_http1", "seconds": 0.00005, "error": 0.000001 },
                { "operation": "request_http2" }],
            "changes": { "generation": 2, "lines": ["~ lanes = 1 → 2"] },
            "problems": [{ "kind": "dns", "text": "evil\u{1b}[2J", "since": 1, "client": "" }],
        }))
        .unwrap()
    }

    fn first_words(table: Table, sort: Sort) -> Vec<String> {
        let status = status();
        let view = table.view(&Rates::new(&status, None), None, &Plots::default(), sort);
        view.lines().filter_map(|line| line.split_whitespace().next()).map(str::to_owned).collect()
    }

    #[test]
    fn tables_are_sorted_by_any_column() {
        let by = |name| first_words(Table::Hosts, Table::Hosts.sorted_by(name).unwrap());
        assert_eq!(by("host"), ["host", "a.example", "b.example"]);
        assert_eq!(by("per_second"), ["host", "a.example", "b.example"]);
        assert_eq!(by("p99"), ["host", "b.example", "a.example"]);
        assert_eq!(first_words(Table::Hosts, Table::Hosts.usual()), ["host", "a.example", "b.example"]);
        let error = Table::Hosts.sorted_by("nonsense").unwrap_err().to_string();
        assert!(error.contains("per_second") && Table::Overview.sorted_by("host").is_err(), "{error}");
        for table in TABLES {
            let columns = table.columns().len();
            let mut sort = table.usual();
            assert!(columns == 0 || sort.column < columns, "{table:?}");
            (0..columns).for_each(|_| sort = table.next_sort(sort, false));
            assert!(columns == 0 || sort.column == table.usual().column, "{table:?}");
            assert_eq!(table.next_sort(table.next_sort(sort, false), true).column, sort.column, "{table:?}");
        }
    }

    #[test]
    fn empty_tables_say_why() {
        let status = Status::default();
        for table in TABLES.into_iter().filter(|table| *table != Table::Overview) {
            let view = table.view(&Rates::new(&status, None), None, &Plots::default(), table.usual());
            assert!(view.len() > 10 && view.ends_with('\n'), "{table:?}: {view}");
        }
    }

    #[test]
    fn lanes_that_did_not_answer_may_have_open_requests() {
        let status = Status::default();
        let view = |lanes_missing| {
            let open = OpenExchanges { lanes_missing, ..OpenExchanges::default() };
            Table::Requests.view(&Rates::new(&status, None), Some(&open), &Plots::default(), Table::Requests.usual())
        };
        assert_eq!(view(0), "no open requests\n");
        assert!(view(1).starts_with("no open requests in the lanes that answered; "), "{}", view(1));
    }

    #[test]
    fn rows_are_found_by_any_text_in_them() {
        let status = status();
        let shown = |wanted: &str| {
            let rates = Rates::new(&status, None);
            Table::Hosts.shown(&rates, None, &Plots::default(), Table::Hosts.usual(), wanted)
        };
        assert_eq!((shown("").lines.len(), shown("B.EX").lines.len(), shown("75").lines.len()), (2, 1, 1));
        let none = shown("nothing");
        assert!(none.lines.is_empty() && none.empty == "no row has the text \"nothing\"", "{none:?}");
        let one = shown("b.example").values.remove(0);
        assert_eq!(one[0], ("host", "b.example".to_owned()), "a row by itself has all its values");
    }

    #[test]
    fn long_names_are_cut_in_the_table_only() {
        let name = format!("{}.example", "x".repeat(100));
        let status: Status = serde_json::from_value(serde_json::json!({ "places": [{ "host": name }] })).unwrap();
        let rates = Rates::new(&status, None);
        let rows = Table::Hosts.shown(&rates, None, &Plots::default(), Table::Hosts.usual(), "");
        assert!(!rows.lines[0].contains(&name) && rows.lines[0].contains("xx~"), "{rows:?}");
        assert_eq!(rows.values[0][0].1, name);
    }

    #[test]
    fn names_cannot_change_the_terminal() {
        let status = status();
        for table in TABLES {
            let view = table.view(&Rates::new(&status, None), None, &Plots::default(), table.usual());
            assert!(!view.contains(['\u{1b}', '\u{202e}']), "{view:?}");
        }
        let view = Table::Tunnel.view(&Rates::new(&status, None), None, &Plots::default(), Table::Tunnel.usual());
        assert!(view.contains("evil\\u{1b}[2J"), "{view}");
    }

    #[test]
    fn costs_have_their_errors() {
        let text = operations(&status());
        assert!(text.contains("request_http1") && text.contains("50.0 µs ± 1.0 µs"), "{text}");
        assert!(!text.contains("request_http2") && operations(&Status::default()).is_empty());
    }
}
