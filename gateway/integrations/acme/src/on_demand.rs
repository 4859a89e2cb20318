//! Which demands of clients become orders: a name without a certificate that a client has asked for in its handshake.
//!
//! ```text
//! demand ─▶ remembered? ─▶ budget of the address ─▶ budget of all ─▶ `ask`, four at a time ─▶ orders in an hour ─▶ an order
//! ```
//!
//! A stranger can send any number of names from any number of addresses. So every step has a bound: an address can have [`BURST`] names
//! looked at, and one more every [`ADDRESS_EVERY`]; all together can have [`ALL_BURST`], and one more every [`ALL_EVERY`]. What was
//! decided is remembered. The tables cannot overflow by names: the budgets let fewer names pass than they have places for.

use bytes::Bytes;
use http::header::{HOST, USER_AGENT};
use http::{Request, StatusCode};
use http_body_util::Full;
use sealane_config::{AskUrl, OnDemandSettings};
use sealane_requests::Http1;
use std::collections::HashMap;
use std::hash::Hash;
use std::net::{IpAddr, Ipv6Addr};
use std::time::{Duration, Instant};
use tokio::time::timeout;
use tokio_rustls::TlsConnector;

/// From the first packet to the head of the answer.
const ASK_LIMIT: Duration = Duration::from_secs(5);
/// For one address of the service.
const CONNECT_LIMIT: Duration = Duration::from_secs(3);
/// Questions that are open at a time.
pub(crate) const MAX_ASKING: usize = 4;
/// Questions that wait or are open.
pub(crate) const MAX_QUESTIONS: usize = 64;
/// Names of one address that are looked at at once, and how long until it may bring another one.
const BURST: u32 = 10;
const ADDRESS_EVERY: Duration = Duration::from_secs(60);
/// The same of all addresses together.
const ALL_BURST: u32 = 60;
const ALL_EVERY: Duration = Duration::from_secs(1);
/// How long a decision is remembered.
const REMEMBERED: Duration = Duration::from_secs(600);
/// How long it is remembered that the service gave no answer.
const UNANSWERED: Duration = Duration::from_secs(60);
/// The longest time that failures are remembered for.
const LONGEST_FAILURE: Duration = Duration::from_secs(86_400);
/// Places in each table. Budgets let about 660 names pass in the time for which a decision is remembered.
const PLACES: usize = 4096;

/// A client has asked for a name that has no certificate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Demand {
    /// The name, lower case.
    pub name: String,
    /// The client.
    pub client: IpAddr,
}

/// What became of demands.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DemandCounts {
    /// Became orders.
    pub ordered: u64,
    /// Refused by the service.
    pub refused: u64,
    /// The service has not answered.
    pub unanswered: u64,
    /// What was decided before holds, or is being decided.
    pub remembered: u64,
    /// Over a budget.
    pub limited: u64,
    /// There are as many certificates as there may be.
    pub full: u64,
    /// This process does not hold the folder's lock.
    pub not_ours: u64,
}

/// What is to be done about a demand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Next {
    Nothing,
    Ask,
    Order,
}

/// What a service says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    Allowed,
    /// With the status.
    Refused(u16),
    /// Why.
    Unanswered(String),
}

/// A rate with a burst: as a number, the time at which the whole burst is there again.
#[derive(Clone, Copy, Debug)]
struct Rate {
    whole_at: Instant,
}

impl Rate {
    fn new(now: Instant) -> Self {
        Self { whole_at: now }
    }

    fn allows(&self, now: Instant, every: Duration, burst: u32) -> bool {
        self.whole_at.saturating_duration_since(now) + every <= every * burst
    }

    fn take(&mut self, now: Instant, every: Duration) {
        self.whole_at = self.whole_at.max(now) + every;
    }
}

#[derive(Clone, Copy, Debug)]
enum State {
    /// Asked for, or ordered, after so many orders that have failed in a row.
    Pending(u32),
    Allowed,
    Refused,
    /// Orders have failed, so many in a row.
    Failed(u32),
}

