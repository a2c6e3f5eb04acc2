-- What the layer needs to find at start.
select
  to_regclass('idempotency.record') is not null as present,
  coalesce(has_table_privilege(to_regclass('idempotency.record'), 'select, insert, update, delete'), false) as allowed,
  pg_is_in_recovery() as standby,
  current_setting('server_version_num')::integer as version
