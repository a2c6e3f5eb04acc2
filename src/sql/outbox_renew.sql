-- Keep lanes, where they are still ours.
--
-- $1 aggregate types  $2 aggregate ids  $3 claims  $4 lease  $5 the relay's number, else null
with lane as materialized (
  select c.aggregatetype, c.aggregateid
  from (
    select * from unnest($1::text[], $2::text[], $3::uuid[]) as c (aggregatetype, aggregateid, owner)
    order by aggregatetype collate "C", aggregateid collate "C"
  ) c
  cross join lateral (
    select from idempotency.outbox_lane l
    where l.aggregatetype = c.aggregatetype and l.aggregateid = c.aggregateid and l.owner = c.owner
    for update
  ) l
)
update idempotency.outbox_lane l set relay = $5, ready_at = pg_catalog.clock_timestamp() + $4::interval
from lane
where l.aggregatetype = lane.aggregatetype and l.aggregateid = lane.aggregateid
returning l.aggregatetype, l.aggregateid, l.owner
