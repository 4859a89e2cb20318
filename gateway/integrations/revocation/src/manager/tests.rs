//! Responders that do what a script says, on tokio's clock and the real time of day.

use super::*;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};

/// Responses of three bytes: how the certificate stands, and for how many minutes the response has been, and will be, good.
struct Scripted;

const GOOD: u8 = 0;
const REVOKED: u8 = 1;
const UNKNOWN: u8 = 2;

impl Question for Scripted {
    fn request(&self) -> Vec<u8> {
        vec![1]
    }

    fn verify(&self, response: &[u8], now: u64) -> Result<Response, Refused> {
        let [standing, past, future] = *response else { return Err(Refused::Malformed) };
        let standing = match standing {
            GOOD => Standing::Good,
            REVOKED => Standing::Revoked,
            _ => Standing::Unknown,
        };
        if future == 0 {
            return Err(Refused::Expired);
        }
        let (this_update, next_update) = (now - u64::from(past) * 60, now + u64::from(future) * 60);
        Ok(Response { standing, this_update, next_update })
    }
}

fn wanted(number: u8, host: &str) -> Wanted {
    Wanted {
        digest: [number; 32],
        name: format!("{number}.pem"),
        url: format!("http://{host}/"),
        question: Some(Arc::new(Scripted)),
        response: None,
    }
}

fn settings(storage: &std::path::Path) -> RevocationSettings {
    RevocationSettings {
        storage: storage.to_path_buf(),
        refresh: Duration::from_secs(3600),
        roots: Vec::new(),
        lists: Vec::new(),
    }
}

fn run(work: impl Future<Output = ()>) {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(work);
}

