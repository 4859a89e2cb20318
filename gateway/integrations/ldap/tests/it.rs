//! Servers that lie, say nothing or have gone. Those that do as they should are in `tests/interop` (OpenLDAP's slapd).

use sealane_config::{Ldap, LdapFilter, LdapGroups, LdapPart, LdapUrl, LdapValue, Place};
use sealane_ldap::LdapDirectory;
use sealane_passwords::{Directory as _, Found};
use std::io::{Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Barrier};
use std::time::Duration;
use tempfile::TempDir;

const LONG: Duration = Duration::from_secs(60);

fn element(tag: u8, content: &[u8]) -> Vec<u8> {
    let length = u32::try_from(content.len()).expect("short").to_be_bytes();
    [&[tag, 0x84][..], &length, content].concat()
}

fn message(id: u8, operation: u8, content: &[u8]) -> Vec<u8> {
    element(0x30, &[&[2, 1, id][..], &element(operation, content)].concat())
}

fn result(id: u8, operation: u8, code: u8) -> Vec<u8> {
    message(id, operation, &[0x0a, 1, code, 4, 0, 4, 0])
}

fn entry(id: u8, dn: &str, attribute: &str, value: &str) -> Vec<u8> {
    let values = element(0x31, &element(4, value.as_bytes()));
    let attribute = element(0x30, &[element(4, attribute.as_bytes()), values].concat());
    message(id, 0x64, &[element(4, dn.as_bytes()), element(0x30, &attribute)].concat())
}

/// What a client asks: the message's number and the operation. `None`: it has gone.
fn asked(stream: &mut UnixStream) -> Option<(u8, u8)> {
    let mut head = [0; 2];
    stream.read_exact(&mut head).ok()?;
    let length = match usize::from(head[1]) {
        short @ 0..0x80 => short,
        long => {
            let mut bytes = vec![0; long - 0x80];
            stream.read_exact(&mut bytes).ok()?;
            bytes.iter().fold(0, |length, byte| length << 8 | usize::from(*byte))
        }
    };
    let mut content = vec![0; length];
    stream.read_exact(&mut content).ok()?;
    Some((content[2], content[3]))
}

/// A server that answers the operations of each connection by a script. It ends with the process.
fn server(folder: &Path, answer: impl Fn(u8, u8, &mut UnixStream) -> bool + Send + Sync + 'static) -> Arc<AtomicUsize> {
    let listener = UnixListener::bind(folder.join("ldap")).expect("a free path");
    let (answer, connections) = (Arc::new(answer), Arc::new(AtomicUsize::new(0)));
    let count = connections.clone();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let Ok(mut stream) = stream else { return };
            count.fetch_add(1, SeqCst);
            let answer = answer.clone();
            std::thread::spawn(move || {
                while let Some((id, operation)) = asked(&mut stream) {
                    if !answer(id, operation, &mut stream) {
                        return;
                    }
                }
            });
        }
    });
    connections
}

/// What a server answers that knows `al` with every password.
fn good(id: u8, operation: u8) -> Vec<u8> {
    match operation {
        0x60 => result(id, 0x61, 0),
        _ => [entry(id, "uid=al", "uid", "Al"), result(id, 0x65, 0)].concat(),
    }
}

fn settings(folder: &Path, timeout: Duration) -> Ldap {
    let user = LdapValue(vec![LdapPart::User]);
    Ldap {
        urls: vec![LdapUrl::Unix(folder.join("ldap"))],
        roots: Vec::new(),
        bind_dn: Some("cn=gateway".to_owned()),
        bind_password: "secret".to_owned().into(),
        user_base: "dc=x".to_owned(),
        user_filter: LdapFilter::Equal("uid".to_owned(), user),
        user_attribute: "uid".to_owned(),
        member_of: None,
        groups: None,
        require_groups: Vec::new(),
        timeout,
        connections: 2,
        place: Place::default(),
    }
}

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime")
}

fn check(settings: Ldap) -> Found {
    let directory = LdapDirectory::new(settings);
    runtime().block_on(directory.check("al", "right", LONG))
}

