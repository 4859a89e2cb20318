//! The rules of an exchange, over random sequences of events; `connections` has those of a connection's deadlines. A failure prints
//! the seed and the script of events.

mod connections;

use sealane_exchange::{
    Action, Actions, Direction, EarlyRequests, Event, Exchange, Fit, Head, Kind, Loss, MAX_INTERIM, MAX_NOT_TAKEN,
    Phase, Request, Switching,
};

/// Steele, Lea and Flood's SplitMix64.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn below(&mut self, n: usize) -> usize {
        (self.next() % n as u64) as usize
    }

    fn coin(&mut self) -> bool {
        self.below(2) == 0
    }

    fn pick<T: Copy>(&mut self, of: &[T]) -> T {
        of[self.below(of.len())]
    }
}

fn request(random: &mut Random) -> Request {
    let is_safe = random.coin();
    Request {
        kind: random.pick(&[
            Kind::Message,
            Kind::Message,
            Kind::Message,
            Kind::Connect,
            Kind::WebSocket,
            Kind::Upgrade,
            Kind::ExtendedConnect,
            Kind::Relay,
        ]),
        has_body: random.coin(),
        is_safe,
        is_idempotent: is_safe || random.coin(),
        is_early: random.coin(),
        is_marked_early: random.coin(),
        max_drained: 512 * 1024,
    }
}

fn loss(random: &mut Random) -> Loss {
    random.pick(&[
        Loss::Unreachable,
        Loss::ConnectTimeout,
        Loss::Exhausted,
        Loss::Unprocessed,
        Loss::Stale,
        Loss::Broken,
        Loss::Limited,
        Loss::Cancelled,
        Loss::Timeout { short: true },
        Loss::Timeout { short: false },
    ])
}

/// Any event at any time, also those that make no sense: an executor's mistake must not break a rule.
fn event(random: &mut Random) -> Event {
    let direction = random.pick(&[Direction::Request, Direction::Response]);
    match random.below(26) {
        0 | 1 => Event::Forward,
        18 => Event::Accepted,
        19 => Event::Authorize,
        20 => Event::Verify,
        21 | 22 => Event::Verified,
        23 => Event::NotTaken,
        24 => Event::SentEarly,
        25 => Event::EarlyRejected,
        2 => Event::Answer { status: 200 },
        3 | 4 => Event::Connected(random.pick(&[
            Switching::Any,
            Switching::Any,
            Switching::WebSocket,
            Switching::None,
            Switching::Unknown,
            Switching::NoTunnel,
        ])),
        5 => Event::Refuse { status: 503 },
        6 | 7 => Event::Moved { bytes: random.pick(&[1, 1000, 300_000]) },
        8 | 9 => Event::Ended(direction),
        10 => Event::Interim,
        11 | 12 => Event::Head(Head {
            status: random.pick(&[101, 200, 204, 425, 500]),
            switches: random.below(4) == 0,
            confirms: random.coin(),
        }),
        13 => random.pick(&[
            Event::Refuse { status: 400 },
            Event::Refuse { status: 408 },
            Event::TooEarly,
            Event::ClientGone,
            Event::DrainTimeout,
        ]),
        14 => Event::Lost(loss(random)),
        15 => Event::RetryGranted,
        16 => Event::RetryDenied,
        _ => Event::HandshakeDone,
    }
}

/// What an observer who sees only events and actions knows.
#[derive(Default)]
struct Observer {
    finished: bool,
    heads: u32,
    responds: u32,
    response_ended: bool,
    request_ended: bool,
    /// A server has been asked for and not given up since.
    upstream: bool,
    connected: bool,
    asked: bool,
    released: u64,
    asking: bool,
    interim: u8,
    drained: u64,
    selects: u32,
    /// Connections that did not take the request in this try.
    not_taken: u8,
    /// A kept connection was lost, and the request asked for a retry beside its tries.
    was_stale: bool,
    handshake_done: bool,
    /// The gateway has sent the request as early data.
    sent_early: bool,
    accepted: bool,
    /// A server must admit the request, or a password be right, before it may go on.
    unadmitted: bool,
    /// It is a password.
    verifying: bool,
}

