//! A network between a pool and the server that fails where a test wants it to.

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use axum::body::Bytes;
use devpg::TestDb;
use sqlx::PgPool;
use sqlx::postgres::{PgConnectOptions, PgPoolOptions, PgSslMode};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _, ReadHalf, WriteHalf};
use tokio::net::{TcpStream, UnixListener, UnixStream};
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

/// One message of a client to the server.
pub(crate) struct Message {
    /// The protocol's letter; 0 for the startup message.
    kind: u8,
    body: Bytes,
}

impl Message {
    /// Whether it is a statement without parameters, of this text.
    pub(crate) fn is_query(&self, text: &str) -> bool {
        self.kind == b'Q' && self.body.strip_suffix(b"\0").is_some_and(|body| body == text.as_bytes())
    }

    /// Whether it is a statement that contains this text.
    pub(crate) fn contains(&self, text: &str) -> bool {
        matches!(self.kind, b'Q' | b'P') && self.body.windows(text.len()).any(|part| part == text.as_bytes())
    }

    /// Whether the client waits for an answer after it: a statement of one message, or the end of a
    /// statement in parts.
    pub(crate) fn is_round_trip(&self) -> bool {
        matches!(self.kind, b'Q' | b'S')
    }

    /// Whether it executes a statement that was sent in parts.
    pub(crate) fn is_execute(&self) -> bool {
        self.kind == b'E'
    }
}

/// What becomes of a message, and of its connection.
pub(crate) enum Fate {
    Forward,
    /// The connection breaks before the message reaches the server.
    Lost,
    /// The message reaches the server when this is told; all behind it wait.
    Held(oneshot::Receiver<()>),
    /// The message reaches the server, and is answered; the connection breaks before the answer
    /// reaches the client.
    Unanswered,
    /// The client loses its connection at once; the message reaches the server when this is told.
    Late(oneshot::Receiver<()>),
    /// Nothing goes through any more, and the connection stays: a network that swallows packets.
    Swallowed,
}

/// What becomes of the first statement that reads a record; all other messages pass.
pub(crate) fn first_read(fate: Fate) -> impl Fn(&Message) -> Fate + Send + Sync {
    let fate = Mutex::new(Some(fate));
    move |message| {
        let reads = message.contains("as verdict");
        let first = if reads { fate.lock().unwrap().take() } else { None };
        first.unwrap_or(Fate::Forward)
    }
}

type Decide = dyn Fn(&Message) -> Fate + Send + Sync;

/// Stops when it is dropped.
pub(crate) struct Proxy {
    options: PgConnectOptions,
    dir: PathBuf,
    task: JoinHandle<()>,
}

impl Proxy {
    /// A proxy to this database's server. The function decides about each message of a client.
    pub(crate) fn to(db: &TestDb, decide: impl Fn(&Message) -> Fate + Send + Sync + 'static) -> Self {
        static NEXT: AtomicUsize = AtomicUsize::new(0);
        let upstream = super::through::options(db);
        let port = upstream.get_port();
        let next = NEXT.fetch_add(1, Ordering::Relaxed);
        let dir = std::env::temp_dir().join(format!("idempotency-{}-{next}", std::process::id()));
        std::fs::create_dir(&dir).unwrap();
        // A Unix socket: the options keep their user and password.
        let listener = UnixListener::bind(dir.join(format!(".s.PGSQL.{port}"))).unwrap();
        let options = upstream.clone().socket(&dir).ssl_mode(PgSslMode::Disable);
        let decide: Arc<Decide> = Arc::new(decide);
        let task = tokio::spawn(async move {
            loop {
                let (client, _) = listener.accept().await.unwrap();
                let server = connect(&upstream).await;
                drop(tokio::spawn(relay(client, server, Arc::clone(&decide))));
            }
        });
        Self { options, dir, task }
    }

    /// A pool through the proxy.
    pub(crate) async fn pool(&self, max_connections: u32) -> PgPool {
        self.pool_with(PgPoolOptions::new().max_connections(max_connections)).await
    }

