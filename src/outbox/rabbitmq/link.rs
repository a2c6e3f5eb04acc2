//! The connection of a publisher to RabbitMQ, and its channels.

use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use lapin::options::{BasicPublishOptions, ConfirmSelectOptions};
use lapin::types::ShortString;
use lapin::{BasicProperties, Channel, Confirmation, Connection, ConnectionProperties};
use tokio::sync::watch;

/// The link that there is, or that is being made, for all who want one.
#[derive(Default)]
pub(super) struct Links(Mutex<Option<Attempt>>);

impl Links {
    pub(super) async fn link(
        &self,
        uri: &str,
        properties: &ConnectionProperties,
    ) -> Result<Arc<Link>, lapin::Error> {
        let Attempt(mut made) = self.attempt(uri, properties);
        let made = made.wait_for(Option::is_some).await.ok().and_then(|made| made.clone());
        made.unwrap_or_else(|| Err(io::Error::other("the runtime has ended that was connecting").into()))
    }

    fn attempt(&self, uri: &str, properties: &ConnectionProperties) -> Attempt {
        let mut last = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(attempt) = last.as_ref().filter(|attempt| attempt.is_of_use()) {
            return attempt.clone();
        }
        last.insert(Attempt::begin(uri.to_owned(), properties.clone())).clone()
    }
}

/// A link that is being made, and what comes of it.
#[derive(Clone)]
struct Attempt(watch::Receiver<Option<Result<Arc<Link>, lapin::Error>>>);

impl Attempt {
    fn begin(uri: String, properties: ConnectionProperties) -> Self {
        let (tell, told) = watch::channel(None);
        // On a task of its own: lapin goes on with what its caller gives up, in a thread and over a
        // socket, for as long as the other side says nothing.
        tokio::spawn(async move {
            let connection = Connection::connect(&uri, properties);
            let made = match tokio::time::timeout(CONNECT_TIMEOUT, connection).await {
                Ok(made) => made.map(|connection| Arc::new(Link::over(connection))),
                Err(_) => Err(io::Error::from(io::ErrorKind::TimedOut).into()),
            };
            tell.send_replace(Some(made));
        });
        Self(told)
    }

    /// Whether it is under way, or has come to a link that can be asked.
    fn is_of_use(&self) -> bool {
        match &*self.0.borrow() {
            Some(Ok(link)) => link.is_sound(),
            Some(Err(_)) => false,
            // Else its runtime has ended before it.
            None => self.0.has_changed().is_ok(),
        }
    }
}

/// A connection, and its channels that carry nothing at the moment.
pub(super) struct Link {
    connection: Connection,
    idle: Mutex<Vec<Channel>>,
    /// Something that was asked over it was given up without an answer. Who is still waiting keeps
    /// it; nobody asks anything more.
    is_silent: AtomicBool,
}

/// A question over a link, which is silent unless the answer comes before this is dropped.
struct Question<'l> {
    link: &'l Link,
    is_answered: bool,
}

impl Drop for Question<'_> {
    fn drop(&mut self) {
        // A broker that takes nothing has said so, and another connection fares no better. This one
        // could not even be closed before the broker takes something again.
        if !self.is_answered && !self.link.is_blocked() {
            self.link.is_silent.store(true, Ordering::Relaxed);
        }
    }
}

impl Link {
    fn over(connection: Connection) -> Self {
        Self { connection, idle: Mutex::default(), is_silent: AtomicBool::new(false) }
    }

    fn is_sound(&self) -> bool {
        self.is_connected() && !self.is_silent.load(Ordering::Relaxed)
    }

    pub(super) fn is_connected(&self) -> bool {
        self.connection.status().connected()
    }

    /// The broker takes nothing over it, for the time being.
    pub(super) fn is_blocked(&self) -> bool {
        self.connection.status().blocked()
    }

    /// The largest frame, in bytes.
    pub(super) fn room(&self) -> usize {
        // No limit, which is 0 between the two sides, is here the largest number.
        self.connection.configuration().frame_max() as usize
    }

    pub(super) async fn publish(
        &self,
        exchange: ShortString,
        routing_key: ShortString,
        properties: BasicProperties,
        payload: &[u8],
    ) -> Result<Confirmation, lapin::Error> {
        let options = BasicPublishOptions { mandatory: true, ..Default::default() };
        let mut question = Question { link: self, is_answered: false };
        let answer = async {
            let channel = self.channel().await?;
            let sent = channel.basic_publish(exchange, routing_key, options, payload, properties).await?;
            // Dropped here, and by whoever drops this future, the channel is closed: its answer may be
            // still to come.
            let confirmation = sent.await?;
            self.idle().push(channel);
            Ok(confirmation)
        };
        let answer = answer.await;
        question.is_answered = true;
        answer
    }

    async fn channel(&self) -> Result<Channel, lapin::Error> {
        // Where the broker has closed one, it is found out here.
        let idle = std::iter::from_fn(|| self.idle().pop()).find(|channel| channel.status().connected());
        if let Some(channel) = idle {
            return Ok(channel);
        }
        let channel = self.connection.create_channel().await?;
        channel.confirm_select(ConfirmSelectOptions::default()).await?;
        Ok(channel)
    }

    fn idle(&self) -> MutexGuard<'_, Vec<Channel>> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// As long as the relay waits for one event by default. What says nothing for longer may never say
/// anything, as a machine that has gone.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(30);
