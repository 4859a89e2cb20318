//! What the peers do in a run: drawn from the seed, and written into the script.

use crate::net::{FOREVER, Random};
use sealane_exchange::deadlines::Millis;

/// What may go wrong while a peer sends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// It resets the stream or the connection.
    Reset,
    /// It ends the connection before the end of its message (HTTP/1.1), or the stream short of its length.
    End,
    /// It breaks the rules.
    Broken,
    /// The connection is lost, and both ends know.
    Lose,
    /// The connection is lost, and nobody knows.
    Kill,
}

/// When a sender pauses or fails, by its body's offset.
#[derive(Clone, Debug, Default)]
pub struct Course {
    pub pauses: Vec<(usize, Millis)>,
    pub fault: Option<(usize, Fault)>,
}

/// What a client asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wish {
    Get,
    Head,
    Post,
    Put,
    /// A gRPC call: a POST whose two directions may both be silent for a time.
    Call,
    Connect,
    /// By an Upgrade over HTTP/1.1, by an extended CONNECT over the others.
    WebSocket,
    /// A connection that is relayed as it is, on links of its own.
    Relay,
}

#[derive(Clone, Debug)]
pub struct Ask {
    pub wish: Wish,
    pub http10: bool,
    pub close: bool,
    /// Of the body, or of what goes up the tunnel.
    pub body: usize,
    pub counted: bool,
    pub trailers: bool,
    pub expect: bool,
    pub course: Course,
    /// The client stops to read for a time when it has this much of the response.
    pub read_pauses: Vec<(usize, Millis)>,
    /// The client goes away when it has this much of the response.
    pub leaves: Option<usize>,
    /// The client cancels the request so long after it began, whatever has happened by then.
    pub cancels: Option<Millis>,
    /// It goes on to send after it has been answered.
    pub stubborn: bool,
    /// Of a tunnel: it ends its direction when it has sent all.
    pub ends: bool,
    /// The gateway answers itself.
    pub answer: Option<u16>,
    pub begins: Millis,
}

impl Ask {
    pub fn is_tunnel(&self) -> bool {
        matches!(self.wish, Wish::Connect | Wish::WebSocket | Wish::Relay)
    }

    pub fn has_body(&self) -> bool {
        self.body > 0 && !self.is_tunnel()
    }

    pub fn is_idempotent(&self) -> bool {
        matches!(self.wish, Wish::Get | Wish::Head | Wish::Put | Wish::WebSocket)
    }

    pub fn is_safe(&self) -> bool {
        matches!(self.wish, Wish::Get | Wish::Head | Wish::WebSocket)
    }

    /// Whether a response with this status has no content (RFC 9110 §6.4.1).
    pub fn is_bodiless(&self, status: u16) -> bool {
        self.wish == Wish::Head || matches!(status, 204 | 304)
    }
}

/// When a server begins its response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum When {
    Head,
    Bytes(usize),
    Whole,
}

/// What a server does with a request.
#[derive(Clone, Debug)]
pub struct Serve {
    /// It refuses the request as not processed, where its version can say so; else it closes.
    pub refuses: bool,
    pub when: When,
    pub thinks: Millis,
    pub interims: usize,
    pub status: u16,
    /// A switch to another protocol is confirmed.
    pub confirms: bool,
    pub nonsense: bool,
    /// It cancels the stream in place of a response, as gRPC servers do when a call's deadline is over.
    pub cancels: bool,
    /// It sends its body also behind a response that has none.
    pub surplus: bool,
    pub body: usize,
    /// 0: counted; 1: chunked; 2: until the connection closes.
    pub framing: u8,
    pub trailers: bool,
    pub course: Course,
    pub read_pauses: Vec<(usize, Millis)>,
    pub ends: bool,
    pub closes: bool,
    /// It cancels an early answered request in place of reading the rest.
    pub stops: bool,
    /// It resets a stream with NO_ERROR behind a complete response to a complete request.
    pub resets: bool,
}

/// How a connection to a server turns out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dial {
    Accept(Millis),
    Refuse(Millis),
    Never,
}

/// The gateway's settings, and what the client does in general.
#[derive(Clone, Debug)]
pub struct Settings {
    pub versions: (u8, u8),
    pub servers: usize,
    pub tries: usize,
    pub retries: usize,
    /// Requests that may be under way at a server; others wait, for so long.
    pub places: usize,
    pub queue_timeout: Millis,
    pub idle: [Millis; 2],
    pub rate: [u64; 2],
    pub connect: Millis,
    pub first_byte: Millis,
    pub try_timeout: Option<Millis>,
    pub handshake: Millis,
    pub max_body: u64,
    pub max_drained: u64,
    /// When the client's handshake ends; what comes before is early data.
    pub early_until: Millis,
    pub pipelined: bool,
}

/// A run in which little goes wrong, else one in which much does.
fn fault_odds(random: &mut Random) -> usize {
    random.pick(&[3, 8, 30])
}

fn size(random: &mut Random) -> usize {
    match random.below(20) {
        0..8 => 1 + random.below(50),
        8..14 => random.below(3_000),
        14..18 => random.below(30_000),
        _ => random.below(200_000),
    }
}

fn pause(random: &mut Random) -> Millis {
    match random.below(8) {
        0..4 => random.within(1, 300),
        4 | 5 => random.within(300, 4000),
        _ => FOREVER,
    }
}

