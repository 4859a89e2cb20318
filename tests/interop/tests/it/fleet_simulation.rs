//! The fleet that `cargo xtask fleet` measures, with three gateways: what must be true of it, however long it takes.

use sealane_interop::fleet::{Budget, Fleet, Settings};
use sealane_interop::{eventually, skip};
use std::time::Duration;

const SIZE: usize = 3;
/// One in three minutes comes back: none in the time of a test.
const BUDGET: Budget = Budget { per_hour: 20, burst: 20 };
const HALF_A_DAY: Duration = Duration::from_secs(12 * 3600);

/// A fleet whose ticket keys are replaced so often, or the test is skipped.
macro_rules! fleet {
    ($lifetime:expr) => {
        match Fleet::start(Settings { size: SIZE, budget: BUDGET, lifetime: $lifetime }) {
            Some(fleet) => fleet,
            None => skip!("`redis-server` is not installed (cargo xtask setup)"),
        }
    };
}

#[track_caller]
fn done<T>(what: anyhow::Result<T>) -> T {
    what.unwrap_or_else(|error| panic!("{error:#}"))
}

#[track_caller]
fn all_resume_each_others_sessions(fleet: &Fleet) {
    for issuer in 0..SIZE {
        for acceptor in 0..SIZE {
            assert!(fleet.resumes(issuer, acceptor), "{issuer} to {acceptor}");
        }
    }
}

/// Clients send requests to all gateways all the time.
#[test]
fn a_fleet_loses_no_request_while_it_is_reloaded_upgraded_and_its_store_is_emptied() {
    let mut fleet = fleet!(HALF_A_DAY);
    let crowd = fleet.crowd();
    let all_serve = || {
        let before = crowd.requests();
        // Ten rounds of all clients.
        assert!(eventually(|| crowd.requests() > before + 10 * (SIZE as u64 + 1)), "clients are not served");
    };
    assert_eq!(done(fleet.roll_out()).each_ms.len(), SIZE);
    all_serve();
    assert_eq!(done(fleet.upgrade_all()).each_ms.len(), SIZE);
    all_serve();
    all_resume_each_others_sessions(&fleet);
    let restart = done(fleet.empty_store());
    assert_eq!((restart.resumed, restart.noticed_restart), (SIZE as u64, SIZE as u64), "{restart:?}");
    all_serve();
    all_resume_each_others_sessions(&fleet);
    // The new processes can be reloaded and upgraded as the first ones.
    done(fleet.roll_out());
    done(fleet.upgrade_all());
    all_serve();
    let tally = crowd.stop();
    assert_eq!(tally.failures, Vec::<String>::new());
    done(fleet.first_processes_end());
}

/// A gateway by itself would let all requests pass until it has served twenty.
#[test]
fn gateways_of_a_fleet_hold_a_rate_together() {
    let fleet = fleet!(HALF_A_DAY);
    let limit = done(fleet.limit("one", Duration::from_secs(9), Duration::from_millis(300)));
    let burst = u64::from(BUDGET.burst);
    assert!(limit.passed >= limit.sent.min(burst) && limit.passed < burst * SIZE as u64, "{limit:?}");
    // Each gateway gets the count with the first request that it lets pass.
    let none_passes = || done(fleet.limit("one", Duration::from_millis(100), Duration::from_millis(100))).passed == 0;
    assert!(eventually(none_passes));
    assert!(done(fleet.limit("another", Duration::from_millis(100), Duration::from_millis(100))).passed > 0);
}

/// This test takes a minute: the shortest lifetime that may be configured.
#[test]
fn a_new_ticket_key_comes_into_use_at_all_gateways_of_a_fleet() {
    let fleet = fleet!(Duration::from_secs(60));
    let rotation = done(fleet.rotation());
    assert_eq!((rotation.distributed.each_ms.len(), rotation.used.each_ms.len()), (SIZE, SIZE));
    assert!(rotation.resumed > 0, "{rotation:?}");
    all_resume_each_others_sessions(&fleet);
}