#[derive(Clone, Copy, Debug)]
struct Decision {
    state: State,
    /// How long it holds.
    until: Instant,
}

/// Decides about demands.
pub(crate) struct Gate {
    settings: OnDemandSettings,
    decisions: HashMap<String, Decision>,
    addresses: HashMap<IpAddr, Rate>,
    all: Rate,
    orders: Rate,
    pub counts: DemandCounts,
}

/// Makes room for one more entry; false if there is none.
fn has_place<K: Eq + Hash, V>(table: &mut HashMap<K, V>, is_over: impl Fn(&V) -> bool) -> bool {
    if table.len() >= PLACES {
        table.retain(|_, value| !is_over(value));
    }
    table.len() < PLACES
}

/// The part of an address that identifies a client: of IPv6 the first 64 bits, because a client can use all addresses of its network.
fn client_of(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(v6) => {
            let [a, b, c, d, ..] = v6.segments();
            Ipv6Addr::new(a, b, c, d, 0, 0, 0, 0).into()
        }
        v4 => v4,
    }
}

impl Gate {
    pub fn new(settings: OnDemandSettings, now: Instant) -> Self {
        Self {
            settings,
            decisions: HashMap::new(),
            addresses: HashMap::new(),
            all: Rate::new(now),
            orders: Rate::new(now),
            counts: DemandCounts::default(),
        }
    }

    pub fn settings(&self) -> &OnDemandSettings {
        &self.settings
    }

    fn order_every(&self) -> Duration {
        Duration::from_secs(3600) / self.settings.orders_per_hour
    }

    /// What is to be done about a demand. `kept`: certificates on demand that there are or that are ordered; `questions`: those that
    /// wait or are open.
    pub fn demand(&mut self, demand: &Demand, now: Instant, kept: usize, questions: usize) -> Next {
        let Demand { name, client } = demand;
        if !self.settings.admits(name) {
            return Next::Nothing;
        }
        match self.decisions.get(name) {
            Some(Decision { state: State::Pending(_), .. }) => {
                self.counts.remembered += 1;
                return Next::Nothing;
            }
            Some(Decision { state: State::Allowed, until }) if *until > now => return self.order(name, now, kept),
            Some(Decision { until, .. }) if *until > now => {
                self.counts.remembered += 1;
                return Next::Nothing;
            }
            _ => {}
        }
        if kept >= self.settings.max_certificates {
            self.counts.full += 1;
            return Next::Nothing;
        }
        let client = client_of(*client);
        let whole = |rate: &Rate| rate.whole_at <= now;
        let of_address = self.addresses.get(&client).copied().unwrap_or(Rate::new(now));
        let within = of_address.allows(now, ADDRESS_EVERY, BURST)
            && self.all.allows(now, ALL_EVERY, ALL_BURST)
            && questions < MAX_QUESTIONS
            && (self.addresses.contains_key(&client) || has_place(&mut self.addresses, whole))
            && (self.decisions.contains_key(name)
                || has_place(&mut self.decisions, |d| !matches!(d.state, State::Pending(_)) && d.until <= now));
        if !within {
            self.counts.limited += 1;
            return Next::Nothing;
        }
        self.all.take(now, ALL_EVERY);
        self.addresses.entry(client).or_insert(Rate::new(now)).take(now, ADDRESS_EVERY);
        if self.settings.ask.is_some() {
            self.decide(name, State::Pending(self.failures(name)), now);
            return Next::Ask;
        }
        self.order(name, now, kept)
    }

    /// How many orders for a name have failed, as far as that is remembered.
    fn failures(&self, name: &str) -> u32 {
        match self.decisions.get(name) {
            Some(Decision { state: State::Failed(failures) | State::Pending(failures), .. }) => *failures,
            _ => 0,
        }
    }

    fn decide(&mut self, name: &str, state: State, until: Instant) {
        self.decisions.insert(name.to_owned(), Decision { state, until });
    }

