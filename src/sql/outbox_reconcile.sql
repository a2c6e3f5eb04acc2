-- Lanes for aggregates that have events and no lane. There are none, unless the tables were restored
-- from a dump, whose transaction ids mean nothing here; then the last look is forgotten, too.
with restored as (
  update idempotency.outbox_look set snapshot = '1:1:'
  where pg_catalog.pg_snapshot_xmax(snapshot) > pg_catalog.pg_snapshot_xmax(pg_catalog.pg_current_snapshot())
)
insert into idempotency.outbox_lane (aggregatetype, aggregateid, ready_at)
select distinct o.aggregatetype, o.aggregateid, pg_catalog.now()
from idempotency.outbox o
where not exists (
  select from idempotency.outbox_lane l
  where l.aggregatetype = o.aggregatetype and l.aggregateid = o.aggregateid
)
order by o.aggregatetype, o.aggregateid
on conflict (aggregatetype, aggregateid) do nothing
