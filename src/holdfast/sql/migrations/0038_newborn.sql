-- Jobs of workflows that were given children, until upkeep has seen how they are doing: a parent that ended while its
-- child was not yet committed has left it. One row for each call and parent, so nobody waits for anybody to write one.
create table holdfast.newborn (
  nth    bigint generated always as identity primary key,
  parent uuid   not null                                -- its link
);