impl Observer {
    fn check(&mut self, facts: &Request, before: &Exchange, event: Event, actions: Actions, after: &Exchange) {
        use Action::*;
        if self.finished {
            assert!(actions.is_empty(), "nothing happens after the end");
            return;
        }
        let has = |action| actions.has(action);

        // A stale connection is one once; then the server has failed. Of other losses the exchange knows no more than who tells it.
        if let Event::Lost(loss) = event
            && self.upstream
        {
            let taken_for = before.loss(loss);
            let expected = if loss == Loss::Stale && self.was_stale { Loss::Broken } else { loss };
            assert_eq!(taken_for, expected);
            let mut other = *before;
            assert_eq!((other.on(Event::Lost(taken_for)), &other), (actions, after), "it is what it is taken for");
        }

        // What moved while the request was open has left for a server.
        if let Event::Moved { bytes } = event
            && before.request() == Phase::Streaming
        {
            self.released += bytes;
        }

        // The client gets one final response at most, and no status after a head.
        self.heads += u32::from(has(ForwardHead));
        self.responds += u32::from(has(Respond));
        assert!(self.heads + self.responds <= 1, "one final response");
        assert_eq!(has(Respond), actions.status() != 0);
        assert!(!(has(EndResponse) && (self.heads == 0 && facts.kind != Kind::Relay)), "an end without a head");
        assert!(!(has(EndResponse) && self.response_ended), "one end of the response");
        self.response_ended |= has(EndResponse);

        // Nothing goes to a server that has been given up, and no server is asked for while there is one.
        if has(ResetUpstream) {
            assert!(self.upstream, "a reset without a server");
            (self.upstream, self.connected) = (false, false);
        }
        if has(SelectServer) {
            self.request_ended = false;
        }
        if has(SendHead) {
            let Event::Connected(switching) = event else { panic!("a head is sent without a connection") };
            assert!(self.upstream && !self.connected, "a head without a server, or a second one");
            self.connected = true;
            assert_eq!(self.unadmitted, before.is_authorizing(), "only the question goes before the answer");
            // Only what can carry WebSocket is asked for it, and nobody switches unasked.
            let suits = matches!(before.fit(switching), Fit::Whole | Fit::WithoutUpgrade);
            assert!(suits, "a head is sent over a connection that cannot carry it");
            self.asked = match facts.kind {
                _ if self.unadmitted => false,
                Kind::Message | Kind::Relay => false,
                Kind::Connect => {
                    assert_ne!(switching, Switching::NoTunnel, "it would be no tunnel");
                    false
                }
                Kind::Upgrade => switching == Switching::Any,
                Kind::WebSocket | Kind::ExtendedConnect => {
                    assert!(matches!(switching, Switching::Any | Switching::WebSocket), "it would be no WebSocket");
                    true
                }
            };
        }
        // Nothing of a request passes before it is admitted, and only a 2xx admits it.
        self.verifying |= event == Event::Verify && after.is_verifying();
        self.unadmitted |= self.verifying || event == Event::Authorize && has(SelectServer);
        if self.verifying {
            assert!(
                !has(SelectServer) && !has(SendHead) && !has(ForwardHead),
                "a server gets a request without a password"
            );
        }
        if self.unadmitted && !has(Admit) {
            let passes = [ResumeRequest, ResumeResponse, EndRequest, ForwardInterim, AwaitSettings].map(has);
            assert!(!passes.contains(&true), "a request passes that was not admitted");
            assert_ne!(after.request(), Phase::Streaming);
        }
        if has(Admit) {
            match event {
                Event::Head(head) => {
                    assert!(!self.verifying && self.unadmitted && self.connected);
                    assert!((200..300).contains(&head.status) && !head.switches);
                }
                Event::Verified => assert!(self.verifying && !self.upstream && !self.connected),
                _ => panic!("a request is admitted without an answer"),
            }
            assert_eq!((self.released, self.heads + self.responds), (0, 0));
            (self.unadmitted, self.upstream, self.connected, self.selects) = (false, false, false, 0);
            (self.verifying, self.was_stale) = (false, false);
        }
        if has(AwaitSettings) {
            assert!(event == Event::Connected(Switching::Unknown) && self.upstream && !self.connected);
        }
        if has(EndRequest) {
            assert!(self.connected && !self.request_ended, "an end of the request without a server, or a second one");
            self.request_ended = true;
        }
        if has(SelectServer) {
            assert!(!self.upstream, "two servers at once");
            assert_eq!(self.heads + self.responds, 0, "a try after the response has begun");
            self.selects += 1;
            if self.selects > 1 {
                assert_eq!(self.released, 0, "a request sent again that has lost a part of its body");
            }
            self.upstream = true;
        }
        if has(ForwardHead) || has(ForwardInterim) {
            assert!(self.connected, "a response without a server");
        }
        if after.is_tunnel() && !before.is_tunnel() {
            // What ended was the HTTP request; the tunnel begins.
            self.request_ended = false;
        }
        if has(ForwardInterim) {
            assert_eq!(self.heads + self.responds, 0, "an interim response after the final one's head");
            self.interim += 1;
            assert!(self.interim <= MAX_INTERIM, "interim responses are bounded, over all tries together");
        }

        // A head passes if it answers what was asked, and only one that switches protocols opens a tunnel.
        if has(ForwardHead) {
            let Event::Head(head) = event else { panic!("a head is passed on that has not come") };
            let success = (200..300).contains(&head.status);
            assert!(
                match facts.kind {
                    _ if self.unadmitted => !head.switches && !success && head.status >= 200,
                    Kind::Message => !head.switches,
                    Kind::Connect => head.status != 101,
                    Kind::WebSocket | Kind::Upgrade => !head.switches || self.asked && head.confirms,
                    Kind::ExtendedConnect if head.switches => head.confirms,
                    Kind::ExtendedConnect => !success,
                    Kind::Relay => false,
                },
                "an answer to another question"
            );
            assert_eq!(after.is_tunnel(), head.switches);
        } else if facts.kind != Kind::Relay {
            assert_eq!(before.is_tunnel(), after.is_tunnel(), "a tunnel without a head");
        }

        // A retry is safe or does not happen.
        if has(AskRetry) {
            // What came too early has not been processed (RFC 8470 §5.2).
            let loss = match event {
                Event::Lost(loss) => loss,
                Event::HandshakeDone => Loss::Unprocessed,
                _ => panic!("a retry without a loss"),
            };
            assert_eq!(self.heads + self.responds, 0);
            assert_eq!(self.released, 0, "what has been released is not kept");
            if before.loss(loss) == Loss::Stale {
                assert!(!self.was_stale, "a second retry for the age of a connection");
                self.was_stale = true;
            }
            let provably_unprocessed =
                matches!(loss, Loss::Unreachable | Loss::ConnectTimeout | Loss::Exhausted | Loss::Unprocessed);
            assert!(provably_unprocessed || facts.is_idempotent || self.unadmitted, "an unsafe retry");
            self.asking = true;
        }
        if has(SelectServer) && event == Event::NotTaken {
            assert!(before.request() == after.request() && has(ResetUpstream), "it is the same try");
            self.not_taken += 1;
            assert!(self.not_taken <= MAX_NOT_TAKEN, "a request wanders without an end");
        } else if has(SelectServer) && self.selects > 1 {
            assert!(self.asking && event == Event::RetryGranted, "every retry has been asked for");
            self.asking = false;
        }
        if has(SelectServer) && event != Event::NotTaken {
            self.not_taken = 0;
        }

        // Nothing is forwarded that the gateway's own rules have not accepted.
        self.accepted |= event == Event::Accepted || facts.kind == Kind::Relay;
        assert!(self.accepted || !has(SelectServer), "a request was forwarded that was not accepted");

        // RFC 8470: early data carries safe requests only. Of a relayed connection the gateway takes none.
        self.handshake_done |= event == Event::HandshakeDone;
        if facts.is_early && !facts.is_safe && facts.kind != Kind::Relay && !self.handshake_done {
            assert!(!has(SelectServer), "an unsafe request in early data was forwarded");
        }

        assert!(
            !before.may_go_early(EarlyRequests::Client) || facts.is_early && !self.sent_early,
            "its client has sent no early data"
        );
        // The gateway sends a request as early data once, if at all, and only one that is harmless and has not been sent again.
        if after.was_sent_early() && !before.was_sent_early() {
            assert_eq!(event, Event::SentEarly);
            assert!(before.may_go_early(EarlyRequests::Safe) && self.upstream && !self.connected);
            assert!(
                facts.kind == Kind::Message && facts.is_safe && !facts.has_body,
                "not every request may be repeated"
            );
            assert!(!self.sent_early && !self.was_stale && !self.unadmitted, "a request sent again as early data");
            assert!(facts.is_early || !facts.is_marked_early, "a proxy would take a 425 for one to its own early data");
            self.sent_early = true;
        }
        // A 425 to early data of the gateway's own never reaches the client, unless it is a proxy that has early data itself.
        if let Event::Head(Head { status: 425, .. }) = event
            && before.was_sent_early()
            && !facts.is_marked_early
        {
            assert!(!has(ForwardHead), "the client has sent no early data");
        }

        // Bytes flow only where there is a sink for them; they are thrown away only after the response.
        if !has(Finish) {
            if after.request() == Phase::Draining {
                assert!(self.heads + self.responds == 1, "a request is thrown away only after the response");
            }
            if after.request() == Phase::Streaming {
                assert!(self.connected && after.has_server());
            }
            if after.response() == Phase::Streaming {
                assert!(self.connected && (self.heads == 1 || facts.kind == Kind::Relay));
            }
        }
        // What is thrown away is bounded.
        if let Event::Moved { bytes } = event
            && before.request() == Phase::Draining
        {
            self.drained += bytes;
            assert_eq!(has(CloseClient), self.drained > facts.max_drained, "{} thrown away", self.drained);
        }
        // The client's side goes on only if both messages are whole, and a server's only if it has spoken HTTP throughout.
        if has(FinishClient) {
            assert!(self.response_ended || self.responds == 1, "a response that is not whole");
            assert_eq!(after.request(), Phase::Complete);
        }
        if has(ReleaseUpstream) {
            assert!(self.response_ended && !before.is_tunnel() && after.request() == Phase::Complete);
        }
        if has(RejectResponse) {
            assert!(self.connected && !after.is_answered(), "an answer is rejected in place of being passed on");
        }

        // A response that is whole is never cut off, whatever becomes of the rest of its request.
        if has(CutClient) {
            let whole = before.response() == Phase::Complete && !before.is_tunnel() && facts.kind != Kind::Relay;
            assert!(!whole, "a whole response is cut off");
        }

        // The end comes once, with exactly one word about the client, and leaves no server behind.
        if has(Finish) {
            let words = [FinishClient, CloseClient, CutClient, DetachClient].map(|a| u32::from(has(a)));
            assert_eq!(words.iter().sum::<u32>(), 1, "one end of the client's side");
            if has(ReleaseUpstream) || has(CloseUpstream) {
                assert!(self.connected, "a release without a server");
                (self.upstream, self.connected) = (false, false);
            }
            assert!(!self.upstream, "a server is left behind");
            self.finished = true;
        }
    }
}

