-- Payloads that are too large for the row of their job, kept by those who enqueue under an address of their own.
create table holdfast.large_payload (
  address    text collate "C" primary key check (length(address) between 1 and 200),
  data       bytea       not null,
  created_at timestamptz not null
);
create index large_payload_age on holdfast.large_payload (created_at);
