//! The stacks that this crate knows, from `catalogue.toml`: source, recipe, licence and support.

use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};

/// All of it.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Catalogue {
    /// When the dates were last looked up.
    pub checked: String,
    /// The stacks, in the order of the file.
    #[serde(rename = "stack")]
    pub stacks: Vec<Stack>,
}

/// One TLS stack.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Stack {
    /// As on the command line.
    pub name: String,
    /// For people.
    pub title: String,
    /// Which worker runs it.
    pub worker: String,
    /// Where its source comes from; none where the worker itself brings the library.
    #[serde(default)]
    pub source: Option<Source>,
    /// How it is built.
    #[serde(default)]
    pub recipe: Option<String>,
    /// The system's library, where it is taken from there.
    #[serde(default)]
    pub system: Option<System>,
    /// Its licence (SPDX).
    pub licence: String,
    /// First release of the series.
    #[serde(default)]
    pub released: Option<String>,
    /// Last day of free support.
    #[serde(default)]
    pub support_ends: Option<String>,
    /// Long-term support.
    #[serde(default)]
    pub lts: bool,
    /// What dates do not say.
    #[serde(default)]
    pub note: Option<String>,
    /// In the set that is built when no names are given.
    #[serde(default)]
    pub default: bool,
    /// Built to show something, not to be chosen: `advise` leaves it out.
    #[serde(default)]
    pub variant: bool,
}

/// A crate that carries a library's source.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Source {
    /// The crate.
    #[serde(rename = "crate")]
    pub package: String,
    /// Exactly this version; `provision/NAME/Cargo.lock` has its checksum.
    pub version: String,
    /// Folder of the source in it.
    #[serde(default)]
    pub folder: Option<String>,
    /// Or an archive of the source in it; with a whole path it is the user's own, and nothing is fetched.
    #[serde(default)]
    pub tarball: Option<String>,
}

impl Source {
    /// The user's own archive.
    pub fn own(&self) -> Option<&Path> {
        self.tarball.as_deref().map(Path::new).filter(|path| path.is_absolute())
    }
}

/// A library of the system's.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct System {
    /// Its file's name up to the number of its interface, as `libgnutls.so`.
    pub library: String,
    /// The Debian package that brings it.
    pub package: String,
}

impl System {
    /// Where it is, the newest if there are several; none where it is not installed.
    pub fn find(&self) -> Option<PathBuf> {
        let arch = format!("/usr/lib/{}-linux-gnu", std::env::consts::ARCH);
        ["/usr/local/lib", &arch, "/usr/lib64", "/usr/lib", "/lib64", "/lib"]
            .iter()
            .find_map(|folder| self.newest(Path::new(folder)))
    }

    fn newest(&self, folder: &Path) -> Option<PathBuf> {
        let number = |name: &str| name.strip_prefix(&self.library)?.strip_prefix('.')?.parse::<u32>().ok();
        let names = std::fs::read_dir(folder).ok()?.flatten().filter_map(|e| e.file_name().into_string().ok());
        let (_, name) = names.filter_map(|name| Some((number(&name)?, name))).max()?;
        Some(folder.join(name))
    }
}

/// Is it still looked after?
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Support {
    /// Yes, and for years.
    LongTerm,
    /// Yes.
    Supported,
    /// Its end has passed.
    Ended,
    /// It has no dates: one follows its newest release.
    Rolling,
}

impl Support {
    /// For people.
    pub fn name(self) -> &'static str {
        match self {
            Support::LongTerm => "LTS",
            Support::Supported => "supported",
            Support::Ended => "ended",
            Support::Rolling => "rolling",
        }
    }

    /// The same with the last day of the support.
    pub fn until(self, end: Option<&str>) -> String {
        match (self, end) {
            (Support::Ended, Some(end)) => format!("ended on {end}"),
            (_, Some(end)) => format!("{} until {end}", self.name()),
            (_, None) => self.name().to_owned(),
        }
    }
}

impl Stack {
    /// Support on a day (`YYYY-MM-DD`, which sorts as text).
    pub fn support(&self, today: &str) -> Support {
        match &self.support_ends {
            Some(end) if end.as_str() < today => Support::Ended,
            Some(_) if self.lts => Support::LongTerm,
            Some(_) => Support::Supported,
            None if self.lts => Support::LongTerm,
            None => Support::Rolling,
        }
    }

