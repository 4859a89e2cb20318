//! The data channel's two ends against each other, and against bytes computed here from the cipher alone.

use aws_lc_rs::aead::{AES_256_GCM, Aad, LessSafeKey, Nonce, UnboundKey};
use sealane_ovpn::data::{Cipher, DirectionKey, Format, Header, KeyPair, OpenError, Opener, PeerId, Sealer};

fn keys() -> (KeyPair, KeyPair) {
    let expansion: [u8; 256] = std::array::from_fn(|i| i as u8);
    (KeyPair::from_expansion(&expansion, true), KeyPair::from_expansion(&expansion, false))
}

fn header(key_id: u8) -> Header {
    Header { key_id, peer_id: PeerId::new(7) }
}

fn every() -> impl Iterator<Item = (Cipher, Format, Header)> {
    let headers = [header(3), Header { key_id: 1, peer_id: None }];
    Cipher::ALL
        .into_iter()
        .flat_map(|c| [(c, Format::Stock), (c, Format::Epoch)])
        .flat_map(move |(c, f)| headers.map(|h| (c, f, h)))
}

#[test]
fn what_one_seals_the_other_opens_once() {
    let (server, client) = keys();
    for (cipher, format, header) in every() {
        let mut sealer = Sealer::new(cipher, format, header, &client.encrypt);
        let mut opener = Opener::new(cipher, format, &server.decrypt);
        for length in [1, 15, 16, 1400, 9000] {
            let plain: Vec<u8> = (0..length).map(|i| i as u8).collect();
            let (mut sealed, mut opened) = (vec![0; 9100], vec![0; 9100]);
            let n = sealer.seal_into(&plain, &mut sealed).expect("it fits");
            assert_eq!(n, plain.len() + format.overhead(header));
            assert_eq!(Header::parse(&sealed), Some(header));
            assert_eq!(opener.plaintext_len(&sealed[..n]), Some(plain.len()));
            let m = opener.open_into(&sealed[..n], &mut opened).expect("it is authentic");
            assert_eq!(&opened[..m], &plain[..]);
            assert_eq!(opener.open_into(&sealed[..n], &mut opened), Err(OpenError::Replayed));

            // The same in place.
            let mut packet = vec![0; sealer.head()];
            packet.extend_from_slice(&plain);
            packet.resize(packet.len() + sealer.tail(), 0);
            sealer.seal_in_place(&mut packet).expect("it fits");
            let text = opener.open_in_place(&mut packet).expect("it is authentic");
            assert_eq!(&packet[text], &plain[..]);
        }
    }
}

/// The stock format by hand: tag between packet id and ciphertext, nonce = packet id, tail of the MAC key.
#[test]
fn the_stock_format_lies_where_openvpn_puts_it() {
    let (server, _) = keys();
    let mut sealer = Sealer::new(Cipher::Aes256Gcm, Format::Stock, header(2), &server.encrypt);
    let mut packet = [0; 100];
    let n = sealer.seal_into(b"plaintext", &mut packet).expect("it fits");
    assert_eq!(packet[..8], [9 << 3 | 2, 0, 0, 7, 0, 0, 0, 1]);
    // The server's key is the second: 64 + 64 bytes on; its MAC's bytes another 64 on.
    let key: Vec<u8> = (128..160).collect();
    let nonce: Vec<u8> = [0, 0, 0, 1].into_iter().chain(192..200).collect();
    let key = LessSafeKey::new(UnboundKey::new(&AES_256_GCM, &key).expect("32 bytes"));
    let mut rest = packet[24..n].to_vec();
    rest.extend_from_slice(&packet[8..24]);
    let nonce = Nonce::try_assume_unique_for_key(&nonce).expect("12 bytes");
    let opened = key.open_in_place(nonce, Aad::from(&packet[..8]), &mut rest).expect("as the layout says");
    assert_eq!(opened, b"plaintext");
}

/// Without a peer id the opcode's byte is not authenticated.
#[test]
fn data_v1_authenticates_the_packet_id_alone() {
    let (server, client) = keys();
    let header = Header { key_id: 0, peer_id: None };
    let mut sealer = Sealer::new(Cipher::Aes128Gcm, Format::Stock, header, &client.encrypt);
    let mut packet = [0; 100];
    let n = sealer.seal_into(b"x", &mut packet).expect("it fits");
    packet[0] ^= 1;
    let mut opener = Opener::new(Cipher::Aes128Gcm, Format::Stock, &server.decrypt);
    assert_eq!(opener.open_into(&packet[..n], &mut [0; 100]), Ok(1));
}

#[test]
fn every_flipped_bit_and_every_cut_is_refused() {
    let (server, client) = keys();
    for (cipher, format, _) in every() {
        let mut sealer = Sealer::new(cipher, format, header(0), &client.encrypt);
        let mut opener = Opener::new(cipher, format, &server.decrypt);
        let mut packet = [0; 64];
        let n = sealer.seal_into(b"some text", &mut packet).expect("it fits");
        for bit in 0..n * 8 {
            let mut broken = packet;
            broken[bit / 8] ^= 1 << (bit % 8);
            assert!(opener.open_into(&broken[..n], &mut [0; 64]).is_err(), "bit {bit}");
        }
        for length in 0..n {
            assert!(opener.open_into(&packet[..length], &mut [0; 64]).is_err(), "length {length}");
        }
        assert_eq!(opener.open_into(&packet[..n], &mut [0; 64]), Ok(9), "what was forged took no id");
        // Reflected: sealed with the other direction's key.
        let mut mirror = Opener::new(cipher, format, &client.decrypt);
        assert_eq!(mirror.open_into(&packet[..n], &mut [0; 64]), Err(OpenError::Forged));
    }
}

