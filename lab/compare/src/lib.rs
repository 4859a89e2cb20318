//! `sealane-lab compare`: whether a translated configuration behaves as the original does.
//!
//! ```text
//!  original ─▶ `sealane import --parsed` ─▶ tree ─┬─▶ plan: requests, handshakes, with the lines that they test
//!                                                 └─▶ a copy that can run: other paths for logs and files, one process
//!  original ─▶ `sealane import` ─▶ sealane.toml ────▶ a copy that can run
//!                    └─▶ report: the differences that are announced
//!
//!  two networks, each with a program and recording back-ends ─▶ what clients and back-ends saw ─▶ differences ─▶ text, JSON
//! ```
//!
//! Both programs keep the addresses and ports of their configurations: each runs in network namespaces of its own ([`network`]), in
//! which those addresses exist. So absolute redirects, conditions on ports and lists of addresses do what they do in production. Of
//! the configurations only paths of files and the number of processes change (`nginx::runnable`, `haproxy::runnable`,
//! [`translation`]).
//!
//! The gateway is used as any user does: `sealane import` and `sealane serve` are programs here.

mod accept;
mod announce;
mod claims;
pub mod client;
pub mod difference;
mod draft;
pub mod files;
mod haproxy;
mod inner;
pub mod network;
mod nginx;
mod recorder;
pub mod report;
mod run;
mod samples;
mod tls;
pub mod translation;
mod tree;
mod words;

pub use draft::Draft;
pub use report::Report;
pub use run::{Options, compare};
pub use tree::{Node, Place};

/// The program that a configuration is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// NGINX.
    Nginx,
    /// HAProxy.
    Haproxy,
}

impl Kind {
    /// The program's file, and the word behind `sealane import`.
    pub fn program(self) -> &'static str {
        match self {
            Self::Nginx => "nginx",
            Self::Haproxy => "haproxy",
        }
    }

    /// Its name for people.
    pub fn title(self) -> &'static str {
        match self {
            Self::Nginx => "NGINX",
            Self::Haproxy => "HAProxy",
        }
    }
}
