//! The log: what the gateway says on its standard error, for people or for programs.
//!
//! Control and everything above the lanes log through the macros [`error!`], [`warn!`], [`info!`], [`debug!`] and
//! `trace!`, whose events are `tracing`'s. Lanes call none of them: they write fixed-size records, which control
//! formats.
//!
//! ```text
//! info!(…) ──▶ level (one atomic, changeable at run time) ──▶ Logger: repeats are counted ──▶ text or JSON ──▶ stderr,
//!                                                                                           without waiting for a reader
//! ```
//!
//! The macros make the events themselves, by `tracing-core`, because `gateway/proxy` compiles `tracing`'s own macros
//! out of the whole program (`release_max_level_off`): `h2` and `quinn-proto` would otherwise test the level on every
//! frame.

mod format;
mod output;
mod recent;
pub mod records;
mod repeats;

pub use format::{Exported, Time, printable};
use format::{Format, Line};
use output::{LineWriter, Output};
use recent::Recent;
use repeats::{Repeats, Told, Verdict};
pub use sealane_config::{LEVELS, Level, LogSettings};
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU16, AtomicU64, Ordering::Relaxed};
use std::sync::mpsc::SyncSender;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant, SystemTime};
pub use tracing_core::field::{DisplayValue, display};
use tracing_core::span::{Attributes, Id, Record};
use tracing_core::subscriber::Interest;
use tracing_core::{Dispatch, Event, Metadata, Subscriber, dispatcher};

static LEVEL: AtomicU8 = AtomicU8::new(Level::Info as u8);
/// What lanes read: the lowest status of requests that are of interest.
static REPORTED: OnceLock<Arc<AtomicU16>> = OnceLock::new();
/// Exchanges are being recorded.
static RECORDING: AtomicBool = AtomicBool::new(false);
static JSON: AtomicBool = AtomicBool::new(false);
static LOST: AtomicU64 = AtomicU64::new(0);
static EXPORT: Mutex<Option<SyncSender<Exported>>> = Mutex::new(None);
static LOST_EXPORTS: AtomicU64 = AtomicU64::new(0);
static LOGGER: OnceLock<Arc<Logger>> = OnceLock::new();

/// Starts the log, or changes the settings of a log that was started. Before this call nothing is logged.
pub fn start(settings: LogSettings) {
    set_level(settings.level);
    JSON.store(settings.json, Relaxed);
    LOGGER.get_or_init(|| {
        let writer = Mutex::new(LineWriter::new(std::io::stderr()));
        let logger =
            Arc::new(Logger { output: Output::detect(), writer, repeats: Mutex::default(), recent: Mutex::default() });
        // Nobody else sets a subscriber in this program.
        let _ = dispatcher::set_global_default(Dispatch::new(logger.clone()));
        logger
    });
}

/// Whether [`start`] was called: from then on errors belong into the log.
pub fn is_started() -> bool {
    LOGGER.get().is_some()
}

/// The level in force.
pub fn level() -> Level {
    LEVELS.iter().map(|(_, level)| *level).find(|level| *level as u8 == LEVEL.load(Relaxed)).unwrap_or_default()
}

/// Changes the level, from the next event on.
pub fn set_level(level: Level) {
    LEVEL.store(level as u8, Relaxed);
    report();
}

/// Whether lanes are to report all requests, so that they can be recorded.
pub fn set_recording(recording: bool) {
    RECORDING.store(recording, Relaxed);
    report();
}

fn report() {
    reported_from().store(reported(enabled(Level::Debug), RECORDING.load(Relaxed)), Relaxed);
}

/// A recording wants requests, but no lines of the log.
fn reported(is_debug: bool, is_recording: bool) -> u16 {
    match (is_debug, is_recording) {
        (true, _) => 0,
        (false, true) => sealane_proxy::ALL_REQUESTS,
        (false, false) => sealane_proxy::ERRORS,
    }
}

/// Requests with this status or a higher one are reported by lanes. 0: all that went wrong, also with connections, as lines at level
/// debug.
pub fn reported_from() -> Arc<AtomicU16> {
    REPORTED.get_or_init(|| Arc::new(AtomicU16::new(sealane_proxy::ERRORS))).clone()
}

