//! What a run of `cargo xtask fleet` has measured: as raw data (JSON), and as the tables of `docs/measurements/fleet/README.md`, each with
//! the comment that says how its cells are computed from the raw data.

use anyhow::Context;
use serde::Serialize;
use serde_json::Value;
use std::fmt::Write;
use std::path::Path;

/// The page, from the root of the repository.
pub const PAGE: &str = "docs/measurements/fleet/README.md";
/// The folder of raw data beside the page.
const DATA: &str = "data";
/// What follows this line of the page is written by `--store`.
const RESULTS: &str = "## Results\n";

/// A run.
#[derive(Debug, Default, Serialize)]
pub struct Run {
    /// When it began.
    pub date: String,
    /// Of the program.
    pub commit: String,
    /// The processor, and how many of them this process may use.
    pub processors: String,
    /// The store's server.
    pub store: String,
    /// One fleet after the other.
    pub fleets: Vec<Record>,
}

/// What was measured with a number of gateways.
#[derive(Debug, Default, Serialize)]
pub struct Record {
    /// This number.
    pub gateways: usize,
    /// Until all gateways were started, one after the other, and connected to the store.
    pub start_ms: f64,
    /// The memory of the gateways after the start.
    pub memory: Memory,
    /// The load of the store without clients.
    pub idle: StoreLoad,
    /// The load of the store with clients.
    pub busy: StoreLoad,
    /// Rotation of the ticket key.
    pub rotation: Rotation,
    /// The rate limit.
    pub limit: Limit,
    /// The roll-out of a configuration.
    pub roll_out: Moments,
    /// The upgrades, one after the other.
    pub upgrades: Moments,
    /// The restart of the store without its data.
    pub empty_store: EmptyStore,
    /// Whole answers during the roll-out, the upgrades and the restart of the store.
    pub requests: u64,
    /// Their connections.
    pub connections: u64,
    /// How long everything took.
    pub seconds: f64,
    /// What went wrong.
    pub problems: Vec<String>,
}

/// When gateways had done something, in milliseconds.
#[derive(Debug, Default, Serialize)]
pub struct Moments {
    /// The first gateway.
    pub first_ms: f64,
    /// Half of the gateways.
    pub median_ms: f64,
    /// The last gateway.
    pub last_ms: f64,
    /// All gateways.
    pub each_ms: Vec<f64>,
}

impl Moments {
    /// In any order.
    pub fn of(mut each_ms: Vec<f64>) -> anyhow::Result<Self> {
        each_ms.sort_unstable_by(f64::total_cmp);
        let median_ms = *each_ms.get(each_ms.len() / 2).context("there are no gateways")?;
        Ok(Self { first_ms: each_ms[0], median_ms, last_ms: each_ms[each_ms.len() - 1], each_ms })
    }
}

/// The memory of the gateways.
#[derive(Debug, Default, Serialize)]
pub struct Memory {
    /// Of the gateway that uses most, with the pages that it shares with others.
    pub largest_resident_mib: f64,
    /// All gateways together, with each shared page once.
    pub all_mib: f64,
}

/// What the store has to do.
#[derive(Debug, Default, Serialize)]
pub struct StoreLoad {
    /// How long it was watched.
    pub seconds: f64,
    /// Requests with an API key, to all gateways.
    pub requests_per_second: f64,
    /// New connections, to all gateways.
    pub connections_per_second: f64,
    /// Commands of all gateways.
    pub commands_per_second: f64,
    /// The same, divided by the number of gateways.
    pub commands_per_second_and_gateway: f64,
    /// What the store received.
    pub received_bytes_per_second: f64,
    /// What the store sent.
    pub sent_bytes_per_second: f64,
    /// Of one processor.
    pub cpu_percent: f64,
    /// The store's `used_memory`, at the end.
    pub memory_mib: f64,
    /// Values in the store, at the end.
    pub values: u64,
}

/// How a new ticket key came to all gateways, and into use.
#[derive(Debug, Default, Serialize)]
pub struct Rotation {
    /// When each gateway had the key.
    pub distributed: Moments,
    /// When each gateway used it.
    pub used: Moments,
    /// From the first gateway that had the key to the last one.
    pub distribution_ms: f64,
    /// From the last gateway that had the key to the first one that used it.
    pub reserve_ms: f64,
    /// From the first gateway that used the key to the last one: meanwhile, gateways issue tickets with different keys.
    pub disagreement_ms: f64,
    /// Sessions of one gateway that another one resumed meanwhile.
    pub resumed: u64,
    /// Sessions that another one did not resume.
    pub not_resumed: u64,
}