    /// As [`pool`](Self::pool), with these options.
    pub(crate) async fn pool_with(&self, options: PgPoolOptions) -> PgPool {
        options.connect_with(self.options.clone()).await.unwrap()
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.task.abort();
        let _ = std::fs::remove_dir_all(&self.dir);
    }
}

trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}
impl<T: AsyncRead + AsyncWrite + Send + Unpin> Stream for T {}

async fn connect(options: &PgConnectOptions) -> Box<dyn Stream> {
    let (host, port) = (options.get_host(), options.get_port());
    let dir = options.get_socket().cloned().or_else(|| host.starts_with('/').then(|| host.into()));
    match dir {
        Some(dir) => Box::new(UnixStream::connect(dir.join(format!(".s.PGSQL.{port}"))).await.unwrap()),
        None => Box::new(TcpStream::connect((host, port)).await.unwrap()),
    }
}

async fn relay(client: UnixStream, server: Box<dyn Stream>, decide: Arc<Decide>) {
    // No answer reaches the client any more.
    let silent = AtomicBool::new(false);
    let (mut from_client, to_client) = client.into_split();
    let (from_server, mut to_server) = tokio::io::split(server);
    let forth = requests(&mut from_client, &mut to_server, &*decide, &silent);
    let back = answers(from_server, to_client, &silent);
    let late = tokio::select! {
        late = forth => late,
        () = back => None,
    };
    // Here the client's half is gone; the server's lives on while a message is late.
    drop(from_client);
    if let Some((frame, told)) = late {
        let _ = told.await;
        let _ = to_server.write_all(&frame).await;
        let _ = to_server.flush().await;
        // The server closes, or this is the end of it: either way the message was received.
        std::future::pending::<()>().await;
    }
}

type Late = Option<(Vec<u8>, oneshot::Receiver<()>)>;

async fn requests(
    client: &mut (impl AsyncRead + Unpin),
    server: &mut WriteHalf<Box<dyn Stream>>,
    decide: &Decide,
    silent: &AtomicBool,
) -> Late {
    let mut startup = true;
    while let Some((kind, frame)) = frame(client, startup).await {
        startup = false;
        let body = Bytes::copy_from_slice(&frame[if kind == 0 { 4 } else { 5 }..]);
        match decide(&Message { kind, body }) {
            Fate::Forward => server.write_all(&frame).await.ok()?,
            Fate::Held(told) => {
                let _ = told.await;
                server.write_all(&frame).await.ok()?;
            }
            Fate::Lost => return None,
            Fate::Unanswered => {
                silent.store(true, Ordering::SeqCst);
                server.write_all(&frame).await.ok()?;
            }
            Fate::Late(told) => return Some((frame, told)),
            Fate::Swallowed => std::future::pending().await,
        }
    }
    None
}

async fn answers(
    mut server: ReadHalf<Box<dyn Stream>>,
    mut client: impl AsyncWrite + Unpin,
    silent: &AtomicBool,
) {
    while let Some((kind, frame)) = frame(&mut server, false).await {
        if silent.load(Ordering::SeqCst) {
            if kind == READY_FOR_QUERY {
                return;
            }
        } else if client.write_all(&frame).await.is_err() {
            return;
        }
    }
}

/// One message with its head. The first one of a client has no kind.
async fn frame(from: &mut (impl AsyncRead + Unpin), startup: bool) -> Option<(u8, Vec<u8>)> {
    let kind = if startup { 0 } else { from.read_u8().await.ok()? };
    let length = from.read_u32().await.ok()?;
    let mut frame = if startup { Vec::new() } else { vec![kind] };
    frame.extend(length.to_be_bytes());
    let head = frame.len();
    frame.resize(head + usize::try_from(length).ok()? - 4, 0);
    from.read_exact(&mut frame[head..]).await.ok()?;
    Some((kind, frame))
}

const READY_FOR_QUERY: u8 = b'Z';
