//! The declaration of every setting: name, type, default, documentation, example, and the names that other servers have
//! for it.
//!
//! ```text
//!            ┌─▶ decode: sections read a setting by its declaration, which has its type and default
//! tables ────┼─▶ reference, JSON Schema, example (`generated`)
//!            └─▶ `sealane config show` (`show`)
//! ```
//!
//! A table is declared with [`table!`], which makes a module with one constant for each setting. A setting that is not
//! declared has no constant, so the code that reads it does not compile; a constant that nothing reads is dead code, which
//! the compiler reports.

mod authority;
mod fetching;
mod fleet;
mod gateway;
mod hosts;
mod kinds;
mod listeners;
mod telemetry;
mod tunnels;
mod upstreams;

pub(super) use authority::{acme, dns_update, external_account, fallback, on_demand};
pub(super) use fetching::revocation;
pub(super) use fleet::store;
pub(super) use gateway::{admin, concurrency_limit, limits, log, metrics, rate_limit, top};
pub(super) use hosts::{
    access, access_of_requests, actions, basic_auth, compression, cors, edits, error_page, forward_auth, host,
    maintenance, messages, mirror, redirect, redirects, respond, route, split, split_group, upstream_uses, uses,
};
pub(super) use kinds::{
    Choice, Count, Described, File, Flag, Kind, Many, ManyOr, One, Output, Own, Shape, Size, Strings, Text, Time,
    Words, range_of_time,
};
pub(super) use listeners::{
    certificate, client_auth, client_authority, listener, listener_tls, protocol, quic, upstream_protocol,
};
pub(super) use telemetry::{otlp, request_id, traces};
pub(super) use tunnels::{client, group, ldap, oidc, tunnel};
pub(super) use upstreams::{health, server, udp, upstream, upstream_tls};

/// A table of the configuration.
#[derive(Clone, Copy)]
pub(crate) struct Table {
    /// As in messages and headings: `[limits]`, `[[listener]]`; empty for the top level.
    pub title: &'static str,
    /// Introduction of the table in the reference: lines of Markdown.
    pub doc: &'static [&'static str],
    /// The table's own settings, in the order of the reference.
    pub settings: &'static [Declared],
    /// Groups of settings that other tables have, too.
    pub includes: &'static [&'static Table],
    /// Names that OpenVPN has and this table does not, with what to do instead.
    pub refused: &'static [(&'static str, &'static str)],
    /// Text of the reference after the table's settings.
    pub notes: &'static str,
    /// Text of the example after the table's settings.
    pub example: &'static str,
    /// The example shows the whole table behind `#`.
    pub example_is_commented: bool,
}

impl Table {
    pub const fn new(title: &'static str, doc: &'static [&'static str]) -> Self {
        Self {
            title,
            doc,
            settings: &[],
            includes: &[],
            refused: &[],
            notes: "",
            example: "",
            example_is_commented: false,
        }
    }

    /// Every setting: the table's own, then those of its groups.
    pub fn all(&self) -> impl Iterator<Item = &'static Declared> + Clone + use<> {
        let own: &'static [Declared] = self.settings;
        let groups: &'static [&'static Table] = self.includes;
        own.iter().chain(groups.iter().flat_map(|group| group.settings.iter()))
    }
}

/// A setting as its table lists it.
#[derive(Clone, Copy)]
pub(crate) struct Declared {
    pub key: &'static str,
    pub about: About,
    pub kind: &'static dyn Described,
}

/// A setting as the code reads it.
pub(crate) struct Setting<K> {
    pub key: &'static str,
    pub about: About,
    pub kind: K,
}

/// What is known of a setting besides its type.
#[derive(Clone, Copy)]
pub(crate) struct About {
    doc: &'static [&'static str],
    pub default: Fallback,
    /// What a message proposes where the setting is missing.
    pub proposal: &'static str,
    /// A value in TOML, for the example.
    pub example: Option<&'static str>,
    /// The example sets it.
    pub example_sets_it: bool,
    /// What other servers call it.
    pub aliases: &'static [&'static str],
    /// The setting without which this one has no effect, and the value that it must have, if it is one.
    pub needs: Option<(&'static str, Option<&'static str>)>,
    pub secret: Secret,
}

/// What a setting is where it is not written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fallback {
    /// It must be written.
    Required,
    /// This value, in TOML.
    Value(&'static str),
    /// Something that is no constant, in words.
    Described(&'static str),
}

/// Which part of a value `sealane config show` masks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Secret {
    Nothing,
    /// Every string in it.
    Values,
    /// The elements of a list after the first: a program's arguments.
    Arguments,
    /// Of a URL or a path what may be a secret: a user with a password, a query, a fragment.
    Url,
}

