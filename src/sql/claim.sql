-- Take the key. One row: won. No row: somebody holds the lock, or the row is there.
--
-- $1 tenant  $2 operation  $3 key  $4 claim id  $5 fingerprint  $6 lock  $7 retention
--
-- The primary key is the proof. The advisory lock makes a duplicate fail at once instead of waiting
-- for the uncommitted row. `do nothing`, not `do update .. where`: the latter locks the row also
-- when it changes nothing, and costs a transaction id and WAL for each replay.
insert into idempotency.record (tenant_id, operation, idempotency_key, claim_id, fingerprint, state, expires_at)
select $1, $2, $3, $4, $5, 'pending', pg_catalog.clock_timestamp() + $7::interval
where pg_catalog.pg_try_advisory_xact_lock($6)
on conflict (tenant_id, operation, idempotency_key) do nothing
