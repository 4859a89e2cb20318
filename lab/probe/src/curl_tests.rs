use super::*;
use crate::comparison::{Pair, compare};
use crate::stats::{Direction, MannWhitneyMethod};

const STUDY: &str = include_str!("../../data/tls-versions-curl.csv");

fn study() -> Pair {
    let series = parse(STUDY).expect("the study's rows");
    assert_eq!(
        series.iter().map(|s| (s.name.as_str(), s.samples.len())).collect::<Vec<_>>(),
        [("1.2", 10), ("1.3", 10)]
    );
    compare(&series, 1).remove(0)
}

/// Milliseconds to as many places as the study's README prints.
fn ms(nanoseconds: f64, places: usize) -> String {
    let unit = 10f64.powi(6 - places as i32);
    format!("{:.places$}", (nanoseconds / unit).round() * unit / 1e6)
}

/// The difference of means in percent.
fn percent(pair: &Pair, metric: Metric, places: usize) -> String {
    let share = pair.metric(metric).and_then(|m| m.relative_difference_of_means).expect("a mean above 0");
    format!("{:.places$}", -share * 100.0)
}

#[test]
fn the_studys_rows_give_the_means_that_its_table_missed() {
    let pair = study();
    let means = |metric| pair.metric(metric).expect("metric").means;
    assert_eq!(means(Metric::TimeAppconnect).map(|m| ms(m, 3)), ["7.473", "6.486"]);
    assert_eq!(percent(&pair, Metric::TimeAppconnect, 1), "13.2");
    assert_eq!(means(Metric::TimeTotal).map(|m| ms(m, 3)), ["10.405", "10.098"]);
    assert_eq!(percent(&pair, Metric::TimeTotal, 1), "2.9");
}

#[test]
fn the_tls_phase_proper_is_a_quarter_shorter() {
    let pair = study();
    let tls = pair.metric(Metric::Tls).expect("metric");
    assert_eq!(tls.means.map(|m| ms(m, 2)), ["4.20", "3.14"]);
    assert_eq!(percent(&pair, Metric::Tls, 0), "25");
    assert_eq!(tls.verdict, Some(Direction::Shorter));
    // scipy.stats.mannwhitneyu(method="exact"), as there are no ties here: 7.577561757128321e-05.
    assert_eq!(tls.mann_whitney.method, MannWhitneyMethod::Exact);
    assert!((tls.mann_whitney.p - 7.577561757128321e-05).abs() < 1e-15, "{}", tls.mann_whitney.p);
}

#[test]
fn no_difference_is_shown_in_the_total() {
    let pair = study();
    let total = pair.metric(Metric::Total).expect("metric");
    // scipy.stats.permutation_test, exact over 184 756 relabellings: 0.42846781701270864.
    assert!(total.permutation.exact);
    assert!((total.permutation.p - 0.42846781701270864).abs() < 1e-12, "{}", total.permutation.p);
    assert_eq!(format!("{:.2}", total.permutation.p), "0.43");
    // scipy.stats.mannwhitneyu: 0.6774705127728922.
    assert_eq!(total.mann_whitney.method, MannWhitneyMethod::Normal);
    assert!((total.mann_whitney.p - 0.6774705127728922).abs() < 1e-9, "{}", total.mann_whitney.p);
    assert_eq!(format!("{:.2}", total.mann_whitney.p), "0.68");
    assert_eq!(total.verdict, Some(Direction::NoDifferenceShown));
    assert!(total.bootstrap.low < 0.0 && total.bootstrap.high > 0.0);
}

#[test]
fn columns_are_found_by_name_in_any_order() {
    let text = "who,time_total,note,time_starttransfer,time_appconnect_s,time_connect,time_namelookup\n\
                # a comment\n\nx,0.5,hello,0.4,0.3,0.2,0.1\n";
    let series = parse(text).expect("rows");
    assert_eq!(
        series[0].samples,
        [Timing {
            namelookup: 100_000_000,
            connect: 200_000_000,
            appconnect: 300_000_000,
            starttransfer: 400_000_000,
            total: 500_000_000
        }]
    );
}

#[test]
fn bad_files_are_refused_with_their_line() {
    let header = "tls,attempt,time_namelookup_s,time_connect_s,time_appconnect_s,time_starttransfer_s,time_total_s";
    let error = |text: &str| parse(text).expect_err("refused").to_string();
    assert!(error("").contains("empty"));
    assert!(error(header).contains("no rows"));
    assert!(error("a,b\n1,2").contains("time_namelookup"));
    assert!(error(&format!("{header}\n1.2,1,0.1,0.2,x,0.3,0.4")).contains("line 2: time_appconnect is 'x'"));
    assert!(error(&format!("{header}\n1.2,1,0.1,0.2")).contains("line 2"));
    assert!(error(&format!("{header}\n1.2,1,0.1,0.2,0.0,0.3,0.4")).contains("decrease"));
    for bad in ["NaN", "inf", "-1", "1e300"] {
        assert!(error(&format!("{header}\n1.2,1,{bad},0.2,0.3,0.4,0.5")).contains("line 2"), "{bad}");
    }
    assert!(
        error("time_namelookup,time_connect,time_appconnect,time_starttransfer,time_total\n1,2,3,4,5")
            .contains("group")
    );
}
