-- Jobs of workflows that ended otherwise than done and have children: those are cancelled by upkeep, if they go with
-- their parent. Whoever ends the parent may hold locks behind which it cannot wait for the children.
create table holdfast.orphaned (
  parent uuid primary key,                              -- its link
  state  text not null
);
