//! What `sealane top` shows on a terminal, and what keys change of it.

use crate::tables::{Rows, Sort, TABLES, Table};
use crate::top::terminal::Key;

/// Rows of a page.
const PAGE: usize = 10;
/// Columns by which a table is moved to the side.
const SIDE: u16 = 16;

/// What a key leads to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum After {
    /// It is drawn again.
    Go,
    /// It is asked again, and drawn.
    Ask,
    /// The end.
    Quit,
}

/// A row that is shown by itself, with all its values.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Inspected {
    /// By what it is found again: a request's id, or what the first text of the row is.
    pub name: String,
    /// Its values when it was there for the last time.
    pub values: Vec<(&'static str, String)>,
    /// The row no longer exists.
    pub is_gone: bool,
}

/// What is shown.
#[derive(Clone, Debug)]
pub struct App {
    pub table: Table,
    pub sort: Sort,
    /// Only rows with this text.
    pub wanted: String,
    /// Keys are letters of that text.
    pub is_typing: bool,
    pub selected: usize,
    /// Columns that are left out to the left.
    pub side: u16,
    pub inspected: Option<Inspected>,
    pub is_paused: bool,
}

impl App {
    pub fn new(table: Table, sort: Sort) -> Self {
        Self {
            table,
            sort,
            wanted: String::new(),
            is_typing: false,
            selected: 0,
            side: 0,
            inspected: None,
            is_paused: false,
        }
    }

    fn choose(&mut self, table: Table) -> After {
        *self = Self { is_paused: self.is_paused, ..Self::new(table, table.usual()) };
        After::Ask
    }

    /// Takes a key. `rows`: those that are shown.
    pub fn press(&mut self, key: Key, rows: &Rows) -> After {
        if key == Key::Quit {
            return After::Quit;
        }
        if self.is_typing {
            self.type_key(key);
            return After::Go;
        }
        let at = TABLES.iter().position(|table| *table == self.table).unwrap_or(0);
        let last = rows.lines.len().saturating_sub(1);
        match key {
            Key::Char('q' | 'Q') => return After::Quit,
            Key::Escape if self.inspected.take().is_some() => {}
            Key::Escape => self.wanted.clear(),
            Key::Char(digit @ '0'..='9') => {
                let at = digit.to_digit(10).map_or(0, |digit| digit as usize);
                return self.choose(TABLES[at]);
            }
            Key::Char('!') => return self.choose(Table::Problems),
            Key::Char('c') => return self.choose(Table::Clients),
            Key::Tab | Key::Char('n') => return self.choose(TABLES[(at + 1) % TABLES.len()]),
            Key::BackTab | Key::Char('p') => return self.choose(TABLES[(at + TABLES.len() - 1) % TABLES.len()]),
            Key::Char('s') => self.sort = self.table.next_sort(self.sort, false),
            Key::Char('S') => self.sort = self.table.next_sort(self.sort, true),
            Key::Char('r') => self.sort.falling = !self.sort.falling,
            Key::Char('/') => {
                self.wanted.clear();
                self.is_typing = true;
            }
            Key::Char(' ') => {
                self.is_paused = !self.is_paused;
                return After::Ask;
            }
            Key::Enter => {
                self.inspected = rows.values.get(self.selected).map(|values| Inspected {
                    name: name_of(self.table, values),
                    values: values.clone(),
                    is_gone: false,
                });
            }
            Key::Up | Key::Char('k') => self.selected = self.selected.saturating_sub(1),
            Key::Down | Key::Char('j') => self.selected = (self.selected + 1).min(last),
            Key::PageUp => self.selected = self.selected.saturating_sub(PAGE),
            Key::PageDown => self.selected = (self.selected + PAGE).min(last),
            Key::Home => self.selected = 0,
            Key::End => self.selected = last,
            Key::Left => self.side = self.side.saturating_sub(SIDE),
            Key::Right => self.side = self.side.saturating_add(SIDE),
            _ => {}
        }
        After::Go
    }

    fn type_key(&mut self, key: Key) {
        self.selected = 0;
        match key {
            Key::Enter => self.is_typing = false,
            Key::Escape => {
                self.is_typing = false;
                self.wanted.clear();
            }
            Key::Backspace => {
                self.wanted.pop();
            }
            Key::Char(c) => self.wanted.push(c),
            _ => {}
        }
    }

    /// Other rows are shown: the selected one is among them, and an inspected one has its newest values.
    pub fn update(&mut self, rows: &Rows) {
        self.selected = self.selected.min(rows.lines.len().saturating_sub(1));
        let table = self.table;
        if let Some(inspected) = &mut self.inspected {
            match rows.values.iter().find(|values| name_of(table, values) == inspected.name) {
                Some(values) => inspected.values.clone_from(values),
                None => inspected.is_gone = true,
            }
        }
    }
}

