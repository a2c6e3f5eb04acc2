-- Of messages that are known, those whose time is over are new again. The next statement after the
-- insert: its snapshot sees what that has waited for.
--
-- $1 subscriber  $2 message ids  $3 receipt  $4 retention
--
-- A row in neither state was deleted, or renewed, in between: ask again.
with due as materialized (
  select i.message_id
  from idempotency.inbox i
  where i.subscriber = $1 and i.message_id = any ($2) and i.expires_at <= pg_catalog.now()
  order by i.message_id
  for update
), renewed as (
  update idempotency.inbox i set
    receipt = $3, received_at = pg_catalog.clock_timestamp(), expires_at = pg_catalog.clock_timestamp() + $4::interval
  from due
  where i.subscriber = $1 and i.message_id = due.message_id
  returning i.message_id
)
select message_id, true as is_renewed from renewed
union all
select message_id, false from idempotency.inbox
where subscriber = $1 and message_id = any ($2) and expires_at > pg_catalog.now()
