//! A configuration in several files: `include` names those that are read behind the main one.
//!
//! The texts are joined, so that everything after this reads one text; [`Source`] knows which file each part of it came from. A part
//! stands by itself: it begins with a table, so that none of its settings ends up in a table of another file.

use super::decode::Section;
use super::diagnostics::{Place, Sink, Source};
use super::document::{Document, about_file};
use super::settings::{Shape, top};
use super::{Errors, MAX_FILE, Severity};
use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use toml::de::{DeTable, DeValue};

/// The most files that `include` may name.
pub const MAX_INCLUDED: usize = 1000;

/// An entry of `include`.
#[derive(Clone, Debug)]
pub struct Include {
    /// The file. Its name may have `*` for any characters; it then stands for all files of its folder whose names match.
    pub path: PathBuf,
    place: Place,
}

impl Include {
    /// The folder to look into, if this is a pattern.
    pub fn folder(&self) -> Option<&Path> {
        let folder = self.path.parent().filter(|folder| !folder.as_os_str().is_empty());
        self.name().contains('*').then(|| folder.unwrap_or(Path::new(".")))
    }

    /// Whether a file of the folder is meant.
    pub fn takes(&self, name: &OsStr) -> bool {
        matches(self.name(), &name.to_string_lossy())
    }

    /// An error about this entry.
    pub fn error(&self, message: String, help: Option<String>, files: Vec<PathBuf>) -> Errors {
        let error = self.place.diagnostic(Severity::Error, message, help);
        Errors { errors: vec![error], warnings: Vec::new(), files }
    }

    fn name(&self) -> &str {
        self.path.file_name().and_then(OsStr::to_str).unwrap_or_default()
    }
}

/// As a shell does it: a file whose name begins with a dot is meant only by a pattern that does.
fn matches(pattern: &str, name: &str) -> bool {
    let mut pieces = pattern.split('*');
    let first = pieces.next().unwrap_or_default();
    if name.starts_with('.') && !first.starts_with('.') {
        return false;
    }
    let Some(mut rest) = name.strip_prefix(first) else { return false };
    let Some(last) = pieces.next_back() else { return rest.is_empty() };
    for piece in pieces {
        let Some(at) = rest.find(piece) else { return false };
        rest = &rest[at + piece.len()..];
    }
    rest.ends_with(last)
}

/// A file whose text stands in a document, from an offset on.
#[derive(Clone, Debug)]
pub(super) struct Part {
    pub start: usize,
    pub name: String,
    pub path: PathBuf,
}

/// Checks the setting itself.
pub(super) fn check(top: &Section) {
    for at in top.optional_at(&top::include).map_or_else(Vec::new, |at| at.value) {
        if let Err((message, help)) = wrong(&at.value) {
            top.sink.error(&at.span, message, Some(help.to_owned()));
        }
    }
}

/// What is wrong with an entry.
fn wrong(entry: &str) -> Result<(), (String, &'static str)> {
    let path = Path::new(entry);
    if path.parent().is_some_and(|folder| folder.to_string_lossy().contains('*')) {
        return Err((format!("\"{entry}\" has \"*\" in the name of a folder"), "write one entry for each folder"));
    }
    if path.file_name().is_none() || entry.ends_with('/') {
        return Err((format!("\"{entry}\" names no file"), "write \"conf.d/*.toml\" for all files of a folder"));
    }
    Ok(())
}

impl Document {
    /// What `include` of the text names. Entries that [`Document::read`] refuses are left out.
    pub fn includes(&self) -> Vec<Include> {
        if !self.text.contains("include") {
            return Vec::new();
        }
        let source = Source::new(self.name.clone(), &self.text);
        let sink = Sink::new(source, self.base.clone(), None, None);
        let (table, _) = DeTable::parse_recoverable(&self.text);
        let entries = match table.get_ref().get(top::include.key) {
            Some(entry) => match entry.get_ref() {
                DeValue::Array(entries) => entries.iter().collect(),
                _ => vec![entry],
            },
            None => Vec::new(),
        };
        let include = |entry: &toml::Spanned<DeValue>| match entry.get_ref() {
            DeValue::String(text) if wrong(text).is_ok() => {
                Some(Include { path: self.base.join(text.as_ref()), place: sink.place_of(&entry.span()) })
            }
            _ => None,
        };
        entries.into_iter().filter_map(include).collect()
    }

