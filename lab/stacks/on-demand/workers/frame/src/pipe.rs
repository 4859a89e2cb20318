//! What connects client and server: two buffers in memory, so that nothing but the library is measured.

use std::cell::RefCell;
use std::rc::Rc;

#[derive(Default)]
struct Buffer {
    bytes: Vec<u8>,
    read: usize,
}

/// One end. Both stay in one thread.
pub struct Pipe {
    incoming: Rc<RefCell<Buffer>>,
    outgoing: Rc<RefCell<Buffer>>,
}

/// Two ends, each writing what the other reads.
pub fn pipe() -> (Pipe, Pipe) {
    let buffer = || Rc::new(RefCell::new(Buffer { bytes: Vec::with_capacity(8192), read: 0 }));
    let (a, b) = (buffer(), buffer());
    (Pipe { incoming: a.clone(), outgoing: b.clone() }, Pipe { incoming: b, outgoing: a })
}

impl Pipe {
    /// Copies what is there into `into`; 0 when nothing is.
    pub fn read(&self, into: &mut [u8]) -> usize {
        let mut buffer = self.incoming.borrow_mut();
        let n = (buffer.bytes.len() - buffer.read).min(into.len());
        let from = buffer.read;
        into[..n].copy_from_slice(&buffer.bytes[from..from + n]);
        buffer.read += n;
        if buffer.read == buffer.bytes.len() {
            buffer.bytes.clear();
            buffer.read = 0;
        }
        n
    }

    /// Takes all of `bytes`.
    pub fn write(&self, bytes: &[u8]) {
        self.outgoing.borrow_mut().bytes.extend_from_slice(bytes);
    }

    /// Bytes that wait to be read.
    pub fn pending(&self) -> usize {
        let buffer = self.incoming.borrow();
        buffer.bytes.len() - buffer.read
    }
}

impl std::io::Read for Pipe {
    fn read(&mut self, into: &mut [u8]) -> std::io::Result<usize> {
        match Pipe::read(self, into) {
            0 if !into.is_empty() => Err(std::io::ErrorKind::WouldBlock.into()),
            n => Ok(n),
        }
    }
}

impl std::io::Write for Pipe {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        Pipe::write(self, bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::pipe;

    #[test]
    fn what_one_end_writes_the_other_reads() {
        let (a, b) = pipe();
        a.write(b"abc");
        let mut into = [0; 2];
        assert_eq!((b.pending(), b.read(&mut into), into), (3, 2, *b"ab"));
        assert_eq!((b.read(&mut into), into[0]), (1, b'c'));
        assert_eq!((b.read(&mut into), a.read(&mut into)), (0, 0));
    }
}
