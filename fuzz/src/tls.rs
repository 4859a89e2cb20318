//! The ClientHello, which decides the rules of a connection before a TLS session exists.

/// A hello in TLS records. The first byte chooses how its message is cut into records again.
pub mod hello {
    use rustls::server::Acceptor;
    use sealane_tls::hello::{ClientHello, HelloError, MAX_HELLO, parse, parse_message};

    /// The message of the hello at the start, where it is one record.
    fn message(data: &[u8]) -> Option<&[u8]> {
        let [22, 3, _, high, low, rest @ ..] = data else { return None };
        rest.get(..usize::from(u16::from_be_bytes([*high, *low])))
    }

    /// What rustls reads in it: the server name. `None` if it is refused, or not complete.
    fn rustls_name(mut data: &[u8]) -> Option<Option<String>> {
        let mut acceptor = Acceptor::default();
        while !data.is_empty() {
            acceptor.read_tls(&mut data).ok()?;
            match acceptor.accept() {
                Ok(None) => {}
                Ok(Some(accepted)) => return Some(accepted.client_hello().server_name().map(str::to_owned)),
                Err(_) => return None,
            }
        }
        None
    }

    fn check(found: &ClientHello<'_>) {
        assert!(found.session_id.len() <= 255);
        assert!(found.name().is_none_or(|name| name == name.to_ascii_lowercase()));
    }

    /// Runs the target.
    pub fn fuzz_one(data: &[u8]) {
        let Some((first, data)) = data.split_first() else { return };
        let mut joined = Vec::new();
        let whole = match parse(data, &mut joined) {
            Ok(Some(hello)) => hello,
            Ok(None) => return assert_eq!(rustls_name(data), None, "rustls finds a complete hello"),
            Err(error) => return assert_eq!(error.alert().is_none(), error == HelloError::NotTls),
        };
        check(&whole);
        // The rules are chosen by our name, the certificate by that of rustls.
        if let Some(Some(name)) = rustls_name(data) {
            assert_eq!(whole.name(), Some(name));
        }
        let mut room = Vec::new();
        for end in 0..data.len() {
            match parse(&data[..end], &mut room) {
                Ok(None) => {}
                Ok(Some(part)) => assert_eq!(part, whole, "at {end}"),
                Err(error) => panic!("{error:?} at {end} of {}", data.len()),
            }
        }
        let Some(message) = message(data) else { return };
        let length =
            message.get(1..4).map_or(0, |n| usize::from(n[0]) << 16 | usize::from(n[1]) << 8 | usize::from(n[2]));
        let Some(message) = message.get(..4 + length) else { return };
        assert!(length <= MAX_HELLO);
        assert_eq!(parse_message(message), Ok(Some(whole.clone())));
        let mut records = Vec::new();
        for piece in message.chunks(1 + usize::from(*first)) {
            records.extend_from_slice(&[22, 3, 1]);
            records.extend_from_slice(&(piece.len() as u16).to_be_bytes());
            records.extend_from_slice(piece);
        }
        assert_eq!(parse(&records, &mut room), Ok(Some(whole)));
    }
}
