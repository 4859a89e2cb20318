//! Writes packets to a file that tcpdump and Wireshark read (pcap, link type RAW).

use rustix::time::{ClockId, clock_gettime};
use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::Path;

/// LINKTYPE_RAW: IPv4 or IPv6 without a link header.
const RAW: u32 = 101;

#[derive(Debug)]
pub(crate) struct Pcap {
    file: BufWriter<File>,
    failed: bool,
}

impl Pcap {
    pub fn create(path: &Path) -> io::Result<Self> {
        let mut file = BufWriter::new(File::create(path)?);
        file.write_all(&header())?;
        Ok(Self { file, failed: false })
    }

    /// After an error nothing more is written: the file ends there.
    pub fn write(&mut self, packet: &[u8]) {
        let t = clock_gettime(ClockId::Realtime);
        let fields = [t.tv_sec as u32, t.tv_nsec as u32, packet.len() as u32, packet.len() as u32];
        let head = fields.map(u32::to_ne_bytes).concat();
        self.failed = self.failed || self.file.write_all(&head).and_then(|()| self.file.write_all(packet)).is_err();
    }
}

/// With time in nanoseconds.
fn header() -> Vec<u8> {
    let mut out = 0xa1b2_3c4du32.to_ne_bytes().to_vec();
    out.extend(2u16.to_ne_bytes());
    out.extend(4u16.to_ne_bytes());
    out.extend([0, 0, 65_535, RAW].map(u32::to_ne_bytes).concat());
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_header_has_its_24_bytes() {
        assert_eq!(header().len(), 24);
    }
}
