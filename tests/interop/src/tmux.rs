//! A terminal: tmux, in which a program runs, keys are pressed and the screen is read, as text or as a page that shows its colours.

use crate::eventually;
use crate::process;
use std::path::{Path, PathBuf};
use std::process::Command;

/// A terminal with one program; it ends with the test.
pub struct Tmux {
    program: PathBuf,
    socket: PathBuf,
    folder: PathBuf,
}

impl Tmux {
    /// A terminal of this size, in which a shell runs a script.
    #[track_caller]
    pub fn start(program: &Path, folder: &Path, (width, height): (u16, u16), script: &str) -> Self {
        let terminal =
            Self { program: program.to_owned(), socket: folder.join("tmux.sock"), folder: folder.to_owned() };
        let size = [width.to_string(), height.to_string()];
        terminal.ask(&["-f", "/dev/null", "new-session", "-d", "-x", &size[0], "-y", &size[1], "sh", "-c", script]);
        terminal
    }

    /// Runs a command of tmux, and returns what it says.
    #[track_caller]
    pub fn ask(&self, arguments: &[&str]) -> String {
        let mut command = Command::new(&self.program);
        // A server of its own, which knows no configuration.
        command.arg("-S").arg(&self.socket).arg("-u").args(arguments).current_dir(&self.folder);
        command.env("LC_ALL", "C.UTF-8").env("TERM", "xterm-256color").env_remove("TMUX");
        let said = process::run(&mut command, b"");
        assert!(said.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&said.stderr));
        String::from_utf8_lossy(&said.stdout).into_owned()
    }

    /// What is on the screen.
    #[track_caller]
    pub fn screen(&self) -> String {
        self.ask(&["capture-pane", "-p"])
    }

    /// What is on the screen, with the escape sequences of its colours: for [`plain`] and [`page`].
    #[track_caller]
    pub fn coloured(&self) -> String {
        self.ask(&["capture-pane", "-p", "-e"])
    }

    /// Presses keys, by tmux's names: `Tab`, `Enter`, `Escape`, `C-c`, `Down`, or letters.
    #[track_caller]
    pub fn press(&self, keys: &[&str]) {
        self.ask(&[&["send-keys"], keys].concat());
    }

    /// A value of the terminal's: `alternate_on`, `cursor_flag`.
    #[track_caller]
    pub fn value(&self, name: &str) -> String {
        self.ask(&["display-message", "-p", &format!("#{{{name}}}")]).trim().to_owned()
    }

    /// Waits until the screen has all of these texts.
    #[track_caller]
    pub fn shows(&self, texts: &[&str]) {
        let all = || {
            let screen = self.screen();
            texts.iter().all(|text| screen.contains(text))
        };
        assert!(eventually(all), "the screen never has {texts:?}:\n{}", self.screen());
    }

    /// Waits until none of these texts is on the screen.
    #[track_caller]
    pub fn hides(&self, texts: &[&str]) {
        let none = || {
            let screen = self.screen();
            !texts.iter().any(|text| screen.contains(text))
        };
        assert!(eventually(none), "the screen always has one of {texts:?}:\n{}", self.screen());
    }
}

/// How characters look: what escape sequences have set.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Style {
    bold: bool,
    dim: bool,
    underlined: bool,
    reversed: bool,
    /// One of the eight colours of a terminal.
    colour: Option<u8>,
}

impl Style {
    fn set(&mut self, code: u8) {
        match code {
            0 => *self = Self::default(),
            1 => self.bold = true,
            2 => self.dim = true,
            4 => self.underlined = true,
            7 => self.reversed = true,
            30..=37 => self.colour = Some(code - 30),
            39 => self.colour = None,
            _ => {}
        }
    }
}

/// The parts of a screen that look alike.
fn parts(screen: &str) -> Vec<(Style, String)> {
    let (mut style, mut found) = (Style::default(), Vec::new());
    let mut rest = screen.trim_end();
    while let Some((text, after)) = rest.split_once("\x1b[") {
        found.push((style, text.to_owned()));
        let end = after.find(|c: char| c.is_ascii_alphabetic()).unwrap_or(after.len());
        let (codes, behind) = after.split_at(end);
        if behind.starts_with('m') {
            codes.split(';').for_each(|code| style.set(code.parse().unwrap_or(0)));
        }
        rest = behind.get(1..).unwrap_or_default();
    }
    found.push((style, rest.to_owned()));
    found
}

/// A screen with colours as text alone.
pub fn plain(screen: &str) -> String {
    parts(screen).into_iter().map(|(_, text)| text).collect()
}

/// A screen with colours as a page, on which it is the element `screen`.
pub fn page(screen: &str) -> String {
    const PAPER: &str = "#16191d";
    const INK: &str = "#d5d9de";
    const COLOURS: [&str; 8] = ["#5c6370", "#ff7b72", "#7ee787", "#e3b341", "#79c0ff", "#d2a8ff", "#76e3ea", "#ffffff"];
    let mut html = format!(
        "<!doctype html><meta charset=\"utf-8\"><style>body {{ margin: 0; background: {PAPER}; color: {INK} }} #screen {{ margin: 0; \
         padding: 8px 10px; width: max-content; font: 13px/15px \"DejaVu Sans Mono\", monospace }}</style><pre id=\"screen\">"
    );
    for (style, text) in parts(screen) {
        let ink = style.colour.map_or(INK, |colour| COLOURS[usize::from(colour)]);
        let (ink, paper) = if style.reversed { (PAPER, ink) } else { (ink, PAPER) };
        let mut css = format!("color: {ink}; background: {paper}");
        for (is_set, rule) in [
            (style.bold, "font-weight: bold"),
            (style.dim, "opacity: 0.65"),
            (style.underlined, "text-decoration: underline"),
        ] {
            if is_set {
                css = format!("{css}; {rule}");
            }
        }
        let text = text.replace('&', "&amp;").replace('<', "&lt;");
        html.push_str(&format!("<span style=\"{css}\">{text}</span>"));
    }
    html + "</pre>"
}

impl Drop for Tmux {
    fn drop(&mut self) {
        // The server at this test's own socket.
        let _ = Command::new(&self.program).arg("-S").arg(&self.socket).arg("kill-server").output();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_screen_with_colours_is_text_and_a_page() {
        let screen = "one \x1b[1m\x1b[31mbad <x>\x1b[39m\x1b[0m two\n\x1b[7m0\x1b[0;2m 1\x1b[0m\n\n";
        assert_eq!(plain(screen), "one bad <x> two\n0 1");
        let page = page(screen);
        for part in
            ["#ff7b72", "bad &lt;x>", "font-weight: bold", "opacity: 0.65", "color: #16191d; background: #d5d9de"]
        {
            assert!(page.contains(part), "{part}: {page}");
        }
    }
}
