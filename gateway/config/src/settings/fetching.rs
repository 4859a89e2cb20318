//! `[revocation]`.

use super::{File, Output, Time, argument, table};
use std::time::Duration;

/// What `refresh` may be.
const REFRESH: Time = Time(Duration::from_secs(1)..=Duration::from_secs(86_400));

table! {
    /// What the gateway fetches about certificates: OCSP responses for its own certificates (`ocsp_stapling`), and
    /// revocation lists for those of clients and servers (`crl` with a URL). See
    /// [certificates](page:certificates#staple-ocsp-responses).
    revocation "[revocation]", example_is_commented = true;

    /// The folder in which the gateway keeps what it has fetched, so that it is there after a restart. The gateway
    /// creates the folder if it does not exist. The gateway's user, and nobody else, must have write access to the
    /// folder.
    storage: Output = Output, default("/var/lib/sealane/revocation");
    /// How often the gateway fetches revocation lists. A list that expires sooner is fetched after half of the time that
    /// is left.
    refresh: Time = REFRESH, default("1h");
    /// PEM file of the CAs that may have signed the TLS certificates of `https://` servers of revocation lists.
    ca: File = File, described("the system's CAs"), example("certs/internal-ca.pem");
}
