//! What the fuzz targets (`fuzz/`) run of this crate's decoders, which are private. Each function takes any bytes and panics
//! when a promise is broken. Nothing else calls this module.

pub use crate::user::fuzzing::{coalesce, mss, peer, segment};

use crate::fields::{Reader, Writer};
use crate::handed::{read_about, write_about};

/// The state of a plane that another process has left: what is read is written in a form that reads the same.
pub fn handover(data: &[u8]) {
    let Ok(fields) = Reader::new(data) else { return };
    let count = fields.count();
    assert!(6 * count <= data.len());
    let _ = (fields.optional_number(1), fields.optional_ip(2), fields.socket(3, "a socket"));
    peer(data);
    let Ok(about) = read_about(fields) else { return };
    let bytes = write_about(Writer::default(), &about).finish();
    let again = Reader::new(&bytes).and_then(read_about).expect("what is written is read");
    assert_eq!(format!("{again:?}"), format!("{about:?}"));
    assert_eq!(write_about(Writer::default(), &again).finish(), bytes);
}
