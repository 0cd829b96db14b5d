// A form made from a JSON schema, or plain JSON if there is none: for the payloads of jobs and of events.

import type { ComponentChildren } from "preact";
import { useEffect, useState } from "preact/hooks";
import { parsed } from "../deeds";
import type { JsonSchema } from "../types";
import type { Json } from "../wire";
import { attempt } from "./dialog";
import { pretty } from "./json";

interface Payload {
  fields: ComponentChildren;
  /** What is in the fields; throws an Error, whose message says what is wrong. */
  read: () => Json;
}

/** The fields for a payload; they begin anew if `of` changes. `none` is said of a schema without fields. */
export function usePayload({ schema: given, start, of, none, rows = 10 }: { schema: JsonSchema | null; start?: Json; of: string; none: string; rows?: number }): Payload {
  const [text, setText] = useState(pretty(start ?? {}));
  const [values, setValues] = useState<Record<string, string>>({});
  const [raw, setRaw] = useState(start !== undefined);
  const asked = given ? resolved(given) : null;
  // A plain value, such as yes or no, is the only field of its form.
  const single = asked !== null && !fillable(asked) && (asked.enum !== undefined || SCALARS.includes(typeOf(asked)));
  const schema: JsonSchema | null = single ? { type: "object", properties: { value: asked }, required: ["value"] } : asked;
  const form = schema && !raw && fillable(schema);
  useEffect(() => setValues(form ? defaults(schema) : {}), [of, form !== false && form !== null]);
  const read = (): Json => {
    if (!form) return parsed(text || "{}");
    const told = assembled(schema, values);
    return single ? (told as Record<string, Json>).value! : told;
  };
  const fields = (
    <>
      {schema && (
        <div class="segments" role="group" aria-label="Payload as">
          <button type="button" aria-pressed={!raw} disabled={!fillable(schema)} onClick={() => setRaw(false)}>Form</button>
          <button
            type="button"
            aria-pressed={raw}
            onClick={() => {
              if (form) setText(pretty(attempt(read) ?? {}));
              setRaw(true);
            }}
          >
            JSON
          </button>
        </div>
      )}
      {form ? (
        <Form schema={schema} none={none} values={values} set={(name, value) => setValues((all) => ({ ...all, [name]: value }))} />
      ) : (
        <label class="field">
          <span>
            Payload <small>JSON</small>
          </span>
          <textarea class="mono" rows={rows} spellcheck={false} value={text} onInput={(event) => setText(event.currentTarget.value)} />
        </label>
      )}
    </>
  );
  return { fields, read };
}

function Form({ schema, none, values, set }: { schema: JsonSchema; none: string; values: Record<string, string>; set: (name: string, value: string) => void }) {
  const required = new Set(schema.required ?? []);
  const names = Object.entries(schema.properties ?? {});
  if (!names.length) return <p class="soft">{none}</p>;
  return (
    <>
      {names.map(([name, part]) => {
        const type = typeOf(part);
        const value = values[name] ?? "";
        const id = `argument-${name}`;
        return (
          <div class="field" key={name}>
            <label for={id}>
              <span class="mono">{name}</span> <small>{[part.description?.replace(/\.$/, ""), hint(part), required.has(name) ? "" : "optional"].filter(Boolean).join(", ")}</small>
            </label>
            {part.enum ? (
              <select id={id} value={value} onChange={(event) => set(name, event.currentTarget.value)}>
                {!required.has(name) && <option value="" />}
                {part.enum.map((one) => <option key={String(one)} value={JSON.stringify(one)}>{String(one)}</option>)}
              </select>
            ) : type === "boolean" ? (
              <select id={id} value={value} onChange={(event) => set(name, event.currentTarget.value)}>
                {!required.has(name) && <option value="" />}
                <option value="true">true</option>
                <option value="false">false</option>
              </select>
            ) : type === "object" || type === "array" || type === "" ? (
              <textarea id={id} class="mono" rows={3} spellcheck={false} value={value} placeholder={type === "array" ? "[]" : type === "object" ? "{}" : "JSON"} onInput={(event) => set(name, event.currentTarget.value)} />
            ) : (
              <input id={id} value={value} inputMode={type === "integer" ? "numeric" : type === "number" ? "decimal" : undefined} autocomplete="off" required={required.has(name) && type !== "string"} onInput={(event) => set(name, event.currentTarget.value)} />
            )}
          </div>
        );
      })}
    </>
  );
}

const SCALARS = ["boolean", "string", "integer", "number"];

const fillable = (schema: JsonSchema): boolean => typeOf(schema) === "object" && schema.properties !== undefined;

/** The schema with its references put in place, as far as the form looks: its fields and their alternatives. */
function resolved(schema: JsonSchema): JsonSchema {
  const known = schema.$defs ?? {};
  const follow = (one: JsonSchema): JsonSchema => {
    // One that refers to itself, or to nothing, is left as it is.
    for (let found: JsonSchema | undefined, hops = 0; one.$ref && hops < 9; hops++) {
      const { $ref, ...beside } = one;
      found = known[decodeURIComponent($ref.replace("#/$defs/", ""))];
      if (!found) break;
      one = { ...found, ...beside };
    }
    return one;
  };
  const field = (one: JsonSchema): JsonSchema => {
    const { anyOf, ...whole } = follow(one);
    const real = anyOf?.map(follow).filter((each) => each.type !== "null");
    if (real?.length === 1) return { ...real[0], ...whole };
    return anyOf ? { ...whole, anyOf: real } : whole;
  };
  const top = follow(schema);
  const properties = Object.entries(top.properties ?? {}).map(([name, part]) => [name, field(part)] as const);
  return { ...top, properties: top.properties && Object.fromEntries(properties) };
}

// A schema may allow null beside the type itself; the form then leaves the field out.
function typeOf(schema: JsonSchema): string {
  if (Array.isArray(schema.type)) return schema.type.find((one) => one !== "null") ?? "";
  if (schema.type) return schema.type;
  const real = schema.anyOf?.filter((one) => one.type !== "null");
  return real?.length === 1 ? typeOf(real[0]!) : "";
}

function hint(schema: JsonSchema): string {
  if (schema.enum) return "";
  const format = schema.format ?? schema.anyOf?.find((one) => one.format)?.format;
  return [typeOf(schema), format && `(${format})`].filter(Boolean).join(" ");
}

function defaults(schema: JsonSchema): Record<string, string> {
  const out: Record<string, string> = {};
  const required = new Set(schema.required ?? []);
  for (const [name, part] of Object.entries(schema.properties ?? {})) {
    if (part.enum && required.has(name)) out[name] = JSON.stringify(part.default ?? part.enum[0]);
    else if (typeOf(part) === "boolean" && required.has(name)) out[name] = String(part.default ?? false);
    else if (part.default !== undefined && part.default !== null) out[name] = typeof part.default === "string" && !part.enum ? part.default : JSON.stringify(part.default);
  }
  return out;
}

function assembled(schema: JsonSchema, values: Record<string, string>): Json {
  const required = new Set(schema.required ?? []);
  const out: Record<string, Json> = {};
  for (const [name, part] of Object.entries(schema.properties ?? {})) {
    const text = values[name] ?? "";
    const type = typeOf(part);
    if (text === "" && !(required.has(name) && type === "string")) {
      if (required.has(name)) throw new Error(`${name} is missing`);
      continue;
    }
    if (type === "string" && !part.enum) out[name] = text;
    else {
      try {
        out[name] = JSON.parse(text) as Json;
      } catch {
        throw new Error(`${name}: ${text} is not valid ${type || "JSON"}`);
      }
    }
  }
  return out;
}
