-- Take lanes: those that are ready, then those of events that nobody has looked at. One statement,
-- autocommit.
--
-- $1 claim  $2 lease  $3 lanes at most  $4 of them, that have failed before
-- $5 events to look at, about  $6 the number of the relay that asks, else null
--
-- Nothing here costs more when more events wait, are leased or are backed off: lanes are found by
-- their time, and an event is looked at once. Not a cursor over seq, which would skip a transaction
-- that drew its number early and committed late: what was not visible in the snapshot of the last
-- look has not been seen, whenever it commits.
--
-- A row without an aggregate type says, in place of the id, what else there is: `gone`, a relay whose
-- session is gone; `more`, events that are left for another look.
with fresh as materialized (
  select ctid as at, aggregatetype, aggregateid from idempotency.outbox_lane
  where head is null and ready_at <= pg_catalog.now()
  order by ready_at
  limit $3
  for update skip locked
), retry as materialized (
  select ctid as at, aggregatetype, aggregateid from idempotency.outbox_lane
  where head is not null and ready_at <= pg_catalog.now()
  order by ready_at
  limit $4
  for update skip locked
), ready as materialized (
  (select * from retry union all select * from fresh) limit $3
), claimed as (
  -- By their place, which is the same under every plan. One that has moved is claimed another time.
  update idempotency.outbox_lane l set
    owner = $1, relay = $6, ready_at = pg_catalog.clock_timestamp() + $2::interval, dirty = false
  where l.ctid = any (array(select at from ready))
  returning l.aggregatetype, l.aggregateid, l.head, l.attempts, l.failures
), look as materialized (
  -- One look at a time; who comes second has nothing to add. The lock costs no transaction id.
  select snapshot, pg_catalog.pg_snapshot_xmax(snapshot)::text::bigint as xmax from idempotency.outbox_look
  where pg_catalog.pg_try_advisory_xact_lock(7309940819317977704)
), bound as materialized (
  -- The first transaction that is left for another look, where there are too many.
  select
    coalesce(b.xmax, pg_catalog.pg_snapshot_xmax(pg_catalog.pg_current_snapshot())::text::bigint) as xmax,
    b.xmax is not null as is_cut_off
  from (
    select (
      select xact + 1 from idempotency.outbox
      where xact >= (select xmax from look)
      order by xact
      offset $5 limit 1
    ) as xmax
  ) b
), unseen as materialized (
  select aggregatetype, aggregateid, pg_catalog.min(seq) as seq, pg_catalog.min(created_at) as since
  from (
    select aggregatetype, aggregateid, seq, created_at from idempotency.outbox
    where xact >= (select xmax from look) and xact < (select xmax from bound)
    union all
    -- Of transactions that were running then.
    select aggregatetype, aggregateid, seq, created_at from idempotency.outbox
    where xact = any (array(select pg_catalog.pg_snapshot_xip(snapshot)::text::bigint from look))
  ) o
  group by aggregatetype, aggregateid
), looked as (
  -- What is running now, and what is left, has not been seen.
  update idempotency.outbox_look set snapshot = (
    select pg_catalog.concat_ws(':', least(pg_catalog.min(x.xact), b.xmax), b.xmax, coalesce(pg_catalog.string_agg(x.xact::text, ',' order by x.xact), ''))
    from bound b
    left join (select pg_catalog.pg_snapshot_xip(pg_catalog.pg_current_snapshot())::text::bigint as xact) x on x.xact < b.xmax
    group by b.xmax
  )::pg_snapshot
  where exists (select from unseen)
), found as materialized (
  -- Without lanes that nobody holds: who claims one reads its events later, and sees these.
  select u.aggregatetype, u.aggregateid, u.since, pg_catalog.row_number() over (order by u.seq) as place
  from unseen u
  where not coalesce(
    (
      select l.owner is null from idempotency.outbox_lane l
      where l.aggregatetype = u.aggregatetype and l.aggregateid = u.aggregateid
    ),
    false
  )
  -- Nor those that are claimed here. One that was ready, and has moved, may have an owner who is done.
  and not exists (
    select from claimed c where c.aggregatetype = u.aggregatetype and c.aggregateid = u.aggregateid
  )
), added as (
  insert into idempotency.outbox_lane as l (aggregatetype, aggregateid, owner, relay, ready_at)
  select
    f.aggregatetype, f.aggregateid,
    case when f.place <= free.lanes then $1 end,
    case when f.place <= free.lanes then $6 end,
    case when f.place <= free.lanes then pg_catalog.clock_timestamp() + $2::interval else least(f.since, pg_catalog.now()) end
  from found f, (select $3 - pg_catalog.count(*) as lanes from ready) free
  order by f.aggregatetype, f.aggregateid
  on conflict (aggregatetype, aggregateid) do update set dirty = true
  returning l.aggregatetype, l.aggregateid, l.owner
)
select aggregatetype, aggregateid, head, attempts, failures from claimed
union all
select aggregatetype, aggregateid, null, 0, 0 from added where owner = $1
union all
select null, 'more', null, 0, 0 from bound where is_cut_off
union all
select null, 'gone', null, 0, 0
where exists (
  select from idempotency.outbox_relay
  where id is distinct from $6
    and (gone_at is null or gone_at < pg_catalog.now() - interval '1 second')
    -- Shared, so that two that ask do not hide from each other what they ask for.
    and pg_catalog.pg_try_advisory_xact_lock_shared(1918982004, id)
)