/// Whether events of this level are logged.
pub fn enabled(level: Level) -> bool {
    level as u8 <= LEVEL.load(Relaxed)
}

/// Lines that could not be written: nobody read them, or there was no room.
pub fn lost_lines() -> u64 {
    LOST.load(Relaxed)
}

/// The newest lines of the log, at most 256 KiB.
pub fn recent() -> String {
    LOGGER.get().map(|logger| logger.recent().text()).unwrap_or_default()
}

/// Has each line put into a queue as well, in the place of the queue before; `None`: none. Nobody waits for room in it: lines that do not
/// fit are counted.
pub fn export(queue: Option<SyncSender<Exported>>) {
    *exported() = queue;
}

/// Lines that the queue of [`export`] had no room for.
pub fn lost_exports() -> u64 {
    LOST_EXPORTS.load(Relaxed)
}

fn exported() -> MutexGuard<'static, Option<SyncSender<Exported>>> {
    EXPORT.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Writes how often messages were repeated whose second is over, and how many lines were lost. Called now and then, so that
/// the numbers do not wait for the next message.
pub fn tell_pending() {
    LOGGER.get().iter().for_each(|logger| logger.tell(Instant::now()));
}

/// Writes what is still to be told; for the end of the process.
pub fn finish() {
    // As if every second were over.
    LOGGER.get().iter().for_each(|logger| logger.tell(Instant::now() + Duration::from_secs(60)));
}

/// Takes `tracing`'s events and writes lines.
struct Logger {
    output: Output,
    writer: Mutex<LineWriter>,
    repeats: Mutex<Repeats>,
    recent: Mutex<Recent>,
}

impl Logger {
    fn repeats(&self) -> MutexGuard<'_, Repeats> {
        self.repeats.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn tell(&self, now: Instant) {
        let told = self.repeats().over(now);
        for told in told {
            self.write_repeated(told);
        }
        self.tell_lost(&mut self.writer());
    }

    fn write_repeated(&self, told: Told) {
        let Told { mut line, times } = told;
        line.message = format!("repeated {times} times within 1 s: {}", line.message);
        line.field("repeated", times.into());
        self.write(&line);
    }

    fn writer(&self) -> MutexGuard<'_, LineWriter> {
        self.writer.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn recent(&self) -> MutexGuard<'_, Recent> {
        self.recent.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn rendered(&self, line: &Line) -> String {
        let (format, now) = (if JSON.load(Relaxed) { Format::Json } else { Format::Text }, SystemTime::now());
        // The journal has the time of a line; what is kept must have it, too.
        self.recent().keep(line.render(Output::Plain, format, now));
        line.render(self.output, format, now)
    }

    fn write(&self, line: &Line) {
        if line.is_exported()
            && let Some(queue) = &*exported()
            && queue.try_send(line.exported(SystemTime::now())).is_err()
        {
            LOST_EXPORTS.fetch_add(1, Relaxed);
        }
        let text = self.rendered(line);
        let mut writer = self.writer();
        self.tell_lost(&mut writer);
        if !writer.write(text.as_bytes()) {
            LOST.fetch_add(1, Relaxed);
        }
    }

    /// Writes how many lines were lost, as soon as something can be written again.
    fn tell_lost(&self, writer: &mut LineWriter) {
        let lost = writer.lost();
        if lost == 0 {
            return;
        }
        let mut line = Line::new(
            Level::Warn,
            module_path!(),
            &format!("{lost} lines of the log were lost: they could not be written"),
        );
        line.field("lost", lost.into());
        let told = writer.write(self.rendered(&line).as_bytes());
        // One that is lost itself is not counted.
        writer.lost_is_told(if told { lost } else { 1 });
    }
}