/// By what a row is found again among others: a request by its id, another row by its texts, which do not change each second.
fn name_of(table: Table, values: &[(&'static str, String)]) -> String {
    let wanted: &[&str] = match table {
        Table::Requests => &["id"],
        Table::Hosts => &["host", "route", "upstream"],
        Table::Servers => &["upstream", "server"],
        Table::Errors => &["request"],
        Table::Limits => &["what"],
        Table::Operations => &["operation"],
        Table::Certificates => &["file"],
        Table::Tunnel => &["name"],
        Table::Problems => &["kind", "problem"],
        Table::Clients => &["client"],
        Table::Overview | Table::Changes => &["change"],
    };
    let values = values.iter().filter(|(name, _)| wanted.contains(name)).map(|(_, value)| value.as_str());
    values.collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rows(names: &[&str]) -> Rows {
        Rows {
            lines: names.iter().map(|name| (*name).to_owned()).collect(),
            values: names.iter().map(|name| vec![("host", (*name).to_owned()), ("p99", "1 ms".to_owned())]).collect(),
            ..Rows::default()
        }
    }

    fn pressed(app: &mut App, rows: &Rows, keys: &str) -> Vec<After> {
        keys.chars().map(|c| app.press(if c == '\n' { Key::Enter } else { Key::Char(c) }, rows)).collect()
    }

    fn hosts() -> App {
        App::new(Table::Hosts, Table::Hosts.usual())
    }

    #[test]
    fn keys_choose_tables_and_their_order() {
        let (mut app, none) = (App::new(Table::Overview, Table::Overview.usual()), Rows::default());
        assert_eq!(pressed(&mut app, &none, "1"), [After::Ask]);
        assert_eq!(app.table, Table::Hosts);
        pressed(&mut app, &none, "sr");
        assert_eq!(app.sort, Sort { column: 4, falling: false });
        pressed(&mut app, &none, "S");
        assert_eq!(app.sort.column, 3);
        app.press(Key::Tab, &none);
        assert_eq!(app.table, Table::Servers);
        app.press(Key::BackTab, &none);
        assert_eq!(app.table, Table::Hosts);
        pressed(&mut app, &none, "!");
        assert_eq!(app.table, Table::Problems);
        pressed(&mut app, &none, "c");
        assert_eq!(app.table, Table::Clients);
        let before = app.clone();
        assert_eq!((app.press(Key::Other, &none), app.table), (After::Go, before.table));
        assert_eq!([app.press(Key::Char('q'), &none), app.press(Key::Quit, &none)], [After::Quit, After::Quit]);
    }

    #[test]
    fn rows_are_selected_within_the_table() {
        let (mut app, three) = (hosts(), rows(&["a", "b", "c"]));
        for (key, wanted) in [
            (Key::Down, 1),
            (Key::Down, 2),
            (Key::Down, 2),
            (Key::Home, 0),
            (Key::Up, 0),
            (Key::PageDown, 2),
            (Key::PageUp, 0),
            (Key::End, 2),
        ] {
            app.press(key, &three);
            assert_eq!(app.selected, wanted, "{key:?}");
        }
        app.update(&rows(&["a"]));
        assert_eq!(app.selected, 0, "there are fewer now");
        app.press(Key::Down, &Rows::default());
        assert_eq!(app.selected, 0);
    }

    #[test]
    fn letters_of_a_search_are_no_keys() {
        let (mut app, none) = (hosts(), Rows::default());
        assert_eq!(pressed(&mut app, &none, "/q1"), [After::Go; 3]);
        assert_eq!((app.wanted.as_str(), app.table), ("q1", Table::Hosts));
        app.press(Key::Backspace, &none);
        pressed(&mut app, &none, "\n");
        assert_eq!((app.wanted.as_str(), app.is_typing), ("q", false));
        app.press(Key::Escape, &none);
        assert_eq!(app.wanted, "");
        pressed(&mut app, &none, "/x");
        app.press(Key::Escape, &none);
        assert_eq!((app.wanted.as_str(), app.is_typing), ("", false));
        assert_eq!(app.press(Key::Quit, &none), After::Quit);
    }

    #[test]
    fn a_row_is_inspected_until_it_is_gone() {
        let (mut app, two) = (hosts(), rows(&["a", "b"]));
        app.press(Key::Down, &two);
        app.press(Key::Enter, &two);
        assert_eq!(app.inspected.as_ref().map(|row| row.name.as_str()), Some("b"));
        let mut newer = rows(&["b", "a"]);
        newer.values[0][1].1 = "2 ms".to_owned();
        app.update(&newer);
        assert_eq!(app.inspected.as_ref().map(|row| row.values[1].1.as_str()), Some("2 ms"), "it is found again");
        app.update(&rows(&["a"]));
        assert!(app.inspected.as_ref().is_some_and(|row| row.is_gone && row.values[1].1 == "2 ms"));
        app.press(Key::Escape, &two);
        assert_eq!(app.inspected, None);
        app.press(Key::Enter, &Rows::default());
        assert_eq!(app.inspected, None, "there is none");
    }
}
