//! NGINX's directives as a tree, with included files in the place of `include`.

use super::lexer::{Lexer, Token, Word, place};
use crate::Failed;
use crate::reader::{MAX_FILES, Reader, glob};
use crate::report::{Id, NOT_UTF8, Place, Report};
use std::path::{Path, PathBuf};

/// A directive.
#[derive(Clone, Debug)]
pub(super) struct Directive {
    pub id: Id,
    pub place: Place,
    pub words: Vec<Word>,
    pub block: Option<Vec<Directive>>,
}

impl Directive {
    pub fn name(&self) -> &str {
        self.words.first().map_or("", |w| w.text.as_str())
    }

    /// The words behind the name.
    pub fn arguments(&self) -> Vec<&str> {
        self.words.iter().skip(1).map(|w| w.text.as_str()).collect()
    }

    /// The word at a position; the name is at 0.
    pub fn word(&self, at: usize) -> Option<&str> {
        self.words.get(at).map(|w| w.text.as_str())
    }

    pub fn inner(&self) -> &[Directive] {
        self.block.as_deref().unwrap_or_default()
    }
}

/// Deepest nesting of blocks and included files together.
const MAX_DEPTH: usize = 48;
/// Largest file.
const MAX_FILE: usize = 4 << 20;
/// Most bytes of all files together.
const MAX_TOTAL: usize = 16 << 20;
/// Most directives.
const MAX_DIRECTIVES: usize = 100_000;
/// Most words of a directive.
const MAX_WORDS: usize = 10_000;

/// Files that packages install and that decide nothing here: mime types, parameters for FastCGI.
const HARMLESS: &[&str] =
    &["mime.types", "fastcgi_params", "fastcgi.conf", "uwsgi_params", "scgi_params", "koi-utf", "koi-win", "win-utf"];

/// Blocks whose lines are no directives: their first words are values.
const VALUES: &[&str] = &["map", "geo", "types", "split_clients", "charset_map", "match"];

pub(super) struct Parser<'r> {
    reader: &'r dyn Reader,
    /// Relative paths in `include` are from here: the folder of the main file.
    pub base: PathBuf,
    pub report: &'r mut Report,
    files: usize,
    bytes: usize,
    directives: usize,
    /// The file that is being read is not UTF-8.
    lossy: bool,
}

impl<'r> Parser<'r> {
    pub fn new(reader: &'r dyn Reader, main: &Path, report: &'r mut Report) -> Self {
        let base = main.parent().unwrap_or(Path::new("")).to_path_buf();
        Self { reader, base, report, files: 0, bytes: 0, directives: 0, lossy: false }
    }

    pub fn file(&mut self, path: &Path, depth: usize) -> Result<Vec<Directive>, Failed> {
        let name = path.to_string_lossy().into_owned();
        let at = place(&name, 1);
        let bytes = self.reader.read(path).map_err(|e| Failed::new(&at, e))?;
        self.files += 1;
        self.bytes += bytes.len();
        if bytes.len() > MAX_FILE || self.bytes > MAX_TOTAL || self.files > MAX_FILES {
            return Err(Failed::new(&at, "the configuration is too large"));
        }
        // NGINX knows no encodings; a byte that is no UTF-8 can only be part of a text.
        let text = String::from_utf8_lossy(&bytes);
        let outer = std::mem::replace(&mut self.lossy, matches!(text, std::borrow::Cow::Owned(_)));
        let text = text.strip_prefix('\u{feff}').unwrap_or(&text);
        let read = self.text(text, &name, depth);
        self.lossy = outer;
        read
    }

