//! What `[log]` says about the log on the standard error.

use std::fmt;
use std::str::FromStr;

/// How much is logged. Each level includes those before it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum Level {
    /// The gateway cannot do what it was told to.
    Error = 1,
    /// Something is wrong that the gateway works around, or that an operator should look at.
    Warn,
    /// What changes: start, reload, servers that come and go, clients of the tunnel.
    #[default]
    Info,
    /// Single connections and requests that fail.
    Debug,
    /// Everything.
    Trace,
}

/// The levels by name, as they are written in a configuration and on the command line.
pub const LEVELS: &[(&str, Level)] = &[
    ("error", Level::Error),
    ("warn", Level::Warn),
    ("info", Level::Info),
    ("debug", Level::Debug),
    ("trace", Level::Trace),
];

impl Level {
    /// Its name.
    pub fn name(self) -> &'static str {
        LEVELS[self as usize - 1].0
    }
}

impl fmt::Display for Level {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Level {
    type Err = String;

    fn from_str(s: &str) -> Result<Self, String> {
        let found = LEVELS.iter().find(|(name, _)| name.eq_ignore_ascii_case(s));
        found.map(|(_, level)| *level).ok_or_else(|| "write error, warn, info, debug or trace".to_owned())
    }
}

/// What the configuration says about the log.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LogSettings {
    /// The least important level that is logged.
    pub level: Level,
    /// JSON instead of text.
    pub json: bool,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn levels_have_names_and_an_order() {
        for (name, level) in LEVELS {
            assert_eq!((name.parse(), level.name()), (Ok(*level), *name));
        }
        assert!(Level::Error < Level::Trace && "loud".parse::<Level>().is_err());
    }
}