impl Subscriber for Logger {
    fn register_callsite(&self, metadata: &'static Metadata<'static>) -> Interest {
        // Libraries' events are about their insides; lanes' would come from lanes, which do not log here.
        if is_ours(metadata) { Interest::sometimes() } else { Interest::never() }
    }

    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.is_event() && is_ours(metadata) && enabled(level_of(metadata))
    }

    fn event(&self, event: &Event<'_>) {
        let now = Instant::now();
        let (verdict, told) = self.repeats().judge(event.metadata().callsite(), now);
        if let Some(told) = told {
            self.write_repeated(told);
        }
        match verdict {
            Verdict::Write => self.write(&Line::of(event)),
            Verdict::Keep => self.repeats().keep(event.metadata().callsite(), Line::of(event)),
            Verdict::Count => {}
        }
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        // There are no spans here; an id is never 0.
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}
    fn record_follows_from(&self, _: &Id, _: &Id) {}
    fn enter(&self, _: &Id) {}
    fn exit(&self, _: &Id) {}
}

fn level_of(metadata: &Metadata<'_>) -> Level {
    match *metadata.level() {
        tracing_core::Level::ERROR => Level::Error,
        tracing_core::Level::WARN => Level::Warn,
        tracing_core::Level::INFO => Level::Info,
        tracing_core::Level::DEBUG => Level::Debug,
        tracing_core::Level::TRACE => Level::Trace,
    }
}

fn is_ours(metadata: &Metadata<'_>) -> bool {
    metadata.target().starts_with("sealane")
}

/// Logs an event: `event!(INFO, Info, field = value, …; "format", arguments…)`. Values are [`tracing_core::Value`]s;
/// [`display`] makes one of anything that can be displayed.
#[doc(hidden)]
#[macro_export]
macro_rules! log_event {
    ($name:ident, $level:ident, $($field:ident = $value:expr),* ; $($message:tt)+) => {
        if $crate::enabled($crate::Level::$level) {
            static CALLSITE: $crate::macros::DefaultCallsite = $crate::macros::DefaultCallsite::new(&METADATA);
            static METADATA: $crate::macros::Metadata<'static> = $crate::macros::metadata! {
                name: "event",
                target: module_path!(),
                level: $crate::macros::Level::$name,
                fields: &["message", $(stringify!($field)),*],
                callsite: &CALLSITE,
                kind: $crate::macros::Kind::EVENT,
            };
            $crate::macros::Event::dispatch(
                &METADATA,
                &METADATA.fields().value_set_all(&[
                    Some(&format_args!($($message)+) as &dyn $crate::macros::Value),
                    $(Some(&$value as &dyn $crate::macros::Value)),*
                ]),
            );
        }
    };
    ($name:ident, $level:ident, $($message:tt)+) => {
        $crate::log_event!($name, $level, ; $($message)+)
    };
}

/// What [`log_event!`] expands to.
#[doc(hidden)]
pub mod macros {
    pub use tracing_core::callsite::DefaultCallsite;
    pub use tracing_core::field::Value;
    pub use tracing_core::metadata::Kind;
    pub use tracing_core::{Event, Level, Metadata, metadata};
}

/// Logs at level error.
#[doc(hidden)]
#[macro_export]
macro_rules! log_error { ($($all:tt)+) => { $crate::log_event!(ERROR, Error, $($all)+) }; }
/// Logs at level warn.
#[doc(hidden)]
#[macro_export]
macro_rules! log_warn { ($($all:tt)+) => { $crate::log_event!(WARN, Warn, $($all)+) }; }
/// Logs at level info.
#[doc(hidden)]
#[macro_export]
macro_rules! log_info { ($($all:tt)+) => { $crate::log_event!(INFO, Info, $($all)+) }; }
/// Logs at level debug.
#[doc(hidden)]
#[macro_export]
macro_rules! log_debug { ($($all:tt)+) => { $crate::log_event!(DEBUG, Debug, $($all)+) }; }

pub use crate::{log_debug as debug, log_error as error, log_info as info, log_warn as warn};

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_recording_wants_no_lines_of_level_debug() {
        assert_eq!(reported(false, false), sealane_proxy::ERRORS);
        assert_eq!(reported(false, true), sealane_proxy::ALL_REQUESTS);
        assert_eq!((reported(true, false), reported(true, true)), (0, 0));
    }

    #[test]
    fn what_is_not_logged_is_not_even_made() {
        let made = || -> &str { unreachable!("the level is off") };
        assert!(!enabled(Level::Trace));
        crate::log_event!(TRACE, Trace, field = made(); "{}", made());
    }
}
