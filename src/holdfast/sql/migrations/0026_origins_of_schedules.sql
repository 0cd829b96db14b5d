-- Which program declares a schedule that has no owner: the module of its app, and the kinds that it has.
alter table holdfast.schedule add column origin jsonb;
