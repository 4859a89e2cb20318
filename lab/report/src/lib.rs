//! The lab's reports: what experiments found, as one HTML file, JSON, CSV and a summary for the terminal.
//!
//! An experiment fills a [`Page`] with [`Part`]s, and a part with [`Figure`]s: a figure is one number with its
//! interval, and the only place where a number lives. Charts and tables are [`View`]s that select figures by their
//! measure, so that the picture, the JSON and the CSV cannot disagree. [`stats`] makes figures out of rounds, [`usl`]
//! fits the Universal Scalability Law, [`finding`] compares a study's claim with figures, [`diff`] compares two reports
//! with the intervals of [`resample`]. The way of the data: experiment → [`Report`] → [`html`], [`csv`], [`text`].

pub mod csv;
pub mod diff;
pub mod finding;
pub mod hours;
pub mod html;
pub mod model;
pub mod number;
pub mod resample;
pub mod stats;
mod style;
mod svg;
pub mod text;
pub mod usl;

pub use finding::{Finding, Outcome};
pub use model::{Axis, Fact, Figure, Machine, Page, Part, Report, Round, Source, Study, Subject, View, Void};
