//! PUSH_UPDATE: a server changes options of a client that is connected (OpenVPN 2.7).
//!
//! The first option of a kind in a message, such as `route`, removes all options of that kind that the client has from the
//! server; further ones are added. `-route` removes all. With the prefix `?`, a client that cannot change the option ignores
//! it; without the prefix, such a client reconnects.

use crate::push::messages;

/// Kinds of options that OpenVPN's clients can change.
pub const KINDS: &[&str] = &[
    "block-ipv6",
    "block-outside-dns",
    "dhcp-option",
    "dns",
    "redirect-gateway",
    "redirect-private",
    "route",
    "route-ipv6",
    "route-metric",
];

fn kind(option: &str) -> &str {
    option.split_ascii_whitespace().next().unwrap_or_default()
}

fn of_kind<'o>(options: &'o [String], name: &str) -> impl Iterator<Item = &'o String> {
    options.iter().filter(move |option| kind(option) == name)
}

/// Returns the messages that change a client's options from `before` to `after`, each with its NUL; none if nothing that can be
/// changed differs. The error is an option that cannot be sent.
pub fn updates(before: &[String], after: &[String]) -> Result<Vec<Vec<u8>>, String> {
    let mut changes: Vec<String> = Vec::new();
    for name in KINDS {
        if of_kind(before, name).eq(of_kind(after, name)) {
            continue;
        }
        let first = changes.len();
        changes.extend(of_kind(after, name).cloned());
        if changes.len() == first {
            changes.push(format!("-{name}"));
        }
    }
    match changes.is_empty() {
        true => Ok(Vec::new()),
        false => messages("PUSH_UPDATE", &changes),
    }
}

/// A change that the client does not support and that is not optional.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NotUpdatable(pub String);

/// Applies changes, collected by [`crate::push::Collector`], to a client's options.
pub fn updated(mut options: Vec<String>, changes: &[String]) -> Result<Vec<String>, NotUpdatable> {
    let mut seen: Vec<&str> = Vec::new();
    for change in changes {
        let (removes, rest) = change.strip_prefix('-').map_or((false, change.as_str()), |rest| (true, rest));
        let (optional, option) = rest.strip_prefix('?').map_or((false, rest), |rest| (true, rest));
        let Some(name) = KINDS.iter().copied().find(|name| *name == kind(option)) else {
            match optional {
                true => continue,
                false => return Err(NotUpdatable(change.clone())),
            }
        };
        if removes || !seen.contains(&name) {
            options.retain(|option| kind(option) != name);
        }
        seen.push(name);
        if !removes {
            options.push(option.to_owned());
        }
    }
    Ok(options)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::command::Command;
    use crate::push::Collector;

    fn options(text: &str) -> Vec<String> {
        text.split(',').map(str::to_owned).collect()
    }

    /// What a client has that gets these messages.
    fn client(before: &[String], messages: &[Vec<u8>]) -> Vec<String> {
        let mut collector = Collector::default();
        for message in messages {
            let Some(Command::PushUpdate(part)) = Command::parse(&message[..message.len() - 1]) else {
                panic!("{message:?}");
            };
            if let Some(changes) = collector.take(&part).expect("not too long") {
                return updated(before.to_vec(), &changes).expect("all can be changed");
            }
        }
        before.to_vec()
    }

    #[test]
    fn a_client_has_afterwards_what_the_server_says() {
        let before = options("route 10.1.0.0 255.255.0.0,route 10.2.0.0 255.255.0.0,dhcp-option DNS 10.8.0.1,ping 10");
        for after in [
            "route 10.3.0.0 255.255.0.0,dhcp-option DNS 10.8.0.1,ping 10",
            "dhcp-option DNS 10.8.0.1,ping 10",
            "ping 10",
            "route-ipv6 fd00::/8,dns server 1 address 10.8.0.1,redirect-gateway def1,ping 10",
        ] {
            let after = options(after);
            let mut got = client(&before, &updates(&before, &after).expect("all can be sent"));
            let mut expected = after.clone();
            got.sort();
            expected.sort();
            assert_eq!(got, expected);
        }
        assert_eq!(updates(&before, &before), Ok(vec![]));
        // What no client can change is not sent.
        assert_eq!(
            updates(&before, &options("ping 20").into_iter().chain(before[..3].to_vec()).collect::<Vec<_>>()),
            Ok(vec![])
        );
        let many: Vec<String> = (0..200).map(|n| format!("route 10.{n}.0.0 255.255.0.0")).collect();
        let messages = updates(&before, &many).expect("all can be sent");
        assert!(messages.len() > 3);
        assert_eq!(client(&before, &messages)[1..].len(), 200, "and the ping that was there");
    }

    #[test]
    fn what_is_not_understood_is_an_error_unless_it_may_be_left() {
        let before = options("route 10.1.0.0 255.255.0.0");
        assert_eq!(updated(before.clone(), &options("?new 1,-?old")), Ok(before.clone()));
        assert_eq!(updated(before.clone(), &options("cipher NONE")), Err(NotUpdatable("cipher NONE".into())));
        assert_eq!(updated(before.clone(), &options("-ifconfig")), Err(NotUpdatable("-ifconfig".into())));
        assert_eq!(updated(before, &options("-route,route 1.2.3.4")), Ok(options("route 1.2.3.4")));
    }
}
