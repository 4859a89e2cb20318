use super::*;

fn frame(kind: u64, payload: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    put_header(&mut out, kind, payload.len());
    out.extend_from_slice(payload);
    out
}

/// The pieces of a stream, data joined, given in parts of `step` bytes.
fn pieces(side: Side, bytes: &[u8], step: usize) -> Result<Vec<(char, Vec<u8>)>, H3Error> {
    let mut reader = MessageReader::new(side, 64);
    let mut out: Vec<(char, Vec<u8>)> = Vec::new();
    for part in bytes.chunks(step.max(1)) {
        let mut at = 0;
        loop {
            let (used, piece) = reader.read(&part[at..])?;
            at += used;
            match piece {
                Piece::NeedMore => break,
                Piece::Head(s) => out.push(('h', s.to_vec())),
                Piece::Trailers(s) => out.push(('t', s.to_vec())),
                Piece::TooLarge(e) => out.push(('!', format!("{e:?}").into_bytes())),
                Piece::Data(d) => match out.last_mut() {
                    Some(('d', data)) => data.extend_from_slice(d),
                    _ => out.push(('d', d.to_vec())),
                },
            }
        }
        assert_eq!(at, part.len());
    }
    reader.finish()?;
    Ok(out)
}

fn all_ways(bytes: &[u8]) -> Result<Vec<(char, Vec<u8>)>, H3Error> {
    let whole = pieces(Side::Server, bytes, bytes.len());
    for step in 1..8 {
        assert_eq!(pieces(Side::Server, bytes, step), whole);
    }
    whole
}

#[test]
fn messages_whole_and_in_parts() {
    let h = frame(HEADERS, b"head");
    let t = frame(HEADERS, b"tail");
    let d = frame(DATA, b"0123456789");
    let grease = frame(0x1f * 3 + 0x21, b"whatever");
    let got = all_ways(&[&grease[..], &h, &grease, &d, &frame(DATA, b""), &d, &t, &grease].concat()).unwrap();
    assert_eq!(got, [('h', b"head".to_vec()), ('d', b"01234567890123456789".to_vec()), ('t', b"tail".to_vec())]);
    assert_eq!(all_ways(&h).unwrap().len(), 1);
    assert_eq!(all_ways(&frame(HEADERS, b"")).unwrap(), [('h', vec![])]);
}

#[test]
fn what_may_not_be_on_a_request_stream() {
    let code = |bytes: &[u8]| all_ways(bytes).unwrap_err().code();
    let h = frame(HEADERS, b"h");
    let d = frame(DATA, b"d");
    assert_eq!(code(&d), Code::FrameUnexpected);
    assert_eq!(code(&[&h[..], &h, &d].concat()), Code::FrameUnexpected);
    assert_eq!(code(&[&h[..], &h, &h].concat()), Code::FrameUnexpected);
    for kind in [CANCEL_PUSH, SETTINGS, GOAWAY, MAX_PUSH_ID, PUSH_PROMISE, PRIORITY_UPDATE, 2, 6, 8, 9] {
        assert_eq!(code(&frame(kind, b"x")), Code::FrameUnexpected, "{kind:#x}");
    }
    assert_eq!(pieces(Side::Client, &frame(PUSH_PROMISE, b"x"), 9).unwrap_err().code(), Code::IdError);
    assert_eq!(code(b""), Code::RequestIncomplete);
    assert_eq!(code(&h[..h.len() - 1]), Code::FrameError);
    assert_eq!(code(&[&h[..], &d[..1]].concat()), Code::FrameError);
}

/// What follows a section that is too large is read as what it is, and the section not at all.
#[test]
fn sections_above_the_limit_are_skipped() {
    let (h, large) = (frame(HEADERS, b"h"), frame(HEADERS, &[1; 65]));
    let (head, data) = (('h', b"h".to_vec()), ('d', b"d".to_vec()));
    let stream = [&h[..], &frame(DATA, b"d"), &large].concat();
    let trailers = ('!', b"TrailersTooLarge".to_vec());
    assert_eq!(all_ways(&stream).unwrap(), [head, data.clone(), trailers]);
    assert_eq!(all_ways(&[stream, frame(DATA, b"d")].concat()).unwrap_err().code(), Code::FrameUnexpected);
    let all = all_ways(&[large, frame(DATA, b"d")].concat());
    assert_eq!(all.unwrap(), [('!', b"HeadTooLarge".to_vec()), data]);
}

#[test]
fn tunnels_and_interim_heads() {
    let mut reader = MessageReader::new(Side::Client, 64);
    let h = frame(HEADERS, b"h");
    assert!(matches!(reader.read(&h), Ok((_, Piece::Head(_)))));
    reader.expect_another_head();
    assert!(matches!(reader.read(&h), Ok((_, Piece::Head(_)))));
    reader.expect_tunnel();
    assert!(matches!(reader.read(&frame(DATA, b"d")), Ok((_, Piece::Data(b"d")))));
    assert_eq!(reader.read(&h).unwrap_err().code(), Code::FrameUnexpected);
}