    /// The service has said something about a name.
    pub fn answered(&mut self, name: &str, verdict: &Verdict, now: Instant, kept: usize) -> Next {
        match verdict {
            Verdict::Allowed => return self.order(name, now, kept),
            Verdict::Refused(_) => {
                self.counts.refused += 1;
                self.decide(name, State::Refused, now + REMEMBERED);
            }
            Verdict::Unanswered(_) => {
                self.counts.unanswered += 1;
                self.decide(name, State::Refused, now + UNANSWERED);
            }
        }
        Next::Nothing
    }

    /// An order for a name that is allowed, if the budget has one.
    fn order(&mut self, name: &str, now: Instant, kept: usize) -> Next {
        let every = self.order_every();
        // A fifth of an hour's orders may come at once.
        let burst = (self.settings.orders_per_hour / 5).max(1);
        if kept >= self.settings.max_certificates {
            self.counts.full += 1;
        } else if !self.orders.allows(now, every, burst) {
            self.counts.limited += 1;
        } else {
            self.orders.take(now, every);
            self.counts.ordered += 1;
            self.decide(name, State::Pending(self.failures(name)), now);
            return Next::Order;
        }
        // The service is not asked again meanwhile.
        self.decide(name, State::Allowed, now + REMEMBERED);
        Next::Nothing
    }

    /// A name has its certificate, or is no longer anybody's.
    pub fn forget(&mut self, name: &str) {
        self.decisions.remove(name);
    }

    /// For how long no client can cause another order for a name, if the orders for it fail now: each time for longer.
    pub fn wait_after_failure(&self, name: &str) -> Duration {
        REMEMBERED.saturating_mul(1 << self.failures(name).min(10)).min(LONGEST_FAILURE)
    }

    /// The orders for a name have failed: no client can cause another one for a while.
    pub fn failed(&mut self, name: &str, now: Instant) {
        let (failures, wait) = (self.failures(name).saturating_add(1), self.wait_after_failure(name));
        self.decide(name, State::Failed(failures), now + wait);
    }
}

/// Asks the service about a name.
pub(crate) async fn ask(url: &AskUrl, tls: Option<&TlsConnector>, name: &str) -> Verdict {
    match timeout(ASK_LIMIT, exchange(url, tls, name)).await {
        Ok(Ok(StatusCode::OK)) => Verdict::Allowed,
        Ok(Ok(status)) if status.is_server_error() => Verdict::Unanswered(format!("it answers {status}")),
        Ok(Ok(status)) => Verdict::Refused(status.as_u16()),
        Ok(Err(why)) => Verdict::Unanswered(why),
        Err(_) => Verdict::Unanswered(format!("it has not answered within {} s", ASK_LIMIT.as_secs())),
    }
}

