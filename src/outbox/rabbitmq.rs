//! Events to RabbitMQ.

use std::fmt;

use lapin::options::{BasicPublishOptions, ConfirmSelectOptions};
use lapin::protocol::{AMQPErrorKind, AMQPSoftError};
use lapin::types::{AMQPValue, FieldTable, ShortString};
use lapin::{BasicProperties, Channel, Confirmation, Connection, ConnectionProperties, ErrorKind};
use tokio::sync::Mutex;

use super::event::Event;
use super::publisher::{PublishError, Publisher};

/// Publishes each event to an exchange of RabbitMQ, and waits for the broker's confirm. With the
/// feature `outbox-rabbitmq`.
///
/// The routing key is the event's aggregate type, unless [a function](Self::routing_key) says
/// otherwise. Messages are persistent and mandatory: one that reaches no queue is not delivered. The
/// event's id is the message's id; RabbitMQ drops no duplicates, so that a consumer recognises one
/// by it, with an [`Inbox`](crate::Inbox).
///
/// The message has the event's type, its headers, and headers `aggregate-type` and `aggregate-id`;
/// its content type is that of the payload, unless the event has a header `content-type`.
///
/// # What the answer means
///
/// | the answer | the event |
/// |---|---|
/// | a confirm | is delivered |
/// | no connection, no exchange, no queue for the routing key, a refusal by a full queue | is tried again for [as long as it takes](PublishError::unavailable) |
/// | a refusal of the message, as one that is too large | is tried again, [a bounded number of times](PublishError::failed) |
/// | none: the routing key, or a header's name, has over 255 bytes | is a [dead letter](super::DeadLetters) at once |
///
/// # Connection
///
/// It connects when it is first needed, and again after a connection was lost. Each message that is
/// on its way has a channel to itself, as many as the relay's
/// [`concurrency`](super::Relay::concurrency) at most, so that its answers are nobody else's. For
/// `amqps:`, choose the TLS features of `lapin` in a dependency of your own.
///
/// # Examples
///
/// ```no_run
/// use tower_idempotency::outbox::{RabbitMqPublisher, Relay};
///
/// # async fn example(pool: sqlx::PgPool) {
/// let publisher = RabbitMqPublisher::new("amqp://guest:guest@127.0.0.1:5672/%2f", "events")
///     .routing_key(|event| event.event_type().to_owned());
/// Relay::new(pool, publisher).run(std::future::pending()).await;
/// # }
/// ```
pub struct RabbitMqPublisher {
    uri: String,
    exchange: String,
    routing_key: RoutingKey,
    properties: ConnectionProperties,
    link: Mutex<Option<Link>>,
}

type RoutingKey = Box<dyn Fn(&Event) -> String + Send + Sync>;

/// A connection, and its channels that carry nothing at the moment.
struct Link {
    connection: Connection,
    idle: Vec<Channel>,
}

impl RabbitMqPublisher {
    /// Publishes to this exchange of the broker at this `amqp:` URI. The empty exchange routes to the
    /// queue that the routing key names.
    pub fn new(uri: impl Into<String>, exchange: impl Into<String>) -> Self {
        Self {
            uri: uri.into(),
            exchange: exchange.into(),
            routing_key: Box::new(|event| event.aggregate_type().to_owned()),
            properties: ConnectionProperties::default(),
            link: Mutex::new(None),
        }
    }

    /// Publishes each event under the routing key that this function names.
    #[must_use]
    pub fn routing_key(self, routing_key: impl Fn(&Event) -> String + Send + Sync + 'static) -> Self {
        Self { routing_key: Box::new(routing_key), ..self }
    }

    /// Connects with these properties, such as a name that operators see.
    #[must_use]
    pub fn properties(self, properties: ConnectionProperties) -> Self {
        Self { properties, ..self }
    }

    async fn channel(&self) -> Result<Channel, lapin::Error> {
        let mut link = self.link.lock().await;
        if link.as_ref().is_none_or(|link| !link.connection.status().connected()) {
            *link = None;
        }
        let link = match &mut *link {
            Some(link) => link,
            none => {
                let connection = Connection::connect(&self.uri, self.properties.clone()).await?;
                none.insert(Link { connection, idle: Vec::new() })
            }
        };
        while let Some(channel) = link.idle.pop() {
            if channel.status().connected() {
                return Ok(channel);
            }
        }
        let channel = link.connection.create_channel().await?;
        channel.confirm_select(ConfirmSelectOptions::default()).await?;
        Ok(channel)
    }

    /// Where the broker has closed it, it is found out when it is taken.
    async fn give_back(&self, channel: Channel) {
        if let Some(link) = &mut *self.link.lock().await {
            link.idle.push(channel);
        }
    }
}

impl Publisher for RabbitMqPublisher {
    async fn publish(&self, event: Event) -> Result<(), PublishError> {
        let properties = properties(&event)?;
        let (exchange, routing_key) = (short(&self.exchange)?, short(&(self.routing_key)(&event))?);
        let options = BasicPublishOptions { mandatory: true, ..Default::default() };
        let channel = self.channel().await.map_err(PublishError::unavailable)?;
        let payload = event.payload().as_bytes();
        let sent = channel.basic_publish(exchange, routing_key, options, payload, properties).await;
        // Dropped here, and by whoever drops this future, the channel is closed: its answer may be
        // still to come.
        let confirmation = sent.map_err(refused)?.await.map_err(refused)?;
        self.give_back(channel).await;
        match confirmation {
            Confirmation::Ack(None) => Ok(()),
            Confirmation::Ack(Some(_)) => {
                Err(PublishError::unavailable("the exchange has no queue for the event's routing key"))
            }
            Confirmation::Nack(_) => Err(PublishError::unavailable("the broker did not take the event")),
            Confirmation::NotRequested => Err(PublishError::unavailable("the channel has no confirms")),
        }
    }
}

fn refused(error: lapin::Error) -> PublishError {
    match error.kind() {
        ErrorKind::ProtocolError(refusal)
            if *refusal.kind() == AMQPErrorKind::Soft(AMQPSoftError::PRECONDITIONFAILED) =>
        {
            PublishError::failed(error)
        }
        ErrorKind::SerialisationError(_) => PublishError::rejected(error),
        _ => PublishError::unavailable(error),
    }
}

fn properties(event: &Event) -> Result<BasicProperties, PublishError> {
    let mut headers = FieldTable::default();
    let mut content_type = event.payload().content_type();
    for (name, value) in event.headers() {
        if name.eq_ignore_ascii_case("content-type") {
            content_type = Some(value);
        } else {
            headers.insert(short(name)?, AMQPValue::LongString(value.into()));
        }
    }
    for (name, value) in [("aggregate-type", event.aggregate_type()), ("aggregate-id", event.aggregate_id())]
    {
        headers.insert(short(name)?, AMQPValue::LongString(value.into()));
    }
    let properties = BasicProperties::default()
        .with_message_id(short(&event.id().to_string())?)
        .with_delivery_mode(PERSISTENT)
        .with_type(short(event.event_type())?)
        .with_headers(headers);
    Ok(match content_type {
        Some(content_type) => properties.with_content_type(short(content_type)?),
        None => properties,
    })
}

fn short(text: &str) -> Result<ShortString, PublishError> {
    ShortString::try_new(text).map_err(PublishError::rejected)
}

impl fmt::Debug for RabbitMqPublisher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Not the URI, which has the password.
        f.debug_struct("RabbitMqPublisher").field("exchange", &self.exchange).finish_non_exhaustive()
    }
}

/// By the protocol: 1 is transient.
const PERSISTENT: u8 = 2;