    /// The document with the files that `include` names behind it. `folders`: those in which files were looked for.
    ///
    /// Errors: files that do not stand by themselves, and a configuration that is too large.
    pub fn with_files<'b>(
        mut self,
        files: impl IntoIterator<Item = (PathBuf, &'b [u8])>,
        folders: Vec<PathBuf>,
    ) -> Result<Self, Errors> {
        let mut broken = Vec::new();
        self.folders = folders;
        for (path, bytes) in files {
            let done = Self::of_file(&path, bytes).and_then(|part| stands_alone(&part).map(|()| part));
            if !self.text.ends_with('\n') {
                self.text.push('\n');
            }
            let start = self.text.len();
            let name = path.display().to_string();
            match done {
                Ok(part) => self.text.push_str(&part.text),
                Err(errors) => broken.extend(errors.errors),
            }
            self.parts.push(Part { start, name, path });
        }
        if !broken.is_empty() {
            return Err(Errors { errors: broken, warnings: Vec::new(), files: self.files() });
        }
        if self.text.len() as u64 > MAX_FILE {
            let most = MAX_FILE >> 20;
            let files = self.files();
            let message = format!("the configuration with the files of \"include\" has more than {most} MiB");
            return Err(Errors { files, ..about_file(Path::new(&self.name), message, None) });
        }
        Ok(self)
    }

    /// What is read again when it changes, besides what the text names: the files that it consists of, and folders in which a
    /// file may appear.
    pub(super) fn files(&self) -> Vec<PathBuf> {
        let main = match &self.origin {
            super::Origin::File(path) => Some(path),
            super::Origin::CommandLine(_) => None,
        };
        let parts = self.parts.iter().map(|part| &part.path);
        main.into_iter().chain(parts).chain(&self.folders).cloned().collect()
    }
}

