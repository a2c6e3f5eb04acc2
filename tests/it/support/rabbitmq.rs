//! A RabbitMQ server of a test's own.

use std::collections::HashSet;
use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::os::unix::process::CommandExt as _;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use devpg::Tether;
use lapin::options::{BasicGetOptions, QueueDeclareOptions};
use lapin::types::FieldTable;
use lapin::{BasicProperties, Channel, Connection, ConnectionProperties};
use tower_idempotency::outbox::Event;
use uuid::Uuid;

use super::{absent, eventually, signal};

/// A node with names, ports and directories of its own, as this user. Killed when this is dropped.
pub(crate) struct RabbitMq {
    directory: PathBuf,
    port: u16,
    distribution_port: u16,
    names_port: u16,
    /// The node's name server, which would otherwise be left behind as a daemon.
    names: Child,
    names_tether: Option<Tether>,
    server: Option<(Child, Tether)>,
}

impl RabbitMq {
    /// None where it is not installed, and need not be.
    pub(crate) fn start() -> Option<Self> {
        let ports = [(); 3].map(|()| TcpListener::bind("127.0.0.1:0").unwrap());
        let [port, distribution_port, names_port] = ports.map(|port| port.local_addr().unwrap().port());
        let names = Command::new("epmd")
            .args(["-address", "127.0.0.1", "-port", &names_port.to_string()])
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn();
        let started = names.and_then(|names| {
            let directory =
                std::env::temp_dir().join(format!("tower-idempotency-rabbitmq-{}", Uuid::now_v7()));
            std::fs::create_dir(&directory).unwrap();
            let config = format!("max_message_size = {LARGEST_MESSAGE}\n");
            std::fs::write(directory.join("config.conf"), config).unwrap();
            let names_tether = Some(Tether::to(&names, "KILL").unwrap());
            let mut started =
                Self { directory, port, distribution_port, names_port, names, names_tether, server: None };
            started.run()?;
            Ok(started)
        });
        match started {
            Ok(started) => Some(started),
            Err(error) => {
                let what = format!("rabbitmq-server cannot run ({error}); Debian's package has that name");
                absent("rabbitmq", &what);
                None
            }
        }
    }

    pub(crate) fn uri(&self) -> String {
        uri(self.port)
    }

    pub(crate) const fn port(&self) -> u16 {
        self.port
    }

    /// A channel of a connection of its own, which the caller keeps.
    pub(crate) async fn channel(&self) -> (Connection, Channel) {
        let connection = Connection::connect(&self.uri(), ConnectionProperties::default()).await.unwrap();
        let channel = connection.create_channel().await.unwrap();
        (connection, channel)
    }

    /// Waits until this queue would outlive a crash. A node writes down a moment later what it has
    /// declared, also that of a durable queue.
    pub(crate) async fn has_kept(&self, queue: &str) {
        let node = self.directory.join(format!("mnesia/test{}@localhost", self.port));
        // The end of its name among all resources, as Erlang writes it.
        let name =
            [b"queuem", &u32::try_from(queue.len()).unwrap().to_be_bytes()[..], queue.as_bytes()].concat();
        eventually(std::panic::Location::caller(), async || {
            let is_kept = ["LATEST.LOG", "rabbit_durable_queue.DCL", "rabbit_durable_queue.DCD"]
                .iter()
                .filter_map(|file| std::fs::read(node.join(file)).ok())
                .any(|bytes| bytes.windows(name.len()).any(|part| part == name));
            if is_kept { Ok(()) } else { Err(format!("{queue} is not written down in {node:?}")) }
        })
        .await;
    }

    /// Kills it, as a crash would.
    pub(crate) fn kill(&mut self) {
        if let Some((mut server, tether)) = self.server.take() {
            signal("KILL", group(&server));
            drop(tether);
            drop(server.wait());
        }
    }

    /// It does nothing any more, and its connections stay.
    pub(crate) fn stands_still(&self) {
        self.tell("STOP");
    }

    /// After it stood still.
    pub(crate) fn goes_on(&self) {
        self.tell("CONT");
    }

    fn tell(&self, name: &str) {
        assert!(signal(name, group(&self.server.as_ref().unwrap().0)));
    }

    /// It has no memory to spare: whoever publishes is blocked, and connections stay.
    pub(crate) fn has_no_room(&self) {
        self.control(&["set_vm_memory_high_watermark", "0"]);
    }

    /// After it had none.
    pub(crate) fn has_room(&self) {
        self.control(&["set_vm_memory_high_watermark", "0.9"]);
    }

    /// What is published to this queue is never confirmed.
    pub(crate) fn never_confirms(&self, queue: &str) {
        let name = format!("rabbit_misc:r(<<\"/\">>, queue, <<\"{queue}\">>)");
        let suspend =
            format!("{{ok, Q}} = rabbit_amqqueue:lookup({name}), sys:suspend(amqqueue:get_pid(Q)).");
        self.control(&["eval", &suspend]);
    }

    fn control(&self, arguments: &[&str]) {
        let scripts = ["/usr/lib/rabbitmq/bin/rabbitmqctl", "rabbitmqctl"];
        let run = |script| self.command(script).args(arguments).output();
        let done = run(scripts[0]).or_else(|_| run(scripts[1])).unwrap();
        assert!(done.status.success(), "{arguments:?}: {done:?}");
    }

