//! What happens on links: sending, arriving, resets, losses.

use super::*;

impl World {
    pub fn new(seed: u64, log: bool) -> Self {
        let log = log.then(Vec::new);
        let mut random = Random(seed);
        let latency = random.pick(&[0, 1, 5, 40]);
        Self {
            now: 1,
            queue: BinaryHeap::new(),
            count: 0,
            random,
            links: Vec::new(),
            windows: Vec::new(),
            log,
            latency,
            record: Record::default(),
        }
    }

    pub fn say(&mut self, what: impl FnOnce() -> String) {
        if let Some(log) = &mut self.log {
            log.push(format!("{:>7} {}", self.now, what()));
        }
    }

    pub fn at(&mut self, time: Millis, wake: Wake) {
        if time < FOREVER {
            self.count += 1;
            self.queue.push(Reverse((time, self.count, wake)));
        }
    }

    pub fn pop(&mut self) -> Option<Wake> {
        let Reverse((time, _, wake)) = self.queue.pop()?;
        self.now = self.now.max(time);
        Some(wake)
    }

    pub fn open(&mut self, version: u8, front: bool, group: usize) -> usize {
        let window = (version > 1).then(|| self.window_of(front, group));
        let random = &mut self.random;
        let mut pipe = || Pipe {
            flight: VecDeque::new(),
            arrived: VecDeque::new(),
            used: 0,
            capacity: random.pick(&[1500, 8_000, 65_536, 65_536]),
            last: 0,
            starved: false,
            held_since: None,
            ended: false,
            reset: false,
            stopped: false,
        };
        let pipes = [pipe(), pipe()];
        self.links.push(Link { version, front, group, window, pipes, dead: false, slow: Vec::new(), faulty: false });
        self.links.len() - 1
    }

    /// The windows of the connection that a stream belongs to.
    fn window_of(&mut self, front: bool, group: usize) -> usize {
        let sibling = self.links.iter().find(|l| l.front == front && l.group == group && l.window.is_some());
        if let Some(window) = sibling.and_then(|l| l.window) {
            return window;
        }
        let random = &mut self.random;
        let mut window = || {
            let capacity = random.pick(&[3_000, 65_535, 131_072]);
            Window { used: 0, capacity, waiting: Vec::new() }
        };
        self.windows.push([window(), window()]);
        self.windows.len() - 1
    }

    pub fn pipe(&mut self, link: usize, way: Way) -> &mut Pipe {
        &mut self.links[link].pipes[way as usize]
    }

    /// How many bytes the sender may send now. Where it is 0 the sender hears of it when that changes.
    pub fn room(&mut self, link: usize, way: Way) -> usize {
        let pipe = self.pipe(link, way);
        if pipe.stopped {
            return usize::MAX;
        }
        let room = pipe.capacity.saturating_sub(pipe.used);
        pipe.starved |= room == 0;
        if room == 0 {
            return 0;
        }
        let now = self.now;
        let Link { pipes, window, .. } = &mut self.links[link];
        let Some(window) = window.map(|window| &mut self.windows[window][way as usize]) else { return room };
        let of_connection = window.capacity.saturating_sub(window.used);
        let pipe = &mut pipes[way as usize];
        if of_connection == 0 && pipe.held_since.is_none() {
            pipe.held_since = Some(now);
            window.waiting.push(link);
        }
        room.min(of_connection)
    }

    /// Bytes of a pipe have been taken, or will never be: the windows are opened again.
    fn give_back(&mut self, link: usize, way: Way, bytes: usize) {
        let pipe = self.pipe(link, way);
        pipe.used -= bytes;
        let Some(window) = self.links[link].window.filter(|_| bytes > 0) else { return };
        let window = &mut self.windows[window][way as usize];
        window.used -= bytes;
        for waiting in std::mem::take(&mut window.waiting) {
            let since = self.pipe(waiting, way).held_since.take().expect("a sender that waits");
            if self.now - since >= HELD {
                // Another stream has filled the window: this one's peer cannot help it, and is not blamed for nothing.
                self.slow(waiting, since, self.now);
            }
            let time = self.now + self.random.within(0, self.latency);
            self.at(time, Wake::Room(waiting, way));
        }
    }

    /// The sender sends something.
    pub fn send(&mut self, link: usize, way: Way, item: Item) {
        let pipe = self.pipe(link, way);
        let last_word = matches!(item, Item::Stop | Item::Reset(_));
        assert!(!pipe.reset || last_word, "link {link} {way:?}: {item:?} after its reset");
        assert!(!pipe.ended || last_word, "link {link} {way:?}: {item:?} after its end");
        pipe.ended |= matches!(item, Item::End | Item::Trailers(_));
        if pipe.stopped && !last_word {
            return;
        }
        let Item::Bytes(bytes) = item else { return self.push(link, way, item) };
        let mut rest = &bytes[..];
        while !rest.is_empty() {
            let most = self.random.pick(&[1, 100, 1460, 16_384, 16_384, 65_536, 65_536, 65_536]);
            let (segment, more) = rest.split_at(rest.len().min(most));
            rest = more;
            self.pipe(link, way).used += segment.len();
            if let Some(window) = self.links[link].window {
                self.windows[window][way as usize].used += segment.len();
            }
            self.push(link, way, Item::Bytes(segment.to_vec()));
        }
    }

    fn push(&mut self, link: usize, way: Way, item: Item) {
        let mut delay = self.random.within(0, self.latency);
        if self.random.one_in(200) {
            // A packet is lost and sent again.
            delay += self.random.within(1, 150);
        }
        let now = self.now;
        let Link { pipes, dead, .. } = &mut self.links[link];
        let pipe = &mut pipes[way as usize];
        let time = pipe.last.max(now + delay);
        pipe.last = time;
        pipe.flight.push_back((time, item));
        if !*dead {
            self.at(time, Wake::Arrived(link, way));
        }
    }