/// Feeds one unidirectional stream byte by byte.
fn uni(side: Side, bytes: &[u8]) -> Result<Vec<ControlEvent>, H3Error> {
    let mut whole = Vec::new();
    let result = UniReader::default().feed(&mut Peer::new(side), bytes, |e| {
        whole.push(e);
        Ok(())
    });
    let (mut peer, mut reader, mut events) = (Peer::new(side), UniReader::default(), Vec::new());
    let single = bytes.iter().try_for_each(|b| {
        reader.feed(&mut peer, &[*b], |e| {
            events.push(e);
            Ok(())
        })
    });
    assert_eq!((&result, &whole), (&single, &events));
    result.map(|()| whole)
}

fn control(frames: &[Vec<u8>]) -> Vec<u8> {
    [vec![0], frames.concat()].concat()
}

#[test]
fn control_streams() {
    let settings = frame(SETTINGS, &[6, 0x44, 0, 8, 1]);
    let want = Settings { max_field_section_size: 1024, connect_protocol: true };
    let events = uni(Side::Server, &control(&[settings.clone(), frame(0x21, b"xy"), frame(GOAWAY, &[5])])).unwrap();
    assert_eq!(events, [ControlEvent::Settings(want), ControlEvent::Goaway(5)]);
    assert_eq!(uni(Side::Client, &control(&[frame(SETTINGS, b"")])).unwrap().len(), 1);
    let mut opening = Vec::new();
    put_control_opening(&mut opening, &want);
    put_goaway(&mut opening, 8);
    assert_eq!(uni(Side::Client, &opening).unwrap(), [ControlEvent::Settings(want), ControlEvent::Goaway(8)]);
    let mut update = Vec::new();
    varint::put(&mut update, 4);
    update.extend_from_slice(b"u=1");
    let events = uni(Side::Server, &control(&[settings.clone(), frame(PRIORITY_UPDATE, &update)])).unwrap();
    assert_eq!(events[1], ControlEvent::Priority(4, b"u=1".to_vec()));
}

#[test]
fn what_may_not_be_on_a_control_stream() {
    let settings = frame(SETTINGS, b"");
    let server = |frames: &[Vec<u8>]| uni(Side::Server, &control(frames)).unwrap_err().code();
    assert_eq!(server(&[frame(GOAWAY, &[0])]), Code::MissingSettings);
    assert_eq!(server(&[frame(0x21, b""), settings.clone()]), Code::MissingSettings);
    let after = |kind, payload: &[u8]| server(&[settings.clone(), frame(kind, payload)]);
    assert_eq!(after(SETTINGS, b""), Code::FrameUnexpected);
    for kind in [DATA, HEADERS, PUSH_PROMISE, 2, 6, 8, 9] {
        assert_eq!(after(kind, b"x"), Code::FrameUnexpected, "{kind}");
    }
    assert_eq!(after(GOAWAY, b""), Code::FrameError);
    assert_eq!(after(GOAWAY, &[1, 1]), Code::FrameError);
    assert_eq!(after(CANCEL_PUSH, &[1]), Code::IdError);
    assert_eq!(after(PRIORITY_UPDATE, &[1]), Code::IdError);
    assert_eq!(after(MAX_PUSH_ID, &[0; 5000]), Code::ExcessiveLoad);
    assert_eq!(server(&[settings.clone(), frame(GOAWAY, &[4]), frame(GOAWAY, &[8])]), Code::IdError);
    assert_eq!(server(&[settings.clone(), frame(MAX_PUSH_ID, &[4]), frame(MAX_PUSH_ID, &[3])]), Code::IdError);
    let client = |frame: Vec<u8>| uni(Side::Client, &control(&[settings.clone(), frame])).unwrap_err().code();
    assert_eq!(client(frame(MAX_PUSH_ID, &[1])), Code::FrameUnexpected);
    assert_eq!(client(frame(GOAWAY, &[1])), Code::IdError);
}

#[test]
fn other_streams() {
    assert_eq!(uni(Side::Server, &[1]).unwrap_err().code(), Code::StreamCreationError);
    assert_eq!(uni(Side::Client, &[1]).unwrap_err().code(), Code::IdError);
    assert_eq!(uni(Side::Server, &[2, 0x20, 0x20]), Ok(vec![]));
    assert_eq!(uni(Side::Server, &[2, 0x3f, 1]).unwrap_err().code(), Code::QpackEncoderStreamError);
    // Stream cancellations, one of them with a long id.
    assert_eq!(uni(Side::Server, &[3, 0x44, 0x7f, 0x81, 0x01, 0x40]), Ok(vec![]));
    for bad in [0x80, 0x01] {
        assert_eq!(uni(Side::Server, &[3, bad]).unwrap_err().code(), Code::QpackDecoderStreamError);
    }
    let mut reader = UniReader::default();
    reader.feed(&mut Peer::new(Side::Server), &[0x21, 1, 2, 3], |_| Ok(())).unwrap();
    assert!(reader.is_ignored() && reader.finish().is_ok());

    let mut peer = Peer::new(Side::Server);
    for (kind, critical) in [(0u8, true), (2, true), (3, true)] {
        let mut first = UniReader::default();
        first.feed(&mut peer, &[kind], |_| Ok(())).unwrap();
        assert_eq!(first.finish().is_err(), critical);
        let again = UniReader::default().feed(&mut peer, &[kind], |_| Ok(()));
        assert_eq!(again.unwrap_err().code(), Code::StreamCreationError);
    }
}
