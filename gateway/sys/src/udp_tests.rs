use super::*;

fn pair(options: &Options) -> (Socket, Socket) {
    let bind = || Socket::bind("127.0.0.1:0".parse().unwrap(), options).unwrap();
    (bind(), bind())
}

/// Receives until `wanted` datagrams have come. Loopback delivers before the send returns, so nothing is waited for.
fn receive_all(socket: &Socket, batch: &mut Batch, wanted: usize) -> Vec<(Meta, Vec<u8>)> {
    let mut all = Vec::new();
    while all.len() < wanted {
        socket.receive(batch).unwrap();
        for (meta, bytes) in batch.iter_mut() {
            all.extend(bytes.chunks(meta.segment).map(|d| (meta, d.to_vec())));
        }
    }
    all
}

fn transmit<'a>(to: &Socket, data: &'a [u8], segment: usize) -> Transmit<'a> {
    Transmit { remote: to.address(), local: None, segment, ecn: 0, data }
}

#[test]
fn a_segmented_message_arrives_as_its_datagrams() {
    let (a, b) = pair(&Options::default());
    let data: Vec<u8> = (0..10_500u32).map(|i| (i / 1000) as u8).collect();
    a.send(&transmit(&b, &data, 1000)).unwrap();
    let got = receive_all(&b, &mut Batch::new(4, 65_535), 11);
    assert_eq!(got.len(), 11);
    for (i, (meta, datagram)) in got.iter().enumerate() {
        assert_eq!(datagram.len(), if i == 10 { 500 } else { 1000 });
        assert!(datagram.iter().all(|b| usize::from(*b) == i));
        assert_eq!(meta.remote, a.address());
        assert_eq!(meta.local, Some(b.address().ip()));
    }
}

#[test]
fn without_offload_the_same_datagrams_arrive() {
    let (a, b) = pair(&Options::default());
    let (a, b) = (a.without_offload(), b.without_offload());
    assert_eq!(a.segments(), 1);
    let data = vec![7; 2_500];
    let batch = [transmit(&b, b"first", 0), transmit(&b, &data, 1000), transmit(&b, b"last", 0)];
    assert_eq!(a.send_batch(&batch).unwrap(), 3);
    let lengths: Vec<usize> = receive_all(&b, &mut Batch::new(8, 2_048), 5).iter().map(|(_, d)| d.len()).collect();
    assert_eq!(lengths, [5, 1000, 1000, 500, 4]);
}

#[test]
fn a_refused_segmentation_is_sent_singly_and_given_up_in_the_end() {
    // Loopback fragments what is larger than its MTU, but does not segment into it.
    let (a, b) = pair(&Options { receive_buffer: 8 << 20, ..Options::default() });
    // More segments than any kernel takes are refused as such.
    let data = vec![1; 60_000];
    let mut batch = Batch::new(32, 65_535);
    for round in 0..WAIT_LIMIT {
        assert_eq!(a.segments(), MAX_SEGMENTS, "round {round}");
        a.send(&transmit(&b, &data, 10)).unwrap();
        while b.receive(&mut batch).is_ok() {}
    }
    assert_eq!(a.segments(), 1);
}

#[test]
fn a_longer_datagram_than_the_buffer_is_marked() {
    let (a, b) = pair(&Options::default());
    a.send(&transmit(&b, &[1; 100], 0)).unwrap();
    let mut batch = Batch::new(1, 50);
    b.receive(&mut batch).unwrap();
    let (meta, bytes) = batch.iter_mut().next().unwrap();
    assert!(meta.truncated);
    assert_eq!((meta.len, bytes.len()), (50, 50));
}

#[test]
fn a_dual_stack_socket_speaks_of_ipv4_as_ipv4_and_keeps_ecn() {
    let options = Options { dual_stack: true, ecn: true, ..Options::default() };
    let Ok(a) = Socket::bind("[::]:0".parse().unwrap(), &options) else {
        return eprintln!("skipped: no IPv6 here");
    };
    let b = Socket::bind("127.0.0.1:0".parse().unwrap(), &options).unwrap();
    let alias: IpAddr = "127.0.0.2".parse().unwrap();
    let local = Some(alias);
    a.send(&Transmit { remote: b.address(), local, segment: 0, ecn: 2, data: b"ask" }).unwrap();
    let (meta, _) = receive_all(&b, &mut Batch::new(2, 100), 1)[0].clone();
    assert_eq!(meta.ecn, 2);
    assert_eq!(meta.remote.ip(), alias);
    b.send(&Transmit { remote: meta.remote, local: None, segment: 0, ecn: 1, data: b"answer" }).unwrap();
    let (meta, bytes) = receive_all(&a, &mut Batch::new(2, 100), 1)[0].clone();
    assert_eq!(bytes, b"answer");
    assert_eq!(meta.remote, b.address());
    assert_eq!(meta.local, local);
    assert_eq!(meta.ecn, 1);
}

