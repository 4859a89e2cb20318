//! For tests: numbers that follow from a seed, and the vectors of Project Wycheproof (`tests/vectors/wycheproof`).

/// Numbers that follow from a seed (SplitMix64).
pub(crate) struct Seeded(u64);

impl Seeded {
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number below this.
    pub fn below(&mut self, limit: usize) -> usize {
        (self.next() % limit as u64) as usize
    }

    pub fn once_in(&mut self, times: usize) -> bool {
        self.below(times) == 0
    }

    pub fn of<'a, T>(&mut self, list: &'a [T]) -> &'a T {
        &list[self.below(list.len())]
    }

    /// Fewer bytes than this.
    pub fn bytes(&mut self, limit: usize) -> Vec<u8> {
        (0..self.below(limit)).map(|_| self.next() as u8).collect()
    }
}

pub(crate) fn hex(text: &str) -> Vec<u8> {
    (0..text.len()).step_by(2).map(|at| u8::from_str_radix(&text[at..at + 2], 16).unwrap()).collect()
}

/// A test of Project Wycheproof, or a group of tests.
#[derive(Clone)]
pub(crate) struct Vector(serde_json::Value);

/// What an implementation is to do with a test.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    Valid,
    /// Either is right.
    Acceptable,
    Invalid,
}

impl Vector {
    /// The tests of a file, each with its group.
    pub fn all(file: &str) -> Vec<(Vector, Vector)> {
        let file: serde_json::Value = serde_json::from_str(file).expect("the file is JSON");
        let groups = file["groups"].as_array().expect("it has groups").iter();
        let tests = groups.flat_map(|group| {
            let tests = group["tests"].as_array().expect("it has tests").iter();
            let group = Vector(group.clone());
            tests.map(move |test| (group.clone(), Vector(test.clone())))
        });
        tests.collect()
    }

    pub fn text(&self, name: &str) -> &str {
        self.0[name].as_str().unwrap_or_default()
    }

    pub fn bytes(&self, name: &str) -> Vec<u8> {
        hex(self.text(name))
    }

    pub fn number(&self, name: &str) -> usize {
        self.0[name].as_u64().expect("it is a number") as usize
    }

    pub fn verdict(&self) -> Verdict {
        match self.text("result") {
            "valid" => Verdict::Valid,
            "acceptable" => Verdict::Acceptable,
            "invalid" => Verdict::Invalid,
            other => panic!("{other:?} is no result"),
        }
    }

    /// For messages.
    pub fn id(&self) -> String {
        format!("test {}: {}", self.number("tcId"), self.text("comment"))
    }
}