impl About {
    pub const fn new(doc: &'static [&'static str]) -> Self {
        Self {
            doc,
            default: Fallback::Described("none"),
            proposal: "",
            example: None,
            example_sets_it: false,
            aliases: &[],
            needs: None,
            secret: Secret::Nothing,
        }
    }

    pub const fn default(mut self, value: &'static str) -> Self {
        self.default = Fallback::Value(value);
        self
    }

    pub const fn described(mut self, words: &'static str) -> Self {
        self.default = Fallback::Described(words);
        self
    }

    /// It must be written.
    pub const fn required(mut self, proposal: &'static str) -> Self {
        self.default = Fallback::Required;
        self.proposal = proposal;
        self.example = Some(proposal);
        self
    }

    /// A value that the example shows behind `#`.
    pub const fn example(mut self, value: &'static str) -> Self {
        self.example = Some(value);
        self
    }

    /// A value that the example sets.
    pub const fn sets(mut self, value: &'static str) -> Self {
        self.example = Some(value);
        self.example_sets_it = true;
        self
    }

    pub const fn aliases(mut self, names: &'static [&'static str]) -> Self {
        self.aliases = names;
        self
    }

    /// It has no effect without another setting of its table.
    pub const fn needs(mut self, other: (&'static str, Option<&'static str>)) -> Self {
        self.needs = Some(other);
        self
    }

    pub const fn secret(mut self, secret: Secret) -> Self {
        self.secret = secret;
        self
    }

    /// A value in TOML: the example, else the default.
    pub fn value(&self) -> Option<&'static str> {
        match self.default {
            Fallback::Value(value) => Some(self.example.unwrap_or(value)),
            _ => self.example,
        }
    }

    /// The documentation, in one line.
    pub fn doc(&self) -> String {
        let lines: Vec<&str> = self.doc.iter().map(|line| line.trim()).collect();
        lines.join(" ")
    }
}

/// A value of a declaration in one line: the compiler breaks long ones.
pub(crate) fn one_line(value: &str) -> String {
    value.lines().map(str::trim).collect::<Vec<_>>().join(" ")
}

/// A name without Rust's mark for keywords: `for` is declared as `r#for`.
pub(crate) const fn plain(name: &'static str) -> &'static str {
    match name.as_bytes() {
        [b'r', b'#', ..] => name.split_at(2).1,
        _ => name,
    }
}

/// Declares a table: its documentation, its name as a module, its title, what else there is to say of it, and its settings.
macro_rules! table {
    (
        $(#[doc = $intro:literal])*
        $name:ident $title:literal $(, $field:ident = $value:expr)* ;
        $(
            $(#[doc = $doc:literal])+
            $key:ident : $kind_type:ty = $kind:expr $(, $attribute:ident ( $($argument:tt)* ))* ;
        )*
    ) => {
        #[allow(non_upper_case_globals)]
        pub(crate) mod $name {
            #[allow(unused_imports)]
            use super::*;

            $(
                pub(crate) const $key: $crate::settings::Setting<$kind_type> =
                    $crate::settings::Setting {
                        key: $crate::settings::plain(stringify!($key)),
                        about: $crate::settings::About::new(&[$($doc),+])
                            $(.$attribute(argument!($attribute $($argument)*)))*,
                        kind: $kind,
                    };
            )*

            pub(crate) static TABLE: $crate::settings::Table = $crate::settings::Table {
                settings: &[$(
                    $crate::settings::Declared {
                        key: $crate::settings::plain(stringify!($key)),
                        about: $crate::settings::About::new(&[$($doc),+])
                            $(.$attribute(argument!($attribute $($argument)*)))*,
                        kind: &$kind,
                    },
                )*],
                $($field: $value,)*
                ..$crate::settings::Table::new($title, &[$($intro),*])
            };
        }
    };
}

/// An argument of a setting's attribute: values are TOML, and so kept as text.
macro_rules! argument {
    (default $($value:tt)*) => { stringify!($($value)*) };
    (required $($value:tt)*) => { stringify!($($value)*) };
    (example $($value:tt)*) => { stringify!($($value)*) };
    (sets $($value:tt)*) => { stringify!($($value)*) };
    (described $words:literal) => { $words };
    (aliases $($name:literal),+) => { &[$($name),+] };
    (needs $other:literal) => { ($other, None) };
    (needs $other:literal, $value:literal) => { ($other, Some($value)) };
    (secret $what:ident) => { $crate::settings::Secret::$what };
}

use {argument, table};

#[cfg(test)]
mod tests;
