//! What happened, line by line, with the simulated time and the host where it happened.
//!
//! All lines go into one hash, so that two runs of one seed can be held against each other; the last ones are kept
//! for a report of a failure. The lines are what the nodes log themselves, and what the simulation does to them.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::fmt::Write as _;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tracing::field::{Field, Visit};
use tracing::level_filters::LevelFilter;
use tracing::{Event, Level, Metadata, Subscriber};
use tracing_subscriber::layer::{Context, Layer, SubscriberExt};

/// How many lines a report of a failure can show.
const RECENT_MAX: usize = 4000;

/// The lines of one run. Clones are the same.
#[derive(Clone, Default)]
pub(crate) struct Trace {
    shared: Arc<Mutex<Lines>>,
}

#[derive(Default)]
struct Lines {
    now: Duration,
    place: String,
    recent: VecDeque<String>,
    hasher: DefaultHasher,
    is_printed: bool,
    panics: Vec<String>,
}

thread_local! {
    /// The trace of the run that goes on on this thread, for panics.
    static CURRENT: RefCell<Option<Trace>> = const { RefCell::new(None) };
}

impl Trace {
    /// A trace that prints each line as it comes, or not.
    pub(crate) fn new(is_printed: bool) -> Trace {
        let trace = Trace::default();
        trace.lines().is_printed = is_printed;
        trace
    }

    /// Runs something whose log and panics go into this trace.
    pub(crate) fn follow<T>(&self, run: impl FnOnce() -> T) -> T {
        CURRENT.with(|current| *current.borrow_mut() = Some(self.clone()));
        std::panic::set_hook(Box::new(|panic| {
            let told = CURRENT.with(|current| {
                let current = current.borrow();
                let trace = current.as_ref()?;
                let message = panic.to_string().replace('\n', " ");
                trace.line(&format!("PANIC {message}"));
                trace.lines().panics.push(message);
                Some(())
            });
            if told.is_none() {
                eprintln!("{panic}");
            }
        }));
        let subscriber = tracing_subscriber::registry().with(self.clone());
        let result = tracing::subscriber::with_default(subscriber, run);
        CURRENT.with(|current| *current.borrow_mut() = None);
        result
    }

    /// From now on lines are of this time and place.
    pub(crate) fn at(&self, now: Duration, place: &str) {
        let mut lines = self.lines();
        lines.now = now;
        if lines.place != place {
            lines.place.clear();
            lines.place.push_str(place);
        }
    }

    /// Adds a line.
    pub(crate) fn line(&self, text: &str) {
        let mut lines = self.lines();
        let seconds = lines.now.as_secs_f64();
        let line = format!("{seconds:12.3} {:8} {text}", lines.place);
        line.hash(&mut lines.hasher);
        if lines.is_printed {
            println!("{line}");
        }
        if lines.recent.len() == RECENT_MAX {
            lines.recent.pop_front();
        }
        lines.recent.push_back(line);
    }

    /// What all lines come to.
    pub(crate) fn digest(&self) -> u64 {
        self.lines().hasher.finish()
    }

    /// The last lines.
    pub(crate) fn recent(&self, most: usize) -> Vec<String> {
        let lines = self.lines();
        lines.recent.iter().skip(lines.recent.len().saturating_sub(most)).cloned().collect()
    }

    /// What tasks have panicked with.
    pub(crate) fn panics(&self) -> Vec<String> {
        self.lines().panics.clone()
    }

    fn lines(&self) -> MutexGuard<'_, Lines> {
        self.shared.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<S: Subscriber> Layer<S> for Trace {
    fn enabled(&self, metadata: &Metadata<'_>, _: Context<'_, S>) -> bool {
        let most = if metadata.target().starts_with("klamm") { Level::DEBUG } else { Level::ERROR };
        metadata.is_event() && *metadata.level() <= most
    }

    fn max_level_hint(&self) -> Option<LevelFilter> {
        Some(LevelFilter::DEBUG)
    }

    fn on_event(&self, event: &Event<'_>, _: Context<'_, S>) {
        let mut text = Text(format!("{} ", event.metadata().level()));
        event.record(&mut text);
        self.line(&text.0.replace('\n', " "));
    }
}

struct Text(String);

impl Visit for Text {
    fn record_debug(&mut self, field: &Field, value: &dyn std::fmt::Debug) {
        // A String takes everything.
        let _ = match field.name() {
            "message" => write!(self.0, "{value:?}"),
            name => write!(self.0, " {name}={value:?}"),
        };
    }
}
