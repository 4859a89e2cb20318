use super::docs::{CONNECTIONS, TABLE, connections, table};
use super::*;

const IDLE: Millis = 1000;
const RATE: u64 = 100;

fn limits() -> Limits {
    Limits {
        client: BodyLimits { idle: IDLE, rate: RATE },
        upstream: BodyLimits { idle: 3 * IDLE, rate: RATE },
        handshake: 500,
        connection: 700,
        first_byte: 2000,
        authorized_until: Some(400),
        queued_until: None,
        try_until: None,
        rest_until: None,
        total_until: None,
        copy_until: None,
    }
}

fn open() -> State {
    State { request: Step::Open { blocked: false }, response: Step::Waiting, stage: Stage::Sent }
}

/// Both directions of an exchange.
#[derive(Default)]
struct Both {
    request: Progress,
    response: Progress,
    up: u64,
    down: u64,
}

impl Both {
    fn begun(now: Millis) -> Self {
        let mut both = Self::default();
        both.request.begin(now);
        both.response.begin(now);
        both
    }

    fn deadline(&mut self, now: Millis, state: &State, class: Class, limits: &Limits) -> Option<Deadline> {
        let request = Direction { wait: state.request_wait(), progress: &mut self.request, bytes: self.up };
        let response = Direction { wait: state.response_wait(), progress: &mut self.response, bytes: self.down };
        deadline(now, class, limits, request, response)
    }
}

/// A linear congruential generator: the same sequence in every run.
struct Random(u64);

impl Random {
    fn below(&mut self, n: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % n
    }
}

#[test]
fn the_tables_have_a_row_for_each_wait() {
    let twice = TABLE.iter().enumerate().find(|(i, row)| TABLE[..*i].iter().any(|other| other.wait == row.wait));
    assert!(twice.is_none(), "{twice:?}");
    let twice = CONNECTIONS
        .iter()
        .enumerate()
        .find(|(i, row)| CONNECTIONS[..*i].iter().any(|other| (other.wait, other.party) == (row.wait, row.party)));
    assert!(twice.is_none(), "{twice:?}");
    let all = [
        Wait::Handshake,
        Wait::RequestBody,
        Wait::RequestRoom,
        Wait::RequestRest,
        Wait::Connection,
        Wait::Authorization,
        Wait::Password,
        Wait::Queue,
        Wait::ResponseHead,
        Wait::ResponseBody,
        Wait::ResponseRoom,
        Wait::Tunnel,
        Wait::Exchange,
        Wait::Copy,
    ];
    assert!(TABLE.iter().map(|row| row.wait).eq(all));
    for (wait, party) in [
        (ConnectionWait::Handshake, Some(Party::Client)),
        (ConnectionWait::Ticket, None),
        (ConnectionWait::Connect, Some(Party::Upstream)),
        (ConnectionWait::FirstRequest, Some(Party::Client)),
        (ConnectionWait::RequestHead, Some(Party::Client)),
        (ConnectionWait::Request, Some(Party::Client)),
        (ConnectionWait::Room, Some(Party::Client)),
        (ConnectionWait::LastBytes, Some(Party::Client)),
        (ConnectionWait::ClientEnd, Some(Party::Client)),
        (ConnectionWait::Goaway, Some(Party::Client)),
    ] {
        assert!(CONNECTIONS.iter().any(|row| (row.wait, row.party) == (wait, party)), "{wait:?}");
    }
}

#[test]
fn the_documentation_has_these_tables() {
    let docs = include_str!("../../../docs/reference/http-versions.md");
    for (name, expected) in [("deadlines", table()), ("connection deadlines", connections())] {
        let (_, after) = docs.split_once(&format!("<!-- {name}: begin -->\n")).expect("http-versions.md has the table");
        let (found, _) = after.split_once(&format!("<!-- {name}: end -->")).expect("the table has an end");
        assert_eq!(found, expected, "replace the table in docs/reference/http-versions.md by the right-hand side");
    }
}

