-- Many messages, in the order of their ids, so that two batches do not wait for each other. The rows
-- are those that are new.
--
-- $1 subscriber  $2 message ids  $3 receipt  $4 retention
insert into idempotency.inbox (subscriber, message_id, receipt, expires_at)
select $1, m.id, $3, pg_catalog.clock_timestamp() + $4::interval
from pg_catalog.unnest($2::text[]) as m (id)
order by m.id collate "C"
on conflict (subscriber, message_id) do nothing
returning message_id
