//! Licence expressions as SPDX writes them (SPDX 3.0 annex B: `AND` binds tighter than `OR`, `WITH` tightest), judged
//! against a list of what is allowed.

/// Whether a user of the package can choose allowed licences only.
pub fn allowed(expression: &str, allow: &dyn Fn(&str) -> bool) -> Result<bool, String> {
    // Cargo's old way of writing OR.
    let spaced = expression.replace('/', " OR ").replace('(', " ( ").replace(')', " ) ");
    let mut parser = Parser { words: spaced.split_whitespace().collect(), at: 0, allow };
    let verdict = parser.any()?;
    match parser.peek() {
        None => Ok(verdict),
        Some(word) => Err(format!("`{word}` where the expression should end")),
    }
}

struct Parser<'a> {
    words: Vec<&'a str>,
    at: usize,
    allow: &'a dyn Fn(&str) -> bool,
}

impl<'a> Parser<'a> {
    fn peek(&self) -> Option<&'a str> {
        self.words.get(self.at).copied()
    }

    fn take(&mut self, word: &str) -> bool {
        let found = self.peek().is_some_and(|next| next.eq_ignore_ascii_case(word));
        self.at += usize::from(found);
        found
    }

    fn any(&mut self) -> Result<bool, String> {
        let mut verdict = self.all()?;
        while self.take("OR") {
            verdict |= self.all()?;
        }
        Ok(verdict)
    }

    fn all(&mut self) -> Result<bool, String> {
        let mut verdict = self.one()?;
        while self.take("AND") {
            verdict &= self.one()?;
        }
        Ok(verdict)
    }

    fn one(&mut self) -> Result<bool, String> {
        if self.take("(") {
            let verdict = self.any()?;
            return if self.take(")") { Ok(verdict) } else { Err("a `(` without its `)`".into()) };
        }
        let licence = self.identifier()?;
        if self.take("WITH") {
            let exception = self.identifier()?;
            return Ok((self.allow)(&format!("{licence} WITH {exception}")));
        }
        Ok((self.allow)(licence))
    }

    fn identifier(&mut self) -> Result<&'a str, String> {
        let word = self.peek().ok_or("it ends too early")?;
        if ["AND", "OR", "WITH", "(", ")"].iter().any(|reserved| reserved.eq_ignore_ascii_case(word)) {
            return Err(format!("`{word}` where a licence should be"));
        }
        self.at += 1;
        Ok(word)
    }
}

#[cfg(test)]
mod tests {
    use super::allowed;

    fn judge(expression: &str) -> Result<bool, String> {
        allowed(expression, &|licence| ["MIT", "ISC", "Apache-2.0 WITH LLVM-exception"].contains(&licence))
    }

    #[test]
    fn a_choice_needs_one_and_a_sum_needs_all() {
        assert_eq!(judge("MIT"), Ok(true));
        assert_eq!(judge("GPL-3.0"), Ok(false));
        assert_eq!(judge("GPL-3.0 OR MIT"), Ok(true));
        assert_eq!(judge("GPL-3.0/MIT"), Ok(true));
        assert_eq!(judge("GPL-3.0 AND MIT"), Ok(false));
        assert_eq!(judge("ISC AND MIT"), Ok(true));
    }

    #[test]
    fn and_binds_tighter_than_or() {
        assert_eq!(judge("MIT OR ISC AND GPL-3.0"), Ok(true));
        assert_eq!(judge("(MIT OR ISC) AND GPL-3.0"), Ok(false));
        assert_eq!(judge("ISC AND (GPL-3.0 OR ISC) AND MIT"), Ok(true));
    }

    #[test]
    fn an_exception_is_judged_with_its_licence() {
        assert_eq!(judge("Apache-2.0 WITH LLVM-exception"), Ok(true));
        assert_eq!(judge("Apache-2.0"), Ok(false));
        assert_eq!(judge("MIT WITH LLVM-exception"), Ok(false));
    }

    #[test]
    fn nonsense_is_an_error() {
        for expression in ["", "MIT OR", "(MIT", "MIT)", "MIT ISC", "AND MIT", "MIT WITH"] {
            assert!(judge(expression).is_err(), "{expression:?}");
        }
    }
}
