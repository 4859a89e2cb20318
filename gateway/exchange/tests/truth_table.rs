//! The rows of the truth table in `docs/reference/http-versions.md`, as scripts.

use sealane_exchange::{Action, Action::*, Direction, Event, Exchange, Head, Kind, Loss, MAX_INTERIM, Phase, Request};

const GET: Request = Request {
    kind: Kind::Message,
    has_body: false,
    is_safe: true,
    is_idempotent: true,
    is_early: false,
    max_drained: 512 * 1024,
};
const POST: Request = Request { has_body: true, is_safe: false, is_idempotent: false, ..GET };
const PUT: Request = Request { is_idempotent: true, ..POST };

const OK: Event = Event::Head(Head { status: 200, switches: false, confirms: false });

fn moved(bytes: u64) -> Event {
    Event::Moved { direction: Direction::Request, bytes }
}

/// Runs a script; what the last event led to.
fn last(facts: Request, script: &[Event]) -> (Vec<Action>, u16) {
    let mut exchange = Exchange::new(facts);
    let mut last = (Vec::new(), 0);
    for event in script {
        let actions = exchange.on(*event);
        last = (actions.iter().collect(), actions.status());
    }
    last
}

#[test]
fn a_request_without_a_body() {
    let mut x = Exchange::new(GET);
    let steps = [
        (Event::Forward, vec![SelectServer]),
        (Event::Connected, vec![]),
        (OK, vec![ForwardHead]),
        (Event::Ended(Direction::Response), vec![EndResponse, ReleaseUpstream, FinishClient, Finish]),
        (Event::ClientGone, vec![]),
    ];
    for (event, expected) in steps {
        assert_eq!(x.on(event).iter().collect::<Vec<_>>(), expected, "{event:?}");
    }
}

#[test]
fn a_request_with_a_body() {
    let mut x = Exchange::new(POST);
    assert_eq!(x.request(), Phase::Awaiting);
    let steps = [
        (Event::Forward, vec![SelectServer]),
        (Event::Connected, vec![ResumeRequest]),
        (moved(10), vec![]),
        (Event::Ended(Direction::Request), vec![EndRequest]),
        (OK, vec![ForwardHead]),
        (Event::Ended(Direction::Response), vec![EndResponse, ReleaseUpstream, FinishClient, Finish]),
    ];
    for (event, expected) in steps {
        assert_eq!(x.on(event).iter().collect::<Vec<_>>(), expected, "{event:?}");
    }
}

#[test]
fn a_response_before_the_requests_end() {
    let begin = [Event::Forward, Event::Connected, moved(10), OK, Event::Ended(Direction::Response)];
    let answered = last(POST, &begin);
    assert_eq!(answered.0, [ResetUpstream, EndResponse, StartDraining], "the rest of the request is read for a while");
    let with = |event: Event| last(POST, &[&begin[..], &[event]].concat()).0;
    assert_eq!(with(Event::Ended(Direction::Request)), [FinishClient, Finish]);
    assert_eq!(with(Event::DrainTimeout), [CloseClient, Finish]);
    assert_eq!(with(moved(600_000)), [CloseClient, Finish]);
    assert_eq!(with(Event::ClientGone), [DetachClient, Finish]);
}

#[test]
fn losses_before_the_head() {
    let after = |facts, events: &[Event], loss| {
        let begin = [Event::Forward, Event::Connected];
        last(facts, &[&begin[..], events, &[Event::Lost(loss)]].concat())
    };
    let asks = vec![ResetUpstream, AskRetry];
    for loss in [Loss::Unreachable, Loss::ConnectTimeout, Loss::Exhausted, Loss::Unprocessed] {
        assert_eq!(after(POST, &[], loss).0, asks, "nothing was sent: any method");
        assert!(!after(POST, &[moved(1)], loss).0.contains(&AskRetry), "a part of the body is gone");
    }
    for loss in [Loss::Stale, Loss::Broken, Loss::Limited, Loss::Timeout { short: true }] {
        assert_eq!(after(PUT, &[], loss).0, asks);
        assert_eq!(after(POST, &[], loss).0, [ResetUpstream, Respond, StartDraining], "{loss:?}");
    }
    assert_eq!(
        after(GET, &[], Loss::Timeout { short: false }),
        (vec![ResetUpstream, Respond, FinishClient, Finish], 504)
    );
    assert_eq!(after(POST, &[], Loss::Broken).1, 502);
    let cut = vec![ResetUpstream, CutClient, Finish];
    assert_eq!(after(PUT, &[], Loss::Cancelled).0, cut, "the client of a cancelled gRPC call gets a reset");
    let denied = [Event::Forward, Event::Lost(Loss::ConnectTimeout), Event::RetryDenied];
    assert_eq!(last(GET, &denied), (vec![Respond, FinishClient, Finish], 504));
    let denied = [Event::Forward, Event::Lost(Loss::Exhausted), Event::RetryDenied];
    assert_eq!(last(GET, &denied), (vec![Respond, FinishClient, Finish], 503), "the gateway's fault");
    let granted = [Event::Forward, Event::Lost(Loss::Unreachable), Event::RetryGranted];
    assert_eq!(last(GET, &granted).0, [SelectServer]);
}

