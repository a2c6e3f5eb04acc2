-- What is known of a key: the next statement after a claim that took no row.
--
-- $1 tenant  $2 operation  $3 key
--
-- The verdict is reached here, because only the database's clock counts; so is the time that is left.
select
  claim_id, fingerprint, status, headers, body, resource_type, resource_id,
  case
    when state not in ('pending', 'completed', 'failed', 'tombstone')      then 'unknown'  -- a newer version's
    when state = 'pending' and lease_until > pg_catalog.now()              then 'in flight'
    when state = 'pending' and expires_at <= pg_catalog.now()              then 'forgotten'
    when state = 'pending' and lease_until is null                         then 'broken'  -- its transaction was ended by hand
    when state = 'pending'                                                 then 'lapsed'
    when expires_at > pg_catalog.now()                                     then state
    when state = 'completed' and expires_at + tombstone > pg_catalog.now() then 'tombstone'
    else 'forgotten'
  end as verdict,
  pg_catalog.date_part('epoch', expires_at - pg_catalog.clock_timestamp()) as seconds_left
from idempotency.record
where tenant_id = $1 and operation = $2 and idempotency_key = $3
