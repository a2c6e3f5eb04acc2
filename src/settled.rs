//! What this process knows of keys that have been settled.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use quick_cache::Weighter;
use quick_cache::sync::Cache;
use tokio::time::Instant;

use crate::claim::{Record, Verdict};
use crate::scope::ScopeHash;

/// Two short cuts, and nothing that anything rests on. A key that is marked is read before it is
/// claimed, which a replay saves three round trips by. A record that is kept here is not read at all.
#[derive(Clone)]
pub(crate) struct SettledKeys {
    marks: Arc<[AtomicU64]>,
    records: Option<Arc<Cache<ScopeHash, Kept, Weight>>>,
}

#[derive(Clone)]
struct Kept {
    record: Record,
    until: Instant,
}

impl SettledKeys {
    pub(crate) fn new() -> Self {
        Self { marks: (0..MARKS).map(|_| AtomicU64::new(0)).collect(), records: None }
    }

    /// Keeps records in at most this many bytes of memory.
    pub(crate) fn with_records(mut self, bytes: usize) -> Self {
        let typical = bytes / (OVERHEAD * 2);
        self.records = (bytes > 0).then(|| Arc::new(Cache::with_weighter(typical, bytes as u64, Weight)));
        self
    }

    /// The key has been settled, as far as this process knows.
    pub(crate) fn mark(&self, scope: ScopeHash) {
        self.place(scope).store(scope.as_u64(), Ordering::Relaxed);
    }

    /// Never of a key that nobody marked, but for one that shares its 64 bits. A later key can have
    /// taken its place.
    pub(crate) fn is_marked(&self, scope: ScopeHash) -> bool {
        self.place(scope).load(Ordering::Relaxed) == scope.as_u64()
    }

    fn place(&self, scope: ScopeHash) -> &AtomicU64 {
        &self.marks[(scope.as_u64() % MARKS as u64) as usize]
    }

    /// Keeps what the database said to a question that was asked then.
    pub(crate) fn keep(&self, scope: ScopeHash, record: &Record, asked: Instant) {
        self.mark(scope);
        let Some(records) = &self.records else { return };
        // A record that was settled does not change before it expires; nothing else stays as it is.
        if !matches!(record.verdict, Verdict::Completed | Verdict::Failed) {
            return;
        }
        let until = asked + record.left.min(LONGEST);
        records.insert(scope, Kept { record: record.clone(), until });
    }

    /// The record, if it is here. Its fingerprint has not been compared.
    pub(crate) fn record(&self, scope: ScopeHash) -> Option<Record> {
        let records = self.records.as_ref()?;
        let kept = records.get(&scope)?;
        if Instant::now() < kept.until {
            return Some(kept.record);
        }
        records.remove(&scope);
        None
    }
}

/// What a record takes, in bytes.
#[derive(Clone)]
struct Weight;

impl Weighter<ScopeHash, Kept> for Weight {
    fn weight(&self, _: &ScopeHash, Kept { record, .. }: &Kept) -> u64 {
        let lengths =
            [&record.headers, &record.body].map(|part| part.as_ref().map_or(0, |bytes| bytes.len()));
        let resource = record.resource.as_ref().map_or(0, |held| held.kind().len() + held.id().len());
        (OVERHEAD + record.fingerprint.len() + lengths.iter().sum::<usize>() + resource) as u64
    }
}

/// 256 KiB in all. Most retries come within minutes; one whose mark is gone costs what it would cost
/// without them.
const MARKS: usize = 1 << 15;

/// What the cache and the record need besides the record's bytes, about.
const OVERHEAD: usize = 384;

/// Bounds for how long a row that was deleted by hand, or lost with a failed server, is still
/// answered from. Retries come in seconds, and the next one after it reads the row again.
const LONGEST: Duration = Duration::from_secs(300);

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;
    use crate::IdempotencyKey;
    use crate::scope::Scope;

    fn scope(key: &str) -> ScopeHash {
        let key = IdempotencyKey::new(key).unwrap();
        Scope { tenant: "t".into(), operation: "o".into(), key }.hash()
    }

    fn record(verdict: Verdict, left: Duration) -> Record {
        Record {
            claim_id: uuid::Uuid::nil(),
            fingerprint: Bytes::from_static(b"\x01fingerprint"),
            verdict,
            left,
            status: Some(201),
            headers: Some(Bytes::new()),
            body: Some(Bytes::from_static(b"body")),
            resource: None,
        }
    }

    #[test]
    fn a_key_is_marked_after_it_was_and_no_other_is() {
        let known = SettledKeys::new();
        assert!(!known.is_marked(scope("a")));
        known.mark(scope("a"));
        assert!(known.is_marked(scope("a")));
        assert!(!known.is_marked(scope("b")));
    }

    #[test]
    fn a_record_is_kept_until_it_expires_and_no_longer_than_five_minutes() {
        let known = SettledKeys::new().with_records(1 << 20);
        let now = Instant::now();
        let day = Duration::from_secs(86_400);
        known.keep(scope("a"), &record(Verdict::Completed, day), now);
        assert!(known.record(scope("a")).is_some());
        let Some(before) = now.checked_sub(Duration::from_secs(301)) else { return };
        known.keep(scope("b"), &record(Verdict::Completed, day), before);
        assert!(known.record(scope("b")).is_none());
        known.keep(scope("c"), &record(Verdict::Failed, Duration::ZERO), now);
        assert!(known.record(scope("c")).is_none());
    }

    #[test]
    fn only_settled_records_are_kept() {
        let known = SettledKeys::new().with_records(1 << 20);
        for verdict in [Verdict::Tombstone, Verdict::Lapsed, Verdict::Broken] {
            known.keep(scope("a"), &record(verdict, Duration::from_secs(60)), Instant::now());
            assert!(known.record(scope("a")).is_none(), "{verdict:?}");
        }
    }

    #[test]
    fn records_take_no_more_memory_than_they_may() {
        let known = SettledKeys::new().with_records(1 << 20);
        for n in 0..10_000 {
            known.keep(
                scope(&format!("k{n}")),
                &record(Verdict::Completed, Duration::from_secs(60)),
                Instant::now(),
            );
        }
        let records = known.records.unwrap();
        assert!(records.weight() <= 1 << 20);
        assert!(records.len() > 1000, "{}", records.len());
    }
}
