//! Errors of QUIC itself, after the list of h3spec: a client that breaks a rule of RFC 9000 or RFC 9001 gets the error that the RFC names,
//! and others are served. The client is aioquic, some of whose bytes are others than its own. `h3_hostile` has those of HTTP/3 and QPACK.
//!
//! Of h3spec's list, these are missing: a packet without frames, which aioquic cannot make, and what needs 0-RTT.

use sealane_interop::backend::Backend;
use sealane_interop::gateway::before;
use sealane_interop::peers::{Said, python};
use sealane_interop::process::run;
use sealane_interop::site::Site;
use sealane_interop::skip;
use std::collections::BTreeMap;
use std::process::Command;

/// Plays one case after the other, each on a connection of its own, and prints its name with the code that the connection is closed with.
const CLIENT: &str = r#"
import socket, sys, time
from aioquic.buffer import Buffer, encode_uint_var as v
from aioquic.quic import packet_builder
from aioquic.quic.configuration import QuicConfiguration
from aioquic.quic.connection import QuicConnection
from aioquic.quic.packet import QuicPacketType
from aioquic.quic.packet_builder import QuicPacketBuilder
from aioquic.tls import Epoch

SERVER = ("127.0.0.1", int(sys.argv[1]))

def parameters(data):
    buf, out = Buffer(data=data), []
    while not buf.eof():
        kind = buf.pull_uint_var()
        out.append((kind, buf.pull_bytes(buf.pull_uint_var())))
    # A client has no such token.
    return [p for p in out if p[0] != 0x02]

def encoded(pairs):
    return b"".join(v(kind) + v(len(value)) + value for kind, value in pairs)

def without(kind):
    return lambda pairs: [p for p in pairs if p[0] != kind]

def with_one(kind, value):
    return lambda pairs: [p for p in pairs if p[0] != kind] + [(kind, value)]

def send(quic, sock, packet_type, epoch, frames):
    builder = QuicPacketBuilder(
        host_cid=quic.host_cid, is_client=True, max_datagram_size=1200, packet_number=quic._packet_number,
        peer_cid=quic._peer_cid.cid, peer_token=b"", quic_logger=None, spin_bit=False, version=quic._version)
    builder.max_flight_bytes = 1200
    builder.start_packet(packet_type, quic._cryptos[epoch])
    for kind, payload in frames:
        builder.start_frame(kind, capacity=len(payload) + 8).push_bytes(payload)
    datagrams, _ = builder.flush()
    quic._packet_number = builder.packet_number
    for datagram in datagrams:
        sock.sendto(datagram, SERVER)

def play(alpn="h3", change=None, handshake=None, frames=None, bits=False):
    config = QuicConfiguration(is_client=True, alpn_protocols=[alpn], server_name="localhost")
    config.load_verify_locations(sys.argv[2])
    quic = QuicConnection(configuration=config)
    if change is not None:
        base = quic._serialize_transport_parameters
        quic._serialize_transport_parameters = lambda: encoded(change(parameters(base())))
    quic.connect(SERVER, now=time.time())
    sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    sock.bind(("127.0.0.1", 0))
    sent, until = False, time.time() + 20
    while time.time() < until:
        if handshake is not None and not sent and quic._cryptos[Epoch.HANDSHAKE].send.is_valid():
            send(quic, sock, QuicPacketType.HANDSHAKE, Epoch.HANDSHAKE, handshake)
            sent = True
        if frames is not None and quic._handshake_confirmed and not sent:
            fixed = packet_builder.PACKET_FIXED_BIT
            if bits:
                packet_builder.PACKET_FIXED_BIT = fixed | 0x18
            send(quic, sock, QuicPacketType.ONE_RTT, Epoch.ONE_RTT, frames)
            packet_builder.PACKET_FIXED_BIT = fixed
            sent = True
        # The handshake must not go on before the packet that breaks it has come.
        if not (handshake is not None and sent):
            for datagram, _ in quic.datagrams_to_send(now=time.time()):
                sock.sendto(datagram, SERVER)
        timer = quic.get_timer()
        wait = 0.2 if timer is None else min(0.2, max(0.001, timer - time.time()))
        sock.settimeout(wait)
        try:
            datagram, _ = sock.recvfrom(65536)
            quic.receive_datagram(datagram, SERVER, now=time.time())
        except socket.timeout:
            if timer is not None and time.time() >= timer:
                quic.handle_timer(now=time.time())
        # The event of the end comes only when the connection has been drained.
        if quic._close_event is not None:
            return quic._close_event.error_code
    return "nothing"

def stream(kind, *numbers, data=b""):
    return (kind, b"".join(v(n) for n in numbers) + data)

