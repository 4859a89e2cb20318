//! The cookies of TCP Fast Open (RFC 7413 §4.1.2) through the rotation of their keys, on a gateway whose minutes pass at
//! once.

use crate::clock::Clock;
use crate::syn_tls::{gateway_by, get, link, options};
use sealane_connect::{Connector, How, Options};
use sealane_interop::site::Site;
use sealane_interop::{eventually, need, skip};
use std::net::IpAddr;

/// The gateway's keys change with every period.
const PERIOD: i64 = 600;

#[test]
fn a_cookie_is_good_for_one_rotation_of_its_key_and_falls_back_after_two() {
    let compiler = need!("cc");
    let link = match link(|_| ()) {
        Ok(link) => link,
        Err(why) => skip!("{why}"),
    };
    let site = Site::new();
    let clock = Clock::new(&site, &compiler);
    let ip = IpAddr::from(link.server().address());
    let (_backend, gateway) =
        gateway_by(&link, &site, ip, clock.program(), &format!("ticket_lifetime = \"{PERIOD}s\""), |s| s.lanes(2));
    let count = |name| link.server().run(|| gateway.metric(name)).expect("a namespace can be entered");
    let older = || count("sealane_syn_older_cookies_total");
    let rotate_to = |n: i64| {
        clock.pass(n * PERIOD);
        let rotations = || count("sealane_key_rotations_total");
        assert!(eventually(|| rotations() == Some(n as f64)), "{:?}", rotations());
    };
    let connector = Connector::new(Options { resumption: false, ..options(&site) }).expect("good options");
    let how = || get(&link, &connector, gateway.address).outcome().how;
    if older().is_none() {
        skip!("this kernel does not count cookies of older keys");
    }
    assert_eq!((how(), how(), older()), (How::NoCookie, How::Embedded, Some(0.0)));
    rotate_to(1);
    assert_eq!((how(), older()), (How::Embedded, Some(1.0)), "the older key is known, and a new cookie comes back");
    assert_eq!((how(), older()), (How::Embedded, Some(1.0)), "the new cookie is the newest key's");
    rotate_to(2);
    rotate_to(3);
    assert_eq!((how(), older()), (How::NotTaken, Some(1.0)), "the key is forgotten, and the client served in sequence");
    assert_eq!((how(), older()), (How::Embedded, Some(1.0)), "with the cookie that came then");
}
