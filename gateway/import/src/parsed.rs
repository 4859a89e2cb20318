//! An original as it was read: the directives with their words and places, without a translation. `sealane-lab compare` derives
//! requests from it.

use crate::report::Place;
use serde_json::{Value, json};

/// A directive of NGINX, or a section or line of HAProxy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Parsed {
    /// Where it is.
    pub place: Place,
    /// Its words, without quotes and with included variables.
    pub words: Vec<String>,
    /// What is in its block; `None` without one.
    pub block: Option<Vec<Parsed>>,
    /// The named `defaults` that a section of HAProxy inherits.
    pub from: Option<String>,
}

impl Parsed {
    fn to_value(&self) -> Value {
        let mut out = json!({ "file": &*self.place.file, "line": self.place.line, "words": self.words });
        if let (Some(block), Some(object)) = (&self.block, out.as_object_mut()) {
            object.insert("block".to_owned(), block.iter().map(Self::to_value).collect());
        }
        if let (Some(from), Some(object)) = (&self.from, out.as_object_mut()) {
            object.insert("from".to_owned(), from.as_str().into());
        }
        out
    }

    /// A list of them as JSON.
    pub fn to_json(all: &[Self]) -> String {
        format!("{:#}\n", all.iter().map(Self::to_value).collect::<Value>())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Memory, haproxy, nginx};
    use std::path::Path;

    #[test]
    fn what_is_included_has_its_own_place() {
        let mut files = Memory::of("/n/main.conf", b"http {\n include s/*.conf;\n}\n");
        files.files.insert("/n/s/a.conf".into(), b"\nserver { listen \"80\"; }".to_vec());
        let read = nginx::parsed(&files, Path::new("/n/main.conf")).unwrap();
        let server = &read[0].block.as_ref().unwrap()[0];
        assert_eq!((&*server.place.file, server.place.line), ("/n/s/a.conf", 2));
        assert_eq!(server.block.as_ref().unwrap()[0].words, ["listen", "80"]);
        assert!(Parsed::to_json(&read).contains("\"line\": 2"));
    }

    #[test]
    fn sections_have_their_lines_and_defaults() {
        let text = b"defaults d\n mode http\nfrontend f from d\n bind :80 # all\nbackend b\n server s 'a b':1\n";
        let read = haproxy::parsed(&Memory::of("/h", text), Path::new("/h")).unwrap();
        assert_eq!(read[1].words, ["frontend", "f"]);
        assert_eq!((read[0].from.as_deref(), read[2].from.as_deref()), (None, Some("d")));
        assert_eq!(read[1].block.as_ref().unwrap()[0].words, ["bind", ":80"]);
        assert_eq!(read[2].block.as_ref().unwrap()[0].words, ["server", "s", "a b:1"]);
    }
}
