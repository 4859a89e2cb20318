//! One suite for all stores: in memory, a real redis-server and a real valkey-server at Unix sockets.

use sealane_redis::{Address, RedisStore, Settings};
use sealane_store::memory::MemoryStore;
use sealane_store::{Answer, Connection, Incarnation, Operation, Store, StoreError};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

const LONG: Duration = Duration::from_secs(60);

/// The servers that the suite is run with. Other tests use the first one that is installed.
const PROGRAMS: [&str; 2] = ["redis-server", "valkey-server"];

/// A server in a folder of its own, which ends with it.
struct Server {
    child: Child,
    folder: tempfile::TempDir,
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn spawn(programs: &[&str], folder: &Path, arguments: &[&str]) -> Option<Child> {
    let found = programs.iter().find_map(|program| {
        Command::new(program)
            .args(["--port", "0", "--unixsocket", "s", "--save", "", "--dir"])
            .arg(folder)
            .args(arguments)
            .current_dir(folder)
            .stdout(Stdio::null())
            .spawn()
            .ok()
    });
    if found.is_none() {
        eprintln!("skipped: there is no {}", programs.join(" and no "));
    }
    found
}

impl Server {
    /// `None` where there is none to start.
    fn start(arguments: &[&str]) -> Option<Self> {
        Self::of(&PROGRAMS, arguments)
    }

    fn of(programs: &[&str], arguments: &[&str]) -> Option<Self> {
        let folder = tempfile::tempdir().unwrap();
        Some(Self { child: spawn(programs, folder.path(), arguments)?, folder })
    }

    fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    fn start_again(&mut self, arguments: &[&str]) {
        self.child = spawn(&PROGRAMS, self.folder.path(), arguments).unwrap();
    }

    fn store(&self) -> RedisStore {
        self.store_as(None, None)
    }