fn pauses(random: &mut Random, odds: usize, size: usize) -> Vec<(usize, Millis)> {
    if random.one_in(odds * 5) && size > 20 {
        // Bytes that come too slowly.
        return (0..60).map(|i| (i * 3, random.within(600, 900))).collect();
    }
    let mut pauses = Vec::new();
    while random.one_in(odds) && pauses.len() < 3 {
        pauses.push((random.below(size + 1), pause(random)));
    }
    pauses.sort_unstable();
    pauses
}

fn course(random: &mut Random, odds: usize, size: usize) -> Course {
    let faults = [Fault::Reset, Fault::End, Fault::Broken, Fault::Lose, Fault::Kill];
    let fault = random.one_in(odds).then(|| (random.below(size + 1), random.pick(&faults)));
    Course { pauses: pauses(random, odds, size), fault }
}

pub fn settings(random: &mut Random, versions: (u8, u8)) -> Settings {
    let limit = [1000, 1500, 3000];
    Settings {
        versions,
        servers: 1 + random.below(3),
        tries: 1 + random.below(3),
        retries: random.pick(&[0, 1, 2, 10, 10]),
        places: random.pick(&[1, 1, 2, usize::MAX]),
        queue_timeout: random.pick(&[50, 500, 900]),
        idle: [random.pick(&limit), random.pick(&limit)],
        rate: [random.pick(&[0, 240, 2000]), random.pick(&[0, 240, 2000])],
        connect: random.pick(&limit),
        first_byte: random.pick(&limit),
        try_timeout: random.one_in(3).then_some(1200),
        handshake: random.pick(&limit),
        max_body: random.pick(&[1_000_000, 1_000_000, 20_000]),
        max_drained: random.pick(&[500, 10_000, 512 * 1024]),
        early_until: if random.one_in(5) { random.pick(&[100, 500, 500, 2500, FOREVER]) } else { 0 },
        pipelined: random.one_in(4),
    }
}

pub fn ask(random: &mut Random, settings: &Settings) -> Ask {
    let odds = fault_odds(random) * 2;
    let wish = random.pick(&[
        Wish::Get,
        Wish::Get,
        Wish::Head,
        Wish::Post,
        Wish::Post,
        Wish::Put,
        Wish::Put,
        Wish::Call,
        Wish::Call,
        Wish::Connect,
        Wish::WebSocket,
        Wish::Relay,
    ]);
    let none = random.one_in(if matches!(wish, Wish::Get | Wish::Head) { 1 } else { 10 }) && !random.one_in(6);
    let body = if none { 0 } else { size(random) };
    let http10 = settings.versions.0 == 1 && random.one_in(10) && matches!(wish, Wish::Get | Wish::Post | Wish::Put);
    let answers = size(random);
    Ask {
        wish,
        http10,
        close: random.one_in(8),
        body,
        counted: http10 || random.one_in(2),
        trailers: random.one_in(4),
        expect: !http10 && wish != Wish::Call && random.one_in(6),
        course: course(random, odds, body),
        read_pauses: pauses(random, odds, answers),
        leaves: random.one_in(odds * 2).then(|| random.below(answers + 1)),
        cancels: random.one_in(odds * 3).then(|| random.pick(&[1, 20, 100, 1000]) + random.within(0, 100)),
        stubborn: random.one_in(2),
        ends: !random.one_in(4),
        answer: (random.one_in(15) && wish != Wish::Relay).then_some(404),
        begins: 1 + random.within(0, 1000),
    }
}

pub fn serve(random: &mut Random, early: bool, tunnel: bool, call: bool) -> Serve {
    let odds = fault_odds(random) * 2;
    // gRPC errors have no messages: their trailers are all there is.
    let body = if call && random.one_in(3) { 0 } else { size(random) };
    let at = random.below(3_000);
    let unasked = !tunnel && random.one_in(odds * 3);
    let status = match random.below(12) {
        _ if early && random.one_in(2) => 425,
        _ if unasked => 101,
        0 if !tunnel => random.pick(&[204, 304]),
        1 => 500,
        2 => 425,
        3 if tunnel => 403,
        _ => 200,
    };
    Serve {
        refuses: random.one_in(odds),
        when: random.pick(&[When::Head, When::Bytes(at), When::Whole, When::Whole, When::Whole]),
        thinks: if random.one_in(odds) { pause(random) } else { random.within(0, 50) },
        interims: if random.one_in(odds * 2) { 40 } else { random.pick(&[0, 0, 0, 1, 2]) },
        status,
        confirms: !random.one_in(6),
        nonsense: random.one_in(odds * 2),
        cancels: random.one_in(if call { odds } else { odds * 4 }),
        surplus: random.one_in(6),
        body,
        framing: random.pick(&[0, 0, 1, 1, 2]),
        trailers: random.one_in(if call { 1 } else { 4 }),
        course: course(random, odds, body),
        read_pauses: pauses(random, odds, at),
        ends: !random.one_in(4),
        closes: random.one_in(5),
        stops: random.one_in(2),
        resets: random.one_in(4),
    }
}

pub fn dial(random: &mut Random) -> Dial {
    match random.below(16) {
        0 => Dial::Refuse(random.within(0, 100)),
        1 => Dial::Never,
        2 => Dial::Accept(random.within(100, 3000)),
        _ => Dial::Accept(random.within(0, 40)),
    }
}
