//! Nanoseconds of CPU that the codec takes for typical messages, parsed and written anew.
//!
//! `cargo run --release -p sealane-http --example bench`. Each figure is the median of rounds, in wall-clock time of
//! one thread that does nothing else; run it on a quiet machine.

use sealane_http::h1::{
    BodyDecoder, ConnectionOption, Limits, What, encode_chunk, encode_last_chunk, encode_request, encode_response,
    parse_request, parse_response,
};
use sealane_http::{BodyLength, Known, Method, RequestHead, ResponseHead, Version};
use std::hint::black_box;
use std::time::Instant;

const ROUNDS: usize = 21;
const PER_ROUND: u32 = 50_000;

/// The median time of `work`, in nanoseconds.
fn median(mut work: impl FnMut()) -> f64 {
    let mut rounds: Vec<f64> = (0..ROUNDS)
        .map(|_| {
            let start = Instant::now();
            for _ in 0..PER_ROUND {
                work();
            }
            start.elapsed().as_nanos() as f64 / f64::from(PER_ROUND)
        })
        .collect();
    rounds.sort_by(f64::total_cmp);
    rounds[ROUNDS / 2]
}

fn request(name: &str, text: &str) {
    let limits = Limits::default();
    let mut head = RequestHead::new();
    let mut out = Vec::new();
    let parse = median(|| {
        black_box(parse_request(black_box(text.as_bytes()), &limits, &mut head)).ok();
    });
    let both = median(|| {
        let info = parse_request(black_box(text.as_bytes()), &limits, &mut head).ok().flatten();
        // As a gateway does: say who asked.
        head.fields.set(Known::XForwardedFor, b"192.0.2.17").ok();
        head.fields.set(Known::XForwardedProto, b"https").ok();
        out.clear();
        let body = info.map_or(BodyLength::None, |info| info.body);
        encode_request(&mut out, &head, body, ConnectionOption::KeepAlive);
        black_box(&out);
    });
    println!("{name:<34} {:>5} bytes  parse {parse:>6.0} ns   parse, change, encode {both:>6.0} ns", text.len());
}

fn response(name: &str, text: &str) {
    let limits = Limits::default();
    let mut head = ResponseHead::new();
    let mut out = Vec::new();
    let parse = median(|| {
        black_box(parse_response(black_box(text.as_bytes()), &limits, Method::Get, &mut head)).ok();
    });
    let both = median(|| {
        let info = parse_response(black_box(text.as_bytes()), &limits, Method::Get, &mut head).ok().flatten();
        out.clear();
        let body = info.map_or(BodyLength::None, |info| info.body);
        black_box(encode_response(&mut out, &head, Version::Http11, body, ConnectionOption::KeepAlive));
        black_box(&out);
    });
    println!("{name:<34} {:>5} bytes  parse {parse:>6.0} ns   parse, encode         {both:>6.0} ns", text.len());
}

fn chunked(chunk: usize, count: usize) {
    let mut text = Vec::new();
    for _ in 0..count {
        encode_chunk(&mut text, &vec![b'x'; chunk]);
    }
    encode_last_chunk(&mut text, None);
    let mut decoder = BodyDecoder::new(BodyLength::Chunked, &Limits::default());
    let time = median(|| {
        decoder.reset(BodyLength::Chunked);
        let mut at = 0;
        while let Ok(piece) = decoder.decode(black_box(&text[at..])) {
            at += piece.consumed;
            if !matches!(piece.what, What::Data(_)) {
                break;
            }
        }
        black_box(at);
    });
    println!(
        "{:<34} {:>5} bytes  decode {:>5.1} ns a chunk",
        format!("{count} chunks of {chunk}"),
        text.len(),
        time / count as f64
    );
}

fn main() {
    request("wrk", "GET /index.html HTTP/1.1\r\nHost: localhost:8443\r\n\r\n");
    request(
        "curl",
        "GET /index.html?a=b HTTP/1.1\r\nHost: localhost:8443\r\nUser-Agent: curl/8.5.0\r\nAccept: */*\r\n\r\n",
    );
    request(
        "browser",
        "GET /articles/2025/11/a-longer-path/index.html?utm_source=x HTTP/1.1\r\nHost: www.example.com\r\n\
         Connection: keep-alive\r\nsec-ch-ua: \"Chromium\";v=\"130\", \"Not?A_Brand\";v=\"99\"\r\nsec-ch-ua-mobile: ?0\r\n\
         sec-ch-ua-platform: \"Linux\"\r\nUpgrade-Insecure-Requests: 1\r\nUser-Agent: Mozilla/5.0 (X11; Linux x86_64) \
         AppleWebKit/537.36 (KHTML, like Gecko) Chrome/130.0.0.0 Safari/537.36\r\nAccept: text/html,application/xhtml+xml,\
         application/xml;q=0.9,image/avif,image/webp,*/*;q=0.8\r\nSec-Fetch-Site: none\r\nSec-Fetch-Mode: navigate\r\n\
         Sec-Fetch-User: ?1\r\nSec-Fetch-Dest: document\r\nAccept-Encoding: gzip, deflate, br, zstd\r\n\
         Accept-Language: en-GB,en;q=0.9\r\nCookie: session=0123456789abcdef0123456789abcdef; theme=dark\r\n\r\n",
    );
    response(
        "nginx",
        "HTTP/1.1 200 OK\r\nServer: nginx/1.22.1\r\nDate: Fri, 21 Nov 2025 04:00:00 GMT\r\nContent-Type: text/html\r\n\
         Content-Length: 1024\r\nLast-Modified: Fri, 21 Nov 2025 03:00:00 GMT\r\nConnection: keep-alive\r\n\
         ETag: \"691fd8f0-400\"\r\nAccept-Ranges: bytes\r\n\r\n",
    );
    response("smallest", "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n");
    chunked(1024, 16);
    chunked(16, 64);
}
