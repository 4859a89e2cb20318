//! The truth table of `docs/reference/http-versions.md`: the page's rows are read, and each is run as a script. What the machine does
//! must be what the page's cells say, so a row that is changed, added or left out fails the test until there is a script for it.

use super::*;
use Outcome::*;
use sealane_exchange::Reset;
use sealane_exchange::deadlines::{LINGER, LINGER_BYTES, Millis};

const PAGE: &str = include_str!("../../../../docs/reference/http-versions.md");

/// What follows from an event, as far as the machine decides it. How each version writes that is the adapters'.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Outcome {
    /// Nothing.
    Nothing,
    /// What is meant is that of the cell before.
    Same,
    /// The response's end goes to the client, and both sides may be used again.
    Whole,
    /// Interim responses pass, so many.
    Interim { most: u8 },
    /// The request is sent again, whatever its method; else the client gets one of these.
    Retry([u16; 2]),
    /// The request is sent again, whatever its method.
    RetryAny,
    /// The request is sent again if its method is idempotent, and this happens once.
    RetryOnce,
    /// The request is sent again if its method is idempotent; else the client gets this.
    RetryIdempotent(u16),
    /// The client gets this status, and the server's side is given up.
    Status(u16),
    /// The response is cut off, and the server's side is given up.
    CutOff,
    /// What comes is dropped.
    Dropped,
    /// The response passes, and the rest of the request is read for so long and so many bytes.
    Drained { time: Millis, bytes: u64 },
    /// The end of the request goes to the server.
    RequestEnds,
    /// The server's side is given up.
    ServerReset,
    /// The connection is tried to another server, then the client is cut off.
    RetryOrCut,
    /// One direction ends, and the other one goes on.
    HalfEnds,
    /// Both directions end in an orderly way.
    BothEnd,
    /// Both sides are given up.
    BothCut,
}

/// What the cells of the page mean.
const MEANINGS: &[(&str, Outcome)] = &[
    ("nothing", Nothing),
    ("the request continues", Nothing),
    ("the same", Same),
    ("the same; RST_STREAM(CANCEL)", Same),
    ("the same; reset", Same),
    ("the same, over TLS with close_notify; END_STREAM or the end of the stream over HTTP/2 and HTTP/3", Same),
    (
        "as announced by Content-Length; if the length is not known, the last chunk (HTTP/1.0: close of the connection)",
        Whole,
    ),
    (
        "END_STREAM on the last DATA frame; if the gateway does not know that a frame is the last, END_STREAM on an \
         additional, empty DATA frame",
        Whole,
    ),
    ("end of the stream", Whole),
    ("after the last chunk (dropped for HTTP/1.0, and if Content-Length was announced)", Whole),
    ("HEADERS with END_STREAM", Whole),
    ("HEADERS, then end of the stream", Whole),
    ("the whole response", Whole),
    (
        "forwarded (but not to HTTP/1.0), at most 16 for each request; the 17th counts as invalid HTTP (below)",
        Interim { most: 16 },
    ),
    ("the gateway tries another server, then responds with 502 or 504", Retry([502, 504])),
    ("the same as for a request", Retry([502, 504])),
    ("the request is sent again, whatever the method", RetryAny),
    (
        "the request is sent once more, on a new connection. If the connection ended because the response to this \
         request (not to another request on the same connection) was invalid, the row *connection closed or reset … before \
         the response's head* applies instead",
        RetryOnce,
    ),
    (
        "the gateway tries another server if the method is idempotent, the gateway had sent no part of the body, and a \
         try and another server are left. In all other cases, 502",
        RetryIdempotent(502),
    ),
    ("the next row applies, because HTTP/1.1 cannot carry gRPC", RetryIdempotent(502)),
    ("cut off", CutOff),
    ("the stream is reset after the head", CutOff),
    ("dropped; a connection to the server over HTTP/1.1 is not used again", Dropped),
    ("dropped", Dropped),
    ("504", Status(504)),
    (
        "the response. If it has a body and a status below 300, it has no `Connection: close`, and the connection stays open if \
         the rest of the request arrives before the end of the response. All other responses have `Connection: close`. If the \
         connection does not stay open, the gateway reads the rest of the request for 2 seconds or up to 512 KiB, and then \
         closes the connection",
        Drained { time: 2000, bytes: 512 * 1024 },
    ),
    (
        "the response. It has no `Connection: close`, except if the request announces a rest of more than 512 KiB, or has \
         `Expect: 100-continue`. The gateway reads the rest for 2 seconds or up to 512 KiB. If the rest ends by then, and the \
         response has no `Connection: close`, the connection stays open; in all other cases, the gateway then closes it",
        Drained { time: 2000, bytes: 512 * 1024 },
    ),
    (
        "response with END_STREAM; the rest is read in the same way, then RST_STREAM(NO_ERROR)",
        Drained { time: 2000, bytes: 512 * 1024 },
    ),
    (
        "response and end of the stream; the rest is read in the same way, then STOP_SENDING(H3_NO_ERROR)",
        Drained { time: 2000, bytes: 512 * 1024 },
    ),
    ("as announced; chunked if the length is not known", RequestEnds),
    ("END_STREAM, on data or on trailers", RequestEnds),
    ("end of the stream, after data or trailers", RequestEnds),
    ("connection closed", ServerReset),
    ("RST_STREAM(CANCEL)", ServerReset),
    ("RESET_STREAM and STOP_SENDING (H3_REQUEST_CANCELLED)", ServerReset),
    ("reset", ServerReset),
    ("400 to the client (RST_STREAM(PROTOCOL_ERROR) over HTTP/2); connection closed", Status(400)),
    ("413; connection closed", Status(413)),
    ("413; RST_STREAM(CANCEL)", Status(413)),
    ("413; reset", Status(413)),
    ("408; connection closed", Status(408)),
    ("408; RST_STREAM(CANCEL)", Status(408)),
    ("408; reset", Status(408)),
    ("the gateway tries another server, then closes the connection", RetryOrCut),
    ("FIN to the server after the last byte; the server's direction continues", HalfEnds),
    ("FIN to the client after the last byte; the client's direction continues", HalfEnds),
    ("both directions end", BothEnd),
    ("the other connection closes", BothCut),
    ("the other connection or stream is reset", BothCut),
    ("both connections close", BothCut),
];

