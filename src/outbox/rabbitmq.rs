//! Events to RabbitMQ.

mod link;

use std::fmt;

use lapin::protocol::{AMQPErrorKind, AMQPSoftError};
use lapin::types::{AMQPValue, FieldTable, ShortString};
use lapin::{BasicProperties, Confirmation, ConnectionProperties, ErrorKind};

use self::link::Links;
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
/// | no connection, or one that is lost before the answer; no answer in time; a broker that takes nothing, for want of memory or disk space; no exchange, no permission, no queue for the routing key; a refusal by a full queue | is tried again for [as long as it takes](PublishError::unavailable) |
/// | a refusal of the message, as one that is too large | is tried again, [a bounded number of times](PublishError::failed) |
/// | none: the routing key, the content type or a header's name has over 255 bytes, or the headers fill more than a frame of the connection | is a [dead letter](super::DeadLetters) at once |
///
/// # Connection
///
/// It connects when it is first needed, and again after a connection was lost, or has left a message
/// without an answer for the relay's [`publish_timeout`](super::Relay::publish_timeout). One
/// connection is made at a time, and given 30 seconds, for all messages that wait for it. Each message
/// that is on its way has a channel to itself, as many as the relay's
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
    links: Links,
}

type RoutingKey = Box<dyn Fn(&Event) -> String + Send + Sync>;

impl RabbitMqPublisher {
    /// Publishes to this exchange of the broker at this `amqp:` URI. The empty exchange routes to the
    /// queue that the routing key names.
    pub fn new(uri: impl Into<String>, exchange: impl Into<String>) -> Self {
        Self {
            uri: uri.into(),
            exchange: exchange.into(),
            routing_key: Box::new(|event| event.aggregate_type().to_owned()),
            properties: ConnectionProperties::default(),
            links: Links::default(),
        }
    }

    /// Publishes each event under the routing key that this function names.
    #[must_use]
    pub fn routing_key(self, routing_key: impl Fn(&Event) -> String + Send + Sync + 'static) -> Self {
        Self { routing_key: Box::new(routing_key), ..self }
    }

    /// Connects with these properties, such as a name that operators see. Not with lapin's automatic
    /// recovery: a connection that is lost is replaced here, and lapin would make another one for
    /// nobody.
    #[must_use]
    pub fn properties(self, properties: ConnectionProperties) -> Self {
        Self { properties, ..self }
    }
}

impl Publisher for RabbitMqPublisher {
    async fn publish(&self, event: Event) -> Result<(), PublishError> {
        let properties = properties(&event)?;
        let (exchange, routing_key) = (short(&self.exchange)?, short(&(self.routing_key)(&event))?);
        let link = self.links.link(&self.uri, &self.properties).await.map_err(PublishError::unavailable)?;
        let (room, size) = (link.room(), frame_of(&properties));
        if size > room {
            let text = format!("the headers need a frame of {size} bytes, and the connection's have {room}");
            return Err(PublishError::rejected(text));
        }
        if link.is_blocked() {
            return Err(PublishError::unavailable("the broker takes nothing: it is short of memory or disk"));
        }
        let answer = link.publish(exchange, routing_key, properties, event.payload().as_bytes()).await;
        let answer = answer.map_err(|error| match link.is_connected() {
            true => refused(error),
            // What the broker has said about one message, lapin tells all that were on their way when
            // it ends the connection over it.
            false => PublishError::unavailable(error),
        });
        match answer? {
            Confirmation::Ack(None) => Ok(()),
            Confirmation::Ack(Some(_)) => {
                Err(PublishError::unavailable("the exchange has no queue for the event's routing key"))
            }
            Confirmation::Nack(_) => Err(PublishError::unavailable("the broker did not take the event")),
            Confirmation::NotRequested => Err(PublishError::unavailable("the channel has no confirms")),
        }
    }
}

/// What the broker says about this message counts against it, and nothing else does: while the
/// broker is away, each kind of error may come that a connection can end with.
fn refused(error: lapin::Error) -> PublishError {
    match error.kind() {
        ErrorKind::ProtocolError(answer) => match answer.kind() {
            // To the message's own channel.
            AMQPErrorKind::Soft(AMQPSoftError::CONTENTTOOLARGE | AMQPSoftError::PRECONDITIONFAILED) => {
                PublishError::failed(error)
            }
            // The exchange, or what we may do with it: an operator's to mend.
            AMQPErrorKind::Soft(
                AMQPSoftError::ACCESSREFUSED
                | AMQPSoftError::NOCONSUMERS
                | AMQPSoftError::NOROUTE
                | AMQPSoftError::NOTFOUND
                | AMQPSoftError::RESOURCELOCKED,
            ) => PublishError::unavailable(error),
            // To the connection, and so to each message that is on its way over it.
            AMQPErrorKind::Hard(_) => PublishError::unavailable(error),
        },
        // No connection, one that has ended or is ending, or the process's own trouble. These end a
        // connection with all that is on its way over it, whoever's fault it was, `SerialisationError`
        // and `ParsingError` too.
        ErrorKind::AuthProviderError(_)
        | ErrorKind::ChannelsLimitReached
        | ErrorKind::FutureCompleted
        | ErrorKind::IOError(_)
        | ErrorKind::InvalidChannel(_)
        | ErrorKind::InvalidChannelState(..)
        | ErrorKind::InvalidConnectionState(_)
        | ErrorKind::InvalidProtocolVersion(_)
        | ErrorKind::MissingHeartbeatError
        | ErrorKind::NoDefaultRuntime
        | ErrorKind::ParsingError(_)
        | ErrorKind::RuntimeShutdownError(_)
        | ErrorKind::SerialisationError(_) => PublishError::unavailable(error),
        // Of a later lapin.
        _ => PublishError::unavailable(error),
    }
}

/// How many bytes the frame of these properties has. It cannot be split, and one that is too large
/// would end the connection for all messages.
fn frame_of(properties: &BasicProperties) -> usize {
    let texts = [properties.content_type(), properties.kind(), properties.message_id()];
    let texts: usize = texts.into_iter().flatten().map(|text| 1 + text.as_str().len()).sum();
    let headers: usize = properties
        .headers()
        .iter()
        .flat_map(|headers| headers.inner())
        .map(|(name, value)| {
            let value = match value {
                AMQPValue::LongString(text) => text.as_bytes().len(),
                _ => 0,
            };
            1 + name.as_str().len() + 1 + 4 + value
        })
        .sum();
    FRAME + texts + headers
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

/// Of a frame with properties, what is always there: its head and end, 8; the head of a message, 12;
/// the flags of the properties, 2; the delivery mode, 1; and the length of the headers, 4.
const FRAME: usize = 27;