LARGE = 2**60 + 1
PREFERRED = bytes(4) + bytes(2) + bytes(16) + bytes(2) + b"\x08" + bytes(8) + bytes(16)

CASES = {
    "parameters: no initial_source_connection_id": dict(change=without(0x0f)),
    "parameters: another initial_source_connection_id": dict(change=with_one(0x0f, b"another!")),
    "parameters: original_destination_connection_id": dict(change=with_one(0x00, b"12345678")),
    "parameters: preferred_address": dict(change=with_one(0x0d, PREFERRED)),
    "parameters: retry_source_connection_id": dict(change=with_one(0x10, b"12345678")),
    "parameters: stateless_reset_token": dict(change=with_one(0x02, bytes(16))),
    "parameters: max_udp_payload_size of 1199": dict(change=with_one(0x03, v(1199))),
    "parameters: ack_delay_exponent of 21": dict(change=with_one(0x0a, v(21))),
    "parameters: max_ack_delay of 2^14": dict(change=with_one(0x0b, v(2**14))),
    "parameters: active_connection_id_limit of 1": dict(change=with_one(0x0e, v(1))),
    "parameters: initial_max_streams_bidi above 2^60": dict(change=with_one(0x08, v(LARGE))),
    "parameters: one twice": dict(change=lambda pairs: pairs + [(0x0b, v(1)), (0x0b, v(1))]),
    "frames: unknown type": dict(frames=[(0x3f, b"")]),
    "frames: STREAM beyond the window": dict(frames=[stream(0x0e, 0, 2**40, 1, data=b"x")]),
    "frames: STREAM of a stream that is not allowed": dict(frames=[stream(0x0a, 4 * 2**20, 1, data=b"x")]),
    "frames: STREAM of a stream that only the server sends on": dict(frames=[stream(0x0a, 3, 1, data=b"x")]),
    "frames: STREAM beyond its end": dict(frames=[stream(0x0f, 0, 0, 1, data=b"\x21"), stream(0x0e, 0, 9, 1, data=b"x")]),
    "frames: RESET_STREAM of a send-only stream": dict(frames=[stream(0x04, 3, 0, 0)]),
    "frames: STOP_SENDING of a stream that does not exist": dict(frames=[stream(0x05, 1, 0)]),
    "frames: STOP_SENDING of a receive-only stream": dict(frames=[stream(0x05, 2, 0)]),
    "frames: MAX_STREAM_DATA of a stream that does not exist": dict(frames=[stream(0x11, 1, 100)]),
    "frames: MAX_STREAM_DATA of a receive-only stream": dict(frames=[stream(0x11, 2, 100)]),
    "frames: STREAM_DATA_BLOCKED of a send-only stream": dict(frames=[stream(0x15, 3, 100)]),
    "frames: MAX_STREAMS above 2^60": dict(frames=[stream(0x12, LARGE)]),
    "frames: STREAMS_BLOCKED above 2^60": dict(frames=[stream(0x16, LARGE)]),
    "frames: NEW_TOKEN": dict(frames=[stream(0x07, 1, data=b"x")]),
    "frames: HANDSHAKE_DONE": dict(frames=[(0x1e, b"")]),
    "frames: NEW_CONNECTION_ID that retires more than there is": dict(
        frames=[stream(0x18, 1, 2, data=b"\x08" + b"12345678" + bytes(16))]),
    "frames: NEW_CONNECTION_ID without a connection ID": dict(frames=[stream(0x18, 1, 0, data=b"\x00" + bytes(16))]),
    "frames: RETIRE_CONNECTION_ID that was never issued": dict(frames=[stream(0x19, 1000)]),
    "frames: ACK of a packet that was never sent": dict(frames=[stream(0x02, 2**20, 0, 0, 0)]),
    "frames: CRYPTO beyond the buffer": dict(frames=[stream(0x06, 2**24, 1, data=b"x")]),
    "packets: reserved bits": dict(frames=[(0x01, b"")], bits=True),
    "packets: PATH_CHALLENGE in a Handshake packet": dict(handshake=[(0x1a, bytes(8))]),
    "packets: STREAM in a Handshake packet": dict(handshake=[stream(0x0a, 0, 1, data=b"x")]),
    "TLS: no protocol in common": dict(alpn="other"),
    "TLS: KeyUpdate": dict(frames=[stream(0x06, 0, 5, data=b"\x18\x00\x00\x01\x00")]),
}

for name, options in CASES.items():
    print(f"{name}\t{play(**options)}", flush=True)
"#;

