-- Events, in their order.
--
-- $1 ids  $2 aggregate types  $3 aggregate ids  $4 types
-- $5 payloads that are JSON, else null  $6 payloads that are bytes, else null  $7 headers
--
-- `order by`: the numbers that order an aggregate's events are drawn in the order of the list.
-- encode() breaks its lines.
insert into idempotency.outbox (id, aggregatetype, aggregateid, type, payload, encoding, headers)
select
  e.id, e.aggregatetype, e.aggregateid, e.type,
  coalesce(e.json::jsonb, pg_catalog.to_jsonb(pg_catalog.translate(pg_catalog.encode(e.bytes, 'base64'), e'\n', ''))),
  case when e.bytes is not null then 'base64' end,
  e.headers::jsonb
from unnest($1::uuid[], $2::text[], $3::text[], $4::text[], $5::text[], $6::bytea[], $7::text[])
  with ordinality as e (id, aggregatetype, aggregateid, type, json, bytes, headers, ordinality)
order by e.ordinality
