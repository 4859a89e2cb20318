//! The terminal: its modes, its keys, and what `ratatui` draws on.
//!
//! All that is written are sequences that every terminal of the last decades knows (ECMA-48, and xterm's alternate screen).

use ratatui::backend::{Backend, ClearType, WindowSize};
use ratatui::buffer::Cell;
use ratatui::layout::{Position, Size};
use ratatui::style::{Color, Modifier};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::termios::{LocalModes, OptionalActions, Termios, tcgetattr, tcgetwinsize, tcsetattr};
use std::io::{self, IsTerminal, Write};
use std::time::Duration;

/// Where the terminal does not say how large it is.
const USUAL: Size = Size { width: 80, height: 24 };
/// How long the rest of a key is waited for that begins with an escape character.
const REST_OF_KEY: Duration = Duration::from_millis(50);

/// A key that is pressed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Key {
    Char(char),
    Enter,
    Escape,
    Backspace,
    Tab,
    BackTab,
    Up,
    Down,
    Left,
    Right,
    PageUp,
    PageDown,
    Home,
    End,
    /// Ctrl-C, Ctrl-D, or the end of the input.
    Quit,
    /// One that has no meaning here.
    Other,
}

/// The keyboard: each key as it is pressed, until this is dropped.
pub struct Keys {
    before: Termios,
}

impl Keys {
    /// `None` where nobody presses keys: the input is no terminal.
    pub fn new() -> Option<Self> {
        if !io::stdin().is_terminal() {
            return None;
        }
        let before = tcgetattr(io::stdin()).ok()?;
        let mut changed = before.clone();
        // Lines are not edited, keys not shown; Ctrl-C is a key, so that the terminal is as before when this ends.
        changed.local_modes -= LocalModes::ICANON | LocalModes::ECHO | LocalModes::ISIG;
        tcsetattr(io::stdin(), OptionalActions::Now, &changed).ok()?;
        Some(Self { before })
    }

    /// The next key, if one is pressed within this time.
    pub fn next(&self, within: Duration) -> Option<Key> {
        let first = byte(within)?;
        let mut rest = || byte(REST_OF_KEY);
        Some(decode(first, &mut rest))
    }
}

impl Drop for Keys {
    fn drop(&mut self) {
        let _ = tcsetattr(io::stdin(), OptionalActions::Now, &self.before);
    }
}

/// What has come from the keyboard.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Input {
    Byte(u8),
    /// The terminal is gone.
    End,
}

fn byte(within: Duration) -> Option<Input> {
    let stdin = io::stdin();
    let time = Timespec { tv_sec: within.as_secs() as i64, tv_nsec: i64::from(within.subsec_nanos()) };
    let mut waits = [PollFd::new(&stdin, PollFlags::IN)];
    if poll(&mut waits, Some(&time)).unwrap_or(0) == 0 {
        return None;
    }
    let mut byte = [0];
    match rustix::io::read(&stdin, &mut byte) {
        Ok(1) => Some(Input::Byte(byte[0])),
        Ok(_) => Some(Input::End),
        Err(_) => None,
    }
}

/// A key from its first byte and those that follow at once.
fn decode(first: Input, rest: &mut dyn FnMut() -> Option<Input>) -> Key {
    let Input::Byte(first) = first else { return Key::Quit };
    match first {
        0x03 | 0x04 => Key::Quit,
        b'\t' => Key::Tab,
        b'\r' | b'\n' => Key::Enter,
        0x08 | 0x7f => Key::Backspace,
        0x1b => match rest() {
            Some(Input::Byte(b'[' | b'O')) => sequence(rest),
            Some(_) => Key::Other,
            None => Key::Escape,
        },
        b' '..=b'~' => Key::Char(char::from(first)),
        // A character of UTF-8, whose other bytes follow.
        0xc2..=0xf4 => {
            let length = if first >= 0xf0 {
                4
            } else if first >= 0xe0 {
                3
            } else {
                2
            };
            let mut bytes = vec![first];
            while bytes.len() < length
                && let Some(Input::Byte(next)) = rest()
            {
                bytes.push(next);
            }
            std::str::from_utf8(&bytes).ok().and_then(|text| text.chars().next()).map_or(Key::Other, Key::Char)
        }
        _ => Key::Other,
    }
}

