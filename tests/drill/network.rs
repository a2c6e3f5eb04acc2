//! The network between a service and its database: it cuts, delays, swallows, and loses exactly the
//! message that it is told to lose.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU16, AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Notify, watch};
use tokio::task::JoinHandle;

use crate::signal;
use crate::wire::{Frame, connection_exception};

#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Weather {
    Clear,
    /// Every connection breaks, and new ones are refused.
    Cut,
    /// Nothing arrives any more, in neither direction, and nobody is told: connections of this
    /// weather stay silent after it, until they are forgotten.
    Hole,
    /// Each message takes its time.
    Slow(Duration),
}

/// What becomes of one message of a client, and of its connection.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Fate {
    Forward,
    /// The connection breaks before the message reaches the server.
    Lost,
    /// The server gets it and answers; the connection breaks before the answer reaches the client.
    Unanswered,
    /// The client gets an error of a proxy in place of the server's answer.
    Denied,
    /// The client loses its connection at once; the message reaches the server later.
    Late(Duration),
    /// The answer takes its time.
    Stalled(Duration),
    /// From here on nothing arrives in either direction, and nobody is told.
    Swallowed,
    /// The server's process for this connection is told to terminate, then gets the message.
    Terminated,
}

type Decide = Box<dyn Fn(&Frame) -> Fate + Send + Sync>;

struct Shared {
    /// The port of the server.
    upstream: AtomicU16,
    weather: watch::Sender<Weather>,
    commits: Mutex<VecDeque<Fate>>,
    /// Ends the silence of all that is silent.
    calm: Notify,
    decide: Decide,
}

/// It ends when it is dropped.
pub(crate) struct Network {
    pub(crate) port: u16,
    shared: Arc<Shared>,
    task: JoinHandle<()>,
}

impl Network {
    pub(crate) async fn to(port: u16) -> Self {
        Self::deciding(port, |_| Fate::Forward).await
    }

    /// The function decides about each message of a client.
    pub(crate) async fn deciding(port: u16, decide: impl Fn(&Frame) -> Fate + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let own = listener.local_addr().unwrap().port();
        let shared = Arc::new(Shared {
            upstream: AtomicU16::new(port),
            weather: watch::Sender::new(Weather::Clear),
            commits: Mutex::default(),
            calm: Notify::new(),
            decide: Box::new(decide),
        });
        let relayed = Arc::clone(&shared);
        let task = tokio::spawn(async move {
            // Those it holds end with it.
            let mut connections = tokio::task::JoinSet::new();
            loop {
                tokio::select! {
                    accepted = listener.accept() => {
                        let Ok((client, _)) = accepted else { continue };
                        connections.spawn(relay(client, Arc::clone(&relayed)));
                    }
                    Some(_) = connections.join_next() => {}
                }
            }
        });
        Self { port: own, shared, task }
    }

    pub(crate) fn turns(&self, weather: Weather) {
        self.shared.weather.send_replace(weather);
    }

    /// Where new connections lead to.
    pub(crate) fn leads_to(&self, port: u16) {
        self.shared.upstream.store(port, Ordering::SeqCst);
    }

    /// What the next COMMIT meets.
    pub(crate) fn next_commit(&self, fate: Fate) {
        self.shared.commits.lock().unwrap().push_back(fate);
    }

    /// COMMITs that were to meet something, and have not come yet, come through; connections on which
    /// nothing arrives any more end.
    pub(crate) fn calms(&self) {
        self.turns(Weather::Clear);
        self.shared.commits.lock().unwrap().clear();
        self.shared.calm.notify_waiters();
    }
}

impl Drop for Network {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Shared {
    fn fate(&self, frame: &Frame) -> Fate {
        if frame.is_commit()
            && let Some(fate) = self.commits.lock().unwrap().pop_front()
        {
            return fate;
        }
        (self.decide)(frame)
    }

    async fn until(&self, weather: Weather) {
        let _ = self.weather.subscribe().wait_for(|now| *now == weather).await;
    }

    async fn is_silent(&self) {
        let _ = tokio::time::timeout(FORGOTTEN, self.calm.notified()).await;
    }

