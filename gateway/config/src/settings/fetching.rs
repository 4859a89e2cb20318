//! `[revocation]`.

use super::{File, Output, Time, argument, table};
use std::time::Duration;

/// What `refresh` may be.
const REFRESH: Time = Time(Duration::from_secs(1)..=Duration::from_secs(86_400));

table! {
    /// Settings for the OCSP responses of the gateway's own certificates (`ocsp_stapling`), and for the revocation lists that
    /// the gateway fetches for the certificates of clients and servers (`crl` with a URL). See
    /// [certificates](page:certificates#staple-ocsp-responses).
    revocation "[revocation]", example_is_commented = true;

    /// The folder in which the gateway keeps fetched responses and lists, so that it can use them after a restart.
    /// The gateway creates the folder if it does not exist. The gateway's user, and nobody else, must have write
    /// access to the folder.
    storage: Output = Output, default("/var/lib/sealane/revocation");
    /// How often the gateway fetches revocation lists. If a list expires sooner, the gateway fetches the next list
    /// after half of the remaining time.
    refresh: Time = REFRESH, default("1h");
    /// PEM file of the CAs that may have signed the TLS certificates of `https://` servers of revocation lists.
    ca: File = File, described("the system's CAs"), example("certs/internal-ca.pem");
}