    /// Moves what has come to where the receiver can take it.
    pub fn arrive(&mut self, link: usize, way: Way) {
        let now = self.now;
        let Link { pipes, dead, .. } = &mut self.links[link];
        let pipe = &mut pipes[way as usize];
        while !*dead && pipe.flight.front().is_some_and(|(time, _)| *time <= now) {
            let Some((_, item)) = pipe.flight.pop_front() else { return };
            if !pipe.stopped || matches!(item, Item::Stop | Item::Reset(_)) {
                pipe.arrived.push_back(item);
            }
        }
    }

    /// The receiver takes the next item, of bytes at most `most`.
    pub fn take(&mut self, link: usize, way: Way, most: usize) -> Option<Item> {
        let pipe = self.pipe(link, way);
        let item = match pipe.arrived.front_mut()? {
            Item::Bytes(_) if most == 0 => return None,
            Item::Bytes(bytes) if bytes.len() > most => {
                let rest = bytes.split_off(most);
                Item::Bytes(std::mem::replace(bytes, rest))
            }
            _ => pipe.arrived.pop_front()?,
        };
        if let Item::Bytes(bytes) = &item {
            let starved = std::mem::take(&mut pipe.starved);
            self.give_back(link, way, bytes.len());
            if starved {
                let time = self.now + self.random.within(0, self.latency);
                self.at(time, Wake::Room(link, way));
            }
        }
        Some(item)
    }

    /// What the receiver would take next.
    pub fn peek(&mut self, link: usize, way: Way) -> Option<&Item> {
        self.pipe(link, way).arrived.front()
    }

    /// Whether the sender's reset, or its wish that the receiver stop, has come, whatever waits before it.
    pub fn has_reset(&mut self, link: usize, way: Way) -> bool {
        self.pipe(link, way).arrived.iter().any(|item| matches!(item, Item::Reset(_) | Item::Stop))
    }

    /// The sender resets its direction; of HTTP/1.1 and HTTP/2 the other one is over, too.
    pub fn reset(&mut self, link: usize, way: Way, code: Code) {
        if self.pipe(link, way).reset {
            return;
        }
        self.say(|| format!("link {link} {way:?}: reset, {code:?}"));
        let version = self.links[link].version;
        if version != 2 && self.random.one_in(2) {
            // What was under way is lost.
            let pipe = self.pipe(link, way);
            pipe.starved = false;
            pipe.flight.clear();
            pipe.arrived.clear();
            let used = pipe.used;
            self.give_back(link, way, used);
        }
        self.send(link, way, Item::Reset(code));
        self.pipe(link, way).reset = true;
        if version != 3 {
            self.close(link, way.other());
        }
    }

    /// The receiver takes no more.
    pub fn close(&mut self, link: usize, way: Way) {
        let pipe = self.pipe(link, way);
        pipe.stopped = true;
        let starved = std::mem::take(&mut pipe.starved);
        pipe.flight.retain(|(_, item)| matches!(item, Item::Stop | Item::Reset(_)));
        pipe.arrived.clear();
        let used = pipe.used;
        self.give_back(link, way, used);
        if starved {
            self.at(self.now, Wake::Room(link, way));
        }
    }

    /// The receiver says that it wants no more (HTTP/3).
    pub fn stop(&mut self, link: usize, way: Way) {
        if !self.pipe(link, way).stopped {
            self.close(link, way);
            self.send(link, way.other(), Item::Stop);
        }
    }

    /// The connection is lost: both ends see it as reset.
    pub fn lose(&mut self, link: usize) {
        let (group, front) = (self.links[link].group, self.links[link].front);
        for other in 0..self.links.len() {
            let l = &mut self.links[other];
            if other != link && (l.front != front || l.group != group || l.version == 1) {
                continue;
            }
            l.faulty = true;
            for way in [Way::Up, Way::Down] {
                let pipe = self.pipe(other, way);
                let arrived = pipe.arrived.iter().map(|item| if let Item::Bytes(b) = item { b.len() } else { 0 });
                let lost = pipe.used - arrived.sum::<usize>();
                pipe.flight.clear();
                pipe.stopped = true;
                self.give_back(other, way, lost);
                self.push(other, way, Item::Reset(Code::Lost));
            }
        }
    }

    /// Nothing passes any more, and nobody is told.
    pub fn kill(&mut self, link: usize) {
        self.links[link].dead = true;
        let now = self.now;
        self.slow(link, now, FOREVER);
    }

    /// The peer on this link is slow.
    pub fn slow(&mut self, link: usize, from: Millis, to: Millis) {
        self.links[link].slow.push((from, to));
    }

    /// For how much of this time the peer was slow.
    pub fn slowness(&self, link: usize, from: Millis, to: Millis) -> Millis {
        let held = self.links[link].pipes.iter().filter_map(|p| p.held_since).filter(|since| self.now - since >= HELD);
        let slow = self.links[link].slow.iter().copied().chain(held.map(|since| (since, FOREVER)));
        let mut spans: Vec<_> = slow.map(|s| (s.0.max(from), s.1.min(to))).collect();
        spans.sort_unstable();
        let (mut sum, mut up_to) = (0, from);
        for (begin, end) in spans {
            let begin = begin.max(up_to);
            sum += end.saturating_sub(begin);
            up_to = up_to.max(end);
        }
        sum
    }
}
