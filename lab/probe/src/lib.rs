//! The probe of `sealane-lab`: where the time of one HTTPS request goes, which of several ways to make it is faster
//! and how sure that is, what a server negotiates and accepts, and what ought to be tightened.
//!
//! The way of the data: a [`target`] and [`variant`]s come from the command line; [`run`] lets the variants take
//! turns, each turn an [`attempt`] over a blocking socket ([`net`], [`tls`], [`h1`], [`h2`]; [`quic`] for HTTP/3), with the
//! protocols of `sealane_lab_wire`;
//! the [`timing`]s go to [`comparison`] and its [`stats`]. [`curl`] feeds the same statistics from rows that were
//! measured elsewhere. [`inspect`], [`scan`] and [`ech`] look at what the server offers, [`advice`] says what to change, and all of
//! it goes into a [`report`], which [`text`] prints.

pub mod advice;
pub mod attempt;
pub mod cert;
pub mod comparison;
pub mod curl;
pub mod der;
pub mod ech;
pub mod error;
pub mod h1;
pub mod h2;
pub mod hello;
pub mod inspect;
pub mod net;
pub mod ocsp;
pub mod quic;
pub mod report;
pub mod run;
pub mod scan;
pub mod stats;
pub mod target;
pub mod text;
pub mod threshold;
pub mod tickets;
pub mod timing;
pub mod tls;
pub mod trust;
pub mod variant;
