//! Many attempts: warm-up, the order in which variants take turns, and what came of it all.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use serde::Serialize;

use crate::attempt::{Outcome, Runner};
use crate::comparison::{MetricSummary, Pair, Series, compare, summarise};
use crate::error::ProbeError;
use crate::h1::Request;
use crate::net::Resolver;
use crate::target::Target;
use crate::tls::{EarlyData, Negotiated};
use crate::variant::Variant;
use sealane_lab_wire::Verifier;

/// How much to measure.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Measured attempts of each variant.
    pub attempts: usize,
    /// Rounds before them that are thrown away: the first TLS calls of a process cost tens of milliseconds.
    pub warmup: usize,
    /// The time that one attempt may take.
    pub timeout: Duration,
    /// A pause before each attempt, so that a rate limit is not what gets measured.
    pub pause: Duration,
    /// The seed of the bootstrap and of sampled permutations.
    pub seed: u64,
}

/// One variant's attempts in summary.
#[derive(Clone, Debug, Serialize)]
pub struct Measured {
    /// The variant's name.
    pub variant: String,
    /// What was agreed on in the last attempt.
    pub negotiated: Negotiated,
    /// Ways in which earlier attempts were agreed on differently; empty is best.
    pub also_negotiated: Vec<Negotiated>,
    /// Attempts whose early data was accepted.
    pub early_data_accepted: usize,
    /// Attempts whose early data was rejected.
    pub early_data_rejected: usize,
    /// How often each status code came.
    pub statuses: BTreeMap<u16, usize>,
    /// Bytes of content of the last response.
    pub body_bytes: u64,
    /// Who answered last.
    pub peer: String,
    /// Each phase, the total, and curl's cumulative columns, in nanoseconds.
    pub metrics: Vec<MetricSummary>,
    /// The attempts' moments, in nanoseconds.
    pub samples: Vec<crate::timing::Timing>,
}

/// All variants, and each against the first.
#[derive(Clone, Debug, Serialize)]
pub struct Measurement {
    /// In the order given.
    pub variants: Vec<Measured>,
    /// Each of the others against the first.
    pub pairs: Vec<Pair>,
}

/// The order of attempts: forward, then backward, and so on (ABBA), so that a drift of the machine or of the network
/// falls on all variants alike.
pub fn turns(variants: usize, attempts: usize) -> impl Iterator<Item = usize> {
    (0..attempts).flat_map(move |round| (0..variants).map(move |i| if round % 2 == 0 { i } else { variants - 1 - i }))
}

/// Measures `variants`. The first failure ends it: a comparison with holes would be none.
pub fn measure(
    variants: &[Variant],
    target: &Target,
    request: &Request,
    verifier: &Arc<Verifier>,
    resolver: &mut Resolver,
    plan: &Plan,
) -> Result<Measurement, ProbeError> {
    let mut runners = variants
        .iter()
        .map(|variant| Runner::new(variant, target, request.clone(), verifier.clone(), plan.timeout))
        .collect::<Result<Vec<_>, _>>()?;
    for turn in turns(variants.len(), plan.warmup) {
        runners[turn].attempt(resolver)?;
    }
    let mut outcomes: Vec<Vec<Outcome>> = vec![Vec::with_capacity(plan.attempts); variants.len()];
    for turn in turns(variants.len(), plan.attempts) {
        if !plan.pause.is_zero() {
            std::thread::sleep(plan.pause);
        }
        outcomes[turn].push(runners[turn].attempt(resolver)?);
    }
    let measured: Vec<Measured> =
        variants.iter().zip(&outcomes).filter_map(|(variant, outcomes)| sum_up(variant, outcomes)).collect();
    let series: Vec<Series> =
        measured.iter().map(|m| Series { name: m.variant.clone(), samples: m.samples.clone() }).collect();
    Ok(Measurement { pairs: compare(&series, plan.seed), variants: measured })
}

fn sum_up(variant: &Variant, outcomes: &[Outcome]) -> Option<Measured> {
    let last = outcomes.last()?;
    let mut also: Vec<Negotiated> = Vec::new();
    let mut statuses = BTreeMap::new();
    for outcome in outcomes {
        *statuses.entry(outcome.response.status).or_insert(0) += 1;
        if outcome.negotiated != last.negotiated && !also.contains(&outcome.negotiated) {
            also.push(outcome.negotiated.clone());
        }
    }
    let early = |what| outcomes.iter().filter(|o| o.negotiated.early_data == Some(what)).count();
    let samples: Vec<_> = outcomes.iter().map(|o| o.timing).collect();
    Some(Measured {
        variant: variant.name.clone(),
        negotiated: last.negotiated.clone(),
        also_negotiated: also,
        early_data_accepted: early(EarlyData::Accepted),
        early_data_rejected: early(EarlyData::Rejected),
        statuses,
        body_bytes: last.response.body_bytes,
        peer: last.peer.to_string(),
        metrics: summarise(&samples),
        samples,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn turns_go_there_and_back() {
        assert_eq!(turns(2, 4).collect::<Vec<_>>(), [0, 1, 1, 0, 0, 1, 1, 0]);
        assert_eq!(turns(3, 2).collect::<Vec<_>>(), [0, 1, 2, 2, 1, 0]);
        assert_eq!(turns(1, 3).collect::<Vec<_>>(), [0, 0, 0]);
        assert_eq!(turns(2, 0).count(), 0);
    }
}
