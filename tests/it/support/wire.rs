//! A network between a client and a broker that breaks, or falls silent, when a test says so.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use tokio::io::AsyncReadExt as _;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, watch};
use tokio::task::{JoinHandle, JoinSet};

/// It ends, with its connections, when it is dropped.
pub(crate) struct Wire {
    pub(crate) port: u16,
    cuts: watch::Sender<()>,
    silences: watch::Sender<()>,
    swallowed: Arc<Semaphore>,
    made: Arc<AtomicUsize>,
    task: JoinHandle<()>,
}

impl Wire {
    pub(crate) async fn to(port: u16) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let own = listener.local_addr().unwrap().port();
        let (cuts, silences) = (watch::Sender::new(()), watch::Sender::new(()));
        let (swallowed, made) = (Arc::new(Semaphore::new(0)), Arc::new(AtomicUsize::new(0)));
        let counted = Arc::clone(&made);
        let (told_cuts, told_silences, swallows) = (cuts.clone(), silences.clone(), Arc::clone(&swallowed));
        let task = tokio::spawn(async move {
            let mut connections = JoinSet::new();
            loop {
                let (client, _) = listener.accept().await.unwrap();
                counted.fetch_add(1, Ordering::SeqCst);
                let (cut, silence) = (told_cuts.subscribe(), told_silences.subscribe());
                connections.spawn(carry(client, port, cut, silence, Arc::clone(&swallows)));
            }
        });
        Self { port: own, cuts, silences, swallowed, made, task }
    }

    /// How many connections have been made over it.
    pub(crate) fn made(&self) -> usize {
        self.made.load(Ordering::SeqCst)
    }

    /// All connections that there are break.
    pub(crate) fn cut(&self) {
        self.cuts.send_replace(());
    }

    /// From here on nothing arrives over the connections that there are, in neither direction, and
    /// nobody is told. New ones are well.
    pub(crate) fn falls_silent(&self) {
        self.silences.send_replace(());
    }

    /// Until a client has said something into the silence.
    pub(crate) async fn swallows(&self) {
        self.swallowed.acquire().await.unwrap().forget();
    }
}

impl Drop for Wire {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn carry(
    mut client: TcpStream,
    port: u16,
    mut cut: watch::Receiver<()>,
    mut silence: watch::Receiver<()>,
    swallowed: Arc<Semaphore>,
) {
    let Ok(mut server) = TcpStream::connect(("127.0.0.1", port)).await else { return };
    tokio::select! {
        _ = tokio::io::copy_bidirectional(&mut client, &mut server) => return,
        _ = cut.changed() => return,
        _ = silence.changed() => {}
    }
    let swallow = async {
        let mut bytes = [0; 1024];
        while client.read(&mut bytes).await.is_ok_and(|count| count > 0) {
            swallowed.add_permits(1);
        }
    };
    tokio::select! {
        () = swallow => {}
        _ = cut.changed() => {}
    }
}
