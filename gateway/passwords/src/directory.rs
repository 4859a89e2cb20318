//! What checks passwords elsewhere, such as an LDAP server: the interface of the tunnel to an integration.

use std::fmt::Debug;
use std::pin::Pin;
use std::time::Duration;

/// An answer that is yet to come.
pub type Pending<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// What became of a question about a user.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Found {
    /// The user is there, and so is the password, if there was one. With the user's groups.
    Right(Vec<String>),
    /// There is no such user, or the password is wrong: nobody is told which.
    Wrong,
    /// The password is right, but the user is in none of the groups that may come in.
    NotAllowed,
    /// Nobody can say, and why: for the log.
    Unavailable(String),
    /// Too many others are asked about just now.
    Busy,
}

/// Knows users, their passwords and their groups. It takes upper and lower case of a user's name for the same; callers write it in
/// lower case.
///
/// An answer takes as long as the directory's own time limit, and before that up to `limit`, for others' questions.
pub trait Directory: Debug + Send + Sync {
    /// Checks a password, which is not empty.
    fn check<'a>(&'a self, user: &'a str, password: &'a str, limit: Duration) -> Pending<'a, Found>;

    /// Says whether the user is (still) there, and in which groups.
    fn look_up<'a>(&'a self, user: &'a str, limit: Duration) -> Pending<'a, Found>;
}
