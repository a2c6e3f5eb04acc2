//! A network between a service and its database that takes its time, and counts.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, Shutdown, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

/// On threads of its own, since a runtime's timer is too coarse for parts of a millisecond.
pub struct Network {
    pub port: u16,
    round_trips: Arc<AtomicU64>,
}

impl Network {
    /// A network to a port of loopback. What is sent arrives after the delay, in either direction.
    pub fn to(port: u16, delay: Duration) -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a free port");
        let own = listener.local_addr().expect("an address").port();
        let round_trips = Arc::new(AtomicU64::new(0));
        let count = Arc::clone(&round_trips);
        thread::spawn(move || {
            for client in listener.incoming().flatten() {
                let server = TcpStream::connect((Ipv4Addr::LOCALHOST, port)).expect("the server");
                for stream in [&client, &server] {
                    stream.set_nodelay(true).expect("a socket option");
                }
                let clone = |stream: &TcpStream| stream.try_clone().expect("a socket");
                let (from_client, to_server) = (clone(&client), clone(&server));
                thread::spawn(move || pass(from_client, to_server, delay, |_| {}));
                let count = Arc::clone(&count);
                thread::spawn(move || {
                    let mut answers = Answers::default();
                    pass(server, client, delay, |bytes| {
                        count.fetch_add(answers.ready(bytes), Ordering::Relaxed);
                    });
                });
            }
        });
        Self { port: own, round_trips }
    }

    /// How often the server has answered that it is ready for the next.
    pub fn round_trips(&self) -> u64 {
        self.round_trips.load(Ordering::Relaxed)
    }
}

fn pass(mut from: TcpStream, mut to: TcpStream, delay: Duration, mut see: impl FnMut(&[u8])) {
    let mut buffer = vec![0; 64 * 1024];
    while let Ok(length @ 1..) = from.read(&mut buffer) {
        see(&buffer[..length]);
        if !delay.is_zero() {
            thread::sleep(delay);
        }
        if to.write_all(&buffer[..length]).is_err() {
            break;
        }
    }
    let _ = (from.shutdown(Shutdown::Read), to.shutdown(Shutdown::Write));
}

/// Finds the messages in a server's stream: a letter, and a length that counts itself.
#[derive(Default)]
struct Answers {
    head: Vec<u8>,
    skip: usize,
}

impl Answers {
    /// How many `ReadyForQuery` begin in these bytes.
    fn ready(&mut self, mut bytes: &[u8]) -> u64 {
        let mut ready = 0;
        while !bytes.is_empty() {
            if self.skip > 0 {
                let skipped = self.skip.min(bytes.len());
                self.skip -= skipped;
                bytes = &bytes[skipped..];
                continue;
            }
            let wanted = 5 - self.head.len();
            let taken = wanted.min(bytes.len());
            self.head.extend_from_slice(&bytes[..taken]);
            bytes = &bytes[taken..];
            if let [kind, a, b, c, d] = self.head[..] {
                ready += u64::from(kind == b'Z');
                self.skip = u32::from_be_bytes([a, b, c, d]) as usize - 4;
                self.head.clear();
            }
        }
        ready
    }
}
