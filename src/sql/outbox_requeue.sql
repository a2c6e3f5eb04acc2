-- Dead letters become events again, behind all that wait for their aggregate.
--
-- $1 ids, else null for all  $2 how many at most
--
-- One whose id has been published anew stays dead.
with due as materialized (
  select id from idempotency.outbox_dead d
  where ($1::uuid[] is null or id = any ($1))
    and not exists (select from idempotency.outbox o where o.id = d.id)
  order by died_at, id
  limit $2
  for update skip locked
), gone as (
  delete from idempotency.outbox_dead d
  using due
  where d.id = due.id
  returning d.*
)
insert into idempotency.outbox (id, aggregatetype, aggregateid, type, payload, encoding, headers)
select id, aggregatetype, aggregateid, type, payload, encoding, headers
from gone
order by died_at, id
returning id
