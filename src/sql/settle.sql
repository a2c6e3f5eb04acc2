-- The last statement before COMMIT: the response joins the effects. It must change one row.
--
-- $1 tenant  $2 operation  $3 key  $4 claim id  $5 state
-- $6 status  $7 headers  $8 body  $9 resource type  $10 resource id  $11 retention  $12 tombstone
--
-- xmin: the row must have been written by this very transaction. A handler that sent COMMIT or
-- ROLLBACK itself is in another one by now, and no row is changed.
-- expires_at counts from settling. Where it would hardly move it is left alone, so that the update
-- does not touch an indexed column and stays HOT.
update idempotency.record set
  state = $5, status = $6, headers = $7, body = $8, resource_type = $9, resource_id = $10,
  expires_at = case
    when pg_catalog.clock_timestamp() - pg_catalog.now() < least(interval '1 second', $11::interval / 100)
      then expires_at
    else pg_catalog.clock_timestamp() + $11::interval
  end,
  tombstone = $12::interval
where tenant_id = $1 and operation = $2 and idempotency_key = $3
  and claim_id = $4 and state = 'pending' and lease_until is null
  and xmin = pg_catalog.pg_current_xact_id()::pg_catalog.xid
