//! The search for the knee: the highest rate that a server holds.
//!
//! Double until a step breaks, then halve the gap between the highest rate that held and the lowest that
//! broke until it is narrow, then run the winner once more: one lucky step is no result. Nor is one unlucky: a rate that
//! breaks is tried a second time before it counts.

use serde::Serialize;

/// What became of one step.
#[derive(Clone, Debug, PartialEq)]
pub enum Step {
    /// All bounds held.
    Held,
    /// A bound broke: which.
    Broken(String),
    /// The step says nothing: why.
    Void(String),
}

/// How to search.
#[derive(Clone, Copy, Debug)]
pub struct Search {
    /// The rate to start from.
    pub from: f64,
    /// Rates beyond this are not tried.
    pub to: f64,
    /// The width of the gap, as a part of the rate, that is narrow enough.
    pub precision: f64,
}

/// One step, for the table.
#[derive(Clone, Debug, Serialize)]
pub struct Tried {
    /// Rate offered.
    pub rate: f64,
    /// `held`, `broken` or `void`.
    pub outcome: &'static str,
    /// Which bound broke, or why it is void.
    pub why: String,
}

/// The result.
#[derive(Clone, Debug, Serialize)]
pub struct Knee {
    /// The highest rate that held, and held again; `None` when not even the first did.
    pub held: Option<f64>,
    /// The lowest rate that broke: the knee lies between the two. `None` when none did.
    pub broke: Option<f64>,
    /// Every step in order.
    pub steps: Vec<Tried>,
    /// Why the result cannot be believed; empty when it can.
    pub void: Vec<String>,
}

impl Search {
    /// Searches; `step` runs a rate and judges it.
    pub fn find<E>(&self, mut step: impl FnMut(f64) -> Result<Step, E>) -> Result<Knee, E> {
        let mut knee = Knee { held: None, broke: None, steps: Vec::new(), void: Vec::new() };
        let mut rate = self.from.min(self.to);
        loop {
            match self.twice(&mut knee, rate, &mut step)? {
                None => return Ok(knee),
                Some(true) => {
                    knee.held = Some(rate);
                    if rate >= self.to {
                        break;
                    }
                    rate = (rate * 2.0).min(self.to);
                }
                Some(false) => {
                    knee.broke = Some(rate);
                    break;
                }
            }
        }
        while let (Some(low), Some(high)) = (knee.held, knee.broke)
            && high - low > low * self.precision
        {
            let middle = (low + high) / 2.0;
            match self.twice(&mut knee, middle, &mut step)? {
                None => return Ok(knee),
                Some(true) => knee.held = Some(middle),
                Some(false) => knee.broke = Some(middle),
            }
        }
        // Once more, and down a little each time that it does not hold again; a new rate has to hold twice.
        let mut to_hold = 1;
        while let (Some(rate), Some(_)) = (knee.held, knee.broke) {
            match self.attempt(&mut knee, rate, &mut step)? {
                None => return Ok(knee),
                Some(true) => to_hold -= 1,
                Some(false) => {
                    knee.broke = Some(rate);
                    let lower = rate * (1.0 - self.precision);
                    knee.held = (lower >= self.from).then_some(lower);
                    to_hold = 2;
                }
            }
            if to_hold == 0 {
                break;
            }
        }
        Ok(knee)
    }

    /// A step, and once more if it broke.
    fn twice<E>(
        &self,
        knee: &mut Knee,
        rate: f64,
        step: &mut impl FnMut(f64) -> Result<Step, E>,
    ) -> Result<Option<bool>, E> {
        match self.attempt(knee, rate, step)? {
            Some(false) => self.attempt(knee, rate, step),
            other => Ok(other),
        }
    }