#[test]
fn losses_after_the_head_cut_the_client() {
    for loss in [Loss::Broken, Loss::Stale, Loss::Timeout { short: true }] {
        let cut = last(GET, &[Event::Forward, Event::Connected, OK, Event::Lost(loss)]).0;
        assert_eq!(cut, [ResetUpstream, CutClient, Finish]);
    }
}

#[test]
fn clients_that_fail() {
    let begin = [Event::Forward, Event::Connected, moved(10)];
    let with = |event: Event| last(POST, &[&begin[..], &[event]].concat());
    assert_eq!(with(Event::Refuse { status: 400 }), (vec![ResetUpstream, Respond, StartDraining], 400));
    assert_eq!(with(Event::Refuse { status: 408 }).1, 408);
    assert_eq!(with(Event::ClientGone).0, [ResetUpstream, DetachClient, Finish]);
    let stalled = last(GET, &[Event::Forward, Event::Connected, OK, Event::Refuse { status: 408 }]).0;
    assert_eq!(stalled, [ResetUpstream, CutClient, Finish], "after the head no status can be told");
}

/// An answer to HEAD, a 204 or a 304: its end follows its head, whatever the server sends behind it.
#[test]
fn a_response_without_content() {
    let begin = [Event::Forward, Event::Connected, OK];
    let whole = vec![EndResponse, ReleaseUpstream, FinishClient, Finish];
    let end = Event::Ended(Direction::Response);
    assert_eq!(last(GET, &[&begin[..], &[end]].concat()).0, whole);
    let surplus = Event::Moved { direction: Direction::Response, bytes: 10 };
    for late in [surplus, end, Event::Lost(Loss::Broken)] {
        assert_eq!(last(GET, &[&begin[..], &[end, late]].concat()).0, [], "{late:?} changes nothing any more");
    }
    assert_eq!(last(GET, &[&begin[..], &[Event::Lost(Loss::Broken)]].concat()).0, [ResetUpstream, CutClient, Finish]);
}

#[test]
fn interim_responses_are_bounded() {
    let mut script = vec![Event::Forward, Event::Connected];
    script.extend([Event::Interim].repeat(usize::from(MAX_INTERIM)));
    assert_eq!(last(POST, &script).0, [ForwardInterim]);
    script.push(Event::Interim);
    assert_eq!(last(POST, &script).0, [RejectResponse]);
}

#[test]
fn early_data() {
    let early = |facts| Request { is_early: true, ..facts };
    assert_eq!(last(early(POST), &[Event::Forward]).1, 425);
    assert_eq!(last(early(GET), &[Event::Forward]).0, [SelectServer]);
    let too_early = Event::Head(Head { status: 425, switches: false, confirms: false });
    let begin = [Event::Forward, Event::Connected, too_early];
    assert_eq!(last(early(GET), &begin).0, [ResetUpstream, AwaitHandshake]);
    let over = [&begin[..], &[Event::HandshakeDone]].concat();
    assert_eq!(last(early(GET), &over).0, [AskRetry], "it is a retry like any other");
    assert_eq!(last(early(GET), &[&over[..], &[Event::RetryGranted]].concat()).0, [SelectServer]);
    let denied = last(early(GET), &[&over[..], &[Event::RetryDenied]].concat());
    assert_eq!(denied, (vec![Respond, FinishClient, Finish], 425), "the client may send it again itself");
    let late = [&begin[..2], &[Event::HandshakeDone, too_early]].concat();
    assert_eq!(last(early(GET), &late).0, [ResetUpstream, AwaitHandshake], "the server got it as early");
    assert_eq!(last(GET, &begin).0, [ForwardHead], "a 425 to no early data is a response");
}

