-- Take over a key whose row has expired, or whose owner let the lease lapse. One row: won.
--
-- $1 tenant  $2 operation  $3 key  $4 claim id  $5 fingerprint  $6 lock  $7 retention
--
-- A lapsed claim is taken over only by the same request: its steps may have had effects.
with lock as materialized (select pg_catalog.pg_try_advisory_xact_lock($6) as taken)
update idempotency.record r set
  claim_id = $4, fingerprint = $5, state = 'pending',
  attempt = case when r.state = 'pending' and r.expires_at > pg_catalog.now() then r.attempt + 1 else 1 end,
  status = null, headers = null, body = null, resource_type = null, resource_id = null,
  created_at = pg_catalog.clock_timestamp(), lease_until = null,
  expires_at = pg_catalog.clock_timestamp() + $7::interval, tombstone = null
from lock
where lock.taken
  and r.tenant_id = $1 and r.operation = $2 and r.idempotency_key = $3
  and (
    (r.state in ('completed', 'failed', 'tombstone')
      and r.expires_at + case when r.state = 'completed' then coalesce(r.tombstone, '0') else '0' end
        <= pg_catalog.now())
    or (r.state = 'pending' and r.expires_at <= pg_catalog.now()
      and coalesce(r.lease_until, r.expires_at) <= pg_catalog.now())
    or (r.state = 'pending' and r.lease_until <= pg_catalog.now() and r.fingerprint = $5)
  )