fn run(seed: u64) {
    let mut random = Random(seed);
    let facts = request(&mut random);
    let mut exchange = Exchange::new(facts);
    let mut observer = Observer::default();
    let mut script = format!("seed {seed}: {facts:?}\n");
    let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        // Most requests are accepted first; that nothing goes on without is a rule of its own.
        let mut first = (random.below(8) > 0).then_some(Event::Accepted);
        // Of interim responses there may be many in a row.
        let mut interim = 0;
        for _ in 0..60 {
            let event = match first.take() {
                Some(event) => event,
                None if interim > 0 => Event::Interim,
                None => event(&mut random),
            };
            interim = match event {
                Event::Interim if interim > 0 => interim - 1,
                Event::Interim if random.below(4) == 0 => 20,
                _ => 0,
            };
            let before = exchange;
            let actions = exchange.on(event);
            script += &format!("  {event:?} → {actions:?}\n");
            observer.check(&facts, &before, event, actions, &exchange);
        }
        // Whatever has happened, a client that goes ends it.
        let before = exchange;
        let actions = exchange.on(Event::ClientGone);
        script += &format!("  ClientGone → {actions:?}\n");
        observer.check(&facts, &before, Event::ClientGone, actions, &exchange);
        assert!(observer.finished);
    }));
    if let Err(panic) = result {
        eprintln!("{script}");
        std::panic::resume_unwind(panic);
    }
}

#[test]
fn every_rule_holds_for_random_events() {
    (0..200_000).for_each(run);
}

#[test]
fn the_machine_is_small() {
    assert!(size_of::<Exchange>() <= 56, "{}", size_of::<Exchange>());
    assert!(size_of::<Actions>() <= 8);
}