/// A row's script: what the machine does, by the column of the page's cell.
type Script = fn(usize) -> Outcome;

const AT_THE_SERVER: &[(&str, Script)] = &[
    (
        "end of the body by Content-Length, last chunk, close of the connection, END_STREAM, or end of the stream",
        |_| response_ends(&[]),
    ),
    ("trailers", |_| response_ends(&[])),
    ("interim response (1xx)", |_| interim_responses()),
    ("the server is not reachable", |_| unreachable(GET)),
    (
        "HTTP/2: REFUSED_STREAM, or a stream beyond the GOAWAY's last stream; HTTP/3: H3_REQUEST_REJECTED; the gateway had \
         sent no part of the body",
        |_| retried(Loss::Unprocessed),
    ),
    (
        "a connection on which the server has already answered another request ends before this response begins; the \
         method is idempotent; the gateway had sent no part of the body",
        |_| reused_connection(),
    ),
    ("a gRPC call, before the response's head: HTTP/2: CANCEL; HTTP/3: H3_REQUEST_CANCELLED", |column| {
        let loss = Loss::of_reset(Reset::Cancelled, column > 0);
        if column > 0 { cancelled(loss) } else { retried(loss) }
    }),
    ("connection closed or reset, RST_STREAM, RESET_STREAM, or invalid HTTP, before the response's head", |_| {
        retried(Loss::of_connection(false, true))
    }),
    ("the same events after the response's head", |_| after_head(Event::Lost(Loss::Broken))),
    ("HTTP/2: GOAWAY, or the end of the connection, after a complete response", |_| {
        response_ends(&[Event::Lost(Loss::Broken)])
    }),
    (
        "content after a response that cannot have content (204, 304, responses to HEAD), over HTTP/1.1 or HTTP/2",
        |_| surplus(),
    ),
    // Towards a client over HTTP/3 the response's end is not known before its stream ends.
    ("content after such a response, over HTTP/3", |column| {
        if column < 2 { surplus() } else { after_head(Event::Lost(Loss::Broken)) }
    }),
    ("no complete head in time (`first_byte_timeout`)", |_| {
        refusal(GET, &[Event::Forward, CONNECTED], Event::Lost(Loss::Timeout { short: false }))
    }),
    ("silence after the head (`idle_timeout`)", |_| after_head(Event::Lost(Loss::Timeout { short: false }))),
    ("response before the request is complete", |_| early_response()),
    (
        "no event: the gateway itself responds before the request is complete (fixed response, redirect, 401, 425, 429)",
        |_| own_response(),
    ),
    ("RST_STREAM(NO_ERROR), STOP_SENDING(H3_NO_ERROR) after a complete response", |_| {
        after_the_end(Event::Lost(Loss::Broken))
    }),
];