    fn store_as(&self, user: Option<&str>, password: Option<&str>) -> RedisStore {
        RedisStore::new(Settings {
            address: Address::Unix(self.folder.path().join("s")),
            user: user.map(str::to_owned),
            password: password.map(|p| p.to_owned().into()),
        })
        .unwrap()
    }
}

fn run<T>(work: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(work)
}

/// A connection that answers: a server needs a while to start.
async fn connect(store: &dyn Store) -> Box<dyn Connection> {
    for _ in 0..500 {
        if let Ok(mut connection) = store.connect().await
            // A server that is still reading its disk answers INFO, but no GET.
            && let Ok(said) = connection.execute(&[Operation::Get { key: key("ready") }]).await
            && said.each.iter().all(Result::is_ok)
        {
            return connection;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    panic!("{} is not there", store.name());
}

async fn life(connection: &mut dyn Connection) -> Incarnation {
    connection.execute(&[]).await.unwrap().incarnation
}

async fn one(connection: &mut dyn Connection, operation: Operation) -> Result<Answer, StoreError> {
    connection.execute(&[operation]).await.unwrap().each.remove(0)
}

fn key(text: &str) -> String {
    text.to_owned()
}

fn set(at: &str, value: &[u8]) -> Operation {
    Operation::Set { key: key(at), value: value.to_vec(), ttl: LONG }
}

fn take(at: &str) -> Operation {
    Operation::Take { key: key(at) }
}

fn lease(owner: &str, ttl: Duration) -> Operation {
    Operation::Lease { key: key("lease"), owner: key(owner), ttl }
}

/// What every store does.
async fn suite(store: &dyn Store) {
    let (mut a, mut b) = (connect(store).await, connect(store).await);
    assert_eq!(life(&mut *a).await, life(&mut *b).await);

    // Values are bytes.
    let all: Vec<u8> = (0..=255).collect();
    assert_eq!(one(&mut *a, set("bytes", &all)).await, Ok(Answer::Done(true)));
    let get = Operation::Get { key: key("bytes") };
    assert_eq!(one(&mut *b, get.clone()).await, Ok(Answer::Value(Some(all.clone()))));
    assert_eq!(one(&mut *b, Operation::Get { key: key("nothing") }).await, Ok(Answer::Value(None)));
    assert_eq!(one(&mut *a, set("bytes", b"")).await, Ok(Answer::Done(true)));
    assert_eq!(one(&mut *b, get).await, Ok(Answer::Value(Some(Vec::new()))));

    // What is taken is gone, for everybody, and of two who take it one gets it.
    let writes: Vec<Operation> = (0..200).map(|n| set(&format!("t{n}"), b"x")).collect();
    assert!(a.execute(&writes).await.unwrap().each.iter().all(|answer| *answer == Ok(Answer::Done(true))));
    let takes: Vec<Operation> = (0..200).map(|n| take(&format!("t{n}"))).collect();
    let (by_a, by_b) = tokio::join!(a.execute(&takes), b.execute(&takes));
    let got = |answers: &[Result<Answer, StoreError>], n: usize| match &answers[n] {
        Ok(Answer::Value(value)) => usize::from(value.is_some()),
        other => panic!("{other:?}"),
    };
    let (by_a, by_b) = (by_a.unwrap().each, by_b.unwrap().each);
    assert!((0..200).all(|n| got(&by_a, n) + got(&by_b, n) == 1));

    // A value is replaced by who knows it.
    let replace = |expected: Option<&[u8]>, value: &[u8]| Operation::Replace {
        key: key("cas"),
        expected: expected.map(<[u8]>::to_vec),
        value: value.to_vec(),
        ttl: LONG,
    };
    assert_eq!(
        one(&mut *a, replace(Some(b""), b"1")).await,
        Ok(Answer::Done(false)),
        "there is none, not an empty one"
    );
    assert_eq!(one(&mut *a, replace(None, b"1")).await, Ok(Answer::Done(true)));
    assert_eq!(one(&mut *b, replace(None, b"2")).await, Ok(Answer::Done(false)));
    assert_eq!(one(&mut *b, replace(Some(b"0"), b"2")).await, Ok(Answer::Done(false)));
    assert_eq!(one(&mut *b, replace(Some(b"1"), &all)).await, Ok(Answer::Done(true)));
    assert_eq!(one(&mut *a, replace(Some(&all), b"3")).await, Ok(Answer::Done(true)));

    // One has a lease, extends it, and gives it back; no other one can.
    assert_eq!(one(&mut *a, lease("a", LONG)).await, Ok(Answer::Done(true)));
    assert_eq!(one(&mut *b, lease("b", LONG)).await, Ok(Answer::Done(false)));
    assert_eq!(one(&mut *a, lease("a", LONG)).await, Ok(Answer::Done(true)));
    let release = |owner: &str| Operation::Release { key: key("lease"), owner: key(owner) };
    assert_eq!(one(&mut *b, release("b")).await, Ok(Answer::Done(false)));
    assert_eq!(one(&mut *a, release("a")).await, Ok(Answer::Done(true)));
    assert_eq!(one(&mut *b, lease("b", Duration::from_millis(30))).await, Ok(Answer::Done(true)));

    // A bucket holds what both have poured into it, less what has leaked meanwhile.
    let fill = |at: &str, amount: Duration, most: Duration| Operation::Fill {
        key: key(at),
        amount: amount.as_micros() as u64,
        most: most.as_micros() as u64,
    };
    let level = |answer: Result<Answer, StoreError>| match answer {
        Ok(Answer::Level(micros)) => Duration::from_micros(micros),
        other => panic!("{other:?}"),
    };
    let begun = std::time::Instant::now();
    assert_eq!(level(one(&mut *a, fill("bucket", LONG, LONG * 10)).await), LONG);
    let both = level(one(&mut *b, fill("bucket", LONG, LONG * 10)).await);
    // A clock that jumps would be no failure of the store; the margin is for its other unit.
    let leaked = begun.elapsed() + Duration::from_millis(50);
    assert!(both <= LONG * 2 && both + leaked >= LONG * 2, "{both:?} after {leaked:?}");
    let cut = level(one(&mut *b, fill("bucket", Duration::from_secs(1), LONG)).await);
    assert_eq!(cut, LONG + Duration::from_secs(1), "no more than the most, and what comes");
    let none = level(one(&mut *a, fill("empty", Duration::ZERO, LONG)).await);
    assert_eq!(none, Duration::ZERO);

    // Everything ends with its time.
    let brief = Duration::from_millis(30);
    let set = Operation::Set { key: key("brief"), value: b"x".to_vec(), ttl: brief };
    one(&mut *a, set).await.unwrap();
    one(&mut *a, fill("few", brief, LONG)).await.unwrap();
    for _ in 0..500 {
        let answers = a.execute(&[Operation::Get { key: key("brief") }, lease("a", LONG)]).await.unwrap().each;
        if answers == [Ok(Answer::Value(None)), Ok(Answer::Done(true))] {
            break;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    assert_eq!(one(&mut *b, take("brief")).await, Ok(Answer::Value(None)));
    assert_eq!(one(&mut *b, lease("b", LONG)).await, Ok(Answer::Done(false)), "it is a's now");
    let again = level(one(&mut *b, fill("few", brief, LONG)).await);
    assert!(again <= brief * 2, "{again:?}");
    assert_eq!(life(&mut *a).await, life(&mut *b).await);
}

#[test]
fn the_store_in_memory_does_what_a_store_does() {
    run(suite(&MemoryStore::default()));
}

#[test]
fn a_redis_server_does_what_a_store_does() {
    let Some(server) = Server::of(&["redis-server"], &[]) else { return };
    run(suite(&server.store()));
}

#[test]
fn a_valkey_server_does_what_a_store_does() {
    // One that `cargo xtask valkey` has fetched, where the system has none.
    let named = std::env::var("SEALANE_VALKEY").unwrap_or_else(|_| "valkey-server".to_owned());
    let Some(server) = Server::of(&[&named], &[]) else { return };
    run(suite(&server.store()));
}

/// A server that is started again is another life, with the same data on its disk, and its lost connection is an error.
#[test]
fn a_server_that_was_killed_is_another_life() {
    let disk = ["--appendonly", "yes", "--appendfsync", "always"];
    let Some(mut server) = Server::start(&disk) else { return };
    run(async {
        let store = server.store();
        let mut connection = connect(&store).await;
        let first = life(&mut *connection).await;
        one(&mut *connection, set("kept", b"x")).await.unwrap();
        server.kill();
        assert!(matches!(connection.execute(&[]).await, Err(StoreError::Away(_))));
        server.start_again(&disk);
        let mut connection = connect(&store).await;
        assert_eq!(one(&mut *connection, take("kept")).await, Ok(Answer::Value(Some(b"x".to_vec()))));
        assert_ne!(life(&mut *connection).await, first);
    });
}

/// The server stays, and gets another one's data in between: another life, too.
#[test]
fn a_server_that_has_followed_another_one_is_another_life() {
    let (Some(server), Some(other)) = (Server::start(&[]), Server::start(&[])) else { return };
    run(async {
        let mut connection = connect(&server.store()).await;
        connect(&other.store()).await;
        let first = life(&mut *connection).await;
        // The other one is at no port, so this fails to follow; the server is a replica all the same, and promoted again.
        cli(&server, &["replicaof", "127.0.0.1", "1"]);
        let answer = connection.execute(&[set("a", b"x")]).await;
        assert!(matches!(&answer, Err(StoreError::Away(why)) if why.contains("slave")), "{answer:?}");
        cli(&server, &["replicaof", "no", "one"]);
        assert_ne!(life(&mut *connect(&server.store()).await).await, first);
    });
}

/// Sends a command by itself.
fn cli(server: &Server, words: &[&str]) {
    use std::io::{Read, Write};
    let mut socket = std::os::unix::net::UnixStream::connect(server.folder.path().join("s")).unwrap();
    socket.write_all(format!("{}\r\n", words.join(" ")).as_bytes()).unwrap();
    let mut answer = [0; 1024];
    let n = socket.read(&mut answer).unwrap();
    assert!(answer.starts_with(b"+"), "{}", String::from_utf8_lossy(&answer[..n]));
}

#[test]
fn a_full_server_says_so_and_gives_what_it_has() {
    let Some(server) = Server::start(&["--maxmemory", "3mb", "--maxmemory-policy", "noeviction"]) else { return };
    run(async {
        let mut connection = connect(&server.store()).await;
        one(&mut *connection, set("first", b"x")).await.unwrap();
        let mut full = None;
        for n in 0..1000 {
            if let Err(error) = one(&mut *connection, set(&format!("f{n}"), &[0; 100_000])).await {
                full = Some(error);
                break;
            }
        }
        assert!(matches!(full, Some(StoreError::Full(_))), "{full:?}");
        assert_eq!(one(&mut *connection, take("first")).await, Ok(Answer::Value(Some(b"x".to_vec()))));
    });
}

#[test]
fn a_password_is_needed_where_there_is_one() {
    let user = ["--requirepass", "secret", "--user", "gateway", "on", ">word", "~*", "+@all"];
    let Some(server) = Server::start(&user) else { return };
    run(async {
        connect(&server.store_as(None, Some("secret"))).await;
        connect(&server.store_as(Some("gateway"), Some("word"))).await;
        for store in [server.store(), server.store_as(None, Some("wrong")), server.store_as(Some("gateway"), None)] {
            let refused = match store.connect().await {
                Ok(mut connection) => connection.execute(&[]).await.err(),
                Err(error) => Some(error),
            };
            assert!(matches!(refused, Some(StoreError::Away(_))), "{refused:?}");
        }
    });
}

/// Who answers without end is left: else this would end with the memory.
#[test]
fn an_endless_answer_is_cut() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("s");
    run(async {
        let listener = tokio::net::UnixListener::bind(&path).unwrap();
        tokio::spawn(async move {
            while let Ok((mut socket, _)) = listener.accept().await {
                use tokio::io::AsyncWriteExt;
                let mut sent = socket.write_all(b"$900000000\r\n").await;
                while sent.is_ok() {
                    sent = socket.write_all(&[b'x'; 65_536]).await;
                }
            }
        });
        let store = RedisStore::new(Settings { address: Address::Unix(path), user: None, password: None }).unwrap();
        let mut connection = store.connect().await.unwrap();
        let answer = connection.execute(&[take("a")]).await;
        assert!(matches!(answer, Err(StoreError::Away(_))), "{answer:?}");
    });
}