    async fn delay(&self) {
        let weather = *self.weather.borrow();
        if let Weather::Slow(time) = weather {
            tokio::time::sleep(time).await;
        }
    }
}

/// What the connection comes to, other than its end.
enum End {
    Closed,
    Silent,
    Late(Frame, Duration),
}

async fn relay(mut client: TcpStream, shared: Arc<Shared>) {
    let weather = *shared.weather.borrow();
    match weather {
        Weather::Cut => return,
        Weather::Hole => return shared.is_silent().await,
        Weather::Clear | Weather::Slow(_) => {}
    }
    let Ok(mut server) = TcpStream::connect(("127.0.0.1", shared.upstream.load(Ordering::SeqCst))).await
    else {
        return;
    };
    let _ = (client.set_nodelay(true), server.set_nodelay(true));
    let end = {
        let (mut from_client, to_client) = client.split();
        let (from_server, mut to_server) = server.split();
        let answer = watch::Sender::new(Answer::Sent);
        let backend = AtomicU32::new(0);
        tokio::select! {
            end = requests(&mut from_client, &mut to_server, &shared, &answer, &backend) => end,
            () = answers(from_server, to_client, &shared, &answer, &backend) => End::Closed,
            () = shared.until(Weather::Cut) => End::Closed,
            () = shared.until(Weather::Hole) => End::Silent,
        }
    };
    match end {
        End::Closed => {}
        End::Silent => shared.is_silent().await,
        End::Late(frame, time) => {
            drop(client);
            tokio::time::sleep(time).await;
            let _ = server.write_all(&frame.bytes).await;
            // Received, whatever it says: one answer, or the end.
            while let Some(answer) = Frame::read(&mut server, false).await {
                if answer.is_ready() {
                    break;
                }
            }
        }
    }
}

/// How the server's answer to the last message reaches the client.
#[derive(Clone, Copy, PartialEq)]
enum Answer {
    Sent,
    Lost,
    Denied,
    Stalled(Duration),
}

async fn requests(
    client: &mut (impl AsyncRead + Unpin),
    server: &mut (impl AsyncWrite + Unpin),
    shared: &Shared,
    answer: &watch::Sender<Answer>,
    backend: &AtomicU32,
) -> End {
    let mut first = true;
    while let Some(frame) = Frame::read(client, first).await {
        first = false;
        shared.delay().await;
        match shared.fate(&frame) {
            Fate::Forward => {}
            Fate::Lost => return End::Closed,
            Fate::Swallowed => return End::Silent,
            Fate::Late(time) => return End::Late(frame, time),
            Fate::Unanswered => drop(answer.send_replace(Answer::Lost)),
            Fate::Denied => drop(answer.send_replace(Answer::Denied)),
            Fate::Stalled(time) => drop(answer.send_replace(Answer::Stalled(time))),
            Fate::Terminated => signal("TERM", backend.load(Ordering::SeqCst)),
        }
        if server.write_all(&frame.bytes).await.is_err() {
            break;
        }
    }
    End::Closed
}

async fn answers(
    mut server: impl AsyncRead + Unpin,
    mut client: impl AsyncWrite + Unpin,
    shared: &Shared,
    answer: &watch::Sender<Answer>,
    backend: &AtomicU32,
) {
    while let Some(frame) = Frame::read(&mut server, false).await {
        if let Some(pid) = frame.backend() {
            backend.store(pid, Ordering::SeqCst);
        }
        let how = *answer.borrow();
        match how {
            Answer::Sent => shared.delay().await,
            Answer::Stalled(time) => {
                tokio::time::sleep(time).await;
                answer.send_replace(Answer::Sent);
            }
            Answer::Lost if frame.is_ready() => return,
            Answer::Denied if frame.is_ready() => {
                let _ = client.write_all(&connection_exception()).await;
                return;
            }
            Answer::Lost | Answer::Denied => continue,
        }
        if client.write_all(&frame.bytes).await.is_err() {
            return;
        }
    }
}

/// To a process of PostgreSQL. A proxy tells numbers that are of no process, or of any other.
pub(crate) fn signal(name: &str, pid: u32) {
    let program = std::fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
    if program.trim() == "postgres" {
        signal::signal(name, pid);
    }
}

/// Longer than the server keeps a transaction whose client is silent.
pub(crate) const FORGOTTEN: Duration = Duration::from_secs(12);
