-- The record: one row per (tenant, operation, key).
--
-- Usable by any migrator. `tower_idempotency::migrate` keeps account of it in
-- idempotency.migrations and takes an advisory lock around it.

-- Not `create schema if not exists`: that asks for the right to create schemas even when the
-- schema is there, and a restricted role has not got it.
do $$
begin
  if to_regnamespace('idempotency') is null then
    create schema idempotency;
  end if;
end
$$;

create table idempotency.record (
  -- Who, what, which. collate "C": equality and order by bytes, the same on every machine; an
  -- upgrade of the operating system's collation cannot break the primary key.
  tenant_id       text collate "C" not null,
  operation       text collate "C" not null,
  idempotency_key text collate "C" not null,

  -- Drawn by the claimant, so that one whose COMMIT went unanswered can recognise its own row.
  claim_id        uuid not null,

  -- A version byte, then the hash of the request. Compared on every path that answers from a row.
  fingerprint     bytea not null,

  -- pending: inside the claimant's open transaction, hence invisible to others (or leased).
  -- completed: effects and response committed together. failed: effects undone, response kept.
  -- tombstone: the response is gone, the key is still refused.
  state           text not null,
  attempt         integer not null default 1,

  -- The response. headers: see record.rs for the format. body null: done, but not kept.
  status          smallint,
  headers         bytea,
  body            bytea,

  -- Instead of a body: what to render when the response is asked for again.
  resource_type   text,
  resource_id     text,

  created_at      timestamptz not null default clock_timestamp(),

  -- null: an atomic claim, settled by the transaction that made it. Otherwise a committed claim
  -- whose owner keeps it alive until then.
  lease_until     timestamptz,

  -- The next transition: completed to tombstone or gone, failed and tombstone to gone.
  expires_at      timestamptz not null,

  -- How long after expires_at a late retry is still refused.
  tombstone       interval,

  -- The proof: two rows of one key cannot both be committed. The one constraint, on purpose: the
  -- server reads and compiles each check anew for every statement, and the nineteen that say how
  -- state and columns agree took more of its time than all else that a claim and its settling do.
  -- Only this crate writes the table; what it reads it takes for nothing it does not know.
  constraint record_pkey primary key (tenant_id, operation, idempotency_key)
)
-- Room for the last row of a page to be settled in it: with bodies of 300 bytes 99.7% of the updates
-- are HOT, and 93% on full pages; it costs 1 to 4% of disk. At 92 and below the server leaves the dead
-- versions of a page to vacuum, and a record takes a third more until then.
--
-- vacuum_truncate: to give pages at the end of the table back, vacuum would lock out all claims; and
-- the table must not become small, see below.
with (fillfactor = 95, vacuum_truncate = off);

-- For the sweeper, which takes the oldest first. No other index: an update that touches an indexed
-- column is not HOT, and settling updates every row once.
create index record_expires_at on idempotency.record (expires_at);

-- A table of a few pages is read as a whole, since that is the shortest way to a row in it. Connections
-- keep such a plan until the server has looked at the table again, for a minute; and a service that
-- gets its first burst meanwhile reads more with every record. So the table has 32 pages from the
-- start, 256 kB, which are free when these rows are gone.
insert into idempotency.record (tenant_id, operation, idempotency_key, claim_id, fingerprint, state, expires_at)
select '', 'tower_idempotency.pages', n::text, '00000000-0000-0000-0000-000000000000', convert_to(repeat('x', 1700), 'UTF8'), 'tombstone', 'epoch'
from generate_series(1, 128) n;
delete from idempotency.record where operation = 'tower_idempotency.pages';

-- On the table only: a comment on the schema would need its owner.
comment on table idempotency.record is
  'One row per (tenant, operation, idempotency key). Not an API: columns may change with a version of tower-idempotency.';