/// One test for each lie: nobody comes in, and the process goes on.
#[test]
fn a_server_that_lies_lets_nobody_in() {
    type Lie = fn(u8) -> Vec<u8>;
    // What is answered to the search.
    let lies: [(&str, Lie); 13] = [
        ("not LDAP", |_| b"HTTP/1.1 400 Bad Request\r\n\r\n".to_vec()),
        ("4 GiB are announced", |_| [0x30, 0x84, 0xff, 0xff, 0xff, 0xff].to_vec()),
        ("an indefinite length", |_| [0x30, 0x80, 0, 0].to_vec()),
        ("another question is answered", |id| result(id + 1, 0x65, 0)),
        ("a bind is answered instead", |id| result(id, 0x61, 0)),
        ("forty thousand levels", |id| {
            let level = |inner: usize| {
                let length = u32::try_from(inner * 6).expect("short").to_be_bytes();
                [&[0x30, 0x84][..], &length].concat()
            };
            message(id, 0x64, &[vec![4, 0], (0..40_000).rev().flat_map(level).collect()].concat())
        }),
        ("entries without end", |id| entry(id, "uid=al", "uid", "al").repeat(100)),
        ("references without end", |id| message(id, 0x73, &[4, 0]).repeat(400_000)),
        ("two entries", |id| {
            [entry(id, "uid=al", "uid", "al"), entry(id, "uid=a", "uid", "al"), result(id, 0x65, 0)].concat()
        }),
        ("an entry that is longer than allowed", |id| entry(id, "uid=al", "uid", &"x".repeat(300_000))),
        ("a search that failed", |id| result(id, 0x65, 50)),
        ("an entry, and then a failure", |id| [entry(id, "uid=al", "uid", "al"), result(id, 0x65, 51)].concat()),
        ("a notice of disconnection", |_| result(0, 0x78, 52)),
    ];
    for (name, lie) in lies {
        let folder = TempDir::new().expect("a folder");
        server(folder.path(), move |id, operation, stream| {
            let answer = if operation == 0x63 { lie(id) } else { good(id, operation) };
            stream.write_all(&answer).is_ok()
        });
        let found = check(settings(folder.path(), LONG));
        assert!(matches!(found, Found::Unavailable(_)), "{name}: {found:?}");
    }
}

/// An entry that is not the user's, or that everybody can bind as.
#[test]
fn an_entry_that_is_not_the_users_is_none() {
    for (dn, attribute, value) in
        [("uid=bo", "uid", "bo"), ("uid=al", "cn", "al"), ("", "uid", "al"), ("uid=al", "uid", "al ")]
    {
        let folder = TempDir::new().expect("a folder");
        server(folder.path(), move |id, operation, stream| {
            let found = [entry(id, dn, attribute, value), result(id, 0x65, 0)].concat();
            stream.write_all(&if operation == 0x63 { found } else { good(id, operation) }).is_ok()
        });
        assert_eq!(check(settings(folder.path(), LONG)), Found::Wrong, "{dn} {attribute} {value}");
    }
}

#[test]
fn a_bind_says_whether_a_password_is_right() {
    for (code, expected) in
        [(0, Some(Found::Right(Vec::new()))), (49, Some(Found::Wrong)), (53, Some(Found::Wrong)), (52, None)]
    {
        let (folder, binds) = (TempDir::new().expect("a folder"), AtomicUsize::new(0));
        server(folder.path(), move |id, operation, stream| {
            let is_users = operation == 0x60 && binds.fetch_add(1, SeqCst) == 1;
            stream.write_all(&if is_users { result(id, 0x61, code) } else { good(id, operation) }).is_ok()
        });
        let found = check(settings(folder.path(), LONG));
        match expected {
            Some(expected) => assert_eq!(found, expected, "{code}"),
            None => assert!(matches!(found, Found::Unavailable(_)), "{code}: {found:?}"),
        }
    }
}

/// A server that refuses the searcher is not asked as nobody.
#[test]
fn a_searcher_that_is_refused_finds_nobody() {
    let folder = TempDir::new().expect("a folder");
    server(folder.path(), |id, operation, stream| {
        stream.write_all(&if operation == 0x60 { result(id, 0x61, 49) } else { good(id, operation) }).is_ok()
    });
    let found = check(settings(folder.path(), LONG));
    assert!(matches!(&found, Found::Unavailable(why) if why.contains("bind_dn")), "{found:?}");
}

