//! A terminal: tmux, in which a program runs, keys are pressed and the screen is read.

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

impl Drop for Tmux {
    fn drop(&mut self) {
        // The server at this test's own socket.
        let _ = Command::new(&self.program).arg("-S").arg(&self.socket).arg("kill-server").output();
    }
}