    /// Blocks that are open are on a stack of their own, so that nesting takes no room of the thread's.
    fn text(&mut self, text: &str, file: &str, depth: usize) -> Result<Vec<Directive>, Failed> {
        let mut lexer = Lexer::new(text);
        // Directives whose block is open, and what stands beside them.
        let mut open: Vec<(Directive, Vec<Directive>)> = Vec::new();
        let mut here: Vec<Directive> = Vec::new();
        let mut words: Vec<Word> = Vec::new();
        let fail = |(line, what): (u32, String)| Failed::new(&place(file, line), what);
        while let Some(token) = lexer.next().map_err(fail)? {
            match token {
                Token::Word(word) => {
                    words.push(word);
                    if words.len() > MAX_WORDS {
                        return Err(fail((lexer.line(), "a directive has too many words".to_owned())));
                    }
                }
                Token::End(line) if words.is_empty() => return Err(fail((line, "unexpected \";\"".to_owned()))),
                Token::End(_) => {
                    let values = open.last().filter(|(d, _)| VALUES.contains(&d.name())).map(|(d, _)| d.id);
                    let d = self.directive(std::mem::take(&mut words), file, values)?;
                    match d.name() == "include" && values.is_none() {
                        true => self.include(&d, depth + open.len(), &mut here)?,
                        false => here.push(d),
                    }
                }
                Token::Open(line) if words.is_empty() => return Err(fail((line, "unexpected \"{\"".to_owned()))),
                Token::Open(line) => {
                    let mut d = self.directive(std::mem::take(&mut words), file, None)?;
                    if d.name().ends_with("_by_lua_block") {
                        lexer.skip_lua().map_err(fail)?;
                        d.block = Some(Vec::new());
                        here.push(d);
                        continue;
                    }
                    if depth + open.len() >= MAX_DEPTH {
                        return Err(fail((line, "blocks are nested too deeply".to_owned())));
                    }
                    open.push((d, std::mem::take(&mut here)));
                }
                Token::Close(line) => {
                    if !words.is_empty() {
                        return Err(fail((line, format!("\"{}\" has no \";\"", words[0].text.escape_debug()))));
                    }
                    let Some((mut d, beside)) = open.pop() else {
                        return Err(fail((line, "unexpected \"}\"".to_owned())));
                    };
                    d.block = Some(std::mem::replace(&mut here, beside));
                    here.push(d);
                }
            }
        }
        if let Some((d, _)) = open.last() {
            return Err(Failed::new(&d.place, format!("the block of \"{}\" has no end", d.name().escape_debug())));
        }
        if let Some(word) = words.first() {
            return Err(fail((word.line, format!("\"{}\" has no \";\"", word.text.escape_debug()))));
        }
        Ok(here)
    }

    /// `block`: the block whose values these are; it is reported as a whole.
    fn directive(&mut self, words: Vec<Word>, file: &str, block: Option<Id>) -> Result<Directive, Failed> {
        let place = place(file, words[0].line);
        self.directives += 1;
        if self.directives > MAX_DIRECTIVES {
            return Err(Failed::new(&place, "too many directives"));
        }
        let text: Vec<&str> = words.iter().map(|w| w.text.as_str()).collect();
        let id = block.unwrap_or_else(|| self.report.record(place.clone(), text.join(" ")));
        if self.lossy && text.iter().any(|t| t.contains(char::REPLACEMENT_CHARACTER)) {
            self.report.decide(id, NOT_UTF8);
        }
        Ok(Directive { id, place, words, block: None })
    }

    fn include(&mut self, d: &Directive, depth: usize, into: &mut Vec<Directive>) -> Result<(), Failed> {
        let Some(pattern) = d.word(1) else { return Err(Failed::new(&d.place, "\"include\" names no file")) };
        if depth >= MAX_DEPTH {
            return Err(Failed::new(&d.place, "files include each other too deeply"));
        }
        let paths = glob(self.reader, &self.base.join(pattern)).map_err(|e| Failed::new(&d.place, e))?;
        self.report.same(d.id, "read");
        for path in paths {
            let file = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
            match self.reader.read(&path) {
                Ok(_) => into.extend(self.file(&path, depth + 1)?),
                Err(_) if HARMLESS.contains(&file.as_str()) => {
                    self.report.same(d.id, "not read: the import does not need this file");
                }
                Err(e) => self
                    .report
                    .decide(d.id, format!("{}: {e}; run the import on the machine that has all files", path.display())),
            }
        }
        Ok(())
    }
}
