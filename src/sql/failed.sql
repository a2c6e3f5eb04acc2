-- After the rollback: keep the refusal, in one statement under the lock. One row: kept. No row:
-- another attempt has claimed the key meanwhile.
--
-- $1 tenant  $2 operation  $3 key  $4 claim id  $5 fingerprint  $6 lock
-- $7 status  $8 headers  $9 body  $10 resource type  $11 resource id  $12 retention
insert into idempotency.record as r
  (tenant_id, operation, idempotency_key, claim_id, fingerprint, state,
   status, headers, body, resource_type, resource_id, expires_at)
select $1, $2, $3, $4, $5, 'failed', $7, $8, $9, $10, $11, pg_catalog.clock_timestamp() + $12::interval
where pg_catalog.pg_try_advisory_xact_lock($6)
on conflict (tenant_id, operation, idempotency_key) do update set
  claim_id = excluded.claim_id, fingerprint = excluded.fingerprint, state = 'failed', attempt = 1,
  status = excluded.status, headers = excluded.headers, body = excluded.body,
  resource_type = excluded.resource_type, resource_id = excluded.resource_id,
  created_at = excluded.created_at, lease_until = null, expires_at = excluded.expires_at, tombstone = null
where r.state in ('completed', 'failed', 'tombstone')
  and r.expires_at + case when r.state = 'completed' then coalesce(r.tombstone, '0') else '0' end
    <= pg_catalog.now()
returning r.attempt
