//! Relays and consumers: the other processes, and this one's hold on them.

use std::future::pending;
use std::io;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use async_nats::jetstream::{self, Context, consumer};
use futures_util::TryStreamExt as _;
use sqlx::PgPool;
use sqlx::postgres::{PgConnectOptions, PgPoolOptions, PgSslMode};
use tokio::signal::unix::{SignalKind, signal};
use tower_idempotency::Inbox;
use tower_idempotency::outbox::{Backoff, Event, NatsPublisher, Publisher as _, Relay};
use uuid::Uuid;

use super::{LEASE, STREAM, SUBSCRIBER};
use crate::itself::{Itself, end_with_parent};

type BoxError = Box<dyn std::error::Error + Send + Sync>;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Role {
    Consumer,
    Relay,
    /// A relay that never gets an answer from its broker, with a lease of an hour.
    StuckRelay,
}

impl Role {
    const ALL: [(Self, &str); 3] =
        [(Self::Consumer, "consumer"), (Self::Relay, "relay"), (Self::StuckRelay, "stuck")];
}

pub(crate) struct Process {
    words: String,
    process: Itself,
}

impl Process {
    pub(crate) fn start(role: Role, server: &devpg::Server, nats: &str, log: &Path) -> Self {
        let role = Role::ALL.iter().find(|(known, _)| *known == role).unwrap().1;
        let words = format!("{role} {} {} {nats}", server.port(), server.password());
        let process = Self { words, process: Itself::new("outbox_process", log) };
        process.restart();
        process
    }

    /// At once, and for good: SIGKILL.
    pub(crate) fn kill(&self) {
        self.process.kill();
    }

    pub(crate) fn restart(&self) {
        let mut command = Command::new(std::env::current_exe().unwrap());
        self.process.start(command.env("DRILL_OUTBOX", &self.words).stdin(Stdio::null()));
    }

    /// Tells it to stop, in order.
    pub(crate) fn stops(&self) -> Result<(), String> {
        self.process.stops().map_err(|why| format!("{why}: {}", self.words))
    }

    /// It stands still for so long, and knows nothing of it.
    pub(crate) async fn stands_still(&self, time: Duration) {
        self.process.stands_still(time).await;
    }
}

/// The body of the other process.
pub(crate) fn run() {
    let Ok(words) = std::env::var("DRILL_OUTBOX") else { return };
    let [role, port, password, nats] = words.split(' ').collect::<Vec<_>>()[..] else {
        panic!("DRILL_OUTBOX={words}")
    };
    let role = Role::ALL.iter().find(|(_, name)| *name == role).unwrap().0;
    end_with_parent();
    tracing_subscriber::fmt().with_writer(io::stderr).with_ansi(false).init();
    let options = PgConnectOptions::new_without_pgpass()
        .host("127.0.0.1")
        .port(port.parse().unwrap())
        .username("postgres")
        .password(password)
        .database("postgres")
        .ssl_mode(PgSslMode::Disable);
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    runtime.block_on(async {
        let pool = PgPoolOptions::new().max_connections(4).connect_lazy_with(options);
        match role {
            Role::Consumer => consume(pool, &context(nats).await).await,
            Role::Relay => relay(pool, Arc::new(NatsPublisher::new(context(nats).await))).await,
            Role::StuckRelay => stick(pool).await,
        }
    });
}

async fn context(nats: &str) -> Context {
    let options = async_nats::ConnectOptions::new().retry_on_initial_connect();
    let options = options.reconnect_delay_callback(|_| Duration::from_millis(20));
    let mut context = jetstream::new(options.connect(nats).await.unwrap());
    context.set_timeout(Duration::from_secs(1));
    context
}

async fn relay(pool: PgPool, publisher: Arc<NatsPublisher>) {
    let publish = move |event: Event| {
        let publisher = Arc::clone(&publisher);
        async move {
            let pause = dawdling(event.id());
            publisher.publish(event).await?;
            tokio::time::sleep(pause).await;
            Ok(())
        }
    };
    let mut told = signal(SignalKind::terminate()).unwrap();
    let backoff = Backoff::new(Duration::from_millis(20), Duration::from_millis(500));
    let relay = Relay::new(pool, publish)
        .lease(LEASE)
        .backoff(backoff)
        .batch(20)
        .poll_interval(Duration::from_millis(100));
    let stop = async {
        told.recv().await;
    };
    relay.run(stop).await;
}

/// Between the broker's acknowledgement and its consequence, and between a commit and its: there is
/// time to be killed.
fn dawdling(event: Uuid) -> Duration {
    Duration::from_millis(u64::from(event.as_bytes()[15] % 16))
}

async fn stick(pool: PgPool) {
    let arrivals = pool.clone();
    let stuck = move |event: Event| {
        let arrivals = arrivals.clone();
        async move {
            sqlx::query("insert into arrival (event) values ($1)")
                .bind(event.id())
                .execute(&arrivals)
                .await?;
            pending().await
        }
    };
    let hour = Duration::from_secs(3_600);
    Relay::new(pool, stuck).lease(hour).publish_timeout(hour).run(pending()).await;
}

/// Consumes for ever, whatever happens to the broker.
async fn consume(pool: PgPool, context: &Context) {
    loop {
        if let Err(error) = consume_once(&pool, context).await {
            tracing::warn!(error, "consuming failed");
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

async fn consume_once(pool: &PgPool, context: &Context) -> Result<(), BoxError> {
    let consumer: consumer::PullConsumer = context.get_consumer_from_stream(SUBSCRIBER, STREAM).await?;
    let messages = consumer.stream().max_messages_per_batch(50).expires(Duration::from_secs(2));
    let messages = messages.heartbeat(Duration::from_millis(500)).messages().await?;
    let each = messages.map_err(BoxError::from).try_for_each_concurrent(4, async |message| {
        // What fails is not acknowledged, and comes again.
        if let Err(error) = receive(pool, &message).await {
            tracing::warn!(error, "a message was not processed");
        }
        Ok(())
    });
    each.await
}

async fn receive(pool: &PgPool, message: &jetstream::Message) -> Result<(), BoxError> {
    let headers = message.headers.as_ref().ok_or("no headers")?;
    let header = |name: &str| headers.get(name).map(|value| value.as_str()).ok_or("a header is missing");
    let (id, aggregate) = (header("Nats-Msg-Id")?, header("aggregate-id")?);
    let version: i64 = serde_json::from_slice(&message.payload)?;
    let inbox = Inbox::new(SUBSCRIBER);
    let processed = inbox.process(pool, id, async |mut tx| {
        sqlx::query("insert into effect (event, aggregate, version) values ($1::uuid, $2, $3)")
            .bind(id)
            .bind(aggregate)
            .bind(version)
            .execute(&mut *tx)
            .await?;
        if inbox.advance(&mut tx, aggregate, version).await?.is_newer() {
            sqlx::query("insert into applied (aggregate, version) values ($1, $2)")
                .bind(aggregate)
                .bind(version)
                .execute(&mut *tx)
                .await?;
        }
        Ok::<_, BoxError>(())
    });
    if processed.await?.is_done() {
        tokio::time::sleep(dawdling(id.parse()?)).await;
        message.ack().await?;
    }
    Ok(())
}