#[test]
fn upgrades() {
    let head = |status, switches, confirms| Event::Head(Head { status, switches, confirms });
    let ask = |kind, event| last(Request { kind, ..GET }, &[Event::Forward, Event::Connected, event]).0;
    let (opened, passed, rejected) = ([ForwardHead, ResumeRequest], [ForwardHead], [RejectResponse]);
    assert_eq!(ask(Kind::Upgrade, head(101, true, true)), opened);
    assert_eq!(ask(Kind::Upgrade, head(101, true, false)), rejected, "the key has another answer");
    assert_eq!(ask(Kind::Upgrade, OK), passed, "an upgrade may be ignored");
    assert_eq!(ask(Kind::ExtendedConnect, head(101, true, true)), opened);
    assert_eq!(ask(Kind::ExtendedConnect, head(101, true, false)), rejected);
    assert_eq!(ask(Kind::ExtendedConnect, OK), rejected, "a plain 200 would look accepted");
    assert_eq!(ask(Kind::ExtendedConnect, head(403, false, false)), passed);
    assert_eq!(ask(Kind::Message, head(101, true, true)), rejected, "nobody asked for it");
    assert_eq!(ask(Kind::Connect, head(200, true, false)), opened);
    assert_eq!(ask(Kind::Connect, head(502, false, false)), passed);
    let mut x = Exchange::new(Request { kind: Kind::Upgrade, ..GET });
    x.ignore_upgrade();
    let _ = (x.on(Event::Forward), x.on(Event::Connected));
    assert_eq!(x.on(head(101, true, true)).iter().collect::<Vec<_>>(), rejected, "nobody asked this server for it");
}

#[test]
fn the_server_ends_an_upgraded_connection() {
    let upgrade = Request { kind: Kind::Upgrade, ..GET };
    let opened = [
        Event::Forward,
        Event::Connected,
        Event::Head(Head { status: 101, switches: true, confirms: true }),
        Event::Ended(Direction::Response),
    ];
    assert_eq!(last(upgrade, &opened).0, [EndResponse, CloseUpstream, CloseClient, Finish]);
}

#[test]
fn tunnels_close_one_direction_at_a_time() {
    let relay = Request { kind: Kind::Relay, ..POST };
    let mut x = Exchange::new(relay);
    assert_eq!(x.on(Event::Forward).iter().collect::<Vec<_>>(), [SelectServer]);
    assert_eq!(x.on(Event::Connected).iter().collect::<Vec<_>>(), [ResumeRequest, ResumeResponse]);
    let mut y = x;
    assert_eq!(x.on(Event::Ended(Direction::Request)).iter().collect::<Vec<_>>(), [EndRequest]);
    let end = [EndResponse, CloseUpstream, FinishClient, Finish];
    assert_eq!(x.on(Event::Ended(Direction::Response)).iter().collect::<Vec<_>>(), end);
    assert_eq!(y.on(Event::Ended(Direction::Response)).iter().collect::<Vec<_>>(), [EndResponse]);
    assert_eq!(
        y.on(Event::Ended(Direction::Request)).iter().collect::<Vec<_>>(),
        [EndRequest, CloseUpstream, FinishClient, Finish]
    );
}

#[test]
fn relayed_connections_that_fail() {
    let relay = Request { kind: Kind::Relay, ..POST };
    let begin = [Event::Forward];
    let before = |event| last(relay, &[&begin[..], &[event]].concat());
    assert_eq!(before(Event::Lost(Loss::Unreachable)).0, [ResetUpstream, AskRetry], "nothing was sent");
    assert_eq!(
        before(Event::Refuse { status: 503 }),
        (vec![ResetUpstream, CutClient, Finish], 0),
        "there is no status"
    );
    assert_eq!(before(Event::ClientGone).0, [ResetUpstream, DetachClient, Finish]);
    let denied = [Event::Forward, Event::Lost(Loss::ConnectTimeout), Event::RetryDenied];
    assert_eq!(last(relay, &denied), (vec![CutClient, Finish], 0));
    // From here on bytes may have left.
    let after = |events: &[Event]| last(relay, &[&[Event::Forward, Event::Connected], events].concat()).0;
    let cut = [ResetUpstream, CutClient, Finish];
    assert_eq!(after(&[Event::Lost(Loss::Broken)]), cut);
    assert_eq!(
        after(&[Event::Ended(Direction::Request), Event::Lost(Loss::Broken)]),
        cut,
        "the other direction is lost"
    );
    assert_eq!(after(&[Event::Ended(Direction::Response), Event::Lost(Loss::Broken)]), cut);
    assert_eq!(after(&[Event::Refuse { status: 408 }]), cut, "both sides were silent");
    assert_eq!(after(&[Event::ClientGone]), [ResetUpstream, DetachClient, Finish]);
}
