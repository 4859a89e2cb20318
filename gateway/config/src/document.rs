//! The first stage: the text of a configuration, and reading it.

use super::audit::Policy;
use super::diagnostics::{Sink, Source};
use super::include::Part;
use super::snippets;
use super::surroundings::{Answers, Question};
use super::values;
use super::{CommandLine, Config, Diagnostic, Errors, Severity, TunnelParts, Warning, read};
use std::collections::{BTreeSet, HashMap};
use std::path::{Path, PathBuf};
use toml::de::DeTable;

/// The text of a configuration and where it came from.
#[derive(Clone, Debug)]
pub struct Document {
    pub(super) text: String,
    /// As shown in messages; empty for a command line.
    pub(super) name: String,
    /// The folder that relative paths are from.
    pub(super) base: PathBuf,
    pub(super) origin: Origin,
    /// The policy that it is audited by.
    pub(super) policy: Option<Policy>,
    /// The files of `include`, whose texts stand in `text`.
    pub(super) parts: Vec<Part>,
    /// The folders in which they were looked for.
    pub(super) folders: Vec<PathBuf>,
    /// The variables of the environment that the text asks for, as far as they are set.
    pub(super) environment: HashMap<String, String>,
}

/// Where a configuration came from.
#[derive(Clone, Debug)]
pub enum Origin {
    /// A file.
    File(PathBuf),
    /// A command's arguments.
    CommandLine(Box<CommandLine>),
}

/// A configuration and its warnings, or everything that is wrong with it.
type Checked = Result<(Config, Vec<Warning>), Errors>;

/// What reading a document has led to.
#[derive(Debug)]
pub enum Reading {
    /// These questions have to be answered before the document can be read.
    Asks(BTreeSet<Question>),
    /// The configuration and its warnings, or everything that is wrong with it.
    Done(Result<Box<(Config, Vec<Warning>)>, Errors>),
}

impl Document {
    /// A file's content. Relative paths are from the file's folder, wherever the program was started.
    pub fn of_file(path: &Path, bytes: &[u8]) -> Result<Self, Errors> {
        Self::named(path.display().to_string(), path, bytes)
    }

    /// A text that stands in the place of a file's. Messages call it `request`.
    pub fn of_request(path: &Path, bytes: &[u8]) -> Result<Self, Errors> {
        Self::named("request".to_owned(), path, bytes)
    }

    fn named(name: String, path: &Path, bytes: &[u8]) -> Result<Self, Errors> {
        let text = std::str::from_utf8(bytes).map_err(|e| not_text(&name, bytes, e.valid_up_to()))?;
        Ok(Self {
            text: text.strip_prefix('\u{feff}').unwrap_or(text).to_owned(),
            name,
            base: path.parent().unwrap_or(Path::new("")).to_path_buf(),
            origin: Origin::File(path.to_path_buf()),
            policy: None,
            parts: Vec::new(),
            folders: Vec::new(),
            environment: HashMap::new(),
        })
    }

    /// The variables of the environment that the text asks for.
    pub fn variables(&self) -> BTreeSet<String> {
        values::variables(&self.text)
    }

    /// The same, with the values of variables.
    pub fn with_environment(self, environment: HashMap<String, String>) -> Self {
        Self { environment, ..self }
    }

    /// The same, to be audited: what breaks the policy is an error.
    pub fn audited_by(self, policy: Option<Policy>) -> Self {
        Self { policy, ..self }
    }

    /// Reads the text alone: no file that it names, no user, no folder. The result is not to be served.
    ///
    /// Strings with references are not judged: their values are not known.
    pub fn read_offline(&self) -> Checked {
        self.read_with(None, None, false).1
    }

    /// The same with the values of variables in their places.
    pub fn read_with_variables(&self) -> Checked {
        self.read_with(None, None, true).1
    }

    /// Reads the text, with what is known of the machine. The files of `[tunnel]` are read by `tunnel`; without it, a
    /// document with a tunnel is refused.
    pub fn read(&self, answers: &Answers, tunnel: Option<TunnelParts>) -> Reading {
        match self.read_with(Some(answers), tunnel, true) {
            (questions, done) if questions.is_empty() => Reading::Done(done.map(Box::new)),
            (questions, _) => Reading::Asks(questions),
        }
    }

