"""aioquic as an HTTP/3 client of the gateway and as a server behind it, for tests/interop/tests/it/quic_interop.rs.

interop.py client JOB PORT CA: does a job, and prints what it has found out, one fact per line, and "all is well".
interop.py server MODE PORT CERT KEY: serves until it is killed.
"""

import asyncio, hashlib, socket, sys
from aioquic.asyncio import serve
from aioquic.asyncio.client import connect
from aioquic.asyncio.protocol import QuicConnectionProtocol
from aioquic.h3.connection import H3Connection
from aioquic.h3.events import DataReceived, HeadersReceived
from aioquic.quic.configuration import QuicConfiguration
from aioquic.quic.crypto import CryptoPair
from aioquic.quic.packet import QuicProtocolVersion
from aioquic.tls import CipherSuite, Epoch

LARGE, UPLOAD = 600_000, 400_000
UPDATES = {"local_update": 0, "remote_update": 0}


def update_key(self, trigger, original=CryptoPair._update_key):
    UPDATES[trigger] += 1
    original(self, trigger)


CryptoPair._update_key = update_key


def content(length):
    """Bytes that tell their places: numbers of 32 bits, one after the other."""
    return b"".join(n.to_bytes(4, "big") for n in range(length // 4))


def configuration(is_client):
    return QuicConfiguration(is_client=is_client, alpn_protocols=["h3"], server_name="localhost", idle_timeout=90)


def fact(name, value):
    print(f"{name}: {value}", flush=True)


class Client(QuicConnectionProtocol):
    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.h3 = H3Connection(self._quic)
        self.open = {}

    def quic_event_received(self, event):
        for e in self.h3.handle_event(event):
            headers, body, done = self.open[e.stream_id]
            if isinstance(e, HeadersReceived):
                headers.extend(e.headers)
            elif isinstance(e, DataReceived):
                body.extend(e.data)
            if e.stream_ended and not done.done():
                done.set_result((dict(headers), bytes(body)))

    async def request(self, path, body=b""):
        stream = self._quic.get_next_available_stream_id()
        done = asyncio.get_running_loop().create_future()
        self.open[stream] = ([], bytearray(), done)
        fields = [(b":method", b"POST" if body else b"GET"), (b":scheme", b"https"),
                  (b":authority", b"localhost"), (b":path", path)]
        self.h3.send_headers(stream, fields, end_stream=not body)
        if body:
            self.h3.send_data(stream, body, end_stream=True)
        self.transmit()
        headers, body = await asyncio.wait_for(done, 150)
        assert headers[b":status"] == b"200", headers
        return body

    async def get(self):
        assert await self.request(b"/") == b"hello"

    async def large(self):
        body = await self.request(b"/large")
        assert body == content(LARGE), len(body)

    async def transfer(self):
        await self.large()
        upload = content(UPLOAD)
        assert (await self.request(b"/upload", upload)).decode() == hashlib.sha256(upload).hexdigest()


async def client(job, port, ca):
    config, tickets = configuration(True), []
    config.load_verify_locations(ca)

    def connection(**options):
        return connect("127.0.0.1", port, configuration=config, create_protocol=Client,
                       session_ticket_handler=tickets.append, **options)

    if job == "chacha":
        config.cipher_suites = [CipherSuite.CHACHA20_POLY1305_SHA256]
    elif job == "negotiate":
        config.original_version = QuicProtocolVersion.VERSION_2
    if job == "connections":
        for _ in range(10):
            async with connection() as c:
                await c.get()
    elif job in ("resume", "early"):
        async with connection() as c:
            await c.get()
            while not tickets:
                await asyncio.sleep(0.01)
        config.session_ticket = tickets[0]
        async with connection(wait_connected=job == "resume") as c:
            # Without waiting, the first flight has the request.
            await c.get()
            await c.ping()
            fact("resumed", c._quic.tls.session_resumed)
            fact("early", c._quic.tls.early_data_accepted)
    else:
        async with connection() as c:
            if job in ("get", "chacha", "negotiate"):
                await c.get()
            elif job == "transfer":
                await c.transfer()
            elif job == "many":
                await asyncio.gather(*[c.get() for _ in range(200)])
            elif job == "keys":
                for _ in range(3):
                    await c.get()
                    c._quic.request_key_update()
                    await c.large()
            elif job == "migrate":
                await c.get()
                old = c._transport
                there = socket.socket(socket.AF_INET6, socket.SOCK_DGRAM)
                there.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
                there.bind(("::", 0))
                loop = asyncio.get_running_loop()
                await loop.create_datagram_endpoint(lambda: c, sock=there)
                while not c._quic._peer_cid_available:
                    await asyncio.sleep(0.01)
                    await c.ping()
                c.change_connection_id()
                await c.transfer()
                fact("moved", c._transport is not old)
            else:
                raise SystemExit(f"there is no job {job}")
            fact("cipher", c._quic.tls.key_schedule.cipher_suite.name)
            fact("version", c._quic._version)
            fact("updates", UPDATES["local_update"])
            fact("in phase", c._quic._cryptos[Epoch.ONE_RTT].recv.key_phase == sum(UPDATES.values()) % 2)
    print("all is well", flush=True)


class Server(QuicConnectionProtocol):
    mode = ""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.h3 = H3Connection(self._quic)
        self.open = {}

    def quic_event_received(self, event):
        for e in self.h3.handle_event(event):
            path, body = self.open.setdefault(e.stream_id, [b"", bytearray()])
            if isinstance(e, HeadersReceived):
                self.open[e.stream_id][0] = path or dict(e.headers)[b":path"]
            elif isinstance(e, DataReceived):
                body.extend(e.data)
            if e.stream_ended:
                path, body = self.open.pop(e.stream_id)
                answer = {b"/large": lambda: content(LARGE),
                          b"/upload": lambda: hashlib.sha256(body).hexdigest().encode()}.get(path, lambda: b"hello")()
                cipher = self._quic.tls.key_schedule.cipher_suite.name.encode()
                self.h3.send_headers(e.stream_id, [(b":status", b"200"), (b"x-over", b"h3"), (b"x-cipher", cipher),
                                                   (b"x-resumed", str(self._quic.tls.session_resumed).encode())])
                self.h3.send_data(e.stream_id, answer, end_stream=True)
                if self.mode == "keys":
                    self._quic.request_key_update()
        self.transmit()


async def server(mode, port, cert, key):
    config, tickets = configuration(False), {}
    config.load_cert_chain(cert, key)
    if mode == "chacha":
        config.cipher_suites = [CipherSuite.CHACHA20_POLY1305_SHA256]
    elif mode == "version2":
        config.supported_versions = [QuicProtocolVersion.VERSION_2]
    Server.mode = mode
    await serve("127.0.0.1", port, configuration=config, create_protocol=Server, retry=mode == "retry",
                session_ticket_fetcher=tickets.get,
                session_ticket_handler=lambda ticket: tickets.__setitem__(ticket.ticket, ticket))
    print("ready", flush=True)
    await asyncio.Future()


role, *arguments = sys.argv[1:]
arguments[1] = int(arguments[1])
asyncio.run({"client": client, "server": server}[role](*arguments))
