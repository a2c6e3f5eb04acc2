-- A relay's session gets a number, and a lock on it that is gone when the session is. In a session
-- of its own, autocommit.
--
-- Others see the number when the lock is held. It is of two parts, as none of a claim is. The session
-- is idle for as long as the relay runs.
with relay as (
  insert into idempotency.outbox_relay default values
  returning id
)
select
  id, pg_catalog.pg_try_advisory_lock(1918982004, id) as is_held,
  pg_catalog.set_config('idle_session_timeout', '0', false) as idle_session_timeout
from relay
