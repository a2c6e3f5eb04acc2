//! A client that writes bytes of its own choosing.

use std::net::SocketAddr;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

/// One connection.
pub(crate) struct Raw(TcpStream);

impl Raw {
    pub(crate) async fn connect(address: SocketAddr) -> Self {
        Self(TcpStream::connect(address).await.unwrap())
    }

    pub(crate) async fn write(&mut self, bytes: impl AsRef<[u8]>) {
        self.0.write_all(bytes.as_ref()).await.unwrap();
        self.0.flush().await.unwrap();
    }

    /// One chunk of a chunked body.
    pub(crate) async fn chunk(&mut self, bytes: impl AsRef<[u8]>) {
        let bytes = bytes.as_ref();
        let mut chunk = format!("{:x}\r\n", bytes.len()).into_bytes();
        chunk.extend(bytes);
        chunk.extend(b"\r\n");
        self.write(chunk).await;
    }

    /// Says that nothing more will come, and still listens.
    pub(crate) async fn end(&mut self) {
        self.0.shutdown().await.unwrap();
    }

    /// All that comes until the server closes.
    pub(crate) async fn rest(mut self) -> String {
        let mut bytes = Vec::new();
        // A reset is an end, too.
        let _ = self.0.read_to_end(&mut bytes).await;
        String::from_utf8_lossy(&bytes).into_owned()
    }
}
