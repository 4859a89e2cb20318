//! A clock of a program's own, which a test sets: a library that is preloaded into the program (`clock_step.c`).

use crate::binary;
use crate::site::Site;
use std::fs::{File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{SystemTime, UNIX_EPOCH};

/// The clock of a program that was started with it.
#[derive(Debug)]
pub struct Clock {
    file: File,
    library: PathBuf,
    path: PathBuf,
}

impl Clock {
    /// Compiles what is preloaded.
    #[track_caller]
    pub fn new(site: &Site, compiler: &Path) -> Self {
        let (path, library) = (site.file("step", [0; 16]), site.path().join("clock_step.so"));
        let source = site.file("clock_step.c", include_str!("clock_step.c"));
        let mut command = Command::new(compiler);
        command.args(["-shared", "-fPIC", "-O1", "-o"]).arg(&library).arg(source);
        let said = command.output().expect("the compiler runs");
        assert!(said.status.success(), "{}", String::from_utf8_lossy(&said.stderr));
        let file = OpenOptions::new().write(true).open(&path).expect("our own file");
        Self { file, library, path }
    }

    /// The gateway's program, which goes by this clock.
    pub fn program(&self) -> Command {
        let mut command = Command::new(binary::sealane());
        command.env("LD_PRELOAD", &self.library).env("CLOCK_STEP", &self.path);
        command
    }

    /// Sets the time of day.
    pub fn set(&self, step: i64) {
        self.file.write_all_at(&step.to_ne_bytes(), 0).expect("our own file");
    }

    /// So many seconds have passed since the program was started, and those that really have.
    pub fn pass(&self, seconds: i64) {
        self.file.write_all_at(&seconds.to_ne_bytes(), 8).expect("our own file");
    }
}

/// Hour and minute as they stand in a `Date`, now and a second ago: it may change between the answer and the question.
pub fn clock_face(step: i64) -> [String; 2] {
    [0, 1].map(|late| {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).expect("it is after 1970").as_secs() as i64;
        let second = (now + step - late).rem_euclid(86_400);
        format!(" {:02}:{:02}:", second / 3600, second / 60 % 60)
    })
}
