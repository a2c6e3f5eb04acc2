//! A response's body, held until it is recorded.

use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use axum::body::Body;
use bytes::Bytes;
use http::HeaderMap;
use http::header::CONTENT_TYPE;
use http_body::{Frame, SizeHint};
use http_body_util::BodyExt as _;

/// What became of a response's body.
pub(crate) enum Buffered {
    /// All of it.
    Whole(Bytes),
    /// It is too large, too slow, a stream of events, or ends in trailers: to be sent, not stored.
    Unstored(Body),
    /// It failed before its end.
    Broken(axum::Error),
}

/// Reads a body up to a number of bytes and for a time. What was read is not lost.
pub(crate) async fn buffer(headers: &HeaderMap, mut body: Body, limit: usize, time: Duration) -> Buffered {
    let declared = http_body::Body::size_hint(&body).lower();
    if is_event_stream(headers) || usize::try_from(declared).is_ok_and(|declared| declared > limit) {
        return Buffered::Unstored(body);
    }
    let mut frames = VecDeque::new();
    let read = tokio::time::timeout(time, async {
        let mut length = 0;
        while let Some(frame) = body.frame().await {
            let frame = frame?;
            let trailers = frame.is_trailers();
            let data = frame.data_ref().map_or(0, Bytes::len);
            length += data;
            if trailers || data > 0 {
                frames.push_back(frame);
            }
            // A body that is always ready must not keep the time from running out.
            tokio::task::consume_budget().await;
            if trailers || length > limit {
                return Ok(false);
            }
        }
        Ok(true)
    })
    .await;
    match read {
        Ok(Ok(true)) => Buffered::Whole(joined(frames)),
        Ok(Ok(false)) | Err(_) => Buffered::Unstored(Body::new(Resumed { frames, rest: body })),
        Ok(Err(error)) => Buffered::Broken(error),
    }
}

fn is_event_stream(headers: &HeaderMap) -> bool {
    let kind = headers.get(CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or_default();
    kind.split(';').next().unwrap_or_default().trim().eq_ignore_ascii_case("text/event-stream")
}

fn joined(frames: VecDeque<Frame<Bytes>>) -> Bytes {
    let mut parts = frames.into_iter().filter_map(|frame| frame.into_data().ok());
    let first = parts.next().unwrap_or_default();
    let rest: Vec<Bytes> = parts.collect();
    if rest.is_empty() {
        first
    } else {
        [first].iter().chain(&rest).flat_map(|part| part.iter().copied()).collect()
    }
}

/// What was read, then what was not.
struct Resumed {
    frames: VecDeque<Frame<Bytes>>,
    rest: Body,
}

impl http_body::Body for Resumed {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        match self.frames.pop_front() {
            Some(frame) => Poll::Ready(Some(Ok(frame))),
            None => Pin::new(&mut self.rest).poll_frame(cx),
        }
    }

    fn is_end_stream(&self) -> bool {
        self.frames.is_empty() && self.rest.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        let read: usize = self.frames.iter().filter_map(Frame::data_ref).map(Bytes::len).sum();
        let read = read as u64;
        let rest = self.rest.size_hint();
        let mut hint = SizeHint::new();
        hint.set_lower(rest.lower().saturating_add(read));
        if let Some(upper) = rest.upper().and_then(|upper| upper.checked_add(read)) {
            hint.set_upper(upper);
        }
        hint
    }
}

/// A request's body, which the handler can be given more than once.
pub(crate) enum RequestBody {
    Buffered {
        bytes: Bytes,
        trailers: Option<HeaderMap>,
    },
    /// Not read by the layer: a stream, for one execution.
    Streaming {
        body: Option<Body>,
        broken: Arc<AtomicBool>,
    },
}

impl RequestBody {
    pub(crate) fn streaming(body: Body) -> Self {
        let broken = Arc::new(AtomicBool::new(false));
        let flag = Arc::clone(&broken);
        let body = body.map_err(move |error| {
            flag.store(true, Ordering::Relaxed);
            error
        });
        Self::Streaming { body: Some(Body::new(body)), broken }
    }

    /// The body for one more execution, if there can be one.
    pub(crate) fn next(&mut self) -> Option<Body> {
        match self {
            Self::Buffered { bytes, trailers: None } => Some(Body::from(bytes.clone())),
            Self::Buffered { bytes, trailers: Some(trailers) } => {
                let data = (!bytes.is_empty()).then(|| Frame::data(bytes.clone()));
                let frames = data.into_iter().chain([Frame::trailers(trailers.clone())]).collect();
                Some(Body::new(Resumed { frames, rest: Body::empty() }))
            }
            Self::Streaming { body, .. } => body.take(),
        }
    }

    pub(crate) const fn is_repeatable(&self) -> bool {
        matches!(self, Self::Buffered { .. })
    }

    /// Whether it failed before its end, while the handler read it.
    pub(crate) fn is_broken(&self) -> bool {
        matches!(self, Self::Streaming { broken, .. } if broken.load(Ordering::Relaxed))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures_util::stream;
    use http_body_util::StreamBody;

    const SECOND: Duration = Duration::from_secs(1);

    fn frames(parts: &[&'static str]) -> Body {
        let parts: Vec<_> = parts
            .iter()
            .map(|part| Ok::<_, axum::Error>(Frame::data(Bytes::from_static(part.as_bytes()))))
            .collect();
        Body::new(StreamBody::new(stream::iter(parts)))
    }

    async fn text(body: Body) -> String {
        String::from_utf8(body.collect().await.unwrap().to_bytes().to_vec()).unwrap()
    }

    #[tokio::test]
    async fn a_body_over_the_limit_is_still_sent_whole() {
        let Buffered::Unstored(body) =
            buffer(&HeaderMap::new(), frames(&["abc", "def", "ghi"]), 5, SECOND).await
        else {
            panic!("stored");
        };
        assert_eq!(text(body).await, "abcdefghi");
    }

    #[tokio::test]
    async fn a_body_at_the_limit_is_stored() {
        let Buffered::Whole(bytes) = buffer(&HeaderMap::new(), frames(&["abc", "de"]), 5, SECOND).await
        else {
            panic!("not stored");
        };
        assert_eq!(bytes, "abcde");
    }

    #[tokio::test(start_paused = true)]
    async fn a_body_that_takes_too_long_goes_on_where_it_was() {
        let slow = stream::unfold(0, async |n| {
            tokio::time::sleep(SECOND * 2 * n).await;
            (n < 3).then(|| (Ok::<_, axum::Error>(Frame::data(Bytes::from_static(b"x"))), n + 1))
        });
        let body = Body::new(StreamBody::new(Box::pin(slow)));
        let Buffered::Unstored(body) = buffer(&HeaderMap::new(), body, 100, SECOND).await else {
            panic!("stored");
        };
        assert_eq!(text(body).await, "xxx");
    }
}