async fn exchange(url: &AskUrl, tls: Option<&TlsConnector>, name: &str) -> Result<StatusCode, String> {
    let stream = sealane_requests::open(&url.host, url.port, tls, CONNECT_LIMIT).await?;
    // It ends with the answer.
    let mut connection = Http1::over(stream).await?;
    let path = if url.path.is_empty() { "/" } else { &url.path };
    // A name has no byte that means something in a query.
    let request = Request::builder().uri(format!("{path}?domain={name}"));
    let request = request.header(USER_AGENT, "sealane").header(HOST, url.authority());
    let request = request.body(Full::<Bytes>::default()).map_err(|e| e.to_string())?;
    let response = connection.send(request).await.map_err(|e| sealane_requests::chain(&e))?;
    Ok(response.status())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gate(ask: bool, most: usize, orders: u32) -> (Gate, Instant) {
        let url = AskUrl { tls: false, host: "127.0.0.1".to_owned(), port: 1, path: String::new() };
        let settings = OnDemandSettings {
            names: vec!["**.shop.example".parse().unwrap()],
            ask: Some(url).filter(|_| ask),
            roots: Vec::new(),
            max_certificates: most,
            orders_per_hour: orders,
        };
        let now = Instant::now();
        (Gate::new(settings, now), now)
    }

    fn demand(name: &str, client: impl Into<IpAddr>) -> Demand {
        Demand { name: name.to_owned(), client: client.into() }
    }

    fn v4(n: u32) -> [u8; 4] {
        (0x0a00_0000 + n).to_be_bytes()
    }

    #[test]
    fn a_name_is_asked_for_once_and_the_answer_is_remembered() {
        let (mut gate, now) = gate(true, 100, 3600);
        let name = "a.shop.example";
        assert_eq!(gate.demand(&demand("a.other.example", v4(1)), now, 0, 0), Next::Nothing);
        assert_eq!(gate.demand(&demand(name, v4(1)), now, 0, 0), Next::Ask);
        for n in 0..100 {
            assert_eq!(gate.demand(&demand(name, v4(n)), now, 0, 1), Next::Nothing, "it is being asked");
        }
        assert_eq!(gate.answered(name, &Verdict::Refused(404), now, 0), Next::Nothing);
        let later = now + REMEMBERED - Duration::from_secs(1);
        assert_eq!(gate.demand(&demand(name, v4(2)), later, 0, 0), Next::Nothing);
        let later = now + REMEMBERED;
        assert_eq!(gate.demand(&demand(name, v4(2)), later, 0, 0), Next::Ask);
        assert_eq!(gate.answered(name, &Verdict::Unanswered("away".into()), later, 0), Next::Nothing);
        assert_eq!(gate.demand(&demand(name, v4(3)), later, 0, 0), Next::Nothing);
        let later = later + UNANSWERED;
        assert_eq!(gate.demand(&demand(name, v4(3)), later, 0, 0), Next::Ask);
        assert_eq!(gate.answered(name, &Verdict::Allowed, later, 0), Next::Order);
        assert_eq!(gate.demand(&demand(name, v4(4)), later, 1, 0), Next::Nothing, "it is ordered");
        let DemandCounts { ordered, refused, unanswered, remembered, limited, .. } = gate.counts;
        assert_eq!((ordered, refused, unanswered, remembered, limited), (1, 1, 1, 103, 0));
    }

    #[test]
    fn failures_are_remembered_and_each_for_longer() {
        let (mut gate, mut now) = gate(false, 100, 3600);
        let name = "a.shop.example";
        let mut waits = Vec::new();
        for _ in 0..10 {
            assert_eq!(gate.demand(&demand(name, v4(1)), now, 0, 0), Next::Order);
            let wait = gate.wait_after_failure(name);
            gate.failed(name, now);
            let until = gate.decisions[name].until;
            assert_eq!(until - now, wait);
            waits.push((until - now).as_secs());
            assert_eq!(gate.demand(&demand(name, v4(1)), until - Duration::from_millis(1), 0, 0), Next::Nothing);
            now = until;
        }
        assert_eq!(waits[..3], [600, 1200, 2400]);
        assert_eq!(waits[9], 86_400);
    }

    /// A stranger sends a million names: from one address, from a network of IPv6, and from as many addresses.
    #[test]
    fn a_million_names_are_few_questions_and_little_memory() {
        let clients: [fn(u32) -> IpAddr; 3] = [
            |_| v4(1).into(),
            |n| Ipv6Addr::new(0x2001, 0xdb8, 0, 7, 0, 0, (n >> 16) as u16, n as u16).into(),
            |n| v4(n).into(),
        ];
        for (client, most) in clients.into_iter().zip([BURST + 16, BURST + 16, ALL_BURST + 1000]) {
            let (mut gate, start) = gate(true, 100_000, 3600);
            let mut asked = 0;
            for n in 0..1_000_000_u32 {
                // A thousand in each second.
                let now = start + Duration::from_millis(u64::from(n));
                let name = format!("n{n}.shop.example");
                if gate.demand(&demand(&name, client(n)), now, 0, 0) == Next::Ask {
                    asked += 1;
                    gate.answered(&name, &Verdict::Refused(404), now, 0);
                }
            }
            assert!((BURST..=most + 1).contains(&asked), "{asked} of at most {most}");
            assert!(gate.decisions.len() <= PLACES && gate.addresses.len() <= PLACES);
            assert_eq!(gate.counts.limited + u64::from(asked), 1_000_000);
            // The name of somebody else is looked at a moment later.
            let later = start + Duration::from_secs(1001);
            assert_eq!(gate.demand(&demand("b.shop.example", [192, 0, 2, 1]), later, 0, 0), Next::Ask);
        }
    }

    #[test]
    fn orders_have_a_budget_and_certificates_a_number() {
        let (mut gate, start) = gate(false, 100, 20);
        let orders = |gate: &mut Gate, now: Instant, from: u32| {
            let next = |n: u32| demand(&format!("n{n}.shop.example"), v4(n));
            (from..from + 50).filter(|n| gate.demand(&next(*n), now, 0, 0) == Next::Order).count()
        };
        assert_eq!(orders(&mut gate, start, 0), 4);
        assert_eq!(orders(&mut gate, start + Duration::from_secs(3600), 100), 4);
        // What is allowed is ordered later, without being looked at again.
        let later = start + Duration::from_secs(3600 + 180);
        assert_eq!(gate.demand(&demand("n110.shop.example", v4(1)), later, 0, 0), Next::Order);
        assert_eq!(
            gate.demand(&demand("n111.shop.example", v4(1)), later + Duration::from_secs(180), 100, 0),
            Next::Nothing
        );
        assert_eq!(gate.counts.full, 1);
        assert_eq!(
            gate.demand(&demand("new.shop.example", v4(1)), later + Duration::from_secs(180), 100, 0),
            Next::Nothing
        );
        assert_eq!(gate.counts.full, 2);
    }

    #[test]
    fn only_200_allows_a_name() {
        use tokio::io::{AsyncReadExt, AsyncWriteExt};
        let work = async {
            let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
            let port = listener.local_addr().unwrap().port();
            let url = AskUrl { tls: false, host: "127.0.0.1".to_owned(), port, path: "/allowed".to_owned() };
            let (seen, mut heads) = tokio::sync::mpsc::channel(16);
            tokio::spawn(async move {
                for status in ["200 OK", "204 No Content", "302 Found", "404 Not Found", "503 Unavailable", ""] {
                    let (mut socket, _) = listener.accept().await.unwrap();
                    let mut head = vec![0; 1024];
                    let read = socket.read(&mut head).await.unwrap();
                    seen.send(String::from_utf8_lossy(&head[..read]).into_owned()).await.unwrap();
                    let answer =
                        format!("HTTP/1.1 {status}\r\nContent-Length: 0\r\nLocation: http://127.0.0.1:1/\r\n\r\n");
                    socket.write_all(answer.as_bytes()).await.unwrap();
                }
            });
            let mut verdicts = Vec::new();
            for _ in 0..6 {
                verdicts.push(ask(&url, None, "a.shop.example").await);
                let head = heads.recv().await.unwrap();
                assert!(head.starts_with("GET /allowed?domain=a.shop.example HTTP/1.1\r\n"), "{head}");
                assert!(head.to_ascii_lowercase().contains(&format!("host: 127.0.0.1:{port}\r\n")), "{head}");
            }
            assert_eq!(
                verdicts[..4],
                [Verdict::Allowed, Verdict::Refused(204), Verdict::Refused(302), Verdict::Refused(404)]
            );
            assert!(verdicts[4..].iter().all(|v| matches!(v, Verdict::Unanswered(_))), "{verdicts:?}");
            // Nobody is there any more.
            assert!(matches!(ask(&url, None, "a.shop.example").await, Verdict::Unanswered(_)));
        };
        tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(work);
    }
}