#[test]
fn a_sealer_moves_its_epoch_and_the_peer_follows() {
    let (server, client) = keys();
    let mut sealer = Sealer::new(Cipher::Aes256Gcm, Format::Epoch, header(0), &client.encrypt);
    let mut opener = Opener::new(Cipher::Aes256Gcm, Format::Epoch, &server.decrypt);
    let mut back = Sealer::new(Cipher::Aes256Gcm, Format::Epoch, header(0), &server.encrypt);
    let mut packets = Vec::new();
    let seal = |sealer: &mut Sealer| {
        let mut packet = vec![0; 64];
        let n = sealer.seal_into(b"text", &mut packet).expect("it fits");
        packet.truncate(n);
        packet
    };
    packets.push(seal(&mut sealer));
    let late = seal(&mut sealer);
    for epoch in [2, 3, 5, 9, 13] {
        sealer.follow(epoch);
        assert_eq!((sealer.epoch(), sealer.next_id()), (epoch, 1));
        packets.push(seal(&mut sealer));
    }
    let mut out = [0; 64];
    assert_eq!(opener.open_into(&packets[0], &mut out), Ok(4));
    assert_eq!(opener.open_into(&packets[1], &mut out), Ok(4));
    assert_eq!(opener.epoch(), 2);
    assert_eq!(opener.open_into(&late, &mut out), Ok(4), "the epoch before is still open");
    assert_eq!(opener.open_into(&late, &mut out), Err(OpenError::Replayed), "with its own window");
    for packet in &packets[2..] {
        assert_eq!(opener.open_into(packet, &mut out), Ok(4));
    }
    assert_eq!(opener.open_into(&packets[1], &mut out), Err(OpenError::Epoch), "long over");
    back.follow(opener.epoch());
    assert_eq!(back.epoch(), 13);
    // Farther than the keys that are ready.
    sealer.follow(20);
    let far = seal(&mut sealer);
    assert_eq!(opener.open_into(&far, &mut out), Err(OpenError::Epoch));
}

/// The data plane tells the sealer of the peer's epoch with each packet that it opens. Under one key no id may be issued twice:
/// it makes the nonce.
#[test]
fn an_id_is_issued_once_whatever_the_peer_has_begun() {
    let (server, client) = keys();
    let mut sealer = Sealer::new(Cipher::Aes256Gcm, Format::Epoch, header(0), &client.encrypt);
    let mut opener = Opener::new(Cipher::Aes256Gcm, Format::Epoch, &server.decrypt);
    let (mut packet, mut out) = ([0; 64], [0; 64]);
    // As it was, the same again, an old one, a new one, and the one before that.
    for (told, epoch) in [(0, 1), (1, 1), (1, 1), (0, 1), (4, 4), (4, 4), (3, 4)] {
        let (before, next) = (sealer.epoch(), sealer.next_id());
        sealer.follow(told);
        let expected = if sealer.epoch() == before { next } else { 1 };
        assert_eq!((sealer.epoch(), sealer.next_id()), (epoch, expected), "told {told}");
        let n = sealer.seal_into(b"text", &mut packet).expect("it fits");
        assert_eq!(opener.open_into(&packet[..n], &mut out), Ok(4), "told {told}");
    }
    // Another process's state of the same key is taken on only where it is ahead.
    for (next, expected) in [(9, 9), (2, 9)] {
        sealer.resume(4, next, 0);
        assert_eq!((sealer.epoch(), sealer.next_id()), (4, expected));
    }
}

#[test]
fn a_used_up_key_seals_no_more() {
    let key = DirectionKey { key: [1; 32], tail: [2; 8] };
    let mut packet = [0; 64];
    let mut sealer = Sealer::new(Cipher::ChaCha20Poly1305, Format::Stock, header(0), &key);
    sealer.resume(0, u64::from(u32::MAX), 0);
    assert!(sealer.wants_renewal());
    assert!(sealer.seal_into(b"last", &mut packet).is_ok());
    assert!(sealer.seal_into(b"none", &mut packet).is_err());

    let limit = Cipher::Aes256Gcm.usage_limit().expect("it has one");
    let mut sealer = Sealer::new(Cipher::Aes256Gcm, Format::Stock, header(0), &key);
    assert!(!sealer.wants_renewal());
    sealer.resume(0, 5, limit - 1);
    assert!(sealer.wants_renewal());
    assert!(sealer.seal_into(b"none", &mut packet).is_err());
    // Resuming never goes back.
    sealer.resume(0, 1, 0);
    assert_eq!(sealer.next_id(), 5);

    // The epoch format takes the next epoch instead.
    let mut sealer = Sealer::new(Cipher::Aes256Gcm, Format::Epoch, header(0), &key);
    sealer.resume(1, 5, limit - 1);
    assert!(sealer.seal_into(b"text", &mut packet).is_ok());
    assert_eq!((sealer.epoch(), sealer.next_id()), (2, 2));
}
