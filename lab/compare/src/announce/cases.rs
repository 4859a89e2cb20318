//! Entries, differences and what is announced, for tests. Requests are those of [`crate::draft::cases`].

use super::effects::Effects;
use super::{Case, announced};
use crate::Kind;
use crate::difference::{Aspect, Difference};
use crate::draft::Draft;
use crate::translation::Entry;
use crate::tree::{Place, Scope};
use std::collections::BTreeMap;
use std::sync::Arc;

pub(super) use crate::draft::cases::{draft, place};

pub(super) static NO_EFFECTS: Effects = Effects::NONE;
pub(super) static NO_BACKENDS: BTreeMap<String, Vec<String>> = BTreeMap::new();

pub(super) fn entry(line: u32, outcome: &str, directive: &str, says: &str) -> Entry {
    let (outcome, directive, says) = (outcome.to_owned(), directive.to_owned(), says.to_owned());
    Entry { outcome, place: place(line), directive, says }
}

pub(super) fn difference(aspect: Aspect, original: &str, translation: &str) -> Difference {
    Difference { aspect, original: original.to_owned(), translation: translation.to_owned(), general: None }
}

/// The line of the entry that announces a difference of a request.
pub(super) fn line(entries: &[Entry], draft: &Draft, difference: &Difference) -> Option<u32> {
    let scope: Scope = Arc::new(entries.iter().map(|e| e.place.clone()).collect());
    let at = place(1);
    announced(entries, &case(&at, &scope, draft, difference)).map(|e| e.place.line)
}

/// A difference of a request whose answer is 200.
pub(super) fn case<'a>(place: &'a Place, scope: &'a Scope, draft: &'a Draft, difference: &'a Difference) -> Case<'a> {
    let (asked, status) = ((true, true), 200);
    Case {
        kind: Kind::Nginx,
        place,
        scope,
        draft: Some(draft),
        difference,
        asked,
        moved: None,
        backends: &NO_BACKENDS,
        effects: &NO_EFFECTS,
        status,
    }
}
