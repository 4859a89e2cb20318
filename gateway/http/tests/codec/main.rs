//! The codec from outside: the corpus of ambiguous messages, properties on generated ones, and reuse of memory.

mod corpus;
mod properties;
mod reuse;
mod session;
