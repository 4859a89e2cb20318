//! What a program's or library's file says: the function at an address, and the bytes there.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use object::{Object, ObjectSegment, ObjectSymbol, SymbolKind};

/// One file, as far as it can be read.
#[derive(Debug, Default)]
pub struct Image {
    /// Start, end and name of functions, by their start.
    functions: Vec<(u64, u64, String)>,
    /// Address and content of what is loaded.
    segments: Vec<(u64, Vec<u8>)>,
}

impl Image {
    /// Reads a file; one that cannot be read knows nothing.
    pub fn read(path: &Path) -> Self {
        let Ok(data) = std::fs::read(path) else { return Self::default() };
        let Ok(file) = object::File::parse(&*data) else { return Self::default() };
        let mut functions: Vec<(u64, u64, String)> = file
            .symbols()
            .chain(file.dynamic_symbols())
            .filter(|s| s.kind() == SymbolKind::Text && s.address() != 0)
            .filter_map(|s| {
                let name = rustc_demangle::demangle(s.name().ok()?);
                // Assembly often has no size: then it reaches to the next one.
                Some((s.address(), s.address() + s.size(), format!("{name:#}")))
            })
            .collect();
        functions.sort();
        functions.dedup_by_key(|f| f.0);
        for n in 0..functions.len() {
            if functions[n].1 == functions[n].0 {
                functions[n].1 = functions.get(n + 1).map_or(u64::MAX, |next| next.0);
            }
        }
        let segments =
            file.segments().filter_map(|s| Some((s.address(), s.data().ok()?.to_vec()))).filter(|s| !s.1.is_empty());
        let segments = segments.collect();
        Self { functions, segments }
    }

    /// The function that an address lies in.
    pub fn function(&self, address: u64) -> Option<&str> {
        let after = self.functions.partition_point(|f| f.0 <= address);
        let (_, end, name) = self.functions.get(after.checked_sub(1)?)?;
        (address < *end).then_some(name)
    }

    /// The bytes from an address on, as far as the file has them.
    pub fn bytes(&self, address: u64) -> Option<&[u8]> {
        self.segments.iter().find_map(|(start, data)| {
            let from = usize::try_from(address.checked_sub(*start)?).ok()?;
            data.get(from..).filter(|rest| !rest.is_empty())
        })
    }

    /// Where the file's first byte is loaded, were it loaded as it says: 0 for what can lie anywhere.
    pub fn base(&self) -> u64 {
        self.segments.iter().map(|s| s.0).min().unwrap_or(0) & !0xfff
    }
}

/// Files that were read, each once.
#[derive(Debug, Default)]
pub struct Images(HashMap<PathBuf, Image>);

impl Images {
    /// The image of a file.
    pub fn of(&mut self, path: &Path) -> &Image {
        self.0.entry(path.to_owned()).or_insert_with(|| Image::read(path))
    }

    /// A place in a file, in words: its function, or the file's name and the offset.
    pub fn place(&mut self, path: &Path, offset: u64) -> String {
        let image = self.of(path);
        let address = offset + image.base();
        image.function(address).map_or_else(
            || {
                let file = path.file_name().map_or_else(|| path.to_string_lossy(), |n| n.to_string_lossy());
                format!("{file}+{offset:#x}")
            },
            str::to_owned,
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_program_knows_its_own_functions() {
        let image = Image::read(&std::env::current_exe().expect("known"));
        let own = image.functions.iter().find(|f| f.1 > f.0 && f.2.contains("sealane_lab_stacks::catalogue"));
        let (start, end, name) = own.expect("not all of it is inlined").clone();
        assert_eq!(image.function(start), Some(name.as_str()));
        assert_eq!(image.function(end - 1), Some(name.as_str()));
        assert!(image.bytes(start).is_some_and(|b| b.len() as u64 >= end - start));
        assert!(Image::read(Path::new("/nowhere")).function(1).is_none());
    }

    #[test]
    fn what_has_no_name_is_given_by_its_offset() {
        assert_eq!(Images::default().place(Path::new("/nowhere/lib.so"), 0x10), "lib.so+0x10");
    }
}
