//! Scripts of events and what follows from them. `page` reads the truth table in `docs/reference/http-versions.md` and runs each of its
//! rows; the tests here go further into what the page does not tell.

#[path = "truth_table/page.rs"]
mod page;

use sealane_exchange::{
    Action, Action::*, Direction, EarlyRequests, Event, Exchange, Fit, Head, Kind, Loss, MAX_INTERIM, MAX_NOT_TAKEN,
    Phase, Request, Switching,
};

const GET: Request = Request {
    kind: Kind::Message,
    has_body: false,
    is_safe: true,
    is_idempotent: true,
    is_early: false,
    is_marked_early: false,
    max_drained: 512 * 1024,
};
const POST: Request = Request { has_body: true, is_safe: false, is_idempotent: false, ..GET };
const PUT: Request = Request { is_idempotent: true, ..POST };

/// Over HTTP/1.1.
const CONNECTED: Event = Event::Connected(Switching::Any);
const OK: Event = Event::Head(Head { status: 200, switches: false, confirms: false });

fn moved(bytes: u64) -> Event {
    Event::Moved { bytes }
}

/// A request that the gateway's rules have accepted, where it has a head.
fn accepted(facts: Request) -> Exchange {
    let mut exchange = Exchange::new(facts);
    assert!(exchange.on(Event::Accepted).is_empty());
    exchange
}

/// Runs a script for an accepted request; what the last event led to.
fn last(facts: Request, script: &[Event]) -> (Vec<Action>, u16) {
    let mut exchange = accepted(facts);
    let mut last = (Vec::new(), 0);
    for event in script {
        let actions = exchange.on(*event);
        last = (actions.iter().collect(), actions.status());
    }
    last
}

