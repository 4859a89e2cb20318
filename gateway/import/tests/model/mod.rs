//! Random small configurations of NGINX and HAProxy, with a small model of what the original does. The model shares no code with the
//! import. The tests with the programs themselves use it, too.

pub mod haproxy;
pub mod nginx;
mod random;

pub use random::Random;

/// What becomes of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    /// The gateway answers, with a status and a body.
    Status(u16, String),
    Redirect(u16, String),
    /// A server at this address gets it, with this path.
    Server(String, String),
    /// A file, which Sealane does not serve.
    File,
}

/// A request.
#[derive(Clone, Debug)]
pub struct Request {
    pub host: &'static str,
    pub method: &'static str,
    pub path: &'static str,
    /// Values of `X-One` and `X-Two`.
    pub one: Option<&'static str>,
    pub two: Option<&'static str>,
}

/// A configuration with its model.
pub struct Generated {
    pub text: String,
    pub model: Box<dyn Fn(&Request) -> Answer>,
}

const HOSTS: &[&str] = &["a.example", "b.example", "x.a.example", "y.x.a.example", "xa.example", "other.example"];
const PATHS: &[&str] = &[
    "/", "/a", "/a/", "/a/x", "/a/b", "/a/b/", "/a/b/x", "/ab", "/ab/", "/ab/x", "/abx", "/A", "/A/", "/A/b/", "/b",
    "/b/", "/b/a/", "/b/x", "/x", "/x.php", "/a/x.php", "/ax", "/bx/a/", "/x/a/",
];

/// Requests of every kind that the configurations tell apart.
pub fn requests() -> impl Iterator<Item = Request> {
    const METHODS: &[&str] = &["GET", "POST", "PUT"];
    /// Values of the two headers.
    type Headers = (Option<&'static str>, Option<&'static str>);
    const HEADERS: &[Headers] = &[(None, None), (Some("1"), None), (Some("2"), Some("1")), (None, Some("1"))];
    let all = HOSTS.len() * PATHS.len() * METHODS.len() * HEADERS.len();
    (0..all).map(|n| {
        let (n, (one, two)) = (n / HEADERS.len(), HEADERS[n % HEADERS.len()]);
        let (n, method) = (n / METHODS.len(), METHODS[n % METHODS.len()]);
        Request { host: HOSTS[n / PATHS.len()], method, path: PATHS[n % PATHS.len()], one, two }
    })
}
