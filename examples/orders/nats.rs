//! NATS JetStream between the two: a server, a stream, and the warehouse's consumer.

use std::io::ErrorKind;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use async_nats::jetstream::{self, consumer, stream};
use futures_util::StreamExt as _;
use tokio::sync::mpsc;
use tower_idempotency::inbox::Processed;
use tower_idempotency::outbox::NatsPublisher;

use crate::BoxError;
use crate::warehouse::Warehouse;

/// A server of its own, with a directory of its own. Gone when this is dropped.
pub(crate) struct Nats {
    directory: PathBuf,
    server: Child,
    url: String,
}

impl Nats {
    /// None where it is not installed.
    pub(crate) async fn start() -> Result<Option<Self>, BoxError> {
        let directory = std::env::temp_dir().join(format!("orders-nats-{}", std::process::id()));
        std::fs::create_dir_all(&directory)?;
        let run = |program: &str| {
            let mut command = Command::new(program);
            command
                .args(["--jetstream", "--addr", "127.0.0.1", "--port", "-1", "--store_dir"])
                .arg(&directory);
            command.arg("--ports_file_dir").arg(&directory).stdout(Stdio::null()).stderr(Stdio::null());
            command.spawn()
        };
        // Debian has it where a user's PATH does not lead.
        let server = match run("nats-server").or_else(|_| run("/usr/sbin/nats-server")) {
            Ok(server) => server,
            Err(error) if error.kind() == ErrorKind::NotFound => {
                std::fs::remove_dir_all(&directory)?;
                return Ok(None);
            }
            Err(error) => return Err(error.into()),
        };
        let ports = directory.join(format!("nats-server_{}.ports", server.id()));
        let mut nats = Self { directory, server, url: String::new() };
        for _ in 0..1_000 {
            // Absent or half written, until it listens.
            let text = std::fs::read_to_string(&ports).unwrap_or_default();
            if let Ok(ports) = serde_json::from_str::<serde_json::Value>(&text) {
                nats.url = ports["nats"][0].as_str().unwrap_or_default().to_owned();
                return Ok(Some(nats));
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        Err("nats-server does not listen".into())
    }

    async fn context(&self) -> Result<jetstream::Context, BoxError> {
        Ok(jetstream::new(async_nats::connect(&self.url).await?))
    }

    /// The relay's side. The subject is the event's aggregate type: `order`.
    pub(crate) async fn publisher(&self) -> Result<NatsPublisher, BoxError> {
        Ok(NatsPublisher::new(self.context().await?))
    }

    /// The warehouse's side: what is not acknowledged in time comes again.
    pub(crate) async fn messages(&self) -> Result<consumer::pull::Stream, BoxError> {
        let stream =
            stream::Config { name: "orders".into(), subjects: vec!["order".into()], ..Default::default() };
        let stream = self.context().await?.create_stream(stream).await?;
        let consumer = consumer::pull::Config {
            durable_name: Some("stock".into()),
            ack_policy: consumer::AckPolicy::Explicit,
            ack_wait: Duration::from_secs(1),
            ..Default::default()
        };
        Ok(stream.create_consumer(consumer).await?.messages().await?)
    }
}

/// Receives, and acknowledges after the commit. Tells what became of each delivery.
pub(crate) async fn consume(
    mut messages: consumer::pull::Stream,
    warehouse: Warehouse,
    told: mpsc::UnboundedSender<String>,
) {
    let mut is_lost = true;
    while let Some(message) = messages.next().await {
        let outcome = async {
            let message = message?;
            let id = message.headers.as_ref().and_then(|headers| headers.get("Nats-Msg-Id"));
            let id = id.ok_or("a message without an id")?.as_str();
            let text = match warehouse.receive(id, &message.payload).await? {
                // As if this process had died between its commit and the acknowledgement.
                Processed::First(()) if std::mem::take(&mut is_lost) => {
                    return Ok("delivered: reserved, and not acknowledged".to_owned());
                }
                Processed::First(()) => "delivered: reserved, and acknowledged",
                Processed::Duplicate => "delivered again: a duplicate, acknowledged",
                Processed::Unknown => return Ok("delivered: the outcome is not known".to_owned()),
            };
            message.ack().await?;
            Ok::<_, BoxError>(text.to_owned())
        };
        let outcome =
            outcome.await.unwrap_or_else(|error| format!("delivered: failed, comes again: {error}"));
        if told.send(outcome).is_err() {
            return;
        }
    }
}

impl Drop for Nats {
    fn drop(&mut self) {
        drop(self.server.kill());
        drop(self.server.wait());
        drop(std::fs::remove_dir_all(&self.directory));
    }
}
