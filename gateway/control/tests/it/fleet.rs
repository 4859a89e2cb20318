//! `[store]` and `ticket_keys`.

use super::files::Folder;
use sealane_control::config::{KeyList, StoreUrl, TicketKeySource};

const REST: &str = "[[listener]]\naddress = \"127.0.0.1:0\"\n[[host]]\nnames = [\"*\"]\nrespond = { status = 204 }\n";
/// 32 bytes in base64.
const KEY: &str = "AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=";

fn report(folder: &Folder, text: &str) -> String {
    folder.report(&format!("{text}{REST}"))
}

#[test]
fn a_store_and_keys_of_a_file_are_read() {
    let folder = Folder::new();
    folder.write("secret", format!("{KEY}\n"));
    folder.write("password", "a word\n");
    folder.write("keys", format!("# newest\n{KEY}\n"));
    let text = "ticket_keys = \"file\"\nticket_keys_file = \"keys\"\n[store]\nurl = \"redis://127.0.0.1\"\n\
                secret_file = \"secret\"\npassword_file = \"password\"\n";
    let (config, _) = folder.load(&format!("{text}{REST}")).unwrap_or_else(|e| panic!("{e}"));
    let store = config.store.as_ref().unwrap();
    assert_eq!(store.url, StoreUrl::Tcp { host: "127.0.0.1".to_owned(), port: 6379, tls: false });
    assert_eq!((store.secret[0], store.secret[31]), (0, 31));
    assert_eq!(store.password.as_ref().map(|p| p.as_str()), Some("a word"));
    assert_eq!((store.prefix.as_str(), store.early_data), ("sealane", None));
    let TicketKeySource::File(file, keys) = &config.ticket_keys else { panic!("{:?}", config.ticket_keys) };
    assert_eq!(KeyList::keys(keys).len(), 1);
    assert_eq!(Some(file), config.ticket_keys_file());
    // Nothing of it is printed.
    let printed = format!("{config:?}");
    assert!(!printed.contains("a word") && !printed.contains("30, 31]"), "{printed}");
}

#[test]
fn what_is_wrong_with_it_is_said() {
    let folder = Folder::new();
    folder.write("secret", KEY);
    folder.write("short", "AAEC");
    folder.write("two", "a\nb\n");
    folder.write("keys", format!("{KEY}\n{KEY}\n"));
    let store = |settings: &str| format!("[store]\nsecret_file = \"secret\"\n{settings}\n");
    for (text, said) in [
        ("ticket_keys = \"file\"\n".to_owned(), "ticket_keys = \"file\" needs \"ticket_keys_file\""),
        ("ticket_keys = \"store\"\n".to_owned(), "ticket_keys = \"store\" needs [store]"),
        ("ticket_keys_file = \"secret\"\n".to_owned(), "no effect without ticket_keys = \"file\""),
        ("ticket_keys = \"file\"\nticket_keys_file = \"keys\"\n".to_owned(), "line 2: this key is repeated"),
        ("ticket_keys = \"file\"\nticket_keys_file = \"none\"\n".to_owned(), "cannot read the file of ticket keys"),
        (store("url = \"127.0.0.1:6379\""), "is not the URL of a store"),
        (store("url = \"redis://user:word@127.0.0.1\""), "has no user and no password"),
        (store("url = \"redis://store.example\""), "is not encrypted"),
        (store("url = \"memory\"\nca = \"secret\""), "\"ca\" has no effect without TLS"),
        (store("url = \"memory\"\nprefix = \"a b\""), "\"prefix\" must be 1 to 64 printable ASCII characters"),
        (store("url = \"memory\"\npassword_file = \"two\""), "this is not a password"),
        (store("url = \"memory\"\nearly_data = true"), "no listener accepts early data"),
        (store("url = \"memory\"\nearly_data_wait = \"1h\""), "out of range"),
        (store("url = \"memory\"\ncertificates = true"), "no listener has certificates = \"auto\""),
        (store(""), "[store] has no \"url\""),
        ("[store]\nurl = \"memory\"\nsecret_file = \"short\"\n".to_owned(), "this is not 32 bytes in base64"),
    ] {
        let report = report(&folder, &text);
        assert!(report.contains(said), "{text}: {report}");
        // The excerpt shows the line; what a log may keep of it does not.
        let said = report.lines().filter(|line| line.contains("error:"));
        assert_eq!(said.filter(|line| line.contains("user:word")).count(), 0, "a password is printed: {report}");
    }
}

/// Settings of listeners at different addresses lead to the same policy where they say so.
#[test]
fn listeners_of_a_context_have_the_same_policies() {
    let folder = Folder::new();
    folder.certificate("a", &["a.example"]);
    let policy = |address: &str, context: &str| {
        let text = format!(
            "[[listener]]\naddress = \"{address}\"\n[listener.tls]\n{context}\n\
             certificates = [{{ cert = \"certs/a.pem\", key = \"certs/a.key\" }}]\n\
             [[host]]\nnames = [\"a.example\"]\nrespond = {{ status = 204 }}\n"
        );
        let (config, _) = folder.load(&text).unwrap_or_else(|e| panic!("{e}"));
        config.listeners[0].tls.as_ref().unwrap().policies[0].id
    };
    let context = "session_context = \"public\"";
    assert_eq!(policy("127.0.0.1:1", context), policy("127.0.0.2:2", context));
    assert_ne!(policy("127.0.0.1:1", context), policy("127.0.0.1:1", "session_context = \"other\""));
    assert_ne!(policy("127.0.0.1:1", ""), policy("127.0.0.2:2", ""));
}
