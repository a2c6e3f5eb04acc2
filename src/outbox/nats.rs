//! Events to NATS JetStream.

use std::error::Error as _;
use std::fmt;
use std::str::FromStr as _;

use async_nats::connection::State;
use async_nats::header::{HeaderMap, HeaderName, HeaderValue, NATS_MESSAGE_ID};
use async_nats::jetstream::context::{self, PublishErrorKind};
use async_nats::jetstream::{self, Context, ErrorCode};
use bytes::Bytes;

use super::event::{Event, Payload};
use super::publisher::{PublishError, Publisher};

/// Publishes each event to a stream of NATS JetStream, and waits for the stream's acknowledgement.
/// With the feature `outbox-nats`.
///
/// The subject is the event's aggregate type, unless [a function](Self::subject) says otherwise. The
/// event's id is the message's `Nats-Msg-Id`, so that the stream drops an event that comes again
/// within its `duplicate_window`, two minutes by default. What comes later than that is a consumer's
/// to recognise, with an [`Inbox`](crate::Inbox) and the header's id: a window cannot be as long as
/// an outage may be.
///
/// The message has the event's headers, and `event-type`, `aggregate-type` and `aggregate-id`; its
/// `content-type` is that of the payload, unless the event has one.
///
/// # What the answer means
///
/// | the answer | the event |
/// |---|---|
/// | the stream's acknowledgement, also of a duplicate | is delivered |
/// | no connection, no answer in time, no stream for the subject, or one that is sealed, no room or no leader, or another trouble of the server's own | is tried again for [as long as it takes](PublishError::unavailable) |
/// | the stream's refusal of the message | is tried again, [a bounded number of times](PublishError::failed) |
/// | none: its subject is not one, a header cannot be one, or it is larger than the server takes | is a [dead letter](super::DeadLetters) at once |
///
/// # Examples
///
/// The application connects, with a dependency on `async-nats` of its own, whose features choose TLS
/// and credentials.
///
/// ```no_run
/// use tower_idempotency::outbox::{NatsPublisher, Relay};
///
/// # async fn example(pool: sqlx::PgPool) -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
/// let client = async_nats::connect("nats://127.0.0.1:4222").await?;
/// let publisher = NatsPublisher::new(async_nats::jetstream::new(client))
///     .subject(|event| format!("shop.{}.{}", event.aggregate_type(), event.event_type()));
/// Relay::new(pool, publisher).run(std::future::pending()).await;
/// # Ok(())
/// # }
/// ```
pub struct NatsPublisher {
    context: Context,
    subject: Subject,
}

type Subject = Box<dyn Fn(&Event) -> String + Send + Sync>;

impl NatsPublisher {
    /// Publishes through this context: its connection, and its time to wait for an acknowledgement.
    pub fn new(context: Context) -> Self {
        Self { context, subject: Box::new(|event| event.aggregate_type().to_owned()) }
    }

    /// Publishes each event under the subject that this function names.
    #[must_use]
    pub fn subject(self, subject: impl Fn(&Event) -> String + Send + Sync + 'static) -> Self {
        Self { subject: Box::new(subject), ..self }
    }
}

impl Publisher for NatsPublisher {
    async fn publish(&self, event: Event) -> Result<(), PublishError> {
        let subject = (self.subject)(&event);
        if !is_subject(&subject) {
            return Err(PublishError::rejected(format!("{subject:?} is not a subject of NATS")));
        }
        let headers = headers(&event)?;
        let payload = match event.payload {
            Payload::Empty => Bytes::new(),
            Payload::Json(bytes) | Payload::Bytes(bytes) => bytes,
        };
        let sent = self.context.publish_with_headers(subject, headers, payload).await;
        sent.map_err(|error| self.refused(error))?.await.map_err(|error| self.refused(error))?;
        Ok(())
    }
}

impl NatsPublisher {
    /// What the stream says about this message counts against it, and nothing else does.
    fn refused(&self, error: context::PublishError) -> PublishError {
        match error.kind() {
            // Before it has ever been connected, the client takes a limit of its own for the server's.
            PublishErrorKind::MaxPayloadExceeded if self.is_connected() => PublishError::rejected(error),
            PublishErrorKind::WrongLastMessageId | PublishErrorKind::WrongLastSequence => {
                PublishError::failed(error)
            }
            // The stream's answer; or else the client has ended, or somebody who is no stream has
            // answered.
            PublishErrorKind::Other if is_refusal(&error) => PublishError::failed(error),
            // `StreamNotFound` is the same to the client: no stream takes the subject, or JetStream is
            // not up yet. And an operator who has forgotten a stream shall not find dead letters.
            PublishErrorKind::BrokenPipe
            | PublishErrorKind::MaxAckPending
            | PublishErrorKind::MaxPayloadExceeded
            | PublishErrorKind::Other
            | PublishErrorKind::StreamNotFound
            | PublishErrorKind::TimedOut => PublishError::unavailable(error),
        }
    }

    fn is_connected(&self) -> bool {
        self.context.client().connection_state() == State::Connected
    }
}

/// Whether it is about the message. It is not where the server says that it has no leader or no room
/// (503), that something in it has failed (500), that it has too much to do (429), or that the same
/// message is still on its way (409).
fn is_refusal(error: &context::PublishError) -> bool {
    let answer = error.source().and_then(|source| source.downcast_ref::<jetstream::Error>());
    answer.is_some_and(|answer| match answer.error_code() {
        // No room either, but with the number of a bad request (400); and a stream that is closed to
        // all, which an operator has done.
        ErrorCode::ACCOUNT_RESOURCES_EXCEEDED | ErrorCode::NO_LIMITS | ErrorCode::STREAM_SEALED => false,
        // With the number of a failure: the stream does not take what the header asks for.
        ErrorCode::STREAM_ROLLUP_FAILED => true,
        _ => !matches!(answer.code(), 409 | 429 | 500..),
    })
}

fn headers(event: &Event) -> Result<HeaderMap, PublishError> {
    let mut headers = HeaderMap::new();
    let own = [
        (EVENT_TYPE, event.event_type()),
        (AGGREGATE_TYPE, event.aggregate_type()),
        (AGGREGATE_ID, event.aggregate_id()),
    ];
    let content_type = event.payload().content_type().map(|media_type| (CONTENT_TYPE, media_type));
    let theirs = event.headers().filter(|(name, _)| {
        let taken = own.iter().map(|(name, _)| *name).chain([NATS_MESSAGE_ID_TEXT]);
        !taken.into_iter().any(|own| name.eq_ignore_ascii_case(own))
    });
    for (name, value) in content_type.into_iter().chain(theirs).chain(own) {
        let name = HeaderName::from_str(name).map_err(PublishError::rejected)?;
        headers.insert(name, HeaderValue::from_str(value).map_err(PublishError::rejected)?);
    }
    headers.insert(NATS_MESSAGE_ID, event.id().to_string().as_str());
    Ok(headers)
}

/// Without wildcards, which are for those who subscribe.
fn is_subject(subject: &str) -> bool {
    subject.split('.').all(|token| {
        let is_sound = |character: char| !character.is_whitespace() && !character.is_control();
        !token.is_empty() && token != "*" && token != ">" && token.chars().all(is_sound)
    })
}

impl fmt::Debug for NatsPublisher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("NatsPublisher").finish_non_exhaustive()
    }
}

const EVENT_TYPE: &str = "event-type";
const AGGREGATE_TYPE: &str = "aggregate-type";
const AGGREGATE_ID: &str = "aggregate-id";
const CONTENT_TYPE: &str = "content-type";
const NATS_MESSAGE_ID_TEXT: &str = "nats-msg-id";
