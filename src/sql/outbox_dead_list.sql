-- Dead letters, the oldest first, after one of them.
--
-- $1 how many  $2 the id to go on after, else null
select
  id, aggregatetype, aggregateid, type, encoding is not null as is_bytes,
  case when encoding is null then pg_catalog.convert_to(payload::text, 'UTF8') else pg_catalog.decode(payload #>> '{}', 'base64') end
    as payload,
  headers::text as headers,
  attempts, error, extract(epoch from died_at)::float8 as died_at
from idempotency.outbox_dead
where $2::uuid is null
  or (died_at, id) > (select died_at, id from idempotency.outbox_dead where id = $2)
order by died_at, id
limit $1
