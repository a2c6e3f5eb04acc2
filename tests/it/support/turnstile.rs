//! Where a handler stops until its test lets it go on.

use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::Poll;

use sqlx::{Connection as _, PgConnection};
use tokio::sync::Semaphore;

/// A place that handlers arrive at, and that one of them leaves each time it is opened.
#[derive(Clone)]
pub(crate) struct Turnstile(Arc<(Semaphore, Semaphore)>);

impl Default for Turnstile {
    fn default() -> Self {
        Self(Arc::new((Semaphore::new(0), Semaphore::new(0))))
    }
}

impl Turnstile {
    /// Arrives, and waits until the gate is opened.
    pub(crate) async fn pass(&self) {
        self.0.0.add_permits(1);
        self.0.1.acquire().await.unwrap().forget();
    }

    /// Waits until somebody has arrived who was not waited for before.
    pub(crate) async fn arrival(&self) {
        self.0.0.acquire().await.unwrap().forget();
    }

    /// Lets one pass, now or later.
    pub(crate) fn open(&self) {
        self.0.1.add_permits(1);
    }
}

/// How often a handler ran.
#[derive(Clone, Default)]
pub(crate) struct Runs(Arc<AtomicUsize>);

impl Runs {
    /// Counts a run: 1 for the first.
    pub(crate) fn next(&self) -> usize {
        self.0.fetch_add(1, Ordering::SeqCst) + 1
    }

    pub(crate) fn count(&self) -> usize {
        self.0.load(Ordering::SeqCst)
    }
}

/// Tells that it was dropped: as a future was that held it.
pub(crate) struct OnDrop(Option<tokio::sync::oneshot::Sender<()>>);

impl OnDrop {
    pub(crate) fn new() -> (Self, tokio::sync::oneshot::Receiver<()>) {
        let (sender, receiver) = tokio::sync::oneshot::channel();
        (Self(Some(sender)), receiver)
    }
}

impl Drop for OnDrop {
    fn drop(&mut self) {
        let _ = self.0.take().map(|sender| sender.send(()));
    }
}

/// Polls a future once, and drops it midway.
pub(crate) async fn poll_once(future: impl Future) {
    let mut future = pin!(future);
    std::future::poll_fn(|cx| {
        assert!(future.as_mut().poll(cx).is_pending(), "it was to be dropped midway");
        Poll::Ready(())
    })
    .await;
}

/// Drops a `begin()` after its first poll. A statement that is still running holds its answer back:
/// the server may answer BEGIN before the poll is over.
pub(crate) async fn begin_dropped_midway(connection: &mut PgConnection) {
    poll_once(sqlx::raw_sql("select pg_sleep(0.05)").execute(&mut *connection)).await;
    poll_once(connection.begin()).await;
}
