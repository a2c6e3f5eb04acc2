-- One batch of messages whose time is over.
--
-- $1 rows at most
with due as materialized (
  select subscriber, message_id from idempotency.inbox
  where expires_at <= pg_catalog.now()
  order by expires_at
  limit $1
  for update skip locked
), gone as (
  delete from idempotency.inbox i
  using due d
  where i.subscriber = d.subscriber and i.message_id = d.message_id
  returning 1
)
select pg_catalog.count(*) as deleted from gone
