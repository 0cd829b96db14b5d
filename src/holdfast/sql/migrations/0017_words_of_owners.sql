-- Where owners of adopted tables tell Holdfast what became of their rows. They reach this schema and no longer the one
-- that what is generated for them is in: whoever can name a function of its own can change whose rights it runs with.

create schema holdfast_told;

-- both have one more argument now
drop function if exists holdfast.is_of_the_caller(text);
drop function if exists holdfast.run_as_owner(oid, text, boolean);
