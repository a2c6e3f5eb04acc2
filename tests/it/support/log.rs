//! What a service tells its subscriber.

use std::collections::HashMap;
use std::fmt::{self, Write as _};
use std::panic::Location;
use std::sync::{Arc, Mutex};

use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::subscriber::DefaultGuard;
use tracing::{Event, Subscriber};
use tracing_subscriber::layer::{Context, SubscriberExt as _};
use tracing_subscriber::{Layer, Registry};

/// Everything that is told on this thread, at every level, for as long as this lives.
///
/// For tests on a current-thread runtime, whose service runs on the same thread.
pub(crate) struct Log {
    told: Arc<Mutex<Told>>,
    _guard: DefaultGuard,
}

#[derive(Default)]
struct Told {
    text: String,
    open: HashMap<u64, Fields>,
    closed: Vec<Fields>,
}

/// The fields of one span, in the order in which they were recorded.
pub(crate) type Fields = Vec<(&'static str, String)>;

impl Log {
    pub(crate) fn capture() -> Self {
        super::deaf::be_heard();
        let told = Arc::<Mutex<Told>>::default();
        let subscriber = Registry::default().with(Listener(Arc::clone(&told)));
        Self { told, _guard: tracing::subscriber::set_default(subscriber) }
    }

    /// Spans, fields and events, one a line.
    pub(crate) fn text(&self) -> String {
        self.told.lock().unwrap().text.clone()
    }

    /// The next idempotency span that has closed; waits for it.
    pub(crate) async fn span(&self) -> Fields {
        let mut next = None;
        super::eventually(Location::caller(), async || {
            let mut told = self.told.lock().unwrap();
            if !told.closed.is_empty() {
                next = Some(told.closed.remove(0));
            }
            next.as_ref().map(|_| ()).ok_or_else(|| "no span has closed".to_owned())
        })
        .await;
        next.unwrap()
    }

    /// How many idempotency spans have closed and were not asked for.
    pub(crate) fn spans(&self) -> usize {
        self.told.lock().unwrap().closed.len()
    }
}

struct Listener(Arc<Mutex<Told>>);

impl<S: Subscriber> Layer<S> for Listener {
    fn on_new_span(&self, attributes: &Attributes<'_>, id: &Id, _: Context<'_, S>) {
        let mut fields = Collect::default();
        attributes.record(&mut fields);
        let mut told = self.0.lock().unwrap();
        let name = attributes.metadata().name();
        writeln!(told.text, "span {name} {:?}", fields.0).unwrap();
        if attributes.metadata().target().starts_with("tower_idempotency") {
            told.open.insert(id.into_u64(), fields.0);
        }
    }

    fn on_record(&self, id: &Id, record: &Record<'_>, _: Context<'_, S>) {
        let mut fields = Collect::default();
        record.record(&mut fields);
        let mut told = self.0.lock().unwrap();
        writeln!(told.text, "record {:?}", fields.0).unwrap();
        if let Some(span) = told.open.get_mut(&id.into_u64()) {
            span.extend(fields.0);
        }
    }

    fn on_event(&self, event: &Event<'_>, _: Context<'_, S>) {
        let mut fields = Collect::default();
        event.record(&mut fields);
        let level = event.metadata().level();
        writeln!(self.0.lock().unwrap().text, "{level} {} {:?}", event.metadata().target(), fields.0)
            .unwrap();
    }

    fn on_close(&self, id: Id, _: Context<'_, S>) {
        let mut told = self.0.lock().unwrap();
        if let Some(fields) = told.open.remove(&id.into_u64()) {
            told.closed.push(fields);
        }
    }
}

#[derive(Default)]
struct Collect(Fields);

impl Visit for Collect {
    fn record_str(&mut self, field: &Field, value: &str) {
        self.0.push((field.name(), value.to_owned()));
    }

    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.0.push((field.name(), format!("{value:?}")));
    }
}
