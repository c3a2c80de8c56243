//! What an action tells the log.

use std::fmt::{Debug, Write as _};
use std::sync::{Arc, LazyLock, Mutex, PoisonError};

use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Dispatch, Event, Level, Metadata, Subscriber};

/// As long as there is only one listener, tracing asks the thread that first comes to a place in the code whether
/// anybody listens, and nobody else ever again. The tests run beside each other, so there always is a second one.
static SECOND: LazyLock<Dispatch> = LazyLock::new(|| Dispatch::new(Listener(Arc::default())));

/// The lines that the log gets from an action, on this thread: level, message and fields.
pub fn told(action: impl FnOnce()) -> Vec<String> {
    LazyLock::force(&SECOND);
    let lines = Arc::new(Mutex::new(Vec::new()));
    tracing::subscriber::with_default(Listener(lines.clone()), action);
    let lines = lines.lock().unwrap_or_else(PoisonError::into_inner);
    lines.clone()
}

struct Listener(Arc<Mutex<Vec<String>>>);

struct Line(String);

impl Visit for Line {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        let _ = match field.name() {
            "message" => write!(self.0, " {value:?}"),
            name => write!(self.0, " {name}={value:?}"),
        };
    }
}

impl Subscriber for Listener {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        *metadata.level() <= Level::INFO
    }
    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }
    fn record(&self, _: &Id, _: &Record<'_>) {}
    fn record_follows_from(&self, _: &Id, _: &Id) {}
    fn event(&self, event: &Event<'_>) {
        let mut line = Line(event.metadata().level().to_string());
        event.record(&mut line);
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push(line.0);
    }
    fn enter(&self, _: &Id) {}
    fn exit(&self, _: &Id) {}
}
