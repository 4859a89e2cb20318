//! What is staged for a side, within bounds.

use super::*;

impl Gateway {
    /// Stages something for a side, and sends what can be sent.
    pub fn stage(&mut self, w: &mut World, link: usize, item: Item) {
        let port = self.port(link);
        if let Item::Bytes(bytes) = &item {
            port.staged_bytes += bytes.len();
        }
        port.staged.push_back(item);
        assert!(port.staged_bytes <= STAGE + 4096, "link {link}: {} bytes are staged", port.staged_bytes);
        self.flush(w, link);
    }

    pub fn flush(&mut self, w: &mut World, link: usize) {
        let port = self.ports[link].as_mut().expect("a port");
        let way = if port.front { Way::Down } else { Way::Up };
        while let Some(item) = port.staged.pop_front() {
            let Item::Bytes(mut bytes) = item else {
                if let Item::Reset(code) = item {
                    w.reset(link, way, code)
                } else {
                    w.send(link, way, item)
                }
                continue;
            };
            let room = w.room(link, way);
            if room < bytes.len() {
                let rest = bytes.split_off(room);
                port.staged.push_front(Item::Bytes(rest));
            }
            port.staged_bytes -= bytes.len();
            if !bytes.is_empty() {
                w.send(link, way, Item::Bytes(bytes));
            }
            if !port.staged.is_empty() && w.room(link, way) == 0 {
                break;
            }
        }
        if port.staged_bytes >= STAGE / 2 {
            return;
        }
        // Who waited for room goes on.
        let (front, drained) = (port.front, port.staged.is_empty());
        match port.exchange {
            Some(x) if front && self.xs[x].down.unblock(w.now) => {
                if let Some(back) = self.xs[x].back {
                    w.at(w.now, Wake::Arrived(back, Way::Down));
                }
            }
            Some(x) if !front && self.xs[x].back == Some(link) && self.xs[x].up.unblock(w.now) => {
                w.at(w.now, Wake::Arrived(self.xs[x].front, Way::Up));
            }
            None if front && drained => w.at(w.now, Wake::Arrived(link, Way::Up)),
            _ => {}
        }
    }
}