/// What passed a rate limit that gateways hold together.
#[derive(Debug, Default, Serialize)]
pub struct Limit {
    /// How long requests were sent.
    pub seconds: f64,
    /// Requests.
    pub sent: u64,
    /// Those that passed.
    pub passed: u64,
    /// The burst, and the rate times the time.
    pub allowed: f64,
    /// What passed beyond.
    pub excess: f64,
    /// What may pass beyond, by the documentation.
    pub bound: f64,
    /// What passed in the first second.
    pub passed_in_the_first_second: u64,
    /// What passed in each second.
    pub passed_each_second: Vec<u64>,
}

/// What followed when the store was killed and came back without data.
#[derive(Debug, Default, Serialize)]
pub struct EmptyStore {
    /// When each gateway had noticed that the store was away, after its end.
    pub noticed: Moments,
    /// When each gateway was connected again, after the start of the new store.
    pub connected: Moments,
    /// When the new store had the ticket keys, too.
    pub keys_ms: f64,
    /// The commands that the new store had executed by then.
    pub commands: f64,
    /// Sessions from before that were resumed: one at each gateway.
    pub resumed: u64,
    /// Gateways that noticed one restart.
    pub noticed_restart: u64,
}

/// A column of a table: its title, where its value is in the data of a fleet, and the digits after the point.
type Column = (&'static str, &'static str, usize);

/// The tables, with their titles.
const TABLES: [(&str, &[Column]); 6] = [
    (
        "A new configuration for all gateways, and a rolling upgrade",
        &[
            ("configuration: first gateway, ms", "roll_out > first_ms", 0),
            ("median, ms", "roll_out > median_ms", 0),
            ("last gateway, ms", "roll_out > last_ms", 0),
            ("upgrade of one gateway: median, ms", "upgrades > median_ms", 0),
            ("longest, ms", "upgrades > last_ms", 0),
            ("requests served", "requests", 0),
        ],
    ),
    (
        "Rotation of the ticket key",
        &[
            ("all have the key after the first has it, ms", "rotation > distribution_ms", 0),
            ("first use after all have the key, ms", "rotation > reserve_ms", 0),
            ("all use the key after the first uses it, ms", "rotation > disagreement_ms", 0),
            ("sessions resumed at another gateway", "rotation > resumed", 0),
            ("not resumed", "rotation > not_resumed", 0),
        ],
    ),
    (
        "A rate limit of all gateways together",
        &[
            ("seconds", "limit > seconds", 0),
            ("requests sent", "limit > sent", 0),
            ("passed", "limit > passed", 0),
            ("allowed", "limit > allowed", 0),
            ("passed beyond", "limit > excess", 0),
            ("bound", "limit > bound", 0),
            ("passed in the first second", "limit > passed_in_the_first_second", 0),
        ],
    ),
    (
        "Load of the store without clients",
        &[
            ("commands per second", "idle > commands_per_second", 1),
            ("per gateway", "idle > commands_per_second_and_gateway", 2),
            ("bytes received per second", "idle > received_bytes_per_second", 0),
            ("bytes sent per second", "idle > sent_bytes_per_second", 0),
            ("CPU, %", "idle > cpu_percent", 2),
            ("memory, MiB", "idle > memory_mib", 2),
        ],
    ),
    (
        "Load of the store with clients",
        &[
            ("requests with a key per second", "busy > requests_per_second", 0),
            ("new connections per second", "busy > connections_per_second", 1),
            ("commands per second", "busy > commands_per_second", 0),
            ("per gateway", "busy > commands_per_second_and_gateway", 1),
            ("bytes received per second", "busy > received_bytes_per_second", 0),
            ("bytes sent per second", "busy > sent_bytes_per_second", 0),
            ("CPU, %", "busy > cpu_percent", 1),
            ("memory, MiB", "busy > memory_mib", 2),
        ],
    ),
    (
        "The store is killed and started again without data; memory of the gateways",
        &[
            ("last gateway has noticed the end, ms", "empty_store > noticed > last_ms", 0),
            ("last gateway is connected again, ms", "empty_store > connected > last_ms", 0),
            ("the store has the keys again, ms", "empty_store > keys_ms", 0),
            ("commands until then", "empty_store > commands", 0),
            ("earlier sessions resumed", "empty_store > resumed", 0),
            ("memory of all gateways, MiB", "memory > all_mib", 0),
        ],
    ),
];

