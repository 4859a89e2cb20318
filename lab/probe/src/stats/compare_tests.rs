//! Expected values come from scipy 1.x (`mannwhitneyu`, `permutation_test`) unless a test says otherwise.

use super::*;

#[test]
fn mann_whitney_exact_matches_scipy() {
    // mannwhitneyu([1,2,3], [4,5,6], method="exact"): U = 0, p = 2/20.
    let test = mann_whitney(&[1, 2, 3], &[4, 5, 6]).expect("samples");
    assert_eq!((test.u, test.method), (0.0, MannWhitneyMethod::Exact));
    assert!((test.p - 0.1).abs() < 1e-12);

    let test = mann_whitney(&[19, 22, 16, 29, 24], &[20, 11, 17, 12]).expect("samples");
    assert_eq!(test.u, 17.0);
    assert!((test.p - 0.1111111111111111).abs() < 1e-12);

    let a = [11, 45, 3, 82, 37, 64, 90, 28, 51, 77, 16, 69, 34, 58, 23];
    let b = [40, 95, 88, 12, 66, 73, 99, 54, 81, 47, 36, 92, 60, 70, 85, 20];
    let test = mann_whitney(&a, &b).expect("samples");
    assert_eq!((test.u, test.method), (74.0, MannWhitneyMethod::Exact));
    assert!((test.p - 0.07173517006602062).abs() < 1e-12);
}

#[test]
fn mann_whitney_with_ties_matches_scipy() {
    // mannwhitneyu(..., method="asymptotic"), which corrects for ties and continuity.
    let test = mann_whitney(&[1, 2, 2, 3, 3, 3, 4], &[3, 4, 4, 5, 5, 6]).expect("samples");
    assert_eq!((test.u, test.method), (3.5, MannWhitneyMethod::Normal));
    assert!((test.p - 0.012999854364387305).abs() < 1e-9, "{}", test.p);

    let a: Vec<u64> = (0..600).step_by(7).collect();
    let b: Vec<u64> = (40..640).step_by(5).collect();
    let test = mann_whitney(&a, &b).expect("samples");
    assert_eq!(test.u, 4496.0);
    assert!((test.p - 0.11581931882455161).abs() < 1e-9, "{}", test.p);
}

#[test]
fn mann_whitney_is_symmetric_and_never_above_one() {
    let (a, b) = ([5, 1, 9, 30, 2], [7, 8, 3, 4]);
    let (ab, ba) = (mann_whitney(&a, &b).expect("samples"), mann_whitney(&b, &a).expect("samples"));
    assert!((ab.p - ba.p).abs() < 1e-12);
    assert_eq!(ab.u + ba.u, 20.0);
    assert_eq!(mann_whitney(&[4, 4], &[4, 4, 4]).expect("samples").p, 1.0);
    assert_eq!(mann_whitney(&[2], &[1]).expect("samples").p, 1.0);
    assert_eq!(mann_whitney(&[], &[1]), None);
}

#[test]
fn exact_counts_stay_exact_at_the_largest_size() {
    // All arrangements together are C(100, 50), so the tail up to the largest U must be 1.
    assert!((exact_lower_tail(50, 50, 2500) - 1.0).abs() < 1e-12);
    assert!(exact_lower_tail(50, 50, 0) > 0.0);
}

#[test]
fn permutation_by_hand() {
    // Of the 20 ways to choose three of six, only {1,2,3} and {4,5,6} lie this far apart: p = 2/20.
    let test = permutation_of_means(&[1, 2, 3], &[4, 5, 6], 1).expect("samples");
    assert_eq!(test, Permutation { p: 0.1, exact: true, relabellings: 20 });
    // Sets of different sizes: {10} against {1, 2}; only {10} itself of the three choices is as far. p = 1/3.
    let test = permutation_of_means(&[10], &[1, 2], 1).expect("samples");
    assert_eq!((test.p, test.relabellings), (1.0 / 3.0, 3));
}

#[test]
fn a_sampled_permutation_is_close_to_chance_for_equal_sets_and_never_zero() {
    let a: Vec<u64> = (0..60).map(|i| i * 37 % 101).collect();
    let b: Vec<u64> = (0..60).map(|i| i * 53 % 101).collect();
    let test = permutation_of_means(&a, &b, 7).expect("samples");
    assert!(!test.exact && test.p > 0.3);
    let far: Vec<u64> = a.iter().map(|x| x + 1000).collect();
    let test = permutation_of_means(&a, &far, 7).expect("samples");
    assert!(test.p > 0.0 && test.p < 0.001);
}

#[test]
fn the_bootstrap_is_seeded_and_brackets_a_shift() {
    let a: Vec<u64> = (0..40).map(|i| 1000 + i * 17 % 41).collect();
    let b: Vec<u64> = a.iter().map(|x| x + 500).collect();
    let first = bootstrap_difference_of_medians(&a, &b, 2000, 42).expect("samples");
    assert_eq!(first, bootstrap_difference_of_medians(&a, &b, 2000, 42).expect("samples"));
    assert_eq!(first.difference, 500.0);
    assert!(first.low > 480.0 && first.low < 500.0 && first.high > 500.0 && first.high < 520.0, "{first:?}");
    let other = bootstrap_difference_of_medians(&a, &b, 2000, 43).expect("samples");
    assert!(other.low != first.low || other.high != first.high || other.seed != first.seed);
    assert_eq!(bootstrap_difference_of_medians(&a, &[], 10, 1), None);
}

#[test]
fn the_bootstrap_covers_the_truth_about_as_often_as_it_says() {
    // 300 pairs of sets from one source: the 95 % interval should leave out zero in about 15 of them. Medians
    // of small sets make percentile intervals a little wide, so few misses are fine and many are not.
    let mut rng = Rng::new(99);
    let misses = (0..300)
        .filter(|&i| {
            let mut set = || (0..20).map(|_| rng.next_u64() >> 40).collect::<Vec<u64>>();
            let (a, b) = (set(), set());
            let interval = bootstrap_difference_of_medians(&a, &b, 400, i).expect("samples");
            interval.low > 0.0 || interval.high < 0.0
        })
        .count();
    assert!((1..=30).contains(&misses), "{misses} of 300 intervals left out the truth");
}

#[test]
fn holm_by_hand() {
    // Sorted 0.01, 0.02, 0.03, 0.04 times 4, 3, 2, 1 = 0.04, 0.06, 0.06, 0.04; then never falling.
    let adjusted = holm(&[0.04, 0.01, 0.03, 0.02]);
    for (is, want) in adjusted.iter().zip([0.06, 0.04, 0.06, 0.06]) {
        assert!((is - want).abs() < 1e-12, "{adjusted:?}");
    }
    assert_eq!(holm(&[0.9, 0.8]), vec![1.0, 1.0]);
    assert!(holm(&[]).is_empty());
}

#[test]
fn a_direction_needs_both_the_test_and_the_interval() {
    let interval = |low, high| Bootstrap { difference: (low + high) / 2.0, low, high, resamples: 1, seed: 0 };
    assert_eq!(Direction::of(&interval(-3.0, -1.0), 0.01), Direction::Shorter);
    assert_eq!(Direction::of(&interval(1.0, 3.0), 0.01), Direction::Longer);
    assert_eq!(Direction::of(&interval(-3.0, -1.0), 0.2), Direction::NoDifferenceShown);
    assert_eq!(Direction::of(&interval(-3.0, 1.0), 0.01), Direction::NoDifferenceShown);
    assert_eq!(Direction::of(&interval(-3.0, -1.0), f64::NAN), Direction::NoDifferenceShown);
}
