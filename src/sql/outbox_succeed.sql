-- Lanes of relays whose session is gone are ready. One statement, autocommit.
--
-- $1 the number of the relay that asks, else null
--
-- Twice for each of them: at once, and a little later, for what one of its statements has claimed
-- that outlived the session, or what somebody had locked. Then it is forgotten, and what is left to
-- its leases.
with gone as materialized (
  select id, gone_at from idempotency.outbox_relay
  where id is distinct from $1
    and (gone_at is null or gone_at < pg_catalog.now() - interval '1 second')
    -- Shared, as in the claim, which would be in the way of another one.
    and pg_catalog.pg_try_advisory_xact_lock_shared(1918982004, id)
  -- Who comes second has nothing to add.
  for update skip locked
), lane as materialized (
  select aggregatetype, aggregateid from idempotency.outbox_lane
  where relay = any (array(select id from gone)) and ready_at > pg_catalog.now()
  -- Whoever asks has other lanes in hand, which would wait, too.
  for update skip locked
), ready as (
  -- Its owner stays the owner until somebody claims it: it may live, without its session.
  update idempotency.outbox_lane l set ready_at = pg_catalog.now(), relay = null
  from lane
  where l.aggregatetype = lane.aggregatetype and l.aggregateid = lane.aggregateid
), noticed as (
  update idempotency.outbox_relay r set gone_at = pg_catalog.now()
  from gone
  where r.id = gone.id and gone.gone_at is null
), forgotten as (
  delete from idempotency.outbox_relay r
  using gone
  where r.id = gone.id and gone.gone_at is not null
)
select pg_catalog.count(*) as lanes from lane
