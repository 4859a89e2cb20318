//! Lines of what lanes report about single connections and requests.

use super::{debug, display};
use sealane_proxy::unix_clients::ClientAddress;
use sealane_proxy::{Occurrence, Record, RequestError};
use std::sync::mpsc::Receiver;

/// Records of a lane that wait for control; it looks a few times a second.
pub const CAPACITY: usize = 256;

/// Makes lines of what waits, no more than the queue holds, so that a lane that tells much keeps control from nothing. Requests that got
/// 5xx are given to `error`.
pub fn drain(queue: &Receiver<Record>, mut error: impl FnMut(Box<RequestError>)) {
    for record in queue.try_iter().take(CAPACITY) {
        match record.what {
            Occurrence::Error(failed) => error(failed),
            _ => line(&record),
        }
    }
}

/// Logs how many records there was no room for.
pub fn tell_lost(lost: u64) {
    if lost > 0 {
        debug!(lost = lost; "{lost} connections and requests are not in the log: there were too many at once");
    }
}

fn line(record: &Record) {
    let (client, connection) = (display(ClientAddress(record.client)), display(record.connection));
    match &record.what {
        Occurrence::HandshakeFailed(reason) => {
            debug!(connection = connection, client = client; "TLS handshake with a client failed: {reason}");
        }
        Occurrence::Denied => {
            debug!(connection = connection, client = client; "a connection was refused: the address of its client is not allowed");
        }
        Occurrence::Refused(request, status) => {
            debug!(
                connection = connection, request = display(request), client = client, status = u64::from(*status);
                "a request got {status} from the gateway"
            );
        }
        Occurrence::Abandoned(request) => {
            debug!(
                connection = connection, request = display(request), client = client;
                "a client left before it got its response"
            );
        }
        Occurrence::ServerFailed { request, upstream, server, failure, status } => {
            let name = upstream.servers.get(*server).map_or("?", |server| &server.name);
            debug!(
                connection = connection, request = display(request), client = client, status = status.map(u64::from);
                "upstream {}: {name} failed a request: {}", upstream.name, failure.text()
            );
        }
        // The line above has said why.
        Occurrence::Error(_) => {}
    }
}