#[test]
fn a_server_that_is_silent_or_away_has_its_time() {
    let folder = TempDir::new().expect("a folder");
    let short = Duration::from_millis(100);
    let away = check(settings(folder.path(), short));
    assert!(matches!(&away, Found::Unavailable(why) if why.contains("unix://")), "{away:?}");
    server(folder.path(), |id, operation, stream| operation != 0x60 || stream.write_all(&good(id, operation)).is_ok());
    let silent = check(settings(folder.path(), short));
    assert!(matches!(&silent, Found::Unavailable(why) if why.contains("100 ms")), "{silent:?}");
}

/// A server of several that is not there is passed over; one that closes a connection between two checks is asked again.
#[test]
fn another_server_or_another_connection_is_tried() {
    let folder = TempDir::new().expect("a folder");
    let connections = server(folder.path(), |id, operation, stream| {
        let sent = stream.write_all(&good(id, operation)).is_ok();
        // The connection ends after the user's bind: searcher 1, search 2, user 3.
        sent && id < 3
    });
    let mut settings = settings(folder.path(), LONG);
    settings.urls.insert(0, LdapUrl::Unix(folder.path().join("nobody")));
    let directory = LdapDirectory::new(settings);
    for n in 1..=3 {
        assert_eq!(runtime_check(&directory), Found::Right(Vec::new()), "{n}");
        assert_eq!(connections.load(SeqCst), n);
    }
}

fn runtime_check(directory: &LdapDirectory) -> Found {
    // The connections of a runtime end with it, so that there is one for all.
    static RUNTIME: std::sync::OnceLock<tokio::runtime::Runtime> = std::sync::OnceLock::new();
    RUNTIME.get_or_init(runtime).block_on(directory.check("al", "right", LONG))
}

/// No more connections than are allowed, however many ask; and who waits too long is told so.
#[test]
fn checks_share_few_connections() {
    let folder = TempDir::new().expect("a folder");
    let gate = Arc::new(Barrier::new(3));
    let held = gate.clone();
    let connections = server(folder.path(), move |id, operation, stream| {
        if id == 1 {
            held.wait();
        }
        stream.write_all(&good(id, operation)).is_ok()
    });
    let directory = Arc::new(LdapDirectory::new(settings(folder.path(), LONG)));
    runtime().block_on(async {
        let ask = |limit| {
            let directory = directory.clone();
            tokio::spawn(async move { directory.check("al", "right", limit).await })
        };
        let waiting: Vec<_> = (0..20).map(|_| ask(LONG)).collect();
        // Both connections are held.
        while connections.load(SeqCst) < 2 {
            tokio::task::yield_now().await;
        }
        assert_eq!(ask(Duration::from_millis(1)).await.expect("it ends"), Found::Busy);
        tokio::task::spawn_blocking(move || gate.wait()).await.expect("it ends");
        for check in waiting {
            assert_eq!(check.await.expect("it ends"), Found::Right(Vec::new()));
        }
    });
    assert_eq!(connections.load(SeqCst), 2);
}

#[test]
fn groups_decide_who_is_allowed() {
    let folder = TempDir::new().expect("a folder");
    server(folder.path(), |id, operation, stream| {
        // searcher 1, user's entry 2, user's bind 3, searcher 4, groups 5; on the same connection again: 6 and so on.
        let is_groups = operation == 0x63 && id != 2;
        let found = [entry(id, "cn=g", "cn", "VPN"), result(id, 0x65, 0)].concat();
        stream.write_all(&if is_groups { found } else { good(id, operation) }).is_ok()
    });
    for (required, expected) in [
        (vec![], Found::Right(vec!["VPN".to_owned()])),
        (vec!["vpn"], Found::Right(vec!["VPN".to_owned()])),
        (vec!["x"], Found::NotAllowed),
    ] {
        let mut settings = settings(folder.path(), LONG);
        let filter = LdapFilter::Equal("member".to_owned(), LdapValue(vec![LdapPart::Dn]));
        settings.groups = Some(LdapGroups { base: "dc=x".to_owned(), filter, attribute: "cn".to_owned() });
        settings.require_groups = required.into_iter().map(str::to_owned).collect();
        assert_eq!(check(settings), expected);
    }
}