/// The rest of a control sequence (ECMA-48 §5.4): parameters, and the final byte.
fn sequence(rest: &mut dyn FnMut() -> Option<Input>) -> Key {
    let mut parameters = Vec::new();
    // None that a keyboard sends is longer.
    for _ in 0..16 {
        let Some(Input::Byte(byte)) = rest() else { return Key::Other };
        match byte {
            b'0'..=b'?' => parameters.push(byte),
            b'A' => return Key::Up,
            b'B' => return Key::Down,
            b'C' => return Key::Right,
            b'D' => return Key::Left,
            b'H' => return Key::Home,
            b'F' => return Key::End,
            b'Z' => return Key::BackTab,
            b'~' => {
                return match parameters.first() {
                    Some(b'1' | b'7') => Key::Home,
                    Some(b'4' | b'8') => Key::End,
                    Some(b'5') => Key::PageUp,
                    Some(b'6') => Key::PageDown,
                    _ => Key::Other,
                };
            }
            _ => return Key::Other,
        }
    }
    Key::Other
}

/// The screen, which is as it was before when this is dropped.
pub struct Screen<W: Write> {
    out: W,
    size: Box<dyn Fn() -> Size>,
}

impl Screen<io::Stdout> {
    /// The standard output, if it is a terminal.
    pub fn new() -> Option<io::Result<Self>> {
        if !io::stdout().is_terminal() {
            return None;
        }
        let size = || {
            let told = tcgetwinsize(io::stdout()).ok().filter(|size| size.ws_col > 0 && size.ws_row > 0);
            told.map_or(USUAL, |size| Size { width: size.ws_col, height: size.ws_row })
        };
        Some(Self::on(io::stdout(), Box::new(size)))
    }
}

impl<W: Write> Screen<W> {
    fn on(mut out: W, size: Box<dyn Fn() -> Size>) -> io::Result<Self> {
        // The other screen, without a cursor, and without wrapping at its edge.
        out.write_all(b"\x1b[?1049h\x1b[?25l\x1b[?7l\x1b[2J")?;
        out.flush()?;
        Ok(Self { out, size })
    }
}

impl<W: Write> Drop for Screen<W> {
    fn drop(&mut self) {
        let _ = self.out.write_all(b"\x1b[0m\x1b[?7h\x1b[?25h\x1b[?1049l").and_then(|()| self.out.flush());
    }
}

/// The parameters of SGR (ECMA-48 §8.3.117) for how a cell looks.
fn look(cell: &Cell) -> String {
    let mut codes = String::from("0");
    for (modifier, code) in
        [(Modifier::BOLD, ";1"), (Modifier::DIM, ";2"), (Modifier::UNDERLINED, ";4"), (Modifier::REVERSED, ";7")]
    {
        if cell.modifier.contains(modifier) {
            codes.push_str(code);
        }
    }
    // No other colours are used, and none for the background: those of the terminal are right by day and by night.
    codes.push_str(match cell.fg {
        Color::Red => ";31",
        Color::Green => ";32",
        Color::Yellow => ";33",
        Color::Cyan => ";36",
        _ => "",
    });
    codes
}

impl<W: Write> Backend for Screen<W> {
    type Error = io::Error;

