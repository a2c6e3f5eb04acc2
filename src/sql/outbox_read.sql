-- The first events of each lane. A statement after the claim: its snapshot sees what the lane's last
-- owner has deleted.
--
-- $1 aggregate types  $2 aggregate ids  $3 events a lane  $4 bytes in all
--
-- The first event of each lane comes whatever its size, and then the second of each. The size is
-- that of what is stored; a payload is not fetched to be measured. `found` says how many there were,
-- up to $3.
select
  o.lane, o.id, o.aggregatetype, o.aggregateid, o.type, o.encoding is not null as is_bytes,
  case when o.encoding is null then pg_catalog.convert_to(o.payload::text, 'UTF8') else pg_catalog.decode(o.payload #>> '{}', 'base64') end
    as payload,
  o.headers::text as headers, o.found
from (
  select e.*, c.lane, pg_catalog.sum(pg_catalog.pg_column_size(e.payload)) over (order by e.place, c.lane) as bytes
  from unnest($1::text[], $2::text[]) with ordinality as c (aggregatetype, aggregateid, lane)
  cross join lateral (
    select w.*, pg_catalog.row_number() over (order by w.seq) as place, pg_catalog.count(*) over () as found
    from (
      -- A range, where an equality would do: with that the planner may sort a lane of a million
      -- events to find its first.
      select * from idempotency.outbox o
      where o.aggregatetype = c.aggregatetype
        and o.aggregateid >= c.aggregateid and o.aggregateid <= c.aggregateid
      order by o.aggregateid, o.seq
      limit $3
    ) w
  ) e
) o
where o.place = 1 or o.bytes <= $4
order by o.lane, o.place
