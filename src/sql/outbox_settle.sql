-- What became of lanes in hand, in one statement: acknowledged events go, lanes are given up, given
-- back or backed off, events that are given up become dead letters.
--
-- $1 ids that were acknowledged
-- per lane: $2 aggregate type  $3 aggregate id  $4 claim  $5 whether all that was read is done
--   $6 the event that failed, else null  $7 whether it is given up  $8 its attempts  $9 its failures
--   $10 its backoff in seconds  $11 its error
--
-- Acknowledged events go in any case. A lane is touched only by the claim that holds it. One that is
-- dirty has events that its owner may not have seen, and stays.
with lane as materialized (
  select c.*, l.dirty
  from (
    select * from unnest(
      $2::text[], $3::text[], $4::uuid[], $5::boolean[], $6::uuid[], $7::boolean[],
      $8::integer[], $9::integer[], $10::float8[], $11::text[]
    ) as c (aggregatetype, aggregateid, owner, is_done, head, is_dead, attempts, failures, backoff, error)
    -- Always the same order, so that two relays do not lock each other out.
    order by aggregatetype collate "C", aggregateid collate "C"
  ) c
  cross join lateral (
    select dirty from idempotency.outbox_lane l
    where l.aggregatetype = c.aggregatetype and l.aggregateid = c.aggregateid and l.owner = c.owner
    for update
  ) l
), acknowledged as (
  delete from idempotency.outbox where id = any ($1::uuid[])
), buried as (
  delete from idempotency.outbox o
  using lane
  where lane.is_dead and o.id = lane.head
  returning o.*, lane.attempts, lane.error
), dead as (
  insert into idempotency.outbox_dead
    (id, aggregatetype, aggregateid, type, payload, encoding, headers, created_at, attempts, error)
  select id, aggregatetype, aggregateid, type, payload, encoding, headers, created_at, attempts, error
  from buried
  -- An event of a dead one's id was published meanwhile, and has died, too.
  on conflict (id) do update set
    aggregatetype = excluded.aggregatetype, aggregateid = excluded.aggregateid, type = excluded.type,
    payload = excluded.payload, encoding = excluded.encoding, headers = excluded.headers,
    created_at = excluded.created_at, attempts = excluded.attempts, error = excluded.error,
    died_at = pg_catalog.clock_timestamp()
), over as (
  delete from idempotency.outbox_lane l
  using lane
  where lane.is_done and not lane.dirty
    and l.aggregatetype = lane.aggregatetype and l.aggregateid = lane.aggregateid
), kept as (
  update idempotency.outbox_lane l set
    owner = null, relay = null, dirty = false,
    ready_at = pg_catalog.clock_timestamp() + coalesce(lane.backoff, 0) * interval '1 second',
    head = lane.failed, attempts = coalesce(lane.attempts, 0), failures = coalesce(lane.failures, 0),
    last_error = case when lane.failed is not null then coalesce(lane.error, l.last_error) end
  from (
    select aggregatetype, aggregateid,
           head as failed, attempts, failures, backoff, error
    from lane
    where not is_dead and head is not null
    union all
    select aggregatetype, aggregateid, null, null, null, null, null
    from lane
    where (is_dead or head is null) and (dirty or not is_done)
  ) lane
  where l.aggregatetype = lane.aggregatetype and l.aggregateid = lane.aggregateid
)
-- Lanes that are ready at once.
select pg_catalog.count(*) filter (where (is_dead or head is null) and (dirty or not is_done)) as ready from lane