#[test]
fn a_direction_that_waits_has_one_party_to_blame() {
    let steps = [
        Step::Waiting,
        Step::Open { blocked: false },
        Step::Open { blocked: true },
        Step::Tunnel { blocked: false },
        Step::Tunnel { blocked: true },
        Step::Dropped,
        Step::Done,
    ];
    let stages = [Stage::Unchosen, Stage::Password, Stage::Handshake, Stage::Question, Stage::Connecting, Stage::Sent];
    for request in steps {
        for response in steps {
            for stage in stages {
                let state = State { request, response, stage };
                let expected = match request {
                    Step::Open { blocked: true } | Step::Tunnel { blocked: true } => Some(Some(Party::Upstream)),
                    Step::Open { blocked: false } | Step::Dropped => Some(Some(Party::Client)),
                    Step::Tunnel { blocked: false } => Some(None),
                    Step::Waiting | Step::Done => None,
                };
                assert_eq!(state.request_wait().map(Wait::party), expected);
                let expected = match response {
                    _ if stage == Stage::Handshake => Some(Some(Party::Client)),
                    Step::Open { blocked: true } | Step::Tunnel { blocked: true } => Some(Some(Party::Client)),
                    Step::Open { blocked: false } => Some(Some(Party::Upstream)),
                    Step::Tunnel { blocked: false } => Some(None),
                    Step::Waiting if matches!(stage, Stage::Password | Stage::Unchosen) => Some(None),
                    Step::Waiting if matches!(stage, Stage::Question | Stage::Connecting) => {
                        Some(Some(Party::Upstream))
                    }
                    Step::Waiting if stage == Stage::Sent && request == Step::Done => Some(Some(Party::Upstream)),
                    Step::Waiting | Step::Dropped | Step::Done => None,
                };
                assert_eq!(state.response_wait().map(Wait::party), expected);
                // An exchange at a server never waits without a deadline.
                let ended = request == Step::Done && matches!(response, Step::Done | Step::Dropped);
                let begun = stage == Stage::Sent && request != Step::Waiting && response != Step::Dropped;
                if begun && !ended {
                    let mut both = Both::begun(0);
                    assert!(both.deadline(0, &state, Class::Message, &limits()).is_some(), "{state:?}");
                }
            }
        }
    }
}

#[test]
fn an_early_answer_does_not_excuse_a_client_that_stalls() {
    let mut both = Both::begun(0);
    let state = State { response: Step::Open { blocked: false }, ..open() };
    both.response.note(900);
    let passed = both.deadline(950, &state, Class::Message, &limits()).unwrap();
    assert_eq!(passed, Deadline { at: IDLE, wait: Wait::RequestBody, reason: Reason::Idle });
    // Nor does a server that is done with it.
    let state = State { request: Step::Dropped, response: Step::Done, ..open() };
    assert_eq!(both.deadline(950, &state, Class::Message, &limits()).unwrap().wait, Wait::RequestRest);
}

#[test]
fn streams_and_tunnels_are_silent_only_when_both_directions_are() {
    let state = State { response: Step::Open { blocked: false }, ..open() };
    let tunnel = Step::Tunnel { blocked: false };
    for state in [state, State { request: tunnel, response: tunnel, ..state }] {
        let mut both = Both::begun(0);
        for now in (0..100_000).step_by(500) {
            both.response.note(now);
            both.down += 1;
            let next = both.deadline(now, &state, Class::Stream, &limits()).unwrap();
            assert_eq!((next.at, next.reason), (now + 3 * IDLE, Reason::Idle));
        }
    }
}

/// A byte now and then is not enough, however it is timed; enough bytes are, however they are timed.
#[test]
fn a_stream_has_no_rate_even_while_its_sink_has_no_room() {
    let blocked = Step::Open { blocked: true };
    for state in [State { request: blocked, ..open() }, State { request: Step::Done, response: blocked, ..open() }] {
        let mut both = Both::begun(0);
        // One byte for each look, which is far below the rate.
        for now in (100..20 * IDLE).step_by(100) {
            both.request.note(now);
            both.response.note(now);
            (both.up, both.down) = (both.up + 1, both.down + 1);
            let next = both.deadline(now, &state, Class::Stream, &limits());
            assert!(next.is_some_and(|d| d.at > now && d.reason == Reason::Idle), "{state:?} {next:?}");
        }
        let passed = both.deadline(20 * IDLE, &state, Class::Message, &limits());
        assert_eq!(passed.map(|d| d.reason), Some(Reason::Rate), "a message has one");
    }
}

