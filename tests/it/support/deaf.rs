//! A subscriber for all threads that have none of their own.

use std::sync::Once;

use tracing::span::{Attributes, Id, Record};
use tracing::subscriber::Interest;
use tracing::{Event, Metadata, Subscriber};

/// Installs it, once. To be called before a test listens on its own thread.
///
/// While there is one subscriber in the process, `tracing` asks the current thread's alone whether
/// a span is of interest to anybody, and remembers the answer. Where a thread has none the answer is
/// "never", and the test that listens on another thread hears nothing.
pub(crate) fn be_heard() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| tracing::subscriber::set_global_default(Deaf).unwrap());
}

/// Hears nothing, and wants to be asked each time.
struct Deaf;

impl Subscriber for Deaf {
    fn register_callsite(&self, _: &'static Metadata<'static>) -> Interest {
        Interest::sometimes()
    }

    fn enabled(&self, _: &Metadata<'_>) -> bool {
        false
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, _: &Event<'_>) {}

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}