    /// Starts it again, on the same port and with what it had stored.
    pub(crate) fn restart(&mut self) {
        self.run().unwrap();
    }

    fn run(&mut self) -> std::io::Result<()> {
        // Debian's own script is for root and the service's user only.
        let scripts = ["/usr/lib/rabbitmq/bin/rabbitmq-server", "rabbitmq-server"];
        let server = self.spawn(scripts[0]).or_else(|_| self.spawn(scripts[1]))?;
        let tether = Tether::to_group(&server, "KILL").unwrap();
        self.server = Some((server, tether));
        let started = Instant::now();
        while greets(self.port).is_err() {
            let ended = self.server.as_mut().unwrap().0.try_wait().unwrap();
            let log = self.directory.join("log");
            assert!(ended.is_none() && started.elapsed() < DEADLINE, "RabbitMQ does not listen; see {log:?}");
            std::thread::sleep(Duration::from_millis(50));
        }
        Ok(())
    }

    fn spawn(&self, script: &str) -> std::io::Result<Child> {
        let quiet = Stdio::null;
        self.command(script).process_group(0).stdin(quiet()).stdout(quiet()).stderr(quiet()).spawn()
    }

    /// A script of the node's, with its names and places.
    fn command(&self, script: &str) -> Command {
        let place = |name: &str| self.directory.join(name);
        let mut command = Command::new(script);
        command
            .env("HOME", &self.directory)
            .env("ERL_EPMD_PORT", self.names_port.to_string())
            .env("ERL_EPMD_ADDRESS", "127.0.0.1")
            .env("RABBITMQ_NODENAME", format!("test{}@localhost", self.port))
            .env("RABBITMQ_NODE_IP_ADDRESS", "127.0.0.1")
            .env("RABBITMQ_NODE_PORT", self.port.to_string())
            .env("RABBITMQ_DIST_PORT", self.distribution_port.to_string())
            .env("RABBITMQ_MNESIA_BASE", place("mnesia"))
            .env("RABBITMQ_LOG_BASE", place("log"))
            .env("RABBITMQ_LOGS", place("log").join("node.log"))
            .env("RABBITMQ_ENABLED_PLUGINS_FILE", place("plugins"))
            .env("RABBITMQ_CONFIG_FILE", place("config"))
            .env("RABBITMQ_CONF_ENV_FILE", place("env"))
            .env("RABBITMQ_PID_FILE", place("pid"))
            .env("RABBITMQ_FEATURE_FLAGS_FILE", place("flags"));
        command
    }
}

impl Drop for RabbitMq {
    fn drop(&mut self) {
        self.kill();
        drop(self.names.kill());
        drop(self.names_tether.take());
        drop(self.names.wait());
        drop(std::fs::remove_dir_all(&self.directory));
    }
}

/// A broker on this port of this machine.
pub(crate) fn uri(port: u16) -> String {
    format!("amqp://guest:guest@127.0.0.1:{port}/%2f")
}

/// A queue that outlives the server.
pub(crate) async fn queue(channel: &Channel, name: &str) {
    channel.queue_declare(name.into(), QueueDeclareOptions::durable(), FieldTable::default()).await.unwrap();
}

/// The next message, if there is one.
pub(crate) async fn next(channel: &Channel, queue: &str) -> Option<(BasicProperties, Vec<u8>)> {
    let options = BasicGetOptions { no_ack: true };
    let message = channel.basic_get(queue.into(), options).await.unwrap()?;
    Some((message.delivery.properties, message.delivery.data))
}

/// The ids of all messages, in the queue's order.
pub(crate) async fn found(channel: &Channel, queue: &str) -> Vec<String> {
    let mut found = Vec::new();
    while let Some((properties, _)) = next(channel, queue).await {
        found.push(properties.message_id().as_ref().unwrap().to_string());
    }
    found
}

/// Of each the first.
pub(crate) fn without_repetitions(mut found: Vec<String>) -> Vec<String> {
    let mut seen = HashSet::new();
    found.retain(|id| seen.insert(id.clone()));
    found
}

/// What [`found`] finds when these are there.
pub(crate) fn ids(events: &[Event]) -> Vec<String> {
    events.iter().map(|event| event.id().to_string()).collect()
}

/// Whether a broker answers there. To connect is not enough: where nobody listens, a connection can
/// come to stand with itself, or with whoever has been given the port meanwhile.
fn greets(port: u16) -> std::io::Result<()> {
    let mut stream = TcpStream::connect(("127.0.0.1", port))?;
    stream.set_read_timeout(Some(Duration::from_secs(10)))?;
    stream.write_all(b"AMQP\0\0\x09\x01")?;
    let mut kind = [0];
    stream.read_exact(&mut kind)?;
    // A method: `connection.start`.
    if kind == [1] { Ok(()) } else { Err(std::io::ErrorKind::InvalidData.into()) }
}

/// The script and the node that it has started.
fn group(server: &Child) -> String {
    format!("-{}", server.id())
}

/// What it refuses is larger.
pub(crate) const LARGEST_MESSAGE: usize = 1 << 18;

/// It takes some seconds, and more on a machine that is busy.
const DEADLINE: Duration = Duration::from_secs(90);
