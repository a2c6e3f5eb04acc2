-- A relay that has stopped and has nothing in hand is forgotten.
--
-- $1 its number
delete from idempotency.outbox_relay where id = $1
