//! A NATS server of a test's own.

use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use async_nats::jetstream::{self, Context, stream};
use devpg::Tether;
use uuid::Uuid;

use super::{absent, signal};

/// `nats-server -js` on a free port, with a directory of its own. Killed when this is dropped.
pub(crate) struct Nats {
    directory: PathBuf,
    port: String,
    server: Option<(Child, Tether)>,
}

impl Nats {
    /// None where it is not installed, and need not be.
    pub(crate) fn start() -> Option<Self> {
        let directory = std::env::temp_dir().join(format!("tower-idempotency-nats-{}", Uuid::now_v7()));
        std::fs::create_dir(&directory).unwrap();
        let mut nats = Self { directory, port: "-1".to_owned(), server: None };
        match nats.run() {
            Ok(()) => Some(nats),
            Err(error) => {
                absent("nats", &format!("nats-server cannot run ({error}); Debian's package is nats-server"));
                None
            }
        }
    }

    /// Kills it, as a crash would.
    pub(crate) fn kill(&mut self) {
        if let Some((mut server, tether)) = self.server.take() {
            server.kill().unwrap();
            drop(tether);
            server.wait().unwrap();
        }
    }

    /// Starts it again, on the same port and with what it had stored.
    pub(crate) fn restart(&mut self) {
        self.run().unwrap();
    }

    /// It does nothing any more, and its connections stay.
    #[allow(dead_code, reason = "of two programs that have this module, one uses it")]
    pub(crate) fn stands_still(&self) {
        self.tell("STOP");
    }

    /// After it stood still.
    #[allow(dead_code, reason = "of two programs that have this module, one uses it")]
    pub(crate) fn goes_on(&self) {
        self.tell("CONT");
    }

    fn tell(&self, name: &str) {
        assert!(signal(name, self.server.as_ref().unwrap().0.id()));
    }

    /// Where it listens, also after a restart.
    pub(crate) fn url(&self) -> String {
        format!("nats://127.0.0.1:{}", self.port)
    }

    fn run(&mut self) -> std::io::Result<()> {
        // Debian has it where a user's PATH does not lead.
        let server = self.spawn("nats-server").or_else(|_| self.spawn("/usr/sbin/nats-server"))?;
        let ports = self.directory.join(format!("nats-server_{}.ports", server.id()));
        let tether = Tether::to(&server, "KILL").unwrap();
        self.server = Some((server, tether));
        let started = Instant::now();
        let port = loop {
            // Empty while it is being written.
            let text = std::fs::read_to_string(&ports).unwrap_or_default();
            if let Ok(ports) = serde_json::from_str::<serde_json::Value>(&text) {
                let url = ports["nats"][0].as_str().unwrap();
                break url.rsplit(':').next().unwrap().to_owned();
            }
            assert!(started.elapsed() < Duration::from_secs(20), "nats-server does not listen");
            std::thread::sleep(Duration::from_millis(10));
        };
        self.port = port;
        Ok(())
    }

    fn spawn(&self, program: &str) -> std::io::Result<Child> {
        Command::new(program)
            .args(["--jetstream", "--addr", "127.0.0.1", "--port", &self.port])
            .arg("--store_dir")
            .arg(&self.directory)
            .arg("--ports_file_dir")
            .arg(&self.directory)
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
    }

    /// A connection of its own, that waits for an acknowledgement for a second.
    pub(crate) async fn context(&self) -> Context {
        let options =
            async_nats::ConnectOptions::new().reconnect_delay_callback(|_| Duration::from_millis(20));
        let client = options.connect(self.url()).await.unwrap();
        let mut context = jetstream::new(client);
        context.set_timeout(Duration::from_secs(1));
        context
    }

    /// A stream of these subjects, which outlives the server.
    pub(crate) async fn stream(&self, subjects: &[&str]) -> stream::Stream {
        let config = stream::Config {
            name: "events".to_owned(),
            subjects: subjects.iter().map(|subject| (*subject).to_owned()).collect(),
            ..Default::default()
        };
        self.context().await.create_stream(config).await.unwrap()
    }
}

impl Drop for Nats {
    fn drop(&mut self) {
        self.kill();
        drop(std::fs::remove_dir_all(&self.directory));
    }
}

/// How many messages a stream has.
pub(crate) async fn stored(stream: &mut stream::Stream) -> u64 {
    stream.info().await.unwrap().state.messages
}
