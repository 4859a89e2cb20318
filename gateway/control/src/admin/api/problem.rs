//! Errors of the API: problem documents (RFC 9457).

use crate::config::{Diagnostic, Errors, Severity};
use serde::{Deserialize, Serialize};

/// The media type of a problem document.
pub const MEDIA_TYPE: &str = "application/problem+json";

/// Why a request was refused. Unknown fields are to be ignored.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Problem {
    /// `about:blank`: the status says what kind of problem it is.
    pub r#type: String,
    /// The status in words.
    pub title: String,
    /// The status.
    pub status: u16,
    /// What is wrong, for people.
    pub detail: String,
    /// Mistakes in a configuration or in a certificate, each with its place.
    pub errors: Vec<Mistake>,
    /// The change is in effect all the same: it could not be written into the file.
    #[serde(skip)]
    pub is_in_effect: bool,
}

/// A mistake in a text.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Mistake {
    /// `error` or `warning`.
    pub severity: String,
    /// The file; `request` for the body of the request.
    pub file: String,
    /// From 1; 0: it is about no line.
    pub line: usize,
    /// In characters from 1; 0: it is about no line.
    pub column: usize,
    /// What is wrong.
    pub message: String,
    /// What to write instead, or how to repair it.
    pub help: Option<String>,
}

impl From<Diagnostic> for Mistake {
    fn from(d: Diagnostic) -> Self {
        let severity = match d.severity {
            Severity::Error => "error",
            Severity::Warning => "warning",
        };
        let Diagnostic { file, line, column, message, help, .. } = d;
        Self { severity: severity.to_owned(), file, line, column, message, help }
    }
}

impl Problem {
    /// One with a text.
    pub fn new(status: u16, detail: impl Into<String>) -> Self {
        let title = hyper::StatusCode::from_u16(status).ok().and_then(|status| status.canonical_reason());
        Self {
            r#type: "about:blank".to_owned(),
            title: title.unwrap_or_default().to_owned(),
            status,
            detail: detail.into(),
            errors: Vec::new(),
            is_in_effect: false,
        }
    }

    /// What is wrong with a configuration or a certificate.
    pub fn of_errors(detail: impl Into<String>, errors: Errors) -> Self {
        let errors = errors.errors.into_iter().chain(errors.warnings).map(Mistake::from).collect();
        Self { errors, ..Self::new(422, detail) }
    }

    /// For people: the text, then each mistake with its place.
    pub fn describe(&self) -> String {
        let mut out = self.detail.clone();
        for Mistake { severity, file, line, column, message, help } in &self.errors {
            out += "\n";
            match *line {
                0 if file.is_empty() => {}
                0 => out += &format!("{file}: "),
                _ => out += &format!("{file}:{line}:{column}: "),
            }
            out += &format!("{severity}: {message}");
            if let Some(help) = help {
                out += &format!("\n  help: {help}");
            }
        }
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_problem_has_the_places_of_mistakes() {
        let mistake = Mistake {
            severity: "error".to_owned(),
            file: "request".to_owned(),
            line: 3,
            column: 7,
            message: "no".to_owned(),
            help: Some("yes".to_owned()),
        };
        let problem = Problem { errors: vec![mistake], ..Problem::new(422, "refused") };
        assert_eq!(problem.describe(), "refused\nrequest:3:7: error: no\n  help: yes");
        let json = serde_json::to_value(&problem).unwrap();
        assert_eq!((&json["type"], &json["title"]), (&"about:blank".into(), &"Unprocessable Entity".into()));
        assert_eq!((&json["errors"][0]["line"], &json["status"]), (&3.into(), &422.into()));
    }
}