const AT_THE_CLIENT: &[(&str, Script)] = &[
    ("end of the body, trailers", |_| request_ends()),
    ("HTTP/1.1: FIN or close_notify after a complete request", |_| {
        let whole = [&SENT[..], &[Event::Ended(Direction::Request), Event::Ended(Direction::Request)]].concat();
        nothing(&last(POST, &whole).0)
    }),
    ("connection lost, RST_STREAM, RESET_STREAM", |_| {
        assert_eq!(last(POST, &[&SENT[..], &[Event::ClientGone]].concat()).0, [ResetUpstream, DetachClient, Finish]);
        ServerReset
    }),
    ("body violates its framing or its length", |_| refusal(POST, &SENT, Event::Refuse { status: 400 })),
    ("body too large (`max_body_size`)", |_| refusal(POST, &SENT, Event::Refuse { status: 413 })),
    ("silence in the body (`idle_timeout`), or a body that arrives too slowly (`min_body_rate`)", |_| {
        refusal(POST, &SENT, Event::Refuse { status: 408 })
    }),
    (
        "the client stops reading the response (`idle_timeout`), or reads too slowly (`min_body_rate`): the response is cut \
         off (over HTTP/1.1, the client's connection closes; over HTTP/2 and HTTP/3, only the stream ends)",
        |_| {
            assert_eq!(after_head(Event::Refuse { status: 408 }), CutOff);
            ServerReset
        },
    ),
];

const TUNNELS: &[(&str, Script)] = &[
    ("the server cannot be reached", |column| if column == 0 { unreachable(RELAY) } else { unreachable(UPGRADE) }),
    ("the client ends its direction", |column| {
        let mut x = tunnel(column);
        assert_eq!(x.on(Event::Ended(Direction::Request)).iter().collect::<Vec<_>>(), [EndRequest]);
        assert_eq!(x.response(), Phase::Streaming);
        HalfEnds
    }),
    ("the server ends its direction", |column| {
        let mut x = tunnel(column);
        let actions: Vec<Action> = x.on(Event::Ended(Direction::Response)).iter().collect();
        match &actions[..] {
            [EndResponse] if x.request() == Phase::Streaming => HalfEnds,
            [EndResponse, CloseUpstream, CloseClient, Finish] => BothEnd,
            _ => panic!("{actions:?}"),
        }
    }),
    ("one side resets, or is lost", |column| {
        let gone: Vec<Action> = tunnel(column).on(Event::ClientGone).iter().collect();
        assert_eq!(gone, [ResetUpstream, DetachClient, Finish]);
        both_cut(tunnel(column), Event::Lost(Loss::Broken))
    }),
    ("both sides are silent (`idle_timeout`)", |column| both_cut(tunnel(column), Event::Refuse { status: 408 })),
];

/// A request with a body has gone to a server, but for its end.
const SENT: [Event; 3] = [Event::Forward, CONNECTED, Event::Moved { bytes: 10 }];
const RELAY: Request = Request { kind: Kind::Relay, ..POST };
const UPGRADE: Request = Request { kind: Kind::Upgrade, ..GET };

fn nothing(actions: &[Action]) -> Outcome {
    assert_eq!(actions, [], "it changes nothing");
    Nothing
}

/// A whole response, and then `late`, which changes nothing any more.
fn response_ends(late: &[Event]) -> Outcome {
    let begin = [Event::Forward, CONNECTED, OK, Event::Ended(Direction::Response)];
    assert_eq!(last(GET, &begin).0, [EndResponse, ReleaseUpstream, FinishClient, Finish]);
    for late in late {
        after_the_end(*late);
    }
    Whole
}

fn after_the_end(late: Event) -> Outcome {
    nothing(&last(GET, &[Event::Forward, CONNECTED, OK, Event::Ended(Direction::Response), late]).0)
}