    fn draw<'a, I>(&mut self, content: I) -> io::Result<()>
    where
        I: Iterator<Item = (u16, u16, &'a Cell)>,
    {
        let mut text = String::new();
        let (mut next, mut looks) = (None, String::new());
        for (x, y, cell) in content {
            if next != Some((x, y)) {
                text.push_str(&format!("\x1b[{};{}H", y + 1, x + 1));
            }
            let wanted = look(cell);
            if wanted != looks {
                text.push_str(&format!("\x1b[{wanted}m"));
                looks = wanted;
            }
            text.push_str(cell.symbol());
            // What is wider than a cell leaves the cursor elsewhere: it is told where to go on.
            next = cell.symbol().is_ascii().then_some((x + 1, y));
        }
        text.push_str("\x1b[0m");
        self.out.write_all(text.as_bytes())
    }

    fn hide_cursor(&mut self) -> io::Result<()> {
        self.out.write_all(b"\x1b[?25l")
    }

    fn show_cursor(&mut self) -> io::Result<()> {
        self.out.write_all(b"\x1b[?25h")
    }

    fn get_cursor_position(&mut self) -> io::Result<Position> {
        // Nothing is drawn from where the cursor is.
        Ok(Position::ORIGIN)
    }

    fn set_cursor_position<P: Into<Position>>(&mut self, position: P) -> io::Result<()> {
        let Position { x, y } = position.into();
        write!(self.out, "\x1b[{};{}H", y + 1, x + 1)
    }

    fn clear(&mut self) -> io::Result<()> {
        self.out.write_all(b"\x1b[0m\x1b[2J")
    }

    fn clear_region(&mut self, _: ClearType) -> io::Result<()> {
        self.clear()
    }

    fn size(&self) -> io::Result<Size> {
        Ok((self.size)())
    }

    fn window_size(&mut self) -> io::Result<WindowSize> {
        Ok(WindowSize { columns_rows: self.size()?, pixels: Size::ZERO })
    }

    fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ratatui::Terminal;
    use ratatui::style::Style;
    use ratatui::text::Line;
    use std::collections::VecDeque;

    fn keys(bytes: &[u8]) -> Vec<Key> {
        let mut bytes: VecDeque<u8> = bytes.iter().copied().collect();
        let mut keys = Vec::new();
        while let Some(first) = bytes.pop_front() {
            let mut rest = || bytes.pop_front().map(Input::Byte);
            keys.push(decode(Input::Byte(first), &mut rest));
        }
        keys
    }

    #[test]
    fn keys_are_what_terminals_send_for_them() {
        assert_eq!(
            keys(b"a/\r\x7f\t\x03"),
            [Key::Char('a'), Key::Char('/'), Key::Enter, Key::Backspace, Key::Tab, Key::Quit]
        );
        assert_eq!(keys(b"\x1b[A\x1bOB\x1b[C\x1b[D"), [Key::Up, Key::Down, Key::Right, Key::Left]);
        assert_eq!(
            keys(b"\x1b[5~\x1b[6~\x1b[1~\x1b[F\x1b[Z"),
            [Key::PageUp, Key::PageDown, Key::Home, Key::End, Key::BackTab]
        );
        assert_eq!(keys("é€".as_bytes()), [Key::Char('é'), Key::Char('€')]);
        assert_eq!(keys(b"\x1b"), [Key::Escape]);
        assert_eq!(decode(Input::End, &mut || None), Key::Quit);
        // What is no key of a keyboard does nothing, and ends.
        assert_eq!(keys(b"\xff\x1b[1;5P"), [Key::Other, Key::Other]);
        assert!(keys(&[&b"\x1b["[..], &[b'1'; 100]].concat()).len() > 1);
    }

    #[test]
    fn the_screen_is_left_as_it_was() {
        let mut out = Vec::new();
        {
            let screen = Screen::on(&mut out, Box::new(|| Size { width: 20, height: 2 })).unwrap();
            let mut terminal = Terminal::new(screen).unwrap();
            let style = Style::new().fg(Color::Red).add_modifier(Modifier::BOLD);
            terminal.draw(|frame| frame.render_widget(Line::styled("hello", style), frame.area())).unwrap();
        }
        let text = String::from_utf8(out).unwrap();
        assert!(text.starts_with("\x1b[?1049h") && text.contains("\x1b[0;1;31mhello"), "{text:?}");
        assert!(text.ends_with("\x1b[?25h\x1b[?1049l"), "{text:?}");
    }
}
