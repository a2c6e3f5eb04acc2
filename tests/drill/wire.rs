//! Messages of PostgreSQL's protocol, as far as a network that breaks at the right place must know.

use tokio::io::{AsyncRead, AsyncReadExt as _};

/// One message with its head.
pub(crate) struct Frame {
    /// The protocol's letter; 0 for a client's first message.
    pub(crate) kind: u8,
    pub(crate) bytes: Vec<u8>,
}

impl Frame {
    pub(crate) async fn read(from: &mut (impl AsyncRead + Unpin), first: bool) -> Option<Self> {
        let kind = if first { 0 } else { from.read_u8().await.ok()? };
        let length = from.read_u32().await.ok()?;
        let mut bytes = if first { Vec::new() } else { vec![kind] };
        bytes.extend(length.to_be_bytes());
        let head = bytes.len();
        bytes.resize(head + usize::try_from(length).ok()?.checked_sub(4)?, 0);
        from.read_exact(&mut bytes[head..]).await.ok()?;
        Some(Self { kind, bytes })
    }

    /// Whether a client ends its transaction with it.
    pub(crate) fn is_commit(&self) -> bool {
        self.kind == b'Q' && &self.bytes[5..] == b"COMMIT\0"
    }

    /// Whether the server is ready for the next statement.
    pub(crate) const fn is_ready(&self) -> bool {
        self.kind == b'Z'
    }

    /// The process that serves this connection, where a server tells it.
    pub(crate) fn backend(&self) -> Option<u32> {
        let pid = self.bytes.get(5..9).filter(|_| self.kind == b'K')?;
        Some(u32::from_be_bytes(pid.try_into().ok()?))
    }
}

/// What a proxy says when it has lost its server: `connection_exception`.
pub(crate) fn connection_exception() -> Vec<u8> {
    let fields = b"SERROR\0VERROR\0C08P01\0Mserver conn crashed?\0\0";
    let mut error = vec![b'E'];
    error.extend(u32::try_from(fields.len() + 4).unwrap().to_be_bytes());
    error.extend(fields);
    error.extend(b"Z\0\0\0\x05I");
    error
}