fn surplus() -> Outcome {
    after_the_end(Event::Ended(Direction::Response));
    Dropped
}

fn interim_responses() -> Outcome {
    let mut x = accepted(GET);
    let _ = (x.on(Event::Forward), x.on(CONNECTED));
    let most = (0..).take_while(|_| x.on(Event::Interim).has(ForwardInterim)).count();
    assert_eq!(x.on(Event::Interim).iter().collect::<Vec<_>>(), [RejectResponse]);
    Interim { most: u8::try_from(most).unwrap() }
}

fn unreachable(facts: Request) -> Outcome {
    let ends = [Loss::Unreachable, Loss::ConnectTimeout].map(|loss| {
        for facts in [facts, Request { is_idempotent: false, is_safe: false, ..facts }] {
            let again = last(facts, &[Event::Forward, Event::Lost(loss), Event::RetryGranted]).0;
            assert_eq!(again, [SelectServer], "{loss:?}");
        }
        last(facts, &[Event::Forward, Event::Lost(loss), Event::RetryDenied])
    });
    match &ends {
        [(actions, 0), (others, 0)] if actions == others => {
            assert_eq!(actions, &[CutClient, Finish]);
            RetryOrCut
        }
        _ => Retry(ends.map(|(_, status)| status)),
    }
}

/// For which methods a request is sent again after a loss, if it has no body or none of that has been sent.
fn retried(loss: Loss) -> Outcome {
    let asks = |facts| last(facts, &[Event::Forward, CONNECTED, Event::Lost(loss)]).0.contains(&AskRetry);
    assert!(asks(GET) && asks(PUT));
    for facts in [GET, PUT, POST] {
        let moved = last(Request { has_body: true, ..facts }, &[&SENT[..], &[Event::Lost(loss)]].concat());
        assert_eq!((moved.0.contains(&AskRetry), moved.1), (false, 502), "a part of the body is gone");
    }
    let denied = last(GET, &[Event::Forward, CONNECTED, Event::Lost(loss), Event::RetryDenied]).1;
    assert_eq!(denied, 502, "no try, or no other server is left");
    if asks(POST) { RetryAny } else { RetryIdempotent(denied) }
}

fn reused_connection() -> Outcome {
    let stale = Loss::of_connection(true, true);
    assert!(!stale.uses_try() && !stale.avoids_server(), "beside the tries, and at any server");
    assert_eq!(retried(stale), RetryIdempotent(502));
    let mut x = accepted(GET);
    let _ = (x.on(Event::Forward), x.on(CONNECTED));
    assert_eq!((x.loss(stale), x.on(Event::Lost(stale)).has(AskRetry)), (stale, true));
    let _ = (x.on(Event::RetryGranted), x.on(CONNECTED));
    let broken = Loss::of_connection(false, true);
    assert_eq!(
        (x.loss(stale), Loss::of_connection(true, false)),
        (broken, broken),
        "the row of lost connections applies"
    );
    RetryOnce
}

/// What ends a request without a response to the client.
fn cancelled(loss: Loss) -> Outcome {
    assert!(!loss.blames_server());
    assert_eq!(last(GET, &[Event::Forward, CONNECTED, Event::Lost(loss)]).0, [ResetUpstream, CutClient, Finish]);
    CutOff
}

fn after_head(event: Event) -> Outcome {
    assert_eq!(last(GET, &[Event::Forward, CONNECTED, OK, event]).0, [ResetUpstream, CutClient, Finish]);
    CutOff
}

/// An error that the client is told of.
fn refusal(facts: Request, before: &[Event], event: Event) -> Outcome {
    let (actions, status) = last(facts, &[before, &[event]].concat());
    assert!(actions.starts_with(&[ResetUpstream, Respond]), "{actions:?}");
    Status(status)
}

fn early_response() -> Outcome {
    let ends = [Direction::Request, Direction::Response].map(Event::Ended);
    let in_time = last(POST, &[&SENT[..], &[OK], &ends].concat()).0;
    assert_eq!(in_time, [EndResponse, ReleaseUpstream, FinishClient, Finish]);
    let begin = [&SENT[..], &[OK, Event::Ended(Direction::Response)]].concat();
    assert_eq!(last(POST, &begin).0, [ResetUpstream, EndResponse, StartDraining]);
    drained(&begin)
}

