//! HTTP as messages: the head model that every version shares, and HTTP/1.1's strict codec. Sans-IO.
pub mod h1;
