//! Where accounts, certificates, open orders, challenges and the state of attempts are kept: in a folder ([`Folder`]), or in the store
//! that several gateways share, with a copy in the folder (`crate::shared`).
//!
//! Everything has the name of its file in the folder. An order for a name begins with [`Storage::claim`], and what it writes, it writes
//! under the lease that this returns.

use crate::challenges::Challenge;
use crate::folder::Folder;
use crate::shared::{SharedLease, Withdrawal};
use sealane_store::StoreError;
use std::fmt;
use std::future::{Future, ready};
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use zeroize::Zeroizing;

/// A future that a storage returns.
pub(crate) type Pending<'a, T> = Pin<Box<dyn Future<Output = Result<T, StorageError>> + Send + 'a>>;

/// Why something was not read or written.
#[derive(Debug)]
pub(crate) enum StorageError {
    /// The folder.
    Io(io::Error),
    /// The store could not be asked.
    Store(String),
    /// Another gateway orders for this name now, or has got a newer certificate.
    Lost(String),
}

impl fmt::Display for StorageError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Io(e) => e.fmt(f),
            Self::Store(why) => write!(f, "the store: {why}"),
            Self::Lost(why) => f.write_str(why),
        }
    }
}

impl From<io::Error> for StorageError {
    fn from(e: io::Error) -> Self {
        Self::Io(e)
    }
}

impl From<StoreError> for StorageError {
    fn from(e: StoreError) -> Self {
        Self::Store(e.to_string())
    }
}

/// What is kept in a file.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Kept {
    /// Of a certificate: a later one of the same name has a larger number. Else 0.
    pub version: u64,
    /// Of a certificate: the directory of the authority that has issued it. Else empty.
    pub directory: String,
    /// The content.
    pub bytes: Zeroizing<Vec<u8>>,
}

impl fmt::Debug for Kept {
    /// Without the content, in which keys are.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Kept").field("version", &self.version).finish_non_exhaustive()
    }
}

impl Kept {
    /// A file that is no certificate.
    pub fn plain(bytes: Vec<u8>) -> Self {
        Self { version: 0, directory: String::new(), bytes: Zeroizing::new(bytes) }
    }
}

/// The right to order for a name, until it is dropped.
#[derive(Clone, Debug)]
pub(crate) enum Lease {
    /// The folder's lock is enough, or nothing is written to the store.
    Local,
    /// From the store.
    Shared(Arc<SharedLease>),
}

impl Lease {
    /// Waits until another gateway may order for the name. Cancel safe.
    pub async fn lost(&self) {
        match self {
            Self::Local => std::future::pending().await,
            Self::Shared(lease) => lease.lost().await,
        }
    }
}

/// What came of the attempt to get the right to order for a name.
#[derive(Debug)]
pub(crate) enum Claim {
    /// This gateway may.
    Ours(Box<Ours>),
    /// Another one does.
    Others {
        /// Which one, for people.
        holder: String,
    },
}

/// The right to order for a name, and what other gateways have left.
#[derive(Debug)]
pub(crate) struct Ours {
    pub lease: Lease,
    /// The certificate that the store has.
    pub certificate: Option<Kept>,
    /// The state of attempts for the name.
    pub state: Option<Vec<u8>>,
    /// When the authorities may be asked again.
    pub waits: Option<Vec<u8>>,
}

impl Ours {
    fn alone() -> Self {
        Self { lease: Lease::Local, certificate: None, state: None, waits: None }
    }
}

/// A challenge that other gateways answer, too, as long as this exists.
pub(crate) type Published = Option<Withdrawal>;

/// Where everything is kept.
pub(crate) trait Storage: fmt::Debug + Send + Sync {
    /// The folder of this process: with all, or with a copy of all.
    fn folder(&self) -> &Folder;

    /// Whether other gateways order for the same names, so that the right to order is asked for.
    fn is_shared(&self) -> bool;

    /// Asks for the right to order for a name.
    fn claim<'a>(&'a self, name: &'a str) -> Pending<'a, Claim>;

    /// The content of a file: that of all gateways, or the copy in the folder if the store cannot be asked. Fails for an account without a
    /// copy then.
    fn read<'a>(&'a self, file: &'a str) -> Pending<'a, Option<Vec<u8>>>;

    /// Puts a file in the place of the one that is there. Fails where another gateway has got the right to do so.
    fn write<'a>(&'a self, file: &'a str, kept: Kept, lease: &'a Lease) -> Pending<'a, ()>;

    /// Removes a file. What belongs to all gateways is removed only under a lease.
    fn remove<'a>(&'a self, file: &'a str, lease: &'a Lease) -> Pending<'a, ()>;

    /// Lets the other gateways answer a challenge, and waits until they do.
    fn publish<'a>(&'a self, challenge: &'a Challenge) -> Pending<'a, Published>;
}

/// The folder alone: its lock is what [`Storage::claim`] would ask for.
impl Storage for Folder {
    fn folder(&self) -> &Folder {
        self
    }

    fn is_shared(&self) -> bool {
        false
    }

    fn claim<'a>(&'a self, _: &'a str) -> Pending<'a, Claim> {
        Box::pin(ready(Ok(Claim::Ours(Box::new(Ours::alone())))))
    }

    fn read<'a>(&'a self, file: &'a str) -> Pending<'a, Option<Vec<u8>>> {
        Box::pin(async move { Ok(Folder::read(self, file).await?) })
    }

    fn write<'a>(&'a self, file: &'a str, kept: Kept, _: &'a Lease) -> Pending<'a, ()> {
        Box::pin(async move { Ok(Folder::write(self, file, kept.bytes.to_vec()).await?) })
    }

    fn remove<'a>(&'a self, file: &'a str, _: &'a Lease) -> Pending<'a, ()> {
        Box::pin(async move { Ok(Folder::remove(self, file).await?) })
    }

    fn publish<'a>(&'a self, _: &'a Challenge) -> Pending<'a, Published> {
        Box::pin(ready(Ok(None)))
    }
}

#[cfg(test)]
mod tests;