/// The end of the page: the run, and its tables.
fn results(run: &Value, file: &str) -> anyhow::Result<String> {
    let text = |key: &str| run[key].as_str().with_context(|| format!("the raw data have no {key}"));
    let fleets = run["fleets"].as_array().context("the raw data have no fleets")?;
    let rows: Vec<String> = fleets.iter().map(|fleet| format!("fleets > [gateways={}]", fleet["gateways"])).collect();
    let mut out = String::new();
    let (date, commit, processors, store) = (text("date")?, text("commit")?, text("processors")?, text("store")?);
    let _ = writeln!(out, "The run began on {date}, with commit {commit}.\n");
    let _ = writeln!(out, "- processors: {processors}\n- store: {store}\n- raw data: [{file}]({file})");
    for (title, columns) in TABLES {
        let _ = write!(out, "\n### {title}\n\n<!-- data: {file}\nrows: {}\n", rows.join(" | "));
        for (n, (_, path, digits)) in columns.iter().enumerate() {
            let _ = writeln!(out, "column {}: {{value($row > {path}):.{digits}}}", n + 2);
        }
        let titles: Vec<&str> = columns.iter().map(|(title, ..)| *title).collect();
        let _ = writeln!(out, "-->\n\n| gateways | {} |\n|{}", titles.join(" | "), "---|".repeat(columns.len() + 1));
        for fleet in fleets {
            let _ = write!(out, "| {} |", fleet["gateways"]);
            for (_, path, digits) in columns {
                let value = path.split(" > ").try_fold(fleet, |value, key| value.get(key)).and_then(Value::as_f64);
                let value = value.with_context(|| format!("the raw data have no {path}"))?;
                // Halves are rounded up, as the check of the tables does.
                let _ = write!(out, " {:.*} |", *digits, value * (1.0 + 1e-12));
            }
            out.push('\n');
        }
    }
    Ok(out)
}

/// The raw data as it is stored.
pub fn json(run: &Run) -> anyhow::Result<String> {
    Ok(serde_json::to_string_pretty(run)? + "\n")
}

/// Stores a run in the repository: the raw data in a file, and the tables on the page.
pub fn store(root: &Path, run: &Run) -> anyhow::Result<()> {
    let day = run.date.split(' ').next().unwrap_or_default();
    let (page, file) = (root.join(PAGE), format!("{DATA}/{day}.json"));
    let text = std::fs::read_to_string(&page).context(PAGE)?;
    let (before, _) = text.split_once(RESULTS).with_context(|| format!("{PAGE} has no line {RESULTS:?}"))?;
    let results = results(&serde_json::to_value(run)?, &file)?;
    let raw = page.with_file_name(&file);
    std::fs::create_dir_all(page.with_file_name(DATA)).context(DATA)?;
    std::fs::write(&raw, json(run)?).with_context(|| raw.display().to_string())?;
    std::fs::write(&page, format!("{before}{RESULTS}\n{results}")).context(PAGE)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn moments_are_in_order() {
        let moments = Moments::of(vec![3.0, 1.0, 2.0]).expect("there are some");
        assert_eq!((moments.first_ms, moments.median_ms, moments.last_ms), (1.0, 2.0, 3.0));
        assert_eq!(moments.each_ms, [1.0, 2.0, 3.0]);
        assert!(Moments::of(Vec::new()).is_err());
    }

    #[test]
    fn each_column_is_in_the_raw_data_and_says_where() {
        let of = |gateways| Record { gateways, requests: 7, ..Record::default() };
        let run = Run { fleets: vec![of(3), of(10)], ..Run::default() };
        let text = results(&serde_json::to_value(&run).expect("it is JSON"), "data/x.json").expect("it is complete");
        assert_eq!(
            text.matches("<!-- data: data/x.json\nrows: fleets > [gateways=3] | fleets > [gateways=10]\n").count(),
            6
        );
        assert!(text.contains("column 7: {value($row > requests):.0}\n-->\n"), "{text}");
        assert!(text.contains("\n| 3 | 0 | 0 | 0 | 0 | 0 | 7 |\n| 10 | 0 | 0 | 0 | 0 | 0 | 7 |\n"), "{text}");
    }

    #[test]
    fn a_run_replaces_what_follows_the_results() {
        let folder = tempfile::tempdir().expect("a folder can be made");
        let page = folder.path().join(PAGE);
        std::fs::create_dir_all(page.parent().expect("it is in a folder")).expect("our own folder");
        std::fs::write(&page, "# Fleet\n\n## Results\n\nNo run.\n").expect("our own folder");
        let fleets = vec![Record { gateways: 3, ..Record::default() }];
        let run = Run { date: "2026-12-01 10:00".to_owned(), commit: "abc".to_owned(), fleets, ..Run::default() };
        for _ in 0..2 {
            store(folder.path(), &run).expect("the page has results");
            let text = std::fs::read_to_string(&page).expect("it was written");
            assert!(
                text.starts_with("# Fleet\n\n## Results\n\nThe run began on 2026-12-01 10:00, with commit abc.\n"),
                "{text}"
            );
            assert_eq!(text.matches("## Results\n").count(), 1);
        }
        assert!(page.with_file_name("data/2026-12-01.json").is_file());
    }
}
