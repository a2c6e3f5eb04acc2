-- The outbox: events that were committed and not yet delivered.
--
-- idempotency.outbox has the default columns of Debezium's outbox event router, and is only ever
-- inserted into and deleted from. Whatever changes while events are delivered stands in the other
-- tables. No foreign keys: nothing waits for a row that somebody else is at.

create table idempotency.outbox (
  -- The message id, the same at every delivery.
  id            uuid not null,

  -- Events of one aggregate are delivered in order.
  aggregatetype text collate "C" not null,
  aggregateid   text collate "C" not null,

  type          text not null,

  -- Of JSON, the value. Of bytes, a JSON string with their base64, and `encoding` says so. A column
  -- of bytes beside it would leave the router, which knows one payload, with an empty message.
  payload       jsonb,
  encoding      text,
  headers       jsonb not null default '{}',

  -- The order in an aggregate. Not a cursor: numbers are drawn early and committed late.
  seq           bigint generated always as identity,

  -- The inserting transaction, by which a relay finds what was committed since its last look.
  xact          bigint not null default pg_current_xact_id()::text::bigint,

  created_at    timestamptz not null default clock_timestamp(),

  constraint outbox_pkey primary key (id),

  -- A B-tree entry takes about 2.7 kB at most.
  constraint outbox_aggregatetype_length check (octet_length(aggregatetype) between 1 and 255),
  constraint outbox_aggregateid_length check (octet_length(aggregateid) between 1 and 255),
  constraint outbox_type_length check (octet_length(type) between 1 and 255),
  constraint outbox_encoding_known check (encoding = 'base64'),
  constraint outbox_encoding_of_string check (encoding is null or coalesce(jsonb_typeof(payload) = 'string', false)),
  constraint outbox_headers_object check (jsonb_typeof(headers) = 'object')
)
-- Rows come and go: empty pages are reused only after a vacuum.
with (autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 1000);

-- What a planner cannot know: a claim looks at few of the transactions. By what ANALYZE finds after
-- one large transaction it expects to read all of its events, at a cost beyond `jit_above_cost`, and
-- compiles each claim for longer than that runs.
alter table idempotency.outbox alter column xact set (n_distinct = -1);

-- To read an aggregate's events in order.
create index outbox_aggregate on idempotency.outbox (aggregatetype, aggregateid, seq);

-- To find what was committed since the last look.
create index outbox_xact on idempotency.outbox (xact);

-- One row per aggregate with events waiting. A claim looks here, never at the events: it costs the
-- same whether ten or a million of them wait.
create table idempotency.outbox_lane (
  aggregatetype text collate "C" not null,
  aggregateid   text collate "C" not null,

  -- When it can be claimed: at once, at the end of a lease, or at the end of a backoff.
  ready_at      timestamptz not null,

  -- The claim that holds it. Whoever has lost the lease is not this any more.
  owner         uuid,

  -- The relay whose claim it is, if that has a session: when the session is gone, the lease is over.
  relay         integer,

  -- Events were committed since it was claimed; the owner may not have seen them.
  dirty         boolean not null default false,

  -- The event that failed last, how often that counts, and how often it has failed in all.
  head          uuid,
  attempts      integer not null default 0,
  failures      integer not null default 0,
  last_error    text,

  constraint outbox_lane_pkey primary key (aggregatetype, aggregateid),
  constraint outbox_lane_attempts_of_head check ((head is null) = (failures = 0)),
  constraint outbox_lane_attempts_counted check (attempts between 0 and failures)
)
with (fillfactor = 70, autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 1000);

-- To claim. Two, so that however many lanes fail, those that do not are found without them.
create index outbox_lane_ready on idempotency.outbox_lane (ready_at) where head is null;
create index outbox_lane_retry on idempotency.outbox_lane (ready_at) where head is not null;

-- One row: the snapshot of the last look. What was not visible in it has not been looked at.
create table idempotency.outbox_look (
  id       boolean not null default true,
  snapshot pg_snapshot not null,

  constraint outbox_look_pkey primary key (id),
  constraint outbox_look_single check (id)
)
with (fillfactor = 10, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 500);

insert into idempotency.outbox_look (snapshot) values ('1:1:');

-- One row per relay that runs. Its session holds an advisory lock on the id: whoever can take that
-- lock knows that the relay is gone, and need not wait for the end of its leases.
create table idempotency.outbox_relay (
  -- Four bytes: the second half of a lock's number. Never used again.
  id         integer generated always as identity,
  started_at timestamptz not null default clock_timestamp(),

  -- When somebody has noticed that it is gone.
  gone_at    timestamptz,

  constraint outbox_relay_pkey primary key (id)
);

-- Events that were given up.
create table idempotency.outbox_dead (
  id            uuid not null,
  aggregatetype text collate "C" not null,
  aggregateid   text collate "C" not null,
  type          text not null,
  payload       jsonb,
  encoding      text,
  headers       jsonb not null,
  created_at    timestamptz not null,

  attempts      integer not null,
  error         text not null,
  died_at       timestamptz not null default clock_timestamp(),

  constraint outbox_dead_pkey primary key (id)
);

-- To list and to purge.
create index outbox_dead_died_at on idempotency.outbox_dead (died_at, id);

comment on table idempotency.outbox is 'Events committed and not yet delivered. Inserted into and deleted from, never updated.';
comment on table idempotency.outbox_lane is 'One row per aggregate with events waiting.';
comment on table idempotency.outbox_look is 'The snapshot of the last look for new events.';
comment on table idempotency.outbox_relay is 'One row per relay that runs.';
comment on table idempotency.outbox_dead is 'Events that were given up, until they are requeued or purged.';