#[test]
fn a_program_steers_by_the_first_byte() {
    let options = Options { reuse_port: true, ..Options::default() };
    let first = Socket::bind("127.0.0.1:0".parse().unwrap(), &options).unwrap();
    let second = Socket::bind(first.address(), &options).unwrap();
    // Load byte 0; return it.
    first.steer(&[(0x30, 0, 0, 0), (0x16, 0, 0, 0)]).unwrap();
    let sender = Socket::bind("127.0.0.1:0".parse().unwrap(), &Options::default()).unwrap();
    for _ in 0..8 {
        sender.send(&transmit(&first, &[0], 0)).unwrap();
        sender.send(&transmit(&first, &[1], 0)).unwrap();
    }
    let mut batch = Batch::new(32, 100);
    for (socket, number) in [(&first, 0), (&second, 1)] {
        let got = receive_all(socket, &mut batch, 8);
        assert!(got.iter().all(|(_, d)| d[0] == number));
        assert_eq!(got.len(), 8);
    }
}

/// The kernel is offered few buffers first, and the rest when it has filled them: what waits comes in one call all the same.
#[test]
fn a_batch_is_filled_whatever_came_before() {
    let (a, b) = pair(&Options::default());
    let b = b.without_offload();
    let mut batch = Batch::new(32, 100);
    for waiting in [1, 3, 4, 20, 1, 40] {
        (0..waiting).for_each(|n| a.send(&transmit(&b, &[n], 0)).unwrap());
        assert_eq!(b.receive(&mut batch).unwrap(), usize::from(waiting.min(32)));
        assert!(batch.iter_mut().map(|(_, bytes)| bytes[0]).eq(0..waiting.min(32)));
        if waiting > 32 {
            assert_eq!(b.receive(&mut batch).unwrap(), usize::from(waiting - 32));
        }
        assert!(b.receive(&mut batch).is_err() && batch.is_empty());
    }
}

/// A batch points to nothing: where it lies when it is filled, and from which thread, does not matter.
#[test]
fn a_batch_may_move_between_calls() {
    let receiver = Socket::bind("127.0.0.1:0".parse().unwrap(), &Options::default()).unwrap();
    let sender = Socket::bind("127.0.0.1:0".parse().unwrap(), &Options::default()).unwrap();
    let mut batch = Batch::new(4, 100);
    for round in 0..4u8 {
        sender.send(&transmit(&receiver, &[round; 30], 0)).unwrap();
        let got = receive_all(&receiver, &mut batch, 1);
        assert_eq!((got.len(), &got[0].1[..]), (1, &[round; 30][..]));
        assert_eq!(got[0].0.remote, sender.address());
        // Each time it lies elsewhere.
        let boxed = Box::new(batch);
        batch = *std::thread::spawn(move || boxed).join().unwrap();
    }
}

#[test]
fn a_connected_socket_has_one_peer_and_hears_that_nobody_listens() {
    let (server, other) = pair(&Options::default());
    let socket = Socket::connect(server.address(), &Options::default()).unwrap();
    socket.send(&transmit(&server, b"ping", 0)).unwrap();
    let mut batch = Batch::new(4, 65_535);
    let got = receive_all(&server, &mut batch, 1);
    assert_eq!((got[0].0.remote, &got[0].1[..]), (socket.address(), &b"ping"[..]));
    // Of the two datagrams only the peer's arrives.
    other.send(&transmit(&socket, b"forged", 0)).unwrap();
    server.send(&transmit(&socket, b"pong", 0)).unwrap();
    let got = receive_all(&socket, &mut batch, 1);
    assert_eq!((got.len(), got[0].0.remote, &got[0].1[..]), (1, server.address(), &b"pong"[..]));
    assert_eq!(socket.receive(&mut batch).unwrap_err().kind(), io::ErrorKind::WouldBlock);
    let to = server.address();
    drop(server);
    socket.send(&Transmit { remote: to, local: None, segment: 0, ecn: 0, data: b"ping" }).unwrap();
    assert_eq!(socket.receive(&mut batch).unwrap_err().kind(), io::ErrorKind::ConnectionRefused);
}
