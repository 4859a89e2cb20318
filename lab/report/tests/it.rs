//! The report as its readers get it.

#[path = "it/browser.rs"]
mod browser;
#[path = "it/forms.rs"]
mod forms;
#[path = "it/sample.rs"]
mod sample;