#[test]
fn a_request_without_a_body() {
    let mut x = accepted(GET);
    let steps = [
        (Event::Forward, vec![SelectServer]),
        (CONNECTED, vec![SendHead]),
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
    let mut x = accepted(POST);
    assert_eq!(x.request(), Phase::Awaiting);
    let steps = [
        (Event::Forward, vec![SelectServer]),
        (CONNECTED, vec![SendHead, ResumeRequest]),
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
    let begin = [Event::Forward, CONNECTED, moved(10), OK, Event::Ended(Direction::Response)];
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
        let begin = [Event::Forward, CONNECTED];
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

/// Others have filled the connection, or the server speaks another version of HTTP.
#[test]
fn a_connection_that_does_not_take_the_request() {
    for facts in [GET, POST, PUT] {
        let mut x = accepted(facts);
        assert!(x.on(Event::NotTaken).is_empty(), "it waits for none");
        let _ = x.on(Event::Forward);
        for _ in 0..2 {
            for _ in 0..MAX_NOT_TAKEN {
                assert_eq!(x.on(Event::NotTaken).iter().collect::<Vec<_>>(), [ResetUpstream, SelectServer]);
            }
            assert!(x.on(Event::NotTaken).is_empty(), "bounded");
            // What is reported then is a try that failed, and the next try counts anew.
            assert_eq!(x.on(Event::Lost(Loss::Unprocessed)).iter().collect::<Vec<_>>(), [ResetUpstream, AskRetry]);
            assert_eq!(x.on(Event::RetryGranted).iter().collect::<Vec<_>>(), [SelectServer]);
        }
        let _ = x.on(CONNECTED);
        assert!(x.on(Event::NotTaken).is_empty(), "the server has its head");
    }
}

/// The age of a connection is no reason for a second retry: then the server has failed.
#[test]
fn a_stale_connection_is_one_once() {
    assert_eq!(Loss::of_connection(true, true), Loss::Stale);
    for (has_answered, awaited) in [(false, true), (true, false), (false, false)] {
        assert_eq!(Loss::of_connection(has_answered, awaited), Loss::Broken);
    }
    let mut x = accepted(GET);
    for event in [Event::Forward, CONNECTED] {
        let _ = x.on(event);
    }
    assert_eq!(x.loss(Loss::Stale), Loss::Stale);
    assert!(x.on(Event::Lost(Loss::Stale)).has(AskRetry));
    for event in [Event::RetryGranted, CONNECTED] {
        let _ = x.on(event);
    }
    assert_eq!(x.loss(Loss::Stale), Loss::Broken);
    assert!(x.on(Event::Lost(Loss::Stale)).has(AskRetry), "as any other failure of a server");
    // The request itself is not the question about it.
    let mut x = accepted(GET);
    for event in [Event::Authorize, CONNECTED, Event::Lost(Loss::Stale), Event::RetryGranted, CONNECTED, OK] {
        let _ = x.on(event);
    }
    assert_eq!(x.loss(Loss::Stale), Loss::Stale);
}

#[test]
fn losses_after_the_head_cut_the_client() {
    for loss in [Loss::Broken, Loss::Stale, Loss::Timeout { short: true }] {
        let cut = last(GET, &[Event::Forward, CONNECTED, OK, Event::Lost(loss)]).0;
        assert_eq!(cut, [ResetUpstream, CutClient, Finish]);
    }
}

#[test]
fn clients_that_fail() {
    let begin = [Event::Forward, CONNECTED, moved(10)];
    let with = |event: Event| last(POST, &[&begin[..], &[event]].concat());
    assert_eq!(with(Event::Refuse { status: 400 }), (vec![ResetUpstream, Respond, StartDraining], 400));
    assert_eq!(with(Event::Refuse { status: 408 }).1, 408);
    assert_eq!(with(Event::ClientGone).0, [ResetUpstream, DetachClient, Finish]);
    let stalled = last(GET, &[Event::Forward, CONNECTED, OK, Event::Refuse { status: 408 }]).0;
    assert_eq!(stalled, [ResetUpstream, CutClient, Finish], "after the head no status can be told");
}

/// An answer to HEAD, a 204 or a 304: its end follows its head, whatever the server sends behind it.
#[test]
fn a_response_without_content() {
    let begin = [Event::Forward, CONNECTED, OK];
    let whole = vec![EndResponse, ReleaseUpstream, FinishClient, Finish];
    let end = Event::Ended(Direction::Response);
    assert_eq!(last(GET, &[&begin[..], &[end]].concat()).0, whole);
    for late in [end, Event::Lost(Loss::Broken)] {
        assert_eq!(last(GET, &[&begin[..], &[end, late]].concat()).0, [], "{late:?} changes nothing any more");
    }
    assert_eq!(last(GET, &[&begin[..], &[Event::Lost(Loss::Broken)]].concat()).0, [ResetUpstream, CutClient, Finish]);
}

#[test]
fn interim_responses_are_bounded() {
    let mut script = vec![Event::Forward, CONNECTED];
    script.extend([Event::Interim].repeat(usize::from(MAX_INTERIM)));
    assert_eq!(last(POST, &script).0, [ForwardInterim]);
    script.push(Event::Interim);
    assert_eq!(last(POST, &script).0, [RejectResponse]);
}

/// A server is asked first: 2xx admits the request, every other answer is the client's.
#[test]
fn a_request_that_must_be_admitted() {
    let answer = |status| Event::Head(Head { status, switches: false, confirms: false });
    let asked = [Event::Authorize, CONNECTED];
    for kind in [Kind::Message, Kind::Connect, Kind::WebSocket, Kind::Upgrade, Kind::ExtendedConnect] {
        let facts = Request { kind, ..POST };
        let mut x = accepted(facts);
        assert_eq!(x.on(Event::Authorize).iter().collect::<Vec<_>>(), [SelectServer], "{kind:?}");
        assert!(x.is_authorizing() && !x.asks_websocket() && x.fit(Switching::NoTunnel) == Fit::Whole);
        assert!(x.on(Event::Forward).is_empty(), "one thing after the other");
        // Whatever the connection can carry: a question is a request like any other.
        assert_eq!(x.on(Event::Connected(Switching::NoTunnel)).iter().collect::<Vec<_>>(), [SendHead]);
        assert!(!x.asks_server_to_switch() && x.request() == Phase::Awaiting, "its body waits");
        assert!(x.on(Event::Interim).is_empty());
        assert_eq!(x.on(answer(204)).iter().collect::<Vec<_>>(), [Admit], "{kind:?}");
        assert!(!x.is_authorizing() && !x.is_answered());
        assert_eq!(x.on(Event::Forward).iter().collect::<Vec<_>>(), [SelectServer]);
        let actions: Vec<Action> = x.on(CONNECTED).iter().collect();
        assert_eq!(actions, [SendHead, ResumeRequest], "{kind:?}");
        let wanted = matches!(kind, Kind::WebSocket | Kind::Upgrade | Kind::ExtendedConnect);
        assert_eq!(x.asks_server_to_switch(), wanted, "{kind:?}");

        for status in [302, 401, 403, 500] {
            let mut x = accepted(facts);
            for event in asked {
                let _ = x.on(event);
            }
            assert_eq!(x.on(answer(status)).iter().collect::<Vec<_>>(), [ForwardHead], "{kind:?} {status}");
            assert!(x.is_answered() && !x.is_tunnel());
            let end: Vec<Action> = x.on(Event::Ended(Direction::Response)).iter().collect();
            assert_eq!(end, [ResetUpstream, EndResponse, StartDraining], "nobody wants its body");
        }
    }
    let switched = Event::Head(Head { status: 101, switches: true, confirms: true });
    assert_eq!(last(POST, &[asked[0], asked[1], switched]).0, [RejectResponse]);
    // It fails closed. A question may be asked again, whatever the method of the request.
    let lost = |loss| [Event::Authorize, CONNECTED, Event::Lost(loss)];
    assert_eq!(last(POST, &lost(Loss::Broken)).0, [ResetUpstream, AskRetry]);
    let late = last(POST, &lost(Loss::Timeout { short: false }));
    assert_eq!(late, (vec![ResetUpstream, Respond, StartDraining], 504));
    let denied = [&lost(Loss::Broken)[..], &[Event::RetryDenied]].concat();
    assert_eq!(last(GET, &denied), (vec![Respond, FinishClient, Finish], 502));
    let again = [&lost(Loss::Broken)[..], &[Event::RetryGranted, CONNECTED]].concat();
    assert_eq!(last(POST, &again).0, [SendHead], "the question once more");
    assert_eq!(last(GET, &[Event::Authorize, Event::ClientGone]).0, [ResetUpstream, DetachClient, Finish]);
    assert!(Exchange::new(GET).on(Event::Authorize).is_empty(), "nobody has accepted it");
}

/// A password is checked first: the request waits, and what is wrong with it is said without a server.
#[test]
fn a_request_whose_password_is_checked() {
    for kind in [Kind::Message, Kind::Connect, Kind::WebSocket, Kind::Upgrade, Kind::ExtendedConnect] {
        let mut x = accepted(Request { kind, ..POST });
        assert!(x.on(Event::Verify).is_empty() && x.is_verifying() && !x.is_authorizing());
        for early in [Event::Forward, Event::Authorize, Event::Verify, CONNECTED, OK, Event::Lost(Loss::Broken)] {
            assert!(x.on(early).is_empty() && x.is_verifying(), "{kind:?} {early:?}");
        }
        assert_eq!(x.request(), Phase::Awaiting, "its body waits");
        let mut wrong = x;
        let refused: Vec<Action> = wrong.on(Event::Answer { status: 401 }).iter().collect();
        assert_eq!(refused, [Respond, StartDraining], "{kind:?}");
        assert_eq!(x.on(Event::Verified).iter().collect::<Vec<_>>(), [Admit], "{kind:?}");
        assert!(x.on(Event::Verified).is_empty() && !x.is_verifying(), "once");
        // A server may be asked after that.
        let mut asks = x;
        assert_eq!(asks.on(Event::Authorize).iter().collect::<Vec<_>>(), [SelectServer], "{kind:?}");
        assert_eq!(x.on(Event::Forward).iter().collect::<Vec<_>>(), [SelectServer], "{kind:?}");
    }
    assert_eq!(last(GET, &[Event::Verify, Event::ClientGone]).0, [DetachClient, Finish]);
    assert_eq!(last(GET, &[Event::Verify, Event::Refuse { status: 503 }]), (vec![Respond, FinishClient, Finish], 503));
    assert!(Exchange::new(GET).on(Event::Verified).is_empty(), "nobody has asked");
}

#[test]
fn early_data() {
    let early = |facts| Request { is_early: true, ..facts };
    let mut x = Exchange::new(early(POST));
    let refused = x.on(Event::Accepted);
    assert_eq!((refused.iter().collect::<Vec<_>>(), refused.status()), (vec![Respond, StartDraining], 425));
    assert!(x.on(Event::Forward).is_empty());
    // What the rules cannot judge yet gets the same, also before it is accepted.
    assert_eq!(Exchange::new(early(POST)).on(Event::TooEarly), refused);
    assert_eq!(x.on(Event::TooEarly).iter().collect::<Vec<_>>(), [CloseClient, Finish], "it has its answer");
    assert!(Exchange::new(GET).on(Event::Forward).is_empty(), "nobody has accepted it");
    assert_eq!(last(early(GET), &[Event::Forward]).0, [SelectServer]);
    // Whatever the method is: what follows a change of protocols is no safe request.
    for kind in [Kind::Connect, Kind::WebSocket, Kind::Upgrade, Kind::ExtendedConnect] {
        let (mut early, mut late) =
            (Exchange::new(early(Request { kind, ..GET })), Exchange::new(Request { kind, ..GET }));
        let actions = early.on(Event::Accepted);
        assert_eq!((actions.has(Respond), actions.status()), (true, 425), "{kind:?}");
        assert!(late.on(Event::Accepted).is_empty(), "{kind:?}");
    }
    let too_early = Event::Head(Head { status: 425, switches: false, confirms: false });
    let begin = [Event::Forward, CONNECTED, too_early];
    assert_eq!(last(early(GET), &begin).0, [ResetUpstream, AwaitHandshake]);
    let over = [&begin[..], &[Event::HandshakeDone]].concat();
    assert_eq!(last(early(GET), &over).0, [AskRetry], "it is a retry like any other");
    assert_eq!(last(early(GET), &[&over[..], &[Event::RetryGranted]].concat()).0, [SelectServer]);
    let denied = last(early(GET), &[&over[..], &[Event::RetryDenied]].concat());
    assert_eq!(denied, (vec![Respond, FinishClient, Finish], 425), "the client may send it again itself");
    let late = [&begin[..2], &[Event::HandshakeDone, too_early]].concat();
    assert_eq!(last(early(GET), &late).0, [ResetUpstream, AwaitHandshake], "the server got it as early");
    assert_eq!(last(GET, &begin).0, [ForwardHead], "a 425 to no early data is a response");
    let marked = Request { is_marked_early: true, ..early(GET) };
    assert_eq!(last(marked, &begin).0, [ForwardHead], "the proxy that has it as early data repeats it");
}

/// The gateway's own early data: `early_data` of an upstream.
#[test]
fn early_data_to_servers() {
    use EarlyRequests::{Client, Safe};
    let selecting = |facts| {
        let mut x = accepted(facts);
        assert!(!x.may_go_early(Safe), "no server is selected");
        assert!(x.on(Event::Forward).has(SelectServer));
        x
    };
    let early = Request { is_early: true, ..GET };
    for (facts, client, safe) in [
        (GET, false, true),
        (early, true, true),
        (PUT, false, false),
        (Request { is_safe: true, ..PUT }, false, false),
        (Request { has_body: true, ..early }, false, false),
        (Request { kind: Kind::Upgrade, ..GET }, false, false),
        // Of a proxy that has it as early data itself; it has sent it as such, or not.
        (Request { is_marked_early: true, ..early }, true, true),
        (Request { is_marked_early: true, ..GET }, false, false),
    ] {
        let mut x = selecting(facts);
        assert_eq!((x.may_go_early(Client), x.may_go_early(Safe)), (client, safe), "{facts:?}");
        assert!(x.on(Event::SentEarly).is_empty());
        assert_eq!(x.was_sent_early(), safe, "{facts:?}");
    }
    let mut question = accepted(GET);
    assert!(question.on(Event::Authorize).has(SelectServer));
    assert!(!question.may_go_early(Safe), "it is not the request that goes to the server");

    let too_early = Event::Head(Head { status: 425, switches: false, confirms: false });
    // The server finds it too early. It goes again once, and not as early data.
    let mut x = selecting(GET);
    for (event, expected) in [
        (Event::SentEarly, vec![]),
        (CONNECTED, vec![SendHead]),
        (too_early, vec![ResetUpstream, AwaitHandshake]),
        (Event::HandshakeDone, vec![AskRetry]),
        (Event::RetryGranted, vec![SelectServer]),
    ] {
        assert_eq!(x.on(event).iter().collect::<Vec<_>>(), expected, "{event:?}");
    }
    assert!(!x.may_go_early(Safe) && !x.was_sent_early());
    assert!(x.on(CONNECTED).has(SendHead));
    assert_eq!(x.on(too_early).iter().collect::<Vec<_>>(), [ForwardHead], "it is not early any more");
    let sent = [Event::Forward, Event::SentEarly, CONNECTED, too_early, Event::HandshakeDone, Event::RetryDenied];
    assert_eq!(last(GET, &sent).1, 502, "425 would mean nothing to the client");
    assert_eq!(last(early, &sent).1, 425, "the client may send it again itself");
    // A request that came early and went over a connection that was open is not made early by its repetition.
    let mut x = selecting(early);
    for event in [CONNECTED, too_early, Event::HandshakeDone, Event::RetryGranted] {
        assert!(!x.on(event).is_empty(), "{event:?}");
    }
    assert!(!x.may_go_early(Client) && !x.may_go_early(Safe));

    // The server has rejected the early data: what it gets then is an ordinary request.
    let mut x = selecting(GET);
    for event in [Event::SentEarly, Event::EarlyRejected] {
        assert!(x.on(event).is_empty());
    }
    assert!(!x.was_sent_early() && !x.may_go_early(Safe));
    assert!(x.on(CONNECTED).has(SendHead));
    assert_eq!(x.on(too_early).iter().collect::<Vec<_>>(), [ForwardHead]);

    // The handshake has failed with the early data: that is no failure of the server, once.
    let mut x = selecting(GET);
    assert!(x.on(Event::SentEarly).is_empty());
    assert_eq!(x.on(Event::Lost(Loss::Stale)).iter().collect::<Vec<_>>(), [ResetUpstream, AskRetry]);
    assert!(x.on(Event::RetryGranted).has(SelectServer));
    assert!(!x.may_go_early(Safe));
    // Nor does a request go as early data that was sent again for the age of a connection.
    let mut x = selecting(GET);
    for event in [CONNECTED, Event::Lost(Loss::Stale), Event::RetryGranted] {
        assert!(!x.on(event).is_empty());
    }
    assert!(!x.may_go_early(Safe));
}

#[test]
fn upgrades() {
    let head = |status, switches, confirms| Event::Head(Head { status, switches, confirms });
    let ask = |kind, event| last(Request { kind, ..GET }, &[Event::Forward, CONNECTED, event]).0;
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
}

#[test]
fn what_a_connection_can_switch_to() {
    use Switching::{Any, NoTunnel, None, Unknown, WebSocket};
    let on = |kind, switching| last(Request { kind, ..GET }, &[Event::Forward, Event::Connected(switching)]);
    let refused = (vec![ResetUpstream, Respond, FinishClient, Finish], 502);
    for kind in [Kind::WebSocket, Kind::ExtendedConnect] {
        for switching in [Any, WebSocket] {
            assert_eq!(on(kind, switching), (vec![SendHead], 0));
        }
        for switching in [None, NoTunnel] {
            assert_eq!(on(kind, switching), refused, "a server that does not take an extended CONNECT");
        }
        assert_eq!(on(kind, Unknown), (vec![AwaitSettings], 0));
        let told = [Event::Forward, Event::Connected(Unknown), Event::Connected(WebSocket)];
        assert_eq!(last(Request { kind, ..GET }, &told).0, [SendHead]);
        let told = [Event::Forward, Event::Connected(Unknown), Event::Connected(None)];
        assert_eq!(last(Request { kind, ..GET }, &told), refused);
        let lost = [Event::Forward, Event::Connected(Unknown), Event::Lost(Loss::Unprocessed)];
        assert_eq!(last(Request { kind, ..GET }, &lost).0, [ResetUpstream, AskRetry]);
    }
    for kind in [Kind::Message, Kind::Connect, Kind::Upgrade] {
        for switching in [Any, WebSocket, None, Unknown] {
            assert_eq!(on(kind, switching), (vec![SendHead], 0), "{kind:?} {switching:?}");
        }
        let expected = if kind == Kind::Connect { refused.clone() } else { (vec![SendHead], 0) };
        assert_eq!(on(kind, NoTunnel), expected, "{kind:?}");
    }
    let switches = Event::Head(Head { status: 101, switches: true, confirms: true });
    for (kind, switching, asks) in [
        (Kind::WebSocket, Any, true),
        (Kind::WebSocket, WebSocket, true),
        (Kind::Upgrade, Any, true),
        (Kind::Upgrade, WebSocket, false),
        (Kind::Upgrade, None, false),
        (Kind::Upgrade, Unknown, false),
        (Kind::Upgrade, NoTunnel, false),
        (Kind::Message, Any, false),
    ] {
        let mut x = accepted(Request { kind, ..GET });
        let _ = (x.on(Event::Forward), x.on(Event::Connected(switching)));
        assert_eq!(x.asks_server_to_switch(), asks, "{kind:?} {switching:?}");
        assert_eq!(x.on(switches).has(ForwardHead), asks, "a server switches only to what it was asked for");
    }
    // A wish that one server's connection could not carry is passed on to the next.
    let mut x = accepted(Request { kind: Kind::Upgrade, ..GET });
    for event in [Event::Forward, Event::Connected(None), Event::Lost(Loss::Unprocessed), Event::RetryGranted] {
        let _ = x.on(event);
    }
    let _ = x.on(CONNECTED);
    assert!(x.asks_server_to_switch());
}

#[test]
fn the_server_ends_an_upgraded_connection() {
    let upgrade = Request { kind: Kind::Upgrade, ..GET };
    let opened = [
        Event::Forward,
        CONNECTED,
        Event::Head(Head { status: 101, switches: true, confirms: true }),
        Event::Ended(Direction::Response),
    ];
    assert_eq!(last(upgrade, &opened).0, [EndResponse, CloseUpstream, CloseClient, Finish]);
}

#[test]
fn tunnels_close_one_direction_at_a_time() {
    let relay = Request { kind: Kind::Relay, ..POST };
    let mut x = accepted(relay);
    assert_eq!(x.on(Event::Forward).iter().collect::<Vec<_>>(), [SelectServer]);
    assert_eq!(x.on(CONNECTED).iter().collect::<Vec<_>>(), [SendHead, ResumeRequest, ResumeResponse]);
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
    let after = |events: &[Event]| last(relay, &[&[Event::Forward, CONNECTED], events].concat()).0;
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
