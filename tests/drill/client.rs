//! One attempt at one intent, over a connection of its own.

use std::net::SocketAddr;
use std::time::Duration;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

/// An answer that came whole.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    /// All lines but those that a replay may change.
    pub(crate) lines: Vec<String>,
    pub(crate) body: String,
    pub(crate) replayed: bool,
}

/// What a client does other than wait for the answer.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Manners {
    Patient,
    /// Sends only so many bytes of the request.
    HangsUpAt(usize),
    /// Sends all of it, and goes after so long.
    Leaves(Duration),
}

pub(crate) fn request(key: &str, body: &str, fault: &str) -> Vec<u8> {
    format!(
        "POST / HTTP/1.1\r\nhost: drill\r\nconnection: close\r\nidempotency-key: {key}\r\nx-fault: {fault}\r\n\
         content-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    )
    .into_bytes()
}

/// `None`: no answer, or half of one.
pub(crate) async fn attempt(
    address: SocketAddr,
    request: &[u8],
    manners: Manners,
    patience: Duration,
) -> Option<Answer> {
    let exchange = async {
        let mut socket = TcpStream::connect(address).await.ok()?;
        let sent = match manners {
            Manners::HangsUpAt(byte) => &request[..byte.min(request.len())],
            _ => request,
        };
        socket.write_all(sent).await.ok()?;
        match manners {
            Manners::HangsUpAt(_) => return None,
            Manners::Leaves(time) => {
                tokio::time::sleep(time).await;
                return None;
            }
            Manners::Patient => {}
        }
        let mut bytes = Vec::new();
        socket.read_to_end(&mut bytes).await.ok()?;
        parse(&String::from_utf8(bytes).ok()?)
    };
    tokio::time::timeout(patience, exchange).await.ok().flatten()
}

fn parse(answer: &str) -> Option<Answer> {
    let (head, body) = answer.split_once("\r\n\r\n")?;
    let mut lines = head.lines();
    let status = lines.next()?.split(' ').nth(1)?.parse().ok()?;
    let (mut kept, mut replayed, mut whole) = (Vec::new(), false, false);
    for line in lines {
        match line.split_once(": ")? {
            ("date", _) => {}
            ("idempotent-replayed", _) => replayed = true,
            ("content-length", length) => whole = length.parse() == Ok(body.len()),
            _ => kept.push(line.to_owned()),
        }
    }
    kept.sort();
    whole.then(|| Answer { status, lines: kept, body: body.to_owned(), replayed })
}

/// Waits until a service executes nothing any more, and has all its connections back.
pub(crate) async fn idle(address: SocketAddr) -> Result<(), String> {
    let request = b"GET /idle HTTP/1.1\r\nhost: drill\r\nconnection: close\r\n\r\n";
    let started = std::time::Instant::now();
    loop {
        let answer = attempt(address, request, Manners::Patient, IDLE).await;
        let is_idle = answer.as_ref().is_some_and(|answer| {
            let words: Vec<&str> = answer.body.split(' ').collect();
            words[0] == words[2]
        });
        if is_idle {
            return Ok(());
        }
        if started.elapsed() > IDLE {
            return Err(format!("a service is not idle: {answer:?}"));
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

const IDLE: Duration = Duration::from_secs(40);
