//! What was logged.

use std::sync::{Arc, LazyLock, Mutex};

use tracing_subscriber::fmt::MakeWriter;

/// The text of a log.
#[derive(Clone, Default)]
pub(crate) struct LogText(Arc<Mutex<Vec<u8>>>);

impl std::io::Write for LogText {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().extend(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

impl MakeWriter<'_> for LogText {
    type Writer = Self;

    fn make_writer(&self) -> Self {
        self.clone()
    }
}

impl LogText {
    /// For one thread or one request.
    ///
    /// While there is only one subscriber in a process, tracing asks the default of whichever
    /// thread meets an event first, which may be that of another test. A second one prevents it.
    pub(crate) fn subscriber(&self) -> impl tracing::Subscriber + Send + Sync + 'static {
        static SECOND: LazyLock<tracing::Dispatch> =
            LazyLock::new(|| tracing::Dispatch::new(tracing_subscriber::registry()));
        LazyLock::force(&SECOND);
        tracing_subscriber::fmt().with_writer(self.clone()).with_ansi(false).finish()
    }

    fn text(&self) -> String {
        String::from_utf8(self.0.lock().unwrap().clone()).unwrap()
    }

    #[track_caller]
    pub(crate) fn contain(&self, text: &str) {
        let log = self.text();
        assert!(log.contains(text), "not in the log: {text}; {log}");
    }

    #[track_caller]
    pub(crate) fn do_not_contain(&self, text: &str) {
        let log = self.text();
        assert!(!log.contains(text), "in the log: {text}; {log}");
    }
}