    /// The worker that opens a library of this name; none where no worker can.
    pub fn worker_for(path: &Path) -> Option<&'static str> {
        let name = path.file_name()?.to_str()?;
        let starts = |prefix: &str| name.starts_with(prefix);
        [
            ("libssl.so", "openssl"),
            ("libgnutls.so", "gnutls"),
            ("libmbedtls.so", "mbedtls"),
            ("libwolfssl.so", "wolfssl"),
        ]
        .into_iter()
        .find_map(|(prefix, worker)| starts(prefix).then_some(worker))
    }

    /// An installed library that nobody built here, chosen by its path; a folder is taken for one of OpenSSL's kind.
    pub fn installed(path: &Path) -> Self {
        let shown = path.display().to_string();
        let worker = Self::worker_for(path).unwrap_or("openssl");
        Self {
            name: shown.clone(),
            title: shown,
            worker: worker.into(),
            source: None,
            recipe: None,
            system: None,
            licence: "as installed".into(),
            released: None,
            support_ends: None,
            lts: false,
            note: Some("an installed library: its distributor supports it".into()),
            default: false,
            variant: true,
        }
    }

    /// A release of LibreSSL in an archive of the user's own: no registry carries a new one.
    pub fn archive(path: &Path) -> Result<Self, String> {
        let file = path.file_name().map(|n| n.to_string_lossy().into_owned()).unwrap_or_default();
        let name = file.strip_suffix(".tar.gz").unwrap_or(&file);
        let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '_');
        if !name.starts_with("libressl-") || !name.chars().all(plain) {
            return Err(format!(
                "{file}: the only archives that can be built are those of LibreSSL (libressl-VERSION.tar.gz)"
            ));
        }
        let shown = |e: std::io::Error| format!("{}: {e}", path.display());
        let path = path.canonicalize().map_err(shown)?;
        let bytes = path.metadata().map_err(shown)?.len();
        Ok(Self {
            title: format!("LibreSSL from {}", path.display()),
            source: Some(Source {
                package: "own".into(),
                version: format!("{bytes} bytes"),
                folder: None,
                tarball: Some(path.to_string_lossy().into_owned()),
            }),
            recipe: Some("libressl".into()),
            licence: "ISC AND OpenSSL AND SSLeay".into(),
            note: Some("the user's own archive".into()),
            ..Self::installed(Path::new(name))
        })
    }

    /// The path, if this is an installed library.
    pub fn path(&self) -> Option<PathBuf> {
        self.name.contains('/').then(|| PathBuf::from(&self.name))
    }
}

/// The catalogue in this build.
///
/// # Panics
/// Never: a test reads the same text.
pub fn catalogue() -> Catalogue {
    toml::from_str(include_str!("../catalogue.toml")).expect("the catalogue is read by a test")
}

/// The stacks of these names: all known ones, those of the default set, or the named ones, where a name with a slash is
/// the path of an installed library.
pub fn choose(catalogue: &Catalogue, names: &[String], all: bool) -> Result<Vec<Stack>, String> {
    if names.is_empty() {
        return Ok(catalogue.stacks.iter().filter(|s| all || s.default).cloned().collect());
    }
    names
        .iter()
        .map(|name| {
            if name.ends_with(".tar.gz") {
                return Stack::archive(Path::new(name));
            }
            if name.contains('/') {
                let path = Path::new(name);
                let path = path.canonicalize().map_err(|e| format!("{name}: {e}"))?;
                return Ok(Stack::installed(&path));
            }
            catalogue.stacks.iter().find(|s| s.name == *name).cloned().ok_or_else(|| {
                let known: Vec<_> = catalogue.stacks.iter().map(|s| s.name.as_str()).collect();
                format!("no stack {name:?}; there are {} (or give a path of a libssl.so)", known.join(", "))
            })
        })
        .collect()
}

/// Today, in UTC, as `YYYY-MM-DD`.
pub fn today() -> String {
    let seconds = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_secs());
    date(seconds / 86_400)
}