    /// One step, tried twice more if void: `None` when it stays so.
    fn attempt<E>(
        &self,
        knee: &mut Knee,
        rate: f64,
        step: &mut impl FnMut(f64) -> Result<Step, E>,
    ) -> Result<Option<bool>, E> {
        for _ in 0..3 {
            let (outcome, why, verdict) = match step(rate)? {
                Step::Held => ("held", String::new(), Some(true)),
                Step::Broken(why) => ("broken", why, Some(false)),
                Step::Void(why) => ("void", why, None),
            };
            knee.steps.push(Tried { rate, outcome, why: why.clone() });
            if verdict.is_some() {
                return Ok(verdict);
            }
            if knee.steps.iter().rev().take_while(|s| s.outcome == "void").count() == 3 {
                knee.void.push(format!("every run at {rate:.0}/s was void: {why}"));
            }
        }
        Ok(None)
    }
}

impl Knee {
    /// The result for people.
    pub fn text(&self) -> String {
        let mut s = String::new();
        for step in &self.steps {
            s.push_str(&format!("{:>12.1}/s  {:<6}  {}\n", step.rate, step.outcome, step.why));
        }
        for why in &self.void {
            s.push_str(&format!("VOID: {why}\n"));
        }
        s.push_str(&match (self.held, self.broke) {
            (Some(low), Some(high)) => format!("Sustained {low:.1}/s; the knee is between {low:.1} and {high:.1}/s\n"),
            (Some(low), None) => format!("Sustained {low:.1}/s, the highest rate that was tried\n"),
            (None, Some(high)) => format!("Even the lowest rate, {high:.1}/s, was not sustained\n"),
            (None, None) => "No result: every run was void\n".to_owned(),
        });
        s
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::convert::Infallible;

    fn search(knee: f64) -> Knee {
        let search = Search { from: 100.0, to: 1e6, precision: 0.02 };
        search
            .find(|rate| Ok::<_, Infallible>(if rate <= knee { Step::Held } else { Step::Broken("p99".into()) }))
            .unwrap()
    }

    #[test]
    fn brackets_the_knee() {
        for truth in [101.0, 777.0, 5_432.0, 900_000.0] {
            let found = search(truth);
            let (low, high) = (found.held.unwrap(), found.broke.unwrap());
            assert!(low <= truth && truth < high && high - low <= low * 0.02, "{truth}: {low} {high}");
        }
        assert_eq!(search(50.0).held, None);
        assert_eq!(search(2e6).broke, None);
    }

    #[test]
    fn a_rate_that_held_by_luck_is_taken_back() {
        let mut seen = std::collections::HashMap::new();
        let found = Search { from: 100.0, to: 1e6, precision: 0.05 }
            .find(|rate| {
                let times = seen.entry(rate as u64).or_insert(0);
                *times += 1;
                let lucky = *times == 1 && rate <= 1000.0;
                Ok::<_, Infallible>(if rate <= 900.0 || lucky { Step::Held } else { Step::Broken(String::new()) })
            })
            .unwrap();
        assert!(found.held.unwrap() <= 900.0, "{found:?}");
    }

    #[test]
    fn a_rate_that_broke_by_chance_is_tried_again() {
        let mut seen = std::collections::HashSet::new();
        let found = Search { from: 100.0, to: 1e6, precision: 0.05 }
            .find(|rate| {
                let unlucky = seen.insert(rate as u64) && rate < 500.0;
                Ok::<_, Infallible>(if rate <= 900.0 && !unlucky { Step::Held } else { Step::Broken(String::new()) })
            })
            .unwrap();
        assert!(found.held.unwrap() > 800.0, "{found:?}");
    }

    #[test]
    fn void_steps_are_repeated_and_then_given_up() {
        let mut n = 0;
        let found = Search { from: 1.0, to: 10.0, precision: 0.1 }
            .find(|_| {
                n += 1;
                Ok::<_, Infallible>(Step::Void("lag".into()))
            })
            .unwrap();
        assert_eq!((n, found.void.len(), found.held), (3, 1, None));
    }
}
