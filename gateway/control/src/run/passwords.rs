//! Checks the passwords of `basic_auth` for the lanes.
//!
//! ```text
//! lanes ── PasswordCheck, bounded ──► run ── throttled? ── turn (`sealane-passwords`) ── hash on a thread for blocking work
//!   ▲                                                                                                  │
//!   └────────────────────────────── Message::PasswordChecked ◄──────────────────────────────────────────┘
//! ```
//!
//! Few checks run at a time, and few wait, of all clients and of one network; the tunnel's checks share the same turns. Wrong
//! passwords are counted by network and by user.

use sealane_lane::Mailbox;
use sealane_ovpn::share::Network;
use sealane_passwords::{Guesses, Turns};
use sealane_proxy::Message;
use sealane_proxy::logins::{PasswordCheck, PasswordVerdict};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::mpsc::Receiver;
use tokio::task::{JoinSet, spawn_blocking};

/// Checks that lanes have asked for and nobody has looked at.
pub const QUEUE: usize = 1024;
/// How long a check may wait for its turn: less than the lanes wait for it.
const TURN_LIMIT: Duration = Duration::from_secs(8);

/// A check that has been looked at.
struct Decided {
    check: PasswordCheck,
    verdict: PasswordVerdict,
}

/// Checks passwords until no lane is left that asks.
pub async fn run(mut asked: Receiver<PasswordCheck>, mailboxes: Vec<Mailbox<Message>>) {
    let (mut guesses, hashes) = (Guesses::default(), Arc::new(Turns::of_hashes()));
    // As many as may run or wait for their turns.
    let mut checks: JoinSet<Decided> = JoinSet::new();
    loop {
        let decided = tokio::select! {
            check = asked.recv() => match check {
                None => return,
                Some(check) => {
                    let wait = guesses.wait(&check.user, Network::of(check.client), Instant::now());
                    if wait.is_zero() {
                        checks.spawn(verify(check, hashes.clone()));
                        continue;
                    }
                    Decided { check, verdict: PasswordVerdict::Throttled(wait) }
                }
            },
            Some(done) = checks.join_next() => match done {
                Ok(decided) => decided,
                // It panics only by a bug. Its client is told that it took too long.
                Err(_) => continue,
            },
        };
        let Decided { check, verdict } = decided;
        let network = Network::of(check.client);
        match verdict {
            PasswordVerdict::Right => guesses.right(&check.user, network, Instant::now()),
            PasswordVerdict::Wrong => guesses.wrong(&check.user, network, Instant::now()),
            PasswordVerdict::Throttled(_) | PasswordVerdict::Busy => {}
        }
        if let Some(mailbox) = mailboxes.get(check.slot) {
            // A lane that has ended needs no telling.
            let _ = mailbox.send(Message::PasswordChecked(check.digest, verdict));
        }
    }
}

/// Checks a password when it is its turn.
async fn verify(check: PasswordCheck, hashes: Arc<Turns>) -> Decided {
    let (users, user, password) = (check.users.clone(), check.user.clone(), check.password.clone());
    // A task for blocking work begins when it is made, and so it is made when it is its turn.
    let hash = async { spawn_blocking(move || users.verify(&user, &password)).await.unwrap_or(false) };
    let verdict = match hashes.run(Network::of(check.client), TURN_LIMIT, hash).await {
        None => PasswordVerdict::Busy,
        Some(true) => PasswordVerdict::Right,
        Some(false) => PasswordVerdict::Wrong,
    };
    Decided { check, verdict }
}

#[cfg(test)]
mod tests {
    use super::*;
    use sealane_lane::mailbox;
    use sealane_passwords::{Users, hash_password};
    use sealane_proxy::MAIL_CAPACITY;
    use std::sync::Arc;
    use tokio::sync::mpsc;
    use zeroize::Zeroizing;

    /// Wrong passwords are checked until there were too many; others come in.
    #[test]
    fn who_guesses_is_throttled() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let (mailbox, inbox) = mailbox::<Message>(MAIL_CAPACITY).unwrap();
            let (ask, asked) = mpsc::channel(QUEUE);
            let task = tokio::spawn(run(asked, vec![mailbox]));
            let users = Arc::new(Users::parse(&format!("alice:{}\n", hash_password("right").unwrap())).unwrap());
            let verdict = async |n: u8, client: [u8; 4], user: &str, password: &str| {
                let check = PasswordCheck {
                    slot: 0,
                    digest: [n; 32],
                    users: users.clone(),
                    user: user.to_owned(),
                    password: Zeroizing::new(password.to_owned()),
                    client: client.into(),
                };
                ask.send(check).await.unwrap();
                loop {
                    match inbox.receive() {
                        Some(Message::PasswordChecked(digest, verdict)) if digest == [n; 32] => return verdict,
                        Some(_) => panic!("another message"),
                        None => tokio::time::sleep(Duration::from_millis(1)).await,
                    }
                }
            };
            let (guesser, other) = ([192, 0, 2, 1], [192, 0, 2, 2]);
            assert_eq!(verdict(0, guesser, "alice", "right").await, PasswordVerdict::Right);
            // However slow this machine is, a guess takes less time than the six seconds that it costs.
            let mut throttled = false;
            for n in 1..=100 {
                match verdict(n, guesser, "bob", "wrong").await {
                    PasswordVerdict::Wrong => {}
                    PasswordVerdict::Throttled(_) => {
                        assert!(n > 20, "{n}");
                        throttled = true;
                        break;
                    }
                    other => panic!("{other:?}"),
                }
            }
            assert!(throttled);
            assert_eq!(verdict(102, other, "alice", "right").await, PasswordVerdict::Right);
            drop(ask);
            task.await.unwrap();
        });
    }
}
