//! One exchange over a bare socket: the bytes as they are on the wire.

use std::net::SocketAddr;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

/// A response as it came, cut at its line ends only.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct RawAnswer {
    pub(crate) status: Vec<u8>,
    pub(crate) lines: Vec<Vec<u8>>,
    pub(crate) body: Vec<u8>,
}

/// Posts with these header lines, as bytes, and reads until the service closes the connection.
pub(crate) async fn post_raw(address: SocketAddr, path: &str, lines: &[&[u8]], body: &[u8]) -> RawAnswer {
    let request = format!("POST {path} HTTP/1.1");
    let length = format!("content-length: {}", body.len());
    let own: [&[u8]; 4] = [request.as_bytes(), b"host: test", b"connection: close", length.as_bytes()];
    let mut request = Vec::new();
    for line in own.iter().chain(lines) {
        request.extend_from_slice(line);
        request.extend_from_slice(b"\r\n");
    }
    request.extend_from_slice(b"\r\n");
    request.extend_from_slice(body);

    let mut socket = TcpStream::connect(address).await.unwrap();
    socket.write_all(&request).await.unwrap();
    let mut answer = Vec::new();
    socket.read_to_end(&mut answer).await.unwrap();

    let end = answer.windows(4).position(|bytes| bytes == b"\r\n\r\n").unwrap();
    let body = answer[end + 4..].to_vec();
    let mut lines = Vec::new();
    let mut rest = &answer[..end];
    while let Some(end) = rest.windows(2).position(|bytes| bytes == b"\r\n") {
        lines.push(rest[..end].to_vec());
        rest = &rest[end + 2..];
    }
    lines.push(rest.to_vec());
    RawAnswer { status: lines.remove(0), lines, body }
}

impl RawAnswer {
    /// Takes the line of this header out; whether there was one.
    pub(crate) fn take(&mut self, name: &str) -> bool {
        let before = self.lines.len();
        let name = format!("{name}: ");
        self.lines.retain(|line| !line.starts_with(name.as_bytes()));
        self.lines.len() < before
    }
}
