-- Dead letters are forgotten.
--
-- $1 ids, else null for all  $2 their least age  $3 how many at most
with due as materialized (
  select id from idempotency.outbox_dead
  where ($1::uuid[] is null or id = any ($1)) and died_at <= pg_catalog.now() - $2::interval
  order by died_at, id
  limit $3
  for update skip locked
)
delete from idempotency.outbox_dead d
using due
where d.id = due.id
returning d.id
