//! `[revocation]`.

use super::{Output, argument, table};

table! {
    /// What the gateway fetches about certificates: OCSP responses for its own certificates (`ocsp_stapling`).
    /// See [certificates](page:certificates#staple-ocsp-responses).
    revocation "[revocation]", example_is_commented = true;

    /// The folder in which the gateway keeps what it has fetched, so that it is there after a restart. The gateway
    /// creates the folder if it does not exist. The gateway's user, and nobody else, must have write access to the
    /// folder.
    storage: Output = Output, default("/var/lib/sealane/revocation");
}