/// The date of a day since 1970 (days of eras of 400 years, as Howard Hinnant describes it).
fn date(days: u64) -> String {
    let days = days + 719_468;
    let (era, day) = (days / 146_097, days % 146_097);
    let year = (day - day / 1460 + day / 36_524 - day / 146_096) / 365;
    let day = day - (365 * year + year / 4 - year / 100);
    let month = (5 * day + 2) / 153;
    let (m, d) = (if month < 10 { month + 3 } else { month - 9 }, day - (153 * month + 2) / 5 + 1);
    format!("{:04}-{m:02}-{d:02}", year + 400 * era + u64::from(m <= 2))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_catalogue_is_whole() {
        let all = catalogue();
        assert!(all.stacks.iter().filter(|s| s.default).count() >= 8);
        for (n, stack) in all.stacks.iter().enumerate() {
            assert!(all.stacks[..n].iter().all(|s| s.name != stack.name), "{} twice", stack.name);
            assert_eq!(stack.source.is_some(), stack.recipe.is_some(), "{}", stack.name);
            assert!(stack.support_ends.is_some() || stack.note.is_some(), "{}: support unsaid", stack.name);
            for date in stack.released.iter().chain(&stack.support_ends) {
                assert!(date.len() == 10 && date.as_bytes()[4] == b'-', "{date}");
            }
            // What is fetched is what is shown.
            if let Some(source) = &stack.source {
                let lock = crate::sources::provision(&stack.name, "Cargo.lock").expect("each source has a lockfile");
                let entry = format!("name = \"{}\"\nversion = \"{}\"", source.package, source.version);
                assert!(lock.contains(&entry), "{}: {entry}", stack.name);
            }
        }
    }

    #[test]
    fn an_archive_of_ones_own_is_a_stack() {
        let folder = tempfile::tempdir().expect("a folder");
        let file = folder.path().join("libressl-4.0.0.tar.gz");
        let named = |file: &Path| choose(&catalogue(), &[file.display().to_string()], false);
        assert!(named(&file).is_err(), "not there yet");
        std::fs::write(&file, "x").expect("written");
        let stack = named(&file).expect("there").remove(0);
        assert_eq!((stack.name.as_str(), stack.worker.as_str()), ("libressl-4.0.0", "openssl"));
        assert!(stack.path().is_none() && stack.source.is_some_and(|s| s.own().is_some()));
        let other = folder.path().join("other-1.tar.gz");
        std::fs::write(&other, "x").expect("written");
        assert!(named(&other).is_err_and(|why| why.contains("LibreSSL")));
    }

    #[test]
    fn support_is_judged_by_the_day() {
        let all = catalogue();
        let of = |name: &str, day: &str| all.stacks.iter().find(|s| s.name == name).expect("known").support(day);
        assert_eq!(of("openssl-3.0", "2026-09-07"), Support::LongTerm);
        assert_eq!(of("openssl-3.0", "2026-09-08"), Support::Ended);
        assert_eq!(of("openssl-4.0", "2026-11-21"), Support::Supported);
        assert_eq!(of("boringssl", "2026-11-21"), Support::Rolling);
    }

    #[test]
    fn the_systems_newest_library_is_taken() {
        let folder = tempfile::tempdir().expect("a folder");
        for name in ["libx.so", "libx.so.9", "libx.so.30", "libx.so.30.1.2", "libxx.so.99", "libx.so.old"] {
            std::fs::write(folder.path().join(name), "").expect("written");
        }
        let system = |library: &str| System { library: library.into(), package: "x".into() };
        assert_eq!(system("libx.so").newest(folder.path()), Some(folder.path().join("libx.so.30")));
        assert_eq!(system("liby.so").newest(folder.path()), None);
        assert_eq!(Stack::worker_for(Path::new("/lib/libgnutls.so.30")), Some("gnutls"));
        assert_eq!(Stack::worker_for(Path::new("/lib/libc.so.6")), None);
    }

    #[test]
    fn days_become_dates() {
        assert_eq!((date(0), date(20_778)), ("1970-01-01".into(), "2026-11-21".into()));
        assert_eq!((date(11_016), date(11_017)), ("2000-02-29".into(), "2000-03-01".into()));
    }

    #[test]
    fn names_choose() {
        let all = catalogue();
        let names = |list: &[&str]| list.iter().map(|s| (*s).to_owned()).collect::<Vec<_>>();
        assert_eq!(choose(&all, &names(&["wolfssl"]), false).expect("known").len(), 1);
        assert!(choose(&all, &names(&["gopenssl"]), false).expect_err("unknown").contains("boringssl"));
        assert!(choose(&all, &[], true).expect("all").len() > choose(&all, &[], false).expect("default").len());
    }
}