/// A file of `include` is TOML by itself, begins with a table, and has no part of a table that another file begins.
fn stands_alone(part: &Document) -> Result<(), Errors> {
    let sink = Sink::new(Source::new(part.name.clone(), &part.text), part.base.clone(), None, None);
    let (table, syntax) = DeTable::parse_recoverable(&part.text);
    if !syntax.is_empty() {
        sink.syntax_errors(&syntax);
        let (errors, warnings) = sink.finish();
        return Err(Errors { errors, warnings, files: Vec::new() });
    }
    let mut offset = 0;
    for line in part.text.split_inclusive('\n') {
        let written = line.trim();
        if written.is_empty() || written.starts_with('#') {
            offset += line.len();
            continue;
        }
        if !written.starts_with('[') {
            let start = offset + line.find(written).unwrap_or(0);
            let help = "move it to the file that has \"include\", or write the heading of its table before it";
            let message = "an included file begins with a table, such as [[host]], not with a setting";
            sink.error(&(start..start + written.len()), message, Some(help.to_owned()));
        }
        break;
    }
    for (key, value) in table.get_ref() {
        let name: &str = key.get_ref();
        let is_list = |shape: &Shape| matches!(shape, Shape::Tables(_) | Shape::TablesOr(..));
        let declared = top::TABLE.all().find(|setting| setting.key == name);
        if declared.is_some_and(|setting| is_list(&setting.kind.shape()))
            && !matches!(value.get_ref(), DeValue::Array(_))
        {
            let help = format!("write it after its [[{name}]], in the same file");
            sink.error(&key.span(), format!("this file has no [[{name}]] before it"), Some(help));
        }
    }
    let (errors, warnings) = sink.finish();
    if errors.is_empty() { Ok(()) } else { Err(Errors { errors, warnings, files: Vec::new() }) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn main(text: &str) -> Document {
        Document::of_file(Path::new("/etc/main.toml"), text.as_bytes()).unwrap()
    }

    fn said(text: &str, files: &[(&str, &str)]) -> String {
        let files = files.iter().map(|(name, text)| (Path::new("/etc/conf.d").join(name), text.as_bytes()));
        let read = main(text).with_files(files, Vec::new()).and_then(|document| document.read_offline());
        read.map_or_else(|errors| errors.to_string(), |_| String::new())
    }

    const LISTENER: &str = "[[listener]]\naddress = \"127.0.0.1:80\"\n";
    const HOST: &str = "# A site\n\n[[host]]\nnames = [\"a.test\"]\nto = [\"http://127.0.0.1:3000\"]\n";

    #[test]
    fn patterns_are_those_of_a_shell() {
        for (pattern, name, is_meant) in [
            ("*.toml", "a.toml", true),
            ("*.toml", ".toml", false),
            ("*.toml", ".a.toml", false),
            (".*", ".a.toml", true),
            ("*.toml", "a.toml~", false),
            ("a*b*c", "abc", true),
            ("a*b*c", "a-b-b-c", true),
            ("a*b*c", "a-c-b", false),
            ("a*a", "a", false),
            ("*", "anything", true),
            ("a.toml", "a.toml", true),
            ("a.toml", "b.a.toml", false),
        ] {
            assert_eq!(matches(pattern, name), is_meant, "{pattern} {name}");
        }
    }

    #[test]
    fn entries_are_found_and_wrong_ones_refused() {
        let document = main("include = [\"conf.d/*.toml\", \"/srv/x.toml\", \"*/x.toml\", \"conf.d/\", 7]\n");
        let includes = document.includes();
        let paths: Vec<&Path> = includes.iter().map(|include| include.path.as_path()).collect();
        assert_eq!(paths, [Path::new("/etc/conf.d/*.toml"), Path::new("/srv/x.toml")]);
        assert_eq!(includes[0].folder(), Some(Path::new("/etc/conf.d")));
        assert_eq!(includes[1].folder(), None);
        let said = said("include = [\"*/x.toml\", \"conf.d/\"]\n", &[]);
        assert!(said.contains("main.toml:1:12: error: \"*/x.toml\" has \"*\" in the name of a folder"), "{said}");
        assert!(said.contains("\"conf.d/\" names no file"), "{said}");
    }

    #[test]
    fn files_are_read_as_one_text_and_mistakes_named_by_their_file() {
        assert_eq!(said(LISTENER, &[("a.toml", HOST)]), "");
        // The text before may lack its last line's end.
        assert_eq!(
            said(LISTENER.trim_end(), &[("a.toml", HOST.trim_end()), ("b.toml", "[log]\nlevel = \"warn\"")]),
            ""
        );
        let bad = HOST.replace("a.test", "b.test").replace("3000", "x");
        let said = said(LISTENER, &[("a.toml", HOST), ("b.toml", &bad)]);
        assert!(said.contains("/etc/conf.d/b.toml:5:"), "{said}");
        assert!(said.contains("5 | to = [\"http://127.0.0.1:x\"]"), "{said}");
        assert!(!said.contains("a.toml:"), "{said}");
    }

    #[test]
    fn a_table_that_two_files_have_is_named_in_the_second() {
        let said = said(&format!("{LISTENER}[log]\nlevel = \"warn\"\n"), &[("a.toml", HOST), ("b.toml", "\n[log]\n")]);
        assert!(said.contains("/etc/conf.d/b.toml:2:"), "{said}");
        assert!(said.contains("[log] is here a second time; the first is at /etc/main.toml:3"), "{said}");
    }

    #[test]
    fn of_a_table_that_two_files_have_both_places_are_named_and_what_to_do() {
        let (a, b) = ("# A\n[log] # once\nlevel = \"warn\"\n", "[ log ]\nlevel = \"info\"\naccess = \"off\"\n");
        let told = said(LISTENER, &[("a.toml", a), ("b.toml", b), ("c.toml", HOST)]);
        assert!(told.contains("/etc/conf.d/b.toml:1:"), "{told}");
        assert!(told.contains("[log] is here a second time; the first is at /etc/conf.d/a.toml:2"), "{told}");
        assert!(
            told.contains("help: move the settings below it to the first [log], and remove this heading"),
            "{told}"
        );
        // Its settings are no mistakes of their own.
        assert_eq!(told.matches("error:").count(), 1, "{told}");
        let told = said(&format!("{LISTENER}h2c = true\nallow = \"10.0.0.0/8\"\n h2c = false\n"), &[("c.toml", HOST)]);
        assert!(
            told.contains("main.toml:5:")
                && told.contains("\"h2c\" is here a second time; the first is at /etc/main.toml:3"),
            "{told}"
        );
        assert!(told.contains("help: remove one of the two"), "{told}");
    }

    #[test]
    fn what_does_not_stand_by_itself_is_refused() {
        for (text, place, what) in [
            ("\nlanes = 1\n", "a.toml:2:1", "an included file begins with a table"),
            ("include = \"b.toml\"\n", "a.toml:1:1", "an included file begins with a table"),
            ("[host.tls]\n", "a.toml:1:", "this file has no [[host]] before it"),
            ("[[host.route]]\npath = \"/\"\n", "a.toml:1:", "this file has no [[host]] before it"),
            ("[[host]]\nnames = [\"a.test\n", "a.toml:2:", "error"),
        ] {
            let said = said(LISTENER, &[("a.toml", text)]);
            assert!(said.contains(place) && said.contains(what), "{text}: {said}");
        }
    }
}