    /// The path of `[tunnel] status`. Nothing else of the document matters, so every user that may read the file may ask: certificates
    /// and keys are the gateway's.
    pub fn tunnel_status_file(&self) -> anyhow::Result<PathBuf> {
        use anyhow::Context as _;
        let shown = &self.name;
        let table: toml::Table =
            self.text.parse().map_err(|e: toml::de::Error| anyhow::anyhow!("{shown}: {}", e.message()))?;
        let tunnel = table.get("tunnel").with_context(|| format!("{shown}: the configuration has no [tunnel]"))?;
        let status = tunnel.get("status").and_then(toml::Value::as_str).with_context(|| {
            format!("{shown}: [tunnel] has no \"status\": add status = \"/run/sealane/tunnel.json\"")
        })?;
        Ok(self.base.join(values::with_variables(status, &self.environment)))
    }

    /// The path of `[admin] socket`, if there is one. As with the status, nothing else of the document matters.
    pub fn admin_socket(&self) -> anyhow::Result<Option<PathBuf>> {
        let shown = &self.name;
        let table: toml::Table =
            self.text.parse().map_err(|e: toml::de::Error| anyhow::anyhow!("{shown}: {}", e.message()))?;
        let socket = table.get("admin").and_then(|admin| admin.get("socket")).and_then(toml::Value::as_str);
        Ok(socket.map(|socket| self.base.join(values::with_variables(socket, &self.environment))))
    }

    /// Whether `[tunnel]` has a setting.
    pub fn tunnel_has(&self, setting: &str) -> anyhow::Result<bool> {
        let table: toml::Table =
            self.text.parse().map_err(|e: toml::de::Error| anyhow::anyhow!("{}: {}", self.name, e.message()))?;
        Ok(table.get("tunnel").is_some_and(|tunnel| tunnel.get(setting).is_some()))
    }

    fn read_with(
        &self,
        answers: Option<&Answers>,
        tunnel: Option<TunnelParts>,
        variables: bool,
    ) -> (BTreeSet<Question>, Checked) {
        let source = Source::new(self.name.clone(), &self.text).with_parts(&self.parts);
        let mut sink = Sink::new(source, self.base.clone(), answers, tunnel);
        sink.policy = self.policy;
        sink.replaces_variables = variables;
        let (mut document, syntax) = DeTable::parse_recoverable(&self.text);
        if !syntax.is_empty() {
            // What else seems to be wrong may be the parser's guess, and what seems to be missing may be in the broken part.
            sink.syntax_errors(&syntax);
            let (errors, warnings) = sink.finish();
            return (BTreeSet::new(), Err(Errors { errors, warnings, files: self.files() }));
        }
        if matches!(self.origin, Origin::File(_)) {
            values::fill(&sink, document.get_mut(), &self.environment);
        }
        snippets::apply(&sink, document.get_mut());
        let config = read(&sink, document.get_ref(), self.origin.clone());
        let (questions, mut files) = (sink.questions(), sink.files());
        let (errors, warnings) = sink.finish();
        files.extend(self.files());
        let done = match config {
            Some(mut config) if errors.is_empty() => {
                config.files = files;
                Ok((config, warnings))
            }
            _ => Err(Errors { errors, warnings, files }),
        };
        (questions, done)
    }
}

/// The error about a file that is not text from this byte on, with its line.
fn not_text(name: &str, bytes: &[u8], from: usize) -> Errors {
    let text = String::from_utf8_lossy(bytes);
    let sink = Sink::new(Source::new(name.to_owned(), &text), PathBuf::new(), None, None);
    let replaced = from..from + char::REPLACEMENT_CHARACTER.len_utf8();
    let message = format!("not UTF-8 text at byte {from}");
    let error = sink.place_of(&replaced).diagnostic(Severity::Error, message, None);
    Errors { errors: vec![error], warnings: Vec::new(), files: Vec::new() }
}

/// One error about a whole file.
pub fn about_file(path: &Path, message: String, help: Option<String>) -> Errors {
    let error = Diagnostic {
        severity: Severity::Error,
        file: path.display().to_string(),
        line: 0,
        column: 0,
        message,
        help,
        excerpt: String::new(),
        more: 0,
    };
    Errors { errors: vec![error], warnings: Vec::new(), files: Vec::new() }
}