#[test]
fn slow_bodies_are_found_and_others_are_not() {
    for seed in 0..200 {
        let mut random = Random(seed);
        let enough = seed % 2 == 0;
        let mut both = Both::begun(0);
        let (mut now, mut event, mut expired) = (0, 0, None);
        while event < 60 * IDLE && expired.is_none() {
            event += 1 + random.below(IDLE - 1);
            // The timers that fire first.
            while let Some(due) = both.deadline(now, &open(), Class::Message, &limits()).filter(|due| due.at <= event) {
                if due.at <= now {
                    expired = Some(due);
                    break;
                }
                now = due.at;
            }
            now = event;
            both.request.note(now);
            // More than the rate, even over the longest pause; or next to nothing.
            both.up += if enough { 2 * RATE * IDLE / 1000 } else { random.below(2) };
        }
        match enough {
            true => assert_eq!(expired, None, "seed {seed}"),
            false => assert_eq!(expired.map(|d| (d.wait, d.reason)), Some((Wait::RequestBody, Reason::Rate)), "{seed}"),
        }
    }
}

/// The time for which the server has no room does not count against the client.
#[test]
fn a_rate_counts_only_while_there_is_credit() {
    let mut both = Both::begun(0);
    let blocked = State { request: Step::Open { blocked: true }, ..open() };
    let relaxed = Limits { upstream: BodyLimits { idle: 3 * IDLE, rate: 0 }, ..limits() };
    let mut now = 0;
    for _ in 0..100 {
        // The client sends at once, the server takes its time: 10 bytes per 400 ms.
        now += 10;
        both.up += 10;
        both.request.note(now);
        both.request.turn(now, Party::Client);
        assert!(both.deadline(now, &blocked, Class::Message, &relaxed).unwrap().at > now);
        now += 390;
        both.request.turn(now, Party::Upstream);
        assert!(both.deadline(now, &open(), Class::Message, &relaxed).unwrap().at > now);
    }
    // With a rate of its own the server is to blame.
    both = Both::begun(0);
    both.request.turn(0, Party::Client);
    (now, both.up) = (0, 0);
    let found = (0..100).find_map(|_| {
        now += 390;
        both.up += 10;
        both.request.note(now);
        let next = both.deadline(now, &blocked, Class::Message, &limits()).unwrap();
        (next.at <= now).then_some(next)
    });
    assert_eq!(found.map(|d| (d.wait, d.reason)), Some((Wait::RequestRoom, Reason::Rate)));
}

#[test]
fn turning_between_parties_does_not_begin_the_measurement_anew() {
    let mut both = Both::begun(0);
    let relaxed = Limits { upstream: BodyLimits { idle: 3 * IDLE, rate: 0 }, ..limits() };
    let found = (1..1000).find(|n| {
        let now = n * 100;
        both.up += 1;
        both.request.note(now);
        // For a millisecond the server has no room.
        both.request.turn(now, Party::Client);
        both.request.turn(now + 1, Party::Upstream);
        let next = both.deadline(now + 1, &open(), Class::Message, &relaxed).unwrap();
        next.at <= now + 1
    });
    assert!(found.is_some_and(|n| n <= 12), "{found:?}");
}

#[test]
fn heads_and_connections_have_a_total_time() {
    let mut both = Both::begun(0);
    let done = State { request: Step::Done, ..open() };
    let total = |both: &mut Both, state: &State, limits: &Limits| {
        let d = both.deadline(0, state, Class::Message, limits).unwrap();
        (d.at, d.wait, d.reason)
    };
    assert_eq!(total(&mut both, &done, &limits()), (2000, Wait::ResponseHead, Reason::Total));
    let tried = Limits { try_until: Some(300), ..limits() };
    assert_eq!(total(&mut both, &done, &tried), (300, Wait::ResponseHead, Reason::Total));
    let connecting = State { stage: Stage::Connecting, ..done };
    assert_eq!(total(&mut both, &connecting, &limits()), (700, Wait::Connection, Reason::Total));
    let early = State { stage: Stage::Handshake, ..done };
    assert_eq!(total(&mut both, &early, &limits()), (500, Wait::Handshake, Reason::Total));
    let rest = State { request: Step::Dropped, response: Step::Done, ..open() };
    let lingers = Limits { rest_until: Some(200), ..limits() };
    assert_eq!(total(&mut both, &rest, &lingers), (200, Wait::RequestRest, Reason::Total));
    // A body that waits for the answer does not put the deadline off.
    let asked = State { request: Step::Waiting, stage: Stage::Question, ..done };
    assert_eq!(total(&mut both, &asked, &limits()), (400, Wait::Authorization, Reason::Total));
    assert_eq!(total(&mut both, &asked, &tried), (300, Wait::Authorization, Reason::Total));
    // A password is nobody's to wait for but the gateway's.
    let checked = State { stage: Stage::Password, ..asked };
    assert_eq!(total(&mut both, &checked, &limits()), (400, Wait::Password, Reason::Total));
    // In the queue there are other timers.
    let queued = State { stage: Stage::Unchosen, ..done };
    assert_eq!(both.deadline(0, &queued, Class::Message, &limits()), None);
}

