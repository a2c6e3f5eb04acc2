-- The inbox: which messages a subscriber has had, and how far it is in each stream.

create table idempotency.inbox (
  -- Two subscribers never hide each other's message.
  subscriber  text collate "C" not null,
  message_id  text collate "C" not null,

  -- Drawn by the receiver, so that one whose COMMIT went unanswered can recognise its own row.
  receipt     uuid not null,

  received_at timestamptz not null default clock_timestamp(),
  expires_at  timestamptz not null,

  -- The proof: two rows of one message cannot both be committed. A second insert waits for the
  -- first one's transaction, which is why "duplicate" is never said of one that is rolled back.
  constraint inbox_pkey primary key (subscriber, message_id),

  -- A B-tree entry takes about 2.7 kB at most.
  constraint inbox_subscriber_length check (octet_length(subscriber) between 1 and 255),
  constraint inbox_message_id_length check (octet_length(message_id) between 1 and 1024)
)
-- As of the records: it does not become small, and no reader is locked out.
with (vacuum_truncate = off);

-- 32 pages from the start, as the table of records has them, and for the same reason.
insert into idempotency.inbox (subscriber, message_id, receipt, expires_at)
select 'tower_idempotency.pages', n || repeat('x', 1000), '00000000-0000-0000-0000-000000000000', 'epoch'
from generate_series(1, 224) n;
delete from idempotency.inbox where subscriber = 'tower_idempotency.pages';

-- For the sweeper, which takes the oldest first.
create index inbox_expires_at on idempotency.inbox (expires_at);

create table idempotency.inbox_stream (
  subscriber text collate "C" not null,
  stream     text collate "C" not null,

  -- The newest version that was applied.
  version    bigint not null,
  updated_at timestamptz not null default clock_timestamp(),

  constraint inbox_stream_pkey primary key (subscriber, stream),
  constraint inbox_stream_subscriber_length check (octet_length(subscriber) between 1 and 255),
  constraint inbox_stream_stream_length check (octet_length(stream) between 1 and 1024)
)
-- Updated once a message: room for the next version on the same page keeps the update HOT.
with (fillfactor = 70);

comment on table idempotency.inbox is 'One row per (subscriber, message id) that has had its effect.';
comment on table idempotency.inbox_stream is 'The newest version per (subscriber, stream).';
