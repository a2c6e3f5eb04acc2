-- What the layer needs to find at start.
--
-- By the catalogs, which everybody may read: to_regclass is an error for a role that may not use the
-- schema. One privilege at a time: a list of them asks for any one of the list.
select
  found.record is not null as present,
  coalesce(
    pg_catalog.has_schema_privilege(found.schema, 'usage')
    and pg_catalog.has_table_privilege(found.record, 'select')
    and pg_catalog.has_table_privilege(found.record, 'insert')
    and pg_catalog.has_table_privilege(found.record, 'update')
    and pg_catalog.has_table_privilege(found.record, 'delete'),
    false
  ) as allowed,
  pg_catalog.pg_is_in_recovery() as standby,
  pg_catalog.current_setting('server_version_num')::integer as version
from (values (1)) always
left join (
  select c.oid as record, n.oid as schema
  from pg_catalog.pg_class c
  join pg_catalog.pg_namespace n on n.oid = c.relnamespace
  where n.nspname = 'idempotency' and c.relname = 'record'
) found on true