/// The time that a client takes to send its request does not count against the server's try.
#[test]
fn a_try_does_not_pay_for_a_slow_upload() {
    let tried = Limits { try_until: Some(300), ..limits() };
    let done = State { request: Step::Done, ..open() };
    let mut both = Both::begun(0);
    // The client pauses for 150 ms, the server has no room for 50 ms, and the rest comes 200 ms later.
    both.request.note(150);
    both.request.turn(150, Party::Client);
    both.request.turn(200, Party::Upstream);
    both.response.note(400);
    let d = both.deadline(400, &done, Class::Message, &tried).unwrap();
    assert_eq!((d.at, d.wait), (300 + 150 + 200, Wait::ResponseHead));

    // A request without a body has no upload.
    let mut both = Both::default();
    both.response.begin(250);
    let d = both.deadline(250, &done, Class::Message, &tried).unwrap();
    assert_eq!((d.at, d.wait), (300, Wait::ResponseHead));
}

/// No deadline is missed by who looks after the shortest of all limits, and then when he is told to.
#[test]
fn the_shortest_limit_is_early_enough_to_look() {
    let limits = limits();
    let tunnel = Step::Tunnel { blocked: false };
    for state in [
        open(),
        State { request: Step::Done, ..open() },
        State { request: Step::Done, stage: Stage::Connecting, ..open() },
        State { response: Step::Open { blocked: true }, ..open() },
        State { request: tunnel, response: tunnel, ..open() },
    ] {
        let mut both = Both::begun(1234);
        let next = both.deadline(1234, &state, Class::Message, &limits).unwrap();
        assert!(next.at >= 1234 + limits.shortest(), "{state:?} {next:?}");
    }
}

/// `total_timeout` counts in every state, for every class, no matter which side is waited for.
#[test]
fn the_time_of_an_exchange_is_over_whatever_it_waits_for() {
    let limited = Limits { total_until: Some(300), ..limits() };
    let done = State { request: Step::Done, ..open() };
    let tunnel = Step::Tunnel { blocked: false };
    let states = [
        open(),
        done,
        State { stage: Stage::Unchosen, ..done },
        State { stage: Stage::Connecting, ..done },
        State { response: Step::Open { blocked: true }, ..done },
        State { request: tunnel, response: tunnel, ..open() },
        State { stage: Stage::Password, ..done },
    ];
    for state in states {
        for class in [Class::Message, Class::Stream] {
            let found = Both::begun(0).deadline(10, &state, class, &limited);
            assert_eq!(found, Some(Deadline { at: 300, wait: Wait::Exchange, reason: Reason::Total }), "{state:?}");
        }
    }
    // What is over before counts first.
    let silent = Limits { total_until: Some(5000), ..limits() };
    assert_eq!(Both::begun(0).deadline(10, &open(), Class::Message, &silent).unwrap().wait, Wait::RequestBody);
}

/// A request that waits for room has the time of the queue, and a copy one of its own, beside `total_timeout`.
#[test]
fn a_queue_and_a_copy_have_their_time() {
    let waiting = State { request: Step::Done, response: Step::Waiting, stage: Stage::Unchosen };
    let next = |limits: Limits| {
        Both::begun(0).deadline(10, &waiting, Class::Message, &limits).map(|next| (next.at, next.wait, next.reason))
    };
    assert_eq!(next(limits()), None, "it does not wait for room");
    let queued = Limits { queued_until: Some(300), ..limits() };
    assert_eq!(next(queued), Some((300, Wait::Queue, Reason::Total)));
    assert_eq!(next(Limits { total_until: Some(200), ..queued }), Some((200, Wait::Exchange, Reason::Total)));
    assert_eq!(next(Limits { copy_until: Some(100), ..queued }), Some((100, Wait::Copy, Reason::Total)));
    // One that was chosen for a server waits for that.
    let chosen = State { stage: Stage::Connecting, ..waiting };
    let found = Both::begun(0).deadline(10, &chosen, Class::Message, &queued);
    assert_eq!(found.map(|next| next.wait), Some(Wait::Connection));
}

