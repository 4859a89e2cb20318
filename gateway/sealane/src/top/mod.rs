//! `sealane top`: the gateway's status again and again, as text or on a terminal with keys.
//!
//! `rates` and `history` know what has changed since, `overview` and `crate::tables` make text of it. On a terminal, `app` has what is
//! chosen by keys, `draw` draws it, and `terminal` has the terminal's modes. Elsewhere one text follows the other.

mod app;
mod draw;
pub mod history;
mod overview;
pub mod rates;
mod terminal;

use crate::debug::printable;
use crate::running::{AtEither, SOON, fetch, span};
use crate::tables::{Rows, Sort, Table};
use anyhow::{Context as _, Result};
use app::{After, App};
use draw::Shown;
use history::Plots;
use ratatui::Terminal;
use rates::Rates;
use sealane_control::admin::ask::{Where, ask};
use sealane_control::metrics::problems::ProblemStatus;
use sealane_control::metrics::status::Status;
use sealane_control::run::inspection::OpenExchanges;
use std::io::{self, Write as _};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};
use terminal::{Keys, Screen};

/// Requests under way that are shown.
const OPEN: usize = 100;

/// The problems that there are now.
pub fn problems_now(now: &Status) -> impl Iterator<Item = &ProblemStatus> {
    now.problems.iter().filter(|problem| problem.until.is_none())
}

/// A line for each problem that there is now.
pub fn problem_lines(now: &Status) -> Vec<String> {
    let seconds = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
    let line = |problem: &ProblemStatus| {
        let client = match problem.client.as_deref() {
            None => String::new(),
            Some("") => " The client's address is shown only over the admin socket (--socket).".to_owned(),
            Some(address) => format!(" Client: {address}."),
        };
        let text = printable(&problem.text);
        format!("PROBLEM  {text}{client} (for {})", span(seconds.saturating_sub(problem.since)))
    };
    problems_now(now).map(line).collect()
}

/// What the gateway has said.
#[derive(Default)]
struct Answers {
    status: Status,
    before: Option<Status>,
    open: Option<OpenExchanges>,
    plots: Plots,
}

impl Answers {
    /// Asks for all that a table needs.
    fn ask(&mut self, at: &Where, table: Table, is_first: bool) -> Result<()> {
        let (status, _) = fetch(at)?;
        // Only the socket tells them.
        self.open = match at {
            Where::Socket(_) if table == Table::Requests => {
                let text = ask(at, "GET", &format!("/v1/exchanges?limit={OPEN}"), SOON)?;
                Some(serde_json::from_str::<OpenExchanges>(&text).context("the response is not a list of requests")?)
            }
            _ => None,
        };
        if matches!(table, Table::Overview | Table::Operations) {
            // An older gateway has none, which is no reason to show nothing.
            if let Ok(text) = ask(at, "GET", &self.plots.question(), SOON) {
                self.plots.add(&text)?;
            }
        }
        let before = std::mem::replace(&mut self.status, status);
        self.before = (!is_first).then_some(before);
        Ok(())
    }

    fn rates(&self) -> Rates<'_> {
        Rates::new(&self.status, self.before.as_ref())
    }
}

/// Shows the status until a key ends it, or `rounds` times.
pub fn run(at: AtEither, interval: Duration, rounds: Option<u64>, table: Table, sort: Option<&str>) -> Result<()> {
    let sort = sort.map_or_else(|| Ok(table.usual()), |name| table.sorted_by(name))?;
    let at = at.place();
    match Screen::new() {
        Some(screen) => on_terminal(&at, screen?, interval, rounds, App::new(table, sort)),
        None => as_text(&at, interval, rounds, table, sort),
    }
}

fn as_text(at: &Where, interval: Duration, rounds: Option<u64>, table: Table, sort: Sort) -> Result<()> {
    let mut answers = Answers::default();
    let mut round = 0;
    loop {
        answers.ask(at, table, round == 0)?;
        let text = match table {
            Table::Overview => overview::view(&answers.status, answers.before.as_ref()),
            table => table.view(&answers.rates(), answers.open.as_ref(), &answers.plots, sort),
        };
        match writeln!(io::stdout(), "{text}").and_then(|()| io::stdout().flush()) {
            // A reader that has enough (`| head`) is no failure.
            Err(e) if e.kind() == io::ErrorKind::BrokenPipe => return Ok(()),
            written => written?,
        }
        round += 1;
        if rounds.is_some_and(|rounds| round >= rounds) {
            return Ok(());
        }
        std::thread::sleep(interval);
    }
}

fn on_terminal(
    at: &Where,
    screen: Screen<io::Stdout>,
    interval: Duration,
    rounds: Option<u64>,
    mut app: App,
) -> Result<()> {
    let mut terminal = Terminal::new(screen)?;
    let keys = Keys::new();
    let (mut answers, mut round) = (Answers::default(), 0);
    // The first answer tells whether there is a gateway at all.
    answers.ask(at, app.table, true)?;
    let (mut asked, mut trouble) = (Instant::now(), None);
    loop {
        let rates = answers.rates();
        let rows = match app.table {
            Table::Overview => Rows::default(),
            table => table.shown(&rates, answers.open.as_ref(), &answers.plots, app.sort, &app.wanted),
        };
        app.update(&rows);
        let shown = Shown { app: &app, rates: &rates, rows: &rows, plots: &answers.plots, trouble: trouble.as_deref() };
        terminal.draw(|frame| draw::draw(frame, &shown))?;
        let left = interval.saturating_sub(asked.elapsed());
        let key = match &keys {
            Some(keys) => keys.next(left),
            None => {
                std::thread::sleep(left);
                None
            }
        };
        let after = match key {
            Some(key) => app.press(key, &rows),
            None => {
                round += 1;
                if rounds.is_some_and(|rounds| round >= rounds) {
                    return Ok(());
                }
                asked = Instant::now();
                if app.is_paused { After::Go } else { After::Ask }
            }
        };
        match after {
            After::Quit => return Ok(()),
            After::Go => {}
            After::Ask => {
                // A gateway that restarts is asked again; what it has said stays until then.
                trouble = answers.ask(at, app.table, false).err().map(|error| format!("{error:#}"));
                asked = Instant::now();
            }
        }
    }
}
