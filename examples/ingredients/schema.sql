create table if not exists ingredient_name (
  name text primary key,
  ingredient text not null
);

create table if not exists recipe_line (
  id bigint generated always as identity primary key,
  source text not null,
  line text not null,
  ingredient text
);