/// Waits until something holds, for as long as a test may take.
async fn until(mut holds: impl FnMut() -> bool) {
    for _ in 0..2000 {
        if holds() {
            return;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("it does not come");
}

fn report(manager: &Manager, number: u8) -> Report {
    locked(&manager.reports()).certificates.get(&[number; 32]).cloned().unwrap_or_default()
}

#[test]
fn a_good_response_is_sent_and_kept_and_a_bad_one_is_not() {
    run(async {
        let storage = tempfile::tempdir().unwrap();
        let ask: Ask = Arc::new(|url, _| {
            Box::pin(async move {
                match url.as_str() {
                    "http://good/" => Ok(vec![GOOD, 0, 60]),
                    "http://revoked/" => Ok(vec![REVOKED, 0, 60]),
                    "http://unknown/" => Ok(vec![UNKNOWN, 0, 60]),
                    "http://lying/" => Ok(vec![9]),
                    _ => Err("it is dead".to_owned().into()),
                }
            })
        });
        let settings = settings(storage.path());
        let manager = Manager::asking(settings.clone(), ask);
        let hosts = ["good", "revoked", "unknown", "lying", "dead"];
        manager.want(hosts.iter().zip(1..).map(|(host, number)| wanted(number, host)).collect());
        manager.changed().await;
        until(|| locked(&manager.reports()).failed == 3 && manager.staples().len() == 2).await;
        assert_eq!(manager.staples()[&[1; 32]][..], [GOOD, 0, 60]);
        assert_eq!((report(&manager, 1).standing, report(&manager, 2).standing), ("good", "revoked"));
        for (number, why) in [(3, "does not know"), (4, "not an OCSP response"), (5, "dead")] {
            let report = report(&manager, number);
            assert!(report.standing.is_empty() && report.last_error.contains(why), "{report:?}");
            assert!(report.next_request.is_some_and(|at| at > now()), "{report:?}");
        }
        until(|| [1, 2].iter().all(|number| settings.response_file(&[*number; 32]).exists())).await;
        assert_eq!(std::fs::read(settings.response_file(&[1; 32])).unwrap(), [GOOD, 0, 60]);
        assert!(!settings.response_file(&[4; 32]).exists());
    });
}

#[test]
fn what_an_earlier_process_kept_is_sent_without_a_request() {
    run(async {
        let storage = tempfile::tempdir().unwrap();
        let asked = Arc::new(AtomicUsize::new(0));
        let counted = asked.clone();
        let ask: Ask = Arc::new(move |_, _| {
            counted.fetch_add(1, SeqCst);
            Box::pin(async { Ok(vec![GOOD, 0, 60]) })
        });
        let manager = Manager::asking(settings(storage.path()), ask);
        let known = Wanted { response: Some(Arc::from([GOOD, 1, 100].as_slice())), ..wanted(1, "a") };
        // One that is past its middle is fetched again soon, one that has expired at once.
        let old = Wanted { response: Some(Arc::from([GOOD, 1, 0].as_slice())), ..wanted(2, "a") };
        manager.want(vec![known, old]);
        assert_eq!(manager.staples()[&[1; 32]][..], [GOOD, 1, 100], "at once");
        until(|| report(&manager, 2).standing == "good").await;
        assert_eq!(asked.load(SeqCst), 1);
        assert_eq!(manager.staples()[&[1; 32]][..], [GOOD, 1, 100]);
        // Another configuration, which has one of them.
        manager.want(vec![wanted(2, "a")]);
        until(|| manager.staples().len() == 1).await;
        assert_eq!(asked.load(SeqCst), 1);
    });
}

#[test]
fn a_dead_responder_delays_no_other_and_is_not_stormed() {
    run(async {
        let storage = tempfile::tempdir().unwrap();
        let (open, most) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
        let (counted, highest) = (open.clone(), most.clone());
        let ask: Ask = Arc::new(move |url, _| {
            let (open, most) = (counted.clone(), highest.clone());
            Box::pin(async move {
                if url == "http://slow/" {
                    most.fetch_max(open.fetch_add(1, SeqCst) + 1, SeqCst);
                    std::future::pending::<()>().await;
                }
                Ok(vec![GOOD, 0, 60])
            })
        });
        let manager = Manager::asking(settings(storage.path()), ask);
        manager.want((0..100).map(|n| wanted(n, "slow")).chain((100..200).map(|n| wanted(n, "fast"))).collect());
        until(|| locked(&manager.reports()).good == 100).await;
        assert_eq!(most.load(SeqCst), MAX_PER_RESPONDER);
    });
}

#[test]
fn an_expired_response_is_withdrawn() {
    let storage = tempfile::tempdir().unwrap();
    run(async {
        let mut task = task_of(settings(storage.path()));
        task.want(&[wanted(1, "a")]);
        let now = now();
        let response = Response { standing: Standing::Good, this_update: now, next_update: now + 100 };
        task.take([1; 32], Ok((Arc::from([1].as_slice()), response)), now);
        task.schedule([1; 32]);
        assert_eq!(locked(&task.shared.staples).len(), 1);
        // The middle of its life has come; the responder is dead from now on.
        task.look(now + 60);
        assert_eq!(task.running.len(), 1);
        task.take([1; 32], Err("it is dead".to_owned().into()), now + 61);
        task.schedule([1; 32]);
        task.look(now + 99);
        assert_eq!(locked(&task.shared.staples).len(), 1, "good until it expires");
        task.look(now + 100);
        assert_eq!(locked(&task.shared.staples).len(), 0);
        assert!(task.changed);
    });
}

/// The configuration still has it: it was read with it.
#[test]
fn an_expired_response_does_not_come_back() {
    let storage = tempfile::tempdir().unwrap();
    run(async {
        let dead: Ask = Arc::new(|_, _| Box::pin(async { Err("it is dead".to_owned().into()) }));
        let manager = Manager::asking(settings(storage.path()), dead);
        let read = |number| Wanted { response: Some(Arc::from([GOOD, 0, 1].as_slice())), ..wanted(number, "a") };
        manager.want(vec![read(1)]);
        assert!(manager.has(&[1; 32]));
        locked(&manager.shared.staples).remove(&[1; 32]);
        // Another certificate comes, and brings its response along.
        let both = [read(1), read(2)];
        let with = manager.staples_with(both.iter().map(|w| (w.digest, w.response.as_deref())));
        assert_eq!(with.keys().collect::<Vec<_>>(), [&[2; 32]]);
        manager.want(both.to_vec());
        assert!(!manager.has(&[1; 32]) && manager.has(&[2; 32]));
    });
}

/// What is withdrawn while it waits leaves its place to the next.
#[test]
fn a_place_at_a_responder_is_never_lost() {
    let storage = tempfile::tempdir().unwrap();
    run(async {
        let mut task = task_of(settings(storage.path()));
        let all: Vec<Wanted> = (1..=10).map(|number| wanted(number, "a")).collect();
        task.want(&all);
        task.look(now());
        assert_eq!(task.running.len(), MAX_PER_RESPONDER);
        // Of those that wait, only the last is still wanted.
        let running: Vec<(task::Id, CertificateDigest)> =
            task.names.iter().map(|(id, (digest, _))| (*id, *digest)).collect();
        let waiting: Vec<CertificateDigest> =
            task.responders.values().flat_map(|r| r.waiting.iter().copied()).collect();
        let last = *waiting.last().unwrap();
        let kept: Vec<Wanted> = all
            .into_iter()
            .filter(|w| w.digest == last || running.iter().any(|(_, digest)| *digest == w.digest))
            .collect();
        task.want(&kept);
        let (id, digest) = running[0];
        task.ended(id, digest, Err("it is dead".to_owned().into()));
        assert!(task.names.values().any(|(digest, _)| *digest == last), "the last one is asked for");
    });
}

#[test]
fn an_older_response_does_not_replace_a_newer_one() {
    let storage = tempfile::tempdir().unwrap();
    run(async {
        let mut task = task_of(settings(storage.path()));
        task.want(&[wanted(1, "a")]);
        let now = now();
        let of = |standing, this_update| Response { standing, this_update, next_update: now + 100 };
        let bytes = |byte: u8| Arc::from([byte].as_slice());
        task.take([1; 32], Ok((bytes(1), of(Standing::Revoked, now))), now);
        task.take([1; 32], Ok((bytes(2), of(Standing::Good, now - 1))), now);
        assert_eq!(locked(&task.shared.staples)[&[1; 32]][..], [1]);
        assert!(task.entries[&[1; 32]].last_error.contains("older"));
        assert_eq!(task.entries[&[1; 32]].held.as_ref().unwrap().response.standing, Standing::Revoked);
    });
}

#[test]
fn a_clock_that_is_set_back_delays_nothing() {
    let storage = tempfile::tempdir().unwrap();
    run(async {
        let mut task = task_of(settings(storage.path()));
        task.want(&[wanted(1, "a")]);
        let later = now() + 365 * 86_400;
        let response = Response { standing: Standing::Good, this_update: later, next_update: later + 86_400 };
        task.take([1; 32], Ok((Arc::from([1].as_slice()), response)), later);
        task.due.clear();
        task.schedule([1; 32]);
        task.look(now());
        assert_eq!(task.running.len(), 1);
    });
}

/// A task without a loop, whose responder never answers.
fn task_of(settings: RevocationSettings) -> Task {
    Task {
        settings,
        ask: Arc::new(|_, _| Box::pin(std::future::pending())),
        shared: Arc::default(),
        entries: HashMap::new(),
        due: BinaryHeap::new(),
        responders: HashMap::new(),
        waiting: VecDeque::new(),
        running: JoinSet::new(),
        names: HashMap::new(),
        writes: JoinSet::new(),
        write_failed: false,
        told: None,
        changed: false,
        cleaned: true,
    }
}
