//! The text of a log.

use std::io::{self, Write};
use std::ops::Deref;
use std::sync::{Arc, Mutex};

use tracing::subscriber::DefaultGuard;
use tracing_subscriber::fmt::MakeWriter;

/// What a subscriber was told, from INFO upwards. Clones share it.
#[derive(Clone, Default)]
pub(crate) struct LogText(Arc<Mutex<Vec<u8>>>);

impl LogText {
    /// For one request.
    pub(crate) fn subscriber(&self) -> impl tracing::Subscriber + Send + Sync + 'static {
        super::deaf::be_heard();
        tracing_subscriber::fmt().with_writer(self.clone()).with_ansi(false).finish()
    }

    pub(crate) fn text(&self) -> String {
        String::from_utf8(self.0.lock().unwrap().clone()).unwrap()
    }

    /// The lines that contain this.
    pub(crate) fn lines_with(&self, needle: &str) -> Vec<String> {
        self.text().lines().filter(|line| line.contains(needle)).map(str::to_owned).collect()
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

impl Write for LogText {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl MakeWriter<'_> for LogText {
    type Writer = Self;

    fn make_writer(&self) -> Self {
        self.clone()
    }
}

/// The log of this thread, from now on. For tests on a current-thread runtime.
pub(crate) struct Logs {
    text: LogText,
    _guard: DefaultGuard,
}

impl Logs {
    pub(crate) fn capture() -> Self {
        let text = LogText::default();
        let _guard = tracing::subscriber::set_default(text.subscriber());
        Self { text, _guard }
    }
}

impl Deref for Logs {
    type Target = LogText;

    fn deref(&self) -> &LogText {
        &self.text
    }
}