/// A server that hangs is found also where `total_timeout` is over before its own time; a slow client cannot make one look so.
#[test]
fn a_server_that_hangs_is_told_from_a_client_that_was_slow() {
    let done = State { request: Step::Done, ..open() };
    let blames = |both: &mut Both, state: &State, now: Millis| {
        let request = Direction { wait: state.request_wait(), progress: &mut both.request, bytes: 0 };
        let response = Direction { wait: state.response_wait(), progress: &mut both.response, bytes: 0 };
        is_used_up_by_server(now, 1000, &request, &response)
    };
    // Without a body, from the beginning; and behind another wait, such as a check.
    for (since, blamed) in [(1000, true), (1500, true), (1501, false)] {
        let mut both = Both::default();
        both.response.begin(since);
        assert_eq!(blames(&mut both, &done, 2000), blamed, "{since}");
        for stage in [Stage::Connecting, Stage::Question] {
            assert_eq!(blames(&mut both, &State { stage, ..done }, 2000), blamed, "it does not take the connection");
        }
    }
    // The gateway waits for somebody else.
    let others = [
        State { stage: Stage::Unchosen, ..done },
        State { stage: Stage::Handshake, ..done },
        State { stage: Stage::Password, ..done },
        State { response: Step::Open { blocked: true }, ..done },
        open(),
    ];
    for state in others {
        assert!(!blames(&mut Both::begun(1000), &state, 2000), "{state:?}");
    }
    // The client has taken a part of the time.
    for (upload, blamed) in [(99, true), (100, false)] {
        let mut both = Both::begun(1000);
        both.response.note(1000 + upload);
        assert_eq!(blames(&mut both, &done, 2000), blamed, "{upload}");
    }
    // A server that does not read the body.
    let blocked = State { request: Step::Open { blocked: true }, ..open() };
    for (turned, blamed) in [(1099, true), (1100, false)] {
        let mut both = Both::begun(1000);
        both.request.turn(turned, Party::Client);
        assert_eq!(blames(&mut both, &blocked, 2000), blamed, "{turned}");
    }
}

/// An exchange's state is read off the machine.
#[test]
fn an_exchange_is_at_the_stage_that_its_machine_is_at() {
    use crate::{Event, Head, Kind, Request, Switching};
    let request = Request { is_safe: true, is_idempotent: true, is_early: true, ..Request::default() };
    let stage = |x: &Exchange, chosen| State::of(x, chosen, [false, false]).stage;
    let head = |status| Event::Head(Head { status, switches: false, confirms: false });
    let mut x = Exchange::new(request);
    let steps = [
        (Event::Accepted, Stage::Unchosen),
        (Event::Verify, Stage::Password),
        (Event::Verified, Stage::Unchosen),
        (Event::Authorize, Stage::Question),
        (Event::Connected(Switching::Any), Stage::Question),
        (head(204), Stage::Connecting),
        (Event::Forward, Stage::Connecting),
        (Event::Connected(Switching::Any), Stage::Sent),
        (head(425), Stage::Handshake),
        (Event::HandshakeDone, Stage::Connecting),
    ];
    for (event, expected) in steps {
        let _ = x.on(event);
        let chosen = !matches!(expected, Stage::Unchosen | Stage::Password);
        assert_eq!(stage(&x, chosen), expected, "{event:?}");
    }
    assert_eq!(stage(&x, false), Stage::Unchosen);
    let mut x = Exchange::new(Request { kind: Kind::Relay, has_body: true, ..request });
    let _ = (x.on(Event::Forward), x.on(Event::Connected(Switching::Any)));
    let state = State::of(&x, true, [true, false]);
    assert_eq!((state.request, state.response), (Step::Tunnel { blocked: true }, Step::Tunnel { blocked: false }));
}

#[test]
fn the_state_is_small() {
    assert!(size_of::<State>() <= 6, "{}", size_of::<State>());
}