/// RFC 9000 §20.1.
const FLOW_CONTROL_ERROR: u64 = 0x03;
const STREAM_LIMIT_ERROR: u64 = 0x04;
const STREAM_STATE_ERROR: u64 = 0x05;
const FINAL_SIZE_ERROR: u64 = 0x06;
const FRAME_ENCODING_ERROR: u64 = 0x07;
const TRANSPORT_PARAMETER_ERROR: u64 = 0x08;
const PROTOCOL_VIOLATION: u64 = 0x0a;
const CRYPTO_BUFFER_EXCEEDED: u64 = 0x0d;
/// RFC 9001 §4.8: a TLS alert (RFC 8446 §6).
const UNEXPECTED_MESSAGE: u64 = 0x100 + 10;
const NO_APPLICATION_PROTOCOL: u64 = 0x100 + 120;

/// The error for each case that is not in the table below: by the part of its name before the colon.
const GROUPS: [(&str, u64); 2] = [("parameters", TRANSPORT_PARAMETER_ERROR), ("packets", PROTOCOL_VIOLATION)];

const EXPECTED: &[(&str, u64)] = &[
    ("frames: unknown type", FRAME_ENCODING_ERROR),
    ("frames: STREAM beyond the window", FLOW_CONTROL_ERROR),
    ("frames: STREAM of a stream that is not allowed", STREAM_LIMIT_ERROR),
    ("frames: STREAM of a stream that only the server sends on", STREAM_STATE_ERROR),
    ("frames: STREAM beyond its end", FINAL_SIZE_ERROR),
    ("frames: RESET_STREAM of a send-only stream", STREAM_STATE_ERROR),
    ("frames: STOP_SENDING of a stream that does not exist", STREAM_STATE_ERROR),
    ("frames: STOP_SENDING of a receive-only stream", STREAM_STATE_ERROR),
    ("frames: MAX_STREAM_DATA of a stream that does not exist", STREAM_STATE_ERROR),
    ("frames: MAX_STREAM_DATA of a receive-only stream", STREAM_STATE_ERROR),
    ("frames: STREAM_DATA_BLOCKED of a send-only stream", STREAM_STATE_ERROR),
    ("frames: MAX_STREAMS above 2^60", FRAME_ENCODING_ERROR),
    ("frames: STREAMS_BLOCKED above 2^60", FRAME_ENCODING_ERROR),
    ("frames: NEW_TOKEN", PROTOCOL_VIOLATION),
    ("frames: HANDSHAKE_DONE", PROTOCOL_VIOLATION),
    ("frames: NEW_CONNECTION_ID that retires more than there is", FRAME_ENCODING_ERROR),
    ("frames: NEW_CONNECTION_ID without a connection ID", FRAME_ENCODING_ERROR),
    ("frames: RETIRE_CONNECTION_ID that was never issued", PROTOCOL_VIOLATION),
    ("frames: ACK of a packet that was never sent", PROTOCOL_VIOLATION),
    ("frames: CRYPTO beyond the buffer", CRYPTO_BUFFER_EXCEEDED),
    ("TLS: no protocol in common", NO_APPLICATION_PROTOCOL),
    ("TLS: KeyUpdate", UNEXPECTED_MESSAGE),
];

/// Cases of the script.
const CASES: usize = 37;

fn expected(case: &str) -> Option<u64> {
    let exact = EXPECTED.iter().find(|(name, _)| *name == case).map(|(_, code)| *code);
    let group = || GROUPS.iter().find(|(group, _)| case.split(": ").next() == Some(*group)).map(|(_, code)| *code);
    exact.or_else(group)
}

#[test]
fn a_breach_is_answered_with_the_error_that_the_rfc_names() {
    let python = match python() {
        Ok(python) => python,
        Err(reason) => skip!("no Python with aioquic: {reason}"),
    };
    let site = Site::new();
    let backend = Backend::saying("hello");
    let gateway = before(&site, [backend.url()]).listener("http3 = true").start();
    let mut command = Command::new(python);
    command.arg(site.file("breaches.py", CLIENT)).arg(gateway.address.port().to_string()).arg(gateway.ca());
    let said = Said::from(run(&mut command, b""));
    assert_eq!(said.code, Some(0), "{}", said.all());
    let text = said.text();
    let got: BTreeMap<&str, &str> = text.lines().filter_map(|line| line.split_once('\t')).collect();
    assert_eq!(got.len(), CASES, "{text}");
    let others: Vec<String> = got
        .iter()
        .filter(|(case, code)| expected(case).map(|code| code.to_string()).as_deref() != Some(**code))
        .map(|(case, code)| format!("{case}: {code}, not {:?}", expected(case)))
        .collect();
    assert!(others.is_empty(), "{others:#?}");
    assert_eq!(gateway.get("/after").text(), "hello");
}
