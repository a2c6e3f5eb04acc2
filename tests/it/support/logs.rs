//! What a test's own thread logs.

use std::io::{self, Write};
use std::sync::{Arc, Mutex};

use tracing::subscriber::DefaultGuard;

/// The log of this thread, from now on. For tests on a current-thread runtime.
pub(crate) struct Logs {
    text: Lines,
    _guard: DefaultGuard,
}

#[derive(Clone, Default)]
struct Lines(Arc<Mutex<Vec<u8>>>);

impl Logs {
    pub(crate) fn capture() -> Self {
        super::deaf::be_heard();
        let text = Lines::default();
        let writer = text.clone();
        let subscriber = tracing_subscriber::fmt()
            .with_max_level(tracing::Level::INFO)
            .with_ansi(false)
            .with_writer(move || writer.clone())
            .finish();
        Self { text, _guard: tracing::subscriber::set_default(subscriber) }
    }

    /// The lines that contain this.
    pub(crate) fn lines_with(&self, needle: &str) -> Vec<String> {
        self.text().lines().filter(|line| line.contains(needle)).map(str::to_owned).collect()
    }

    pub(crate) fn text(&self) -> String {
        String::from_utf8(self.text.0.lock().unwrap().clone()).unwrap()
    }
}

impl Write for Lines {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