fn own_response() -> Outcome {
    let begin = [Event::Answer { status: 401 }];
    assert_eq!(last(POST, &begin).0, [Respond, StartDraining]);
    let x = accepted(Request { has_body: true, ..Request::default() });
    assert_eq!([None, Some(LINGER_BYTES), Some(LINGER_BYTES + 1)].map(|rest| x.reads_rest(rest)), [true, true, false]);
    drained(&begin)
}

/// How long and how far a request is read that has been answered by these events.
fn drained(begin: &[Event]) -> Outcome {
    let with =
        |event| last(Request { max_drained: Request::default().max_drained, ..POST }, &[begin, &[event]].concat()).0;
    assert_eq!(with(moved(LINGER_BYTES)), []);
    assert_eq!(with(moved(LINGER_BYTES + 1)), [CloseClient, Finish]);
    assert_eq!(with(Event::DrainTimeout), [CloseClient, Finish]);
    assert_eq!(with(Event::Ended(Direction::Request)), [FinishClient, Finish]);
    assert_eq!(with(Event::Refuse { status: 400 }), [CloseClient, Finish], "the response is whole");
    Drained { time: LINGER, bytes: LINGER_BYTES }
}

fn request_ends() -> Outcome {
    let mut x = accepted(POST);
    for event in SENT {
        let _ = x.on(event);
    }
    assert_eq!(x.on(Event::Ended(Direction::Request)).iter().collect::<Vec<_>>(), [EndRequest]);
    assert!(x.has_server() && x.request() == Phase::Complete);
    RequestEnds
}

/// A relayed connection, or one that has been upgraded.
fn tunnel(column: usize) -> Exchange {
    let mut x = accepted(if column == 0 { RELAY } else { UPGRADE });
    let _ = (x.on(Event::Forward), x.on(CONNECTED));
    let _ = x.on(Event::Head(Head { status: 101, switches: true, confirms: true }));
    assert!(x.is_tunnel());
    x
}

fn both_cut(mut x: Exchange, event: Event) -> Outcome {
    assert_eq!(x.on(event).iter().collect::<Vec<_>>(), [ResetUpstream, CutClient, Finish]);
    BothCut
}

/// The rows of the page's table whose first column is called so.
fn rows(name: &str) -> Vec<Vec<&'static str>> {
    let cells =
        |line: &'static str| -> Vec<&'static str> { line.trim_matches('|').split('|').map(str::trim).collect() };
    let mut lines = PAGE.lines().skip_while(|line| !line.starts_with(&format!("| {name} |")));
    let columns = cells(lines.next().unwrap_or_else(|| panic!("http-versions.md has no table {name:?}"))).len();
    let rows: Vec<_> = lines.skip(1).take_while(|line| line.starts_with('|')).map(cells).collect();
    assert!(rows.iter().all(|row| row.len() == columns), "{name}: a row with too many or too few cells");
    rows
}

#[test]
fn the_page_says_what_the_machine_does() {
    for (name, scripts) in [("at the server", AT_THE_SERVER), ("at the client", AT_THE_CLIENT), ("event", TUNNELS)] {
        let rows = rows(name);
        let events: Vec<&str> = rows.iter().map(|row| row[0]).collect();
        let scripted: Vec<&str> = scripts.iter().map(|(event, _)| *event).collect();
        assert_eq!(events, scripted, "each row of the page has a script, and each script a row");
        for (row, (event, script)) in rows.iter().zip(scripts) {
            let mut before = None;
            for (column, cell) in row[1..].iter().enumerate() {
                let known = MEANINGS.iter().find(|(text, _)| text == cell);
                let (_, meaning) = known.unwrap_or_else(|| panic!("{event}: nobody knows what {cell:?} means"));
                let expected = match (*meaning, before) {
                    (Same, Some(before)) => before,
                    (Same, None) => panic!("{event}: the same as what?"),
                    (meaning, _) => meaning,
                };
                assert_eq!(script(column), expected, "{event}, column {}: {cell}", column + 1);
                before = Some(expected);
            }
        }
    }
    let used = |text: &str| PAGE.lines().any(|line| line.split('|').any(|cell| cell.trim() == text));
    let unused: Vec<_> = MEANINGS.iter().map(|(text, _)| *text).filter(|text| !used(text)).collect();
    assert_eq!(unused, [""; 0], "the page has no such cells any more");
}
