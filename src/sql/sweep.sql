-- One batch of expired rows: deleted, or turned into tombstones. Never a live row, never a pending
-- one within its time, never one in a state that only a newer version knows.
--
-- $1 rows at most
--
-- The materialized CTE bounds the batch under every plan; `in (select .. limit ..)` deleted more
-- than its limit under a bad one. `skip locked`: sweepers on other replicas take other rows.
with due as materialized (
  select tenant_id, operation, idempotency_key,
         state = 'completed' and expires_at + coalesce(tombstone, '0') > pg_catalog.now() as refuse
  from idempotency.record
  where expires_at <= pg_catalog.now()
    and (state in ('completed', 'failed', 'tombstone')
      or (state = 'pending' and coalesce(lease_until, expires_at) <= pg_catalog.now()))
  order by expires_at
  limit $1
  for update skip locked
), stone as (
  update idempotency.record r set
    state = 'tombstone', status = null, headers = null, body = null, resource_type = null, resource_id = null,
    expires_at = r.expires_at + r.tombstone, tombstone = null
  from due d
  where d.refuse
    and r.tenant_id = d.tenant_id and r.operation = d.operation and r.idempotency_key = d.idempotency_key
  returning 1
), gone as (
  delete from idempotency.record r
  using due d
  where not d.refuse
    and r.tenant_id = d.tenant_id and r.operation = d.operation and r.idempotency_key = d.idempotency_key
  returning 1
)
select (select pg_catalog.count(*) from gone) as deleted, (select pg_catalog.count(*) from stone) as tombstoned
